"""Consumers of a stream that begin at `next`, `last` or a time, on one of the stream's members.

A member applies entries a moment after they are confirmed, so its own copy may end before messages that are
confirmed already. So the member first asks how far the log is committed (see quorum_queue.cluster.read_index)
and reaches that. Only then does the client get consume-ok: what is published later is behind the offset at
which its consumer begins. All consumers that come while one question is in progress share the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.stream_consumer import StreamConsumer
from quorum_queue.ports import Turn

if TYPE_CHECKING:
    from amqp_server.streams.services import StreamServices
    from quorum_queue.cluster.replica_group import Group

#: Time until the question is asked again after no majority has answered, ms.
RETRY_MS: Final = 500
NO_MAJORITY: Final = "no majority of the stream's members answers: try again"


class BeginningHost(Protocol):
    """The member's host; see amqp_server.streams.members.readers."""

    group: Group

    @property
    def ended(self) -> object: ...
    @property
    def missing_count(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...

    def has_begun(self, consumer: StreamConsumer) -> None: ...
    def begin_at(self, consumer: StreamConsumer, start: Start, stop: int = -1) -> None: ...
    def refuses(self, consumer: StreamConsumer, why: str) -> bool: ...
    def failed(self, error: Exception) -> None: ...


class _Beginning:
    __slots__ = ("deadline_ms", "start", "stop")

    def __init__(self, start: Start, deadline_ms: int) -> None:
        self.start = start
        self.deadline_ms = deadline_ms
        #: The end of the stream at consume-ok, if the consumer still waits for messages that this member
        #: lacks; below zero before that.
        self.stop = -1


class Beginnings:
    def __init__(self, host: BeginningHost, services: StreamServices, turn: Turn) -> None:
        self._host = host
        self._services = services
        self._turn = turn
        self._waiting: dict[StreamConsumer, _Beginning] = {}
        #: The consumers that wait for the current question; and those that have its answer.
        self._asking: list[StreamConsumer] = []
        self._ready: list[StreamConsumer] = []

    def add(self, consumer: StreamConsumer, start: Start) -> None:
        services = self._services
        deadline_ms = services.clock.monotonic_ms() + services.options.begin_timeout_ms
        self._waiting[consumer] = _Beginning(start, deadline_ms)
        services.timers.wake(self, deadline_ms)
        self._ask()

    def drop(self, consumer: StreamConsumer) -> None:
        self._waiting.pop(consumer, None)

    def clear(self) -> None:
        self._waiting.clear()

    def _ask(self) -> None:
        if not self._asking:
            self._asking = [consumer for consumer, each in self._waiting.items() if each.stop < 0]
            if self._asking:
                self._host.group.catch_up(self._answered)

    def _answered(self, known: bool) -> None:
        asking, self._asking = self._asking, []
        if self._host.ended or not self._waiting:
            return
        if known:
            self._ready += asking
            self._begin_ready()
        else:
            self._services.timers.wake(self, self._services.clock.monotonic_ms() + RETRY_MS)

    def _begin_ready(self) -> None:
        """Begin as many consumers as the turn has time for."""
        host = self._host
        ready, self._ready = self._ready, []
        for number, consumer in enumerate(ready, 1):
            if host.ended:
                return
            self._begin(consumer)
            if number < len(ready) and self._turn.overdue():
                self._ready = ready[number:] + self._ready
                self._turn.later(self, self._begin_ready)
                return
        self._ask()

    def _begin(self, consumer: StreamConsumer) -> None:
        """This member has everything that was confirmed when the consumer came."""
        each = self._waiting.get(consumer)
        if each is None or each.stop >= 0:
            return
        if each.start.name != "next" and self._host.missing_count:
            # The offset may be in messages that this member has to fetch. What comes from now on is not
            # skipped, so the client need not wait for that.
            each.stop = self._host.committed_offset
            self._host.has_begun(consumer)
        else:
            del self._waiting[consumer]
            self._host.begin_at(consumer, each.start)

    def whole(self) -> None:
        """This member may have got the messages that it lacked."""
        if self._waiting and not self._host.missing_count:
            for consumer, each in list(self._waiting.items()):
                if each.stop >= 0:
                    del self._waiting[consumer]
                    self._host.begin_at(consumer, each.start, each.stop)

    # -- a unit of the node's turn, and a timer --------------------------------------------------------------

    def wake(self) -> None:
        host, now = self._host, self._services.clock.monotonic_ms()
        if host.ended:
            return
        for consumer, each in list(self._waiting.items()):
            if each.stop < 0 and each.deadline_ms <= now and host.refuses(consumer, NO_MAJORITY):
                self._waiting.pop(consumer, None)
        due = [each.deadline_ms for each in self._waiting.values() if each.deadline_ms > now]
        if due:
            self._services.timers.wake(self, min(due))
        if not self._ready:
            self._ask()

    def failed(self, error: Exception) -> None:
        self._host.failed(error)


__all__ = ["NO_MAJORITY", "Beginnings"]
