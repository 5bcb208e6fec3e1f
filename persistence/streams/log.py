"""The log of one stream: segments in a directory, each a file of batches and an index.

    00000000000000012345.segment    batches from offset 12345 on
    00000000000000012345.index      where they are; see index.py
    first                           offset of the first segment; what is before it is about to be removed

One thread writes, others read at the same time: what they know of each other is the tuple `segments`, which is replaced
as a whole when what it says is on the disk. What is not in it does not exist for a reader.

The journal has every message until it is synced here, and says up to which offset that is (`stored_stop`). So what a
restart finds damaged behind that offset was torn by the crash: it is cut off, and the journal has it. What it finds
damaged before that offset was damaged by the disk: it is reported, stays a hole, and its offsets are not used again.
"""

from __future__ import annotations

import errno
import logging
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Batch, Damaged, Head
from persistence.streams.files import Files
from persistence.streams.index import Entry

logger = logging.getLogger("mqd.streams")

#: The disk has no room.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: What is read at once.
READ_BYTES = 256 * 1024
#: Heads that one read looks at which no filter matches: others wait for the thread.
PASSED_MAX = 256
_SEGMENT, _INDEX, _FIRST = ".segment", ".index", "first"
#: An offset and its checksum.
_NOTE = struct.Struct(">QI")


class Segment(NamedTuple):
    """What is on the disk of a segment."""

    base: int
    size: int
    #: The offset after its last message.
    stop: int
    #: Times of its first and its last batch.
    first_ms: int
    last_ms: int


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


class Place(NamedTuple):
    """Where a reader goes on: valid as long as it goes on at this offset."""

    base: int
    position: int
    offset: int


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


class Read(NamedTuple):
    """What was read: neighbours, and where the next read goes on."""

    batches: list[Batch]
    place: Place
    lost: list[Lost]


