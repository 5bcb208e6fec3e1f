"""Deliveries of a channel that wait for an ack: from delivery tags to consumers and their delivery ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from amqp_server.errors import PreconditionFailed

#: Maximum number of runs, and of deliveries in them, that an ack takes in one part.
WHOLE_RUNS_MAX: Final = 1_024
WHOLE_MAX: Final = 8_192
PART_RUNS: Final = 256
PART: Final = 4_096
#: Pieces that are put back in one part, and runs that may be among them.
RESTORED_MAX: Final = 96
AMONG_MAX: Final = 4_096


class Piece(NamedTuple):
    """Deliveries `low` … `high` (the consumer's ids) of one consumer, tagged from `tag` on."""

    holder: Any
    low: int
    high: int
    tag: int


def joined(pieces: list[Piece]) -> list[Piece]:
    """Return the same deliveries by rising tags, in as few pieces as possible."""
    pieces = sorted(pieces, key=_tag)
    found: list[Piece] = pieces[:1]
    for piece in pieces[1:]:
        if follows(found[-1], piece):
            found[-1] = found[-1]._replace(high=piece.high)
        else:
            found.append(piece)
    return found


def follows(before: Piece, piece: Piece) -> bool:
    """Return whether the deliveries of a piece are those right behind another piece: both may be one."""
    return (
        piece.holder is before.holder
        and piece.low == before.high + 1
        and piece.tag - before.tag == piece.low - before.low
    )


def by_holder(pieces: list[Piece]) -> list[Piece]:
    """Return the same deliveries in as few pieces as possible. Only the holders, the ids, and the order
    within each holder count: tags of other holders may lie between those of one piece. Otherwise consumers
    that take turns would make one piece for each delivery.
    """
    found: list[Piece] = []
    places: dict[Any, int] = {}
    for piece in pieces:
        place = places.get(piece.holder, -1)
        if place >= 0 and found[place].high + 1 == piece.low:
            before = found[place]
            found[place] = Piece(before.holder, before.low, piece.high, before.tag)
        else:
            places[piece.holder] = len(found)
            found.append(piece)
    return found


def _tag(piece: Piece) -> int:
    return piece.tag


class Unacked:
    """Runs of delivery tags in order; an ack of a whole run is one step, for any length."""

    __slots__ = ("_runs", "_starts", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        #: (number of tags, holder, first delivery id)
        self._runs: list[tuple[int, Any, int]] = []
        self.count = 0

    def add(self, tag: int, count: int, holder: Any, first_id: int) -> None:
        self._starts.append(tag)
        self._runs.append((count, holder, first_id))
        self.count += count

    def take(self, low: int, high: int, *, strict: bool) -> list[Piece]:
        """Remove tags low … high.

        `strict`: each must be unacked. Raises PreconditionFailed for the first that is not.
        """
        starts, runs = self._starts, self._runs
        index = bisect_right(starts, low) - 1
        if index < 0:
            index = 0
        pieces: list[Piece] = []
        expected = low
        begin = None
        while index < len(starts) and starts[index] <= high:
            start = starts[index]
            count, holder, first_id = runs[index]
            last = start + count - 1
            if last < low:
                index += 1
                continue
            first, stop = max(low, start), min(high, last)
            if strict and first != expected:
                break
            expected = stop + 1
            pieces.append(Piece(holder, first_id + first - start, first_id + stop - start, first))
            self.count -= stop - first + 1
            left: list[tuple[int, tuple[int, Any, int]]] = []
            if start < first:
                left.append((start, (first - start, holder, first_id)))
            if stop < last:
                left.append((stop + 1, (last - stop, holder, first_id + stop + 1 - start)))
            if left:
                if begin is not None:
                    del starts[begin:index], runs[begin:index]
                    index, begin = begin, None
                starts[index : index + 1] = [item[0] for item in left]
                runs[index : index + 1] = [item[1] for item in left]
                index += len(left)
                if stop < last:
                    break
            else:
                if begin is None:
                    begin = index
                index += 1
        if begin is not None:
            del starts[begin:index], runs[begin:index]
        if strict and expected <= high:
            raise UnknownTag(expected, pieces)
        return pieces

    def take_all(self) -> list[Piece]:
        pieces = [
            Piece(holder, first_id, first_id + count - 1, tag)
            for tag, (count, holder, first_id) in zip(self._starts, self._runs, strict=True)
        ]
        self._starts, self._runs, self.count = [], [], 0
        return pieces

    def take_first(self, most: int) -> list[Piece]:
        """Remove at most this many runs from the beginning."""
        pieces = [
            Piece(holder, first_id, first_id + count - 1, tag)
            for tag, (count, holder, first_id) in zip(self._starts[:most], self._runs[:most], strict=True)
        ]
        del self._starts[:most], self._runs[:most]
        self.count -= sum([piece.high - piece.low + 1 for piece in pieces])
        return pieces

    def are_many(self, high: int) -> bool:
        """True if an ack up to this tag (0: of all) takes more than one part."""
        starts = self._starts
        if not starts or (high and high - starts[0] < WHOLE_RUNS_MAX):
            return False
        high = high or self.last_tag
        return self._reach(WHOLE_RUNS_MAX, WHOLE_MAX) < high

    def _reach(self, runs: int, count: int) -> int:
        """Return the last tag within this many first runs and deliveries; there must be at least one."""
        starts = self._starts
        last = min(runs, len(starts)) - 1
        return min(starts[last] + self._runs[last][0], starts[0] + count) - 1

    def take_part(self, high: int) -> list[Piece]:
        """Remove the first deliveries up to this tag, as many as one part takes."""
        if not self._starts:
            return []
        return self.take(1, min(high, self._reach(PART_RUNS, PART)), strict=False)

    @property
    def last_tag(self) -> int:
        """The last unacked tag, 0 if there is none."""
        return self._starts[-1] + self._runs[-1][0] - 1 if self._starts else 0

    def restore(self, pieces: list[Piece]) -> None:
        """Put taken pieces back."""
        for _ in self.restore_in_parts(pieces):
            pass

    def restore_in_parts(self, pieces: list[Piece]) -> Iterator[None]:
        """Like `restore`, some at a time. Meanwhile others may be added, but none may be taken."""
        pieces = sorted(pieces, key=_tag)
        at, count = 0, len(pieces)
        while at < count:
            starts = self._starts
            begin = bisect_right(starts, pieces[at].tag)
            beyond = starts[begin + AMONG_MAX] if begin + AMONG_MAX < len(starts) else pieces[-1].tag + 1
            stop = at + 1
            while stop < count and stop < at + RESTORED_MAX and pieces[stop].tag < beyond:
                stop += 1
            self._put_among(joined(pieces[at:stop]), begin, bisect_right(starts, pieces[stop - 1].tag))
            at = stop
            yield

    def _put_among(self, pieces: list[Piece], begin: int, end: int) -> None:
        """Put pieces in order among the runs from `begin` to `end`."""
        # Python's sort merges runs that are in order; inserting one by one would move all later ones each
        # time.
        starts, back = self._starts, [piece.tag for piece in pieces]
        runs = dict(zip(starts[begin:end], self._runs[begin:end], strict=True))
        for piece in pieces:
            length = piece.high - piece.low + 1
            runs[piece.tag] = length, piece.holder, piece.low
            self.count += length
        back = sorted(starts[begin:end] + back)
        starts[begin:end] = back
        self._runs[begin:end] = [runs[start] for start in back]

    def __len__(self) -> int:
        """The number of runs."""
        return len(self._starts)

    def first_tags(self) -> dict[Any, int]:
        """Return the lowest unacked tag of each holder."""
        found: dict[Any, int] = {}
        for start, run in zip(self._starts, self._runs, strict=True):
            if run[1] not in found:
                found[run[1]] = start
        return found

    def holds(self, tag: int) -> bool:
        """True if this tag is unacked."""
        index = bisect_right(self._starts, tag) - 1
        return index >= 0 and tag < self._starts[index] + self._runs[index][0]


class UnknownTag(PreconditionFailed):
    """A tag that is not unacked. `pieces` were taken before the error was found."""

    def __init__(self, tag: int, pieces: list[Piece]) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.pieces = pieces
