"""The file with the names of messages that a stream has taken: its state at one offset of the log.

    head     magic, version, offset, number of pieces, and a checksum
    pieces   each with its size and a checksum before it

Now and then the file is rewritten as a whole. The names after its offset are read from the log: at most some
thousand batches, or as many as can be read in the time that a new file takes. Without the file, the whole log
is read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from persistence.streams.files import Files

logger = logging.getLogger("mqd.streams")

NAME, NEW = "names", "names.new"
#: Number of batches after the file's offset at which the file is rewritten, and bytes of the file that count
#: as one more batch.
BATCHES = 2_000
BYTES_A_BATCH = 256

_MAGIC = b"mqdN"
VERSION = 1
_FRONT = struct.Struct(">4sBQI")
_PIECE = struct.Struct(">II")
_CRC = struct.Struct(">I")


class NamedBatch(NamedTuple):
    """The names in one batch."""

    stop: int
    time_ms: int
    names: Sequence[bytes]


class Keeper(Protocol):
    """Remembers which messages were taken; see amqp_server.streams.layout.deduplication."""

    def apply(self, time_ms: int, names: Iterable[bytes]) -> None:
        """Remember the names in a batch."""

    def pieces(self) -> Iterator[bytes]:
        """Return everything that it remembers."""

    def restore(self, pieces: Sequence[bytes]) -> None:
        """Raises ValueError."""


class NamesFile:
    """Belongs to the thread that writes the log."""

    def __init__(self, files: Files, directory: Path, keeper: Keeper) -> None:
        self._files = files
        self._directory = directory
        self._keeper = keeper
        #: Offsets up to which the keeper, and the file, know all names.
        self._stop = self._covered = 0
        #: Batches between these offsets, and bytes of the file.
        self._batches = self._size = 0

    def open(self, named_from: Callable[[int], Iterable[NamedBatch]]) -> None:
        """Read the file, and the missing names from the log."""
        self._read()
        self._note(named_from(self._stop))

    def _read(self) -> None:
        path = self._directory / NAME
        try:
            data = self._files.read(path, 0, self._files.size(path))
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("%s cannot be read, the names are read from the log: %s", path, error)
            return
        try:
            self._stop, pieces = _decode(data)
            self._keeper.restore(pieces)
        except ValueError as error:
            logger.warning("%s cannot be used, the names are read from the log: %s", path, error)
            self._stop = 0
            self._keeper.restore([])
        self._covered, self._size = self._stop, len(data)

    def add(self, batches: Sequence[NamedBatch]) -> None:
        """These batches are in the log now. Raises OSError only if the whole append can be tried again."""
        self._note(batches)
        if self._batches > max(BATCHES, self._size // BYTES_A_BATCH):
            try:
                self._write()
            except OSError as error:
                # The log has the names. On a full disk, do not write another file.
                logger.warning("%s was not written: %s", self._directory / NAME, error)

    def _note(self, batches: Iterable[NamedBatch]) -> None:
        for batch in batches:
            # A repeated write has been added before.
            if batch.stop > self._stop:
                self._keeper.apply(batch.time_ms, batch.names)
                self._stop = batch.stop
                self._batches += 1

    def cover(self, offset: int) -> None:
        """The names up to this offset are about to go from the log. Raises OSError."""
        if self._covered < min(offset, self._stop):
            self._write()

    def _write(self) -> None:
        parts: list[bytes] = []
        for piece in self._keeper.pieces():
            parts += (_PIECE.pack(len(piece), crc32(piece)), piece)
        front = _FRONT.pack(_MAGIC, VERSION, self._stop, len(parts) // 2)
        path = self._directory / NEW
        self._files.remove(path)
        self._files.write(path, 0, [front, _CRC.pack(crc32(front)), *parts])
        self._files.sync(path)
        self._files.rename(path, NAME)
        self._files.sync_names(self._directory)
        self._covered, self._batches = self._stop, 0
        self._size = sum(map(len, parts))


def _decode(data: bytes) -> tuple[int, list[bytes]]:
    """Return offset and pieces. Raises ValueError."""
    front = data[: _FRONT.size]
    at = _FRONT.size + _CRC.size
    if len(data) < at or _CRC.unpack(data[_FRONT.size : at])[0] != crc32(front):
        raise ValueError("its head is damaged")
    magic, version, stop, count = _FRONT.unpack(front)
    if magic != _MAGIC or version != VERSION:
        raise ValueError(f"it has version {version}")
    pieces: list[bytes] = []
    for _ in range(count):
        if len(data) < at + _PIECE.size:
            raise ValueError("it ends too early")
        size, crc = _PIECE.unpack_from(data, at)
        at += _PIECE.size
        piece = data[at : at + size]
        if len(piece) < size or crc32(piece) != crc:
            raise ValueError("it is damaged")
        pieces.append(piece)
        at += size
    return stop, pieces
