"""Listening sockets, and what all connections of the node share at the edge."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from amqp_server.broker.broker import Broker
from amqp_server.config import parse_address
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session, State
from amqp_server.connection.tls import TlsWire
from amqp_server.connection.transport import PlainWire, Transport, Wire

logger = logging.getLogger("mqd.connection")

#: Connections accepted in one turn.
ACCEPT_BATCH = 64


class ListenError(Exception):
    """An address that cannot be listened on."""


class TurnCommits(Protocol):
    """What writes to the disk; see persistence.commit."""

    def hold(self) -> None: ...

    def begin(self) -> None: ...


class Server:
    """Accepts connections and ends turns."""

    def __init__(
        self,
        broker: Broker,
        *,
        unsynced_bytes: Callable[[], int],
        barrier: Callable[[], Awaitable[None]],
        commits: TurnCommits,
    ) -> None:
        self.broker = broker
        self._commits = commits
        config = broker.config
        self.outbox_low = config.outbox_low_bytes
        self.unsynced_high = config.unsynced_high_bytes
        self.unsynced_bytes = unsynced_bytes
        self.barrier = barrier
        #: Outboxes with something to send.
        self.dirty: dict[Outbox, None] = {}
        self.transports: dict[Outbox, Transport] = {}
        self._buffer = bytearray(config.receive_bytes)
        #: Accepted, whether a task serves them yet or not.
        self._open = 0
        self._half_open = 0
        self._turn_wanted = trio.Event()
        broker.want_turn = self.want_turn

    def end_turn(self) -> None:
        """Apply all that is pending, send all that waits, of every connection, and have written what was submitted."""
        self._commits.hold()
        try:
            self._end_turn()
        finally:
            # The other nodes and the clients have what this turn has for them.
            self._commits.begin()

    def _end_turn(self) -> None:
        broker, dirty, transports = self.broker, self.dirty, self.transports
        broker.end_turn()
        while dirty:
            outbox, _ = dirty.popitem()
            transport = transports.get(outbox)
            if transport is not None:
                transport.flush()
                if broker.dirty or broker.answers or broker.resuming:
                    broker.end_turn()

    def want_turn(self) -> None:
        """Something changed outside a connection's turn, as a commit does."""
        self._turn_wanted.set()

    async def run_turns(self) -> None:
        """End turns that no connection ends."""
        while True:
            await self._turn_wanted.wait()
            self._turn_wanted = trio.Event()
            self.end_turn()

    def listen(self, address: str, backlog: int) -> socket.socket:
        """Return a listening socket. Raises ListenError, which says what to do."""
        parsed = parse_address(address)
        assert parsed is not None
        host, port = parsed
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(backlog)
        except OSError as error:
            sock.close()
            raise ListenError(
                f"cannot listen on {address}: {error.strerror or error}. Is another broker running there? "
                "Choose another address with --amqp or --http."
            ) from error
        sock.setblocking(False)
        return sock

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections until cancelled, or until the socket is closed, and then serve those that are there."""
        async with trio.open_nursery() as nursery:
            # It may be closed before this task first runs.
            while listening.fileno() >= 0:
                try:
                    await trio.lowlevel.wait_readable(listening)
                except trio.ClosedResourceError:
                    return
                for _ in range(ACCEPT_BATCH):
                    try:
                        sock, _ = listening.accept()
                    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                        break
                    except OSError as error:
                        logger.error("cannot accept a connection: %s", error)
                        await trio.sleep(0.1)
                        break
                    self._accept(nursery, sock, tls)

    def _accept(self, nursery: trio.Nursery, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        config = self.broker.config
        if self._open >= config.connections_max or self._half_open >= config.half_open_max:
            logger.warning("connection refused: %d open, %d logging in", self._open, self._half_open)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open += 1
        self._half_open += 1
        nursery.start_soon(self._connection, sock, tls)

    async def _connection(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        half_open = True

        def opened() -> None:
            nonlocal half_open
            if half_open:
                half_open = False
                self._half_open -= 1

        try:
            with sock:
                wire = await self._wire(sock, tls)
                if wire is None:
                    return
                peer, here = sock.getpeername()[:2], sock.getsockname()[:2]
                outbox = Outbox(self.dirty, self.broker.config.outbox_high_bytes)
                name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
                session = Session(self.broker, outbox, peer[0], name)
                session.opened = opened
                transport = Transport(self, wire, session, outbox)
                session.resumed = transport.resumed
                self.transports[outbox] = transport
                try:
                    await transport.run()
                finally:
                    del self.transports[outbox]
        except OSError:
            return
        except Exception:
            # A defect of ours; nobody but this client is to suffer.
            logger.exception("connection from a client ended by an internal error")
        finally:
            self._open -= 1
            opened()

    async def _wire(self, sock: socket.socket, tls: ssl.SSLContext | None) -> Wire | None:
        if tls is None:
            return PlainWire(sock, self._buffer)
        wire = TlsWire(sock, self._buffer, tls)
        try:
            with trio.fail_after(self.broker.config.handshake_timeout_s):
                await wire.handshake()
        except (ssl.SSLError, trio.TooSlowError, OSError) as error:
            logger.info("TLS handshake failed: %s", error)
            return None
        return wire

    def alarm_changed(self) -> None:
        """Tell every connection that the alarms were raised or cleared."""
        for transport in list(self.transports.values()):
            transport.session.alarm_changed()
            transport.wake()
        self.want_turn()

    async def watch(self) -> None:
        """Send heartbeats, and end connections whose client is gone or never logs in. Looks once a second."""
        while True:
            await trio.sleep(1.0)
            self._check_all()

    def _check_all(self) -> None:
        # A function of its own, so that no connection outlives its end in a variable of `watch`.
        handshake, now = self.broker.config.handshake_timeout_s, trio.current_time()
        for transport in list(self.transports.values()):
            self._check(transport, now, handshake)

    def _check(self, transport: Transport, now: float, handshake_s: float) -> None:
        session = transport.session
        if session.state in (State.CLOSING, State.CLOSED):
            # The goodbye may still wait for the disk, or for the client to take it.
            if self.broker.clock() - session.closing_since_ms > 1000 * handshake_s:
                transport.close()
            return
        if session.state is not State.RUNNING:
            if now - transport.began > handshake_s:
                logger.info("connection %s: handshake took longer than %g s", session.name, handshake_s)
                transport.close()
            return
        interval = session.heartbeat_s
        if not interval or session.stalled:
            # A blocked publisher is not read from, so nobody can tell whether it sends heartbeats.
            return
        if session.stalled:
            # Nobody reads its heartbeats now.
            transport.last_received = now
        if now - transport.last_received > 2 * interval:
            logger.info("connection %s: missed heartbeats from client, timeout: %ds", session.name, interval)
            transport.close()
        elif now - transport.last_sent >= interval / 2 - 0.5:
            session.heartbeat()
            transport.flush()
