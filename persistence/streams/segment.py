"""What is known of a segment, of what is written into it, and of what is read from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import Batch, Damaged, Head
from persistence.streams.index import Entry

#: What is read at once.
READ_BYTES = 256 * 1024
#: How names of files end: of segments, of their indexes, and of a segment that compaction is writing.
SEGMENT, INDEX, NEW = ".segment", ".index", ".new"

#: The offset that the files of a segment begin with, or their name.
Where = int | str


class Segment(NamedTuple):
    """What is on the disk of a segment."""

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
        """What its files are called by."""
        return self.stem or self.base


def compacted_stem(base: int, stop: int, generation: int) -> str:
    """Return the name of the files of a segment that compaction has made; generations count from 1."""
    return f"{base:020}-{stop:020}-{generation:06}"


def generation_of(stem: str) -> int:
    return int(stem.rsplit("-", 1)[1])


class Writing(NamedTuple):
    """The end of the index of the last segment."""

    index_bytes: int = 0
    #: Position of the last batch that an entry points at; -1 if there is none.
    indexed: int = -1
    #: Nothing is appended to this segment any more.
    sealed: bool = True


class Stored(NamedTuple):
    """A batch as it is written."""

    base: int
    stop: int
    time_ms: int
    parts: Sequence[bytes]
    size: int
    #: By which duplicates of its messages are known.
    names: Sequence[bytes] = ()


class Place(NamedTuple):
    """Where a reader goes on: valid as long as it goes on at this offset."""

    base: int
    position: int
    offset: int
    #: Name of the segment's files, if compaction has made them.
    stem: str = ""


class Wanted(NamedTuple):
    """What a reader wants to have."""

    values: frozenset[bytes]
    #: And messages without a filter value.
    unfiltered: bool


class Lost(NamedTuple):
    """Messages that the disk has damaged."""

    low: int
    stop: int
    why: str


class Ended(Exception):
    """The log is gone, or another one has its directory."""


class Read(NamedTuple):
    """What was read: neighbours, and where the next read goes on."""

    batches: list[Batch]
    place: Place
    lost: list[Lost]
    #: What was read of segments for it: more than the batches have, where it ends within one.
    read_bytes: int


class Raw(NamedTuple):
    """Whole neighbouring batches as they stand in a segment; or what is damaged where they should begin."""

    data: bytes
    #: The offset after the last message.
    stop: int
    lost: Lost | None = None


def heads_of(data: bytes) -> Iterator[tuple[int, Head]]:
    """Yield position and head of each batch in whole neighbouring batches. Raises Damaged."""
    at, expected = 0, -1
    while at < len(data):
        head = batches.decode_head(data, at)
        batches.decode(head, data, at)
        if expected not in (-1, head.base):
            raise Damaged(f"a batch at {head.base} in place of {expected}")
        yield at, head
        expected, at = head.stop, at + head.size


def spaced(heads: Sequence[tuple[int, Head]], indexed: int) -> list[Entry]:
    """Return index entries for batches behind the one at `indexed`, as often as there has to be one."""
    entries: list[Entry] = []
    for position, head in heads:
        if indexed < 0 or position - indexed >= index.SPACING_BYTES:
            entries.append(Entry(head.base, head.time_ms, position))
            indexed = position
    return entries
