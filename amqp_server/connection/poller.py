"""All clients' sockets in one epoll set: those that are ready are served together, in one turn.

One task waits for the set itself (`listener.Server.run`), so a thousand clients that each send a message cost one wake,
one run of the queues, one commit and one flush of the links.

There are two classes. A *light* connection sends little at a time, and what it sends is done quickly: all light ones
that are ready are read in one turn, a small buffer each. A *heavy* one filled that buffer, or its last read took long,
or left work for later. The heavy ones share a turn of their own, in which each is read once in its order until the turn
is overdue; the light ones are served again before the next. So many heavy clients delay a light one no more than a
single one does. A connection changes its class with each read.

The set is level-triggered. A connection that must not be read stays in it until an event comes, is then taken out, and
put back when the reason is over (`Transport.resumed`).
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Final

from amqp_server.turn import Scheduled, Turn

if TYPE_CHECKING:
    from amqp_server.connection.transport import Transport

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
#: Sockets that one look at the set returns. It hands the others out next time: it goes round.
EVENTS_MAX: Final = 1024
LITTLE_BYTES: Final = 32 * 1024
#: Part of a turn that a light connection may take for one read.
LIGHT_SHARE: Final = 8


class Poller:
    """The epoll set, and whose turn it is. All calls on the loop's thread."""

    __slots__ = (
        "_by_fd",
        "_closed",
        "_epoll",
        "_heavy",
        "_light",
        "_light_s",
        "_over",
        "_polling",
        "_turn",
        "_wake_fd",
        "_woken",
        "_writable",
        "buffer",
        "little",
        "now",
    )

    def __init__(self, turn: Turn, turn_s: float, receive_bytes: int) -> None:
        self._turn = turn
        #: Shared by all connections: a read is copied out of it before the next one.
        self.buffer = memoryview(bytearray(receive_bytes))
        #: What is read of a light connection at once.
        self.little = self.buffer[:LITTLE_BYTES]
        #: Of the present round.
        self.now = monotonic()
        self._light_s = turn_s / LIGHT_SHARE
        self._epoll = select.epoll()
        # Wakes the task that waits for the set, for what no socket begins.
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, READ)
        self._woken = self._polling = self._closed = False
        self._by_fd: dict[int, Transport] = {}
        #: Ready to be read, in their order; `Transport.queued` tells which are in one of them.
        self._light: deque[Transport] = deque()
        self._heavy: deque[Transport] = deque()
        self._writable: list[Transport] = []
        #: They have ended, and are given up in the next turn.
        self._over: list[Transport] = []

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._closed = True
        self._epoll.close()
        os.close(self._wake_fd)

    def end_all(self, transports: Iterable[Transport]) -> None:
        """Give up all connections: the node stops."""
        self._turn.run(self._end_all, list(transports))

    def _end_all(self, transports: list[Transport]) -> None:
        for transport in transports:
            transport.contain(transport.end)

    # -- what is waited for ----------------------------------------------------------------------------------------

    def watch(self, transport: Transport, events: int) -> None:
        """Wait for these events of its socket from now on; for none if 0."""
        before = transport.watched
        if events == before:
            return
        if not before:
            self._epoll.register(transport.fd, events)
            self._by_fd[transport.fd] = transport
        elif events:
            self._epoll.modify(transport.fd, events)
        else:
            # With an empty mask it would still tell of errors, again and again.
            del self._by_fd[transport.fd]
            self._epoll.unregister(transport.fd)
        transport.watched = events

    def again(self, transport: Transport) -> None:
        """Serve it soon, whether its socket is readable or not: something of what it has sent is left."""
        if not transport.queued:
            transport.queued = True
            self._heavy.append(transport)
            self._wake()

    def over(self, transport: Transport) -> None:
        """It has ended: give it up in the next turn."""
        self._over.append(transport)
        self._wake()

    def _wake(self) -> None:
        if not self._woken and not self._polling and not self._closed:
            self._woken = True
            os.eventfd_write(self._wake_fd, 1)

    # -- serving ---------------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Serve the sockets that are ready. True if some are left for when others have had their turn."""
        if self._closed:
            return False
        self._serve_light()
        if self._heavy:
            self._polling = True
            self._turn.run(self._read_heavy)
            self._polling = False
        return bool(self._light or self._heavy or self._over)

    def serve_light(self) -> None:
        """Serve the light connections that are ready, in one turn: another task has more to do than one."""
        if self._closed:
            return
        self._serve_light()
        if self._light or self._heavy or self._over:
            self._wake()

    def _serve_light(self) -> None:
        self._polling = True
        if not self._light:
            # Those that are left come first, and are ready still.
            self._poll()
        if self._light or self._writable or self._over:
            self._turn.run(self._read_light)
        self._polling = False

    def _poll(self) -> None:
        self.now = monotonic()
        by_fd = self._by_fd
        for fd, events in self._epoll.poll(0, EVENTS_MAX):
            transport = by_fd.get(fd)
            if transport is None:
                if fd == self._wake_fd:
                    self._woken = False
                    os.eventfd_read(fd)
                continue
            if events != READ and transport.watched & WRITE:
                self._writable.append(transport)
            if events != WRITE and transport.watched & READ and not transport.queued:
                transport.queued = True
                if transport.heavy:
                    self._heavy.append(transport)
                else:
                    self._light.append(transport)

    def _read_light(self) -> None:
        turn = self._turn
        writable, self._writable = self._writable, []
        for transport in writable:
            transport.contain(transport.writable)
        light = self._light
        #: Each with the last queue that it, or one before it, has scheduled.
        read: list[tuple[Transport, Scheduled]] = []
        began = turn.now()
        while light:
            transport = light.popleft()
            transport.queued = False
            transport.contain(transport.read_little)
            last = turn.last_scheduled()
            if last is not None:
                read.append((transport, last))
            now = turn.now()
            if transport.slow(now - began > self._light_s):
                transport.heavy = True
            began = now
            if now > turn.ends:
                break
        if read:
            turn.extend()
            turn.apply()
            if turn.cut:
                for transport, host in read:
                    if turn.is_left(host):
                        transport.contain(transport.left)
        over, self._over = self._over, []
        for transport in over:
            transport.contain(transport.end)

    def _read_heavy(self) -> None:
        turn, heavy = self._turn, self._heavy
        # Each once: what comes back into the queue is for the next turn.
        for _ in range(len(heavy)):
            transport = heavy.popleft()
            transport.queued = False
            began = turn.now()
            transport.heavy = False
            transport.contain(transport.read_much)
            now = turn.now()
            if transport.slow(now - began > self._light_s):
                transport.heavy = True
            if now > turn.ends:
                break
