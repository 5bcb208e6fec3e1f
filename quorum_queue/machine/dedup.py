"""Publisher deduplication: remembers which messages a queue has taken, so that it takes none twice.

A message identifies itself in one of two ways; the edge encodes either as bytes (`id_of`, `sequence_of`):

    an id           remembered for the queue's window of time and up to its count; the oldest are forgotten
                    first
    a sequence      rising numbers of one producer: only its highest is remembered, so the memory is that of
                    one id; a producer is forgotten when it was idle for a week, or when there are too many
                    others

The state is part of the machine's: replicated, in the snapshot and in the digest. Nothing here looks at a
clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from typing import Final

from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.states import DedupState

#: A producer that sent nothing for this long is forgotten.
PRODUCER_IDLE_MS = 7 * 24 * 3_600_000
#: Longer ids and names of producers are remembered by their hash.
NAME_BYTES_MAX: Final = 128
#: A sequence number is any signed long; its bytes are unsigned.
_SEQUENCE_LOW: Final = -(1 << 63)
SEQUENCE_MAX: Final = (1 << 63) - 1

#: Prefix of the producer in a name.
_SEQUENCE_BYTES: Final = 9
_ID, _SEQUENCE = b"i", b"s"
#: Keys that are too old and are forgotten at once; the others are known to be too old.
EXPIRED_AT_ONCE = 1_000

#: A change: (name of a message, True) when it is taken, (key, False) when it is forgotten.
Change = tuple[bytes, bool]


class Sequence:
    """Names of consecutively numbered messages of one producer: a queue looks
    only at the first and the last.
    """

    __slots__ = ("key", "numbers")

    def __init__(self, key: bytes, numbers: range) -> None:
        #: The key that the producer is remembered by.
        self.key = key
        self.numbers = numbers

    @classmethod
    def from_first(cls, name: bytes, count: int) -> Sequence:
        """Return the sequence that begins with this name. Raises ValueError."""
        if name[:1] != _SEQUENCE or not is_name(name):
            raise ValueError("a sequence begins with a name that is none")
        first = _sequence(name)
        if first + count - 1 > SEQUENCE_MAX:
            raise ValueError(f"a sequence of {count} names is too long after {first}")
        return cls(key_of(name), range(first, first + count))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> Sequence:
        return Sequence(self.key, self.numbers[part])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and (self.key, self.numbers) == (other.key, other.numbers)

    def __repr__(self) -> str:
        return f"Sequence({self.key!r}, {self.numbers!r})"

    @property
    def first(self) -> bytes:
        return self.name(self.numbers[0])

    @property
    def last(self) -> bytes:
        return self.name(self.numbers[-1])

    def name(self, number: int) -> bytes:
        return _SEQUENCE + (number - _SEQUENCE_LOW).to_bytes(8, "big") + self.key[1:]

    def each(self) -> list[bytes | None]:
        return [self.name(number) for number in self.numbers]


#: The names of the messages of a run.
Names = list[bytes | None] | Sequence


class Dedup:
    """The memory of one queue.

    A queue remembers names by their keys: the key of an id is the id, that of a sequence its producer. It
    adds changes to `changes` for a host that has a journal: (name, True) taken, (key, False) forgotten.
    """

    __slots__ = (
        "_count",
        "_ids",
        "_order",
        "_passed",
        "_producer_count",
        "_producers",
        "_window_ms",
        "next_position",
        "positions",
    )

    def __init__(self, settings: Settings) -> None:
        #: Time at which each was taken, oldest first.
        self._ids: dict[bytes, int] = {}
        #: The same ids in the same order: to find the first key of a dictionary whose first keys were deleted
        #: takes time for each of those. An id that was taken again when it was too old is in it twice;
        #: `_passed` counts how many times it is to be passed over.
        self._order: deque[bytes] = deque()
        self._passed: dict[bytes, int] = {}
        #: (highest sequence, time of last use) by key, least recently used first.
        self._producers: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        #: Position of each key in the journal of a host. Not part of the state.
        self.positions: dict[bytes, int] = {}
        self.next_position = 0
        self._window_ms = self._count = self._producer_count = 0
        self.configure(settings)

    def __len__(self) -> int:
        return len(self._ids) + len(self._producers)

    def configure(self, settings: Settings) -> None:
        """Take new limits. The next message removes what exceeds them."""
        self._window_ms = settings.deduplication_window_ms or 0
        self._count = settings.deduplication_count
        self._producer_count = settings.deduplication_producers

    def is_new(self, name: bytes | None, now_ms: int) -> bool:
        """Return whether this message was not taken yet, or is too old to be remembered. A message without a
        name is always new.
        """
        if name is None:
            return True
        if name[:1] == _ID:
            taken_ms = self._ids.get(name)
            return taken_ms is None or taken_ms <= now_ms - self._window_ms
        known = self._producers.get(key_of(name))
        return known is None or _sequence(name) > known[0] or known[1] <= now_ms - PRODUCER_IDLE_MS

    def taken_of(self, names: Sequence, now_ms: int) -> int:
        """Return how many messages at the beginning of these were taken already."""
        known = self._producers.get(names.key)
        numbers = names.numbers
        if known is None or known[1] <= now_ms - PRODUCER_IDLE_MS:
            return 0
        return min(max(0, known[0] + 1 - numbers.start), len(numbers))

    def take(self, name: bytes | None, now_ms: int, changes: list[Change] | None = None) -> None:
        """Remember a new message. Adds the keys that it pushes out to
        `changes`, but not the message itself.
        """
        if name is None:
            return
        key = key_of(name)
        if name[:1] == _ID:
            if self._ids.pop(key, None) is not None:
                self._passed[key] = self._passed.get(key, 0) + 1
            self._ids[key] = now_ms
            self._order.append(key)
            while len(self._ids) > self._count:
                self._forget_oldest(changes)
            return
        self._producers.pop(key, None)
        self._producers[key] = _sequence(name), now_ms
        while len(self._producers) > self._producer_count:
            idle, _ = self._producers.popitem(last=False)
            if changes is not None:
                changes.append((idle, False))

    def expire(self, now_ms: int, changes: list[Change], *, whole: bool = False) -> None:
        """Forget some keys that are too old, or all; `is_new` takes the others for forgotten."""
        most = len(self._order) + len(self._producers) if whole else EXPIRED_AT_ONCE
        for _ in range(min(most, len(self._order))):
            oldest = self._order[0]
            if oldest not in self._passed and self._ids[oldest] > now_ms - self._window_ms:
                break
            self._forget_oldest(changes)
        producers = self._producers
        for _ in range(min(most, len(producers))):
            idle = next(iter(producers))
            if producers[idle][1] > now_ms - PRODUCER_IDLE_MS:
                break
            del producers[idle]
            changes.append((idle, False))

    def _forget_oldest(self, changes: list[Change] | None) -> None:
        """Take the first one out of `_order`, and forget it unless it is passed over."""
        oldest = self._order.popleft()
        passed = self._passed.pop(oldest, 0)
        if passed > 1:
            self._passed[oldest] = passed - 1
        if not passed:
            del self._ids[oldest]
            if changes is not None:
                changes.append((oldest, False))

    def state(self) -> DedupState:
        """Return everything as plain data."""
        producers = [(key, sequence, used) for key, (sequence, used) in self._producers.items()]
        return DedupState(list(self._ids.items()), producers)

    def ids(self) -> dict[bytes, int]:
        """Return a copy of the ids, each with the time when it was taken."""
        return self._ids.copy()

    def producers(self) -> dict[bytes, tuple[int, int]]:
        """Return a copy of the producers, each with its highest sequence and its last use."""
        return self._producers.copy()

    def ids_restored(self, ids: list[tuple[bytes, int]]) -> None:
        """Put back some ids, which follow those put back before."""
        self._ids.update(ids)
        self._order.extend([key for key, _ in ids])

    def producers_restored(self, producers: list[tuple[bytes, int, int]]) -> None:
        for key, sequence, used in producers:
            self._producers[key] = sequence, used

    def copy_from(self, other: Dedup) -> None:
        """Copy what another one remembers."""
        self._ids = other._ids.copy()
        self._order = deque(self._ids)
        self._passed = {}
        self._producers = other._producers.copy()

    def restore(self, state: DedupState) -> None:
        """Put back what `state` returned."""
        self._ids = dict(state.ids)
        self._order = deque(self._ids)
        self._passed = {}
        self._producers = OrderedDict([(key, (sequence, used)) for key, sequence, used in state.producers])


def id_of(text: bytes) -> bytes:
    """Return the name of a message by its id."""
    return _ID + _bounded(text)


def sequence_of(producer: bytes, sequence: int) -> bytes:
    """Return the name of a message by its producer and its number there."""
    return _SEQUENCE + (sequence - _SEQUENCE_LOW).to_bytes(8, "big") + _bounded(producer)


def is_name(name: bytes) -> bool:
    """Return whether it has the form that `id_of` and `sequence_of` give."""
    return name[:1] == _ID or (name[:1] == _SEQUENCE and len(name) > _SEQUENCE_BYTES)


def _bounded(name: bytes) -> bytes:
    """Return a name of bounded length. The first byte says how it was made, so that no two names become
    equal.
    """
    if len(name) <= NAME_BYTES_MAX:
        return b"\x00" + name
    return b"\x01" + blake2b(name, digest_size=32).digest()


def key_of(name: bytes) -> bytes:
    """Return the key that a message is remembered by."""
    return name if name[:1] == _ID else _SEQUENCE + name[_SEQUENCE_BYTES:]


def _sequence(name: bytes) -> int:
    return int.from_bytes(name[1:_SEQUENCE_BYTES], "big") + _SEQUENCE_LOW
