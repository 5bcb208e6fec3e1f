"""The log of one stream: segments in a directory, each a file of batches and an index.

    00000000000000012345.segment    batches from offset 12345 on
    00000000000000012345.index      where they are; see index.py
    00000000000000012345-00000000000000023456-000007.segment
                                    what compaction has left of the offsets from 12345 up to 23456: it takes
                                    the place of all segments that began there, and of those that an earlier
                                    compaction has made
    sealed                          what a start has to know of all segments but the last one; see
                                    summaries.py
    first                           offset of the first segment; what is before it is about to be removed
    names                           which messages were taken up to an offset, where duplicates are dropped;
                                    see names.py

One thread writes, others read at the same time: what they know of each other is the tuple `segments`, which
is replaced as a whole when what it says is on the disk. What is not in it does not exist for a reader.

The journal has every message until it is synced here, and says up to which offset that is (`stored_stop`). So
what a restart finds damaged behind that offset was torn by the crash: it is cut off, and the journal has it.
What it finds damaged before that offset was damaged by the disk: it is reported, stays a hole, and its
offsets are not used again.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Damaged
from persistence.streams.compression import NONE
from persistence.streams.files import FULL, Files
from persistence.streams.index import Entry
from persistence.streams.mending import Mending
from persistence.streams.names import Keeper, Named, NamesFile
from persistence.streams.opening import Opening
from persistence.streams.reading import SegmentReader
from persistence.streams.rewritten import Rewritten
from persistence.streams.segment import (
    INDEX,
    NEW,
    READ_BYTES,
    SEGMENT,
    Ended,
    Lost,
    Place,
    Raw,
    Read,
    Segment,
    Stored,
    Wanted,
    Where,
    Writing,
    compacted_stem,
    heads_of,
)
from persistence.streams.segment_files import Window
from persistence.streams.summaries import Summaries

logger = logging.getLogger("mqd.streams")

T = TypeVar("T")

_FIRST, _CLEAN = "first", "compacted"
#: An offset and its checksum.
_NOTE = struct.Struct(">QI")


class StreamLog(SegmentReader):
    """Made, and `open`ed, by the thread that writes from then on; or by the loop while nobody else has it."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        segment_bytes: int,
        *,
        keeper: Keeper | None = None,
        codec: str = NONE,
    ) -> None:
        """Batches are compressed by `codec`. `keeper` is told the names of all messages that are stored, and
        is kept in a file.
        """
        super().__init__(files, directory)
        #: A segment of this size is not written any more.
        self.segment_bytes = segment_bytes
        self._codec = codec
        self._names = NamesFile(files, directory, keeper) if keeper is not None else None
        self.writing = Writing()
        #: What is before this offset was deleted on purpose, and is no damage.
        self.first_kept = 0
        self._ended = False
        #: The newest compaction, and up to which offset one has compacted everything.
        self._generation = 0
        self.clean_stop = 0
        self._mending = Mending(self)
        self._summaries = Summaries(files, directory)

    @property
    def size(self) -> int:
        return sum([segment.size for segment in self.segments])

    # -- at start --------------------------------------------------------------------------------------------

    def open(self, stored_stop: int, *, mendable: bool = False) -> list[Lost]:
        """Read what is known of the segments, and the end of the last one; return what is damaged there.

        `mendable`: other nodes have the same batches, so a damaged end is cut off, to be filled again.
        """
        self.first_kept = self._noted(_FIRST)
        found = Opening(
            self.files, self.directory, self._summaries, self.first_kept, stored_stop, mendable=mendable
        )
        self.writing, self._generation = found.writing, found.generation
        self.stop = 0 if mendable else stored_stop
        if found.segments:
            last = found.segments[-1]
            self.stop = last.stop if mendable else max(stored_stop, last.stop)
            if self.stop > last.stop:
                # What is missing at its end must not get other messages.
                self.writing = self.writing._replace(sealed=True)
        self.segments = tuple(found.segments)
        self.clean_stop = self._noted(_CLEAN)
        if self._names is not None:
            self._names.open(self._named_from)
        return found.lost

    def _named_from(self, offset: int) -> Iterator[Named]:
        """Yield the names in all batches from an offset on, of those that can be read."""
        for segment in self.segments:
            if segment.stop <= offset:
                continue
            path = self.path(segment.where, SEGMENT)
            window = Window(self.files, path, segment.size)
            position = self.position(segment, offset)
            for at, head, _ in self.heads(segment.where, position, segment.base, segment.size, whole=False):
                if head.base >= offset:
                    meta = window.take(at + HEAD_BYTES, head.meta_bytes, 4096)
                    try:
                        yield Named(head.stop, head.time_ms, batches.decode_names(head, meta))
                    except Damaged as error:
                        logger.warning("%s: %s", path, error)

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, stored: Sequence[Stored]) -> None:
        """Write batches, and return when they are on the disk. Raises OSError, and then all of it can be
        tried again.
        """
        if self._ended:
            return
        segments = list(self.segments)
        try:
            self._append(segments, stored)
        except OSError:
            # The next try may begin segments elsewhere, because retention has been there, or their size is
            # another one.
            for segment in segments[len(self.segments) :]:
                self.remove(segment.where)
            raise

    def _append(self, segments: list[Segment], stored: Sequence[Stored]) -> None:
        """`segments` are those before, and become those with these batches."""
        writing = self.writing
        if not segments:
            self.files.make(self.directory)
        if self._codec != NONE:
            stored = [_compressed(each, self._codec) for each in stored]
        parts: list[Stored] = []
        for each in stored:
            last = segments[-1] if segments else None
            if last is None or writing.sealed or (last.size and last.size >= self.segment_bytes):
                if last is not None and not writing.sealed:
                    writing = self._write(segments[-1], writing, parts)
                    self._seal(segments[-1], writing)
                parts = []
                segments.append(Segment(each.base, 0, each.base, each.time_ms, each.time_ms))
                writing = Writing(sealed=False)
            last = segments[-1]
            first_ms = last.first_ms if last.size else each.time_ms
            segments[-1] = Segment(last.base, last.size + each.size, each.stop, first_ms, each.time_ms)
            parts.append(each)
        writing = self._write(segments[-1], writing, parts)
        if len(segments) > len(self.segments):
            self.files.sync_names(self.directory)
        self.writing, self.stop = writing, stored[-1].stop
        self.segments = tuple(segments)
        if self._names is not None:
            self._names.add([Named(each.stop, each.time_ms, each.names) for each in stored])

    def _write(self, segment: Segment, writing: Writing, stored: list[Stored]) -> Writing:
        """Write the batches at the end of a segment, which is told as it is with them."""
        if not stored:
            return writing
        path = self.path(segment.base, SEGMENT)
        position = segment.size - sum([each.size for each in stored])
        self.files.write(path, position, [part for each in stored for part in each.parts])
        self.files.sync(path)
        # Only now: an entry points at what is on the disk.
        entries: list[bytes] = []
        indexed = writing.indexed
        for each in stored:
            if indexed < 0 or position - indexed >= index.SPACING_BYTES:
                entries.append(index.encode(Entry(each.base, each.time_ms, position)))
                indexed = position
            position += each.size
        if entries:
            self.files.write(self.path(segment.base, INDEX), writing.index_bytes, entries)
        return Writing(writing.index_bytes + len(entries) * index.ENTRY_BYTES, indexed, sealed=False)

    def _seal(self, segment: Segment, writing: Writing) -> None:
        path = self.path(segment.base, INDEX)
        seal = Entry(segment.stop, segment.last_ms, segment.size, index.SEAL)
        self.files.write(path, writing.index_bytes, [index.encode(seal)])
        self.files.sync(path)
        # Both files are there for certain before the next segment may be.
        self.files.sync_names(self.directory)
        self._summaries.add([segment])

    def trim_to(self, offset: int) -> None:
        """Delete the segments that end at this offset or before. Raises OSError.

        They are looked for now: compaction may have put some of them together since somebody decided so.
        """
        count = 0
        for segment in self.segments:
            if not segment.size or segment.stop > offset:
                break
            count += 1
        self.trim(count)

    def trim(self, count: int) -> None:
        """Delete the oldest `count` segments. Raises OSError."""
        segments = self.segments
        if not count or self._ended:
            return
        if self._names is not None:
            # Nothing else has the names in them.
            self._names.cover(segments[min(count, len(segments)) - 1].stop)
        if count >= len(segments):
            # A segment without messages says at which offset the stream goes on.
            self.files.write(self.path(self.stop, SEGMENT), 0, [b""])
            self.files.cut(self.path(self.stop, SEGMENT), 0)
            self.writing = Writing(sealed=False)
            self.segments = (Segment(self.stop, 0, self.stop, 0, 0),)
        else:
            self.segments = segments[count:]
        self.first_kept = self.segments[0].base
        # The disk may forget the files in any order.
        noted = self._note(_FIRST, self.segments[0].base)
        for segment in segments[:count]:
            self.remove(segment.where)
            if not noted:
                self.files.sync_names(self.directory)
        if noted:
            self.files.sync_names(self.directory)
        self._summaries.tidy(self.sealed)

    def _note(self, name: str, offset: int) -> bool:
        """Note an offset, such as that of the first segment; return False where the disk has no room for
        that.
        """
        noted = offset.to_bytes(8, "big")
        try:
            self.files.write(self.directory / name, 0, [noted, crc32(noted).to_bytes(4, "big")])
            self.files.sync(self.directory / name)
            self.files.sync_names(self.directory)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def _noted(self, name: str) -> int:
        """Return what was noted; 0 if nothing was."""
        try:
            data = self.files.read(self.directory / name, 0, _NOTE.size)
        except FileNotFoundError:
            return 0
        except OSError as error:
            logger.warning("%s cannot be read: %s", self.directory / name, error)
            return 0
        if len(data) < _NOTE.size or _NOTE.unpack(data)[1] != crc32(data[:8]):
            logger.warning("%s is damaged", self.directory / name)
            return 0
        return int(_NOTE.unpack(data)[0])

    def delete(self) -> None:
        """Delete all of it; what is appended from now on goes nowhere."""
        self._ended = True
        self.segments = ()
        with self._deleting:
            self.files.remove_all(self.directory)

    # -- from other nodes ------------------------------------------------------------------------------------

    def gaps(self, first: int) -> list[tuple[int, int]]:
        """Return which offsets from `first` on no segment has, up to the end of the log."""
        found: list[tuple[int, int]] = []
        for segment in self.segments:
            if segment.base > first:
                found.append((first, segment.base))
            first = max(first, segment.stop)
        return found

    def reset(self, offset: int) -> None:
        """Delete all segments; the log goes on at this offset. Raises OSError."""
        if self._ended:
            return
        self.files.make(self.directory)
        self.files.write(self.path(offset, SEGMENT), 0, [b""])
        self.files.cut(self.path(offset, SEGMENT), 0)
        self.writing = Writing(sealed=False)
        self.segments, self.stop = (Segment(offset, 0, offset, 0, 0),), offset
        self.first_kept = offset
        self.files.sync_names(self.directory)
        self._note(_FIRST, offset)
        own = self.path(offset, SEGMENT).name
        with self._deleting:
            for name in self.files.names(self.directory):
                if name.endswith((SEGMENT, INDEX)) and name != own:
                    self.files.remove(self.directory / name)
        self.files.sync_names(self.directory)

    def skip_to(self, offset: int) -> None:
        """No node has the messages up to this offset any more: they stay a hole."""
        self.writing = self.writing._replace(sealed=True)
        self.stop = max(self.stop, offset)

    def mend(self, data: bytes, low: int = -1, stop: int = -1) -> None:
        """Put whole neighbouring batches, which another node has sent, where they are damaged or missing.

        `low` and `stop`: what is damaged. Without it, that is what the batches have. Raises Damaged, OSError.
        """
        if not self._ended:
            self._mending.mend(data, low, stop)

    def abandon(self) -> None:
        """Another log has this directory from now on: write nothing any more. Called by the loop."""
        self._ended = True

    def remove(self, where: Where) -> None:
        """Remove the files of a segment, which nobody may find in `segments` any more."""
        with self._deleting:
            super().remove(where)

    # -- compaction: see compaction.py -----------------------------------------------------------------------

    @property
    def sealed(self) -> tuple[Segment, ...]:
        """The segments that do not change any more."""
        return self.segments[:-1]

    def rewritten(self, base: int, stop: int) -> Rewritten:
        """Return a new segment for these offsets, which is to be written by another thread and then
        `replace`d.
        """
        self._generation += 1
        return Rewritten(self, compacted_stem(base, stop, self._generation), base, stop)

    def write_new(self, call: Callable[[Files], T]) -> T:
        """Have another thread write. Raises Ended if nobody wants it any more, OSError."""
        with self._deleting:
            if self._ended:
                raise Ended
            return call(self.files)

    def replace(self, old: Sequence[Segment], new: Segment) -> bool:
        """Put a segment that was written in the place of others. Return whether they were still there. Raises
        OSError.
        """
        if self._ended:
            return False
        segments, path = self.segments, self.path(new.stem, NEW)
        if any(each not in segments for each in old):
            # Retention was faster.
            self.files.remove(path)
            self.files.remove(self.path(new.stem, INDEX))
            return False
        if self._names is not None:
            # Compaction leaves no names.
            self._names.cover(new.stop)
        if path.name in self.files.names(self.directory):
            self.files.rename(path, self.path(new.stem, SEGMENT).name)
        self.files.sync_names(self.directory)
        self._summaries.add([new])
        at = segments.index(old[0])
        self.segments = (*segments[:at], new, *segments[at + len(old) :])
        for each in old:
            self.remove(each.where)
        self._summaries.tidy(self.sealed)
        return True

    def compacted(self, stop: int) -> None:
        """Everything up to this offset was compacted. Raises OSError."""
        if not self._ended:
            self._note(_CLEAN, stop)
            self.clean_stop = stop


def _compressed(stored: Stored, codec: str) -> Stored:
    parts = batches.compressed(stored.parts, codec)
    return stored._replace(parts=parts, size=sum(map(len, parts)))


__all__ = [
    "READ_BYTES",
    "Ended",
    "Lost",
    "Place",
    "Raw",
    "Read",
    "Segment",
    "Stored",
    "StreamLog",
    "Wanted",
    "heads_of",
]
