"""Deliveries out of a batch: the hot loop of a replay.

An item is ready to be sent but for what is in front of it, which differs by consumer and delivery tag, and for the channel
number in its content frames. Items of one size are cut out of the batch, and put into a list and joined by C; channel
numbers are written over all of them at once. Both by slices with a step, so no message costs Python code of its own. (A
slice of a list costs half of what zip and chain cost.)
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from functools import lru_cache
from itertools import chain, repeat
from typing import Final

from amqp_server.streams.item import cut_out, longer, table_at
from amqp_server.wire import content
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from persistence.streams.batch import Batch, Shape

#: What whole runs of messages begin with, remembered with all last bytes of a tag: 30 KB each. A run of 256 pays for it.
FRONTS_MAX: Final = 32
_LOW: Final = [bytes((value,)) for value in range(256)]
_flatten = chain.from_iterable


class BatchReader:
    """One consumer's place in a batch."""

    __slots__ = ("_at", "_fields", "_items", "_left_in_shape", "_shape", "batch", "index", "left")

    def __init__(self, batch: Batch, fields: bytes = b"") -> None:
        """`fields` are headers that each message gets in front of its own, encoded. Then all messages of a shape begin
        alike, up to their headers."""
        self.batch = batch
        self._fields = fields
        #: The next message, and how many there are from it on.
        self.index = 0
        self.left = batch.count
        self._items = memoryview(batch.items)
        self._shape = 0
        self._left_in_shape = batch.shapes[0].count
        self._at = 0

    @property
    def offset(self) -> int:
        """The offset of the next message; behind the last one that of the next batch."""
        batch = self.batch
        if batch.offsets is None:
            return batch.base + self.index
        return batch.base + batch.offsets[self.index] if self.left else batch.stop

    def skip_to(self, offset: int) -> None:
        """Pass over messages before this offset."""
        offsets, low = self.batch.offsets, offset - self.batch.base
        self.skip((low if offsets is None else bisect_left(offsets, low)) - self.index)

    def skip(self, count: int) -> None:
        """Pass over so many messages, which are there."""
        while count:
            part = self._next_shape(count)
            self._move(self.batch.shapes[self._shape], part)
            count -= part

    def take(self, count: int, template: DeliverTemplate, tag: int, out: list[bytes | memoryview]) -> None:
        """Put the deliveries of the next messages, which are there, into `out`; they are tagged from `tag` on."""
        while count:
            part = self._next_shape(count)
            shape = self.batch.shapes[self._shape]
            items = self._items[self._at : self._at + part * shape.size]
            if self._fields:
                _put_with(self._fields, shape, part, items, template, tag, out)
            else:
                self._put(shape, part, items, template, tag, out)
            self._move(shape, part)
            tag += part
            count -= part

    def cut(self, count: int, *, redelivered: bool = False) -> Batch:
        """Take the next messages, which are there, and return them as a batch of their own."""
        batch, start, base = self.batch, self.index, self.offset
        shapes: list[Shape] = []
        parts: list[bytes] = []
        left = count
        while left:
            part = self._next_shape(left)
            shape = batch.shapes[self._shape]
            items = bytearray(self._items[self._at : self._at + part * shape.size])
            if redelivered:
                items[:: shape.size] = b"\x01" * part
            parts.append(bytes(items))
            shapes.append(shape._replace(count=part))
            self._move(shape, part)
            left -= part
        offsets = batch.offsets
        if offsets is not None:
            offsets = [each + batch.base - base for each in offsets[start : start + count]]
        joined = b"".join(parts)
        stop = self.offset - base
        return Batch(base, batch.time_ms, shapes, joined, [None], [], len(joined), stop, offsets)

    def copy(self) -> BatchReader:
        """Return another one at the same place."""
        other = BatchReader(self.batch, self._fields)
        other.index, other.left = self.index, self.left
        other._shape, other._left_in_shape, other._at = self._shape, self._left_in_shape, self._at
        return other

    def _next_shape(self, count: int) -> int:
        """Go on to the next shape if this one is used up; return how many of `count` messages have it."""
        if not self._left_in_shape:
            self._shape += 1
            self._left_in_shape = self.batch.shapes[self._shape].count
        return min(count, self._left_in_shape)

    def _move(self, shape: Shape, count: int) -> None:
        self._at += count * shape.size
        self._left_in_shape -= count
        self.index += count
        self.left -= count

    def _put(
        self,
        shape: Shape,
        count: int,
        items: memoryview,
        template: DeliverTemplate,
        tag: int,
        out: list[bytes | memoryview],
    ) -> None:
        head_bytes, payload_bytes, frame_bytes = shape.first, shape.second, shape.third
        size = shape.size
        prefix = template.prefix(head_bytes)
        #: Where the content header's frame begins in an item, and where the first frame of the body.
        header_at = head_bytes + 2
        body_at = header_at + payload_bytes + 8
        fits = payload_bytes + 8 <= template.frame_max and frame_bytes <= template.frame_max
        if template.channel != 1 or not fits:
            if not fits or body_at + frame_bytes != size:
                _put_reframed(items, count, size, header_at, prefix, template, tag, out)
                return
            items = _restamped(items, count, size, header_at, body_at, template.channel)
        if size >= LARGE_BYTES:
            for start in range(0, count * size, size):
                out.append(prefix + tag.to_bytes(8, "big"))
                out.append(items[start : start + size])
                tag += 1
            return
        if count == 1:
            out.append(b"".join((prefix, tag.to_bytes(8, "big"), items)))
            return
        _join(items, count, size, f"{size}s", b"", prefix, tag, out)


