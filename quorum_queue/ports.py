"""What the hosts of queues need from above and below, declared here so that nothing above is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.run import Run


class Origin(Protocol):
    """The publisher's side of a batch: told, by the publisher's own numbers, what became of it."""

    def confirmed(self, first: int, last: int) -> None: ...

    def refused(self, first: int, last: int) -> None: ...


class Sink(Protocol):
    """The consumer's side: takes deliveries of its consumer, bodies in memory."""

    def deliver(self, consumer: Consumer, run: Run, first_id: int) -> None: ...


class Record(Protocol):
    @property
    def first_seq(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def payload(self) -> bytes: ...


class Journal(Protocol):
    """Durable (or spilled) batches, by queue and position; see persistence.journal."""

    def append(self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes]) -> None: ...

    def settle(self, queue_id: int, seqs: range) -> None: ...

    def annotate(self, queue_id: int, seq: int, value: bytes) -> None: ...

    def drop(self, queue_id: int) -> None: ...

    def read(self, queue_id: int, first_seq: int, last_seq: int) -> Sequence[Record]: ...


class Commits(Protocol):
    """Group commit; see persistence.commit."""

    def request(self, done: Callable[[], None] | None = None) -> None: ...


class Marks(Protocol):
    """Highest position handed out, kept in a way that outlives the process; see persistence.marks."""

    def mark(self, slot: int, seq: int) -> None: ...

    def get(self, slot: int) -> int: ...

    def allocate(self) -> int: ...

    def free(self, slot: int) -> None: ...

    def retain(self, slots: Iterable[int]) -> None: ...


class DeadLetters(Protocol):
    """Takes what a queue discards; returns the messages whose targets did not all take them."""

    def dead_letter(self, queue: Any, run: Run, reason: Reason) -> bool: ...


class Timers(Protocol):
    """Calls `turn()` of a host at a time in ms, at most once for each call."""

    def wake(self, host: Any, at_ms: int) -> None: ...


__all__ = ["Commits", "DeadLetters", "Iterable", "Journal", "Marks", "Origin", "Record", "Sink", "Timers"]
