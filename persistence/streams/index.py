"""The index of a segment: where offsets and times are to be found in it. Pure.

An entry points at a batch, one at least every SPACING_BYTES of the segment; the last entry of a sealed segment says where
it ends. Entries have checksums. One that is damaged or missing costs a longer look through the segment, nothing else.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, overload
from zlib import crc32

#: offset, time in ms, position in the file, kind
_ENTRY = struct.Struct(">QQQI")
_CRC = struct.Struct(">I")
ENTRY_BYTES = _ENTRY.size + _CRC.size
#: An entry points at a batch, or seals the segment.
BATCH, SEAL = 0, 1
SPACING_BYTES = 64 * 1024


class Entry(NamedTuple):
    """Of a seal: the offset after the last message, the time of the last batch, and the bytes of the segment."""

    offset: int
    time_ms: int
    position: int
    kind: int = BATCH


def encode(entry: Entry) -> bytes:
    data = _ENTRY.pack(*entry)
    return data + _CRC.pack(crc32(data))


def decode(data: bytes) -> list[Entry]:
    """Return the sound entries, as far as they rise."""
    entries: list[Entry] = []
    for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        front = data[at : at + _ENTRY.size]
        if _CRC.unpack_from(data, at + _ENTRY.size)[0] != crc32(front):
            continue
        entry = Entry(*_ENTRY.unpack(front))
        last = entries[-1] if entries else None
        if last is None or (entry.offset >= last.offset and entry.position >= last.position):
            entries.append(entry)
    return entries


class DamagedEntry(Exception):
    """A search came to an entry that is not what was written."""


class Entries(Sequence[Entry]):
    """The entries of an index, decoded only where a search looks: a large segment has thousands.

    Looking at one that is damaged raises DamagedEntry; `decode` finds the sound ones.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = len(data) // ENTRY_BYTES

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Entry: ...

    @overload
    def __getitem__(self, number: slice) -> list[Entry]: ...

    def __getitem__(self, number: int | slice) -> Entry | list[Entry]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        at = range(self._count)[number] * ENTRY_BYTES
        front = self._data[at : at + _ENTRY.size]
        if _CRC.unpack_from(self._data, at + _ENTRY.size)[0] != crc32(front):
            raise DamagedEntry
        return Entry(*_ENTRY.unpack(front))


def position_of(entries: Sequence[Entry], offset: int) -> int:
    """Return a place in the segment from which the batch with this offset is found going forward."""
    return _position_at(entries, bisect_right(entries, offset, key=attrgetter("offset")) - 1)


def position_before(entries: Sequence[Entry], time_ms: int) -> int:
    """Return a place from which the first batch at or after this time is found going forward."""
    return _position_at(entries, bisect_left(entries, time_ms, key=attrgetter("time_ms")) - 1)


def time_at(entries: Sequence[Entry], offset: int) -> int:
    """Return the time of the last entry before the message with this offset; 0 if there is none."""
    at = bisect_right(entries, offset, key=attrgetter("offset")) - 1
    while at >= 0 and entries[at].kind != BATCH:
        at -= 1
    return entries[at].time_ms if at >= 0 else 0


def last_position(entries: Sequence[Entry]) -> int:
    """Return the last place that an entry points at."""
    return _position_at(entries, len(entries) - 1)


def _position_at(entries: Sequence[Entry], at: int) -> int:
    while at >= 0 and entries[at].kind != BATCH:
        at -= 1
    return entries[at].position if at >= 0 else 0


def position_after(entries: Sequence[Entry], position: int) -> int | None:
    """Return the next place behind this one that an entry points at, where a batch begins for certain."""
    for entry in entries:
        if entry.kind == BATCH and entry.position > position:
            return entry.position
    return None
