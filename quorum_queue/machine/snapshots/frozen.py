"""What a queue was when a snapshot of it was begun, while the machine goes on.

A snapshot takes references to all runs and consumers, in one step, and encodes them in many. So from then on
each is copied before its first change: `keep` is called before every change of a run that is in the queue or
with a consumer, and `keep_consumer` before every change of a consumer.
"""

from __future__ import annotations

from typing import NamedTuple

from quorum_queue.machine.consumers import Consumer, Keeper
from quorum_queue.machine.run import Run


class Held(NamedTuple):
    """What changes of a consumer."""

    paused: bool
    own_prefetch: int
    window_limit: int
    attached: bool
    next_id: int
    starts: list[int]
    runs: list[Run]

    @classmethod
    def of(cls, consumer: Consumer) -> Held:
        checkout = consumer.checkout
        return cls(
            consumer.paused,
            consumer.own_prefetch,
            consumer.window_limit,
            consumer.attached,
            consumer.next_id,
            checkout.starts[:],
            checkout.runs[:],
        )


class Moment:
    """The state of one moment, as far as it has changed since."""

    __slots__ = ("consumers", "runs")

    def __init__(self) -> None:
        #: Copies by the identity of the original. Nothing of the moment is freed before it was encoded, so
        #: none of these identities is used again meanwhile.
        self.runs: dict[int, Run] = {}
        self.consumers: dict[int, Held] = {}

    def run(self, run: Run) -> Run:
        """Return a run as it was."""
        return self.runs.pop(id(run), run)

    def held(self, consumer: Consumer) -> Held:
        """Return what a consumer was and held."""
        held = self.consumers.pop(id(consumer), None)
        return Held.of(consumer) if held is None else held


class Frozen(Keeper):
    """The moments that a machine has to preserve: as many as snapshots of it are being made."""

    __slots__ = ("moments",)

    def __init__(self) -> None:
        self.active = False
        self.moments: tuple[Moment, ...] = ()

    def begin(self) -> Moment:
        moment = Moment()
        self.moments = (*self.moments, moment)
        self.active = True
        return moment

    def end(self, moment: Moment) -> None:
        self.moments = tuple(each for each in self.moments if each is not moment)
        self.active = bool(self.moments)

    def keep(self, run: Run) -> None:
        for moment in self.moments:
            if id(run) not in moment.runs:
                moment.runs[id(run)] = run.part(0, len(run.seqs))

    def keep_consumer(self, consumer: Consumer) -> None:
        for moment in self.moments:
            if id(consumer) not in moment.consumers:
                moment.consumers[id(consumer)] = Held.of(consumer)


__all__ = ["Frozen", "Held", "Moment"]
