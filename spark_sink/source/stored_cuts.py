"""Bodies, routes and properties of messages out of batches as the broker stores them, cut by Arrow.

Messages of one size are an array already. For others, the positions follow from the sizes.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.arrow import BINARY_BYTES_MAX
from spark_sink.sink.packing import BOTH_FLAGS, MARK
from spark_sink.source.cuts import Crooked, Cuts, Cutter, Distinct, distinct_values, ints, plus
from spark_sink.source.deliveries import FLAGS_AT, HEAD_BYTES, U32
from spark_sink.source.stored import FLAG_BYTES, TO_PAYLOAD_BYTES, StoredRun
from spark_sink.streams.placed import FLAGS_BYTES, VALUE_BYTES, before_offset, table_of, without_offsets

#: In an item beside its routing, its content header's payload and its body frame.
OVERHEAD_BYTES = FLAG_BYTES + TO_PAYLOAD_BYTES + 1

Array = Any


class _Parts(Protocol):
    """Parts of all messages, as arrays of binaries; those of bodies have variable sizes."""

    def routes(self) -> Array:
        """Return the flag `redelivered` and the routing."""

    def bodies(self) -> Array: ...

    def properties(self, low: int, high: int | None = None) -> Array:
        """Return bytes of flags and properties from one position to another, or to the end. Raises Crooked if
        a message has fewer.
        """


class _Even:
    """Messages of one size and one layout."""

    def __init__(self, run: StoredRun) -> None:
        size = run.sizes[0]
        self._count = len(run)
        self._items = pa.Array.from_buffers(pa.binary(size), self._count, [None, pa.py_buffer(run.data)])
        self._size, self._frame = size, run.frames[0]
        self._routes_end = FLAG_BYTES + run.routes[0]
        payload = self._routes_end + TO_PAYLOAD_BYTES
        self._flags, self._end = payload + FLAGS_AT, payload + run.payloads[0]

    def routes(self) -> Array:
        return self._cut(0, self._routes_end)

    def bodies(self) -> Array:
        size = max(self._frame - HEAD_BYTES - 1, 0)
        if not size:
            return self._cut(0, 0)
        data = self._cut(self._size - 1 - size, self._size - 1).buffers()[1]
        # One more than there are messages: the end of the last one.
        ends = pc.cumulative_sum(pa.repeat(pa.scalar(size, pa.int32()), self._count + 1), start=-size)
        return pa.Array.from_buffers(pa.binary(), self._count, [None, ends.buffers()[1], data])

    def properties(self, low: int, high: int | None = None) -> Array:
        end = self._end if high is None else self._flags + high
        if end > self._end:
            raise Crooked
        return self._cut(self._flags + low, end)

    def _cut(self, low: int, high: int) -> Array:
        if low == high:
            return pa.repeat(pa.scalar(b""), self._count)
        return pc.binary_slice(self._items, low, high)


class _Uneven:
    """Messages of any sizes."""

    def __init__(self, run: StoredRun) -> None:
        sizes, routes, self._frames = ints(run.sizes), ints(run.routes), ints(run.frames)
        self._cutter = Cutter(run.data, len(run))
        self._stops = pc.cumulative_sum(sizes)
        self._starts = pc.subtract(self._stops, sizes)
        self._routes_end = plus(pc.add(self._starts, routes), FLAG_BYTES)
        payload = plus(self._routes_end, TO_PAYLOAD_BYTES)
        self._flags, self._ends = plus(payload, FLAGS_AT), pc.add(payload, ints(run.payloads))

    def routes(self) -> Array:
        return self._cutter.cut(self._starts, self._routes_end)

    def bodies(self) -> Array:
        # Without a body, there is no frame.
        has_one = pc.greater(self._frames, pa.scalar(0, pa.int32())).cast(pa.int32())
        head = pc.multiply(has_one, pa.scalar(HEAD_BYTES, pa.int32()))
        lows = pc.add(pc.subtract(self._stops, self._frames), head)
        return self._cutter.cut(lows, pc.subtract(self._stops, has_one))

    def properties(self, low: int, high: int | None = None) -> Array:
        ends = self._ends if high is None else plus(self._flags, high)
        if not pc.all(pc.less_equal(ends, self._ends)).as_py():
            raise Crooked
        return self._cutter.cut(plus(self._flags, low), ends)


def stored_cuts(run: StoredRun, *, routes: bool, properties: bool) -> Cuts | None:
    """Return messages out of batches as columns; None if they must be handled one by one. Routes and
    properties are empty unless they are wanted. Raises BadMessage.
    """
    if not len(run) or len(run.data) > BINARY_BYTES_MAX:
        return None
    layout = (run.sizes, run.routes, run.payloads, run.frames)
    if all(column.count(column[0]) == len(column) for column in layout):
        size, *others = (column[0] for column in layout)
        # Otherwise a body has several frames.
        in_one_frame = size == sum(others) + OVERHEAD_BYTES
        parts: _Parts = _Even(run)
    else:
        size, *others = map(ints, layout)
        wholes = plus(pc.add(pc.add(others[0], others[1]), others[2]), OVERHEAD_BYTES)
        in_one_frame = pc.all(pc.equal(wholes, size)).as_py()
        parts = _Uneven(run)
    if not in_one_frame:
        return None
    try:
        if _has_packed(parts):
            return None
        none = Distinct([], None)
        return Cuts(
            len(run),
            parts.bodies(),
            distinct_values(parts.routes()) if routes else none,
            _published(parts) if properties else none,
            _offsets(run.offsets),
            _longs(run.times),
        )
    except (Crooked, pa.ArrowInvalid):
        return None


def _has_packed(parts: _Parts) -> bool:
    """Return whether any message may be packed rows: those have a content type and an encoding."""
    kinds = parts.properties(0, 1).unique().to_pylist()
    if all(kind[0] & BOTH_FLAGS != BOTH_FLAGS for kind in kinds):
        return False
    fronts = parts.properties(FLAGS_BYTES).unique().to_pylist()
    return any(front.startswith(MARK) for front in fronts)


def _published(parts: _Parts) -> Distinct:
    """Return properties as they were published, without the offset. Raises BadMessage, Crooked."""
    first = parts.properties(0)[0].as_py()
    table_at, table_end = table_of(first)
    opening = first[: table_at + U32.size]
    if _same(parts, opening):
        # Flags, content type and encoding are the same, and the headers have the same length: the offset, the
        # last one of them, is at one place. What the headers and the later properties say may differ.
        low = table_end - VALUE_BYTES
        fronts = distinct_values(parts.properties(len(opening), low))
        rests = distinct_values(parts.properties(table_end))
        found = [before_offset(b"".join((opening, each, bytes(VALUE_BYTES))))[0] for each in fronts.raws]
        if len(rests.raws) == 1:
            return Distinct([each + rests.raws[0] for each in found], fronts.indices)
        if len(found) == 1:
            return Distinct([found[0] + each for each in rests.raws], rests.indices)
        joined = [
            found[front] + rests.raws[rest]
            for front, rest in zip(fronts.indices.to_pylist(), rests.indices.to_pylist(), strict=True)
        ]
    else:
        joined = without_offsets(parts.properties(0).to_pylist())[1]
    places = {raw: index for index, raw in enumerate(dict.fromkeys(joined))}
    return Distinct(list(places), pa.array(map(places.__getitem__, joined), pa.int32()))


def _same(parts: _Parts, opening: bytes) -> bool:
    try:
        openings = parts.properties(0, len(opening))
    except Crooked:
        return False
    return bool(pc.all(pc.equal(openings, pa.scalar(opening, openings.type))).as_py())


def _offsets(offsets: range | array[int]) -> Array:
    if isinstance(offsets, range):
        return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(offsets)), start=offsets.start - 1)
    return _longs(offsets)


def _longs(numbers: array[int]) -> Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


__all__ = ["stored_cuts"]
