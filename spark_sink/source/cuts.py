"""Bodies, routes and properties of whole messages, cut out of their bytes by Arrow.

An array of binaries is a piece of memory and the position of the end of each value. So the bytes of a run,
with the positions that the splitter has found, are such an array already: wanted and unwanted parts alternate
in it. Taking every other value copies the wanted parts, and no message becomes a Python object. Messages with
a body in several frames are handled elsewhere (`columns`), and so are those of a stream whose properties
differ before their offset.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.arrow import BINARY_BYTES_MAX
from spark_sink.sink.packing import is_packed
from spark_sink.source.deliveries import BASIC_DELIVER, FLAGS_AT, HEAD_BYTES, OVERHEAD_BYTES, U32, U64, Run
from spark_sink.streams.placed import VALUE_BYTES, before_offset, time_at, without_time

#: For fewer messages, handling each one takes no longer.
LEAST = 32
#: Of C, four bytes and eight.
INT, LONG = "i", "q"
INT_BYTES = 4
#: From a header's size to its flags: the bytes with the sizes of header and body.
FRONT_BYTES = U32.size + FLAGS_AT

Array = Any


class Crooked(Exception):
    """The positions are not in order: the bytes are not whole messages of one consumer."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct values, and which message has which of them."""

    raws: Sequence[bytes]
    indices: Array


@dataclass(frozen=True, slots=True)
class Cuts:
    count: int
    bodies: Array
    routes: Distinct
    #: As they were published.
    properties: Distinct
    #: None if the messages have no offsets.
    offsets: Array
    #: When the broker took them, ms since 1970; None if they do not tell.
    times: Array


class Cutter:
    """Cuts parts of messages out of their bytes, at the positions of each message."""

    def __init__(self, data: bytes | memoryview, count: int) -> None:
        self._data, self._size, self._count = pa.py_buffer(data), len(data), count
        self._every_other = ints(array(INT, range(0, 2 * count, 2)))

    def cut(self, lows: Array, highs: Array) -> Array:
        """Return the bytes between these positions of each message. Raises Crooked."""
        count = 2 * self._count
        places = array(INT, bytes(count * INT_BYTES))
        places[0::2], places[1::2] = _numbers(lows), _numbers(highs)
        edges = ints(places)
        rising = pc.all(pc.less_equal(edges.slice(0, count - 1), edges.slice(1))).as_py()
        if not rising or places[0] < 0 or places[-1] > self._size:
            # Arrow does not check the positions.
            raise Crooked
        by_turns = pa.Array.from_buffers(pa.binary(), count - 1, [None, pa.py_buffer(places), self._data])
        return by_turns.take(self._every_other)

    def cut_fixed(self, lows: Array, size: int) -> Array:
        """The same, of one length for all. Raises Crooked."""
        found = self.cut(lows, plus(lows, size))
        return pa.Array.from_buffers(pa.binary(size), self._count, [None, found.buffers()[2]])


def cuts(run: Run, *, of_stream: bool, timed: bool = False) -> Cuts | None:
    """Return the messages of a run as columns; None if they must be handled one by one. `timed`: the broker
    was asked for times. Raises BadMessage.
    """
    if len(run) < LEAST or len(run.data) > BINARY_BYTES_MAX:
        return None
    try:
        return _cuts(run, of_stream, timed)
    except (Crooked, pa.ArrowInvalid):
        # The sizes are wrong; the code that handles each message finds out where.
        return None


def _cuts(run: Run, of_stream: bool, timed: bool) -> Cuts | None:
    data, count = run.data, len(run)
    cutter = Cutter(data, count)
    starts, heads = ints(array(INT, run.starts)), ints(array(INT, run.heads))
    fronts = cutter.cut_fixed(plus(heads, -U32.size), FRONT_BYTES)
    ends = pc.add(heads, _big_endian(pc.binary_slice(fronts, 0, U32.size), INT))
    size_at = FRONT_BYTES - U64.size
    sizes = _big_endian(pc.binary_slice(fronts, size_at, FRONT_BYTES), LONG).cast(pa.int32())
    nexts = ints(array(INT, [*run.starts[1:], len(data)]))
    # The end of the header's frame, and one frame of the body: a longer message has its body in several
    # frames.
    one, frame = pa.scalar(1, pa.int32()), plus(sizes, OVERHEAD_BYTES + 1)
    usual = pc.if_else(pc.equal(sizes, pa.scalar(0, pa.int32())), one, frame)
    if not pc.all(pc.equal(pc.subtract(nexts, ends), usual)).as_py():
        return None
    last = plus(nexts, -1)
    bodies = cutter.cut(pc.subtract(last, sizes), last)
    route = HEAD_BYTES + len(BASIC_DELIVER)
    # After the consumer's tag, which is the same in all messages, and the delivery's.
    route += 1 + data[route] + U64.size
    routes = distinct_values(cutter.cut(plus(starts, route), plus(heads, -OVERHEAD_BYTES)))
    flags, offsets, times, rest = plus(heads, FLAGS_AT), None, None, b""
    if of_stream:
        first = run.properties(0)
        at = before_offset(first)[1]
        time = time_at(first) if timed else None
        rest = before_offset(first if time is None else without_time(first))[0]
        behind = plus(flags, at + VALUE_BYTES)
        if not pc.all(pc.less_equal(behind, ends)).as_py():
            return None
        before = cutter.cut_fixed(flags, at + VALUE_BYTES)
        # The bytes that are the same in all messages: everything before the offset, but not the time.
        same = [(0, at)] if time is None else [(0, time), (time + VALUE_BYTES, at)]
        for low, high in same:
            due = pa.scalar(first[low:high], pa.binary(high - low))
            if not pc.all(pc.equal(pc.binary_slice(before, low, high), due)).as_py():
                return None
        offsets = _big_endian(pc.binary_slice(before, at, at + VALUE_BYTES), LONG)
        if time is not None:
            times = _big_endian(pc.binary_slice(before, time, time + VALUE_BYTES), LONG)
        flags = behind
    properties = distinct_values(cutter.cut(flags, ends), rest)
    if any(map(is_packed, properties.raws)):
        return None
    return Cuts(count, bodies, routes, properties, offsets, times)


def distinct_values(values: Array, before: bytes = b"") -> Distinct:
    """`before` precedes each of them."""
    encoded = values.dictionary_encode()
    return Distinct([before + each for each in encoded.dictionary.to_pylist()], encoded.indices)


def ints(numbers: array[int]) -> Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _numbers(column: Array) -> array[int]:
    found = array(INT)
    start = column.offset * INT_BYTES
    found.frombytes(memoryview(column.buffers()[1])[start : start + len(column) * INT_BYTES])
    return found


def plus(column: Array, number: int) -> Array:
    return pc.add(column, pa.scalar(number, pa.int32()))


def _big_endian(column: Array, code: str) -> Array:
    """Integers in network byte order."""
    found = array(code)
    found.frombytes(memoryview(column.buffers()[1])[: len(column) * found.itemsize])
    if sys.byteorder == "little":
        found.byteswap()
    kind = pa.int32() if code == INT else pa.int64()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(found)])
