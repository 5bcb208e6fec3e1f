"""The segments of a log, and searches in their indexes. A search reads at most one index.

A start does not read the indexes of sealed segments. So the first search notices that an index is missing or
truncated; it then builds the index again from the heads of the segment's batches.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TypeVar

from persistence.streams import index
from persistence.streams.files import Files
from persistence.streams.index import Entry, Span
from persistence.streams.segment import SEGMENT, Segment
from persistence.streams.segment_files import SegmentFiles

logger = logging.getLogger("mqd.streams")

T = TypeVar("T")


class IndexedSegments(SegmentFiles):
    """The segments in `segments` are on disk. The writing thread replaces the tuple as a whole."""

    def __init__(self, files: Files, directory: Path) -> None:
        super().__init__(files, directory)
        self.segments: tuple[Segment, ...] = ()
        #: Held while another thread than the writing one writes files, or while files are deleted.
        self._deleting = Lock()

    def span(self, segment: Segment, offset: int) -> Span:
        """Return the part with the batch that has this offset, or with the last batch before it. Raises
        FileNotFoundError.
        """
        if offset == segment.base:
            return Span(0)
        return self.search(segment, lambda entries: index.span_of(entries, offset))

    def position(self, segment: Segment, offset: int) -> int:
        """Return a position from which a forward search finds the batch with this offset. Raises
        FileNotFoundError.
        """
        return self.span(segment, offset).start

    def search(self, segment: Segment, find: Callable[[Sequence[Entry]], T]) -> T:
        """Search an index without decoding all of it, which takes 20 ms for 500 MB.

        Raises FileNotFoundError if neither the segment nor its index is there.
        """
        data = self._whole_index(segment)
        try:
            return find(index.Entries(data))
        except index.DamagedEntry:
            return find(index.decode(data))

    def _whole_index(self, segment: Segment) -> bytes:
        data = self.index_bytes(segment.where)
        if not self._is_sealed(segment) or index.is_whole(data, segment.stop, segment.size):
            return data
        logger.warning("the index of %s is damaged and was rebuilt", self.path(segment.where, SEGMENT))
        entries, _ = self.entries_anew(segment.where, segment.base, segment.size)
        entries[-1] = Entry(segment.stop, segment.last_ms, segment.size, index.SEAL)
        self._keep(segment, entries)
        return b"".join(map(index.encode, entries))

    def _is_sealed(self, segment: Segment) -> bool:
        """Return whether the segment is unchanged and another one follows: then neither the segment nor its
        index changes any more.
        """
        segments = self.segments
        at = bisect_right(segments, segment.base, key=attrgetter("base"))
        return 0 < at < len(segments) and segments[at - 1] == segment

    def _keep(self, segment: Segment, entries: list[Entry]) -> None:
        """Write a rebuilt index; if that fails, the next search builds it again."""
        with self._deleting:
            # A thread that deletes a segment removes it from `segments` first.
            if self._is_sealed(segment):
                try:
                    self.write_index(segment.where, entries)
                except OSError as error:
                    logger.warning("%s", error)


__all__ = ["IndexedSegments"]