class StreamLog:
    """Made, and `open`ed, by the thread that writes from then on; or by the loop while nobody else has it."""

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        self._files = files
        self.directory = directory
        #: A segment of this size is not written any more.
        self.segment_bytes = segment_bytes
        self.segments: tuple[Segment, ...] = ()
        self._writing = Writing()
        #: The offset after the last message that is on the disk here.
        self.stop = 0
        self._ended = False

    @property
    def size(self) -> int:
        return sum([segment.size for segment in self.segments])

    # -- at start --------------------------------------------------------------------------------------------------

    def open(self, stored_stop: int) -> list[Lost]:
        """Read the indexes, and the end of the last segment; return what is damaged there."""
        names = self._files.names(self.directory)
        first = self._first()
        bases = sorted(
            base
            for base in (int(name.removesuffix(_SEGMENT)) for name in names if name.endswith(_SEGMENT))
            if base >= first
        )
        self._remove_remains(names, bases)
        lost: list[Lost] = []
        segments = [self._sealed(base) for base in bases[:-1]]
        self.stop = stored_stop
        if bases:
            last, self._writing = self._open_last(bases[-1], stored_stop, lost)
            segments.append(last)
            self.stop = max(stored_stop, last.stop)
            if self.stop > last.stop:
                # What is missing at its end must not get other messages.
                self._writing = self._writing._replace(sealed=True)
        self.segments = tuple(segments)
        return lost

    def _remove_remains(self, names: list[str], bases: list[int]) -> None:
        """Remove what a crash has left: segments that were being trimmed, and indexes whose segment never came to be.

        Neither may come back when `first`, or a segment of that name, is written again.
        """
        known = {self._path(base, suffix).name for base in bases for suffix in (_SEGMENT, _INDEX)}
        remains = [name for name in names if name.endswith((_SEGMENT, _INDEX)) and name not in known]
        for name in remains:
            self._files.remove(self.directory / name)
        if remains:
            self._files.sync_names(self.directory)

    def _sealed(self, base: int) -> Segment:
        path = self._path(base, _INDEX)
        try:
            entries = index.decode(self._files.read(path, 0, index.ENTRY_BYTES))
            entries += index.decode(
                self._files.read(path, self._files.size(path) - index.ENTRY_BYTES, index.ENTRY_BYTES)
            )
        except (OSError, ValueError):
            entries = []
        if len(entries) == 2 and entries[1].kind == index.SEAL:
            seal = entries[1]
            return Segment(base, seal.position, seal.offset, entries[0].time_ms, seal.time_ms)
        logger.warning("the index of %s is damaged, and made anew", self._path(base, _SEGMENT))
        return self._index_anew(base)

    def _index_anew(self, base: int) -> Segment:
        """Of a sealed segment. Heads are enough for that."""
        size = self._files.size(self._path(base, _SEGMENT))
        found = list(self._heads(base, 0, base, size, whole=False))
        entries = _spaced([(position, head) for position, head, _ in found], -1)
        last = found[-1][1] if found else None
        stop, last_ms = (last.stop, last.time_ms) if last is not None else (base, 0)
        entries.append(Entry(stop, last_ms, size, index.SEAL))
        self._write_index(base, entries)
        return Segment(base, size, stop, found[0][1].time_ms if found else 0, last_ms)

    def _write_index(self, base: int, entries: list[Entry]) -> None:
        path = self._path(base, _INDEX)
        data = b"".join(map(index.encode, entries))
        self._files.write(path, 0, [data])
        self._files.cut(path, len(data))

    def _open_last(self, base: int, stored_stop: int, lost: list[Lost]) -> tuple[Segment, Writing]:
        path = self._path(base, _SEGMENT)
        size = self._files.size(path)
        entries = self._entries(base)
        if entries and entries[-1].kind == index.SEAL and entries[-1].position == size:
            seal = entries[-1]
            return Segment(base, size, seal.offset, entries[0].time_ms, seal.time_ms), Writing()
        entries = self._believable(base, [entry for entry in entries if entry.kind == index.BATCH], size)
        position, expected, last_ms = 0, base, 0
        if entries:
            position, expected, last_ms = entries[-1].position, entries[-1].offset, entries[-1].time_ms
        found: list[tuple[int, Head]] = []
        end = position
        for at, head, sound in self._heads(base, position, expected, size, whole=True):
            if (not sound or at > end) and expected >= stored_stop:
                break
            if at > end or head.base > expected:
                lost.append(Lost(expected, head.base, f"{path} is damaged at {end}"))
            if not sound:
                lost.append(Lost(head.base, head.stop, f"{path} is damaged at {at}"))
            found.append((at, head))
            end, expected, last_ms = at + head.size, head.stop, head.time_ms
        sealed = False
        if expected >= stored_stop:
            if end < size:
                logger.info("%s: %d bytes that were not synced are cut off", path, size - end)
                self._files.cut(path, end)
        else:
            lost.append(Lost(expected, stored_stop, f"{path} is damaged from {end} on"))
            end, sealed = size, True
        # What is sound but was not known to be synced counts as stored from now on.
        self._files.sync(path)
        entries += _spaced(found, entries[-1].position if entries else -1)
        self._write_index(base, entries)
        first_ms = entries[0].time_ms if entries else 0
        indexed = entries[-1].position if entries else -1
        writing = Writing(len(entries) * index.ENTRY_BYTES, indexed, sealed)
        return Segment(base, end, expected, first_ms, last_ms), writing

    def _believable(self, base: int, entries: list[Entry], size: int) -> list[Entry]:
        """Leave out entries at the end that point past the segment, or at something else than their batch."""
        while entries:
            last = entries[-1]
            if last.position < size:
                try:
                    data = self._files.read(self._path(base, _SEGMENT), last.position, HEAD_BYTES)
                    if batches.decode_head(data).base == last.offset:
                        break
                except Damaged:
                    pass
            entries.pop()
        return entries

    def _heads(
        self, base: int, position: int, expected: int, size: int, *, whole: bool
    ) -> Iterator[tuple[int, Head, bool]]:
        """Yield position and head of each batch from here on, and whether the batch is sound (if `whole`).

        Where a head is damaged the next sound one is looked for.
        """
        window = _Window(self._files, self._path(base, _SEGMENT), size)
        while position + HEAD_BYTES <= size:
            try:
                head = batches.decode_head(window.take(position, HEAD_BYTES))
                if head.base < expected:
                    raise Damaged("a batch comes a second time")
            except Damaged:
                found = self._next_head(window, position + 1, expected, size)
                if found < 0:
                    return
                position = found
                continue
            sound = position + head.size <= size
            if sound and whole:
                try:
                    batches.decode(head, window.take(position, head.size))
                except Damaged:
                    sound = False
            yield position, head, sound
            expected = head.stop
            position += head.size

    def _next_head(self, window: _Window, position: int, expected: int, size: int) -> int:
        while position + HEAD_BYTES <= size:
            data = window.take(position, min(READ_BYTES, size - position))
            found = batches.find_head(data, 0, expected)
            if found >= 0:
                return position + found
            position += max(len(data) - HEAD_BYTES + 1, 1)
        return -1

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, stored: Sequence[Stored]) -> None:
        """Write batches, and return when they are on the disk. Raises OSError, and then all of it can be tried again."""
        if self._ended:
            return
        segments, writing = list(self.segments), self._writing
        if not segments:
            self._files.make(self.directory)
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
            self._files.sync_names(self.directory)
        self._writing, self.stop = writing, stored[-1].stop
        self.segments = tuple(segments)

    def _write(self, segment: Segment, writing: Writing, stored: list[Stored]) -> Writing:
        """Write the batches at the end of a segment, which is told as it is with them."""
        if not stored:
            return writing
        path = self._path(segment.base, _SEGMENT)
        position = segment.size - sum([each.size for each in stored])
        self._files.write(path, position, [part for each in stored for part in each.parts])
        self._files.sync(path)
        # Only now: an entry points at what is on the disk.
        entries: list[bytes] = []
        indexed = writing.indexed
        for each in stored:
            if indexed < 0 or position - indexed >= index.SPACING_BYTES:
                entries.append(index.encode(Entry(each.base, each.time_ms, position)))
                indexed = position
            position += each.size
        if entries:
            self._files.write(self._path(segment.base, _INDEX), writing.index_bytes, entries)
        return Writing(writing.index_bytes + len(entries) * index.ENTRY_BYTES, indexed, sealed=False)

    def _seal(self, segment: Segment, writing: Writing) -> None:
        path = self._path(segment.base, _INDEX)
        seal = Entry(segment.stop, segment.last_ms, segment.size, index.SEAL)
        self._files.write(path, writing.index_bytes, [index.encode(seal)])
        self._files.sync(path)
        # Both files are there for certain before the next segment may be.
        self._files.sync_names(self.directory)

    def trim(self, count: int) -> None:
        """Delete the oldest `count` segments. Raises OSError."""
        segments = self.segments
        if not count or self._ended:
            return
        if count >= len(segments):
            # A segment without messages says at which offset the stream goes on.
            self._files.write(self._path(self.stop, _SEGMENT), 0, [b""])
            self._files.cut(self._path(self.stop, _SEGMENT), 0)
            self._writing = Writing(sealed=False)
            self.segments = (Segment(self.stop, 0, self.stop, 0, 0),)
        else:
            self.segments = segments[count:]
        # The disk may forget the files in any order.
        noted = self._note_first(self.segments[0].base)
        for segment in segments[:count]:
            self._remove(segment.base)
            if not noted:
                self._files.sync_names(self.directory)
        if noted:
            self._files.sync_names(self.directory)

    def _note_first(self, base: int) -> bool:
        """Note which segment is the first one from now on; return False where the disk has no room for that."""
        first = base.to_bytes(8, "big")
        try:
            self._files.write(self.directory / _FIRST, 0, [first, crc32(first).to_bytes(4, "big")])
            self._files.sync(self.directory / _FIRST)
            self._files.sync_names(self.directory)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def _remove(self, base: int) -> None:
        self._files.remove(self._path(base, _INDEX))
        self._files.remove(self._path(base, _SEGMENT))

    def _first(self) -> int:
        try:
            data = self._files.read(self.directory / _FIRST, 0, _NOTE.size)
        except FileNotFoundError:
            return 0
        if len(data) < _NOTE.size or _NOTE.unpack(data)[1] != crc32(data[:8]):
            logger.warning("%s is damaged", self.directory / _FIRST)
            return 0
        return int(_NOTE.unpack(data)[0])

    def delete(self) -> None:
        """Delete all of it; what is appended from now on goes nowhere."""
        self._ended = True
        self.segments = ()
        self._files.remove_all(self.directory)

    def abandon(self) -> None:
        """Another log has this directory from now on: write nothing any more. Called by the loop."""
        self._ended = True

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, place: Place | None = None, wanted: Wanted | None = None) -> Read:
        """Read some batches from the one with this offset on, or from the first one behind it that is there.

        Nothing is returned where the log ends, and where no filter matched for long; `place` says where to go on.
        """
        lost: list[Lost] = []
        while True:
            segment = self._segment_of(offset)
            if segment is None:
                return Read([], Place(-1, 0, offset), lost)
            if offset < segment.base:
                offset, place = segment.base, None
            if place is None or place.base != segment.base or place.offset != offset:
                place = Place(segment.base, self._position(segment.base, offset), offset)
            try:
                reading = _Reading(self._files, self._path(segment.base, _SEGMENT), segment, place, wanted)
                found = reading.run(partial(self._after, segment.base))
            except FileNotFoundError:
                if segment.base not in [each.base for each in self.segments]:
                    # It was deleted by its age or size meanwhile.
                    continue
                stop = self._behind(segment)
                lost.append(Lost(offset, stop, f"{self._path(segment.base, _SEGMENT)} is missing"))
                offset = stop
                continue
            lost += found.lost
            if found.batches or found.place.position < segment.size:
                return Read(found.batches, found.place, lost)
            offset = max(segment.stop, self._behind(segment))
            if found.place.offset < offset:
                why = f"{self._path(segment.base, _SEGMENT)} is damaged to its end"
                lost.append(Lost(found.place.offset, offset, why))

    def _segment_of(self, offset: int) -> Segment | None:
        """Return the segment with this offset or else the next one; None at the end."""
        segments = self.segments
        at = max(bisect_right(segments, offset, key=attrgetter("base")) - 1, 0)
        for segment in segments[at:]:
            if segment.stop > offset:
                return segment
        return None

    def _behind(self, segment: Segment) -> int:
        """Return the offset at which the next segment begins."""
        for each in self.segments:
            if each.base > segment.base:
                return each.base
        return segment.stop

    def find(self, time_ms: int) -> int:
        """Return the offset of the first batch at or after this time; the end of the log if there is none."""
        for segment in self.segments:
            if segment.size and segment.last_ms >= time_ms:
                break
        else:
            return self.stop
        if segment.first_ms >= time_ms:
            return segment.base
        position = index.position_before(self._entries(segment.base), time_ms)
        for _, head, _ in self._heads(segment.base, position, segment.base, segment.size, whole=False):
            if head.time_ms >= time_ms:
                return head.base
        return self._behind(segment)

    def last(self) -> int:
        """Return the offset of the last batch; the end of the log if there is none."""
        for segment in reversed(self.segments):
            if segment.size:
                entries = [entry for entry in self._entries(segment.base) if entry.kind == index.BATCH]
                position = entries[-1].position if entries else 0
                found = segment.base
                for _, head, _ in self._heads(
                    segment.base, position, segment.base, segment.size, whole=False
                ):
                    found = head.base
                return found
        return self.stop

    def _position(self, base: int, offset: int) -> int:
        return 0 if offset == base else index.position_of(self._entries(base), offset)

    def _after(self, base: int, position: int) -> int | None:
        return index.position_after(self._entries(base), position)

    def _entries(self, base: int) -> list[Entry]:
        path = self._path(base, _INDEX)
        try:
            return index.decode(self._files.read(path, 0, self._files.size(path)))
        except OSError:
            return []

    def _path(self, base: int, suffix: str) -> Path:
        return self.directory / f"{base:020}{suffix}"


