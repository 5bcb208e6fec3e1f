"""Messages of a stream as the broker stores them: whole batches, taken apart by Arrow.

A batch says by its shapes how to cut its messages, and has offsets and time only once. So its columns need no
search for the beginnings of messages. The layout is in the documentation of mqd (streams, "batches as they
are stored").
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import add
from zlib import crc32

import pyarrow as pa

from spark_sink.source.deliveries import BASIC_DELIVER, HEAD_BYTES, OVERHEAD_BYTES, U32, U64, Run
from spark_sink.source.properties import BadMessage

#: Magic, version, flags, number of shapes, first offset, number of offsets, time in ms, bytes of meta and of
#: items; two checksums follow, and then that of the head.
_HEAD = struct.Struct(">4sBBHQIQII8xI")
_CHECKED_BYTES = _HEAD.size - U32.size
MAGIC, VERSION = b"mqdS", 1
#: Bytes of a shape, and where its fields are, with their sizes: number of messages, bytes of each, of its
#: routing, of its content header's payload, and of its largest body frame.
SHAPE_BYTES = 18
_SHAPE_FIELDS = ((0, 4), (4, 4), (8, 2), (10, 4), (14, 4))
_ZSTD, _LZ4, _SPARSE = 4, 8, 32
_CODECS = {_ZSTD: "zstd", _LZ4: "lz4_raw"}
#: Of C, four bytes.
INT, INT_BYTES = "i", 4
#: In an item: `redelivered` before the routing; the method frame's end and the next frame's head after it.
FLAG_BYTES, TO_PAYLOAD_BYTES = 1, 1 + HEAD_BYTES
#: Deliveries begin like this for consumers without a tag; the size of the method frame is not looked at.
_FRONT = b"".join((b"\x01\x00\x01", bytes(4), BASIC_DELIVER, b"\x00", bytes(U64.size)))


class StoredRun:
    """Consecutive messages out of batches, in one piece of memory."""

    __slots__ = ("base", "data", "frames", "offsets", "payloads", "routes", "sizes", "stop", "times")

    def __init__(
        self,
        data: bytes | memoryview,
        columns: Sequence[array[int]],
        offsets: range | array[int],
        base: int,
        stop: int,
    ) -> None:
        """`columns` has five numbers for each message: the fields from `sizes` on, in their order here."""
        #: The items, one after the other: what a delivery has after its tag.
        self.data = data
        #: Bytes of each item, of its routing, of its content header's payload, of its largest body frame (0
        #: without a body), as C's int; and the time when the broker took it, ms since 1970, in 64 bits.
        self.sizes, self.routes, self.payloads, self.frames, self.times = columns
        #: In 64 bits, unless they are consecutive.
        self.offsets = offsets
        #: The first offset that it stands for, and the one behind the last. Offsets without a message were
        #: compacted away.
        self.base, self.stop = base, stop

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def columns(self) -> tuple[array[int], ...]:
        return self.sizes, self.routes, self.payloads, self.frames, self.times

    def split(self, count: int) -> tuple[StoredRun, StoredRun]:
        """Cut after `count` messages."""
        at, data, offsets = sum(self.sizes[:count]), memoryview(self.data), self.offsets
        first, rest = [each[:count] for each in self.columns], [each[count:] for each in self.columns]
        stop = offsets[count] if count < len(self) else self.stop
        return (
            StoredRun(data[:at], first, offsets[:count], self.base, stop),
            StoredRun(data[at:], rest, offsets[count:], stop, self.stop),
        )

    @classmethod
    def joined(cls, runs: Sequence[StoredRun]) -> StoredRun:
        """One run from consecutive runs."""
        if len(runs) == 1:
            return runs[0]
        columns = [each[:] for each in runs[0].columns]
        for run in runs[1:]:
            for column, more in zip(columns, run.columns, strict=True):
                column += more
        low, stop = runs[0].base, runs[-1].stop
        offsets: range | array[int] = range(low, stop)
        if len(columns[0]) != len(offsets):
            # Compaction left gaps.
            offsets = array("q", chain.from_iterable([run.offsets for run in runs]))
        return cls(b"".join([run.data for run in runs]), columns, offsets, low, stop)

    def deliveries(self) -> Run:
        """The same as deliveries, for the code that handles each message by itself."""
        data = self.data
        parts: list[bytes | memoryview] = []
        starts: list[int] = []
        heads: list[int] = []
        at = place = 0
        for size, route in zip(self.sizes, self.routes, strict=True):
            parts += (_FRONT, data[at : at + size])
            starts.append(place)
            heads.append(place + len(_FRONT) + FLAG_BYTES + route + TO_PAYLOAD_BYTES)
            at += size
            place += len(_FRONT) + size
        return Run(b"".join(parts), starts, heads)


def batches_of(run: Run) -> Iterator[StoredRun]:
    """Yield the messages of each delivery, which is a batch. Raises BadMessage."""
    ends = [*run.starts[1:], len(run.data)]
    for head, end in zip(run.heads, ends, strict=True):
        (size,) = U32.unpack_from(run.data, head - 4)
        yield _decoded(_body(run.data, head + size + 1, end))


def _body(data: bytes, at: int, end: int) -> bytes:
    """Return the content of body frames from one position to another."""
    pieces: list[bytes] = []
    while at < end:
        (size,) = U32.unpack_from(data, at + 3)
        pieces.append(data[at + HEAD_BYTES : at + HEAD_BYTES + size])
        at += size + OVERHEAD_BYTES
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decoded(body: bytes) -> StoredRun:
    """Raises BadMessage."""
    try:
        return _of_batch(body)
    except (struct.error, OSError, pa.ArrowException) as error:
        raise BadMessage(f"a batch of a stream cannot be read: {error}: {body[:50]!r}") from error


def _of_batch(body: bytes) -> StoredRun:
    """Raises BadMessage, struct.error, OSError, pa.ArrowException."""
    magic, version, flags, shapes, base, count, time_ms, meta_bytes, items_bytes, crc = _HEAD.unpack_from(
        body
    )
    if magic != MAGIC or version != VERSION or crc != crc32(memoryview(body)[:_CHECKED_BYTES]):
        raise BadMessage(
            f"a batch of a stream has version {version}, and this connector reads version {VERSION}: {body[:50]!r}"
        )
    meta = memoryview(body)[_HEAD.size : _HEAD.size + meta_bytes]
    items: bytes | memoryview = memoryview(body)[_HEAD.size + meta_bytes :]
    counts, *numbers = (_field(meta, shapes, at, size) for at, size in _SHAPE_FIELDS)
    spread = [_spread(column, counts) for column in numbers]
    size = sum(spread[0])
    if len(items) != items_bytes:
        raise BadMessage(f"a batch of a stream is cut off: {body[:50]!r}")
    codec = _CODECS.get(flags & (_ZSTD | _LZ4))
    if codec is not None:
        items = pa.Codec(codec).decompress(items, size, asbytes=True)
    if len(items) != size:
        raise BadMessage(f"a batch of a stream contradicts itself: {body[:50]!r}")
    offsets: range | array[int] = range(base, base + count)
    if flags & _SPARSE:
        messages = len(spread[0])
        relative = struct.unpack(f">{messages}I", meta[meta_bytes - U32.size * messages :])
        offsets = array("q", map(add, relative, repeat(base)))
    columns = (*spread, array("q", (time_ms,)) * len(spread[0]))
    return StoredRun(items, columns, offsets, base, base + count)


def _field(meta: memoryview, shapes: int, at: int, size: int) -> array[int]:
    """Return a field of all shapes. This takes a fifth of the time of unpacking each shape."""
    end = shapes * SHAPE_BYTES
    found = bytearray(INT_BYTES * shapes)
    for place in range(size):
        found[INT_BYTES - size + place :: INT_BYTES] = meta[at + place : end : SHAPE_BYTES]
    numbers = array(INT, bytes(found))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _spread(numbers: array[int], counts: array[int]) -> array[int]:
    """Return each number as often as its count says."""
    if len(counts) == 1:
        return numbers * counts[0]
    if counts.count(1) == len(counts):
        return numbers
    return array(INT, chain.from_iterable(map(repeat, numbers, counts)))


__all__ = ["StoredRun", "batches_of"]
