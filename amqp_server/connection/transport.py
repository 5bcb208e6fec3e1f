"""Sockets: one task reads for a connection, and the end of every turn writes for all of them.

Two awaits a batch at most: one until the socket has something, and one more only if it takes no more. The turn that
filled an outbox tries to send it at once; a task for it exists only while a socket is full.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import trio

from amqp_server.connection import log
from amqp_server.connection.half_open import HalfOpen
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.password_checks import Outcome
from amqp_server.connection.session import Session, State
from quorum_queue.links.wire import PlainWire, Wire

if TYPE_CHECKING:
    from amqp_server.connection.listener import Server

#: Time that a client has to answer connection.close, or to take what is still to be sent to it.
CLOSE_TIMEOUT_S = 5.0
#: Said in the log only: the client gets the answer of every refusal.
BUSY = "not checked, too many logins of this address have failed or wait"
#: Chunks given to the kernel at once (IOV_MAX is 1,024).
GATHER_MAX = 512
#: Chunks from this size on are not copied together first.
GATHER_BYTES_MIN = 8192
#: And none with a chunk of this size: it might be copied again and again by a slow socket that takes a bit each time.
LARGE_BYTES = 64 * 1024


class ClientWire(PlainWire):
    """A client's socket. Deliveries are many small chunks, for which copying is cheaper than gathering."""

    __slots__ = ()

    def send(self, chunks: list[bytes | memoryview]) -> int:
        few = chunks[:GATHER_MAX]
        if len(few) > 1 and len(few[0]) + len(few[1]) < GATHER_BYTES_MIN and max(map(len, few)) < LARGE_BYTES:
            return super().send([b"".join(few)])
        return super().send(few)


