"""Which dead letters a queue has taken, so that one which is sent again is not taken twice.

A queue that must lose no dead letter (x-dead-letter-strategy: at-least-once) sends it again whenever it does not know
whether the target has it: after each change of leader, for one. The letter says which queue it comes from, its position
there, and the lowest position of which that queue still waits to hear. What lies below that may be forgotten; some of it
is kept, because a leader that was deposed may have sent letters that are still on their way.

All limits here are part of what every member does, so they are no options: to change one takes a new version.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

#: Queues whose letters are remembered; the one that has sent nothing for longest is forgotten.
SOURCES_MAX = 1_000
#: Stretches of positions remembered for each; the lowest are forgotten.
STRETCHES_MAX = 10_000
#: So many are remembered though nobody needs them any more, as far as the sender knows.
STRETCHES_KEPT = 1_000

#: (source, first and last + 1 of each stretch, one after the other), least recently used first.
State = list[tuple[int, list[int]]]


class Letter(NamedTuple):
    """Where a dead letter comes from."""

    #: Id of the queue.
    source: int
    position: int
    #: No letter below this one is still on its way.
    low: int


class Letters:
    """What one queue remembers."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        #: First and last + 1 of each stretch of positions, rising.
        self._taken: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._taken.values())) // 2

    def is_new(self, letter: Letter) -> bool:
        # Inside of a stretch an odd number of bounds lies at or below a position.
        return not bisect_right(self._taken.get(letter.source, ()), letter.position) % 2

    def take(self, letter: Letter) -> None:
        """Remember a letter that is new, and forget what can't come again."""
        source, position, low = letter
        bounds = self._taken.pop(source, None) or []
        self._taken[source] = bounds
        at = bisect_left(bounds, position)
        # The one before ends here, the one behind begins with the next position.
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
        """Whole stretches only."""
        many = len(bounds) - 2 * STRETCHES_KEPT
        if many > 0:
            below = bisect_right(bounds, low) // 2 * 2
            del bounds[: max(min(below, many), len(bounds) - 2 * STRETCHES_MAX)]

    def state(self) -> State:
        return [(source, list(bounds)) for source, bounds in self._taken.items()]

    def restore(self, state: State) -> None:
        self._taken = {source: list(bounds) for source, bounds in state}


__all__ = ["Letter", "Letters", "State"]
