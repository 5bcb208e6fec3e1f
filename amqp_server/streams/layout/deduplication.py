"""Which messages a stream has taken, so that none is taken twice. The state follows from the stream's log.
Pure.

A batch has the names of its messages next to them (see quorum_queue.machine.dedup), and its time. Replaying
the batches in order gives the same state on every node. The thread that writes the log applies each batch
that it stores, and from time to time writes the state to a file, so that a restart replays only the last few
batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from quorum_queue.machine import dedup
from quorum_queue.machine.dedup import Dedup, Names
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.states import DedupState

#: Names that a thread encodes in one step: other threads wait for the interpreter's lock meanwhile.
PIECE = 1_000


class Fresh:
    """Messages that are new, and their names."""

    __slots__ = ("names", "run")

    def __init__(self, run: Run, names: Names | None) -> None:
        self.run = run
        self.names = names


class Taken:
    """The names that one stream remembers. See persistence.streams.log.Keeper."""

    __slots__ = ("_dedup",)

    def __init__(self, settings: Settings) -> None:
        self._dedup = Dedup(settings)

    def __len__(self) -> int:
        return len(self._dedup)

    def fresh(self, run: Run, names: Names, now_ms: int) -> list[Fresh]:
        """Remember the new ones of these messages, and return them without those that were taken before."""
        found: list[Fresh] = []
        count, at = len(names), 0
        for new in self.new_of(names, now_ms):
            if new.start > at:
                run.take(new.start - at)
            at = new.stop
            part = run if at == count else run.take(len(new))
            found.append(Fresh(part, names[new.start : at]))
        return found

    def new_of(self, names: Names, now_ms: int) -> list[range]:
        """Remember the new ones of messages with these names, and return which ones they are."""
        known = self._dedup
        known.expire(now_ms, [])
        if isinstance(names, dedup.Sequence):
            taken = known.taken_of(names, now_ms)
            if taken == len(names):
                return []
            known.take(names.last, now_ms)
            return [range(taken, len(names))]
        found: list[range] = []
        count, start = len(names), 0
        while start < count:
            new = known.is_new(names[start], now_ms)
            stop = start
            while stop < count and known.is_new(names[stop], now_ms) is new:
                if new:
                    known.take(names[stop], now_ms)
                stop += 1
            if new:
                found.append(range(start, stop))
            start = stop
        return found

    def expire(self, now_ms: int) -> None:
        """Forget names that are too old."""
        self._dedup.expire(now_ms, [])

    def apply(self, time_ms: int, names: Iterable[bytes]) -> None:
        """Remember the names of a batch with this time."""
        known = self._dedup
        known.expire(time_ms, [])
        for name in names:
            if dedup.is_name(name):
                known.take(name, time_ms)

    def pieces(self) -> Iterator[bytes]:
        """Return the present state, in pieces."""
        # Copies of dictionaries take a small part of the time of the pieces.
        return _encoded(self._dedup.ids(), self._dedup.producers())

    def restore(self, pieces: Sequence[bytes]) -> None:
        """Put back what `pieces` returned. Raises ValueError."""
        self._dedup.restore(DedupState([], []))
        for piece in pieces:
            self.restore_piece(piece)

    def restore_piece(self, piece: bytes) -> None:
        """Put back the next piece; there was nothing before the first one. Raises ValueError."""
        part = msgspec.msgpack.decode(piece, type=DedupState)
        self._dedup.ids_restored(part.ids)
        self._dedup.producers_restored(part.producers)

    def copy_from(self, other: Taken) -> None:
        """Copy the state of another object."""
        self._dedup.copy_from(other._dedup)


def _encoded(ids: dict[bytes, int], producers: dict[bytes, tuple[int, int]]) -> Iterator[bytes]:
    encode = msgspec.msgpack.encode
    items = iter(ids.items())
    while piece := list(islice(items, PIECE)):
        yield encode(DedupState(piece, []))
    used = iter(producers.items())
    while some := list(islice(used, PIECE)):
        yield encode(DedupState([], [(key, sequence, at_ms) for key, (sequence, at_ms) in some]))


def last_names(names: Names, start: int, stop: int) -> list[bytes]:
    """Return the names of these messages that are needed to get the same state: of a producer only the last
    number.
    """
    if isinstance(names, dedup.Sequence):
        return [names.name(names.numbers[stop - 1])]
    # An id may occur twice, if it was forgotten in between. An id is its own key.
    kept = [name for name in names[start:stop] if name is not None]
    last = {dedup.key_of(name): number for number, name in enumerate(kept)}
    return [
        name
        for number, name in enumerate(kept)
        if dedup.key_of(name) == name or last[dedup.key_of(name)] == number
    ]


__all__ = ["Fresh", "Taken", "last_names"]
