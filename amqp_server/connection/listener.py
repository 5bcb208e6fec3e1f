"""Listening sockets, and what all connections of the node share at the edge."""

from __future__ import annotations

import logging
import socket
import ssl
from functools import partial
from typing import Protocol

import trio

from amqp_server.broker.broker import Broker
from amqp_server.config import parse_address
from amqp_server.connection import log
from amqp_server.connection.half_open import HalfOpen, HalfOpens
from amqp_server.connection.password_checks import PasswordChecks, source_of
from amqp_server.connection.session import State
from amqp_server.connection.tls import ListenerTLS
from amqp_server.connection.transport import ClientWire, Transport
from quorum_queue.links.wire import TlsWire, Wire

logger = logging.getLogger("mqd.connection")

#: Connections accepted in one turn.
ACCEPT_BATCH = 8
#: Time between two summaries of lines that were not logged one by one, s.
LOG_SUMMARY_S = 10.0


class ListenError(Exception):
    """An address that cannot be listened on."""


class Backpressure(Protocol):
    """See amqp_server.backpressure."""

    @property
    def ahead(self) -> bool:
        """True if more was published than may wait for the disk or for other nodes."""

    async def wait(self) -> None: ...


def listen(address: str, backlog: int) -> socket.socket:
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


class Server:
    """Accepts connections and watches over them."""

    def __init__(self, broker: Broker, backpressure: Backpressure, password_checks: PasswordChecks) -> None:
        self.broker = broker
        self.config = broker.config
        self.turn = broker.turn
        self.backpressure = backpressure
        self.password_checks = password_checks
        self.transports: dict[Transport, None] = {}
        #: Shared by all connections: a read is copied out of it before the next await.
        self.receive_buffer = memoryview(bytearray(self.config.receive_bytes))
        #: Accepted, whether a task serves them yet or not.
        self._open = 0
        #: Those of them that have not logged in.
        self.half_opens = HalfOpens(self.config)

    async def serve(self, listening: socket.socket, tls: ListenerTLS | None = None) -> None:
        """Accept until cancelled. If the socket is closed, go on serving the connections that are there."""
        async with trio.open_nursery() as nursery:
            # It may be closed before this task first runs.
            while listening.fileno() >= 0:
                try:
                    await trio.lowlevel.wait_readable(listening)
                except trio.ClosedResourceError:
                    return
                for _ in range(ACCEPT_BATCH):
                    try:
                        sock, address = listening.accept()
                    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                        break
                    except OSError as error:
                        logger.error("cannot accept a connection: %s", error)
                        await trio.sleep(0.1)
                        break
                    context = None if tls is None else tls.context
                    self._accept(nursery, sock, str(address[0]), context)

    def _accept(
        self, nursery: trio.Nursery, sock: socket.socket, peer: str, tls: ssl.SSLContext | None
    ) -> None:
        source = source_of(peer)
        place = (
            self.half_opens.admit(source, trio.current_time())
            if self._open < self.config.connections_max
            else None
        )
        if place is None:
            if self.broker.log_limit.allows("connection refused", source, 1):
                logger.warning(
                    "connection refused of %s: %d open, %d logging in, %d of them from there",
                    peer,
                    self._open,
                    len(self.half_opens),
                    self.half_opens.count_of(source),
                    extra={"peer": peer},
                )
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open += 1
        nursery.start_soon(self._connection, sock, tls, place)

    async def _connection(self, sock: socket.socket, tls: ssl.SSLContext | None, half_open: HalfOpen) -> None:
        try:
            with sock, trio.CancelScope() as scope:
                if half_open.gone:
                    return
                half_open.drop = scope.cancel
                wire = await self._wire(sock, tls, half_open.source)
                if wire is None:
                    return
                peer, here = sock.getpeername()[:2], sock.getsockname()[:2]
                name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
                transport = Transport(self, wire, peer[0], name, half_open)
                half_open.drop = partial(self._give_way, transport, scope)
                self.transports[transport] = None
                try:
                    await transport.run()
                finally:
                    del self.transports[transport]
        except OSError:
            return
        finally:
            self._open -= 1
            self.half_opens.remove(half_open)

    def _give_way(self, transport: Transport, scope: trio.CancelScope) -> None:
        log.closing(transport.session, "too many connections are logging in")
        scope.cancel()

    async def _wire(self, sock: socket.socket, tls: ssl.SSLContext | None, source: str) -> Wire | None:
        if tls is None:
            return ClientWire(sock)
        wire = TlsWire(sock, tls, server_host=None)
        try:
            with trio.fail_after(self.config.handshake_timeout_s):
                await wire.handshake()
        except (ssl.SSLError, trio.TooSlowError, OSError) as error:
            if self.broker.log_limit.allows("TLS handshake failed", source):
                said = str(error) or "it took too long"
                logger.info("TLS handshake with %s failed: %s", source, said, extra={"peer": source})
            return None
        return wire

    async def watch(self) -> None:
        """End connections whose client is gone or never logs in. Looks once a second."""
        summarised = trio.current_time()
        while True:
            await trio.sleep(1.0)
            self._check_all()
            if trio.current_time() - summarised >= LOG_SUMMARY_S:
                summarised = trio.current_time()
                self._summarise()

    def _summarise(self) -> None:
        for text in self.broker.log_limit.summaries():
            logger.warning("%s", text)

    def _check_all(self) -> None:
        # A function of its own, so that no connection outlives its end in a variable of `watch`.
        now = trio.current_time()
        for transport in list(self.transports):
            self._check(transport, now)

    def _check(self, transport: Transport, now: float) -> None:
        session, handshake_s = transport.session, self.config.handshake_timeout_s
        if session.state in (State.CLOSING, State.CLOSED):
            # The goodbye may still wait for the disk, or for the client to take it.
            said = session.answered_close and not transport.outbox.size
            limit_s = session.close_wait_s if said else handshake_s
            if self.broker.clock.monotonic_ms() - session.closing_since_ms > 1000 * limit_s:
                transport.close()
            return
        if session.state is not State.RUNNING:
            if now - transport.began > handshake_s:
                log.closing(session, log.HANDSHAKE_TIMEOUT)
                transport.close()
            return
        self._check_heartbeats(transport, now)

    def _check_heartbeats(self, transport: Transport, now: float) -> None:
        session, interval = transport.session, transport.session.limits.heartbeat_s
        if not interval:
            return
        if session.incoming.stalled or transport.waits_for_disk:
            # A publisher that is not read from may send heartbeats or not: nobody can tell. It gets ours.
            transport.last_received = now
        if now - transport.last_received > 2 * interval:
            log.closing(session, f"missed heartbeats from client, timeout: {interval}s")
            transport.close()

    @property
    def has_goodbyes(self) -> bool:
        """True if connections are open that do not only wait for their clients to close the socket."""
        return any(
            not transport.session.answered_close or transport.outbox.size for transport in self.transports
        )
