"""Runs in a row, of which any may leave: a list of short lists.

A deque moves half of its entries for each that leaves its middle; here that moves some dozens, and a search
by position takes a logarithm of the number. The first run leaves, and the last one comes, as fast as in a
deque.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from quorum_queue.machine.run import Run

#: Runs of one short list; a list in whose middle runs were cut has at most twice as many.
CHUNK: Final = 128


_by_position = attrgetter("seqs.start")


class Spot(NamedTuple):
    """Where a run is. Any change of the list makes it invalid."""

    chunk: int
    at: int


class RunList:
    """Runs in a row. Searches by position want them in the order of their positions."""

    __slots__ = ("chunks",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        #: The short lists, none of which is empty: so there are none if there are no runs.
        self.chunks: list[list[Run]] = []
        if runs:
            self.extend(list(runs))

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __bool__(self) -> bool:
        return bool(self.chunks)

    def __iter__(self) -> Iterator[Run]:
        return chain.from_iterable(self.chunks)

    def __reversed__(self) -> Iterator[Run]:
        return chain.from_iterable(map(reversed, reversed(self.chunks)))

    @property
    def first(self) -> Run:
        return self.chunks[0][0]

    @property
    def last(self) -> Run:
        return self.chunks[-1][-1]

    def append(self, run: Run) -> None:
        chunks = self.chunks
        if chunks and len(chunks[-1]) < CHUNK:
            chunks[-1].append(run)
        else:
            chunks.append([run])

    def extend(self, runs: list[Run]) -> None:
        """Append runs, very many of them in few steps."""
        chunks, filled = self.chunks, 0
        if chunks and len(chunks[-1]) < CHUNK:
            filled = CHUNK - len(chunks[-1])
            chunks[-1] += runs[:filled]
        chunks += _chunks(runs, filled)

    def popleft(self) -> Run:
        chunk = self.chunks[0]
        run = chunk.pop(0)
        if not chunk:
            del self.chunks[0]
        return run

    # -- by position -----------------------------------------------------------------------------------------

    def find(self, position: int) -> Spot:
        """Return where the first run is that has this position or a later one."""
        chunks = self.chunks
        chunk = bisect_left(chunks, position, key=_last_of_chunk)
        return Spot(chunk, bisect_left(chunks[chunk], position, key=_last) if chunk < len(chunks) else 0)

    def spots(self) -> Iterator[tuple[Spot, Run]]:
        """Yield all runs with where they are."""
        for number, chunk in enumerate(self.chunks):
            for at, run in enumerate(chunk):
                yield Spot(number, at), run

    def at(self, spot: Spot) -> Run | None:
        """Return the run there, None behind the last one."""
        return self.chunks[spot.chunk][spot.at] if spot.chunk < len(self.chunks) else None

    def before(self, spot: Spot) -> Run | None:
        """Return the run before this spot."""
        if spot.at:
            return self.chunks[spot.chunk][spot.at - 1]
        return self.chunks[spot.chunk - 1][-1] if spot.chunk else None

    def behind(self, position: int) -> Iterator[Run]:
        """Yield the runs that have messages behind this position."""
        chunk, at = self.find(position + 1)
        if chunk < len(self.chunks):
            yield from self.chunks[chunk][at:]
            for later in self.chunks[chunk + 1 :]:
                yield from later

    def between(self, low: int, high: int) -> list[Run]:
        """Return the runs that have messages with positions from `low` to `high`."""
        chunk, at = self.find(low)
        found: list[Run] = []
        while chunk < len(self.chunks):
            runs = self.chunks[chunk]
            if runs[-1].seqs.start > high:
                return found + runs[at : bisect_right(runs, high, key=_by_position)]
            found += runs[at:]
            chunk, at = chunk + 1, 0
        return found

    def insert(self, spot: Spot, run: Run) -> None:
        """Put a run before the one there."""
        found = self.at(spot)
        if found is None:
            self.append(run)
        else:
            self.replace(spot, [run, found])

    def replace(self, spot: Spot, runs: list[Run]) -> None:
        """Put these in the place of the run there."""
        chunk, at = spot
        there = self.chunks[chunk]
        there[at : at + 1] = runs
        if not there:
            del self.chunks[chunk]
        elif len(there) > 2 * CHUNK:
            self.chunks[chunk : chunk + 1] = _chunks(there)


def _chunks(runs: list[Run], first: int = 0) -> list[list[Run]]:
    return [runs[begin : begin + CHUNK] for begin in range(first, len(runs), CHUNK)]


def _last(run: Run) -> int:
    return run.seqs[-1]


def _last_of_chunk(chunk: list[Run]) -> int:
    return chunk[-1].seqs[-1]


__all__ = ["RunList", "Spot"]
