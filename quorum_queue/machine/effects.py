"""What the machine asks its host to do, gathered over one batch of commands."""

from __future__ import annotations

from typing import Any, Literal

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]
#: Why a consumer was not attached: the key is in use, or one of the two wants to be alone.
Refusal = Literal["key in use", "exclusive"]


class Effects:
    """Effects as data; a host reads the lists after the batch and carries them out in this order."""

    __slots__ = (
        "accepted_bytes",
        "attach_refused",
        "burst_bytes",
        "burst_messages",
        "confirmed",
        "consumers_gone",
        "dead_letters",
        "deliveries",
        "duplicates",
        "enqueued",
        "gets_waiting",
        "got_nothing",
        "in_memory",
        "more",
        "names",
        "paged_out",
        "places",
        "purged",
        "refused",
        "returned",
        "settled",
        "used",
        "wake_at",
        "wants_enqueued",
    )

    def __init__(
        self, *, wants_enqueued: bool = False, wants_places: bool = False, in_memory: bool = False
    ) -> None:
        #: The host has a log to write: it wants a copy of each run as it was accepted.
        self.wants_enqueued = wants_enqueued
        #: Handed out in this batch.
        self.burst_messages = self.burst_bytes = 0
        #: There is more to hand out than one batch may: the machine wants another tick at once.
        self.more = False
        #: Nothing is handed out, nor expires into a dead letter, before the host has brought its body into memory.
        self.in_memory = in_memory
        #: The head is out of memory, and somebody waits for it: the machine wants a tick when it is there.
        self.paged_out = False
        #: Gets for the same reason: the host gives them again.
        self.gets_waiting: list[tuple[Any, ...]] = []
        #: Somebody used the queue: the lease of an expiring one begins anew, also if the clock has stood still.
        self.used = False
        #: Body bytes taken into the queue.
        self.accepted_bytes = 0
        #: Runs as accepted, before anything is handed out.
        self.enqueued: list[Run] = []
        #: (consumer, run, first delivery id)
        self.deliveries: list[tuple[Consumer, Run, int]] = []
        #: (origin, first, last, persistent) by the publisher's own numbers: taken by the queue.
        self.confirmed: list[tuple[Any, int, int, bool]] = []
        #: (origin, first, last): not taken, because the queue is full.
        self.refused: list[tuple[Any, int, int]] = []
        #: (first position, count, number before), if wanted: what became of the numbers that runs came with.
        self.places: list[tuple[int, int, int]] | None = [] if wants_places else None
        #: Messages among those confirmed that were there before, and were not taken again.
        self.duplicates = 0
        #: What deduplication remembers and forgets from now on, in order; of transient messages it is not told.
        self.names: list[tuple[bytes, bool]] = []
        #: Messages that left the queue for good and go to the dead-letter exchange. Those that never were in it,
        #: because it was full, have no positions: they have the numbers that they came with, negated.
        self.dead_letters: list[tuple[Run, Reason]] = []
        #: Runs that came back and were counted against the delivery limit.
        self.returned: list[Run] = []
        #: Messages that left the queue for good: their entries may be deleted.
        self.settled: list[Run] = []
        #: The machine wants a tick at this time (ms).
        self.wake_at: int | None = None
        #: Consumers that may not be, because another is or wants to be alone.
        self.attach_refused: list[tuple[Any, Refusal]] = []
        #: Consumers that are no more because their node is down.
        self.consumers_gone: list[Any] = []
        #: Keys of gets that found no message.
        self.got_nothing: list[Any] = []
        #: (token, messages) of purges.
        self.purged: list[tuple[Any, int]] = []
