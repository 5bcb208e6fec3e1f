"""Messages as a stream stores them: they are encoded once, when they are published, so that a replay only
joins them.

An item has all bytes behind the delivery tag of a delivery: the flag `redelivered`, which is never set, the
routing, the end of the method frame, and the content frames, for channel 1. Its headers already end with the
field `x-stream-offset`. So one `join` delivers a run of items of one size (see deliver.py).
"""
# ruff: noqa: B905  # Compiled code makes a loop only of a zip without `strict`.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Final

from amqp_server.streams.layout.columns import (
    COLUMNS_MIN,
    MARK,
    Columns,
    columns_of,
    joined,
    kind_of,
    offset_columns,
)
from amqp_server.streams.layout.deduplication import last_names
from amqp_server.streams.layout.large import LARGE_CONTENT_BYTES, LargeItem
from amqp_server.streams.layout.layouts import FLAGS_AT, OFFSET_FIELD, STREAM, Layout, Layouts, fields_in
from amqp_server.wire import content
from persistence.streams import batch as batches
from persistence.streams.batch import ALIKE, COUNT_MAX, DENSE, KEYED, SHAPE_BYTES, Batch, Shape
from persistence.streams.compression import NONE, ZSTD, Growing
from quorum_queue.machine.dedup import Names
from quorum_queue.machine.run import LargeRun, Run

#: A batch is closed when it has this many bytes.
BATCH_BYTES: Final = 256 * 1024
#: Runs of at most this many messages are encoded together with others.
SHORT_RUN: Final = 64


def _begin_with(contents: list[bytes], front: bytes) -> bool:
    """Return whether all contents begin with `front`."""
    size = len(front)
    return [content[:size] for content in contents].count(front) == len(contents)


def _same(lengths: list[int]) -> bool:
    return lengths.count(lengths[0]) == len(lengths)


def _change_often(contents: list[bytes]) -> bool:
    """Return whether the property flags or the content type change so often that most messages have few
    neighbours of their kind.
    """
    beginnings = [content[FLAGS_AT : FLAGS_AT + 3] for content in contents]
    changes = sum([one != other for one, other in zip(beginnings, beginnings[1:])])
    return changes * COLUMNS_MIN > len(contents)


def _in_one_frame(first: bytes, front: bytes) -> bool:
    """Return whether a message, which begins with this content header, has one body frame at most."""
    at = len(front)
    return len(first) == at or int.from_bytes(first[at + 3 : at + 7], "big") + 8 == len(first) - at


def _largest(framed: bytes, at: int) -> int:
    """Return the size of the largest frame from here on."""
    largest = 0
    while at < len(framed):
        size = int.from_bytes(framed[at + 3 : at + 7], "big") + 8
        largest = max(largest, size)
        at += size
    return largest


def _pre(head: bytes, front: bytes, layout: Layout, payload_bytes: int) -> bytes:
    """Return the bytes of an item before its offset; `front` is the content header's frame as received."""
    return b"".join(
        (
            b"\x00",
            head,
            b"\xce\x02\x00\x01",
            payload_bytes.to_bytes(4, "big"),
            front[7:19],
            layout.before,
        )
    )


def begin_large(layouts: Layouts, content: bytes, head: bytes, channel: int, codec: str = NONE) -> LargeItem:
    """Begin to encode a large message; `channel` is the channel of its frames. `codec` compresses it for an
    entry; LZ4 cannot compress piece by piece, so with LZ4 it stays uncompressed.
    """
    at = 8 + int.from_bytes(content[3:7], "big")
    front = content[:at]
    layout = layouts.of(front)
    payload_bytes = 20 + len(layout.before) + len(layout.after)
    pre = _pre(head, front, layout, payload_bytes)
    packing = Growing() if codec == ZSTD and not layout.dense else None
    return LargeItem(content, at, pre, layout.after + b"\xce", payload_bytes, channel, packing)


