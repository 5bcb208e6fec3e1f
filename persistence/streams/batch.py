"""The format of a batch: messages with consecutive offsets, as they stand in the journal and in a segment
file.

    head      48 bytes: see HEAD. Base offset, count, time, sizes, and three checksums.
    meta      shapes of the messages, their filter values, and the names by which duplicates are recognised.
              A reader decides by the meta wherever it can do without the messages.
    items     the messages, one after the other, as the layer above has framed them; in a segment perhaps
              compressed.

Clients that read batches know this format, too: docs/streams.md describes it. A change needs a new version,
and consumers that say that they know it (ADR 62).

Head, meta and items have checksums of their own: despite a damaged message, the position of the next batch is
known, and a batch that no filter matches is skipped unread.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import mul
from sys import byteorder
from typing import NamedTuple
from zlib import crc32

from persistence.streams import compression

MAGIC = b"mqdS"
VERSION = 1
#: magic, version, flags, shapes, base offset, count, time in ms, bytes of meta and of items, crc of meta and
#: of items
_FRONT = struct.Struct(">4sBBHQIQIIII")
_CRC = struct.Struct(">I")
HEAD_BYTES = _FRONT.size + _CRC.size
#: messages, bytes of each, and three numbers for the layer above
_SHAPE = struct.Struct(">IIHII")
SHAPE_BYTES = _SHAPE.size
#: Returns the encoded shape.
pack_shape: Callable[..., bytes] = _SHAPE.pack
#: Positions of its numbers, of which FIRST_AT has 2 bytes and each other one 4.
COUNT_AT, SIZE_AT, FIRST_AT, SECOND_AT, THIRD_AT = 0, 4, 8, 10, 14
#: Flag: some message has a filter value.
FILTERED = 1
#: Flag: the meta ends with names of messages, whose bytes come last.
NAMED = 2
#: Flags: the compression of the items.
ZSTD, LZ4 = 4, 8
#: Flag: the publishers had compressed most of the bytes.
DENSE = 16
#: Flag: messages between the others were compacted away. The meta ends with the offsets of the remaining
#: messages, relative to the batch's own one; the count is that of all offsets.
SPARSE = 32
#: Flags for the layer above; see Batch. Earlier versions ignore them.
ALIKE, KEYED = 64, 128
_CODECS = {ZSTD: compression.ZSTD, LZ4: compression.LZ4}
_FLAGS = {codec: flag for flag, codec in _CODECS.items()}
#: Maximum number of messages in a batch.
COUNT_MAX = 8192
#: Maximum number of offsets of a batch, if some of them were compacted away.
SPAN_MAX = 1 << 31
#: Messages with longer filter values count as messages without one.
FILTER_BYTES_MAX = 255


class Damaged(Exception):
    """The bytes differ from those that were written."""


class Shape(NamedTuple):
    """Neighbouring messages that look alike, `count` of them with `size` bytes each. The other numbers belong
    to the upper layer.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    size: int
    first: int
    second: int
    third: int


#: If all messages have different sizes, each has a shape of its own. So C creates and counts them: in a
#: seventh of the time.
_shape_of: Callable[[tuple[int, ...]], Shape] = partial(tuple.__new__, Shape)


class Head(NamedTuple):
    flags: int
    shapes: int
    base: int
    count: int  # type: ignore[assignment]  # as above
    time_ms: int
    meta_bytes: int
    items_bytes: int
    meta_crc: int
    items_crc: int

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.base + self.count

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return HEAD_BYTES + self.meta_bytes + self.items_bytes


