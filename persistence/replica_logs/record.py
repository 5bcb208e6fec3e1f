"""Entries and snapshots of Raft groups on disk: keys, values and their checksums.

An entry is a head under (group, index): its term, kind and size, and its data if that is small. The data of a
larger one is in chunks in a separate table, under (group, index, term, chunk). So a start and a deletion walk
the heads and touch no body: py-lmdb reads every page of a value that a cursor passes. Because of the term in
the chunk's key, the body of a truncated entry is never taken for that of its successor.

Snapshots are the same: a head under the group, and chunks. All values are sealed as in persistence/record.py.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from persistence.record import (
    QUEUE,
    RECORD_VERSION,
    SEALED,
    Payload,
    Values,
    count_chunks,
    pack_chunks,
    seal,
    size_of,
    unseal,
)

CHUNK_KEY = Struct(">QQQH")  # group, index, term, chunk
ENTRY_HEAD = Struct(">QBIH")  # term, kind, bytes of data, chunks
SNAPSHOT_HEAD = Struct(">QQH")  # index, term, chunks
INDEX_MAX: Final = (1 << 64) - 2
#: More than the largest message takes with its frames and its content header (ADR 44).
ENTRY_BYTES_MAX: Final = 184 * 1024 * 1024
# LMDB keeps values up to a little under half a page beside their key; larger ones have pages of their own.
INLINE_BYTES: Final = 1800

EntryLike = tuple[int, int, int, bytes]


class StoredEntry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    kind: int
    data: bytes


class EntryHead(NamedTuple):
    term: int
    kind: int
    size: int
    chunks: int  # 0 if the data is in `inline`
    inline: bytes


class SnapshotHead(NamedTuple):
    index: int  # type: ignore[assignment]
    term: int
    chunks: int


@dataclass(frozen=True)
class RecoveredGroup:
    """The stored state of a group, found without reading large bodies.

    The log is above the snapshot. The term of a lost entry in it is known only if both neighbours have the
    same one; `terms` gives it its predecessor's. If the last entry is lost, its term is a guess; see
    quorum_queue.cluster.snapshots.lost_entries for what the node may do then.
    """

    group: int
    term: int
    vote: str
    snapshot: tuple[int, int] | None  # index, term
    first_index: int
    last_index: int  # first_index - 1 if the log is empty
    terms: list[tuple[int, int]]  # of the log: first index, term
    stored: list[range]  # all entries that are here and not known to be damaged, those below the snapshot too
    kinds: dict[int, list[int]]  # of the log: indexes of the entries whose kind is not 0, by kind
    lost: list[int]  # entries whose head or small body is damaged, and gaps of the log
    hard_lost: bool = False  # term and vote are damaged: it may have voted
    snapshot_lost: bool = False  # the snapshot's head is damaged


def pack_entry_head(key: bytes, entry: EntryLike) -> tuple[bytes, int]:
    """The head, and how many chunks go with it."""
    _, term, kind, data = entry
    if len(data) <= INLINE_BYTES - ENTRY_HEAD.size:
        return seal(key, ENTRY_HEAD.pack(term, kind, len(data), 0) + data), 0
    chunks = count_chunks(len(data))
    return seal(key, ENTRY_HEAD.pack(term, kind, len(data), chunks)), chunks


def pack_entry_chunks(group: int, entry: EntryLike) -> Values:
    index, term, _, data = entry
    return pack_chunks(lambda chunk: CHUNK_KEY.pack(group, index, term, chunk), data)


def unpack_entry_head(key: bytes, value: bytes | memoryview) -> EntryHead:
    """Raises CorruptRecord."""
    content = unseal(key, value, lambda: "its head")
    term, kind, size, chunks = ENTRY_HEAD.unpack_from(content)
    return EntryHead(term, kind, size, chunks, content[ENTRY_HEAD.size :])


def read_term_and_kind(key: bytes, value: memoryview) -> tuple[int, int] | None:
    """Term and kind in the head, None if the head is damaged. A start does this for every entry."""
    if len(value) < SEALED.size + ENTRY_HEAD.size:
        return None
    version, checksum = SEALED.unpack_from(value)
    if version != RECORD_VERSION or crc32(value[SEALED.size :], crc32(key)) != checksum:
        return None
    term, kind, _, _ = ENTRY_HEAD.unpack_from(value, SEALED.size)
    return term, kind


def pack_snapshot(group: int, index: int, term: int, state: Payload) -> tuple[bytes, bytes, Values]:
    """The head's key, the head, and the chunks."""
    size = size_of(state)
    key = QUEUE.pack(group)
    head = seal(key, SNAPSHOT_HEAD.pack(index, term, count_chunks(size)))
    return key, head, pack_chunks(lambda chunk: CHUNK_KEY.pack(group, index, term, chunk), state)


def unpack_snapshot_head(key: bytes, value: bytes | memoryview) -> SnapshotHead:
    """Raises CorruptRecord."""
    return SnapshotHead._make(SNAPSHOT_HEAD.unpack(unseal(key, value, lambda: "its head")))


def chunk_keys(group: int, index: int, term: int, chunks: int) -> list[bytes]:
    return [CHUNK_KEY.pack(group, index, term, chunk) for chunk in range(chunks)]
