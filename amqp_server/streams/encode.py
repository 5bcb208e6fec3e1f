"""Messages as they stand in a stream: made ready once, when they are published, so that a replay only puts them together.

An item is what follows the delivery tag in a delivery: the flag `redelivered`, which is never set, the routing, the end of
the method frame, and the content frames, for channel 1. Its headers already have the field `x-stream-offset`, as the last
one. So a run of items of one size is delivered by one `join` (see deliver.py).
"""

from __future__ import annotations

from itertools import chain, repeat
from operator import itemgetter
from typing import Final

from amqp_server.wire import content, tables
from amqp_server.wire.content import Properties
from persistence.streams import batch as batches
from persistence.streams.batch import COUNT_MAX, FILTER_BYTES_MAX, Batch, Shape
from quorum_queue.machine.run import Run

#: A batch is closed when it has so many bytes.
BATCH_BYTES: Final = 256 * 1024
#: Layouts of properties that are remembered, and the longest properties among them.
LAYOUTS_MAX: Final = 1024
LAYOUT_BYTES_MAX: Final = 1024
OFFSET: Final = b"x-stream-offset"
FILTER: Final = b"x-stream-filter-value"
_LOW: Final = [bytes((value,)) for value in range(256)]
_HEADERS_FLAG: Final = 0x2000
_flatten = chain.from_iterable


class Layout:
    """How the properties of a message are written around its offset."""

    __slots__ = ("after", "before", "value")

    def __init__(self, before: bytes, after: bytes, value: bytes | None) -> None:
        #: From the property flags to the offset.
        self.before = before
        self.after = after
        #: Its filter value.
        self.value = value


class Layouts:
    """Layouts by the bytes of flags and properties: most messages have the same few."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Layout] = {}

    def of(self, header: bytes) -> Layout:
        """Return the layout for a content header's payload."""
        key = header[12:]
        layout = self._known.get(key)
        if layout is None:
            layout = _layout(header)
            if len(key) <= LAYOUT_BYTES_MAX:
                if len(self._known) >= LAYOUTS_MAX:
                    self._known.clear()
                self._known[key] = layout
        return layout


def _alike(contents: list[bytes], front: bytes) -> bool:
    """Return whether all contents have one length and begin like this. C goes through them."""
    count = len(contents)
    if list(map(len, contents)).count(len(contents[0])) != count:
        return False
    return list(map(itemgetter(slice(len(front))), contents)).count(front) == count


def _largest(framed: bytes, at: int) -> int:
    """Return the bytes of the largest of the frames from here on."""
    largest = 0
    while at < len(framed):
        size = int.from_bytes(framed[at + 3 : at + 7], "big") + 8
        largest = max(largest, size)
        at += size
    return largest


def _layout(header: bytes) -> Layout:
    properties = Properties.parse(header)
    table = tables.replaced(properties.raw.get("headers", b""), {OFFSET: None})
    flags = int.from_bytes(header[12:14], "big") | _HEADERS_FLAG
    before = [flags.to_bytes(2, "big")]
    after: list[bytes] = []
    part = before
    for name in content.PROPERTIES:
        if name == "headers":
            fields = table[4:] + bytes((len(OFFSET),)) + OFFSET + b"l"
            part.append((len(fields) + 8).to_bytes(4, "big") + fields)
            part = after
        elif name in properties.raw:
            part.append(properties.raw[name])
    return Layout(b"".join(before), b"".join(after), _filter_value(table))


def _filter_value(table: bytes) -> bytes | None:
    if FILTER not in table:
        return None
    value = tables.decode(table).get(FILTER.decode())
    encoded = value.encode() if isinstance(value, str) else value
    if isinstance(encoded, bytes) and len(encoded) <= FILTER_BYTES_MAX:
        return encoded
    return None


class Encoded:
    """A batch in memory, and the parts that are written of it."""

    __slots__ = ("batch", "parts", "stamps")

    def __init__(
        self, batch: Batch, parts: list[bytes], stamps: list[tuple[int, int, int]] | None = None
    ) -> None:
        self.batch = batch
        self.parts = parts
        #: Where the offsets stand, if that is wanted: neighbours, the size of each, and the place in it.
        self.stamps = stamps


