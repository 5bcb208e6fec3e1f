"""The files of a stream's segments: their names, the heads of their batches, and their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import HEAD_BYTES, Damaged, Head
from persistence.streams.files import Files
from persistence.streams.index import Entry
from persistence.streams.segment import INDEX, READ_BYTES, SEGMENT, Where, spaced


class FileWindow:
    """Reads a file ahead, for a walk from its front to its end."""

    def __init__(self, files: Files, path: Path, size: int) -> None:
        self.files = files
        self._path = path
        self._size = size
        self._start = 0
        self._data = memoryview(b"")
        #: Bytes that were read. A result of `take` keeps all bytes that were read with it in memory.
        self.read_bytes = 0

    def take(self, position: int, size: int, ahead: int = READ_BYTES) -> memoryview:
        """Return these bytes; fewer if the file ends earlier."""
        low = position - self._start
        if low < 0 or low + size > len(self._data):
            wanted = max(size, min(ahead, self._size - position))
            self._start, low = position, 0
            self._data = memoryview(self.files.read(self._path, position, wanted))
            self.read_bytes += len(self._data)
        return self._data[low : low + size]

    def has(self, position: int, size: int) -> bool:
        """Return whether these bytes were read already."""
        return self._start <= position and position + size <= self._start + len(self._data)


class SegmentFiles:
    """The files of one directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.files = files
        self.directory = directory

    def path(self, where: Where, suffix: str) -> Path:
        return self.directory / (f"{where:020}{suffix}" if isinstance(where, int) else f"{where}{suffix}")

    def remove(self, where: Where) -> None:
        self.files.remove(self.path(where, INDEX))
        self.files.remove(self.path(where, SEGMENT))

    # -- heads of batches ------------------------------------------------------------------------------------

    def heads(
        self,
        where: Where,
        position: int,
        expected: int,
        size: int,
        *,
        whole: bool,
        ahead: int = READ_BYTES,
    ) -> Iterator[tuple[int, Head, bool]]:
        """Yield position and head of each batch from here on, and whether the batch is sound (if `whole`).

        After a damaged head it searches for the next sound one. `ahead`: bytes that are read at once.
        """
        window = FileWindow(self.files, self.path(where, SEGMENT), size)
        while position + HEAD_BYTES <= size:
            try:
                head = batches.decode_head(window.take(position, HEAD_BYTES, ahead))
                if head.base < expected:
                    raise Damaged("a batch comes a second time")
            except Damaged:
                found = self.next_head(window, position + 1, expected, size)
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

    def next_head(self, window: FileWindow, position: int, expected: int, size: int) -> int:
        """Search from a position on for the head of a batch with the offset `expected` or a later one; return
        its position, below zero if there is none.
        """
        while position + HEAD_BYTES <= size:
            data = window.take(position, min(READ_BYTES, size - position))
            found = batches.find_head(data, 0, expected)
            if found >= 0:
                return position + found
            position += max(len(data) - HEAD_BYTES + 1, 1)
        return -1

    # -- indexes ---------------------------------------------------------------------------------------------

    def entries(self, where: Where) -> list[Entry]:
        return index.decode(self.index_bytes(where))

    def index_bytes(self, where: Where) -> bytes:
        """Return an index as it is on disk; nothing if it cannot be read."""
        path = self.path(where, INDEX)
        try:
            return self.files.read(path, 0, self.files.size(path))
        except OSError:
            return b""

    def entries_anew(
        self, where: Where, base: int, size: int, following: int | None = None
    ) -> tuple[list[Entry], int]:
        """Build the index of a sealed segment from the heads of its batches; return it and the time of the
        first batch. The segment ends before the first batch from the offset `following` on.
        """
        found: list[tuple[int, Head]] = []
        for position, head, _ in self.heads(where, 0, base, size, whole=False):
            if following is not None and head.base >= following:
                size = position
                break
            found.append((position, head))
        entries = spaced(found, -1)
        last = found[-1][1] if found else None
        stop, last_ms = (last.stop, last.time_ms) if last is not None else (base, 0)
        entries.append(Entry(stop, last_ms, size, index.SEAL))
        return entries, found[0][1].time_ms if found else 0

    def write_index(self, where: Where, entries: list[Entry]) -> None:
        path = self.path(where, INDEX)
        data = b"".join(map(index.encode, entries))
        self.files.write(path, 0, [data])
        self.files.cut(path, len(data))
