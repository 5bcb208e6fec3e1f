"""The log of one stream: segments in a directory, each a file of batches and an index.

    00000000000000012345.segment    batches from offset 12345 on
    00000000000000012345.index      the positions of these batches; see index.py
    00000000000000012345-00000000000000023456-000007.segment
                                    what compaction has left of the offsets from 12345 up to 23456: it
                                    replaces all segments that began there, also those of an earlier
                                    compaction
    sealed                          what a start needs to know of all segments except the last one; see
                                    summaries.py
    first                           offset of the first segment; earlier segments are about to be removed
    compacted                       the offset up to which the stream was compacted
    sound                           the offset before which compaction has left no replaced message
    passes                          when passes of compaction had reached which offset; see passes.py
    names                           the messages that were taken up to an offset, if the stream drops
                                    duplicates; see names.py

One thread writes, others read at the same time. They share only the tuple `segments`, which is replaced as a
whole when its content is on disk. For a reader, nothing else exists.

The journal has every message until it is synced here, and knows up to which offset that is (`stored_stop`).
So if a restart finds damage after that offset, the crash tore the data: it is cut off, and the journal has
it. Damage before that offset is the disk's: it is reported, stays a gap, and its offsets are not used again.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from persistence.errors import FULL
from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Damaged
from persistence.streams.compression import NONE
from persistence.streams.deduplication_file import Keeper, NamedBatch, NamesFile
from persistence.streams.files import Files
from persistence.streams.index import Entry
from persistence.streams.mending import Mending
from persistence.streams.opening import Opening
from persistence.streams.passes import Passes
from persistence.streams.reading import SegmentReader
from persistence.streams.rewritten import Rewritten
from persistence.streams.segment import (
    INDEX,
    NEW,
    READ_BYTES,
    SEGMENT,
    Ended,
    Lost,
    Raw,
    Read,
    Segment,
    SegmentPlace,
    Stored,
    Wanted,
    Where,
    Writing,
    compacted_stem,
    heads_of,
)
from persistence.streams.segment_files import FileWindow
from persistence.streams.summaries import Summaries

logger = logging.getLogger("mqd.streams")

T = TypeVar("T")

#: After so many batches that did not become smaller, one of as many is tried; small ones, which take no time,
#: tell nothing and are all tried.
_TRIED_EACH = 8
_TELLING_BYTES = 4096
_FIRST, _CLEAN, _SOUND = "first", "compacted", "sound"
#: An offset and its checksum.
_NOTE = struct.Struct(">QI")


class StreamLog(SegmentReader):
    """Created, and `open`ed, by the thread that writes from then on; or by the loop while no other thread
    uses it.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        segment_bytes: int,
        *,
        keeper: Keeper | None = None,
        codec: str = NONE,
    ) -> None:
        """Batches are compressed with `codec`. `keeper` gets the names of all stored messages, and is saved
        in a file.
        """
        super().__init__(files, directory)
        #: A segment of this size gets no more messages.
        self.segment_bytes = segment_bytes
        self._codec = codec
        #: Number of batches since the last one that became smaller.
        self._unchanged = 0
        self._names = NamesFile(files, directory, keeper) if keeper is not None else None
        self.writing = Writing()
        #: Messages before this offset were deleted on purpose: that is no damage.
        self.first_kept = 0
        self._ended = False
        #: The newest compaction, and the offset up to which everything was compacted, but for what it left
        #: alone; before `sound_stop` it left nothing alone.
        self._generation = 0
        self.clean_stop = self.sound_stop = 0
        self._passes = Passes(files, directory)
        #: Number of repairs.
        self.mends = 0
        self._mending = Mending(self)
        self._summaries = Summaries(files, directory)

    @property
    def size(self) -> int:
        return sum([segment.size for segment in self.segments])

    # -- at start --------------------------------------------------------------------------------------------

    def open(self, stored_stop: int, *, mendable: bool = False) -> list[Lost]:
        """Read the summaries of the segments, and the end of the last one; return the damage there.

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
                # The missing offsets at its end must not get other messages.
                self.writing = self.writing._replace(sealed=True)
        self.segments = tuple(found.segments)
        self.clean_stop = self._noted(_CLEAN)
        self.sound_stop = min(self._noted(_SOUND), self.clean_stop)
        self._passes.open()
        if self._names is not None:
            self._names.open(self._named_from)
        return found.lost

    def _named_from(self, offset: int) -> Iterator[NamedBatch]:
        """Yield the names in all readable batches from an offset on."""
        for segment in self.segments:
            if segment.stop <= offset:
                continue
            path = self.path(segment.where, SEGMENT)
            window = FileWindow(self.files, path, segment.size)
            position = self.position(segment, offset)
            for at, head, _ in self.heads(segment.where, position, segment.base, segment.size, whole=False):
                if head.base >= offset:
                    meta = window.take(at + HEAD_BYTES, head.meta_bytes, 4096)
                    try:
                        yield NamedBatch(head.stop, head.time_ms, batches.decode_names(head, meta))
                    except Damaged as error:
                        logger.warning("%s: %s", path, error)

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, stored: Sequence[Stored]) -> None:
        """Write batches, and return when they are on disk. Raises OSError; then the whole call can be tried
        again.
        """
        if self._ended:
            return
        segments = list(self.segments)
        try:
            self._append(segments, stored)
        except OSError:
            # The next try may begin segments elsewhere, because retention has run meanwhile, or the segment
            # size has changed. One after the other from the last one on: a crash must leave no hole before
            # those that it brings back, and none of them may meet a later file of its name.
            for segment in reversed(segments[len(self.segments) :]):
                self.remove(segment.where)
                self.files.sync_names(self.directory)
            raise

    def _append(self, segments: list[Segment], stored: Sequence[Stored]) -> None:
        """`segments` has the segments before, and afterwards those with these batches."""
        writing = self.writing
        if not segments:
            self.files.make(self.directory)
        if self._codec != NONE:
            stored = [self._compressed(each) for each in stored]
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
            self._names.add([NamedBatch(each.stop, each.time_ms, each.names) for each in stored])

    def _compressed(self, stored: Stored) -> Stored:
        """Return the batch compressed, or as it is if that does not pay. Behind many for which it did not
        pay, such as images, only some are tried.
        """
        if stored.size >= _TELLING_BYTES:
            self._unchanged += 1
            if self._unchanged > _TRIED_EACH and self._unchanged % _TRIED_EACH:
                return stored
        parts = batches.compressed(stored.parts, self._codec)
        if parts is stored.parts:
            return stored
        self._unchanged = 0
        return stored._replace(parts=parts, size=sum(map(len, parts)))

    def _write(self, segment: Segment, writing: Writing, stored: list[Stored]) -> Writing:
        """Write the batches at the end of a segment, and return the segment with them."""
        if not stored:
            return writing
        path = self.path(segment.base, SEGMENT)
        position = segment.size - sum([each.size for each in stored])
        self.files.write(path, position, [part for each in stored for part in each.parts])
        self.files.sync(path)
        # Only now: an entry must point at data on disk.
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
        # Both files must be durable before the next segment may exist.
        self.files.sync_names(self.directory)
        self._summaries.add([segment])

    def trim_to(self, offset: int) -> None:
        """Delete the segments that end at this offset or before. Raises OSError.

        The search is done now, because compaction may have merged some of them since the decision.
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
            # The names in these segments are nowhere else.
            self._names.cover(segments[min(count, len(segments)) - 1].stop)
        if count >= len(segments):
            # A segment without messages holds the next offset of the stream.
            self.files.write(self.path(self.stop, SEGMENT), 0, [b""])
            self.files.cut(self.path(self.stop, SEGMENT), 0)
            self.writing = Writing(sealed=False)
            self.segments = (Segment(self.stop, 0, self.stop, 0, 0),)
        else:
            self.segments = segments[count:]
        self.first_kept = self.segments[0].base
        # The deletions may reach the disk in any order.
        noted = self._note(_FIRST, self.segments[0].base)
        for segment in segments[:count]:
            self.remove(segment.where)
            if not noted:
                self.files.sync_names(self.directory)
        if noted:
            self.files.sync_names(self.directory)
        self._summaries.tidy(self.sealed)

    def _note(self, name: str, offset: int) -> bool:
        """Store an offset, such as that of the first segment; return False if the disk is full."""
        try:
            self._store_note(name, offset)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def _store_note(self, name: str, offset: int) -> None:
        noted = offset.to_bytes(8, "big")
        self.files.make(self.directory)
        self.files.write(self.directory / name, 0, [noted, crc32(noted).to_bytes(4, "big")])
        self.files.sync(self.directory / name)
        self.files.sync_names(self.directory)

    def _noted(self, name: str) -> int:
        """Return a stored offset; 0 if there is none."""
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
        """Delete the whole log; later appends are dropped."""
        self._ended = True
        self.segments = ()
        with self._deleting:
            self.files.remove_all(self.directory)

    # -- from other nodes ------------------------------------------------------------------------------------

    def gaps(self, first: int) -> list[tuple[int, int]]:
        """Return the offsets from `first` to the end of the log that no segment has."""
        found: list[tuple[int, int]] = []
        for segment in self.segments:
            if segment.base > first:
                found.append((first, segment.base))
            first = max(first, segment.stop)
        return found

    def reset(self, offset: int) -> None:
        """Delete all segments; the log continues at this offset. Raises OSError."""
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
        self._summaries.forget()
        self.files.sync_names(self.directory)

    def skip_to(self, offset: int) -> None:
        """No node has the messages up to this offset any more: they stay a gap."""
        self.writing = self.writing._replace(sealed=True)
        self.stop = max(self.stop, offset)

    def mend(self, data: bytes, low: int = -1, stop: int = -1) -> None:
        """Insert whole neighbouring batches, which another node has sent, where they are damaged or missing.

        `low` and `stop` are the damaged range; without them it is the range of the batches. Raises Damaged,
        OSError.
        """
        if self._ended:
            return
        self.mends += 1
        self._mixed_from(low if low >= 0 else next(heads_of(data))[1].base)
        self._mending.mend(data, low, stop)

    def _mixed_from(self, offset: int) -> None:
        """The other node may not have compacted the messages from this offset on. Raises OSError."""
        self._passes.cut(offset)
        if offset < self.sound_stop:
            self._store_note(_SOUND, offset)
            self.sound_stop = offset
        if offset < self.clean_stop:
            self._store_note(_CLEAN, offset)
            self.clean_stop = offset

    def abandon(self) -> None:
        """Another log owns this directory from now on: stop writing. Called by the loop."""
        self._ended = True

    def remove(self, where: Where) -> None:
        """Remove the files of a segment, which must not be in `segments` any more."""
        with self._deleting:
            super().remove(where)

    # -- compaction: see compaction.py -----------------------------------------------------------------------

    @property
    def sealed(self) -> tuple[Segment, ...]:
        """The segments that no longer change."""
        return self.segments[:-1]

    def rewritten(self, base: int, stop: int) -> Rewritten:
        """Return a new segment for these offsets. Another thread writes it, and then calls `replace`."""
        self._generation += 1
        return Rewritten(self, compacted_stem(base, stop, self._generation), base, stop)

    def write_new(self, call: Callable[[Files], T]) -> T:
        """Write from another thread. Raises Ended if the log has ended, OSError."""
        with self._deleting:
            if self._ended:
                raise Ended
            return call(self.files)

    def replace(self, old: Sequence[Segment], new: Segment) -> bool:
        """Replace segments by a new one. Return whether they were still there. Raises OSError."""
        if self._ended:
            return False
        segments, path = self.segments, self.path(new.stem, NEW)
        if any(each not in segments for each in old):
            # Retention was faster.
            self.files.remove(path)
            self.files.remove(self.path(new.stem, INDEX))
            return False
        if self._names is not None:
            # Compaction drops the names.
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

    def alone_stop(self, time_ms: int) -> int:
        """Return the offset before which tombstones have been alone since this time, or longer: no copy has a
        message that they delete.
        """
        return self._passes.reached(time_ms)

    def compacted(
        self, stop: int, sound_stop: int, mends: int, *, alone_stop: int, now_ms: int, until_ms: int
    ) -> None:
        """Store that everything up to `stop` was compacted, and everything before `sound_stop` without
        exception. `mends` is the number of repairs before that: what was repaired since then may be as it was
        before. Before `alone_stop` no other copy has left anything either, as of `now_ms`; tombstones that
        were alone at `until_ms` may go. Raises OSError.
        """
        if self._ended or mends != self.mends:
            return
        if stop > self.clean_stop:
            self._note(_CLEAN, stop)
            self.clean_stop = stop
        self._note(_SOUND, sound_stop)
        self.sound_stop = sound_stop
        try:
            self._passes.add(min(sound_stop, alone_stop), now_ms, until_ms)
        except OSError as error:
            if error.errno not in FULL:
                raise


__all__ = [
    "READ_BYTES",
    "Ended",
    "Lost",
    "SegmentPlace",
    "Raw",
    "Read",
    "Segment",
    "Stored",
    "StreamLog",
    "Wanted",
    "heads_of",
]