class Transport:
    """Moves bytes between a socket and a session.

    See connection.session.Edge, and amqp_server.turn.Sender.
    """

    def __init__(self, server: Server, wire: Wire, peer: str, name: str, half_open: HalfOpen) -> None:
        self._server = server
        self._turn = server.turn
        self._wire = wire
        self.outbox = Outbox(server.turn, self, server.config.outbox_high_bytes)
        self.session = Session(server.broker, self.outbox, self, peer, name)
        self._half_open = half_open
        self._unsent: list[bytes | memoryview] = []
        self._draining = False
        self._resumed = trio.Event()
        self._drained = trio.Event()
        #: It has published, and is not read until the disk has caught up.
        self.waits_for_disk = False
        self.began = self.last_received = self.last_sent = trio.current_time()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve the connection until it ends."""
        session = self.session
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._read()
                    await self._send_rest()
                    if session.answered_close:
                        await self._read_rest()
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* Exception as error:  # noqa: BLE001 - the turn decides what it ends
            self._turn.run(self._turn.failed, session, error)
        finally:
            agreed = session.state in (State.CLOSING, State.CLOSED)
            log.closing(session, "" if agreed else log.LOST)
            self._turn.run(self._turn.contain, session, session.lost)
            self._turn.forget(session, self)
            self.opened()
            self._server.broker.timers.forget(self)
            self._wire.close()

    def opened(self) -> None:
        """The client has logged in, or it never will."""
        self._server.half_opens.remove(self._half_open)
        if self.session.state is State.RUNNING and self.session.limits.heartbeat_s:
            self._wake_after(self.session.limits.heartbeat_s / 2)

    def wake(self) -> None:
        """Send a heartbeat if nothing else has left for half of the interval. See broker.timers."""
        if self.session.state is not State.RUNNING:
            return
        half_s = self.session.limits.heartbeat_s / 2
        left_s = self.last_sent + half_s - trio.current_time()
        if left_s < 0.001:
            # Behind what a full socket does not take it would be late, and it is not needed there.
            if not self._draining:
                self.session.heartbeat()
            left_s = half_s
        self._wake_after(left_s)

    def _wake_after(self, seconds: float) -> None:
        broker = self._server.broker
        broker.timers.wake(self, broker.clock.monotonic_ms() + ceil(1000 * seconds))

    async def _send_rest(self) -> None:
        """Give the client a moment to take what is still to be sent."""
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            while True:
                self.flush()
                if not self._draining:
                    # The outbox is empty, or its bytes wait for the disk.
                    if not self.outbox.size:
                        return
                    await trio.sleep(0.001)
                else:
                    await self._drained.wait()

    async def _read_rest(self) -> None:
        """Read and discard until the client closes its socket. `Server.watch` ends it where that takes too long.

        Were it closed here, a client that is still writing or has not read close-ok could get an error instead of it.
        """
        while True:
            await self._wire.readable()
            if self._wire.receive([self._server.receive_buffer]) == 0:
                return

    async def _read(self) -> None:
        session, turn, wire = self.session, self._turn, self._wire
        buffer = self._server.receive_buffer
        while session.state is not State.CLOSED:
            await wire.readable()
            count = wire.receive([buffer])
            if count is None:
                continue
            if not count:
                return
            self.last_received = trio.current_time()
            turn.receive(session, bytes(buffer[:count]))
            if session.login is not None:
                await self._log_in()
            while True:
                running = session.state is State.RUNNING
                if session.unfinished or (running and (self._full() or self._ahead_of_disk())):
                    await self._wait_for_room()
                elif running and session.incoming.congested:
                    # Others first.
                    await trio.lowlevel.checkpoint()
                    turn.run(turn.contain, session, session.room)
                else:
                    break

    def _full(self) -> bool:
        """True if the client does not take what is sent, or publishes against an alarm: it is not read."""
        incoming = self.session.incoming
        return incoming.stalled or incoming.backlogged or self.outbox.size > 2 * self.outbox.high_bytes

    def _ahead_of_disk(self) -> bool:
        """True if this client has published, and too much waits for the disk. Consumers are always read."""
        return self.session.incoming.published and self._server.backpressure.ahead

    async def _wait_for_room(self) -> None:
        if self._ahead_of_disk():
            self.waits_for_disk = True
            await self._server.backpressure.wait()
            self.waits_for_disk = False
            self.last_received = trio.current_time()
            return
        self._resumed = trio.Event()
        with trio.move_on_after(0.25):
            await self._resumed.wait()
        # Its heartbeats stand unread meanwhile. A blocked publisher is not watched; that a consumer takes
        # what it is sent is a sign of life, too.
        session = self.session
        unread = session.unfinished or session.incoming.stalled or session.suspended is not None
        alive = trio.current_time() if unread else self.last_sent
        self.last_received = max(self.last_received, alive)

    async def _log_in(self) -> None:
        login = self.session.login
        assert login is not None
        self._half_open.checking = True
        peer = self.session.client.peer
        outcome = await self._server.password_checks.check(peer, login.user, login.password)
        self._turn.run(self._turn.contain, self.session, self._logged_in, outcome)

    def _logged_in(self, outcome: Outcome) -> None:
        if outcome is Outcome.BUSY:
            self.session.login_done(accepted=False, reason=BUSY)
        else:
            self.session.login_done(accepted=outcome is Outcome.ACCEPTED)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it now."""
        if self._draining:
            return
        outbox = self.outbox
        chunks = self._unsent or outbox.take()
        if not chunks and not self._wire.pending_bytes:
            # What there is waits for the disk.
            return
        try:
            while chunks:
                sent = self._wire.send(chunks)
                if not sent:
                    self._unsent = chunks
                    self._drain_later()
                    return
                outbox.sent(sent)
                self._unsent = _after(chunks, sent)
                chunks = self._unsent or outbox.take()
            if self._wire.pending_bytes:
                self._drain_later()
        except OSError:
            self._scope.cancel()
            return
        self.last_sent = trio.current_time()
        if self.session.paused:
            self.session.drained()
        self._resumed.set()

    def _drain_later(self) -> None:
        if self._nursery is not None and not self._draining:
            self._draining = True
            self._drained = trio.Event()
            self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        outbox, low = self.outbox, self._server.config.outbox_low_bytes
        try:
            while True:
                await self._wire.writable()
                chunks = self._unsent or outbox.take()
                if not chunks and not self._wire.pending_bytes:
                    break
                sent = self._wire.send(chunks) if chunks else 0
                outbox.sent(sent)
                self._unsent = _after(chunks, sent)
                self.last_sent = trio.current_time()
                if outbox.size <= low:
                    self._resumed.set()
                    if self.session.paused:
                        self._turn.run(self.session.drained)
        except OSError:
            self._scope.cancel()
        finally:
            self._draining = False
            self._drained.set()
            self._resumed.set()

    def close(self) -> None:
        """End the connection without a word."""
        self._scope.cancel()

    def resumed(self) -> None:
        """More may be read."""
        self._resumed.set()


def _after(chunks: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Return what is left when `sent` bytes have gone, without copying it."""
    for index, chunk in enumerate(chunks):
        if sent < len(chunk):
            left = chunks[index:]
            if sent:
                left[0] = memoryview(chunk)[sent:]
            return left
        sent -= len(chunk)
    return []
