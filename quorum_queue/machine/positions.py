"""Positions of messages that are no range: what a consumer gets of a queue with message groups, messages of
one priority, and those that wait for the same time.

Like a range they never change, and a part of them is one of its own. Their step is 0, so whoever asks whether
the messages are neighbours, or are evenly apart, sees that they are not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, SupportsIndex, overload


class Positions:
    """Ascending positions, at least one."""

    __slots__ = ("_numbers", "start", "step", "stop")

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self.start = numbers[0]
        #: Behind the last one.
        self.stop = numbers[-1] + 1
        self.step: Final = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __contains__(self, position: object) -> bool:
        if not isinstance(position, int):
            return False
        at = bisect_left(self._numbers, position)
        return at < len(self._numbers) and self._numbers[at] == position

    @overload
    def __getitem__(self, which: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, which: slice) -> Seqs: ...

    def __getitem__(self, which: SupportsIndex | slice) -> int | Seqs:
        return seqs_of(self._numbers[which]) if isinstance(which, slice) else self._numbers[which]

    def __repr__(self) -> str:
        return f"Positions({self._numbers!r})"

    def index_of(self, position: int) -> int:
        """Return the index of the first position that is not below this one."""
        return bisect_left(self._numbers, position)

    def spans(self) -> list[range]:
        """Return them as ranges of neighbours."""
        return spans_of(self._numbers)


Seqs = range | Positions


def seqs_of(numbers: list[int]) -> Seqs:
    """Return ascending positions as a range of neighbours, if they are one."""
    if not numbers:
        return range(0)
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return range(numbers[0], numbers[-1] + 1)
    return Positions(numbers)


def near_together(seqs: Seqs, near: int) -> list[Seqs]:
    """Return positions in parts, so that within each the next one is at most `near` away."""
    if not isinstance(seqs, Positions):
        return [seqs]
    numbers, start = list(seqs), 0
    parts: list[Seqs] = []
    for at in range(1, len(numbers)):
        if numbers[at] - numbers[at - 1] > near:
            parts.append(seqs_of(numbers[start:at]))
            start = at
    parts.append(seqs_of(numbers[start:]))
    return parts


def spans_of(numbers: list[int]) -> list[range]:
    """Return ascending positions as ranges of neighbours."""
    spans: list[range] = []
    start = stop = numbers[0]
    for number in numbers:
        if number != stop:
            spans.append(range(start, stop))
            start = number
        stop = number + 1
    spans.append(range(start, stop))
    return spans


def merged(several: Iterable[Positions]) -> Seqs:
    """Return the positions of one or several runs, which lie between one another, in order."""
    return seqs_of(sorted(chain.from_iterable(several)))


def ranges_of(seqs: Seqs) -> list[range]:
    """Return positions as ranges, which may have a step."""
    return seqs.spans() if isinstance(seqs, Positions) else [seqs]


__all__ = ["Positions", "Seqs", "merged", "near_together", "ranges_of", "seqs_of", "spans_of"]
