"""Ends connections that keep the memory alarm raised with messages that they never finish.

Unfinished messages cannot leave memory: contents whose last frame has not arrived, and transactions. The
alarm itself keeps a client from finishing them, so each connection is first let through: for
`unfinished_timeout_s` it is read and may publish a limited amount. A connection that makes progress is let
through again, a few times; a connection that makes none is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amqp_server.connection.session import Session
from amqp_server.connection.state import State
from amqp_server.errors import ResourceError
from quorum_queue.boundary import Fatal
from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: Maximum number of times that a connection is let through during one alarm.
PASSES_MAX = 10
#: A connection makes progress if this share (1/n) of the permitted or of the missing bytes has arrived.
PROGRESS_SHARE = 10
#: Minimum number of bytes that a connection may send when it is let through, for methods and the ends of
#: small contents.
PASS_BYTES_MIN = 64 * 1024
#: All connections together may add the first share (1/n) of the memory limit; or one largest message if that
#: is more, up to the second share.
SPARE_SHARE, SPARE_SHARE_MAX = 16, 4


class _Pass:
    """The state of a connection when it was last let through."""

    __slots__ = ("bytes", "count", "due_bytes", "finished")

    def __init__(self) -> None:
        self.count = self.bytes = self.finished = self.due_bytes = 0


class UnfinishedWatch:
    """Watches the connections while the memory alarm is raised. See amqp_server.broker.timers.Wakeable."""

    def __init__(self, broker: Broker, behind: Callable[[], bool]) -> None:
        """`behind` returns whether publishers wait for the disk, or for other
        nodes: then they are not read.
        """
        self._broker = broker
        self._behind = behind
        config = broker.config
        self._timeout_ms = round(1000 * config.unfinished_timeout_s)
        self._kept_bytes = config.unfinished_bytes_kept
        limit = config.memory_limit_bytes
        self._spare_bytes = max(limit // SPARE_SHARE, min(config.message_bytes_max, limit // SPARE_SHARE_MAX))
        self._watching = False
        #: Unfinished bytes of all connections when they were first let through.
        self._first_bytes = -1
        #: Passes by number of the session.
        self._passes: dict[int, _Pass] = {}
        #: Connections that are to be ended, the next one last.
        self._to_end: list[Session] = []
        self._ends = Steps(broker.turn, self._end_them, "unfinished messages could not be dropped")
        if self._timeout_ms:
            broker.alarms.subscribe(self._alarm_changed)

    def _alarm_changed(self) -> None:
        low = "memory" in self._broker.alarms.names()
        if low is self._watching:
            return
        self._watching = low
        self._first_bytes = -1
        self._passes = {}
        if low:
            self._again()
        else:
            self._broker.timers.forget(self)

    def _again(self) -> None:
        self._broker.timers.wake(self, self._broker.clock.monotonic_ms() + self._timeout_ms)

    def wake(self) -> None:
        """Called each `unfinished_timeout_s` while the alarm is raised."""
        self._again()
        if self._broker.alarms.names() != ["memory"] or self._behind():
            # A full disk must not get more data; and connections that wait for the disk are not read.
            return
        holders = [session for session in self._sessions() if self._holds(session)]
        ended = [session for session in holders if self._gave_up(session)]
        unfinished_bytes = sum(session.incoming.unfinished.bytes for session in holders)
        if self._first_bytes < 0:
            self._first_bytes = unfinished_bytes
        left_bytes = self._first_bytes + self._spare_bytes - unfinished_bytes
        if not ended and holders and left_bytes < PASS_BYTES_MIN:
            ended = self._largest(holders)
        if ended:
            self._to_end = ended
            self._ends.begin()
        else:
            self._let_through(holders, left_bytes)

    def _end_them(self) -> Iterator[None]:
        while self._to_end:
            session = self._to_end.pop()
            if self._holds(session):
                self._end(session)
            yield

    def _sessions(self) -> list[Session]:
        return [session for session in self._broker.sessions if isinstance(session, Session)]

    def _holds(self, session: Session) -> bool:
        return session.state is State.RUNNING and session.incoming.unfinished.bytes > self._kept_bytes

    def _gave_up(self, session: Session) -> bool:
        """True if the connection was let through without progress, or often enough."""
        last = self._passes.get(session.number)
        if last is None or session.suspended is not None:
            return False
        unfinished = session.incoming.unfinished
        went_on = unfinished.finished != last.finished or unfinished.bytes - last.bytes >= last.due_bytes
        return not went_on or last.count >= PASSES_MAX

    def _largest(self, holders: list[Session]) -> list[Session]:
        """The common allowance is used up: return the largest holders, which must make room."""
        found, bytes_ = [], 0
        for session in sorted(holders, key=lambda each: -each.incoming.unfinished.bytes):
            if bytes_ >= self._spare_bytes:
                break
            found.append(session)
            bytes_ += session.incoming.unfinished.bytes
        return found

    def _end(self, session: Session) -> None:
        held, seconds = session.incoming.unfinished.bytes, self._timeout_ms / 1000
        self._passes.pop(session.number, None)
        session.fail(
            ResourceError(
                f"memory alarm: this connection held {held} bytes of unfinished messages and did not finish "
                f"them, although it was read for {seconds:g} s (unfinished_timeout_s)"
            ),
            (0, 0),
        )

    def _let_through(self, holders: list[Session], left_bytes: int) -> None:
        # If the allowance is not enough for all, connections that were let through least often come first.
        passes = self._passes
        self._passes = {each.number: passes.get(each.number) or _Pass() for each in holders}
        holders.sort(key=lambda each: self._passes[each.number].count)
        share = max(PASS_BYTES_MIN, left_bytes // max(1, len(holders)))
        for session in holders:
            last = self._passes[session.number]
            if left_bytes < PASS_BYTES_MIN:
                # A connection that was not read cannot be judged by its progress.
                if not last.count:
                    del self._passes[session.number]
                continue
            incoming = session.incoming
            missing = incoming.missing_bytes
            size = min(share, missing + PASS_BYTES_MIN)
            left_bytes -= size
            last.count += 1
            last.bytes, last.finished = incoming.unfinished.bytes, incoming.unfinished.finished
            last.due_bytes = max(1, min(missing, size) // PROGRESS_SHARE)
            incoming.let_pass(size)
            session.go_on_later()

    def failed(self, error: Exception) -> None:
        raise Fatal(f"unfinished messages could not be looked at: {error!r}") from error


__all__ = ["PASSES_MAX", "UnfinishedWatch"]
