"""Locations of bodies: maps positions in the queue to (entry of the log, ordinal of the message within it).

A span is a range of positions whose bodies follow one another in one entry. Spans are numbers in arrays,
found by bisection: a queue of a million messages in entries of a hundred has ten thousand spans, 320 KB. The
unsettled messages are counted for each entry, so one old unacked message pins its own entry and no other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import msgspec

from quorum_queue.machine.arrays import packed, unpacked
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.states import LocationsState

#: Spans of released entries are removed when there are this many, and at least as many as the others.
SWEEP_SPANS_MIN = 64


#: The columns and counts of a queue that has never held a message; thousands may share them. Never written
#: to.
_NONE = array("q")
_NOTHING: dict[int, int] = {}


class Locations:
    """Spans in the order of positions."""

    __slots__ = ("_counts", "_entries", "_firsts", "_gone", "_live", "_ordinals", "_released", "_spans_of")

    def __init__(self) -> None:
        self._firsts = self._counts = self._entries = self._ordinals = _NONE
        #: Number of unsettled messages of each entry, by the entry's index.
        self._live = self._spans_of = _NOTHING
        #: Spans of entries that are released; they stay readable until the next `add`.
        self._gone = 0
        self._released: list[int] | tuple[()] = ()

    def __len__(self) -> int:
        return len(self._firsts) - self._gone

    def add(self, first_seq: int, count: int, entry: int, ordinal: int) -> None:
        """These positions, higher than all before, lie in `entry` from `ordinal` on."""
        if self._gone >= SWEEP_SPANS_MIN and 2 * self._gone >= len(self._firsts):
            self._sweep()
        if self._live is _NOTHING:
            self._live, self._spans_of = {}, {}
        self._live[entry] = self._live.get(entry, 0) + count
        if (
            self._firsts
            and self._entries[-1] == entry
            and self._firsts[-1] + self._counts[-1] == first_seq
            and self._ordinals[-1] + self._counts[-1] == ordinal
        ):
            self._counts[-1] += count
            return
        if self._firsts is _NONE:
            self._firsts, self._counts, self._entries, self._ordinals = (array("q") for _ in range(4))
        self._firsts.append(first_seq)
        self._counts.append(count)
        self._entries.append(entry)
        self._ordinals.append(ordinal)
        self._spans_of[entry] = self._spans_of.get(entry, 0) + 1

    def find(self, seqs: range) -> list[tuple[int, range]]:
        """Return the entries of these positions, in order, each with the ordinals within it. Raises KeyError.

        Also finds positions that were forgotten since the last `add`.
        """
        return [(self._entries[at], ordinals) for at, ordinals in self._pieces(seqs)]

    def _pieces(self, seqs: range) -> list[tuple[int, range]]:
        """The spans of these positions, each with ordinals."""
        firsts, counts = self._firsts, self._counts
        step, left = seqs.step, len(seqs)
        if step < 1:
            raise KeyError(f"positions {seqs} run backwards")
        pieces: list[tuple[int, range]] = []
        seq = seqs.start
        at = bisect_right(firsts, seq) - 1
        while left:
            if at < 0 or seq >= firsts[at] + counts[at]:
                raise KeyError(f"position {seq} is in no entry")
            length = min(left, (firsts[at] + counts[at] - seq + step - 1) // step)
            ordinal = self._ordinals[at] + seq - firsts[at]
            pieces.append((at, range(ordinal, ordinal + (length - 1) * step + 1, step)))
            left -= length
            seq += length * step
            at += 1
            if left and at < len(firsts) and seq >= firsts[at] + counts[at]:
                at = bisect_right(firsts, seq) - 1
            elif left and (at >= len(firsts) or seq < firsts[at]):
                raise KeyError(f"position {seq} is in no entry")
        return pieces

    def forget(self, seqs: range) -> None:
        """Forget messages that are settled. Each is forgotten once."""
        live = self._live
        released: list[int] = []
        for at, ordinals in self._pieces(seqs):
            entry = self._entries[at]
            left = live[entry] - len(ordinals)
            if left:
                live[entry] = left
                continue
            del live[entry]
            self._gone += self._spans_of.pop(entry)
            released.append(entry)
        if released:
            self._released = [*self._released, *released]

    def released(self) -> list[int]:
        """Return the entries whose messages were all settled since the last call."""
        released, self._released = self._released, ()
        return list(released)

    def pinned(self) -> list[int]:
        """Return the entries that hold messages which are not settled, in order."""
        return sorted(self._live)

    def holds(self, entry: int) -> bool:
        """Return whether this entry has messages that are not settled."""
        return entry in self._live

    def positions(self, entry: int) -> list[range]:
        """Return the positions of this entry's messages, settled ones included."""
        return [
            range(first, first + count)
            for first, count, at in zip(self._firsts, self._counts, self._entries, strict=True)
            if at == entry
        ]

    def count_of(self, entry: int) -> int:
        """Return the number of unsettled messages of this entry."""
        return self._live.get(entry, 0)

    def _kept(self) -> tuple[array[int], ...]:
        """The columns without the spans of entries that are released."""
        columns = self._firsts, self._counts, self._entries, self._ordinals
        if not self._gone:
            return columns
        live = self._live
        kept = [at for at, entry in enumerate(self._entries) if entry in live]
        return tuple(array("q", [column[at] for at in kept]) for column in columns)

    def _sweep(self) -> None:
        self._firsts, self._counts, self._entries, self._ordinals = self._kept()
        self._gone = 0

    # -- the whole state -------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the spans of unsettled messages, the same on every replica."""
        pinned = self.pinned()
        live = [self._live[entry] for entry in pinned]
        columns = (*self._kept(), array("q", pinned), array("q", live))
        return msgspec.msgpack.encode(LocationsState(*map(packed, columns)))

    @classmethod
    def restore(cls, data: bytes) -> Locations:
        """Raises CodecError."""
        locations = cls()
        try:
            state = msgspec.msgpack.decode(data, type=LocationsState)
            if not (
                state.firsts or state.counts or state.entries or state.ordinals or state.pinned or state.live
            ):
                return locations
            locations._firsts = unpacked("q", state.firsts)
            locations._counts = unpacked("q", state.counts)
            locations._entries = unpacked("q", state.entries)
            locations._ordinals = unpacked("q", state.ordinals)
            pinned, live = unpacked("q", state.pinned), unpacked("q", state.live)
            locations._live, locations._spans_of = dict(zip(pinned, live, strict=True)), {}
        except (msgspec.MsgspecError, ValueError) as error:
            raise CodecError(f"no locations: {error}") from error
        lengths = {len(locations._counts), len(locations._entries), len(locations._ordinals)}
        if lengths != {len(locations._firsts)}:
            raise CodecError("no locations: columns of different lengths")
        for entry in locations._entries:
            locations._spans_of[entry] = locations._spans_of.get(entry, 0) + 1
        if locations._spans_of.keys() != locations._live.keys():
            raise CodecError("no locations: spans of entries that hold nothing")
        return locations
