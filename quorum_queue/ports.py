"""What the hosts of queues need from above and below, declared here so that nothing above is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

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

    @property
    def fault(self) -> str:
        """What is wrong with it; then there is no payload."""


class Journal(Protocol):
    """Durable (or spilled) batches, by queue and position; see persistence.journal."""

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None:
        """The first `head_parts` parts are what a restart reads of the batch."""

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
    """Takes what a queue discards.

    `done`, where there is one, is told later or at once whether every message has a target and all targets took it;
    then the sender sees to a turn of the queue's host. Without it a dead letter is sent and forgotten.
    """

    def dead_letter(
        self, queue: Any, run: Run, reason: Reason, done: Callable[[bool], None] | None
    ) -> None: ...


class Timers(Protocol):
    """Calls `turn()` of a host at a time in ms, at most once for each call."""

    def wake(self, host: Any, at_ms: int) -> None: ...


class Refused(NamedTuple):
    """What cannot be done now. The text is for the client."""

    text: str


#: Why a consumer was not attached: it or another one wants the queue for itself.
EXCLUSIVE = "exclusive"


class ConsumerState(NamedTuple):
    """A consumer as management lists it, wherever its client is.

    Its key is the one that it has on its own node, in a cluster with that node and its incarnation in front.
    """

    key: Any
    no_ack: bool
    exclusive: bool
    prefetch: int
    priority: int
    active: bool


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Hosted(Named, Protocol):
    """The topology's queue, as the host at its home tells it what happened."""

    @property
    def vhost(self) -> Named: ...

    def renew(self) -> None:
        """It was used: its lease begins anew."""

    def consumer_gone(self, left: int) -> None:
        """A consumer went, and so many are left."""


class Host(Protocol):
    """One queue on this node, whether its machine runs here, on several nodes, or on another one.

    Commands go into `pending` and are applied by `turn`, in order, after all that was asked for before. Every `done`
    is called once: at once where the machine is here, later elsewhere, and also when the host closes.
    """

    pending: list[Any]
    closed: bool
    published_count: int
    delivered_count: int

    @property
    def counts_bytes(self) -> bool:
        """Does the queue have a limit in bytes? Then it wants to know how many bytes of a content count."""

    @property
    def wants_ids(self) -> bool:
        """Does the queue look for messages that it took before? Then it wants to know how they are called."""

    @property
    def certain(self) -> bool:
        """Are dead letters held until their targets have them?"""

    @property
    def ready_count(self) -> int: ...

    @property
    def ready_bytes(self) -> int: ...

    @property
    def unacked_count(self) -> int: ...

    @property
    def consumer_count(self) -> int:
        """Consumers of all nodes."""

    @property
    def resident_bytes(self) -> int:
        """Bodies in this node's memory."""

    def consumers(self) -> list[ConsumerState]: ...

    def submit(self, *commands: Any) -> None: ...

    def turn(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None:
        """The queue is gone, with all that it holds."""

    def touch(self) -> None:
        """Somebody used the queue: the lease of an expiring one begins anew."""

    def barrier(self, done: Callable[..., None]) -> None:
        """`done()` when all that was submitted here so far is applied and visible here; `done(Refused)` if not."""

    def attach(self, consumer: Consumer, done: Callable[[str | None], None]) -> None:
        """`done(None)` before its first delivery, or `done(reason)`: EXCLUSIVE, or a text for the client.

        It is handed over at once, ahead of what is pending, so that a detach can always follow.
        """

    def get(self, consumer: Consumer, done: Callable[[Run | Refused | None], None]) -> None:
        """Hand one message to the consumer's sink, then `done(run)`; `done(None)` if the queue is empty."""

    def purge(self, done: Callable[[int | Refused], None]) -> None:
        """Drop all ready messages; `done(count)`."""


__all__ = [
    "EXCLUSIVE",
    "Commits",
    "ConsumerState",
    "DeadLetters",
    "Host",
    "Hosted",
    "Iterable",
    "Journal",
    "Marks",
    "Origin",
    "Record",
    "Refused",
    "Sink",
    "Timers",
]
