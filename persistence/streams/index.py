"""The index of a segment: the positions of offsets and times in it. Pure.

An entry points at a batch, one at least every SPACING_BYTES of the segment; the last entry of a sealed
segment says where it ends. Entries have checksums. A damaged or missing entry only makes a search in the
segment longer.
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
    """Of a seal: the offset after the last message, the time of the last
    batch, and the bytes of the segment.
    """

    offset: int
    time_ms: int
    position: int
    kind: int = BATCH


def encode(entry: Entry) -> bytes:
    data = _ENTRY.pack(*entry)
    return data + _CRC.pack(crc32(data))


def decode(data: bytes) -> list[Entry]:
    """Return the sound entries, as long as they are in ascending order."""
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
    """A search met a damaged entry."""


class Entries(Sequence[Entry]):
    """The entries of an index, decoded only where a search looks: a large segment has thousands.

    Access to a damaged entry raises DamagedEntry; `decode` finds the sound ones.
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


def is_whole(data: bytes, stop: int, size: int) -> bool:
    """Return whether an index is complete for a sealed segment that ends there: judged by its beginning and
    its end.
    """
    entries = Entries(data)
    try:
        last = entries[-1] if entries else None
        return (
            len(data) % ENTRY_BYTES == 0
            and last is not None
            and (last.kind, last.offset, last.position) == (SEAL, stop, size)
            and entries[0].position <= size
        )
    except DamagedEntry:
        return False


class Span(NamedTuple):
    """A part of a segment, with whole batches."""

    #: Position of the beginning of a batch.
    start: int
    #: Position of the next entry; 0 if there is none, or if it points at the front.
    end: int = 0
    #: Position of the entry after that one; 0 if there is none.
    end_after: int = 0
    #: The offset of the first batch; -1 if it is the first one of the segment.
    offset: int = -1


def span_of(entries: Sequence[Entry], offset: int) -> Span:
    """Return the part with the batch that has this offset, or with the last batch before it."""
    return _span_at(entries, bisect_right(entries, offset, key=attrgetter("offset")) - 1)


def span_before(entries: Sequence[Entry], time_ms: int) -> Span:
    """Return the part that has the first batch at or after this time, or that is just before this batch."""
    return _span_at(entries, bisect_left(entries, time_ms, key=attrgetter("time_ms")) - 1)


def _span_at(entries: Sequence[Entry], at: int) -> Span:
    at = _batch_at(entries, at)
    start, offset = (entries[at].position, entries[at].offset) if at >= 0 else (0, -1)
    end, end_after = [entries[each].position if each < len(entries) else 0 for each in (at + 1, at + 2)]
    return Span(start, end, end_after, offset)


def time_at(entries: Sequence[Entry], offset: int) -> int:
    """Return the time of the last entry before the message with this offset; 0 if there is none."""
    at = _batch_at(entries, bisect_right(entries, offset, key=attrgetter("offset")) - 1)
    return entries[at].time_ms if at >= 0 else 0


def last_position(entries: Sequence[Entry]) -> int:
    """Return the last position in the entries."""
    at = _batch_at(entries, len(entries) - 1)
    return entries[at].position if at >= 0 else 0


def _batch_at(entries: Sequence[Entry], at: int) -> int:
    """Return the index of the last entry up to this one that points at a batch; -1 if there is none."""
    while at >= 0 and entries[at].kind != BATCH:
        at -= 1
    return at
