"""Protocols that the hosts of queues need from above and below, so that nothing above is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from quorum_queue.machine.attributes import MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.peeking import Look, Seen
from quorum_queue.machine.record.states import (
    Found,
)
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import Sealed
from quorum_queue.machine.settings import Settings


class Origin(Protocol):
    """The publisher's side of a batch, which gets its outcome by the publisher's own numbers."""

    def confirmed(self, first: int, last: int) -> None: ...

    def refused(self, first: int, last: int) -> None: ...

    def gone(self, first: int, last: int) -> None:
        """The queue was deleted before it took these messages: what there is to say of a message that reaches
        no queue.
        """


class Sink(Protocol):
    """The consumer's side: takes deliveries of its consumer, bodies in memory."""

    def deliver(self, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """`consumer` is the machine's, and known only on the node with the machine."""

    def left_behind(self) -> None:
        """The queue of a consumer with a window is gone, or has taken back what the consumer holds: from now
        on the sink counts the deliveries that the client has not acked.
        """

    def failed(self, error: Exception) -> None:
        """`deliver` raised: the state behind this sink cannot be trusted."""


class Turn(Protocol):
    """The node's turn as hosts see it; see amqp_server.turn."""

    def schedule(self, host: Recipient) -> None:
        """Apply the pending commands of a host in this turn or in one that comes soon."""

    def overdue(self) -> bool:
        """True if the turn has lasted long enough: leave further work for later."""

    def is_full(self, times: int = 1) -> bool:
        """True if the turn is overdue, or will be when it has applied the scheduled queues with so many
        messages each.
        """

    def later(self, unit: Any, call: Callable[[], object]) -> None:
        """Make this call in a turn that comes soon; if it raises, the unit has failed."""

    def contain(self, unit: Any, call: Callable[..., object], *arguments: Any) -> None:
        """Make this call; if it raises, `unit.failed(error)` is called and nothing else is affected."""

    def deliver(self, sink: Sink, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run to a sink. If that raises, the sink has failed, not the queue."""


class Record(Protocol):
    @property
    def first_seq(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def fault(self) -> str:
        """The error in the record; then there is no payload."""


class Journal(Protocol):
    """Durable (or spilled) batches, by queue and position; see persistence.journal."""

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None:
        """A restart only reads the first `head_parts` parts of the batch."""

    def settle(self, queue_id: int, seqs: range) -> None: ...

    def settle_scattered(self, queue_id: int, seqs: list[int]) -> None:
        """Settle messages that are no range, in order."""

    def withdraw(self, queue_id: int, seq: int) -> bool:
        """Withdraw a message that was not written yet, and whose commit was requested as `alone`."""

    def annotate(self, queue_id: int, seq: int, value: bytes) -> None: ...

    def annotate_all(self, queue_id: int, seqs: range, value: bytes) -> None: ...

    def state(self, queue_id: int, value: bytes) -> None: ...

    def drop(self, queue_id: int) -> None: ...

    def read(self, queue_id: int, first_seq: int, last_seq: int) -> Sequence[Record]: ...

    def warm(self, queue_id: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        """True if these positions can be read without a wait for the disk; else `done` is called when they
        can.
        """

    def warm_queue(self, queue_id: int, bodies_from: int, done: Callable[[], None]) -> bool:
        """The same for `recover_queue` and the bodies from that position on."""

    def recover_queue(self, queue_id: int) -> Any | None:
        """Return the stored data of one queue, None if there is none. Use it up at once."""


class Commits(Protocol):
    """Group commit; see persistence.commits.commit."""

    @property
    def unsynced(self) -> bool:
        """True if any submitted change is not on disk yet."""

    def request(
        self,
        done: Callable[[], None] | None = None,
        *,
        to_store: bool = False,
        alone: tuple[int, int] | None = None,
    ) -> None:
        """`alone`: queue and position of the one message that was submitted, if it is with a consumer."""

    def hold(self, granted: Callable[[], None]) -> None:
        """Call `granted`, now or in a later turn. All changes submitted between that and `release` reach the
        disk at once, however many turns pass.
        """

    def release(self) -> None: ...


class Marks(Protocol):
    """The highest delivered position, kept so that it outlives the process."""

    def mark(self, slot: int, seq: int) -> None: ...

    def get(self, slot: int) -> int: ...

    def allocate(self) -> int: ...

    def free(self, slot: int) -> None: ...

    def retain(self, slots: Iterable[int]) -> None: ...


class DeadLetters(Protocol):
    """Takes messages that a queue discards.

    `done`, if given, is called now or later with whether every message has a target and all targets took it;
    a turn of the queue's host follows. Without `done` a dead letter is sent and forgotten. With a `letter`
    the run is one message, and targets that have taken it already don't take it again.

    If a message takes long, no target has any when the call returns, and the steps of the returned iterator
    do the rest. A step that yields False prepares the messages, and one that yields True is followed by those
    that hand them to the targets.
    """

    def dead_letter(
        self,
        queue: Any,
        run: Run,
        reason: Reason,
        done: Callable[[bool], None] | None,
        letter: Letter | None = None,
    ) -> Iterator[bool] | None: ...


class Timers(Protocol):
    """Calls `wake()` of a host at the earliest time in ms that the host asked for since its last call; then
    the host asks again.
    """

    def wake(self, host: Any, at_ms: int) -> None: ...


class KeptPart(Protocol):
    """What a queue keeps of a transaction that is not decided; see quorum_queue.machine.parts."""

    transaction: TransactionId
    #: Number of commands that have come.
    came: int
    prepared: bool
    participants: list[int]


class KeptParts(Protocol):
    def __len__(self) -> int: ...

    def all(self) -> Iterable[KeptPart]: ...


class Undecided(Protocol):
    """Is told of parts of transactions, and sees to it that they are decided; see
    quorum_queue.machine.parts.
    """

    def has_parts(self, host: Any) -> None:
        """A queue has parts that are not decided."""

    def resolved(self, queue_id: int, transactions: list[TransactionId]) -> None:
        """A queue that this node leads has done what was decided, and will not forget that."""


class NoTransactions:
    """Stands for it on a node without a cluster, where no queue keeps a part."""

    def has_parts(self, host: Any) -> None: ...

    def resolved(self, queue_id: int, transactions: list[TransactionId]) -> None: ...


class Refused(NamedTuple):
    """The outcome of a request that is impossible now. The text is for the client."""

    text: str


#: The reason why a consumer was not attached: it or another one is exclusive.
EXCLUSIVE: Final = "exclusive"


class ConsumerState(NamedTuple):
    """A consumer as management lists it, wherever its client is.

    Its key is that of its own node, in a cluster preceded by that node and its incarnation.
    """

    key: Any
    no_ack: bool
    exclusive: bool
    prefetch: int
    priority: int
    active: bool


class Got(NamedTuple):
    """The message for a basic.get, with its body and the getter's delivery id."""

    run: Run
    first_id: int


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Order(NamedTuple):
    """What the order of a queue's deliveries depends on."""

    #: True if the queue has strict priorities; else the next two are empty.
    strict: bool
    #: The number of ready messages of each priority that has any.
    by_rank: dict[int, int]
    #: The number of messages that came back.
    returned: int
    #: In how many ms the first and the last waiting message are ready again.
    next_ms: int | None
    last_ms: int | None
    #: Dead letters that the queue holds until their targets have them, and their bytes.
    held: int
    held_bytes: int

    @classmethod
    def of(cls, machine: Machine, now_ms: int) -> Order:
        ready, delayed = machine.ready, machine.delayed
        first, last = delayed.next_ms, delayed.last_ms
        return cls(
            ready.strict,
            ready.by_rank,
            ready.returned_count,
            None if first is None else first - now_ms,
            None if last is None else last - now_ms,
            len(machine.dead_lettering),
            machine.held_bytes,
        )


class Hosted(Named, Protocol):
    """The topology's queue, as its host notifies it."""

    @property
    def vhost(self) -> Named: ...

    @property
    def disconnected_ms(self) -> int:
        """How long at least messages stay with a consumer whose node is unreachable, ms; 0 for no longer
        than usual.
        """

    def renew(self) -> None:
        """The queue was used: renew its lease."""

    def consumer_gone(self, left: int) -> None:
        """A consumer has gone, and so many are left."""

    def consumers_lost(self) -> None:
        """All consumers of this node have lost their places in the queue."""

    def more_marks(self, count: int) -> list[int]:
        """Get so many more slots of delivered marks for the queue; return all of them."""

    def consumer_lost(self, key: Any) -> None:
        """A consumer of this node has lost its place in the queue."""

    def sealed(self) -> None:
        """The queue takes nothing any more: delete it. May be called several times."""

    def messages_changed(self, told: list[tuple[int, int, int, bytes]]) -> None:
        """These messages have new states: (state, reason, position, id). For queues that ask for events."""

    def host_failed(self, error: Exception) -> None:
        """Its host raised while it applied commands: the host must stop, and its state cannot be trusted."""


class Preparing(Protocol):
    """A large object that is made piece by piece, so that other work can run in between."""

    #: Number of bytes that it takes.
    size: int

    def go_on(self) -> bool:
        """Make the next piece; False if that was the last one."""


class Recipient(Protocol):
    """A receiver of messages: the host of a queue, or the stand-in for a client that waits for direct
    replies.

    Commands go into `pending`. The turn calls `apply_pending`, which applies them in order or sends them on
    their way; nothing else applies commands.
    """

    pending: list[Any]
    #: True if a crash of this node undoes or keeps its changes together with those of other such hosts: they
    #: are in the node's own journal. Otherwise another node or a log of its own has them.
    in_journal: bool
    #: True if it takes parts of transactions that are decided later; see quorum_queue.machine.parts.
    takes_parts: bool
    #: False for a client that waits for direct replies: it gets them when a transaction is committed.
    is_queue: bool

    @property
    def takes_kinds(self) -> bool:
        """True if the messages of one run may have different attributes, as its `kinds` say."""

    @property
    def counts_bytes(self) -> bool:
        """True if the queue has a limit in bytes: then it needs to know how many bytes of a content count."""

    @property
    def may_refuse(self) -> bool:
        """True if the queue refuses publishes now, or when it is full."""

    @property
    def wants_ids(self) -> bool:
        """True if the queue drops messages that it has taken before, or records them: then it needs their
        ids.
        """

    @property
    def records(self) -> bool:
        """True if the queue keeps a record of messages, and so needs their message-ids."""

    def begin_large(self, content: bytes, head: bytes, channel: int) -> Preparing | None:
        """Begin to prepare a large message before it is enqueued, in a LargeRun: preparing it during the
        enqueue would be one long step. None if the queue takes it as it is.
        """

    def submit(self, *commands: Any) -> None:
        """Submit these commands, to be applied after all pending ones."""

    def hold(self) -> None:
        """A transaction begins that brings its parts over several turns: consumers get nothing that is
        submitted from now on. Queues in logs of their own take their part by itself, and hold nothing.
        """

    def unhold(self) -> None:
        """That transaction is complete. Called once for each `hold`."""

    def apply_pending(self) -> None:
        """Only the turn calls this."""

    def failed(self, error: Exception) -> None:
        """`apply_pending` raised."""

    def barrier(self, done: Callable[..., None]) -> None:
        """Call `done()` when all commands submitted here so far are applied and visible here; `done(Refused)`
        if that fails.
        """


class Host(Recipient, Protocol):
    """One queue on this node, whether its machine runs here, on several nodes, or on another one.

    Every `done` is called once, from `apply_pending` or later, and also when the host ends.
    """

    #: The reason why the host no longer serves the queue; see quorum_queue.host.Ended.
    ended: Literal["", "deleted", "moved", "failed"]
    #: The machine looks at the windows of its consumers' channels itself.
    shares_windows: bool

    @property
    def holds_dead_letters(self) -> bool:
        """True if dead letters are held until their targets have them."""

    @property
    def ready_count(self) -> int: ...

    @property
    def ready_bytes(self) -> int:
        """Bytes of the ready messages, and of those that wait."""

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that wait before they are ready again. Known where the machine is."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of consumers, and of ready, unacked and delayed messages, in one call."""

    def order(self) -> Order | None:
        """Return what the order of deliveries depends on, if the machine is here."""

    def oldest_age_ms(self) -> int | None:
        """Return the age of the oldest ready message, if the machine is here; see Machine.oldest_age_ms."""

    def came_ms(self, position: int) -> int | None:
        """Return when the message at this position came, by the machine's clock, or somewhat earlier (see
        machine.record.arrivals); None if that is not known here.
        """

    @property
    def unacked_count(self) -> int: ...

    @property
    def unacked_bytes(self) -> int:
        """As `ready_bytes` counts. Known where the machine is; 0 elsewhere."""

    @property
    def consumer_count(self) -> int:
        """Number of consumers on all nodes."""

    @property
    def parts(self) -> KeptParts | None:
        """The parts of transactions that the queue keeps, if its state is on this node."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of bodies in this node's memory."""

    def consumers(self) -> Iterable[ConsumerState]:
        """The present consumers; their states are made while the caller iterates."""

    def wake(self) -> None: ...

    def configure(self, settings: Settings) -> None:
        """Give the queue new settings."""

    def close(self) -> None:
        """The queue is deleted with its messages."""

    def touch(self) -> None:
        """A client used the queue: renew the lease of an expiring one."""

    def can_settle(self, key: Any, low: int, high: int) -> bool:
        """Return whether a consumer can still settle these deliveries.

        False if they went back to the queue: because the consumer held them for too long, because the queue
        failed and began again, or because this node joined or left it, or lost contact with it.
        """

    def attach(self, consumer: Consumer, done: Callable[[str | None], None]) -> None:
        """`done(None)` before its first delivery, or `done(reason)`: EXCLUSIVE, or a text for the client."""

    def get(self, consumer: Consumer, done: Callable[[Got | Refused | None], None]) -> None:
        """Deliver one message to the consumer, which is not attached; `done(None)` if the queue is empty.

        The message does not go to the consumer's sink.
        """

    def purge(self, done: Callable[[int | Refused], None]) -> None:
        """Drop all ready messages; `done(count)`."""

    #: True if acks are in the queue's part of a transaction; else they only make room for more deliveries.
    parts_have_acks: bool

    def prepare(
        self,
        transaction: TransactionId,
        count: int,
        queues: list[int],
        done: Callable[[int | Refused], None],
        level: int = MAJORITY,
    ) -> None:
        """Call `done` with what the queue answers to its part of a transaction, which has so many commands;
        `queues` are the ids of all queues of the transaction. See quorum_queue.machine.parts. With the level
        ALL the answer comes when all members in reach have the part; see quorum_queue.machine.attributes.
        """

    def catch_up(self, done: Callable[..., None]) -> None:
        """Call `done()` when everything that clients of any node have had answers to is visible here; in a
        cluster without a majority after a time. `done(Refused)` if that fails.
        """

    def message_status(self, message_id: bytes, done: Callable[[Found | Refused], None]) -> None:
        """Look what became of a message, after everything that clients of any node have had answers to;
        `done(Refused)` if the queue keeps no record, or if nobody can know now.
        """

    #: True if `peek` works here: the machine with the messages is on this node.
    peeks: bool

    def peek(self, look: Look, done: Callable[[list[Seen] | Refused], None]) -> None:
        """Give copies of messages with their contents, after everything that clients of any node have had
        answers to (see machine.peeking). Nothing changes.
        """

    def ms_until(self, time_ms: int) -> int:
        """Return in how many ms the machine's clock has this time."""

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        """Seal the queue, which is then deleted, if the condition holds after all commands that any node has
        had an answer to; see quorum_queue.machine.seal.
        """

    def seal_here(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        """The same by what this node knows, for clusters with nodes that do not know seals."""

    def when_over(self, then: Callable[[], None]) -> None:
        """The queue was deleted: call `then` when clients of this node have all that they took before."""


__all__ = [
    "EXCLUSIVE",
    "Commits",
    "ConsumerState",
    "DeadLetters",
    "Got",
    "Host",
    "Hosted",
    "Iterable",
    "Journal",
    "KeptPart",
    "KeptParts",
    "Marks",
    "NoTransactions",
    "Origin",
    "Recipient",
    "Record",
    "Refused",
    "Sink",
    "Timers",
    "Turn",
    "Undecided",
]
