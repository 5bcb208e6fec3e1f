"""The effects that a host must carry out, gathered over one batch of commands."""

from __future__ import annotations

from typing import Any, Literal

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]
#: Why a consumer was not attached: its key is in use, or it or an attached consumer is exclusive.
Refusal = Literal["key in use", "exclusive"]


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
        "places",
        "purged",
        "refused",
        "returned",
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
        expires_max: int = 1 << 62,
        hands_max: int = 1 << 62,
    ) -> None:
        #: The host writes a log, so it needs a copy of each run as it was accepted.
        self.wants_enqueued = wants_enqueued
        #: The host has messages whose publisher waits only until the disk has them, or a consumer has had them.
        self.wants_acked = wants_acked
        #: Those of `settled` that a consumer has acked, if requested.
        self.acked: list[Run] = []
        #: The settings were set anew.
        self.configured = False
        #: Messages handed out in this batch.
        self.burst_messages = self.burst_bytes = 0
        #: Runs that may yet expire in this batch; the rest expires in the next one.
        self.expires_left = expires_max
        #: Deliveries, each of one run, after which the rest is handed out in the next batch.
        self.hands_max = hands_max
        #: More is left to hand out, or has expired, than one batch may: the machine needs another tick at once.
        self.more = False
        #: Nothing is handed out, nor expires into a dead letter, before the host has brought its body into memory.
        self.in_memory = in_memory
        #: The head is out of memory, and somebody waits for it: the machine wants a tick when it is there.
        self.paged_out = False
        #: Gets for the same reason: the host gives them again.
        self.gets_waiting: list[tuple[Any, ...]] = []
        #: A client used the queue: the lease of an expiring one begins anew, even if the clock has stood
        #: still.
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
        #: (first position, count, number before), if requested: positions of the messages, by the numbers
        #: that runs came with.
        self.places: list[tuple[int, int, int]] | None = [] if wants_places else None
        #: Confirmed messages that were duplicates, and were not taken again.
        self.duplicates = 0
        #: What deduplication remembers and forgets from now on, in order; transient messages are left out.
        self.names: list[tuple[bytes, bool]] = []
        #: Messages that left the queue for good and go to the dead-letter exchange. Messages that never
        #: entered it, because it was full, have no positions: they have the numbers that they came with,
        #: negated.
        self.dead_letters: list[tuple[Run, Reason]] = []
        #: Runs that came back and were counted against the delivery limit.
        self.returned: list[Run] = []
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
