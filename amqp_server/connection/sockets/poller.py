"""All clients' sockets and all links in one epoll set: ready sockets are served together, in one turn.

One task waits for the set itself (poll_task.py), so a thousand clients that each send a message cost
one wake, one run of the queues, one commit and one flush of the links. Reports of the commit thread and
frames of other nodes are handled in the same turn, before the clients: their confirms and commits are sent
together with those of the clients.

fairness.py decides the order of the connections.

The set is level-triggered. A connection that must not be read stays in the set until an event comes. Then it
is taken out, and put back when the reason is gone (`Transport.resumed`).
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Sized
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from amqp_server.connection.sockets.fairness import ReadyConnections
from amqp_server.turn import Turn

if TYPE_CHECKING:
    from amqp_server.connection.sockets.transport import Transport
    from quorum_queue.links.session import LinkSession

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
#: Maximum number of sockets that one look at the set returns. The kernel returns the others next time, in
#: rotation.
EVENTS_MAX: Final = 1024
LITTLE_BYTES: Final = 32 * 1024
#: The longest wait at a time, s: `epoll` takes no infinite one.
WAIT_MAX_S: Final = 60.0
#: FD_SETSIZE: `select` accepts only lower file descriptors.
SELECT_FILES: Final = 1024
#: Minimum number of ended connections that a turn releases: about 100 µs each.
ENDED_MIN: Final = 8


class PutOffCommits(Protocol):
    """See persistence.commits.commit."""

    may_wait: bool
    put_off: bool

    def put_off_s(self) -> float: ...

    def begin_put_off(self) -> None: ...


class Poller:
    """The epoll set, and the order of connections. All calls are on the loop's thread."""

    __slots__ = (
        "_by_fd",
        "_closed",
        "_closing",
        "_commits",
        "_epoll",
        "_link_by_fd",
        "_look",
        "_links",
        "_others_fd",
        "_over",
        "_polled",
        "_polling",
        "_ready",
        "_reports",
        "_run_late",
        "_turn",
        "_wake_fd",
        "_woken",
        "_writable",
        "_writable_links",
        "buffer",
        "little",
        "now",
        "others_ready",
    )

    def __init__(
        self, turn: Turn, turn_s: float, receive_bytes: int, commits: PutOffCommits | None = None
    ) -> None:
        self._turn = turn
        #: Buffer shared by all connections: a read is copied out of it before the next read.
        self.buffer = memoryview(bytearray(receive_bytes))
        #: Buffer for one read of a light connection.
        self.little = self.buffer[:LITTLE_BYTES]
        #: Time of the current round.
        self.now = monotonic()
        self._epoll = select.epoll()
        #: Says whether the set has events, and leaves them there.
        self._look = select.poll()
        self._look.register(self._epoll.fileno(), select.POLLIN)
        #: None if commits are never delayed.
        self._commits = commits if self._epoll.fileno() < SELECT_FILES else None
        # Wakes the task that waits for the set, for work that no socket starts. Edge-triggered: each write is
        # reported once, so it need not be read.
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, READ | select.EPOLLET)
        self._woken = self._polling = self._closed = False
        #: True if `_poll` was called, and its results are not served yet.
        self._polled = False
        #: Another epoll set for other tasks, and whether it has events for them; see `include`.
        self._others_fd = -1
        self.others_ready = False
        self._by_fd: dict[int, Transport] = {}
        self._ready = ReadyConnections(turn, turn_s)
        self._writable: list[Transport] = []
        #: Ended connections, which are released in the next turn.
        self._over: list[Transport] = []
        self._link_by_fd: dict[int, LinkSession] = {}
        #: Sockets that are ready to be read, and sockets with room again.
        self._links: list[LinkSession] = []
        self._writable_links: list[LinkSession] = []
        #: Calls reported by other threads.
        self._reports: deque[Callable[[], None]] = deque()
        #: Makes a call on the loop, for reports after the poller was closed.
        self._run_late: Callable[[Callable[[], None]], object] | None = None
        #: Held so that the wake descriptor is not closed while a thread writes to it.
        self._closing = Lock()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def waited_for(self) -> bool:
        """Return whether a socket is ready, or was and waits for its turn."""
        ready = self._ready
        return bool(ready.light or ready.heavy or self._links or (not self._closed and self._look.poll(0)))

    def include(self, others_fd: int) -> None:
        """Add the epoll set of others to this set: `serve_until` ends when it has events."""
        self._others_fd = others_fd
        self._epoll.register(others_fd, READ)

    def close(self, run_late: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Close the set. `run_late` makes a call on the loop, from any thread, for later reports."""
        with self._closing:
            self._closed = True
            self._run_late = run_late
            self._epoll.close()
            os.close(self._wake_fd)
        self._run_reports()

    def end_all(self, transports: Iterable[Transport]) -> None:
        """Release all connections, because the node stops."""
        self._turn.run(self._end_all, list(transports))

    def _end_all(self, transports: list[Transport]) -> None:
        for transport in transports:
            transport.contain(transport.end)

    # -- what is waited for ----------------------------------------------------------------------------------

    def watch(self, transport: Transport, events: int) -> None:
        """Wait for these events of a connection's socket from now on; for none if 0."""
        before = transport.watched
        if events == before or self._closed:
            return
        self._wait_for(transport.fd, before, events)
        if not before:
            self._by_fd[transport.fd] = transport
        elif not events:
            del self._by_fd[transport.fd]
        transport.watched = events

    def watch_link(self, session: LinkSession, *, writable: bool) -> None:
        events = READ | WRITE if writable else READ
        if events != session.watched and not self._closed:
            self._wait_for(session.fd, session.watched, events)
            self._link_by_fd[session.fd] = session
            session.watched = events

    def forget_link(self, session: LinkSession) -> None:
        if session.watched and not self._closed:
            self._wait_for(session.fd, session.watched, 0)
            del self._link_by_fd[session.fd]
        session.watched = 0

    def _wait_for(self, fd: int, before: int, events: int) -> None:
        if not before:
            self._epoll.register(fd, events)
        elif events:
            self._epoll.modify(fd, events)
        else:
            # With an empty mask epoll would still report errors, again and again.
            self._epoll.unregister(fd)

    def report(self, call: Callable[[], None]) -> None:
        """Make this call in the next turn. Any thread may call this."""
        self._reports.append(call)
        with self._closing:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)
                return
            run_late = self._run_late
        if run_late is not None:
            run_late(self._run_reports)

    def _run_reports(self) -> None:
        reports = self._reports
        while reports:
            reports.popleft()()

    def read_again(self, session: LinkSession) -> None:
        if not session.queued:
            session.queued = True
            self._links.append(session)
            self._wake()

    def again(self, transport: Transport) -> None:
        """Serve a connection soon, even if its socket is not readable: bytes of its last read are left."""
        if not transport.queued:
            self._ready.again(transport)
            self._wake()

    def over(self, transport: Transport) -> None:
        """The connection has ended: release it in the next turn."""
        self._over.append(transport)
        self._wake()

    def _wake(self) -> None:
        if not self._woken and not self._polling and not self._closed:
            self._woken = True
            os.eventfd_write(self._wake_fd, 1)

    # -- serving ---------------------------------------------------------------------------------------------

    def serve_until(self, time: float, others: Sized) -> None:
        """Wait for sockets and serve them, until this time of the monotonic clock, or until there is other
        work: `others` is not empty, the included set is ready, or sockets must wait until other tasks have
        had their turns. Look at least once.
        """
        while not self._closed:
            if not self._ready.light:
                busy = others or self._ready.heavy or self._over or self._links
                self.others_ready = False
                self._poll(0.0 if busy else min(max(time - monotonic(), 0.0), WAIT_MAX_S))
            self._polled = True
            if self.serve() or others or self.others_ready or self.now >= time:
                return

    def serve(self) -> bool:
        """Serve the ready sockets. Return True if some must wait until other tasks have had their turns."""
        if self._closed:
            return False
        commits = self._commits
        if commits is not None:
            commits.may_wait = True
        self._serve_light()
        if commits is not None:
            if commits.put_off:
                self._look_for_acks(commits)
            commits.may_wait = False
        if self._ready.heavy:
            self._polling = True
            self._turn.run(self._ready.read_heavy)
            self._polling = False
        return bool(self._ready.light or self._ready.heavy or self._over or self._links)

    def _look_for_acks(self, commits: PutOffCommits) -> None:
        """While a commit is delayed for a fraction of a millisecond, serve clients that send acks.

        Not done while heavy clients would have to wait for it.
        """
        ready = [self._epoll]
        # Only `select` can wait for less than a millisecond.
        while (
            not self._ready.heavy
            and not self.others_ready
            and (wait_s := commits.put_off_s()) > 0
            and (self._ready.light or select.select(ready, (), (), wait_s)[0])
        ):
            self._serve_light()
        commits.begin_put_off()

    def serve_light(self) -> None:
        """Serve the ready light connections in one turn, for another task that has work for more than one
        turn.
        """
        if self._closed:
            return
        self._serve_light()
        if self._ready.light or self._ready.heavy or self._over or self._links:
            self._wake()

    def _serve_light(self) -> None:
        self._polling = True
        if self._polled:
            self._polled = False
        elif not self._ready.light:
            # Connections left over come first; they are still ready.
            self._poll(0.0)
        if (
            self._ready.light
            or self._links
            or self._reports
            or self._writable
            or self._writable_links
            or self._over
        ):
            self._turn.run(self._read_light)
        self._polling = False

    def _poll(self, seconds: float) -> None:
        """Wait at most this long until sockets are ready, and note them."""
        ready = self._epoll.poll(seconds, EVENTS_MAX)
        self.now = monotonic()
        by_fd = self._by_fd
        for fd, events in ready:
            transport = by_fd.get(fd)
            if transport is None:
                if fd == self._wake_fd:
                    self._woken = False
                elif fd == self._others_fd:
                    self.others_ready = True
                else:
                    self._link_is_ready(fd, events)
                continue
            if events != READ and transport.watched & WRITE:
                self._writable.append(transport)
            if events != WRITE and transport.watched & READ and not transport.queued:
                self._ready.add(transport)

    def _link_is_ready(self, fd: int, events: int) -> None:
        session = self._link_by_fd.get(fd)
        if session is None:
            return
        if events != READ and session.watched & WRITE:
            self._writable_links.append(session)
        if events != WRITE and not session.queued:
            session.queued = True
            self._links.append(session)

    def _serve_links(self) -> None:
        """Serve other nodes at once: clients wait for their answers."""
        if self._writable_links:
            has_room, self._writable_links = self._writable_links, []
            for session in has_room:
                session.writable()
        if self._links:
            ready, self._links = self._links, []
            for session in ready:
                session.queued = False
                session.read()

    def _read_light(self) -> None:
        turn = self._turn
        # The end of a commit may cause very many deliveries. Clients get one turn to be read, and one for
        # their own queues; everything else gets half a turn here, and the driver's turns.
        spent_s = turn.run_half(self._run_reports)
        self._serve_links()
        writable, self._writable = self._writable, []
        for transport in writable:
            transport.contain(transport.writable)
        self._ready.read_light(spent_s)
        self._end_some()

    def _end_some(self) -> None:
        """Release ended connections, as many as the turn has time for, but at least some."""
        over, self._over = self._over, []
        for count, transport in enumerate(over, 1):
            transport.contain(transport.end)
            if count >= ENDED_MIN and self._turn.overdue():
                self._over = over[count:] + self._over
                break
