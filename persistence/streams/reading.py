"""Reads a stream's segments, while another thread writes them: batches from an offset on, and the offset of a
time.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Batch, Damaged, Head
from persistence.streams.files import Files
from persistence.streams.indexed import IndexedSegments
from persistence.streams.segment import READ_BYTES, SEGMENT, Lost, Raw, Read, Segment, SegmentPlace, Wanted
from persistence.streams.segment_files import FileWindow

logger = logging.getLogger("mqd.streams")

#: Maximum number of heads without a matching filter value in one read: other reads wait for the thread.
PASSED_MAX = 256
#: Bytes that a seek reads at once, at most and at least. Entries of the index are up to 64 KiB and a batch
#: apart, and a time may be in the part before the wanted one.
SEEK_BYTES_MAX = 3 * READ_BYTES
SEEK_BYTES_MIN = 4096
#: Batches that are a smaller part of the read bytes are copied: otherwise each of them would keep all read
#: bytes in memory.
KEPT_MIN = 0.75


class SegmentReader(IndexedSegments):
    """Reads the segments in `segments`."""

    def __init__(self, files: Files, directory: Path) -> None:
        super().__init__(files, directory)
        #: The offset after the last message on this disk.
        self.stop = 0

    def read(
        self,
        offset: int,
        place: SegmentPlace | None = None,
        wanted: Wanted | None = None,
        *,
        undecoded: bool = False,
    ) -> Read:
        """Read some batches, beginning with the one that has this offset or else with the first one after it.
        With `undecoded` they are StoredBatches.

        Returns nothing at the end of the log, or if no filter matched for a long part; `place` says where to
        continue.
        """
        lost: list[Lost] = []
        read_bytes = 0
        while True:
            segment = self.segment_of(offset)
            if segment is None:
                return Read([], SegmentPlace(-1, 0, offset), lost, read_bytes)
            if offset < segment.base:
                offset, place = segment.base, None
            path = self.path(segment.where, SEGMENT)
            seek_bytes = 0
            try:
                if place is None or (place.base, place.stem, place.offset) != (
                    segment.base,
                    segment.stem,
                    offset,
                ):
                    span = self.span(segment, offset)
                    place = SegmentPlace(segment.base, span.start, offset, segment.stem)
                    end = min(span.start + READ_BYTES + index.SPACING_BYTES, segment.size)
                    seek_bytes = _bytes_of(span.start, span.end or end)
                reading = _Reading(self.files, path, segment, place, wanted, seek_bytes, undecoded=undecoded)
                found = reading.run(self.next_head)
            except FileNotFoundError:
                if segment not in self.segments:
                    # It was deleted by its age or size meanwhile, or compacted.
                    place = None
                    continue
                stop = self.behind(segment)
                lost += self.accepted([Lost(offset, stop, f"{path} is missing")])
                offset = stop
                continue
            if found.lost:
                lost += self.accepted(found.lost)
            read_bytes += found.read_bytes
            if found.batches or found.place.position < segment.size:
                return Read(found.batches, found.place, lost, read_bytes)
            if segment not in self.segments:
                # Compaction has merged it with others meanwhile: the next messages are in the same segment
                # now.
                offset, place = found.place.offset, None
                continue
            offset = max(segment.stop, self.behind(segment))
            if found.place.offset < offset:
                why = f"{path} is damaged to its end"
                lost += self.accepted([Lost(found.place.offset, offset, why)])

    def accepted(self, lost: list[Lost]) -> list[Lost]:
        """Return what a read has found lost, before it goes on behind that; a store may be read again."""
        return lost

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment with this offset or else the next one; None at the end."""
        segments = self.segments
        at = max(bisect_right(segments, offset, key=attrgetter("base")) - 1, 0)
        for segment in segments[at:]:
            if segment.stop > offset:
                return segment
        return None

    def behind(self, segment: Segment) -> int:
        """Return the offset at which the next segment begins."""
        for each in self.segments:
            if each.base > segment.base:
                return each.base
        return segment.stop

    def find(self, time_ms: int) -> int:
        """Return the offset of the first batch at or after this time; the end of the log if there is none.

        If the batch, or its segment, is damaged or missing, this is its first offset: a read from there finds
        the damage.
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
        span = self.search(segment, lambda entries: index.span_before(entries, time_ms))
        # The found batch is read next: reading it together with those before it means one wait for a slow
        # disk.
        ahead = _bytes_of(span.start, span.end_after or segment.size)
        heads = self.heads(segment.where, span.start, segment.base, segment.size, whole=False, ahead=ahead)
        reached = max(span.offset, segment.base)
        for _, head, _ in heads:
            if head.time_ms >= time_ms:
                # An unreadable batch before it may be the first one.
                return min(reached, head.base)
            reached = head.stop
        return reached if reached < segment.stop else self.behind(segment)

    def time_of(self, offset: int) -> int | None:
        """Return approximately when the message with this offset came, or the first one after it; None after
        the end.

        In a large segment the message may have come a little later: not every batch is in the index.
        """
        segment = self.segment_of(offset)
        if segment is None or not segment.size:
            return None
        if offset <= segment.base:
            return segment.first_ms
        return self._time_in(segment, offset) or segment.first_ms

    def _time_in(self, segment: Segment, offset: int) -> int:
        try:
            return self.search(segment, lambda entries: index.time_at(entries, offset))
        except FileNotFoundError:
            return 0

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
        position = self.search(segment, index.last_position)
        found = segment.base
        for _, head, _ in self.heads(segment.where, position, segment.base, segment.size, whole=False):
            if head.shapes:
                found = head.base
        return found

    # -- for other nodes -------------------------------------------------------------------------------------

    def read_raw(self, offset: int) -> Raw:
        """Return whole batches from the one with this offset on, within one segment; nothing at the end of
        the log.
        """
        while True:
            segment = self.segment_of(offset)
            if segment is None:
                return Raw(b"", offset)
            if segment.base > offset:
                return Raw(b"", segment.base, Lost(offset, segment.base, "no segment has them"))
            try:
                return self._raw(segment, offset)
            except FileNotFoundError:
                if segment in self.segments:
                    path = self.path(segment.where, SEGMENT)
                    return Raw(b"", offset, Lost(offset, segment.stop, f"{path} is missing"))
                # It was deleted by its age or size meanwhile, or compacted.

    def _raw(self, segment: Segment, offset: int) -> Raw:
        """Raises FileNotFoundError."""
        path = self.path(segment.where, SEGMENT)
        start = self.position(segment, offset)
        window = FileWindow(self.files, path, segment.size)
        parts: list[bytes] = []
        size, expected = 0, offset
        for at, head, sound in self.heads(segment.where, start, segment.base, segment.size, whole=True):
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


class _Reading:
    """One read within one segment."""

    def __init__(
        self,
        files: Files,
        path: Path,
        segment: Segment,
        place: SegmentPlace,
        wanted: Wanted | None,
        seek_bytes: int = 0,
        *,
        undecoded: bool = False,
    ) -> None:
        """`seek_bytes`: read so many bytes at once; the first batch is among them, and the batches in them
        are enough.
        """
        self._path = path
        self._window = FileWindow(files, path, segment.size)
        self._segment = segment
        self._position, self._offset = place.position, place.offset
        #: The next batch has this offset or a later one.
        self._expected = segment.base
        self._wanted = wanted
        self._undecoded = undecoded
        self._seek_bytes = seek_bytes if wanted is None else 0
        self._found: list[Batch] = []
        self._lost: list[Lost] = []

    def run(self, next_head: Callable[[FileWindow, int, int, int], int]) -> Read:
        """`next_head` finds the next batch after damage; see SegmentFiles.next_head."""
        size = passed = 0
        # A batch that no filter matches need not be read.
        ahead = READ_BYTES + HEAD_BYTES if self._wanted is None else HEAD_BYTES + 4096
        ahead = self._seek_bytes or ahead
        while self._position < self._segment.size and size < READ_BYTES and passed < PASSED_MAX:
            if size and self._wanted is None and not self._window.has(self._position, HEAD_BYTES):
                # That would be another wait for the disk, and keep all read bytes in memory.
                break
            try:
                head = batches.decode_head(self._window.take(self._position, HEAD_BYTES, ahead))
                if head.stop > self._segment.stop:
                    raise Damaged("a batch reaches behind its segment")
            except Damaged as error:
                logger.debug("%s at %d: %s", self._path, self._position, error)
                found = next_head(self._window, self._position + 1, self._expected, self._segment.size)
                if found < 0:
                    self._position = self._segment.size
                    break
                # The gap is reported with this batch.
                self._position = found
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
            self._expected = head.stop
        self._keep_no_more(size)
        segment = self._segment
        place = SegmentPlace(segment.base, self._position, self._offset, segment.stem)
        return Read(self._found, place, self._lost, self._window.read_bytes)

    def _keep_no_more(self, size: int) -> None:
        """Make sure that batches of `size` bytes keep about as much memory, because they count as that: they
        are views of all read bytes.
        """
        if size < self._window.read_bytes * KEPT_MIN:
            for batch in self._found:
                batch.items = bytes(batch.items)

    def _take(self, head: Head) -> int:
        """Return how much memory the batch takes; 0 if it is not wanted."""
        start = self._position + HEAD_BYTES
        if not head.shapes:
            # All its messages were compacted away.
            return 0
        try:
            wanted = self._wanted
            if wanted is not None:
                values = batches.decode_values(head, self._window.take(start, head.meta_bytes, 0))
                if not batches.matches(values, wanted.values, unfiltered=wanted.unfiltered):
                    return 0
            data = self._window.take(self._position, head.size)
            batch = batches.stored(head, data) if self._undecoded else batches.decode(head, data)
        except Damaged as error:
            self._lost.append(Lost(max(head.base, self._offset), head.stop, f"{self._path}: {error}"))
            return 0
        self._found.append(batch)
        return batch.size


def _bytes_of(start: int, end: int) -> int:
    """Return how many bytes to read for a part of the segment; its end is unknown if `end` is not after
    `start`.
    """
    return max(min(end - start, SEEK_BYTES_MAX), SEEK_BYTES_MIN) if end > start else READ_BYTES
