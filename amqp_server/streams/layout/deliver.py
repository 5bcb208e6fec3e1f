"""Deliveries out of a batch: the hot loop of a replay.

An item is ready to be sent except for the bytes in front of it, which differ by consumer and delivery tag,
and for the channel number in its content frames. C code cuts items of one size out of the batch, puts them
into a list and joins them; channel numbers are written into all of them at once. Both use slices with a step,
so no message costs Python code of its own. (A slice of a list costs half of what zip and chain cost.)
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from functools import lru_cache
from itertools import chain
from typing import Final

from amqp_server.streams.layout.mixed import MixedItems, is_mixed
from amqp_server.streams.layout.stored_message import cut_out, longer, table_at
from amqp_server.wire import content
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from persistence.streams.batch import Batch, Shape, shape_in

#: Cached beginnings of whole runs of messages, each with all values of the last byte of a tag: 30 KB each. A
#: run of 256 messages pays for one.
FRONTS_MAX: Final = 32
_LOW: Final = [bytes((value,)) for value in range(256)]
_flatten = chain.from_iterable


class BatchReader:
    """One consumer's position in a batch."""

    __slots__ = (
        "_at",
        "_fields",
        "_items",
        "_keyed",
        "_left_in_shape",
        "_mixed",
        "_shape",
        "batch",
        "index",
        "left",
    )

    def __init__(
        self,
        batch: Batch,
        fields: bytes = b"",
        *,
        keyed: bool = False,
        mixed: MixedItems | None = None,
    ) -> None:
        """`fields` are encoded headers that each message gets in front of its own. With them, all messages of
        a shape must have the same bytes between their routing and their headers, and if not `keyed` also the
        same routing.
        """
        self.batch = batch
        self._fields = fields
        self._keyed = keyed
        #: Only if most messages have a shape of their own.
        self._mixed = MixedItems(batch) if mixed is None and is_mixed(batch) else mixed
        #: Number of the next message, and of the messages from there on.
        self.index = 0
        self.left = batch.count
        self._items = memoryview(batch.items)
        self._shape = 0
        self._left_in_shape = shape_in(batch.packed_shapes, 0).count
        self._at = 0

    @property
    def offset(self) -> int:
        """The offset of the next message; after the last one, the offset of the next batch."""
        batch = self.batch
        if batch.offsets is None:
            return batch.base + self.index
        return batch.base + batch.offsets[self.index] if self.left else batch.stop

    def skip_to(self, offset: int) -> None:
        """Skip messages before this offset."""
        offsets, low = self.batch.offsets, offset - self.batch.base
        self.skip((low if offsets is None else bisect_left(offsets, low)) - self.index)

    def skip(self, count: int) -> None:
        """Skip this number of messages; the batch must have them."""
        if self._mixed is not None:
            self._go_to(self.index + count)
            return
        while count:
            part = self._next_shape(count)
            self._move(self.batch.shapes[self._shape], part)
            count -= part

    def take(self, count: int, template: DeliverTemplate, tag: int, out: list[bytes | memoryview]) -> None:
        """Put the deliveries of the next messages into `out`, with delivery tags from `tag` on; the batch
        must have them.
        """
        mixed = self._mixed
        while count:
            if mixed is not None:
                part = mixed.easy(self.index, count, template, len(self._fields))
                if part:
                    mixed.put(self.index, part, self._fields, template, tag, out)
                    self._go_to(self.index + part)
                    tag += part
                    count -= part
                    continue
            part = self._next_shape(count)
            shape = self.batch.shapes[self._shape]
            items = self._items[self._at : self._at + part * shape.size]
            if self._fields:
                _put_with(self._fields, self._keyed, shape, part, items, template, tag, out)
            else:
                self._put(shape, part, items, template, tag, out)
            self._move(shape, part)
            tag += part
            count -= part

    def cut(self, count: int, *, redelivered: bool = False) -> Batch:
        """Take the next messages and return them as a separate batch; this batch must have them."""
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
        """Return another reader at the same position."""
        other = BatchReader(self.batch, self._fields, keyed=self._keyed, mixed=self._mixed)
        other.index, other.left = self.index, self.left
        other._shape, other._left_in_shape, other._at = self._shape, self._left_in_shape, self._at
        return other

    def _next_shape(self, count: int) -> int:
        """Move to the next shape if this one is used up; return how many of `count` messages have it."""
        if not self._left_in_shape:
            self._shape += 1
            self._left_in_shape = self.batch.shapes[self._shape].count
        return min(count, self._left_in_shape)

    def _go_to(self, number: int) -> None:
        """Go to this message of a batch whose messages mostly have a shape of their own."""
        if self._mixed is not None:
            self.index, self.left = number, self.batch.count - number
            self._shape, self._left_in_shape, self._at = self._mixed.place(number)

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
        #: Offsets in an item of the content header's frame and of the first body frame.
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
        _join(cut_out(items, 0, count, size, f"{size}s"), b"", count, prefix, tag, out)


