"""Rows of the record of messages, in columns."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any, Final
from zlib import crc32

from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.record.states import DEAD_LETTERED, DROPPED, QUEUED, REASONS, STATES, Copy, Key
from quorum_queue.machine.snapshots.columns import column, numbers_of

#: Rows of a block. Part of the state: changing it requires a new version.
BLOCK_ROWS = 4096
#: Questions that search the ids of a block before it gets an index, which takes as long as some 20 of them.
LOOKS_BEFORE_INDEX: Final = 20
#: Consumers, or targets of dead letters, that a block names.
NAMES_MAX: Final = 2 * 4096
#: A row's number, in the lower bits of an entry of a block's index.
_ROW_BITS: Final = 16
_ROW_MASK: Final = (1 << _ROW_BITS) - 1

#: bytes.translate: one delivery more, up to 255; and at least one.
_MORE: Final = bytes([*range(1, 256), 255])
_SOME: Final = bytes([1, *range(1, 256)])


class Block:
    """Rows of consecutive positions."""

    __slots__ = (
        "blanks",
        "changed",
        "deliveries",
        "ends",
        "first",
        "holders",
        "looks",
        "ids",
        "index",
        "joined",
        "names",
        "numbers",
        "queued",
        "reasons",
        "shared",
        "states",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        #: Ids while rows are added; then they are joined, each with its end.
        self.ids: list[bytes] | None = []
        self.joined = b""
        self.ends: array[int] = array("I")
        #: Checksum and row of each id, in order, once questions are worth it; and how many there were.
        self.index: array[int] | None = None
        self.looks = 0
        self.states = bytearray()
        self.reasons = bytearray()
        self.deliveries = bytearray()
        self.queued: array[int] = array("q")
        self.changed: array[int] = array("q")
        #: Number in `names`: the consumer, or where a dead letter went; 0 none.
        self.holders: array[int] = array("H")
        self.names: list[Key] = []
        self.numbers: dict[Key, int] = {}
        #: Rows without an id.
        self.blanks = 0
        #: True while a snapshot that is being made refers to it.
        self.shared = False

    def __len__(self) -> int:
        return len(self.states)

    def add(self, ids: list[bytes], now_ms: int) -> None:
        count = len(ids)
        assert self.ids is not None
        self.ids += ids
        blanks = ids.count(b"")
        if blanks:
            self.blanks += blanks
            self.states += bytes([QUEUED if each else 0 for each in ids])
        else:
            self.states += bytes((QUEUED,)) * count
        none = bytes(count)
        self.reasons += none
        self.deliveries += none
        times = array("q", (now_ms,)) * count
        self.queued += times
        self.changed += times
        self.holders += array("H", (0,)) * count

    def close(self) -> None:
        """No more rows are added."""
        ids = self.ids
        if ids is None:
            return
        self.joined = b"".join(ids)
        self.ends = array("I", accumulate(map(len, ids)))
        self.ids = None

    def make_index(self) -> None:
        ids = enumerate(self.all_ids())
        self.index = array("Q", sorted([crc32(each) << _ROW_BITS | row for row, each in ids]))

    @property
    def wants_index(self) -> bool:
        return self.index is None and self.looks >= LOOKS_BEFORE_INDEX

    def all_ids(self) -> list[bytes]:
        if self.ids is not None:
            return self.ids
        joined, start, found = self.joined, 0, []
        for end in self.ends:
            found.append(joined[start:end])
            start = end
        return found

    def id_of(self, row: int) -> bytes:
        if self.ids is not None:
            return self.ids[row]
        return self.joined[self.ends[row - 1] if row else 0 : self.ends[row]]

    def rows_of(self, message_id: bytes, low: int) -> list[int]:
        """Return the rows from `low` on that have this id, in order."""
        if self.ids is not None:
            return [row for row, each in enumerate(self.ids) if each == message_id and row >= low]
        found: list[int] = []
        index = self.index
        if index is None:
            self.looks += 1
            place = self.joined.find(message_id)
            while place >= 0:
                # Of a block without blanks each row has an end of its own.
                row = bisect_right(self.ends, place)
                if row >= low and self.id_of(row) == message_id:
                    found.append(row)
                place = self.joined.find(message_id, place + 1)
            return found
        key = crc32(message_id) << _ROW_BITS
        at = bisect_left(index, key)
        while at < len(index) and index[at] <= key | _ROW_MASK:
            row = index[at] & _ROW_MASK
            if row >= low and self.id_of(row) == message_id:
                found.append(row)
            at += 1
        return found

    def number_of(self, key: Key | None) -> int:
        """Return the number of a name in this block."""
        if key is None:
            return 0
        found = self.numbers.get(key)
        if found is None:
            if len(self.names) >= NAMES_MAX:
                self._drop_names()
            self.names.append(key)
            found = self.numbers[key] = len(self.names)
        return found

    def _drop_names(self) -> None:
        """Keep only the names that a row has."""
        used = sorted(set(self.holders) - {0})
        after = {before: number for number, before in enumerate(used, 1)}
        self.names = [self.names[before - 1] for before in used]
        self.numbers = {name: number for number, name in enumerate(self.names, 1)}
        self.holders = array("H", [after[number] if number else 0 for number in self.holders])

    def change(
        self, low: int, high: int, step: int, state: int, reason: int, key: Key | None, now: int
    ) -> None:
        """Change every `step`th row from `low` to before `high`."""
        count = len(range(low, high, step))
        if self.blanks:
            rows = [row for row in range(low, high, step) if self.states[row]]
            if len(rows) < count:
                for row in rows:
                    self.change(row, row + 1, 1, state, reason, key, now)
                return
        # Slices without a step are copied, with one they are walked.
        part = slice(low, high) if step == 1 else slice(low, high, step)
        if state == DROPPED and DEAD_LETTERED in self.states[part]:
            # A dead letter that no disk has goes nowhere.
            for row in range(low, high, step):
                if self.states[row] == DEAD_LETTERED:
                    self.holders[row] = 0
        self.states[part] = bytes((state,)) * count
        self.reasons[part] = bytes((reason,)) * count
        self.changed[part] = array("q", (now,)) * count
        if key is not None and state != DEAD_LETTERED:
            self.deliveries[part] = self.deliveries[part].translate(_MORE)
        if key is not None:
            self.holders[part] = array("H", (self.number_of(key),)) * count

    def were_delivered(self, low: int, high: int) -> None:
        """These rows were delivered at least once."""
        self.deliveries[low:high] = self.deliveries[low:high].translate(_SOME)

    def copy(self) -> Block:
        """Return a block of its own for later changes. Rows are added to this one no more."""
        block = Block(self.first)
        block.ids = None if self.ids is None else self.ids[:]
        block.joined, block.ends, block.index, block.looks = self.joined, self.ends, self.index, self.looks
        block.states, block.reasons = self.states[:], self.reasons[:]
        block.deliveries, block.holders = self.deliveries[:], self.holders[:]
        block.queued, block.changed = self.queued[:], self.changed[:]
        block.names, block.numbers = self.names[:], dict(self.numbers)
        block.blanks = self.blanks
        return block

    def at(self, row: int) -> Copy:
        number = self.holders[row]
        name = self.names[number - 1] if number else None
        lettered = self.states[row] == DEAD_LETTERED
        return Copy(
            self.first + row,
            self.states[row],
            self.reasons[row],
            self.queued[row],
            self.changed[row],
            self.deliveries[row],
            None if lettered else name,
            name if lettered else None,
        )

    def stored(self) -> list[Any]:
        """Return the block as plain data, for a snapshot."""
        ids = self.joined if self.ids is None else b"".join(self.ids)
        ends = self.ends if self.ids is None else array("I", accumulate(map(len, self.ids)))
        return [
            self.first,
            len(self),
            self.ids is None,
            ids,
            column(ends),
            bytes(self.states),
            bytes(self.reasons),
            bytes(self.deliveries),
            column(self.queued),
            column(self.changed),
            column(self.holders),
            self.names,
        ]


def block_of(stored: list[Any]) -> Block:
    """Return the block of plain data. Raises CodecError, ValueError, OverflowError, TypeError."""
    first, count, closed, ids, ends, states, reasons, deliveries, queued, changed, holders, names = stored
    block = Block(first)
    if not 0 < count <= _ROW_MASK or {len(states), len(reasons), len(deliveries)} != {count}:
        raise CodecError("the columns of a record do not fit together")
    stops = numbers_of(ends, count, "I")
    if list(stops) != sorted(stops) or stops[-1] != len(ids):
        raise CodecError("the ids of a record do not fit together")
    block.joined, block.ends = bytes(ids), stops
    block.ids = None
    found = block.all_ids()
    block.ids = found
    if closed:
        block.close()
    block.states, block.reasons = bytearray(states), bytearray(reasons)
    block.deliveries = bytearray(deliveries)
    block.queued, block.changed = numbers_of(queued, count, "q"), numbers_of(changed, count, "q")
    block.holders = numbers_of(holders, count, "H")
    block.names = [as_key(name) for name in names]
    block.numbers = {name: number for number, name in enumerate(block.names, 1)}
    if max(block.holders) > len(names) or max(states) >= len(STATES) or max(reasons) >= len(REASONS):
        raise CodecError("a row of a record has a number that means nothing")
    block.blanks = found.count(b"")
    return block


def as_key(name: Any) -> Key:
    return tuple(name)
