"""Stores the names that the deduplication of a durable queue on one node remembers, in its journal (see
machine.dedup).

Names lie in records of the queue like its messages, far behind them: position 1 << 62 and on. They are
written in the transaction of their messages, so after a crash both exist or none does; they are settled when
they are forgotten. A message may be long gone while its name is still remembered.

    record  u8 version | u64 now_ms | names, each with u32 length before it
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from quorum_queue.machine.codec import CodecError, framed, unframed
from quorum_queue.machine.dedup import Change, Dedup, is_name, key_of
from quorum_queue.ports import Journal

#: Positions from here on belong to names.
FIRST_POSITION: Final = 1 << 62
#: Names in one record.
RECORD_NAMES_MAX = 1_000
VERSION: Final = 1

_HEAD: Final = struct.Struct(">BQ")


class NameJournal:
    """Writes changes of the names."""

    __slots__ = ("_dedup", "_journal", "_queue_id")

    def __init__(self, journal: Journal, queue_id: int, dedup: Dedup) -> None:
        self._journal = journal
        self._queue_id = queue_id
        self._dedup = dedup

    def note(self, now_ms: int, changes: Iterable[Change]) -> None:
        """Write the names that a turn has added and forgotten."""
        dedup = self._dedup
        fresh: dict[bytes, bytes] = {}
        gone: list[int] = []
        for name, taken in changes:
            key = key_of(name) if taken else name
            position = dedup.positions.pop(key, None)
            if position is not None:
                gone.append(position)
            fresh.pop(key, None)
            if taken:
                fresh[key] = name
        names = list(fresh.items())
        for start in range(0, len(names), RECORD_NAMES_MAX):
            part = names[start : start + RECORD_NAMES_MAX]
            payload = [_HEAD.pack(VERSION, now_ms), *(framed(name) for _, name in part)]
            first = max(dedup.next_position, FIRST_POSITION)
            self._journal.append(self._queue_id, first, len(part), payload, head_parts=len(payload))
            dedup.positions.update(
                zip((key for key, _ in part), range(first, first + len(part)), strict=True)
            )
            dedup.next_position = first + len(part)
        for seqs in _ranges(gone):
            self._journal.settle(self._queue_id, seqs)

    def end(self) -> None:
        """The queue has stopped deduplicating: drop all names."""
        dedup = self._dedup
        for seqs in _ranges(list(dedup.positions.values())):
            self._journal.settle(self._queue_id, seqs)
        dedup.positions.clear()


def restore(
    dedup: Dedup, first_position: int, count: int, payload: bytes | memoryview, settled: list[range]
) -> None:
    """Restore the names of one record, except forgotten ones. Raises CodecError."""
    now_ms, names = _decode(payload)
    if len(names) != count:
        raise CodecError(f"a record of {count} names has {len(names)}")
    dedup.next_position = max(dedup.next_position, first_position + count)
    for position, name in enumerate(names, first_position):
        if not any(position in gone for gone in settled):
            dedup.take(name, now_ms)
            dedup.positions[key_of(name)] = position


def _decode(payload: bytes | memoryview) -> tuple[int, list[bytes]]:
    if len(payload) < _HEAD.size:
        raise CodecError(f"a record of {len(payload)} bytes holds no names")
    version, now_ms = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise CodecError(f"a record of names has version {version}, this mqd reads version {VERSION}")
    names = unframed(bytes(payload[_HEAD.size :]))
    if not all(map(is_name, names)):
        raise CodecError("a record of names has one that is none")
    return now_ms, names


def _ranges(positions: list[int]) -> list[range]:
    """Join neighbouring positions: the oldest names are forgotten first, so most are neighbours."""
    ranges: list[range] = []
    for position in sorted(positions):
        if ranges and ranges[-1].stop == position:
            ranges[-1] = range(ranges[-1].start, position + 1)
        else:
            ranges.append(range(position, position + 1))
    return ranges
