"""Messages with properties and sizes of their own, encoded for a stream by columns.

An object or a call for each message would cost more than everything else. So the same part of all messages
is cut out at once, numbers are computed in all messages at once, and one `join` makes the items; all loops
run in C. Numbers of 4 bytes, one for each message, are one large integer where they are only added: no sum
is longer than 4 bytes. Parts that are equal in all messages, or have the same size, are rows of a matrix of
bytes, in which a slice with a step is a column.
"""
# ruff: noqa: B905  # Compiled code makes a loop only of a zip without `strict`.

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import compress, islice, repeat
from operator import add, ne, not_, sub
from typing import Any, Final

from amqp_server.streams.layout.large import LARGE_CONTENT_BYTES
from amqp_server.streams.layout.layouts import FLAGS_AT, HAS_HEADERS, OFFSET_FIELD, STREAM, Layouts, fields_in
from amqp_server.streams.layout.stored_message import cut_out
from persistence.streams.batch import (
    COUNT_AT,
    FIRST_AT,
    SECOND_AT,
    SHAPE_BYTES,
    SIZE_AT,
    THIRD_AT,
    pack_shape,
)

#: Fewer messages are encoded faster one by one.
COLUMNS_MIN: Final = 8
#: In a content header's frame: position of its length, behind which come class, weight, and size of the body.
_LENGTH_AT: Final = 3
#: The same, counted from the length: class, the lower half of the body's size, and the property flags.
_CLASS: Final = 4
_BODY: Final = 12
_FLAGS: Final = 16
_OFFSET_BYTES: Final = len(OFFSET_FIELD) + 8
#: What a body frame on channel 1 begins with.
MARK: Final = b"\x03\x00\x01"
_LOWS: Final = bytes(range(256))
_LOW: Final = [bytes((value,)) for value in range(256)]


def _same(parts: list[Any]) -> bool:
    return parts.count(parts[0]) == len(parts)


def _numbers(lanes: bytes | bytearray) -> list[int]:
    """Return the numbers of 4 bytes each."""
    numbers = array("I", bytes(lanes))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tolist()


def _lanes(numbers: Iterable[int]) -> bytes:
    """Return numbers as 4 bytes each."""
    found = array("I", numbers)
    if sys.byteorder == "little":
        found.byteswap()
    return found.tobytes()


def _column(matrix: bytes, at: int, width: int, count: int) -> bytearray:
    """Return a number of 4 bytes from each row."""
    lanes = bytearray(4 * count)
    for byte in range(4):
        lanes[byte::4] = matrix[at + byte :: width]
    return lanes


def _spread(lanes: bytes | bytearray, matrix: bytearray, at: int, width: int) -> None:
    """Put a number of 4 bytes into each row."""
    for byte in range(4):
        matrix[at + byte :: width] = lanes[byte::4]


def _rows(matrix: bytearray, count: int, width: int) -> list[bytes]:
    return cut_out(memoryview(matrix), 0, count, width, f"{width}s")


