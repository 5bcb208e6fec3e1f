"""The log of one stream: segments in a directory, each a file of batches and an index.

    00000000000000012345.segment    batches from offset 12345 on
    00000000000000012345.index      where they are; see index.py
    00000000000000012345-00000000000000023456-000007.segment
                                    what compaction has left of the offsets from 12345 up to 23456: it takes the place of
                                    all segments that began there, and of those that an earlier compaction has made
    first                           offset of the first segment; what is before it is about to be removed
    names                           which messages were taken up to an offset, where duplicates are dropped; see names.py

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
from operator import attrgetter, itemgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar
from zlib import crc32

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Batch, Damaged, Head
from persistence.streams.compression import NONE
from persistence.streams.cutting import within
from persistence.streams.files import Files
from persistence.streams.index import Entry
from persistence.streams.names import Keeper, Named, NamesFile

logger = logging.getLogger("mqd.streams")

T = TypeVar("T")

#: The disk has no room.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: What is read at once.
READ_BYTES = 256 * 1024
#: Heads that one read looks at which no filter matches: others wait for the thread.
PASSED_MAX = 256
_SEGMENT, _INDEX, _FIRST, _CLEAN = ".segment", ".index", "first", "compacted"
#: Of a segment that compaction is writing.
NEW = ".new"
#: An offset and its checksum.
_NOTE = struct.Struct(">QI")


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


class Raw(NamedTuple):
    """Whole neighbouring batches as they stand in a segment; or what is damaged where they should begin."""

    data: bytes
    #: The offset after the last message.
    stop: int
    lost: Lost | None = None


class StreamLog:
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
        """Batches are compressed by `codec`. `keeper` is told the names of all messages that are stored, and is kept in a file."""
        self._files = files
        self.directory = directory
        #: A segment of this size is not written any more.
        self.segment_bytes = segment_bytes
        self._codec = codec
        self._names = NamesFile(files, directory, keeper) if keeper is not None else None
        self.segments: tuple[Segment, ...] = ()
        self._writing = Writing()
        #: The offset after the last message that is on the disk here.
        self.stop = 0
        #: What is before this offset was deleted on purpose, and is no damage.
        self.first_kept = 0
        self._ended = False
        #: The newest compaction, and up to which offset one has compacted everything.
        self._generation = 0
        self.clean_stop = 0
        #: Held while files are written that this thread does not know, or all are deleted.
        self._deleting = Lock()
        #: Segments that `mend` has made since the start, and the heads of their batches.
        self._mended: dict[int, list[tuple[int, Head]]] = {}

    @property
    def size(self) -> int:
        return sum([segment.size for segment in self.segments])

    # -- at start --------------------------------------------------------------------------------------------------

    def open(self, stored_stop: int, *, mendable: bool = False) -> list[Lost]:
        """Read the indexes, and the end of the last segment; return what is damaged there.

        `mendable`: other nodes have the same batches, so a damaged end is cut off, to be filled again.
        """
        names = self._files.names(self.directory)
        first = self.first_kept = self._first()
        found = self._found(names, first)
        self._remove_remains(names, found)
        lost: list[Lost] = []
        segments = [self._sealed(base, stem) for base, stem in found[:-1]]
        self.stop = 0 if mendable else stored_stop
        if found:
            last, self._writing = self._open_last(*found[-1], stored_stop, lost, mendable=mendable)
            segments.append(last)
            self.stop = last.stop if mendable else max(stored_stop, last.stop)
            if self.stop > last.stop:
                # What is missing at its end must not get other messages.
                self._writing = self._writing._replace(sealed=True)
        self.segments = tuple(segments)
        self.clean_stop = self._noted(_CLEAN)
        if self._names is not None:
            self._names.open(self._named_from)
        return lost

    def _named_from(self, offset: int) -> Iterator[Named]:
        """Yield the names in all batches from an offset on, of those that can be read."""
        for segment in self.segments:
            if segment.stop <= offset:
                continue
            path = self._path(segment.where, _SEGMENT)
            window = _Window(self._files, path, segment.size)
            position = self._position(segment, offset)
            for at, head, _ in self._heads(segment.where, position, segment.base, segment.size, whole=False):
                if head.base >= offset:
                    meta = window.take(at + HEAD_BYTES, head.meta_bytes, 4096)
                    try:
                        yield Named(head.stop, head.time_ms, batches.decode_names(head, meta))
                    except Damaged as error:
                        logger.warning("%s: %s", path, error)

    def _found(self, names: list[str], first: int) -> list[tuple[int, str]]:
        """Return the bases of the segments that are there, and their names if compaction has made them."""
        plain: list[int] = []
        compacted: list[tuple[int, int, int, str]] = []
        for name in names:
            if name.endswith(_SEGMENT):
                stem = name.removesuffix(_SEGMENT)
                base, *more = map(int, stem.split("-"))
                if more:
                    compacted.append((more[1], base, more[0], stem))
                else:
                    plain.append(base)
        found: list[tuple[int, str]] = []
        replaced: list[range] = []
        for generation, base, stop, stem in sorted(compacted, reverse=True):
            self._generation = max(self._generation, generation)
            if not any(base in each for each in replaced):
                replaced.append(range(base, stop))
                found.append((base, stem))
        found += [(base, "") for base in plain if not any(base in each for each in replaced)]
        return sorted(each for each in found if each[0] >= first)

    def _remove_remains(self, names: list[str], found: list[tuple[int, str]]) -> None:
        """Remove what a crash has left: segments that were being trimmed or had been compacted, those that compaction had
        not finished, and indexes whose segment never came to be.

        None may come back when `first`, or a segment of that name, is written again.
        """
        known = {
            self._path(stem or base, suffix).name for base, stem in found for suffix in (_SEGMENT, _INDEX)
        }
        remains = [name for name in names if name.endswith((_SEGMENT, _INDEX, NEW)) and name not in known]
        for name in remains:
            self._files.remove(self.directory / name)
        if remains:
            self._files.sync_names(self.directory)

    def _sealed(self, base: int, stem: str = "") -> Segment:
        where = stem or base
        path = self._path(where, _INDEX)
        try:
            entries = index.decode(self._files.read(path, 0, index.ENTRY_BYTES))
            entries += index.decode(
                self._files.read(path, self._files.size(path) - index.ENTRY_BYTES, index.ENTRY_BYTES)
            )
        except (OSError, ValueError):
            entries = []
        if len(entries) == 2 and entries[1].kind == index.SEAL:
            seal = entries[1]
            return Segment(base, seal.position, seal.offset, entries[0].time_ms, seal.time_ms, stem)
        logger.warning("the index of %s is damaged, and made anew", self._path(where, _SEGMENT))
        return self._index_anew(base, stem)

    def _index_anew(self, base: int, stem: str) -> Segment:
        """Of a sealed segment. Heads are enough for that."""
        where = stem or base
        size = self._files.size(self._path(where, _SEGMENT))
        found = list(self._heads(where, 0, base, size, whole=False))
        entries = _spaced([(position, head) for position, head, _ in found], -1)
        last = found[-1][1] if found else None
        stop, last_ms = (last.stop, last.time_ms) if last is not None else (base, 0)
        entries.append(Entry(stop, last_ms, size, index.SEAL))
        self._write_index(where, entries)
        return Segment(base, size, stop, found[0][1].time_ms if found else 0, last_ms, stem)

    def _write_index(self, where: Where, entries: list[Entry]) -> None:
        path = self._path(where, _INDEX)
        data = b"".join(map(index.encode, entries))
        self._files.write(path, 0, [data])
        self._files.cut(path, len(data))

    def _open_last(
        self, base: int, stem: str, stored_stop: int, lost: list[Lost], *, mendable: bool = False
    ) -> tuple[Segment, Writing]:
        if stem:
            # What came behind it is missing.
            return self._sealed(base, stem), Writing()
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
        if expected >= stored_stop or mendable:
            if end < size:
                why = "were not synced" if expected >= stored_stop else "are damaged"
                logger.info("%s: %d bytes that %s are cut off", path, size - end, why)
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
        self, where: Where, position: int, expected: int, size: int, *, whole: bool
    ) -> Iterator[tuple[int, Head, bool]]:
        """Yield position and head of each batch from here on, and whether the batch is sound (if `whole`).

        Where a head is damaged the next sound one is looked for.
        """
        window = _Window(self._files, self._path(where, _SEGMENT), size)
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
            self._files.sync_names(self.directory)
        self._writing, self.stop = writing, stored[-1].stop
        self.segments = tuple(segments)
        if self._names is not None:
            self._names.add([Named(each.stop, each.time_ms, each.names) for each in stored])

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
            self._files.write(self._path(self.stop, _SEGMENT), 0, [b""])
            self._files.cut(self._path(self.stop, _SEGMENT), 0)
            self._writing = Writing(sealed=False)
            self.segments = (Segment(self.stop, 0, self.stop, 0, 0),)
        else:
            self.segments = segments[count:]
        self.first_kept = self.segments[0].base
        # The disk may forget the files in any order.
        noted = self._note(_FIRST, self.segments[0].base)
        for segment in segments[:count]:
            self._remove(segment.where)
            if not noted:
                self._files.sync_names(self.directory)
        if noted:
            self._files.sync_names(self.directory)

    def _note(self, name: str, offset: int) -> bool:
        """Note an offset, such as that of the first segment; return False where the disk has no room for that."""
        noted = offset.to_bytes(8, "big")
        try:
            self._files.write(self.directory / name, 0, [noted, crc32(noted).to_bytes(4, "big")])
            self._files.sync(self.directory / name)
            self._files.sync_names(self.directory)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        return True

    def _remove(self, where: Where) -> None:
        self._files.remove(self._path(where, _INDEX))
        self._files.remove(self._path(where, _SEGMENT))

    def _first(self) -> int:
        return self._noted(_FIRST)

    def _noted(self, name: str) -> int:
        """Return what was noted; 0 if nothing was."""
        try:
            data = self._files.read(self.directory / name, 0, _NOTE.size)
        except FileNotFoundError:
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
            self._files.remove_all(self.directory)

    # -- from other nodes ------------------------------------------------------------------------------------------

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
        self._files.make(self.directory)
        self._files.write(self._path(offset, _SEGMENT), 0, [b""])
        self._files.cut(self._path(offset, _SEGMENT), 0)
        self._writing = Writing(sealed=False)
        self.segments, self.stop = (Segment(offset, 0, offset, 0, 0),), offset
        self.first_kept = offset
        self._files.sync_names(self.directory)
        self._note(_FIRST, offset)
        own = self._path(offset, _SEGMENT).name
        for name in self._files.names(self.directory):
            if name.endswith((_SEGMENT, _INDEX)) and name != own:
                self._files.remove(self.directory / name)
        self._files.sync_names(self.directory)

    def skip_to(self, offset: int) -> None:
        """No node has the messages up to this offset any more: they stay a hole."""
        self._writing = self._writing._replace(sealed=True)
        self.stop = max(self.stop, offset)

    def mend(self, data: bytes, low: int = -1, stop: int = -1) -> None:
        """Put whole neighbouring batches, which another node has sent, where they are damaged or missing.

        `low` and `stop`: what is damaged. Without it, that is what the batches have. Raises Damaged, OSError.
        """
        if self._ended:
            return
        heads = list(heads_of(data))
        base, end = heads[0][1].base, heads[-1][1].stop
        low, stop = (base, end) if low < 0 else (low, stop)
        segment = self._segment_of(low)
        if segment is None or segment.base > low:
            self._insert(data, heads, low)
            return
        try:
            place = self._place_of(segment, base, end) if base >= segment.base else None
            if place is not None and place[1] - place[0] == len(data):
                path = self._path(segment.where, _SEGMENT)
                self._files.write(path, place[0], [data])
                self._files.sync(path)
                return
            # This node has other batches there: it has compressed, or compacted, in another way.
            self._split(segment, low, stop)
        except Ended:
            return
        except FileNotFoundError:
            if segment is self.segments[-1]:
                self._writing = Writing()
            self.segments = tuple(each for each in self.segments if each is not segment)
            self._remove(segment.where)
        self._insert(data, heads, low)

    def _split(self, segment: Segment, low: int, stop: int) -> None:
        """Put what a segment has before and behind a damage into segments of their own. Raises Ended, OSError."""
        end = min(segment.stop, self._behind(segment))
        sound = [
            (at, head)
            for at, head, is_sound in self._heads(segment.where, 0, segment.base, segment.size, whole=True)
            if is_sound
        ]
        before = [each for each in sound if each[1].base < low]
        behind = [each for each in sound if each[1].stop > stop and each[1].stop <= end]
        kept: list[Segment] = []
        if before:
            kept.append(self._copied(segment, before, segment.base, min(before[-1][1].stop, low)))
        if behind:
            kept.append(self._copied(segment, behind, max(behind[0][1].base, stop), behind[-1][1].stop))
        # The first one comes last: it begins where the old one does, and so a start takes it for what it replaces.
        for each in reversed(kept):
            self._files.rename(self._path(each.stem, NEW), self._path(each.stem, _SEGMENT).name)
            self._files.sync_names(self.directory)
        at = self.segments.index(segment)
        if segment is self.segments[-1]:
            self._writing = Writing()
        self.segments = (*self.segments[:at], *kept, *self.segments[at + 1 :])
        self._remove(segment.where)
        self._files.sync_names(self.directory)

    def _copied(self, segment: Segment, found: list[tuple[int, Head]], low: int, stop: int) -> Segment:
        """Write what these batches of a segment have from one offset up to another into one that is to be put in its place."""
        new = self.rewritten(low, stop)
        window = _Window(self._files, self._path(segment.where, _SEGMENT), segment.size)
        parts: list[list[bytes]] = []
        size = 0
        for at, head in found:
            part = within(bytes(window.take(at, head.size)), [(0, head)], low, stop)
            parts.append([part])
            size += len(part)
            if size >= READ_BYTES:
                new.append(parts)
                parts, size = [], 0
        if parts:
            new.append(parts)
        return new.finish()

    def _place_of(self, segment: Segment, base: int, stop: int) -> tuple[int, int] | None:
        """Return where the batches with just these offsets begin and end in a segment; None if others are there."""
        start = self._position(segment, max(base - 1, segment.base))
        reached = -1 if start else segment.base
        for at, head, _ in self._heads(segment.where, start, segment.base, segment.size, whole=False):
            if head.stop <= base:
                start, reached = at + head.size, head.stop
            elif head.base >= stop:
                return (start, at) if reached == base and head.base == stop else None
        return (start, segment.size) if reached == base and segment.stop == stop else None

    def _insert(self, data: bytes, heads: list[tuple[int, Head]], wanted: int) -> None:
        """Write a segment that is missing between others, at this offset, or go on with one that was begun."""
        segments = list(self.segments)
        at = bisect_right(segments, wanted, key=attrgetter("base"))
        before = segments[at - 1] if at else None
        data = within(
            data,
            heads,
            before.stop if before is not None else 0,
            segments[at].base if at < len(segments) else heads[-1][1].stop,
        )
        heads = list(heads_of(data))
        if not heads:
            return
        low, stop = heads[0][1].base, heads[-1][1].stop
        if before is not None and not before.stem and before.base in self._mended and before.stop == low:
            base, size, first_ms = before.base, before.size, before.first_ms
            at -= 1
            del segments[at]
        else:
            base, size, first_ms = low, 0, heads[0][1].time_ms
        known = self._mended.setdefault(base, [])
        self._files.make(self.directory)
        path = self._path(base, _SEGMENT)
        self._files.write(path, size, [data])
        self._files.sync(path)
        del known[bisect_right(known, size - 1, key=itemgetter(0)) :]
        known += [(size + position, head) for position, head in heads]
        last_ms = heads[-1][1].time_ms
        size += len(data)
        self._write_index(base, [*_spaced(known, -1), Entry(stop, last_ms, size, index.SEAL)])
        self._files.sync_names(self.directory)
        segments.insert(at, Segment(base, size, stop, first_ms, last_ms))
        self.segments = tuple(segments)

    def read_raw(self, offset: int) -> Raw:
        """Return whole batches from the one with this offset on, within one segment; nothing at the end of the log."""
        while True:
            segment = self._segment_of(offset)
            if segment is None:
                return Raw(b"", offset)
            if segment.base > offset:
                return Raw(b"", segment.base, Lost(offset, segment.base, "no segment has them"))
            try:
                return self._raw(segment, offset)
            except FileNotFoundError:
                if segment in self.segments:
                    path = self._path(segment.where, _SEGMENT)
                    return Raw(b"", offset, Lost(offset, segment.stop, f"{path} is missing"))
                # It was deleted by its age or size meanwhile, or compacted.

    def _raw(self, segment: Segment, offset: int) -> Raw:
        """Raises FileNotFoundError."""
        path = self._path(segment.where, _SEGMENT)
        start = self._position(segment, offset)
        window = _Window(self._files, path, segment.size)
        parts: list[bytes] = []
        size, expected = 0, offset
        for at, head, sound in self._heads(segment.where, start, segment.base, segment.size, whole=True):
            if head.stop <= offset:
                continue
            hole = head.base > expected
            if hole or not sound:
                low, high = (expected, head.base) if hole else (max(head.base, offset), head.stop)
                return Raw(
                    b"".join(parts), expected, None if parts else Lost(low, high, f"{path} is damaged")
                )
            if size and size + head.size > READ_BYTES:
                break
            parts.append(bytes(window.take(at, head.size)))
            size += head.size
            expected = head.stop
        if not parts:
            return Raw(b"", offset, Lost(offset, segment.stop, f"{path} is damaged to its end"))
        return Raw(b"".join(parts), expected)

    def abandon(self) -> None:
        """Another log has this directory from now on: write nothing any more. Called by the loop."""
        self._ended = True

    # -- compaction: see compaction.py -----------------------------------------------------------------------------

    @property
    def sealed(self) -> tuple[Segment, ...]:
        """The segments that do not change any more."""
        return self.segments[:-1]

    def rewritten(self, base: int, stop: int) -> Rewritten:
        """Return a new segment for these offsets, which is to be written by another thread and then `replace`d."""
        self._generation += 1
        return Rewritten(self, f"{base:020}-{stop:020}-{self._generation:06}", base, stop)

    def write_new(self, call: Callable[[Files], T]) -> T:
        """Have another thread write. Raises Ended if nobody wants it any more, OSError."""
        with self._deleting:
            if self._ended:
                raise Ended
            return call(self._files)

    def replace(self, old: Sequence[Segment], new: Segment) -> bool:
        """Put a segment that was written in the place of others. Return whether they were still there. Raises OSError."""
        if self._ended:
            return False
        segments, path = self.segments, self._path(new.stem, NEW)
        if any(each not in segments for each in old):
            # Retention was faster.
            self._files.remove(path)
            self._files.remove(self._path(new.stem, _INDEX))
            return False
        if self._names is not None:
            # Compaction leaves no names.
            self._names.cover(new.stop)
        if path.name in self._files.names(self.directory):
            self._files.rename(path, self._path(new.stem, _SEGMENT).name)
        self._files.sync_names(self.directory)
        at = segments.index(old[0])
        self.segments = (*segments[:at], new, *segments[at + len(old) :])
        for each in old:
            self._remove(each.where)
        return True

    def compacted(self, stop: int) -> None:
        """Everything up to this offset was compacted. Raises OSError."""
        if not self._ended:
            self._note(_CLEAN, stop)
            self.clean_stop = stop

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
            if place is None or (place.base, place.stem, place.offset) != (
                segment.base,
                segment.stem,
                offset,
            ):
                place = Place(segment.base, self._position(segment, offset), offset, segment.stem)
            path = self._path(segment.where, _SEGMENT)
            try:
                reading = _Reading(self._files, path, segment, place, wanted)
                found = reading.run(partial(self._after, segment))
            except FileNotFoundError:
                if segment not in self.segments:
                    # It was deleted by its age or size meanwhile, or compacted.
                    place = None
                    continue
                stop = self._behind(segment)
                lost.append(Lost(offset, stop, f"{path} is missing"))
                offset = stop
                continue
            lost += found.lost
            if found.batches or found.place.position < segment.size:
                return Read(found.batches, found.place, lost)
            offset = max(segment.stop, self._behind(segment))
            if found.place.offset < offset:
                why = f"{path} is damaged to its end"
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
        """Return the offset of the first batch at or after this time; the end of the log if there is none.

        Where the segment is missing that is its first offset: who reads there finds the damage.
        """
        while True:
            for segment in self.segments:
                if segment.size and segment.last_ms >= time_ms:
                    break
            else:
                return self.stop
            if segment.first_ms >= time_ms:
                return segment.base
            try:
                return self._find_in(segment, time_ms)
            except FileNotFoundError:
                if segment in self.segments:
                    return segment.base

    def _find_in(self, segment: Segment, time_ms: int) -> int:
        """Raises FileNotFoundError."""
        position = self._search(segment.where, lambda entries: index.position_before(entries, time_ms))
        for _, head, _ in self._heads(segment.where, position, segment.base, segment.size, whole=False):
            if head.time_ms >= time_ms:
                return head.base
        return self._behind(segment)

    def time_of(self, offset: int) -> int | None:
        """Return about when the message with this offset came, or the first one behind it; None behind the end.

        It came when this says or, in a large segment, a little later: not every batch is in the index.
        """
        segment = self._segment_of(offset)
        if segment is None or not segment.size:
            return None
        if offset <= segment.base:
            return segment.first_ms
        return self._search(segment.where, lambda entries: index.time_at(entries, offset)) or segment.first_ms

    def last(self) -> int:
        """Return the offset of the last batch; the end of the log if there is none. See `find`."""
        while True:
            segment = next((each for each in reversed(self.segments) if each.size), None)
            if segment is None:
                return self.stop
            try:
                return self._last_in(segment)
            except FileNotFoundError:
                if segment in self.segments:
                    return segment.base

    def _last_in(self, segment: Segment) -> int:
        """Raises FileNotFoundError."""
        position = self._search(segment.where, index.last_position)
        found = segment.base
        for _, head, _ in self._heads(segment.where, position, segment.base, segment.size, whole=False):
            if head.shapes:
                found = head.base
        return found

    def _position(self, segment: Segment, offset: int) -> int:
        if offset == segment.base:
            return 0
        return self._search(segment.where, lambda entries: index.position_of(entries, offset))

    def _after(self, segment: Segment, position: int) -> int | None:
        return index.position_after(self._entries(segment.where), position)

    def _search(self, where: Where, find: Callable[[Sequence[Entry]], int]) -> int:
        """Return what is found in an index without decoding all of it, which takes 20 ms for 500 MB."""
        data = self._index(where)
        try:
            return find(index.Entries(data))
        except index.DamagedEntry:
            return find(index.decode(data))

    def _entries(self, where: Where) -> list[Entry]:
        return index.decode(self._index(where))

    def _index(self, where: Where) -> bytes:
        path = self._path(where, _INDEX)
        try:
            return self._files.read(path, 0, self._files.size(path))
        except OSError:
            return b""

    def _path(self, where: Where, suffix: str) -> Path:
        return self.directory / (f"{where:020}{suffix}" if isinstance(where, int) else f"{where}{suffix}")


class Rewritten:
    """A segment that compaction writes, beside the others: they stay as they are until it takes their place."""

    def __init__(self, log: StreamLog, stem: str, base: int, stop: int) -> None:
        self._log = log
        self._stem = stem
        self._base, self._stop = base, stop
        self._size = self._first_ms = self._last_ms = 0
        self._heads: list[tuple[int, Head]] = []

    def append(self, parts: Sequence[Sequence[bytes]]) -> None:
        """Write batches behind the others. Raises Ended, OSError."""
        path = self._log._path(self._stem, NEW)
        position = self._size
        for each in parts:
            head = batches.decode_head(each[0])
            if not self._heads:
                self._first_ms = head.time_ms
            self._last_ms = head.time_ms
            self._heads.append((self._size, head))
            self._size += head.size
        self._log.write_new(
            lambda files: files.write(path, position, [part for each in parts for part in each])
        )

    def finish(self) -> Segment:
        """Have it on the disk. Raises Ended, OSError."""
        log = self._log
        entries = _spaced(self._heads, -1)
        entries.append(Entry(self._stop, self._last_ms, self._size, index.SEAL))

        def write(files: Files) -> None:
            log._write_index(self._stem, entries)
            files.sync(log._path(self._stem, _INDEX))
            files.sync(log._path(self._stem, NEW))

        log.write_new(write)
        return Segment(self._base, self._size, self._stop, self._first_ms, self._last_ms, self._stem)

    def drop(self) -> None:
        """Remove what was written of it. Raises Ended, OSError."""
        for suffix in (NEW, _INDEX):
            path = self._log._path(self._stem, suffix)
            self._log.write_new(lambda files, path=path: files.remove(path))  # type: ignore[misc]


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
                taken = self._take(head)
                size += taken
                passed += not taken
                self._offset = head.stop
            self._position += head.size
        segment = self._segment
        return Read(self._found, Place(segment.base, self._position, self._offset, segment.stem), self._lost)

    def _jump(self, position: int | None, why: str) -> bool:
        """Go on behind a damage; the hole is told with the next batch that is there."""
        logger.debug("%s at %d: %s", self._path, self._position, why)
        self._position = self._segment.size if position is None else position
        return position is not None

    def _take(self, head: Head) -> int:
        """Return how much memory the batch takes; 0 if it is not wanted."""
        start = self._position + HEAD_BYTES
        if not head.shapes:
            # All of it was compacted away.
            return 0
        try:
            wanted = self._wanted
            if wanted is not None:
                values = batches.decode_values(head, self._window.take(start, head.meta_bytes, 0))
                if not batches.matches(values, wanted.values, unfiltered=wanted.unfiltered):
                    return 0
            batch = batches.decode(head, self._window.take(self._position, head.size))
        except Damaged as error:
            self._lost.append(Lost(max(head.base, self._offset), head.stop, f"{self._path}: {error}"))
            return 0
        self._found.append(batch)
        return batch.size


def _compressed(stored: Stored, codec: str) -> Stored:
    parts = batches.compressed(stored.parts, codec)
    return stored._replace(parts=parts, size=sum(map(len, parts)))


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


def _spaced(heads: Sequence[tuple[int, Head]], indexed: int) -> list[Entry]:
    """Return index entries for batches behind the one at `indexed`, as often as there has to be one."""
    entries: list[Entry] = []
    for position, head in heads:
        if indexed < 0 or position - indexed >= index.SPACING_BYTES:
            entries.append(Entry(head.base, head.time_ms, position))
            indexed = position
    return entries
