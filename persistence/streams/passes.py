"""When compaction had removed, from all copies of a stream, the messages that tombstones delete.

A consumer that is slow may have got a message just before it was removed. So the age of a tombstone counts
from the first pass after which no copy has an older message of its key (KIP-534 of Kafka): before an offset
that such a pass has reached, every consumer has `x-stream-tombstone-age` to get to the tombstone.

    head     magic, version, number of passes, and a checksum of all of it
    passes   the offset that each has reached, and the time when it had, both rising
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from persistence.streams.files import Files

logger = logging.getLogger("mqd.streams")

NAME, NEW = "passes", "passes.new"
#: Passes of this part of the age of tombstones count as one, that of the last: the file stays small.
PARTS: Final = 128

_MAGIC: Final = b"mqdP"
VERSION: Final = 1
_FRONT = struct.Struct(">4sBI")
_PASS = struct.Struct(">QQ")
_CRC = struct.Struct(">I")


class Passed(NamedTuple):
    stop: int
    time_ms: int


class Passes:
    """Belongs to the thread that writes the log; other threads call `reached`."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        #: Replaced as a whole.
        self._passes: tuple[Passed, ...] = ()

    def open(self) -> None:
        path = self._directory / NAME
        try:
            data = self._files.read(path, 0, self._files.size(path))
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("%s cannot be read, tombstones stay longer: %s", path, error)
            return
        try:
            self._passes = _decode(data)
        except ValueError as error:
            logger.warning("%s cannot be used, tombstones stay longer: %s", path, error)

    def reached(self, time_ms: int) -> int:
        """Return the offset that passes have reached by this time: tombstones before it have been alone since
        then.
        """
        passes = self._passes
        count = bisect_left(passes, time_ms + 1, key=_time_of)
        return passes[count - 1].stop if count else 0

    def add(self, stop: int, now_ms: int, until_ms: int) -> None:
        """A pass has reached `stop`. Tombstones that have been alone at `until_ms` may go, so earlier passes
        are not needed any more. Raises OSError.
        """
        passes = self._passes
        if stop <= (passes[-1].stop if passes else 0):
            return
        # The node's time may have been lost with its disk.
        time_ms = max(now_ms, passes[-1].time_ms) if passes else max(now_ms, 0)
        first = max(bisect_left(passes, until_ms + 1, key=_time_of) - 1, 0)
        kept = passes[first:]
        if len(kept) > 1 and (time_ms - kept[-2].time_ms) * PARTS < now_ms - until_ms:
            kept = kept[:-1]
        self._store((*kept, Passed(stop, time_ms)))

    def cut(self, offset: int) -> None:
        """From this offset on there may be older messages again. Raises OSError."""
        passes = self._passes
        if passes and passes[-1].stop > offset:
            kept = [each for each in passes if each.stop <= offset]
            behind = passes[len(kept)]
            if offset and (not kept or kept[-1].stop < offset):
                kept.append(Passed(offset, behind.time_ms))
            self._store(tuple(kept))

    def _store(self, passes: tuple[Passed, ...]) -> None:
        front = _FRONT.pack(_MAGIC, VERSION, len(passes))
        body = b"".join([_PASS.pack(*each) for each in passes])
        path = self._directory / NEW
        self._files.make(self._directory)
        self._files.remove(path)
        self._files.write(path, 0, [front, _CRC.pack(crc32(front + body)), body])
        self._files.sync(path)
        self._files.rename(path, NAME)
        self._files.sync_names(self._directory)
        self._passes = passes


def _time_of(passed: Passed) -> int:
    return passed.time_ms


def _decode(data: bytes) -> tuple[Passed, ...]:
    """Raises ValueError."""
    at = _FRONT.size + _CRC.size
    if len(data) < at:
        raise ValueError("it ends too early")
    magic, version, count = _FRONT.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise ValueError(f"it has version {version}")
    body = data[at : at + count * _PASS.size]
    if _CRC.unpack_from(data, _FRONT.size)[0] != crc32(data[: _FRONT.size] + body):
        raise ValueError("it is damaged")
    return tuple([Passed(*each) for each in _PASS.iter_unpack(body)])


__all__ = ["Passes"]
