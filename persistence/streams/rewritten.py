"""A segment that is written beside the others, to replace some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from persistence.streams import batch as batches
from persistence.streams.batch import Head
from persistence.streams.files import Files
from persistence.streams.index import SEAL, Entry
from persistence.streams.segment import INDEX, NEW, Segment, spaced

if TYPE_CHECKING:
    from persistence.streams.log import StreamLog


class Rewritten:
    """A segment that compaction writes, beside the others: they stay as they are until it replaces them."""

    def __init__(self, log: StreamLog, stem: str, base: int, stop: int) -> None:
        self._log = log
        self._stem = stem
        self._base, self._stop = base, stop
        self._size = self._first_ms = self._last_ms = 0
        self._heads: list[tuple[int, Head]] = []

    def append(self, parts: Sequence[Sequence[bytes]]) -> int:
        """Append batches; return their number of bytes. Raises Ended, OSError."""
        path = self._log.path(self._stem, NEW)
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
        return self._size - position

    def finish(self) -> Segment:
        """Sync the segment. Raises Ended, OSError."""
        log = self._log
        entries = spaced(self._heads, -1)
        entries.append(Entry(self._stop, self._last_ms, self._size, SEAL))

        def write(files: Files) -> None:
            log.write_index(self._stem, entries)
            files.sync(log.path(self._stem, INDEX))
            files.sync(log.path(self._stem, NEW))

        log.write_new(write)
        return Segment(self._base, self._size, self._stop, self._first_ms, self._last_ms, self._stem)

    def drop(self) -> None:
        """Remove the unfinished segment. Raises Ended, OSError."""
        for suffix in (NEW, INDEX):
            path = self._log.path(self._stem, suffix)
            self._log.write_new(lambda files, path=path: files.remove(path))  # type: ignore[misc]