def _put_with(
    fields: bytes,
    shape: Shape,
    count: int,
    items: memoryview,
    template: DeliverTemplate,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """As `BatchReader._put`, with more headers: what the messages have in front of theirs is put in anew."""
    head_bytes, frame_bytes, size = shape.first, shape.third, shape.size
    payload_bytes = shape.second + len(fields)
    prefix = template.prefix(head_bytes)
    header_at = head_bytes + 2
    body_at = header_at + shape.second + 8
    at = table_at(items[:size], head_bytes) + 4
    rest = f"{at}x{size - at}s"
    fits = payload_bytes + 8 <= template.frame_max and frame_bytes <= template.frame_max
    if template.channel != 1 or not fits:
        if not fits or body_at + frame_bytes != size:
            front = longer(bytes(items[:at]), head_bytes, len(fields)) + fields
            rests = _flatten(struct.iter_unpack(rest, items))
            whole = memoryview(b"".join(_flatten(zip(repeat(front), rests))))
            _put_reframed(whole, count, size + len(fields), header_at, prefix, template, tag, out)
            return
        items = _restamped(items, count, size, header_at, body_at, template.channel)
    front = longer(bytes(items[:at]), head_bytes, len(fields)) + fields
    if size >= LARGE_BYTES:
        for start in range(0, count * size, size):
            out.append(b"".join((prefix, tag.to_bytes(8, "big"), front)))
            out.append(items[start + at : start + size])
            tag += 1
        return
    _join(items, count, size, rest, front, prefix, tag, out)


def _join(
    items: memoryview,
    count: int,
    size: int,
    rest: str,
    front: bytes,
    prefix: bytes,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """Put what is in front of an item, its tag, `front` and the rest of it, by this format, into `out` for each item."""
    rests = cut_out(items, 0, count, size, rest)
    apart = bool(front) and count < 256
    starts = _starts(front) if front and not apart else _LOW
    done = 0
    while done < count:
        low = tag & 255
        part = min(256 - low, count - done)
        start_bytes = prefix + (tag >> 8).to_bytes(7, "big")
        if apart:
            pieces = [front] * (4 * part)
            pieces[::4] = [start_bytes] * part
            pieces[1::4] = _LOW[low : low + part]
            pieces[3::4] = rests[done : done + part]
        else:
            pieces = [start_bytes] * (3 * part)
            pieces[1::3] = starts[low : low + part]
            pieces[2::3] = rests[done : done + part]
        out.append(b"".join(pieces))
        tag += part
        done += part


@lru_cache(maxsize=FRONTS_MAX)
def _starts(front: bytes) -> list[bytes]:
    """Return the last byte of each tag with this behind it."""
    return [each + front for each in _LOW]


def _restamped(
    items: memoryview, count: int, size: int, header_at: int, body_at: int, channel: int
) -> memoryview:
    """Return a copy of items with one or two content frames each, for another channel."""
    copy = bytearray(items)
    high, low = bytes((channel >> 8,)) * count, bytes((channel & 255,)) * count
    copy[header_at + 1 :: size] = high
    copy[header_at + 2 :: size] = low
    if body_at < size:
        copy[body_at + 1 :: size] = high
        copy[body_at + 2 :: size] = low
    return memoryview(copy)


def _put_reframed(
    items: memoryview,
    count: int,
    size: int,
    header_at: int,
    prefix: bytes,
    template: DeliverTemplate,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """Cut the content frames anew, for a consumer that takes smaller ones or has another channel."""
    for start in range(0, count * size, size):
        out.append(b"".join((prefix, tag.to_bytes(8, "big"), items[start : start + header_at])))
        framed = bytes(items[start + header_at : start + size])
        out += content.reframed(framed, template.channel, template.frame_max)
        tag += 1


__all__ = ["BatchReader"]
