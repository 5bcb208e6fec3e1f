"""Arrow columns as lists of bytes, without a Python object between for each value's type."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Array = Any
#: The largest offset of a binary array.
BINARY_BYTES_MAX = 2**31 - 1


def nulls(column: Array) -> list[int]:
    """Return the positions of the nulls."""
    if not column.null_count:
        return []
    return [position for position, null in enumerate(column.is_null().to_pylist()) if null]


def texts(column: Array) -> list[bytes]:
    """Return the bytes of strings or binaries; empty bytes for null."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    if not (wide or pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    if offsets is None or data is None:
        return [b""] * len(column)
    all_ends = memoryview(offsets).cast("q" if wide else "i")
    ends = all_ends[column.offset : column.offset + len(column) + 1].tolist()
    if not ends:
        return []
    # One copy of the used part; then each value is one slice.
    low = ends[0]
    values = memoryview(data)[low : ends[-1]].tobytes()
    if low:
        ends = [end - low for end in ends]
    return [values[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def binaries(values: Sequence[bytes], kind: Any) -> Array:
    """The other way round: one copy of all bytes, which is much faster than a look at each value."""
    size = sum(map(len, values))
    if not pa.types.is_binary(kind) or size > BINARY_BYTES_MAX:
        return pa.array(values, kind)
    ends = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def first_longer(column: Array, most_bytes: int) -> int | None:
    """Return the position of the first text that is longer, without looking at each from Python."""
    longer = pc.greater(pc.binary_length(column), most_bytes)
    found = pc.index(longer, value=True).as_py()
    return None if found < 0 else int(found)


def whole_numbers(column: Array) -> list[int]:
    """Return integers; 0 where there is null."""
    numbers: list[int] = (column.fill_null(0) if column.null_count else column).to_pylist()
    return numbers


def seconds(column: Array) -> list[int]:
    """Return timestamps as seconds since 1970; 0 where there is null."""
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return [each // 1_000_000 for each in whole_numbers(microseconds)]


def entries(column: Array) -> tuple[list[tuple[int, int]], Array, Array]:
    """Return, of maps or arrays of key and value, where each row's entries begin and end, and all keys and
    values.
    """
    ends = column.offsets.to_pylist()
    low, high = (ends[0], ends[-1]) if ends else (0, 0)
    spans = [(start - low, end - low) for start, end in zip(ends, ends[1:], strict=False)]
    for position in nulls(column):
        spans[position] = (0, 0)
    if pa.types.is_map(column.type):
        key, value = column.keys, column.items
    else:
        key, value = column.values.flatten()
    return spans, key.slice(low, high - low), value.slice(low, high - low)


def grouped(spans: Sequence[tuple[int, int]], pieces: Sequence[bytes]) -> list[bytes]:
    """Join each row's pieces."""
    return [b"".join(pieces[start:end]) for start, end in spans]
