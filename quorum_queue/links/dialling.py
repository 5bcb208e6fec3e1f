"""Dials the peers without a session."""

from __future__ import annotations

import logging
import random
import socket
import ssl
from collections.abc import Callable

import trio

from quorum_queue.links import local_sockets
from quorum_queue.links.handshake import PeerRefused
from quorum_queue.links.handshake_io import Greeter
from quorum_queue.links.ports import LinkOptions, Peer, Wire
from quorum_queue.links.rate_limited_log import SeldomLog
from quorum_queue.links.session_choice import decides
from quorum_queue.links.sessions import LinkSessions, Pair
from quorum_queue.links.shared_port import wanting
from quorum_queue.links.sources import source_of
from quorum_queue.links.wire import LOST, TlsWire, close


class Dialling:
    """One task for each peer with an address."""

    def __init__(
        self,
        sessions: LinkSessions,
        greeter: Greeter,
        options: LinkOptions,
        make_wire: Callable[[socket.socket, str | None], Wire],
        log: SeldomLog,
    ) -> None:
        self._sessions = sessions
        self._greeter = greeter
        self._options = options
        self._make_wire = make_wire
        self._log = log

    def start(self, nursery: trio.Nursery, pair: Pair) -> None:
        """Keep dialling this peer, if no task does so yet."""
        if pair.dialling is None and pair.address is not None:
            pair.dialling = trio.CancelScope()
            nursery.start_soon(self._run, pair, pair.dialling)

    async def _run(self, pair: Pair, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                while pair.session is not None:
                    await pair.unlinked.wait()
                await trio.sleep(self._retry_s(pair))
                if pair.session is None and pair.address is not None:
                    pair.failures += 1
                    await self._dial(pair, pair.address)

    def _retry_s(self, pair: Pair) -> float:
        shortest, longest = self._options.retry_min_ms / 1000, self._options.retry_max_ms / 1000
        if pair.failures:
            # The exponent is bounded; otherwise the number would grow while the peer is away.
            grown: float = shortest * (1 << min(pair.failures - 1, 16))
            return min(longest, grown) * random.uniform(0.5, 1.0)
        # After the end of a session both nodes would dial at once: the deciding node goes first.
        return 0.0 if decides(self._sessions.node, pair.name) or not pair.had_session else shortest

    async def _dial(self, pair: Pair, peer: Peer) -> None:
        local = local_sockets.is_local(peer.host)
        where = f"{peer.name} ({local_sockets.HERE if local else f'{peer.host}:{peer.port}'})"
        wire: Wire | None = None
        try:
            wire = await self._connect(peer)
            # A dialler waits no longer than for a silent peer, as this holds up its next attempt.
            with trio.fail_after(min(self._options.handshake_ms, 2 * self._options.dead_ms) / 1000):
                if isinstance(wire, TlsWire):
                    await self._secure(wire)
                hello, standing = await self._greeter.dial(wire, peer.name)
            await self._sessions.authenticated(wire, hello, standing)
        except PeerRefused as refused:
            if pair.session is None:
                level, sort = (logging.WARNING, "suspect") if refused.suspect else (logging.INFO, "refused")
                self._log.write(level, sort, peer.name, f"no link to {where}: {refused}")
        except (*LOST, trio.TooSlowError, UnicodeError) as error:
            # An invalid host name raises UnicodeError.
            if pair.session is None:
                text = str(error) or type(error).__name__
                self._log.write(logging.INFO, "lost", peer.name, f"no link to {where} yet: {text}")
        finally:
            if wire is not None:
                close(wire)

    async def _connect(self, peer: Peer) -> Wire:
        if local_sockets.is_local(peer.host):
            sock = await local_sockets.connect(peer.host)
            self._sessions.addresses[peer.name] = local_sockets.HERE
            return self._make_wire(sock, peer.host)
        with trio.fail_after(self._options.dial_ms / 1000):
            stream = await trio.open_tcp_stream(peer.host, peer.port)
        sock = socket.socket(fileno=stream.socket.detach())
        if sock.getsockname() == sock.getpeername():
            # No process listens on the port, and the kernel chose this same port as the source: the socket is
            # connected to itself.
            sock.close()
            raise ConnectionRefusedError("connected to itself")
        self._sessions.addresses[peer.name] = source_of(str(sock.getpeername()[0]))
        if peer.process:
            # A new connection has room for it.
            sock.send(wanting(peer.process))
        return self._make_wire(sock, peer.host)

    async def _secure(self, wire: TlsWire) -> None:
        try:
            await wire.handshake()
        except ssl.SSLError as error:
            raise PeerRefused(f"TLS: {error}", suspect=True) from None
