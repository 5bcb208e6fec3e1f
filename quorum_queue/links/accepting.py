"""The listener for links: strangers get no byte, and cost little."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import trio

from quorum_queue.links.greeting import Greeter
from quorum_queue.links.handshake import Hello, Refused, Standing
from quorum_queue.links.ports import LinkOptions, Wire
from quorum_queue.links.seldom import SeldomLog
from quorum_queue.links.sessions import LinkSessions
from quorum_queue.links.wire import LOST, TlsWire, close

logger = logging.getLogger("mqd.links")

#: Connections accepted in one turn.
ACCEPT_BATCH = 64


class Accepting:
    """Accepts connections, and lets in those that prove to be peers."""

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
        #: Connections without a valid message yet. Those with one are kept apart, so that strangers do not
        #: push them out; a stranger may replay a valid first message, so they are bounded, too.
        self.strangers: dict[Wire, None] = {}
        self.greeted: dict[Wire, None] = {}

    async def run(self, listen: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled, or until the socket is closed."""
        listen.setblocking(False)
        while True:
            try:
                await trio.lowlevel.wait_readable(listen)
            except trio.ClosedResourceError:
                return
            for _ in range(ACCEPT_BATCH):
                try:
                    sock, _ = listen.accept()
                    wire = self._make_wire(sock, None)
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    break
                except OSError as error:
                    self._log.write(logging.ERROR, "accept", "", f"cannot accept a link: {error}")
                    await trio.sleep(0.1)
                    break
                self._crowd(self.strangers, wire)
                nursery.start_soon(self._accepted, wire, _name_of(sock))

    def _crowd(self, pool: dict[Wire, None], wire: Wire) -> None:
        """Put a connection into the pool; if the pool is full, the oldest one is closed."""
        if len(pool) >= self._options.half_open_max:
            oldest = next(iter(pool))
            del pool[oldest]
            close(oldest)
            self._log.write(
                logging.INFO, "crowd", "", "too many connections at the port for links: one dropped"
            )
        pool[wire] = None

    async def _accepted(self, wire: Wire, where: str) -> None:
        try:
            greeted = await self._greet(wire, where)
            if greeted is not None:
                await self._sessions.authenticated(wire, *greeted)
        except Refused as refused:
            self._refused(where, refused)
        except (*LOST, trio.TooSlowError) as error:
            text = str(error) or type(error).__name__
            self._log.write(logging.DEBUG, "lost", "", f"link from {where} came to nothing: {text}")
        finally:
            self._leave(wire)
            close(wire)

    async def _greet(self, wire: Wire, where: str) -> tuple[Hello, Standing] | None:
        """Authenticate a connection. A stranger may send anything; nothing in the node depends on it yet."""
        try:
            with trio.fail_after(self._options.handshake_ms / 1000):
                if isinstance(wire, TlsWire):
                    await wire.handshake()
                greeted = await self._greeter.accept(wire, lambda hello: self._opened(wire, hello))
            self._leave(wire)
            return greeted
        except (Refused, *LOST, trio.TooSlowError):
            raise
        except Exception:
            logger.exception("link from %s: internal error", where)
            return None

    def _refused(self, where: str, refused: Refused) -> None:
        level, sort = (logging.WARNING, "suspect") if refused.suspect else (logging.INFO, "refused")
        self._log.write(level, sort, "", f"link from {where} refused: {refused}")

    def _opened(self, wire: Wire, hello: Hello) -> None:
        pair = self._sessions.pairs.get(hello.name)
        if (pair is None or pair.address is None) and not self._sessions.events.admits(hello.name):
            raise Refused(f"{hello.name!r} is no peer of this node", suspect=True)
        if wire in self.strangers:
            del self.strangers[wire]
            self._crowd(self.greeted, wire)

    def _leave(self, wire: Wire) -> None:
        self.strangers.pop(wire, None)
        self.greeted.pop(wire, None)


def _name_of(sock: socket.socket) -> str:
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return "?"
    return f"{host}:{port}"