class Encoded:
    """A batch in memory, and its parts that are written to disk."""

    __slots__ = ("batch", "named", "names", "packed", "parts", "stamps")

    def __init__(
        self,
        batch: Batch,
        parts: list[bytes],
        names: Sequence[bytes] = (),
        stamps: list[tuple[int, int, int]] | None = None,
        named: Sequence[tuple[int, Names]] = (),
    ) -> None:
        self.batch = batch
        self.parts = parts
        #: Names that identify duplicates of its messages.
        self.names = names
        #: The items of a large message, compressed by Zstandard for an entry.
        self.packed: bytes | None = None
        #: Positions of the offsets, if wanted: number of consecutive items, size of each, and position in the
        #: item.
        self.stamps = stamps
        #: The names of the messages, if duplicates are found later: number of the first message, and the
        #: names from there on.
        self.named = named


class Encoder:
    """Makes batches of runs of messages."""

    __slots__ = (
        "_alike",
        "_base",
        "_codec",
        "_count",
        "_dense_bytes",
        "_done",
        "_filters",
        "_items",
        "_items_crc",
        "_keyed",
        "_last",
        "_layouts",
        "_made",
        "_named",
        "_opening_stop",
        "_pre",
        "_shapes",
        "_short",
        "_short_channel",
        "_short_heads",
        "_size",
        "_stamps",
        "_time_ms",
        "_values",
    )

    def __init__(
        self, layouts: Layouts, base: int, time_ms: int, *, stamped: bool = False, codec: str = NONE
    ) -> None:
        """`stamped`: note the positions of the offsets, which are written later, when duplicates are known.
        `codec`: see begin_large.
        """
        self._layouts = layouts
        self._codec = codec
        self._base = base
        self._time_ms = time_ms
        self._done: list[Encoded] = []
        self._count = self._size = self._dense_bytes = 0
        self._items: list[bytes] = []
        #: Checksum of the items if it is known.
        self._items_crc: int | None = None
        #: Large messages that were encoded before, by the identity of their contents.
        self._made: dict[int, LargeItem] = {}
        #: Encoded shapes, and the last one, which may get more messages.
        self._shapes: list[bytes] = []
        self._last: Shape | None = None
        #: Numbers of the filter values, and the number for each message.
        self._values: dict[bytes | None, int] = {}
        self._filters: list[int] = []
        #: Names of messages that are in no batch yet, with the offset of the first of them.
        self._named: list[tuple[int, Names]] = []
        #: Messages of short runs, which are encoded together: where routing keys alternate, as in a super
        #: stream, each message is a run of its own. Then their heads, and the channel number in their frames.
        self._short: list[bytes] = []
        self._short_heads: list[bytes] = []
        self._short_channel = 0
        self._stamps: list[tuple[int, int, int]] | None = [] if stamped else None
        #: See Batch. `_pre`: the beginning of the last message; `_opening_stop`: where the opening of its
        #: headers ends there.
        self._alike, self._keyed = True, False
        self._pre, self._opening_stop = b"", 0

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""
        return self._base + self._count + len(self._short)

    def add(self, run: Run, names: Names | None = None) -> None:
        """Add messages behind the others."""
        contents = run.contents
        assert contents is not None
        if isinstance(run, LargeRun):
            self._made.update(run.made)
        if names is not None:
            self._named.append((self.next_offset, names))
        heads, count, channel = run.heads, len(contents), run.attributes.channel
        if heads is None and count > SHORT_RUN:
            self._add_short()
            self._add_run(contents, [run.head], channel)
            return
        if self._short and self._short_channel != channel:
            self._add_short()
        self._short_channel = channel
        self._short += contents
        self._short_heads += [run.head] * count if heads is None else heads

    def _add_short(self) -> None:
        """Add the collected messages of short runs."""
        if self._short:
            contents, heads = self._short, self._short_heads
            self._short, self._short_heads = [], []
            if heads.count(heads[0]) == len(heads):
                heads = heads[:1]
            self._add_run(contents, heads, self._short_channel)

    def _add_run(self, contents: list[bytes], heads: list[bytes], channel: int) -> None:
        """Add messages that share one head, or have one head each."""
        count = len(contents)
        first = contents[0]
        front = first[: 8 + int.from_bytes(first[3:7], "big")]
        if count == 1:
            self._add_single(first, heads[0], front, channel)
            return
        one = len(heads) == 1
        lengths = [len(content) for content in contents]
        if (one or _same([len(head) for head in heads])) and _same(lengths):
            if _begin_with(contents, front) and (one or _in_one_frame(first, front)):
                self._add_alike(contents, heads, front, channel)
                return
            if _begin_with(contents, front[: fields_in(front)[0]]):
                self._add_of_one_size(contents, heads, front, channel)
                return
        if count < COLUMNS_MIN:
            self._add_by_size(contents, heads, channel)
        elif self._add_by_columns(contents, lengths, heads, channel):
            pass
        elif _change_often(contents):
            self._add_by_size(contents, heads, channel)
        else:
            self._add_by_kind(contents, lengths, heads, channel)

    def _add_by_columns(
        self, contents: list[bytes], lengths: list[int], heads: list[bytes], channel: int
    ) -> bool:
        """Add messages of one kind, whose lengths are these; return whether they are of one kind."""
        columns = columns_of(contents, lengths, heads, channel, self.next_offset, self._layouts)
        if columns is None:
            return False
        self._add_columns(columns)
        return True

    def _add_by_kind(
        self, contents: list[bytes], lengths: list[int], heads: list[bytes], channel: int
    ) -> None:
        """Add messages of several kinds; neighbours of one kind go together."""
        start, one = 0, len(heads) == 1
        for kind, group in groupby([kind_of(each) for each in contents]):
            stop = start + len(list(group))
            part, own = contents[start:stop], heads if one else heads[start:stop]
            if (
                not kind
                or len(part) < COLUMNS_MIN
                or not self._add_by_columns(part, lengths[start:stop], own, channel)
            ):
                self._add_by_size(part, own, channel)
            start = stop

    def _add_by_size(self, contents: list[bytes], heads: list[bytes], channel: int) -> None:
        """Add messages; neighbours of one length go together if they begin with the same bytes up to their
        headers.
        """
        start, count, one = 0, len(contents), len(heads) == 1
        while start < count:
            first = contents[start]
            size, front = len(first), first[: 8 + int.from_bytes(first[3:7], "big")]
            opening = front[: fields_in(front)[0]]
            head_bytes = len(heads[0] if one else heads[start])
            stop = start + 1
            while stop < count:
                each = contents[stop]
                if len(each) != size or not each.startswith(opening):
                    break
                if not one and len(heads[stop]) != head_bytes:
                    break
                stop += 1
            if stop == start + 1:
                self._add_single(first, heads[0] if one else heads[start], front, channel)
                start = stop
                continue
            self._add_of_one_size(contents[start:stop], heads if one else heads[start:stop], front, channel)
            start = stop

    def _add_single(self, content: bytes, head: bytes, front: bytes, channel: int) -> None:
        """Add a message that looks like none of its neighbours."""
        at = len(front)
        begin, end = fields_in(front)
        fields = front[begin:end]
        if len(content) > LARGE_CONTENT_BYTES or STREAM in fields or not _in_one_frame(content, front):
            self._add_alike([content], [head], front, channel)
            return
        opening = self._layouts.opening(front, begin)
        table_bytes = len(fields) + len(OFFSET_FIELD) + 8
        payload_bytes = 12 + len(opening.encoded) + 4 + table_bytes + at - 1 - end
        first = b"".join(
            (
                b"\x00",
                head,
                b"\xce\x02\x00\x01",
                payload_bytes.to_bytes(4, "big"),
                front[7:FLAGS_AT],
                opening.encoded,
                table_bytes.to_bytes(4, "big"),
            )
        )
        size = len(first) + table_bytes + len(content) - end
        # It begins another batch if this one is full.
        self._room(size)
        offset = self.next_offset
        self._items += (first, fields, OFFSET_FIELD, offset.to_bytes(8, "big"))
        if channel == 1 or len(content) == at:
            self._items.append(content[end:])
        else:
            self._items += (content[end:at], MARK, content[at + 3 :])
        if self._stamps is not None:
            self._stamps.append((1, size, len(first) + len(fields) + len(OFFSET_FIELD)))
        shape = Shape(1, size, len(head), payload_bytes, len(content) - at)
        self._note(shape, opening.dense, None, False, first, len(first), False)

    def _add_of_one_size(self, contents: list[bytes], heads: list[bytes], front: bytes, channel: int) -> None:
        """Add messages of the same length with the same bytes up to their headers; `front` is the content
        header's frame of the first.
        """
        one_frame = _in_one_frame(contents[0], front)
        if len(heads) > 1 and heads.count(heads[0]) == len(heads):
            heads = heads[:1]
        if len(heads) == 1 or one_frame:
            if _begin_with(contents, front):
                self._add_alike(contents, heads, front, channel)
                return
            begin, end = fields_in(front)
            fields = [content[begin:end] for content in contents]
            if one_frame and len(contents[0]) <= LARGE_CONTENT_BYTES and STREAM not in b"".join(fields):
                self._add_unlike(contents, heads, front, channel, fields)
                return
        if one_frame and len(contents) >= COLUMNS_MIN:
            lengths = [len(contents[0])] * len(contents)
            if self._add_by_columns(contents, lengths, heads, channel):
                return
        self._add_by_front(contents, heads, channel)

    def _add_by_front(self, contents: list[bytes], heads: list[bytes], channel: int) -> None:
        """Add messages of one length; neighbours with the same content header and routing go together."""
        count, start, one = len(contents), 0, len(heads) == 1
        while start < count:
            first = contents[start]
            front = first[: 8 + int.from_bytes(first[3:7], "big")]
            head = heads[0] if one else heads[start]
            stop = start + 1
            while stop < count and contents[stop].startswith(front) and (one or heads[stop] == head):
                stop += 1
            self._add_alike(contents[start:stop], [head], front, channel)
            start = stop

    def _add_unlike(
        self,
        contents: list[bytes],
        heads: list[bytes],
        front: bytes,
        channel: int,
        fields: list[bytes],
    ) -> None:
        """Add messages of one length, each with `fields` and later properties of its own, and with at most
        one body frame; `front` is the content header's frame of the first.
        """
        first, at = contents[0], len(front)
        layout = self._layouts.of(front)
        payload_bytes = 20 + len(layout.before) + len(layout.after)
        pre = _pre(heads[0], front, layout, payload_bytes)
        end = at - 1 - len(layout.after)
        size = len(pre) + 8 + len(first) - end
        frame_bytes = len(first) - at
        rests = [content[end:] for content in contents]
        if channel != 1 and frame_bytes:
            # The number of the channel is in the body's frame.
            body = at - end
            rests = [each[:body] + MARK + each[body + 3 :] for each in rests]
        shape = Shape(0, size, len(heads[0]), payload_bytes, frame_bytes)
        # Everything before the fields, but for the routing if that differs.
        routing = 1 + len(heads[0]) if len(heads) > 1 else 0
        opening = pre[routing : len(pre) - len(layout.before) + layout.opening]
        start, count = 0, len(contents)
        while start < count:
            room = self._room(shape.size)
            stop = min(start + room, count)
            routes = heads[start:stop] if routing else []
            self._put_unlike(routes, opening, fields[start:stop], rests[start:stop])
            if self._stamps is not None:
                self._stamps.append((stop - start, size, len(pre)))
            self._note_layout(shape._replace(count=stop - start), layout, pre, keyed=len(heads) > 1)
            start = stop

    def _add_alike(self, contents: list[bytes], heads: list[bytes], front: bytes, channel: int) -> None:
        """Add messages with the same content header, and bodies of the same length.

        They have the same routing, or each its own of the same length; in the second case their bodies have
        at most one frame.
        """
        head = heads[0]
        layout = self._layouts.of(front)
        if len(contents[0]) > LARGE_CONTENT_BYTES:
            for number, each in enumerate(contents):
                self._add_large(each, head if len(heads) == 1 else heads[number], channel, layout)
            return
        payload_bytes = 20 + len(layout.before) + len(layout.after)
        pre = _pre(head, front, layout, payload_bytes)
        first, at = contents[0], len(front)
        post = layout.after + b"\xce"
        if len(first) == at:
            shape = Shape(0, len(pre) + 8 + len(post), len(head), payload_bytes, 0)
            self._add_shaped(contents, heads, shape, pre, post, at, layout)
            return
        frame_bytes = int.from_bytes(first[at + 3 : at + 7], "big") + 8
        if frame_bytes == len(first) - at:
            post += MARK + first[at + 3 : at + 7]
            size = len(pre) + 8 + len(post) + len(first) - at - 7
            shape = Shape(0, size, len(head), payload_bytes, frame_bytes)
            self._add_shaped(contents, heads, shape, pre, post, at + 7, layout)
            return
        for each in contents:
            # Bodies of the same length may be split into frames differently.
            framed = each if channel == 1 else content.restamp_all([each], 1)[0]
            shape = Shape(
                0, len(pre) + 8 + len(post) + len(framed) - at, len(head), payload_bytes, _largest(framed, at)
            )
            self._add_shaped([framed], heads, shape, pre, post, at, layout)

    def _add_large(self, content: bytes, head: bytes, channel: int, layout: Layout) -> None:
        """Add a message as a separate batch."""
        item = self._made.pop(id(content), None)
        if item is None:
            item = begin_large(self._layouts, content, head, channel, self._codec)
        if self._count:
            self._close()
        # The compressed item also has offset 0, so both have the same checksum.
        data, self._items_crc = item.finish(self._base if self._stamps is None else 0)
        self._items.append(data)
        if self._stamps is not None:
            self._stamps.append((1, item.size, len(item.pre)))
        shape = Shape(1, item.size, len(head), item.payload_bytes, item.largest)
        self._note_layout(shape, layout, item.pre, keyed=False)
        self._close()
        self._done[-1].packed = item.packed

    def _add_shaped(
        self,
        contents: list[bytes],
        heads: list[bytes],
        shape: Shape,
        pre: bytes,
        post: bytes,
        at: int,
        layout: Layout,
    ) -> None:
        """Add messages of this shape, in as many batches as needed."""
        start, count = 0, len(contents)
        while start < count:
            room = self._room(shape.size)
            part = contents[start : start + room]
            own = heads if len(heads) == 1 else heads[start : start + room]
            self._put(part, own, pre, post, at)
            if self._stamps is not None:
                self._stamps.append((len(part), shape.size, len(pre)))
            self._note_layout(shape._replace(count=len(part)), layout, pre, keyed=len(heads) > 1)
            start += len(part)

    def _room(self, size: int) -> int:
        """Return how many messages of this size fit into the batch, at least one; begin another batch if this
        one is full.
        """
        room = min((BATCH_BYTES - self._size) // size, COUNT_MAX - self._count)
        if room <= 0 and self._count:
            self._close()
            room = min(BATCH_BYTES // size, COUNT_MAX)
        return max(room, 1)

    def _put(self, contents: list[bytes], heads: list[bytes], pre: bytes, post: bytes, at: int) -> None:
        """Put items of these parts: `pre`, in which a head stands unless all have their own, the offset,
        `post`, and the content from `at` on.
        """
        offset, count = self.next_offset, len(contents)
        if count == 1:
            self._items += (pre, offset.to_bytes(8, "big"), post, contents[0][at:])
            return
        bodies = [content[at:] for content in contents]
        if len(heads) == 1:
            columns = offset_columns(pre, offset, count)
        else:
            columns = [[b"\x00"] * count, heads, *offset_columns(pre[1 + len(heads[0]) :], offset, count)]
        self._items.append(joined([*columns, [post] * count, bodies], 0, count))

    def _put_unlike(
        self, heads: list[bytes], opening: bytes, fields: list[bytes], rests: list[bytes]
    ) -> None:
        """Put items of these parts: a head if they have one each, `opening`, the fields, the offset, the
        rest.
        """
        count = len(rests)
        columns = [[opening] * count, fields, *offset_columns(OFFSET_FIELD, self.next_offset, count), rests]
        if heads:
            columns = [[b"\x00"] * count, heads, *columns]
        self._items.append(joined(columns, 0, count))

    def _note_layout(self, shape: Shape, layout: Layout, pre: bytes, *, keyed: bool) -> None:
        """Note messages of this shape and layout; the first of them begins with `pre`."""
        stop = len(pre) - len(layout.before) + layout.opening
        self._note(shape, layout.dense, layout.value, layout.names_stream, pre, stop, keyed)

    def _note(
        self,
        shape: Shape,
        dense: bool,
        value: bytes | None,
        names_stream: bool,
        pre: bytes,
        stop: int,
        keyed: bool,
    ) -> None:
        """Note messages of this shape; the first of them begins with `pre`, and its headers at `stop`."""
        if dense:
            self._dense_bytes += shape.count * shape.size
        self._count += shape.count
        self._size += shape.count * shape.size
        self._keyed = self._keyed or keyed
        if names_stream:
            self._alike = False
        self._note_shape(shape, pre, stop)
        number = self._values.setdefault(value, len(self._values))
        self._filters += [number] * shape.count

    def _note_shape(self, shape: Shape, pre: bytes, stop: int) -> None:
        last = self._last
        if last is not None and last[1:] == shape[1:]:
            self._last = last._replace(count=last.count + shape.count)
            before, routing = self._pre, 1 + shape.first
            if before[:routing] != pre[:routing]:
                self._keyed = True
            if before[routing : self._opening_stop] != pre[routing:stop]:
                self._alike = False
        else:
            if last is not None:
                self._shapes.append(batches.pack_shape(*last))
            self._last = shape
        self._pre, self._opening_stop = pre, stop

    def _add_columns(self, columns: Columns) -> None:
        """Add messages with properties and sizes of their own, in as many batches as needed."""
        start, count = 0, columns.count
        sums = [0, *accumulate(columns.sizes)]
        while start < count:
            stop = bisect_right(sums, sums[start] + BATCH_BYTES - self._size) - 1
            stop = min(stop, start + COUNT_MAX - self._count)
            if stop <= start:
                if self._count:
                    self._close()
                    continue
                stop = start + 1
            self._items.append(columns.items(start, stop))
            if self._stamps is not None:
                self._stamps += columns.stamps(start, stop)
            if columns.dense:
                self._dense_bytes += sums[stop] - sums[start]
            self._count += stop - start
            self._size += sums[stop] - sums[start]
            self._note_columns(columns, start, stop)
            start = stop

    def _note_columns(self, columns: Columns, start: int, stop: int) -> None:
        """Note the shapes, flags and filter values of these messages."""
        self._alike = self._alike and columns.are_alike(start, stop)
        self._keyed = self._keyed or columns.are_keyed(start, stop)
        packed = columns.shapes(start, stop)
        pre = columns.opening(start)
        self._note_shape(batches.shape_in(packed, 0), pre, len(pre))
        last = len(packed) - SHAPE_BYTES
        if last and self._last is not None:
            self._shapes += (batches.pack_shape(*self._last), packed[SHAPE_BYTES:last])
            self._last = batches.shape_in(packed, last)
            self._pre = columns.opening(stop - 1)
            self._opening_stop = len(self._pre)
        if columns.values:
            numbers = self._values
            for value in columns.values[start:stop]:
                self._filters.append(numbers.setdefault(value, len(numbers)))
        else:
            number = self._values.setdefault(None, len(self._values))
            self._filters += [number] * (stop - start)

    def _close(self) -> None:
        items = b"".join(self._items)
        if self._last is not None:
            self._shapes.append(batches.pack_shape(*self._last))
        shapes = b"".join(self._shapes)
        values = list(self._values)
        filters = self._filters if len(values) > 1 else []
        named = self._take_named() if self._named else []
        names: list[bytes] = []
        if self._stamps is None:
            for _, part in named:
                names += last_names(part, 0, len(part))
            named = []
        flags = DENSE if self._dense_bytes * 2 > self._size else 0
        if self._alike:
            flags |= ALIKE
        if self._keyed:
            flags |= KEYED
        parts = batches.encode(
            self._base,
            self._time_ms,
            shapes,
            items,
            values,
            filters,
            names,
            flags=flags,
            span=self._count,
            items_crc=self._items_crc,
        )
        size = sum(map(len, parts))
        batch = Batch(
            self._base, self._time_ms, shapes, items, values, filters, size, self._count, flags=flags
        )
        self._done.append(Encoded(batch, parts, names, self._stamps, named))
        self._base += self._count
        self._count = self._size = self._dense_bytes = 0
        self._items, self._shapes, self._values, self._filters = [], [], {}, []
        self._last = None
        self._items_crc = None
        self._alike, self._keyed = True, False
        if self._stamps is not None:
            self._stamps = []

    def _take_named(self) -> list[tuple[int, Names]]:
        """Return the names of the messages of this batch, with the number of the first message."""
        stop = self._base + self._count
        found: list[tuple[int, Names]] = []
        rest: list[tuple[int, Names]] = []
        for first, names in self._named:
            start, end = max(self._base - first, 0), min(stop - first, len(names))
            if start < end:
                found.append((first + start - self._base, names[start:end]))
            if first + len(names) > stop:
                rest.append((first, names))
        self._named = rest
        return found

    def finish(self) -> list[Encoded]:
        """Return all batches."""
        self._add_short()
        if self._count:
            self._close()
        return self._done