class Encoder:
    """Makes batches of runs of messages."""

    __slots__ = (
        "_base",
        "_count",
        "_done",
        "_filters",
        "_items",
        "_layouts",
        "_shapes",
        "_size",
        "_stamps",
        "_time_ms",
        "_values",
    )

    def __init__(self, layouts: Layouts, base: int, time_ms: int, *, stamped: bool = False) -> None:
        """`stamped`: note where the offsets stand, because they are written later."""
        self._layouts = layouts
        self._base = base
        self._time_ms = time_ms
        self._done: list[Encoded] = []
        self._count = self._size = 0
        self._items: list[bytes] = []
        self._shapes: list[Shape] = []
        #: Numbers of the filter values, and that of each message.
        self._values: dict[bytes | None, int] = {}
        self._filters: list[int] = []
        self._stamps: list[tuple[int, int, int]] | None = [] if stamped else None

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self._base + self._count

    def add(self, run: Run) -> None:
        """Add messages behind the others."""
        contents = run.contents
        assert contents is not None
        heads = run.heads
        channel = run.attributes.channel
        count, start = len(contents), 0
        if heads is None and count > 1:
            front = contents[0][: 8 + int.from_bytes(contents[0][3:7], "big")]
            if _alike(contents, front):
                self._add_alike(contents, run.head, front, channel)
                return
        while start < count:
            first = contents[start]
            size, front = len(first), first[: 8 + int.from_bytes(first[3:7], "big")]
            head = run.head if heads is None else heads[start]
            stop = start + 1
            while stop < count:
                each = contents[stop]
                if len(each) != size or not each.startswith(front):
                    break
                if heads is not None and heads[stop] != head:
                    break
                stop += 1
            self._add_alike(contents[start:stop], head, front, channel)
            start = stop

    def _add_alike(self, contents: list[bytes], head: bytes, front: bytes, channel: int) -> None:
        """Add messages with the same routing, the same content header, and bodies of the same length."""
        layout = self._layouts.of(front[7:-1])
        payload_bytes = 20 + len(layout.before) + len(layout.after)
        pre = b"".join(
            (
                b"\x00",
                head,
                b"\xce\x02\x00\x01",
                payload_bytes.to_bytes(4, "big"),
                front[7:19],
                layout.before,
            )
        )
        first, at = contents[0], len(front)
        post = layout.after + b"\xce"
        if len(first) == at:
            shape = Shape(0, len(pre) + 8 + len(post), len(head), payload_bytes, 0)
            self._add_shaped(contents, shape, pre, post, at, layout.value)
            return
        frame_bytes = int.from_bytes(first[at + 3 : at + 7], "big") + 8
        if frame_bytes == len(first) - at:
            post += b"\x03\x00\x01" + first[at + 3 : at + 7]
            size = len(pre) + 8 + len(post) + len(first) - at - 7
            shape = Shape(0, size, len(head), payload_bytes, frame_bytes)
            self._add_shaped(contents, shape, pre, post, at + 7, layout.value)
            return
        for each in contents:
            # Bodies of the same length may have been cut in different places.
            framed = each if channel == 1 else content.restamp_all([each], 1)[0]
            shape = Shape(
                0, len(pre) + 8 + len(post) + len(framed) - at, len(head), payload_bytes, _largest(framed, at)
            )
            self._add_shaped([framed], shape, pre, post, at, layout.value)

    def _add_shaped(
        self, contents: list[bytes], shape: Shape, pre: bytes, post: bytes, at: int, value: bytes | None
    ) -> None:
        """Add messages of this shape, in as many batches as they take."""
        start, count = 0, len(contents)
        while start < count:
            room = min((BATCH_BYTES - self._size) // shape.size, COUNT_MAX - self._count)
            if room <= 0:
                if self._count:
                    self._close()
                    continue
                room = 1
            part = contents[start : start + room]
            self._put(part, pre, post, at)
            if self._stamps is not None:
                self._stamps.append((len(part), shape.size, len(pre)))
            self._note(shape._replace(count=len(part)), value)
            start += len(part)

    def _put(self, contents: list[bytes], pre: bytes, post: bytes, at: int) -> None:
        offset, count, done = self.next_offset, len(contents), 0
        bodies = map(itemgetter(slice(at, None)), contents)
        if count == 1:
            self._items += (pre, offset.to_bytes(8, "big"), post, contents[0][at:])
            return
        while done < count:
            low = offset & 255
            part = min(256 - low, count - done)
            start = pre + (offset >> 8).to_bytes(7, "big")
            self._items.append(
                b"".join(_flatten(zip(repeat(start), _LOW[low : low + part], repeat(post), bodies)))
            )
            offset += part
            done += part

    def _note(self, shape: Shape, value: bytes | None) -> None:
        self._count += shape.count
        self._size += shape.count * shape.size
        last = self._shapes[-1] if self._shapes else None
        if last is not None and last[1:] == shape[1:]:
            self._shapes[-1] = last._replace(count=last.count + shape.count)
        else:
            self._shapes.append(shape)
        number = self._values.setdefault(value, len(self._values))
        self._filters += [number] * shape.count

    def _close(self) -> None:
        items = b"".join(self._items)
        values = list(self._values)
        filters = self._filters if len(values) > 1 else []
        parts = batches.encode(self._base, self._time_ms, self._shapes, items, values, filters)
        size = sum(map(len, parts))
        batch = Batch(self._base, self._time_ms, self._shapes, items, values, filters, size)
        self._done.append(Encoded(batch, parts, self._stamps))
        self._base += self._count
        self._count = self._size = 0
        self._items, self._shapes, self._values, self._filters = [], [], {}, []
        if self._stamps is not None:
            self._stamps = []

    def finish(self) -> list[Encoded]:
        """Return all batches."""
        if self._count:
            self._close()
        return self._done
