"""Inserts batches from another node where segments are damaged or missing. Called by the writing thread."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from persistence.streams.batch import Head
from persistence.streams.cutting import within
from persistence.streams.index import SEAL, Entry
from persistence.streams.segment import (
    NEW,
    READ_BYTES,
    SEGMENT,
    Ended,
    Segment,
    Writing,
    heads_of,
    spaced,
)
from persistence.streams.segment_files import FileWindow

if TYPE_CHECKING:
    from persistence.streams.log import StreamLog


class Mending:
    """Each log has one."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        #: Segments that were created since the start, and the heads of their batches.
        self._mended: dict[int, list[tuple[int, Head]]] = {}

    def mend(self, data: bytes, low: int = -1, stop: int = -1) -> None:
        """Insert whole neighbouring batches, which another node has sent, where they are damaged or missing.

        `low` and `stop` are the damaged range; without them it is the range of the batches. Raises Damaged,
        OSError.
        """
        heads = list(heads_of(data))
        base, end = heads[0][1].base, heads[-1][1].stop
        if end <= self._log.first_kept:
            # Retention was faster.
            return
        low, stop = (base, end) if low < 0 else (low, stop)
        segment = self._log.segment_of(low)
        if segment is None or segment.base > low:
            self._insert(data, heads, low)
            return
        try:
            place = self._place_of(segment, base, end) if base >= segment.base else None
            if place is not None and place[1] - place[0] == len(data):
                path = self._log.path(segment.where, SEGMENT)
                self._log.files.write(path, place[0], [data])
                self._log.files.sync(path)
                return
            # This node has different batches there: it has compressed or compacted in another way.
            self._split(segment, low, stop)
        except Ended:
            return
        except FileNotFoundError:
            if segment is self._log.segments[-1]:
                self._log.writing = Writing()
            self._log.segments = tuple(each for each in self._log.segments if each is not segment)
            self._log.remove(segment.where)
        self._insert(data, heads, low)

    def _split(self, segment: Segment, low: int, stop: int) -> None:
        """Put the parts of a segment before and after the damage into separate segments. Raises Ended,
        OSError.
        """
        end = min(segment.stop, self._log.behind(segment))
        sound = [
            (at, head)
            for at, head, is_sound in self._log.heads(
                segment.where, 0, segment.base, segment.size, whole=True
            )
            if is_sound
        ]
        before = [each for each in sound if each[1].base < low]
        behind = [each for each in sound if each[1].stop > stop and each[1].stop <= end]
        kept: list[Segment] = []
        if before:
            kept.append(self._copied(segment, before, segment.base, min(before[-1][1].stop, low)))
        if behind:
            kept.append(self._copied(segment, behind, max(behind[0][1].base, stop), behind[-1][1].stop))
        # The first one comes last: it begins at the same offset as the old one, so a start treats it as the
        # replacement.
        for each in reversed(kept):
            self._log.files.rename(self._log.path(each.stem, NEW), self._log.path(each.stem, SEGMENT).name)
            self._log.files.sync_names(self._log.directory)
        at = self._log.segments.index(segment)
        if segment is self._log.segments[-1]:
            self._log.writing = Writing()
        self._log.segments = (*self._log.segments[:at], *kept, *self._log.segments[at + 1 :])
        self._log.remove(segment.where)
        self._log.files.sync_names(self._log.directory)

    def _copied(self, segment: Segment, found: list[tuple[int, Head]], low: int, stop: int) -> Segment:
        """Write the messages of these batches from one offset up to another into a segment that will replace
        theirs.
        """
        new = self._log.rewritten(low, stop)
        window = FileWindow(self._log.files, self._log.path(segment.where, SEGMENT), segment.size)
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
        """Return the position in a segment where the batches with exactly these offsets begin and end; None
        if the segment has other batches there.
        """
        start = self._log.position(segment, max(base - 1, segment.base))
        reached = -1 if start else segment.base
        for at, head, _ in self._log.heads(segment.where, start, segment.base, segment.size, whole=False):
            if head.stop <= base:
                start, reached = at + head.size, head.stop
            elif head.base >= stop:
                return (start, at) if reached == base and head.base == stop else None
        return (start, segment.size) if reached == base and segment.stop == stop else None

    def _insert(self, data: bytes, heads: list[tuple[int, Head]], wanted: int) -> None:
        """Write a missing segment between others, at this offset, or continue one that was begun."""
        segments = list(self._log.segments)
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
        self._log.files.make(self._log.directory)
        path = self._log.path(base, SEGMENT)
        self._log.files.write(path, size, [data])
        self._log.files.sync(path)
        del known[bisect_right(known, size - 1, key=itemgetter(0)) :]
        known += [(size + position, head) for position, head in heads]
        last_ms = heads[-1][1].time_ms
        size += len(data)
        self._log.write_index(base, [*spaced(known, -1), Entry(stop, last_ms, size, SEAL)])
        self._log.files.sync_names(self._log.directory)
        segments.insert(at, Segment(base, size, stop, first_ms, last_ms))
        self._log.segments = tuple(segments)
