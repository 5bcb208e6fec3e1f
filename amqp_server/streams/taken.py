"""Which messages a stream has taken, so that none is taken twice; what it remembers follows from its log.
Pure.

A batch has the names of its messages beside them (see quorum_queue.machine.dedup), and its time. Who goes
through the batches in their order comes to the same state, on whatever node. The thread that writes the log
does so with each batch that it stores, and now and then puts the state into a file, so that a restart goes
through the last few batches only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from quorum_queue.machine import dedup
from quorum_queue.machine.dedup import Dedup, Names
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.states import DedupState

#: What is encoded in one step of a thread: others wait for the interpreter's lock meanwhile.
PIECE = 1_000


class Fresh:
    """Messages that are new, and their names."""

    __slots__ = ("names", "run")

    def __init__(self, run: Run, names: Names | None) -> None:
        self.run = run
        self.names = names


class Taken:
    """What one stream remembers. See persistence.streams.log.Keeper."""

    __slots__ = ("_dedup",)

    def __init__(self, settings: Settings) -> None:
        self._dedup = Dedup(settings)

    def __len__(self) -> int:
        return len(self._dedup)

    def fresh(self, run: Run, names: Names, now_ms: int) -> list[Fresh]:
        """Remember the new ones of these messages, and return them. What was taken before is left out."""
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
            taken = known.taken_of(names)
            if taken == len(names):
                return []
            known.take(names.last, now_ms)
            return [range(taken, len(names))]
        found: list[range] = []
        count, start = len(names), 0
        while start < count:
            new = known.is_new(names[start])
            stop = start
            while stop < count and known.is_new(names[stop]) is new:
                if new:
                    known.take(names[stop], now_ms)
                stop += 1
            if new:
                found.append(range(start, stop))
            start = stop
        return found

    def expire(self, now_ms: int) -> None:
        """Forget what is too old."""
        self._dedup.expire(now_ms, [])

    def apply(self, time_ms: int, names: Iterable[bytes]) -> None:
        """Remember what a batch of this time has taken."""
        known = self._dedup
        known.expire(time_ms, [])
        for name in names:
            if dedup.is_name(name):
                known.take(name, time_ms)

    def pieces(self) -> Iterator[bytes]:
        """Return the state, in pieces."""
        state = self._dedup.state()
        encode = msgspec.msgpack.encode
        for start in range(0, len(state.ids), PIECE):
            yield encode(DedupState(list(islice(state.ids, start, start + PIECE)), []))
        for start in range(0, len(state.producers), PIECE):
            yield encode(DedupState([], list(islice(state.producers, start, start + PIECE))))

    def restore(self, pieces: Sequence[bytes]) -> None:
        """Put back what `pieces` returned. Raises ValueError."""
        ids: list[tuple[bytes, int]] = []
        producers: list[tuple[bytes, int, int]] = []
        for piece in pieces:
            part = msgspec.msgpack.decode(piece, type=DedupState)
            ids += part.ids
            producers += part.producers
        self._dedup.restore(DedupState(ids, producers))

    def copy_from(self, other: Taken) -> None:
        """Remember what another one remembers."""
        self._dedup.restore(other._dedup.state())


def last_names(names: Names, start: int, stop: int) -> list[bytes]:
    """Return what has to be known of these messages to come to the same state: of a producer its last number
    only.
    """
    if isinstance(names, dedup.Sequence):
        return [names.name(names.numbers[stop - 1])]
    # An id may come twice, if it was forgotten in between. It is its own key.
    kept = [name for name in names[start:stop] if name is not None]
    last = {dedup.key_of(name): number for number, name in enumerate(kept)}
    return [
        name
        for number, name in enumerate(kept)
        if dedup.key_of(name) == name or last[dedup.key_of(name)] == number
    ]


__all__ = ["Fresh", "Taken", "last_names"]
