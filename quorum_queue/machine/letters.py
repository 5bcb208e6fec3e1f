"""Remembers which dead letters a queue has taken, so that it does not take a repeated one twice.

A queue with x-dead-letter-strategy=at-least-once sends a dead letter again whenever it does not know whether
the target has it, for example after each change of leader. The letter has its source queue, its position
there, and the lowest position for which that queue still waits. The target may forget lower positions; it
keeps some, because a deposed leader may have sent letters that are still on their way.

All limits here affect the state of every member, so they are no options: changing one requires a new version.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from quorum_queue.empty import NO_DICT

#: Number of source queues that are remembered; the one that has been idle for longest is forgotten.
SOURCES_MAX: Final = 1_000
#: Stretches of positions remembered for each source; the lowest are forgotten.
STRETCHES_MAX: Final = 10_000
#: Stretches kept although the sender no longer waits for them.
STRETCHES_KEPT: Final = 1_000

#: Channel number in the frames of dead letters. No message is published on it.
LETTER_CHANNEL: Final = 0

#: Snapshot: (source, first and last + 1 of each stretch, one after the other), least recently used first.
State = list[tuple[int, list[int]]]


class Letter(NamedTuple):
    """The source of a dead letter."""

    #: Id of the source queue.
    source: int
    position: int
    #: No letter below this one is still on its way.
    low: int


class Letters:
    """The dead letters that one queue remembers."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        #: First and last + 1 of each stretch of positions, rising.
        self._taken: dict[int, list[int]] = NO_DICT

    def __len__(self) -> int:
        return sum(map(len, self._taken.values())) // 2

    def is_new(self, letter: Letter) -> bool:
        # Inside of a stretch an odd number of bounds lies at or below a position.
        return not bisect_right(self._taken.get(letter.source, ()), letter.position) % 2

    def take(self, letter: Letter) -> None:
        """Remember a new letter, and forget those that can't come again."""
        source, position, low = letter
        bounds = self._taken.pop(source, None) or []
        if self._taken is NO_DICT:
            self._taken = {}
        self._taken[source] = bounds
        at = bisect_left(bounds, position)
        # The stretch before ends here, and the one after begins with the next position.
        joins_before = at < len(bounds) and bounds[at] == position
        behind = at + 1 if joins_before else at
        joins_behind = behind < len(bounds) and bounds[behind] == position + 1
        bounds[at : behind + joins_behind] = [position] * (not joins_before) + [position + 1] * (
            not joins_behind
        )
        self._forget(bounds, low)
        while len(self._taken) > SOURCES_MAX:
            del self._taken[next(iter(self._taken))]

    def _forget(self, bounds: list[int], low: int) -> None:
        """Forget whole stretches only."""
        many = len(bounds) - 2 * STRETCHES_KEPT
        if many > 0:
            below = bisect_right(bounds, low) // 2 * 2
            del bounds[: max(min(below, many), len(bounds) - 2 * STRETCHES_MAX)]

    def state(self) -> State:
        return [(source, list(bounds)) for source, bounds in self._taken.items()]

    def restore(self, state: State) -> None:
        self._taken = {source: list(bounds) for source, bounds in state} or NO_DICT


__all__ = ["Letter", "Letters", "State"]
