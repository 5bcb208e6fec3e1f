"""Values that describe segments, writes to them, and reads from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import Batch, Damaged, Head, StoredBatch
from persistence.streams.index import Entry

#: Bytes that are read at once.
READ_BYTES = 256 * 1024
#: File extensions: of segments, of their indexes, and of a segment that compaction is writing.
SEGMENT, INDEX, NEW = ".segment", ".index", ".new"

#: The first offset of a segment, or the name of its files.
Where = int | str


class Segment(NamedTuple):
    """A segment as it is on disk."""

    base: int
    size: int
    #: The offset after its last message.
    stop: int
    #: Times of its first and its last batch.
    first_ms: int
    last_ms: int
    #: Name of its files, if compaction has made them.
    stem: str = ""

    @property
    def where(self) -> Where:
        """The name of its files."""
        return self.stem or self.base


def compacted_stem(base: int, stop: int, generation: int) -> str:
    """Return the name of the files of a segment that compaction has made; generations count from 1."""
    return f"{base:020}-{stop:020}-{generation:06}"


def generation_of(stem: str) -> int:
    return int(stem.rsplit("-", 1)[1])


class Writing(NamedTuple):
    """The end of the index of the last segment."""

    index_bytes: int = 0
    #: Position of the last batch with an entry; -1 if there is none.
    indexed: int = -1
    #: True if this segment gets no more batches.
    sealed: bool = True


class Stored(NamedTuple):
    """A batch as it is written."""

    base: int
    stop: int
    time_ms: int
    parts: Sequence[bytes]
    size: int
    #: The names by which duplicates of its messages are recognised.
    names: Sequence[bytes] = ()


class SegmentPlace(NamedTuple):
    """The position where a reader continues: valid as long as it continues at this offset."""

    base: int
    position: int
    offset: int
    #: Name of the segment's files, if compaction has made them.
    stem: str = ""


class Wanted(NamedTuple):
    """The filter values that a reader wants."""

    values: frozenset[bytes]
    #: Whether it also wants messages without a filter value.
    unfiltered: bool


class Lost(NamedTuple):
    """Messages that the disk has damaged."""

    low: int
    stop: int
    why: str


class Ended(Exception):
    """The log was deleted, or another one owns its directory."""


class Read(NamedTuple):
    """The result of a read: neighbouring batches, and the position where the next read continues."""

    batches: list[Batch]
    place: SegmentPlace
    lost: list[Lost]
    #: Bytes that were read for it: more than those of the batches if the read ended within a batch.
    read_bytes: int


class Raw(NamedTuple):
    """Whole neighbouring batches as they are in a segment; or the damage where they should begin."""

    data: bytes
    #: The offset after the last message.
    stop: int
    lost: Lost | None = None


def batches_of(data: bytes) -> Iterator[tuple[int, Head, Batch]]:
    """Yield position, head and content of each batch in whole neighbouring batches. Raises Damaged."""
    at, expected = 0, -1
    while at < len(data):
        head = batches.decode_head(data, at)
        batch = batches.decode(head, data, at)
        if expected not in (-1, head.base):
            raise Damaged(f"a batch at {head.base} in place of {expected}")
        yield at, head, batch
        expected, at = head.stop, at + head.size


def stored_batches_of(data: bytes) -> Iterator[StoredBatch]:
    """Yield the batches in whole neighbouring batches as they are. Raises Damaged."""
    at = 0
    while at < len(data):
        batch = batches.stored(batches.decode_head(data, at), data, at)
        yield batch
        at += batch.size


def heads_of(data: bytes) -> Iterator[tuple[int, Head]]:
    """Yield position and head of each batch in whole neighbouring batches. Raises Damaged."""
    for at, head, _ in batches_of(data):
        yield at, head


def spaced(heads: Sequence[tuple[int, Head]], indexed: int) -> list[Entry]:
    """Return index entries for batches after the one at `indexed`, with the required spacing."""
    entries: list[Entry] = []
    for position, head in heads:
        if indexed < 0 or position - indexed >= index.SPACING_BYTES:
            entries.append(Entry(head.base, head.time_ms, position))
            indexed = position
    return entries
