"""The open connections of a worker, as its next process finds them: if it is killed, the next one tells that
they have ended.

They are in a file in memory, which the parent keeps. Each line says that a connection has begun or ended.
When most of it is about connections that have ended, what is left goes to a second file, and the two change
places: so a worker that is killed at any moment leaves one that is whole up to its last line.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

logger = logging.getLogger("mqd.workers")

#: A file is written anew when it has so many bytes more than twice those of open connections.
SPARE_BYTES: Final = 1 << 16
_SIZE_BYTES: Final = 4

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
#: The number of a connection, and what is told at its end; None: it has ended.
_decode = msgspec.msgpack.Decoder(tuple[int, dict[str, object] | None]).decode


class OpenConnections:
    """Made by the parent before it starts the worker. See broker.topology.events.KeptConnections."""

    def __init__(self) -> None:
        self._files = [os.memfd_create(f"mqd-connections-{number}") for number in range(2)]
        #: Which file counts.
        self._which = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        # Of the present process: lines of open connections, and the bytes in the file.
        self._open: dict[int, bytes] = {}
        self._open_bytes = self._size = 0

    def take(self) -> list[Mapping[str, object]]:
        """Return what is to be told of the connections of the last process, and begin with none."""
        left: dict[int, Mapping[str, object]] = {}
        for number, told in _lines(self._files[self._which[0]]):
            left.pop(number, None)
            if told is not None:
                left[number] = told
        self._open.clear()
        self._open_bytes = 0
        self._write_anew()
        return list(left.values())

    def begun(self, number: int, told: Mapping[str, object]) -> None:
        line = _line(number, told)
        self._open[number] = line
        self._open_bytes += len(line)
        self._append(line)

    def ended(self, number: int) -> None:
        line = self._open.pop(number, None)
        if line is not None:
            self._open_bytes -= len(line)
            self._append(_line(number, None))

    def _append(self, line: bytes) -> None:
        try:
            os.pwrite(self._files[self._which[0]], line, self._size)
        except OSError as error:
            logger.error("an open connection cannot be noted, so its end may not be told: %s", error)
            return
        self._size += len(line)
        if self._size > 2 * self._open_bytes + SPARE_BYTES:
            self._write_anew()

    def _write_anew(self) -> None:
        before = self._which[0]
        other = 1 - before
        os.ftruncate(self._files[other], 0)
        self._size = os.pwrite(self._files[other], b"".join(self._open.values()), 0)
        self._which[0] = other
        os.ftruncate(self._files[before], 0)


def _line(number: int, told: Mapping[str, object] | None) -> bytes:
    line = _encode((number, told))
    return len(line).to_bytes(_SIZE_BYTES, "big") + line


def _lines(file: int) -> Iterator[tuple[int, Mapping[str, object] | None]]:
    data, at = os.pread(file, os.fstat(file).st_size, 0), 0
    while at + _SIZE_BYTES <= len(data):
        start = at + _SIZE_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        try:
            yield _decode(data[start:at])
        except msgspec.MsgspecError:
            # The process was killed while it wrote its last line.
            return


__all__ = ["OpenConnections"]
