"""Sockets: one task reads for a connection, and the end of every turn writes for all of them.

Two awaits a batch at most: one until the socket has something, and one more only if it takes no more. Sending is tried
at once, by whoever's turn filled the outbox; a task for it exists only while a socket is full.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Protocol

import trio

from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session, State

if TYPE_CHECKING:
    from amqp_server.connection.listener import Server

logger = logging.getLogger("mqd.connection")

#: Time that a client has to answer connection.close, or to take what is still to be sent to it.
CLOSE_TIMEOUT_S = 5.0


#: Chunks given to the kernel at once (IOV_MAX is 1,024).
GATHER_MAX = 512
#: Chunks from this size on are not copied together first.
GATHER_BYTES_MIN = 8192


class Wire(Protocol):
    """Bytes to and from the peer."""

    @property
    def pending(self) -> bool:
        """Was something taken by `send` that has not left yet?"""

    async def receive(self) -> bytes: ...

    def send(self, chunks: list[bytes | memoryview]) -> int: ...

    async def writable(self) -> None: ...

    async def close(self) -> None: ...


class PlainWire:
    """A TCP socket."""

    __slots__ = ("_buffer", "_socket")

    def __init__(self, sock: socket.socket, buffer: bytearray) -> None:
        self._socket = sock
        #: Shared by all connections: it is read and copied between two awaits.
        self._buffer = buffer

    @property
    def pending(self) -> bool:
        return False

    async def receive(self) -> bytes:
        """Return what has come, b"" at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                count = self._socket.recv_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                continue
            return bytes(memoryview(self._buffer)[:count])

    def send(self, chunks: list[bytes | memoryview]) -> int:
        """Send what fits now; return how many bytes that was."""
        try:
            if len(chunks) == 1:
                return self._socket.send(chunks[0])
            if len(chunks[0]) + len(chunks[1]) < GATHER_BYTES_MIN:
                return self._socket.send(b"".join(chunks[:GATHER_MAX]))
            return self._socket.sendmsg(chunks[:GATHER_MAX])
        except (BlockingIOError, InterruptedError):
            return 0

    async def writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


class Transport:
    """Moves bytes between a socket and a session."""

    def __init__(self, server: Server, wire: Wire, session: Session, outbox: Outbox) -> None:
        self._server = server
        self._wire = wire
        self.session = session
        self.outbox = outbox
        self._unsent: list[bytes | memoryview] = []
        self._draining = False
        self._resumed = trio.Event()
        self._drained = trio.Event()
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
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            session.lost()
            self._server.dirty.pop(self.outbox, None)
            self._server.end_turn()
            with trio.CancelScope(shield=True):
                await self._wire.close()

    async def _send_rest(self) -> None:
        """Give the client a moment to take what is still to be sent."""
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            while True:
                self.flush()
                if not self._draining:
                    # Whatever waits now is held until the disk has answered, or there is nothing.
                    if not self.outbox.size:
                        return
                    await trio.sleep(0.001)
                else:
                    await self._drained.wait()

    async def _read(self) -> None:
        session, server = self.session, self._server
        while session.state is not State.CLOSED:
            data = await self._wire.receive()
            if not data:
                return
            self.last_received = trio.current_time()
            try:
                session.receive(data)
            except Exception:
                logger.exception("connection %s: internal error", session.name)
                session.crashed()
            server.end_turn()
            if session.login is not None:
                await self._log_in()
            while session.state is State.RUNNING and (self._full() or self._ahead_of_disk()):
                await self._wait_for_room()

    def _full(self) -> bool:
        """Is there no point in reading more: the client does not take what is sent, or publishes against an alarm?"""
        session = self.session
        return session.stalled or session.backlogged or self.outbox.size > 2 * self.outbox.high_bytes

    def _ahead_of_disk(self) -> bool:
        """Has this client published, and is more waiting for the disk than may wait? Consumers are always read."""
        return self.session.published and self._server.unsynced_bytes() > self._server.unsynced_high

    async def _wait_for_room(self) -> None:
        if self._ahead_of_disk():
            await self._server.barrier()
            return
        self._resumed = trio.Event()
        with trio.move_on_after(0.25):
            await self._resumed.wait()
        # Its heartbeats stand unread meanwhile. A blocked publisher is not watched; that a consumer takes what it is
        # sent is a sign of life, too.
        unread = self.session.stalled or self.session.suspended is not None
        alive = trio.current_time() if unread else self.last_sent
        self.last_received = max(self.last_received, alive)

    async def _log_in(self) -> None:
        login = self.session.login
        assert login is not None
        users = self._server.broker.users
        accepted = users.recall(login.user, login.password)
        if accepted is None:
            accepted = await trio.to_thread.run_sync(users.verify, login.user, login.password)
        self.session.login_done(accepted=accepted)
        self._server.end_turn()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it now."""
        if self._draining:
            return
        outbox = self.outbox
        chunks = self._unsent or outbox.take()
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
            if self._wire.pending:
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
        outbox, low = self.outbox, self._server.outbox_low
        try:
            while True:
                await self._wire.writable()
                chunks = self._unsent or outbox.take()
                if not chunks and not self._wire.pending:
                    break
                sent = self._wire.send(chunks) if chunks else 0
                outbox.sent(sent)
                self._unsent = _after(chunks, sent)
                self.last_sent = trio.current_time()
                if outbox.size <= low:
                    self._resumed.set()
                    if self.session.paused:
                        self.session.drained()
                        self._server.end_turn()
        except OSError:
            self._scope.cancel()
        finally:
            self._draining = False
            self._resumed.set()

    def close(self) -> None:
        """End the connection without a word."""
        self._scope.cancel()

    def wake(self) -> None:
        """A stalled session may go on."""
        self._resumed.set()

    def resumed(self) -> None:
        """A method that was waited for is answered."""
        self._resumed.set()
        self._server.want_turn()


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
