"""What the machine asks its host to do, gathered over one batch of commands."""

from __future__ import annotations

from typing import Any, Literal

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]


class Effects:
    """Effects as data; a host reads the lists after the batch and carries them out in this order."""

    __slots__ = (
        "accepted_bytes",
        "burst_bytes",
        "burst_messages",
        "confirmed",
        "dead_letters",
        "deliveries",
        "enqueued",
        "more",
        "refused",
        "returned",
        "settled",
        "wake_at",
        "wants_enqueued",
    )

    def __init__(self, *, wants_enqueued: bool = False) -> None:
        #: The host has a log to write: it wants a copy of each run as it was accepted.
        self.wants_enqueued = wants_enqueued
        #: Handed out in this batch.
        self.burst_messages = self.burst_bytes = 0
        #: There is more to hand out than one batch may: the machine wants another tick at once.
        self.more = False
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
        #: Messages that left the queue for good and go to the dead-letter exchange.
        self.dead_letters: list[tuple[Run, Reason]] = []
        #: Runs that came back and were counted against the delivery limit.
        self.returned: list[Run] = []
        #: Messages that left the queue for good: their entries may be deleted.
        self.settled: list[Run] = []
        #: The machine wants a tick at this time (ms).
        self.wake_at: int | None = None
