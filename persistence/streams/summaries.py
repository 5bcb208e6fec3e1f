"""The facts about sealed segments that a start needs: so it reads one small file, however large the stream
is, and no index.

The file has a record for each segment, which is added when the segment is sealed. It is a cache of the
indexes, and is not synced: a crash may tear it, and an older mqd does not update it while segments come and
go. So a record is used only if its checksum is right, the file of the segment has its size, and the next
segment begins where it ends. Otherwise the index of the segment is read, and a new record is added.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from persistence.streams.files import Files
from persistence.streams.segment import Segment, Where, compacted_stem, generation_of

logger = logging.getLogger("mqd.streams")

NAME, NEW = "sealed", "sealed.new"
#: The file is rewritten if it has so many more records of deleted segments than there are segments.
GONE_MAX = 1_000

#: base, stop, size, times of the first and the last batch, generation of a compaction or 0
_RECORD = struct.Struct(">QQQQQI")
_CRC = struct.Struct(">I")
RECORD_BYTES = _RECORD.size + _CRC.size
#: The start value of the checksums. Another format needs another file name, or another number here.
VERSION = 1


class Summaries:
    """Belongs to the thread that writes the log."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        #: Number of records in the file, complete or not.
        self._count = 0

    def read(self) -> dict[Where, Segment]:
        """Return the segments of all sound records, the latest record of each; some may be deleted."""
        path = self._directory / NAME
        try:
            data = self._files.read(path, 0, self._files.size(path))
        except FileNotFoundError:
            return {}
        except OSError as error:
            logger.warning("%s cannot be read: %s", path, error)
            return {}
        self._count = len(data) // RECORD_BYTES
        found = [_decode(data, at * RECORD_BYTES) for at in range(self._count)]
        return {segment.where: segment for segment in found if segment is not None}

    def add(self, segments: Sequence[Segment]) -> None:
        """Add records."""
        try:
            self._files.write(
                self._directory / NAME, self._count * RECORD_BYTES, [_encode(each) for each in segments]
            )
        except OSError as error:
            # The next start reads the index.
            logger.warning("%s was not written: %s", self._directory / NAME, error)
        else:
            self._count += len(segments)

    def forget(self) -> None:
        """Remove all records: segments of the same names may come, of the same sizes. Raises OSError."""
        self._files.remove(self._directory / NAME)
        self._count = 0

    def tidy(self, segments: Sequence[Segment]) -> None:
        """Rewrite the file with these segments only, if it has become large."""
        if self._count <= 2 * len(segments) + GONE_MAX:
            return
        new = self._directory / NEW
        try:
            self._files.remove(new)
            self._files.write(new, 0, [_encode(each) for each in segments])
            self._files.sync(new)
            self._files.rename(new, NAME)
        except OSError as error:
            logger.warning("%s was not written: %s", new, error)
        else:
            self._count = len(segments)


def _encode(segment: Segment) -> bytes:
    generation = generation_of(segment.stem) if segment.stem else 0
    front = _RECORD.pack(
        segment.base, segment.stop, segment.size, segment.first_ms, segment.last_ms, generation
    )
    return front + _CRC.pack(crc32(front, VERSION))


def _decode(data: bytes, at: int) -> Segment | None:
    """Return the segment of a record; None if the record is damaged."""
    front = data[at : at + _RECORD.size]
    if _CRC.unpack_from(data, at + _RECORD.size)[0] != crc32(front, VERSION):
        return None
    base, stop, size, first_ms, last_ms, generation = _RECORD.unpack(front)
    stem = compacted_stem(base, stop, generation) if generation else ""
    return Segment(base, size, stop, first_ms, last_ms, stem)
