"""The listener for links: strangers get no byte, and cost little."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable

import trio

from quorum_queue.links import local_sockets
from quorum_queue.links.accept import accept_all
from quorum_queue.links.crowd import Crowd
from quorum_queue.links.handshake import Hello, PeerRefused, Standing
from quorum_queue.links.handshake_io import Greeter
from quorum_queue.links.ports import LinkOptions, Wire
from quorum_queue.links.rate_limited_log import SeldomLog
from quorum_queue.links.sessions import LinkSessions
from quorum_queue.links.shared_port import Processes, wanted
from quorum_queue.links.sources import source_of
from quorum_queue.links.wire import LOST, TlsWire, close

logger = logging.getLogger("mqd.links")

#: Connections accepted before other tasks run: few enough that each may show a message before a crowd of
#: others pushes it out.
ACCEPT_BATCH = 8


class Accepting:
    """Accepts connections, and lets in those that prove to be peers."""

    def __init__(
        self,
        sessions: LinkSessions,
        greeter: Greeter,
        options: LinkOptions,
        make_wire: Callable[[socket.socket, str | None], Wire],
        log: SeldomLog,
        processes: Processes,
    ) -> None:
        self._sessions = sessions
        self._greeter = greeter
        self._options = options
        self._make_wire = make_wire
        self._log = log
        self._processes = processes
        #: While `run` runs.
        self._nursery: trio.Nursery | None = None
        #: Connections without a valid message yet; those from addresses of peers are apart, so that nobody
        #: else pushes them out.
        self.strangers = Crowd(options.half_open_max)
        self.neighbours = Crowd(options.half_open_max)
        #: Connections with a valid first message, which a stranger may replay.
        self.greeted = Crowd(options.half_open_max)

    async def run(self, listens: Iterable[socket.socket]) -> None:
        """Accept from these sockets until cancelled, or until they are closed."""
        try:
            async with trio.open_nursery() as self._nursery:
                for listen in listens:
                    self._nursery.start_soon(accept_all, listen, ACCEPT_BATCH, self._accept, self._failed)
        finally:
            self._nursery = None

    def _accept(self, sock: socket.socket, _: object) -> None:
        # Unix sockets lead to one process.
        self._begin(sock, for_all=sock.family != socket.AF_UNIX)

    def take(self, sock: socket.socket) -> None:
        """Take a connection that another process of this node has accepted, and passed on."""
        self._begin(sock, for_all=False)

    def _begin(self, sock: socket.socket, *, for_all: bool) -> None:
        """`for_all`: the dialler may want another process."""
        if self._nursery is None:
            # This node does not run yet, or no longer: the other side dials again.
            sock.close()
            return
        try:
            host, port = local_sockets.other_end(sock)
            wire = self._make_wire(sock, None)
        except OSError:
            # It has disconnected already.
            sock.close()
            return
        source = source_of(host)
        near = source in self._sessions.addresses.values()
        self._crowd(self.neighbours if near else self.strangers, wire, source)
        self._nursery.start_soon(self._accepted, wire, source, f"{host}:{port}", sock if for_all else None)

    def _failed(self, error: OSError) -> None:
        self._log.write(logging.ERROR, "accept", "", f"cannot accept a link: {error}; it waits")

    def _crowd(self, pool: Crowd, wire: Wire, source: str) -> None:
        """Put a connection into the pool; if the pool is full, another one is closed."""
        gone = pool.enter(wire, source)
        if gone is not None:
            close(gone)
            self._log.write(
                logging.INFO, "crowd", "", "too many connections to the cluster listener: one was dropped"
            )

    async def _accepted(self, wire: Wire, source: str, where: str, shared: socket.socket | None) -> None:
        """`shared` is the socket of a connection that may be for another process."""
        try:
            greeted = await self._greet(wire, source, where, shared)
            if greeted is not None:
                self._sessions.addresses[greeted[0].name] = source
                await self._sessions.authenticated(wire, *greeted)
        except PeerRefused as refused:
            self._refused(where, refused)
        except (*LOST, trio.TooSlowError) as error:
            text = str(error) or type(error).__name__
            self._log.write(logging.DEBUG, "lost", "", f"link from {where} failed: {text}")
        finally:
            self._leave(wire)
            close(wire)

    async def _greet(
        self, wire: Wire, source: str, where: str, shared: socket.socket | None
    ) -> tuple[Hello, Standing] | None:
        """Authenticate a connection. A stranger may send anything; nothing in the node depends on it yet."""
        try:
            with trio.fail_after(self._options.handshake_ms / 1000):
                if shared is not None and (number := await wanted(shared)) != self._processes.number:
                    self._processes.pass_on(number, shared)
                    return None
                if isinstance(wire, TlsWire):
                    await wire.handshake()
                greeted = await self._greeter.accept(wire, lambda hello: self._opened(wire, source, hello))
            self._leave(wire)
            return greeted
        except (PeerRefused, *LOST, trio.TooSlowError):
            raise
        except Exception:
            logger.exception("link from %s: internal error", where)
            return None

    def _refused(self, where: str, refused: PeerRefused) -> None:
        level, sort = (logging.WARNING, "suspect") if refused.suspect else (logging.INFO, "refused")
        self._log.write(level, sort, "", f"link from {where} refused: {refused}")

    def _opened(self, wire: Wire, source: str, hello: Hello) -> None:
        pair = self._sessions.pairs.get(hello.name)
        if (pair is None or pair.address is None) and not self._sessions.events.admits(hello.name):
            raise PeerRefused(f"{hello.name!r} is not among the peers of this node", suspect=True)
        if wire in self.strangers or wire in self.neighbours:
            self._leave(wire)
            self._crowd(self.greeted, wire, source)

    def _leave(self, wire: Wire) -> None:
        for pool in (self.strangers, self.neighbours, self.greeted):
            pool.leave(wire)
