"""Messages of a stream with headers that are not stored: the stream's name, as members of a group get it, and
the time of the batch, as consumers get it that ask for it.

Consecutive messages of one size usually have the same bytes between their routing and their headers, and a
message with its own size needs no comparison. Then the hot loop (deliver.py) adds the headers. Otherwise the
messages are encoded again, a piece of the batch at a time.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Final

from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.layouts import STREAM
from amqp_server.streams.layout.stored_message import is_alike, longer, table_at
from amqp_server.wire import tables
from amqp_server.wire.frames import SHORT_STRING_MAX
from persistence.streams.batch import Batch, Shape

DELIVERY_COUNT: Final = b"x-delivery-count"
#: When the broker took the message: the time of its batch, ms since 1970.
TIMESTAMP: Final = b"x-stream-timestamp"
#: Messages that are not alike get their headers one by one, this many at a time: 10 to 20 us each.
PIECE: Final = 256
#: From a batch with more shapes than this, consumers also take at most PIECE messages at a time.
SHAPES_MAX: Final = 256
_flatten = chain.from_iterable


class Headers:
    """Adds headers to the messages of one stream."""

    __slots__ = ("_added", "_alike", "_fields", "_headed", "_keyed", "_source", "_timed")

    def __init__(self, name: str = "", *, timed: bool = False) -> None:
        """`name` is the name of the stream if the messages get it; with `timed` they get their time."""
        self._timed = timed
        self._fields = stream_field(name) if name else {}
        self._added = _encoded(self._fields)
        #: The batch that was read last; whether its messages are alike except for their routing; whether
        #: their routing differs; and all its messages, or the next ones, with these headers.
        self._source: Batch | None = None
        self._alike = self._keyed = False
        self._headed: BatchReader | None = None

    def most(self, reader: BatchReader) -> int:
        """Return for how many of the next messages one call of `reader` is enough."""
        self._look_at(reader.batch)
        if self._alike:
            return reader.left if reader.batch.shape_count <= SHAPES_MAX else min(reader.left, PIECE)
        headed = self._headed
        if headed is not None and headed.left and headed.offset == reader.offset:
            return headed.left
        return min(reader.left, PIECE)

    def reader(self, reader: BatchReader) -> BatchReader:
        """Return a reader at the same position, with the headers. It covers the number of messages that
        `most` returns.
        """
        self._look_at(reader.batch)
        found = self._headed
        if self._alike:
            if found is None or found.index > reader.index:
                found = self._headed = BatchReader(reader.batch, self._added, keyed=self._keyed)
            found.skip(reader.index - found.index)
        elif found is None or not found.left or found.offset != reader.offset:
            piece = reader.copy().cut(min(reader.left, PIECE))
            found = self._headed = BatchReader(headed(piece, self._fields))
        return found

    def _look_at(self, batch: Batch) -> None:
        if self._source is not batch:
            self._source = batch
            self._headed = None
            if self._timed:
                self._fields[TIMESTAMP] = b"l" + batch.time_ms.to_bytes(8, "big")
                self._added = _encoded(self._fields)
            if batch.alike:
                # This flag also means that no message has the header with the stream's name.
                alike = not self._timed or _has_none(bytes(batch.items), {TIMESTAMP: b""})
                self._alike, self._keyed = alike, batch.keyed
            else:
                self._alike, self._keyed = _are_alike(batch, self._fields), have_keys(batch)

    def forget(self) -> None:
        self._source = self._headed = None

    def batch(self, batch: Batch, attempts: int) -> Batch:
        """Return messages that came back `attempts` times with the headers for members."""
        found = headed(batch, self._fields)
        return headed(found, count_field(attempts)) if attempts else found


def stream_field(name: str) -> dict[bytes, bytes]:
    """Return the header that names the stream of a message."""
    encoded = name.encode()[:SHORT_STRING_MAX]
    return {STREAM: b"S" + len(encoded).to_bytes(4, "big") + encoded}


def count_field(attempts: int) -> dict[bytes, bytes]:
    """Return the header that says how often a message came back."""
    return {DELIVERY_COUNT: b"l" + attempts.to_bytes(8, "big")}


def _are_alike(batch: Batch, fields: Mapping[bytes, bytes]) -> bool:
    """Return whether the hot loop can add these headers to all messages of a batch without the flag `alike`:
    one that an earlier version has written, or that was compacted.
    """
    view, at = memoryview(batch.items), 0
    for shape in batch.shapes:
        if shape.count > 1:
            routing = 1 + shape.first
            opening = bytes(view[at + routing : at + table_at(view, shape.first, at) + 4])
            if not is_alike(view, at, shape, routing, opening):
                return False
        at += shape.count * shape.size
    return _has_none(bytes(batch.items), fields)


def have_keys(batch: Batch) -> bool:
    """Return whether messages of one shape have different routing."""
    view, at = memoryview(batch.items), 0
    for shape in batch.shapes:
        if not is_alike(view, at, shape, 0, bytes(view[at : at + 1 + shape.first])):
            return True
        at += shape.count * shape.size
    return False


def _encoded(fields: dict[bytes, bytes]) -> bytes:
    return b"".join([_short(name) + value for name, value in fields.items()])


def _has_none(items: bytes, fields: Mapping[bytes, bytes]) -> bool:
    """Return whether surely no message has one of these headers; the bytes may also be part of a body."""
    return not any(_short(name) in items for name in fields)


def headed(batch: Batch, fields: dict[bytes, bytes]) -> Batch:
    """Return the batch with these encoded headers in each message; they replace headers of the same names."""
    added = _encoded(fields)
    items = bytes(batch.items)
    clean = _has_none(items, fields)
    shapes: list[Shape] = []
    parts: list[bytes] = []
    view, at = memoryview(items), 0
    for shape in batch.shapes:
        end = at + shape.count * shape.size
        part = view[at:end]
        if not (clean and _put_alike(part, shape, added, shapes, parts)):
            for start in range(0, end - at, shape.size):
                _put_one(part[start : start + shape.size], shape, fields, shapes, parts)
        at = end
    return Batch(
        batch.base,
        batch.time_ms,
        shapes,
        b"".join(parts),
        batch.values,
        batch.filters,
        batch.size,
        batch.stop - batch.base,
        batch.offsets,
    )


def _short(name: bytes) -> bytes:
    return bytes((len(name),)) + name


def _put_alike(
    items: memoryview, shape: Shape, added: bytes, shapes: list[Shape], parts: list[bytes]
) -> bool:
    """Add messages whose properties begin with the same bytes; return whether they do."""
    routing, fields_at = 1 + shape.first, table_at(items, shape.first) + 4
    if not is_alike(items, 0, shape, 0, bytes(items[:fields_at])):
        return False
    front = bytes(items[:routing]) + longer(bytes(items[routing:fields_at]), len(added)) + added
    rests = _flatten(struct.iter_unpack(f"{fields_at}x{shape.size - fields_at}s", items))
    parts.append(b"".join(_flatten(zip(repeat(front), rests))))
    shapes.append(shape._replace(size=shape.size + len(added), second=shape.second + len(added)))
    return True


def _put_one(
    item: memoryview, shape: Shape, fields: dict[bytes, bytes], shapes: list[Shape], parts: list[bytes]
) -> None:
    """Add one message. The offset stays the last of its headers."""
    at = table_at(item, shape.first)
    stop = at + 4 + int.from_bytes(item[at : at + 4], "big")
    before = bytes(item[at:stop])
    rest = tables.replaced(before, dict.fromkeys(fields))[4:]
    added = _encoded(fields)
    more = len(added) + len(rest) + 4 - len(before)
    routing = 1 + shape.first
    opening = longer(bytes(item[routing : at + 4]), more)
    parts.append(b"".join((item[:routing], opening, added, rest, item[stop:])))
    shapes.append(shape._replace(count=1, size=shape.size + more, second=shape.second + more))


def below(reader: BatchReader, offset: int) -> int:
    """Return how many of the next messages of the batch are before an offset."""
    batch = reader.batch
    low = offset - batch.base
    index = low if batch.offsets is None else bisect_left(batch.offsets, low)
    return max(min(index, batch.count) - reader.index, 0)


def offsets_of(reader: BatchReader, count: int) -> range | list[int]:
    """Return the offsets of the next messages of the batch."""
    batch, start = reader.batch, reader.index
    if batch.offsets is None:
        return range(batch.base + start, batch.base + start + count)
    return [batch.base + each for each in batch.offsets[start : start + count]]


__all__ = ["Headers", "below", "count_field", "have_keys", "headed", "offsets_of", "stream_field"]
