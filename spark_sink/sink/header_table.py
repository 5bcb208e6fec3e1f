"""The headers column as field tables (spec 4.2.5.5), in the dialect that RabbitMQ and its clients speak."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_sink import arrow

SIZE = struct.Struct(">I")
LONG = struct.Struct(">q")
NAME_BYTES_MAX = 255
#: Room in the header frame for the other properties: ten short strings and some numbers at most.
RESERVED_BYTES = 10 * 256 + 16

_INT, _DOUBLE = struct.Struct(">i"), struct.Struct(">d")
_TRUE, _FALSE, _VOID = b"t\x01", b"t\x00", b"V"


class BadEntry(ValueError):
    def __init__(self, text: str, position: int = 0) -> None:
        super().__init__(text)
        self.position = position


def named(name: bytes) -> bytes:
    return bytes([len(name)]) + name


def text(name: str, value: bytes) -> bytes:
    return named(name.encode()) + b"S" + SIZE.pack(len(value)) + value


#: Name and type of an entry; its eight bytes follow.
LONG_NAMED = {name: named(name.encode()) + b"l" for name in ("x-sequence",)}


def encode(column: Any) -> list[bytes]:
    """Return each row's entries, without the size before them. Raises BadEntry."""
    if pa.types.is_struct(column.type):
        return _of_struct(column)
    spans, keys, values = arrow.entries(column)
    _check_keys(spans, keys)
    encoded = _values(values)
    pieces = [named(key) + value for key, value in zip(arrow.texts(keys), encoded, strict=True)]
    return arrow.grouped(spans, pieces)


def _of_struct(column: Any) -> list[bytes]:
    fields = [
        [named(field.name.encode()) + value for value in _values(values)]
        for field, values in zip(column.type, column.flatten(), strict=True)
    ]
    return [b"".join(entries) for entries in zip(*fields, strict=True)] if fields else [b""] * len(column)


def _check_keys(spans: Sequence[tuple[int, int]], keys: Any) -> None:
    if missing := arrow.nulls(keys):
        raise BadEntry("has a null key", _row_of(spans, missing[0]))
    if (longer := arrow.first_longer(keys, NAME_BYTES_MAX)) is not None:
        raise BadEntry(f"has a key longer than {NAME_BYTES_MAX} bytes", _row_of(spans, longer))


def _row_of(spans: Sequence[tuple[int, int]], entry: int) -> int:
    return next((row for row, (start, end) in enumerate(spans) if start <= entry < end), 0)


def _values(column: Any) -> list[bytes]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = [b"S" + SIZE.pack(len(value)) + value for value in arrow.texts(column)]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [b"x" + SIZE.pack(len(value)) + value for value in arrow.texts(column)]
    elif pa.types.is_boolean(kind):
        encoded = [_TRUE if value else _FALSE for value in column.to_pylist()]
    elif pa.types.is_int64(kind):
        encoded = [b"l" + LONG.pack(value) for value in arrow.whole_numbers(column)]
    elif pa.types.is_integer(kind):
        encoded = [b"I" + _INT.pack(value) for value in arrow.whole_numbers(column)]
    elif pa.types.is_floating(kind):
        encoded = [b"d" + _DOUBLE.pack(value or 0.0) for value in column.to_pylist()]
    else:
        encoded = [b"T" + LONG.pack(value) for value in arrow.seconds(column)]
    for position in arrow.nulls(column):
        encoded[position] = _VOID
    return encoded