def put_offsets(matrix: bytearray, at: int, width: int, offset: int, count: int) -> None:
    """Put consecutive offsets into rows that all have the first of them already."""
    last = offset + count - 1
    matrix[at + 7 :: width] = (_LOWS * (count // 256 + 2))[offset & 255 :][:count]
    if offset >> 8 == last >> 8:
        return
    # The upper bytes change after the last offset of each 256.
    uppers = list(range(offset >> 8, (last >> 8) + 1))
    repeats = [256] * len(uppers)
    repeats[0], repeats[-1] = 256 - (offset & 255), (last & 255) + 1
    for byte in range(7):
        shift = 8 * (6 - byte)
        if uppers[0] >> shift != uppers[-1] >> shift:
            matrix[at + byte :: width] = b"".join(
                [bytes((upper >> shift & 255,)) * times for upper, times in zip(uppers, repeats)]
            )


def joined(columns: list[list[bytes]], start: int, stop: int) -> bytes:
    """Return the parts of these messages in order, joined."""
    count = len(columns)
    if count == 1:
        return b"".join(columns[0][start:stop])
    parts = [b""] * (count * (stop - start))
    for number, column in enumerate(columns):
        parts[number::count] = column[start:stop]
    return b"".join(parts)


class Columns:
    """Messages in one frame each, whose properties up to the headers are the same: content type, encoding,
    and which properties they have.
    """

    __slots__ = (
        "_begin",
        "_contents",
        "_heads",
        "_pairs",
        "_parts",
        "_rows",
        "_shape_rows",
        "_shapes",
        "_stamp_at",
        "_tables",
        "count",
        "dense",
        "names_stream",
        "opening_bytes",
        "sizes",
        "values",
    )

    def __init__(
        self, contents: list[bytes], heads: list[bytes], begin: int, opening_bytes: int, *, dense: bool
    ) -> None:
        self.count = len(contents)
        #: Bytes from the end of the routing to the first header.
        self.opening_bytes = opening_bytes
        #: See layouts.Layout.
        self.dense = dense
        #: Bytes of each item.
        self.sizes: list[int] = []
        #: Filter values; empty if no message has one.
        self.values: list[bytes | None] = []
        #: True for messages whose headers seem to name the stream; empty if none does.
        self.names_stream: list[bool] = []
        self._contents = contents
        self._begin = begin
        self._heads = heads
        #: Lists of the parts of the items, and one of these: the bytes up to the first header, without the
        #: routing if the messages have a head each.
        self._parts: list[list[bytes]] = []
        self._rows: list[bytes] = []
        #: Lengths of the headers without the offset: of all messages if they differ, else of the first.
        self._tables: list[int] = []
        #: Position of the offset, without the bytes of head and headers.
        self._stamp_at = 1 + opening_bytes + len(OFFSET_FIELD)
        #: The shapes, one for each message; the same in a list, and for all but the last message whether
        #: the next one has the same shape, unless no two neighbours have one shape.
        self._shapes = b""
        self._shape_rows: list[bytes] = []
        self._pairs: list[bool] = []

    def compare(self, payloads: bytes, frames: bytes) -> None:
        """Note the lengths of content headers' payloads and of body frames, 4 bytes each; then find
        neighbours of one shape.
        """
        head = self._heads[0]
        keyed = len(self._heads) > 1
        sizes, count = self.sizes, self.count
        matrix = bytearray(pack_shape(1, 0, len(head), 0, 0) * count)
        _spread(_lanes(sizes), matrix, SIZE_AT, SHAPE_BYTES)
        _spread(payloads, matrix, SECOND_AT, SHAPE_BYTES)
        _spread(frames, matrix, THIRD_AT, SHAPE_BYTES)
        if keyed:
            lengths = _lanes(map(len, self._heads))
            matrix[FIRST_AT::SHAPE_BYTES], matrix[FIRST_AT + 1 :: SHAPE_BYTES] = lengths[2::4], lengths[3::4]
        self._shapes = bytes(matrix)
        if True in [size == following for size, following in zip(sizes, sizes[1:])]:
            rows = self._shape_rows = _rows(matrix, count, SHAPE_BYTES)
            self._pairs = [row == following for row, following in zip(rows, rows[1:])]

    def items(self, start: int, stop: int) -> bytes:
        """Return the items of these messages."""
        return joined(self._parts, start, stop)

    def opening(self, number: int) -> bytes:
        """Return the bytes of a message's item up to its first header."""
        if len(self._heads) == 1:
            return self._rows[number][: 1 + len(self._heads[0]) + self.opening_bytes]
        return b"".join((b"\x00", self._heads[number], self._rows[number][: self.opening_bytes]))

    def shapes(self, start: int, stop: int) -> bytes:
        """Return the encoded shapes of these messages."""
        same = self._pairs[start : stop - 1]
        if True not in same:
            return self._shapes[start * SHAPE_BYTES : stop * SHAPE_BYTES]
        firsts = [start, *compress(range(start + 1, stop), map(not_, same))]
        rows = bytearray(b"".join(map(self._shape_rows.__getitem__, firsts)))
        _spread(_lanes(map(sub, [*firsts[1:], stop], firsts)), rows, COUNT_AT, SHAPE_BYTES)
        return bytes(rows)

    def stamps(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return the positions of the offsets; see encode.Encoded."""
        places: Iterable[int] = repeat(self._stamp_at)
        if len(self._heads) > 1:
            places = map(add, places, map(len, self._heads[start:stop]))
        else:
            places = repeat(self._stamp_at + len(self._heads[0]))
        if len(self._tables) > 1:
            places = map(add, places, self._tables[start:stop])
        elif self._tables:
            places = map(add, places, repeat(self._tables[0]))
        return list(zip(repeat(1), self.sizes[start:stop], places))

    def are_alike(self, start: int, stop: int) -> bool:
        """Return whether these messages have the flag persistence.streams.batch.ALIKE."""
        if any(self.names_stream[start:stop]):
            return False
        same, tables = self._pairs[start : stop - 1], self._tables[start:stop]
        # Messages of one shape have bodies of one size, and properties of one length.
        return len(self._tables) < 2 or not any(compress(map(ne, tables, islice(tables, 1, None)), same))

    def are_keyed(self, start: int, stop: int) -> bool:
        """Return whether these messages have the flag persistence.streams.batch.KEYED."""
        if len(self._heads) == 1 or not self._pairs:
            return False
        heads = self._heads[start:stop]
        if any(compress(map(ne, heads, islice(heads, 1, None)), self._pairs[start : stop - 1])):
            return True
        return self._cuts_keyed(start) or self._cuts_keyed(stop)

    def _cuts_keyed(self, at: int) -> bool:
        """Return whether this number is within messages of one length that were published with the same bytes
        up to their headers, and with different routing: then both batches get the flag.
        """
        if not 0 < at < self.count or not self._is_linked(at - 1):
            return False
        low, high, heads = at - 1, at + 1, self._heads
        while low and self._is_linked(low - 1):
            low -= 1
        while high < self.count and self._is_linked(high - 1):
            high += 1
        if _same(heads[low:high]):
            return False
        contents, begin = self._contents[low:high], self._begin
        front = contents[0][: 8 + int.from_bytes(contents[0][_LENGTH_AT:7], "big")]
        if all(each.startswith(front) for each in contents):
            return True
        stop = fields_in(front)[1]
        return STREAM not in b"".join([each[begin:stop] for each in contents])

    def _is_linked(self, number: int) -> bool:
        if not self._pairs[number]:
            return False
        one, other, begin = self._contents[number], self._contents[number + 1], self._begin
        return len(one) == len(other) and one[:begin] == other[:begin]


def kind_of(content: bytes) -> bytes:
    """Return the bytes that are the same in all messages of some columns; none if the message is in no
    columns, because it is large or has several body frames.
    """
    begin = fields_in(content)[0]
    at = 8 + int.from_bytes(content[_LENGTH_AT:7], "big")
    size = int.from_bytes(content[_LENGTH_AT + _BODY : FLAGS_AT], "big")
    if len(content) > LARGE_CONTENT_BYTES or len(content) - at != (size + 8 if size else 0):
        return b""
    return content[FLAGS_AT : begin - 4 if content[FLAGS_AT] & HAS_HEADERS else begin]


def columns_of(
    contents: list[bytes],
    lengths: list[int],
    heads: list[bytes],
    channel: int,
    offset: int,
    layouts: Layouts,
) -> Columns | None:
    """Return the columns of messages with consecutive offsets from `offset` on, that share one head or have
    one head each; None if they differ too much. `channel` is the channel in their frames.
    """
    count, first = len(contents), contents[0]
    begin = fields_in(first)[0]
    width = begin - _LENGTH_AT
    middles = b"".join([content[_LENGTH_AT:begin] for content in contents])
    has_table = first[FLAGS_AT] & HAS_HEADERS != 0
    stop = width - 4 if has_table else width
    if len(middles) != width * count:
        return None
    if sum(lengths) > LARGE_CONTENT_BYTES and max(lengths) > LARGE_CONTENT_BYTES:
        return None
    header_lanes = _column(middles, 0, width, count)
    bodies = _column(middles, _BODY, width, count)
    table_lanes = _column(middles, stop, width, count) if has_table else b""
    # All must be like the first one except for these numbers.
    alike = bytearray(middles[:width] * count)
    _spread(header_lanes, alike, 0, width)
    _spread(bodies, alike, _BODY, width)
    if has_table:
        _spread(table_lanes, alike, stop, width)
    if alike != middles:
        return None
    ones = int.from_bytes(b"\x00\x00\x00\x01" * count, "big")
    headers = int.from_bytes(header_lanes, "big")
    frames = int.from_bytes(_lanes(lengths), "big") - headers - 8 * ones
    frame_lanes = frames.to_bytes(4 * count, "big")
    if frames != int.from_bytes(bodies, "big") + 8 * ones and frame_lanes != _lanes(
        [size + 8 if size else 0 for size in _numbers(bodies)]
    ):
        # Some have several frames.
        return None
    opening = layouts.opening(first, begin)
    opening_bytes = 8 + 12 + len(opening.encoded) + 4
    found = Columns(contents, heads, begin, opening_bytes, dense=opening.dense)
    # What an item has more than its content: see encode.py.
    more = _OFFSET_BYTES if has_table else 4 + _OFFSET_BYTES
    payloads = headers + more * ones
    more_bytes = 2 + more
    if len(heads) == 1:
        more_bytes += len(heads[0])
        sizes = [length + more_bytes for length in lengths]
    else:
        sizes = [length + more_bytes + len(head) for length, head in zip(lengths, heads)]
    tables = _numbers(table_lanes)
    rests = _rests(contents, begin, tables, headers + 8 * ones, frame_lanes, channel)
    fields: list[bytes] = []
    if has_table:
        fields = [content[begin : begin + table] for content, table in zip(contents, tables)]
        if STREAM in b"".join(fields):
            known = [layouts.fields(each) if STREAM in each else None for each in fields]
            fields = [each if new is None else new.encoded for each, new in zip(fields, known)]
            found.values = [None if new is None else new.value for new in known]
            found.names_stream = [new is not None and new.names_stream for new in known]
            kept = [len(each) for each in fields]
            less = [before - after for before, after in zip(tables, kept)]
            payloads -= int.from_bytes(_lanes(less), "big")
            sizes = [size - number for size, number in zip(sizes, less)]
            tables = kept
    found.sizes = sizes
    found._tables = [0] if not has_table else tables[:1] if _same(tables) else tables
    payload_lanes = payloads.to_bytes(4 * count, "big")
    found.compare(payload_lanes, frame_lanes)
    # The rows: everything up to the headers, or to the later properties.
    front = b"\x00" + heads[0] if len(heads) == 1 else b""
    pattern = b"".join(
        (
            front,
            b"\xce\x02\x00\x01",
            payload_lanes[:4],
            middles[_CLASS:_FLAGS],
            opening.encoded,
            (found._tables[0] + _OFFSET_BYTES).to_bytes(4, "big"),
        )
    )
    at, size = len(front), len(pattern)
    if not has_table:
        pattern += OFFSET_FIELD + offset.to_bytes(8, "big")
    row_bytes = len(pattern)
    matrix = bytearray(pattern * count)
    _spread(payload_lanes, matrix, at + 4, row_bytes)
    _spread(bodies, matrix, at + 8 + _BODY - _CLASS, row_bytes)
    if len(found._tables) > 1:
        _spread(_lanes([table + _OFFSET_BYTES for table in tables]), matrix, size - 4, row_bytes)
    if not has_table:
        put_offsets(matrix, row_bytes - 8, row_bytes, offset, count)
    found._rows = _rows(matrix, count, row_bytes)
    if len(heads) > 1:
        found._parts += ([b"\x00"] * count, heads)
    found._parts.append(found._rows)
    if has_table:
        found._parts += (fields, *offset_columns(OFFSET_FIELD, offset, count))
    found._parts += rests
    return found


def offset_columns(before: bytes, offset: int, count: int) -> list[list[bytes]]:
    """Return `before` and an offset in two parts, the last byte apart, for consecutive offsets."""
    uppers: list[bytes] = []
    while len(uppers) < count:
        following = offset + len(uppers)
        part = min(256 - (following & 255), count - len(uppers))
        uppers += [before + (following >> 8).to_bytes(7, "big")] * part
    return [uppers, low_bytes(offset, count)]


def low_bytes(number: int, count: int) -> list[bytes]:
    """Return the last bytes of consecutive numbers."""
    low = number & 255
    return (_LOW * ((low + count >> 8) + 1))[low : low + count]


def _rests(
    contents: list[bytes], begin: int, tables: list[int], starts: int, frame_lanes: bytes, channel: int
) -> list[list[bytes]]:
    """Return the parts from the end of the headers on, one for each message or several, with the body frames
    for channel 1. `starts` are the positions of the body frames, 4 bytes each.
    """
    if channel == 1:
        if not tables:
            return [[content[begin:] for content in contents]]
        return [[content[begin + table :] for content, table in zip(contents, tables)]]
    places = _numbers(starts.to_bytes(4 * len(contents), "big"))
    if not tables:
        tables = [0] * len(contents)
    tails = [content[begin + table : place] for content, table, place in zip(contents, tables, places)]
    marks = [MARK if size else b"" for size in _numbers(frame_lanes)]
    bodies = [content[place + 3 :] for content, place in zip(contents, places)]
    return [tails, marks, bodies]


__all__ = ["COLUMNS_MIN", "MARK", "Columns", "columns_of", "joined", "kind_of", "low_bytes", "offset_columns"]
