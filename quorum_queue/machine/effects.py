"""The effects that a host must carry out, gathered over one batch of commands."""

from __future__ import annotations

from typing import Any, Final, Literal

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.parts import TransactionId
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import Sealed

NO_LIMIT: Final = 1 << 62

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]
#: Reasons why a consumer was not attached: its key is in use, it or an attached consumer is exclusive, or the
#: queue is sealed.
Refusal = Literal["key in use", "exclusive", "the queue was deleted"]
GONE: Final = "the queue was deleted"


class Effects:
    """Effects as data; a host reads the lists after the batch and carries them out in this order."""

    __slots__ = (
        "acked",
        "accepted_bytes",
        "attach_refused",
        "burst_bytes",
        "burst_messages",
        "configured",
        "confirmed",
        "consumers_gone",
        "dead_letters",
        "delayed",
        "deliveries",
        "duplicates",
        "enqueued",
        "expires_left",
        "gets_waiting",
        "got_nothing",
        "hands_max",
        "in_memory",
        "more",
        "names",
        "paged_out",
        "parts_gone",
        "pended",
        "places",
        "prepared",
        "purged",
        "refused",
        "resolved",
        "returned",
        "seals",
        "settled",
        "used",
        "wake_at",
        "wants_acked",
        "wants_enqueued",
    )

    def __init__(
        self,
        *,
        wants_enqueued: bool = False,
        wants_places: bool = False,
        wants_acked: bool = False,
        in_memory: bool = False,
        expires_max: int = NO_LIMIT,
        hands_max: int = NO_LIMIT,
    ) -> None:
        #: True if the host writes a log, and so needs a copy of each accepted run.
        self.wants_enqueued = wants_enqueued
        #: True if the host has messages whose publisher waits only until they are on disk or acked.
        self.wants_acked = wants_acked
        #: The part of `settled` that consumers have acked, if requested.
        self.acked: list[Run] = []
        #: True if the settings were changed.
        self.configured = False
        #: Number of messages delivered in this batch.
        self.burst_messages = self.burst_bytes = 0
        #: Number of messages that may still expire in this batch, or be dropped beyond those that it brings;
        #: the rest follows in the next one.
        self.expires_left = expires_max
        #: Number of deliveries, each of one run, after which the rest waits for the next batch.
        self.hands_max = hands_max
        #: True if more messages are to be delivered, or have expired, than one batch may handle: the machine
        #: needs another tick at once.
        self.more = False
        #: True if no message is delivered, or expires into a dead letter, before the host has read its body.
        self.in_memory = in_memory
        #: True if the body of the head is not in memory and a consumer waits for it: the machine wants a tick
        #: when it is.
        self.paged_out = False
        #: Gets that wait for a body: the host submits them again.
        self.gets_waiting: list[tuple[Any, ...]] = []
        #: True if a client used the queue: renew the lease of an expiring one, even if the clock has stood
        #: still.
        self.used = False
        #: Body bytes taken into the queue.
        self.accepted_bytes = 0
        #: Accepted runs, before any delivery.
        self.enqueued: list[Run] = []
        #: (consumer, run, first delivery id)
        self.deliveries: list[tuple[Consumer, Run, int]] = []
        #: Taken messages: (origin, first, last, persistent) by the publisher's own numbers.
        self.confirmed: list[tuple[Any, int, int, bool]] = []
        #: Refused messages, because the queue is full: (origin, first, last).
        self.refused: list[tuple[Any, int, int]] = []
        #: (first position, count, number before), if requested: positions of the messages, by the numbers
        #: that runs came with.
        self.places: list[tuple[int, int, int]] | None = [] if wants_places else None
        #: Number of confirmed duplicates, which were not taken again.
        self.duplicates = 0
        #: Changes of the deduplication's memory, in order, without transient messages.
        self.names: list[tuple[bytes, bool]] = []
        #: Messages that left the queue for good and go to the dead-letter exchange. Messages that never
        #: entered it, because it was full, have no positions: they have the numbers that they came with,
        #: negated.
        self.dead_letters: list[tuple[Run, Reason]] = []
        #: Returned runs that were counted against the delivery limit.
        self.returned: list[Run] = []
        #: Returned runs that wait, with the time at which they are due.
        self.delayed: list[tuple[int, Run]] = []
        #: Messages that left the queue for good: their entries may be deleted.
        self.settled: list[Run] = []
        #: The machine needs a tick at this time (ms).
        self.wake_at: int | None = None
        #: Consumers that were refused, because they or another one are exclusive.
        self.attach_refused: list[tuple[Any, Refusal]] = []
        #: Consumers that were removed because their node is down.
        self.consumers_gone: list[Any] = []
        #: Keys of gets that found no message.
        self.got_nothing: list[Any] = []
        #: (token, messages) of purges.
        self.purged: list[tuple[Any, int]] = []
        #: Transactions of which more has come, and is not complete.
        self.pended: list[TransactionId] = []
        #: (token, transaction, outcome) of parts of transactions; see quorum_queue.machine.parts.
        self.prepared: list[tuple[Any, TransactionId, int]] = []
        #: Transactions whose part is decided, also those that have none here.
        self.resolved: list[TransactionId] = []
        #: Positions of records of parts that are not kept any more.
        self.parts_gone: list[int] = []
        #: (token, outcome) of seals.
        self.seals: list[tuple[Any, Sealed]] = []
