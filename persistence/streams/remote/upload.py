"""Uploads a segment: its batches, and an index behind them, as one object.

Everything is read and checked before anything is sent: what the disk has damaged must not become the only
copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from persistence.streams import batch as batches
from persistence.streams import index
from persistence.streams.batch import Damaged
from persistence.streams.index import Entry
from persistence.streams.log import StreamLog
from persistence.streams.remote.manifest import Range, object_key
from persistence.streams.remote.objects import Objects, Unavailable
from persistence.streams.segment import SEGMENT, Lost, Segment
from persistence.streams.segment_files import FileWindow

#: Bytes that are read and sent at once.
CHUNK_BYTES: Final = 1 << 20
#: Bytes a second that are checked: a thread that checks very small batches would leave too little time to the
#: loop.
CHECKED_BYTES_PER_S: Final = 256 << 20
CHECKSUM_BYTES: Final = 8


class Stopping(Exception):
    """The node ends."""


class Uploaded(NamedTuple):
    """The range of a complete object; None if the segment has damage that perhaps can be repaired."""

    range: Range | None
    lost: list[Lost]


class Upload:
    """The upload of the messages of a segment from the offset `after` on. A thread calls `run`."""

    def __init__(
        self,
        log: StreamLog,
        objects: Objects,
        identity: str,
        segment: Segment,
        after: int,
        stopping: threading.Event,
        *,
        with_damage: bool,
    ) -> None:
        """`with_damage`: what is damaged stays lost, and the rest is uploaded."""
        self._log = log
        self._objects = objects
        self._identity = identity
        self._segment = segment
        self._after = after
        self._stopping = stopping
        self._with_damage = with_damage
        self._lost: list[Lost] = []
        #: Where the wanted batches begin in the segment.
        self._start = 0
        self._entries: list[Entry] = []
        self._checksum = ""

    def run(self) -> Uploaded:
        """Raises Unavailable, Stopping, OSError."""
        range = self._checked()
        if range is None or (self._lost and not self._with_damage):
            return Uploaded(None, self._lost)
        key = object_key(self._identity, range)
        if self._objects.size(key) != range.object_bytes:
            self._objects.put(key, self._parts(range.size), range.object_bytes)
            size = self._objects.size(key)
            if size != range.object_bytes:
                raise Unavailable(f"{key} has {size} bytes after {range.object_bytes} were stored")
        return Uploaded(range, self._lost)

    def _checked(self) -> Range | None:
        """Check all batches, and return their range; None if there is none."""
        segment, log = self._segment, self._log
        path = log.path(segment.where, SEGMENT)
        window = FileWindow(log.files, path, segment.size)
        position = log.position(segment, max(self._after, segment.base))
        expected = max(self._after, segment.base)
        first = first_ms = last_ms = -1
        indexed, unpaid = -1, 0
        for at, head, _ in log.heads(segment.where, position, segment.base, segment.size, whole=False):
            if head.stop <= self._after:
                continue
            if first < 0:
                self._start, first, first_ms = at, expected, head.time_ms
            if head.base > expected:
                self._lost.append(Lost(expected, head.base, f"{path} has a hole"))
            try:
                batches.stored(head, window.take(at, head.size))
            except Damaged as error:
                self._lost.append(Lost(head.base, head.stop, f"{path}: {error}"))
            if indexed < 0 or at - indexed >= index.SPACING_BYTES:
                self._entries.append(Entry(head.base, head.time_ms, at - self._start))
                indexed = at
            expected, last_ms = head.stop, head.time_ms
            unpaid += head.size
            if unpaid >= CHUNK_BYTES:
                if self._stopping.wait(unpaid / CHECKED_BYTES_PER_S):
                    raise Stopping
                unpaid = 0
        if first < 0:
            self._lost.append(Lost(expected, segment.stop, f"{path} is damaged"))
            return None
        if expected < segment.stop:
            self._lost.append(Lost(expected, segment.stop, f"{path} is damaged to its end"))
        size = segment.size - self._start
        self._entries.append(Entry(segment.stop, last_ms, size, index.SEAL))
        for _ in self._parts(size):
            pass
        return Range(
            first,
            segment.stop,
            size,
            len(self._entries) * index.ENTRY_BYTES,
            first_ms,
            last_ms,
            self._checksum,
            bool(self._lost),
        )

    def _parts(self, size: int) -> Iterator[bytes]:
        """Yield the bytes of the object. Raises Stopping, OSError."""
        log, digest = self._log, blake2b(digest_size=CHECKSUM_BYTES)
        path = log.path(self._segment.where, SEGMENT)
        for at in range(0, size, CHUNK_BYTES):
            if self._stopping.is_set():
                raise Stopping
            wanted = min(CHUNK_BYTES, size - at)
            data = log.files.read(path, self._start + at, wanted)
            if len(data) < wanted:
                raise FileNotFoundError(path)
            digest.update(data)
            yield data
        entries = b"".join(map(index.encode, self._entries))
        digest.update(entries)
        before, self._checksum = self._checksum, digest.hexdigest()
        if before not in ("", self._checksum):
            # Another node's messages have mended the segment meanwhile. The object is not whole without this.
            raise OSError(f"{path} has changed")
        yield entries


__all__ = ["Stopping", "Upload", "Uploaded"]