class _Window:
    """Reads a file ahead, for one who goes through it from the front to the back."""

    def __init__(self, files: Files, path: Path, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def take(self, position: int, size: int, ahead: int = READ_BYTES) -> memoryview:
        """Return these bytes; fewer if the file ends before."""
        low = position - self._start
        if low < 0 or low + size > len(self._data):
            wanted = max(size, min(ahead, self._size - position))
            self._start, low = position, 0
            self._data = memoryview(self._files.read(self._path, position, wanted))
        return self._data[low : low + size]


class _Reading:
    """One read within one segment."""

    def __init__(
        self, files: Files, path: Path, segment: Segment, place: Place, wanted: Wanted | None
    ) -> None:
        self._path = path
        self._window = _Window(files, path, segment.size)
        self._segment = segment
        self._position, self._offset = place.position, place.offset
        self._wanted = wanted
        self._found: list[Batch] = []
        self._lost: list[Lost] = []

    def run(self, after: Callable[[int], int | None]) -> Read:
        """`after` returns where a batch begins behind a position at which there should be one."""
        size = passed = 0
        # What no filter matches need not be read.
        ahead = READ_BYTES if self._wanted is None else batches.HEAD_BYTES + 4096
        while self._position < self._segment.size and size < READ_BYTES and passed < PASSED_MAX:
            try:
                head = batches.decode_head(self._window.take(self._position, HEAD_BYTES, ahead))
                if head.stop > self._segment.stop:
                    raise Damaged("a batch reaches behind its segment")
            except Damaged as error:
                if not self._jump(after(self._position), str(error)):
                    break
                continue
            if head.base > self._offset:
                self._lost.append(Lost(self._offset, head.base, f"{self._path} has a hole"))
            if head.stop > self._offset:
                if size and size + head.size > READ_BYTES:
                    break
                if self._take(head):
                    size += head.size
                else:
                    passed += 1
                self._offset = head.stop
            self._position += head.size
        return Read(self._found, Place(self._segment.base, self._position, self._offset), self._lost)

    def _jump(self, position: int | None, why: str) -> bool:
        """Go on behind a damage; the hole is told with the next batch that is there."""
        logger.debug("%s at %d: %s", self._path, self._position, why)
        self._position = self._segment.size if position is None else position
        return position is not None

    def _take(self, head: Head) -> bool:
        start = self._position + HEAD_BYTES
        try:
            wanted = self._wanted
            if wanted is not None:
                values = batches.decode_values(head, self._window.take(start, head.meta_bytes, 0))
                if not batches.matches(values, wanted.values, unfiltered=wanted.unfiltered):
                    return False
            self._found.append(batches.decode(head, self._window.take(self._position, head.size)))
        except Damaged as error:
            self._lost.append(Lost(max(head.base, self._offset), head.stop, f"{self._path}: {error}"))
            return False
        return True


def _spaced(heads: Sequence[tuple[int, Head]], indexed: int) -> list[Entry]:
    """Return index entries for batches behind the one at `indexed`, as often as there has to be one."""
    entries: list[Entry] = []
    for position, head in heads:
        if indexed < 0 or position - indexed >= index.SPACING_BYTES:
            entries.append(Entry(head.base, head.time_ms, position))
            indexed = position
    return entries