class Batch:
    """A batch in memory. `filters` has the index of each message's value in `values`; it is empty if all
    messages have the first value.
    """

    __slots__ = (
        "alike",
        "base",
        "count",
        "filters",
        "items",
        "keyed",
        "offsets",
        "packed_shapes",
        "size",
        "stop",
        "time_ms",
        "values",
        "_shapes",
    )

    def __init__(
        self,
        base: int,
        time_ms: int,
        shapes: list[Shape] | bytes,
        items: bytes | memoryview,
        values: list[bytes | None],
        filters: Sequence[int],
        size: int,
        span: int | None = None,
        offsets: Sequence[int] | None = None,
        flags: int = 0,
    ) -> None:
        self.base = base
        self.time_ms = time_ms
        #: The shapes as they are encoded in the meta. As objects they are made when they are first needed: a
        #: batch may have thousands.
        self.packed_shapes = shapes if isinstance(shapes, bytes) else pack_shapes(shapes)
        self._shapes = None if isinstance(shapes, bytes) else shapes
        if offsets is not None:
            self.count = len(offsets)
        else:
            self.count = sum(shape_column(self.packed_shapes, COUNT_AT)) if span is None else span
        self.items = items
        #: [None] if no message has a filter value.
        self.values = values
        self.filters = filters
        #: Bytes of the whole batch, uncompressed.
        self.size = size
        #: The offset of the next batch.
        self.stop = base + (self.count if span is None else span)
        #: Offsets of the messages relative to `base`, if they are not consecutive.
        self.offsets = offsets
        #: `alike`: messages of each shape are known to be alike between their routing and their headers, and
        #: no message of the batch has a header with which a group would name its stream. `keyed`: messages of
        #: one shape may have different routing.
        self.alike = flags & ALIKE != 0
        self.keyed = flags & KEYED != 0

    @property
    def shape_count(self) -> int:
        return len(self.packed_shapes) // SHAPE_BYTES

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the messages, in order."""
        if self._shapes is None:
            self._shapes = list(map(_shape_of, _SHAPE.iter_unpack(self.packed_shapes)))
        return self._shapes


def pack_shapes(shapes: Iterable[Shape]) -> bytes:
    """Return the encoded shapes."""
    return b"".join([_SHAPE.pack(*shape) for shape in shapes])


def shape_in(packed: bytes, at: int) -> Shape:
    """Return the encoded shape at this position."""
    return _shape_of(_SHAPE.unpack_from(packed, at))


def shape_column(packed: bytes, at: int) -> array[int]:
    """Return the number at COUNT_AT, SIZE_AT, SECOND_AT or THIRD_AT of each encoded shape."""
    column = bytearray(len(packed) // SHAPE_BYTES * 4)
    for byte in range(4):
        column[byte::4] = packed[at + byte :: SHAPE_BYTES]
    return _numbers_in("I", bytes(column))


def first_column(packed: bytes) -> array[int]:
    """Return the first of the three numbers for the layer above of each encoded shape."""
    column = bytearray(len(packed) // SHAPE_BYTES * 2)
    for byte in range(2):
        column[byte::2] = packed[FIRST_AT + byte :: SHAPE_BYTES]
    return _numbers_in("H", bytes(column))


class StoredBatch(Batch):
    """A batch as it is stored, for readers that decode it themselves. As a Batch it is a single message,
    which stands for all offsets of the batch.
    """

    __slots__ = ("front", "head")

    def __init__(self, head: Head, front: bytes, items: bytes | memoryview) -> None:
        """`front` is head and meta, `items` may be compressed."""
        size = len(front) + len(items)
        shapes = [Shape(1, size, 0, 0, 0)] if head.shapes else []
        offsets = [0] if head.shapes else []
        super().__init__(head.base, head.time_ms, shapes, items, [None], (), size, head.count, offsets)
        self.head = head
        self.front = front

    @property
    def codec(self) -> str:
        """The compression of the items."""
        return _CODECS.get(self.head.flags & (ZSTD | LZ4), compression.NONE)

    @property
    def messages(self) -> int:
        """Number of its messages."""
        if not self.head.flags & SPARSE:
            return self.head.count
        stop = HEAD_BYTES + self.head.shapes * SHAPE_BYTES
        return sum(shape_column(self.front[HEAD_BYTES:stop], COUNT_AT))

    def begin(self, offset: int) -> int:
        """Note the first wanted offset; return the number of messages before it."""
        low = offset - self.base
        if self.head.flags & SPARSE:
            numbers = _numbers_in("I", self.front[len(self.front) - 4 * self.messages :])
            before = bisect_left(numbers, low)
            low = numbers[before] if before < len(numbers) else self.head.count
        else:
            before = min(low, self.head.count)
        self.offsets = [low]
        return before


def encode(
    base: int,
    time_ms: int,
    shapes: list[Shape] | bytes,
    items: bytes,
    values: list[bytes | None],
    filters: Sequence[int],
    names: Sequence[bytes] = (),
    *,
    flags: int = 0,
    span: int | None = None,
    offsets: Sequence[int] | None = None,
    items_crc: int | None = None,
) -> list[bytes]:
    """Return head, meta and items. `flags` may be DENSE, ALIKE and KEYED. `span` is the number of the
    messages if it is known; with `offsets`, the batch has these messages of a `span` of them. `items_crc` is
    the checksum of the items if it is known.
    """
    packed = shapes if isinstance(shapes, bytes) else pack_shapes(shapes)
    parts = [packed]
    if values != [None]:
        flags |= FILTERED
        parts.append(_encode_filters(values, filters))
    if names:
        flags |= NAMED
        parts.append(_encode_names(names))
    if offsets is not None:
        flags |= SPARSE
        parts.append(_numbers_out("I", offsets))
    meta = b"".join(parts)
    count = sum(shape_column(packed, COUNT_AT)) if span is None else span
    front = _FRONT.pack(
        MAGIC,
        VERSION,
        flags,
        len(packed) // SHAPE_BYTES,
        base,
        count,
        time_ms,
        len(meta),
        len(items),
        crc32(meta),
        crc32(items) if items_crc is None else items_crc,
    )
    return [front + _CRC.pack(crc32(front)), meta, items]


def compressed(parts: Sequence[bytes], codec: str) -> Sequence[bytes]:
    """Return the parts of a batch with compressed items; unchanged if compression does not pay."""
    front = parts[0][: _FRONT.size]
    magic, version, *rest = _FRONT.unpack(front)
    head = Head(*rest)
    if head.flags & (DENSE | ZSTD | LZ4) or codec == compression.NONE:
        return parts
    if len(parts) == 3:
        meta, items = parts[1], parts[2]
    else:
        whole = b"".join(parts)
        start = HEAD_BYTES + head.meta_bytes
        meta, items = whole[HEAD_BYTES:start], whole[start:]
    done = compression.compress(codec, items)
    if done is None:
        return parts
    head = head._replace(flags=head.flags | _FLAGS[codec], items_bytes=len(done), items_crc=crc32(done))
    front = _FRONT.pack(magic, version, *head)
    return front + _CRC.pack(crc32(front)), meta, done


def pack_head(head: Head) -> bytes:
    """Return the bytes of a head."""
    front = _FRONT.pack(MAGIC, VERSION, *head)
    return front + _CRC.pack(crc32(front))


def trusted(head: Head, meta: bytes, items: bytes | memoryview) -> Batch:
    """Return the batch of these parts, which were just made. Raises Damaged."""
    shapes = bytes(meta[: head.shapes * SHAPE_BYTES])
    values, filters = _decode_filters(head, meta, head.count)
    return Batch(head.base, head.time_ms, shapes, items, values, filters, head.size, flags=head.flags)


def decode_head(data: bytes | memoryview, at: int = 0) -> Head:
    """Raises Damaged."""
    front = data[at : at + _FRONT.size]
    crc = data[at + _FRONT.size : at + HEAD_BYTES]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32(front):
        raise Damaged("the head of a batch is damaged")
    magic, version, *rest = _FRONT.unpack(front)
    if magic != MAGIC or version != VERSION:
        raise Damaged(f"a batch has version {version}, this mqd reads version {VERSION}")
    head = Head(*rest)
    count_max = SPAN_MAX if head.flags & SPARSE else COUNT_MAX
    if not 0 < head.count <= count_max or head.meta_bytes < head.shapes * SHAPE_BYTES:
        raise Damaged("the head of a batch contradicts itself")
    return head


def decode_values(head: Head, meta: bytes | memoryview) -> list[bytes | None]:
    """Return the filter values of a batch. Raises Damaged."""
    if crc32(meta) != head.meta_crc:
        raise Damaged(f"the shapes of the batch at {head.base} are damaged")
    return _decode_filters(head, meta, 0)[0]


def decode_names(head: Head, meta: bytes | memoryview) -> list[bytes]:
    """Return the names of a batch. Raises Damaged."""
    if not head.flags & NAMED:
        return []
    if crc32(meta) != head.meta_crc:
        raise Damaged(f"the shapes of the batch at {head.base} are damaged")
    stop = len(meta) - 4
    at = stop - int.from_bytes(meta[stop:], "big")
    names: list[bytes] = []
    while at < stop:
        size = int.from_bytes(meta[at : at + 2], "big")
        names.append(bytes(meta[at + 2 : at + 2 + size]))
        at += 2 + size
    return names


def decode(head: Head, data: bytes | memoryview, at: int = 0) -> Batch:
    """Return the batch whose head is at `at`. Raises Damaged."""
    view = memoryview(data)
    start = at + HEAD_BYTES
    meta, items = (
        view[start : start + head.meta_bytes],
        view[start + head.meta_bytes : start + head.meta_bytes + head.items_bytes],
    )
    if len(items) != head.items_bytes or crc32(meta) != head.meta_crc or crc32(items) != head.items_crc:
        raise Damaged(f"the batch at {head.base} is damaged")
    shapes = bytes(meta[: head.shapes * SHAPE_BYTES])
    counts = shape_column(shapes, COUNT_AT)
    count = sum(counts)
    values, filters = _decode_filters(head, meta, count)
    size = sum(map(mul, counts, shape_column(shapes, SIZE_AT)))
    unpacked = _decompressed(head, items, size)
    offsets = _numbers_in("I", meta[len(meta) - 4 * count :]) if head.flags & SPARSE else None
    if (
        (count != head.count if offsets is None else len(offsets) != count or count > head.count)
        or size != len(unpacked)
        or len(filters) not in (0, count)
    ):
        raise Damaged(f"the batch at {head.base} contradicts itself")
    bytes_all = HEAD_BYTES + head.meta_bytes + size
    return Batch(
        head.base,
        head.time_ms,
        shapes,
        unpacked,
        values,
        filters,
        bytes_all,
        head.count,
        offsets,
        head.flags,
    )


def stored(head: Head, data: bytes | memoryview, at: int = 0) -> StoredBatch:
    """Return the batch whose head is at `at` as it is stored. Raises Damaged."""
    view = memoryview(data)
    start = at + HEAD_BYTES + head.meta_bytes
    meta, items = view[at + HEAD_BYTES : start], view[start : start + head.items_bytes]
    if len(items) != head.items_bytes or crc32(meta) != head.meta_crc or crc32(items) != head.items_crc:
        raise Damaged(f"the batch at {head.base} is damaged")
    return StoredBatch(head, bytes(view[at:start]), items)


def stored_of(parts: Sequence[bytes | memoryview]) -> StoredBatch:
    """Return the batch of these parts, as `encode` returns them or joined, without looking at the checksums.
    Raises Damaged.
    """
    head = decode_head(parts[0])
    if len(parts) == 3:
        return StoredBatch(head, b"".join(parts[:2]), parts[2])
    whole = memoryview(b"".join(parts)) if len(parts) > 1 else memoryview(parts[0])
    start = HEAD_BYTES + head.meta_bytes
    return StoredBatch(head, bytes(whole[:start]), whole[start:])


def _decompressed(head: Head, items: memoryview, size: int) -> bytes | memoryview:
    """Return the items; their shapes say how many bytes they have."""
    codec = _CODECS.get(head.flags & (ZSTD | LZ4))
    if codec is None:
        return items
    try:
        return compression.decompress(codec, items, size)
    except ValueError as error:
        raise Damaged(f"the batch at {head.base} cannot be decompressed: {error}") from None


def find_head(data: bytes | memoryview, at: int, base: int) -> int:
    """Return the position of the next sound head of a batch from offset `base` on; -1 if there is none."""
    raw = bytes(data)
    while True:
        at = raw.find(MAGIC, at)
        if at < 0:
            return -1
        try:
            if decode_head(raw, at).base >= base:
                return at
        except Damaged:
            pass
        at += 1


def matches(values: Iterable[bytes | None], wanted: frozenset[bytes], *, unfiltered: bool) -> bool:
    """Return whether any of these filter values is wanted."""
    return any(unfiltered if value is None else value in wanted for value in values)


def _encode_filters(values: list[bytes | None], filters: Sequence[int]) -> bytes:
    parts = [len(values).to_bytes(2, "big"), b"\x01" if filters else b"\x00"]
    for value in values:
        parts.append(b"\xff\xff" if value is None else len(value).to_bytes(2, "big") + value)
    if filters:
        parts.append(_numbers_out("H", filters))
    return b"".join(parts)


def _numbers_out(kind: str, numbers: Sequence[int]) -> bytes:
    data = array(kind, numbers)
    if byteorder == "little":
        data.byteswap()
    return data.tobytes()


def _numbers_in(kind: str, data: bytes | memoryview) -> array[int]:
    numbers = array(kind, bytes(data))
    if byteorder == "little":
        numbers.byteswap()
    return numbers


def _encode_names(names: Sequence[bytes]) -> bytes:
    data = b"".join([len(name).to_bytes(2, "big") + name for name in names])
    return data + len(data).to_bytes(4, "big")


def _decode_filters(
    head: Head, meta: bytes | memoryview, messages: int
) -> tuple[list[bytes | None], Sequence[int]]:
    """Return the values, and the index of the value of each message; `count` is the number of messages."""
    if not head.flags & FILTERED:
        return [None], ()
    at = head.shapes * SHAPE_BYTES
    count, numbered = int.from_bytes(meta[at : at + 2], "big"), meta[at + 2]
    at += 3
    values: list[bytes | None] = []
    for _ in range(count):
        size = int.from_bytes(meta[at : at + 2], "big")
        at += 2
        if size == 0xFFFF:
            values.append(None)
        else:
            values.append(bytes(meta[at : at + size]))
            at += size
    if not numbered:
        return values, ()
    numbers = _numbers_in("H", meta[at : at + 2 * messages])
    if len(numbers) != messages or (numbers and max(numbers) >= len(values)):
        raise Damaged(f"the filter values of the batch at {head.base} are damaged")
    return values, numbers
