"""Very many times in order, each once: in lists of a limited length, so that no change moves all times."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

#: A list with more times is cut in two.
LENGTH_MAX: Final = 2_048


class DueTimes:
    """Times in ms."""

    __slots__ = ("_firsts", "_lists")

    def __init__(self) -> None:
        #: The times in ascending lists, none of them empty, and the first time of each.
        self._lists: list[list[int]] = []
        self._firsts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._lists)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._lists)

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._lists[-1][-1] if self._lists else None

    def add(self, time_ms: int) -> None:
        """Add a time that is not there."""
        if not self._lists:
            self._lists.append([time_ms])
            self._firsts.append(time_ms)
            return
        at = max(bisect_right(self._firsts, time_ms) - 1, 0)
        times = self._lists[at]
        insort(times, time_ms)
        self._firsts[at] = times[0]
        if len(times) > LENGTH_MAX:
            half = len(times) // 2
            self._lists.insert(at + 1, times[half:])
            self._firsts.insert(at + 1, times[half])
            del times[half:]

    def remove(self, time_ms: int) -> None:
        """Remove a time that is there."""
        at = bisect_right(self._firsts, time_ms) - 1
        times = self._lists[at]
        del times[bisect_left(times, time_ms)]
        if times:
            self._firsts[at] = times[0]
        else:
            del self._lists[at], self._firsts[at]

    def since(self, time_ms: int) -> Iterator[int]:
        """Yield the times from this one on, in order."""
        at = max(bisect_right(self._firsts, time_ms) - 1, 0)
        for times in islice(self._lists, at, None):
            yield from islice(times, bisect_left(times, time_ms), None)


__all__ = ["DueTimes"]