def _put_with(
    fields: bytes,
    keyed: bool,
    shape: Shape,
    count: int,
    items: memoryview,
    template: DeliverTemplate,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """Like `BatchReader._put`, with added headers: the bytes in front of the messages' own headers are
    rewritten.
    """
    head_bytes, frame_bytes, size = shape.first, shape.third, shape.size
    payload_bytes = shape.second + len(fields)
    prefix = template.prefix(head_bytes)
    header_at = head_bytes + 2
    body_at = header_at + shape.second + 8
    routing, at = 1 + head_bytes, table_at(items[:size], head_bytes) + 4
    fits = payload_bytes + 8 <= template.frame_max and frame_bytes <= template.frame_max
    if template.channel != 1 or not fits:
        if not fits or body_at + frame_bytes != size:
            opening = longer(bytes(items[routing:at]), len(fields)) + fields
            cut = struct.iter_unpack(f"{routing}s{at - routing}x{size - at}s", items)
            whole = memoryview(b"".join([part for head, rest in cut for part in (head, opening, rest)]))
            _put_reframed(whole, count, size + len(fields), header_at, prefix, template, tag, out)
            return
        items = _restamped(items, count, size, header_at, body_at, template.channel)
    opening = longer(bytes(items[routing:at]), len(fields)) + fields
    if size >= LARGE_BYTES:
        for start in range(0, count * size, size):
            head = items[start : start + routing]
            out.append(b"".join((prefix, tag.to_bytes(8, "big"), head, opening)))
            out.append(items[start + at : start + size])
            tag += 1
        return
    if keyed:
        parts = cut_out(items, 0, count, size, f"{routing}s{at - routing}x{size - at}s", 2)
        _join_keyed(parts, opening, count, prefix, tag, out)
    else:
        rests = cut_out(items, 0, count, size, f"{at}x{size - at}s")
        _join(rests, bytes(items[:routing]) + opening, count, prefix, tag, out)


def _join_keyed(
    parts: list[bytes],
    opening: bytes,
    count: int,
    prefix: bytes,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """For each item, put its prefix, its tag, its routing, `opening` and its rest into `out`."""
    done = 0
    while done < count:
        low = tag & 255
        part = min(256 - low, count - done)
        pieces = [opening] * (5 * part)
        pieces[::5] = [prefix + (tag >> 8).to_bytes(7, "big")] * part
        pieces[1::5] = _LOW[low : low + part]
        pieces[2::5] = parts[2 * done : 2 * (done + part) : 2]
        pieces[4::5] = parts[2 * done + 1 : 2 * (done + part) : 2]
        out.append(b"".join(pieces))
        tag += part
        done += part


def _join(
    rests: list[bytes],
    front: bytes,
    count: int,
    prefix: bytes,
    tag: int,
    out: list[bytes | memoryview],
) -> None:
    """For each item, put its prefix, its tag, `front` and its rest into `out`."""
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
    """Return each value of a tag's last byte, followed by `front`."""
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
    """Make new content frames, for a consumer that takes smaller frames or has another channel."""
    for start in range(0, count * size, size):
        out.append(b"".join((prefix, tag.to_bytes(8, "big"), items[start : start + header_at])))
        framed = bytes(items[start + header_at : start + size])
        out += content.reframed(framed, template.channel, template.frame_max)
        tag += 1


__all__ = ["BatchReader"]
