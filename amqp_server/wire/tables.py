"""Field tables, decoded by offset and bounded in depth.

A table may be as large as a frame, and pamqp copies the rest of the buffer for each value, which is quadratic. The types
are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-errata.html, section 3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal

TABLE_DEPTH_MAX = 32
NAME_BYTES_MAX = 255

_FIXED: dict[int, tuple[struct.Struct, Callable[[int | float], object]]] = {
    ord("t"): (struct.Struct(">B"), bool),
    ord("b"): (struct.Struct(">b"), int),
    ord("B"): (struct.Struct(">B"), int),
    ord("s"): (struct.Struct(">h"), int),
    ord("u"): (struct.Struct(">H"), int),
    ord("I"): (struct.Struct(">i"), int),
    ord("i"): (struct.Struct(">I"), int),
    ord("l"): (struct.Struct(">q"), int),
    ord("L"): (struct.Struct(">q"), int),
    ord("f"): (struct.Struct(">f"), float),
    ord("d"): (struct.Struct(">d"), float),
}
_SIZES = {tag: layout.size for tag, (layout, _) in _FIXED.items()} | {ord("D"): 5, ord("T"): 8, ord("V"): 0}
_U32 = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")
_TIMESTAMP = struct.Struct(">Q")
_LONG_STRINGS = (ord("S"), ord("x"))


class TableError(ValueError):
    """The bytes are not a field table, or one that is nested too deeply."""


def entries(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, offset of the value's type octet, offset after the value) of each field in data[start:end].

    `start` points behind the table's length. Values are checked for their length and depth, not decoded.
    """
    offset = start
    while offset < end:
        name_end = offset + 1 + data[offset]
        if name_end >= end:
            raise TableError("a field name ends outside its table")
        after = skip(data, name_end, end, TABLE_DEPTH_MAX)
        yield data[offset + 1 : name_end], name_end, after
        offset = after


def skip(data: bytes, offset: int, end: int, depth: int) -> int:
    """Return the offset after the value whose type octet is at `offset`."""
    if offset >= end:
        raise TableError("a field value is missing")
    tag = data[offset]
    size = _SIZES.get(tag)
    if size is not None:
        after: int = offset + 1 + size
    else:
        if offset + 5 > end:
            raise TableError("a field value ends outside its table")
        after = offset + 5 + _U32.unpack_from(data, offset + 1)[0]
        if after > end:
            raise TableError("a field value ends outside its table")
        if tag in _LONG_STRINGS:
            return after
        if depth == 0:
            raise TableError(f"a table is nested deeper than {TABLE_DEPTH_MAX}")
        if tag == 0x46:  # F
            inner = offset + 5
            while inner < after:
                name_end = inner + 1 + data[inner]
                if name_end >= after:
                    raise TableError("a field name ends outside its table")
                inner = skip(data, name_end, after, depth - 1)
        elif tag == 0x41:  # A
            inner = offset + 5
            while inner < after:
                inner = skip(data, inner, after, depth - 1)
        else:
            raise TableError(f"unknown field type {tag:#04x}")
    if after > end:
        raise TableError("a field value ends outside its table")
    return after


def check(data: bytes, offset: int, end: int) -> int:
    """Check the table whose length is at `offset`; return the offset after it. Raises TableError."""
    if offset + 4 > end:
        raise TableError("a table's length is missing")
    after: int = offset + 4 + _U32.unpack_from(data, offset)[0]
    if after > end:
        raise TableError("a table ends outside its frame")
    for _ in entries(data, offset + 4, after):
        pass
    return after


def decode(table: bytes) -> dict[str, object]:
    """Decode a table with its length in front."""
    end = check(table, 0, len(table))
    return {name.decode(errors="replace"): value(table, start) for name, start, _ in entries(table, 4, end)}


def tables_in(table: bytes, name: bytes) -> list[bytes]:
    """Return the tables, encoded, in the array that a field of an encoded (and checked) table holds."""
    found: list[bytes] = []
    for field, start, after in entries(table, 4, len(table)):
        if field != name or table[start] != ord("A"):
            continue
        at = start + 5
        while at < after:
            behind = skip(table, at, after, TABLE_DEPTH_MAX)
            if table[at] == ord("F"):
                found.append(table[at + 1 : behind])
            at = behind
    return found


def value(data: bytes, offset: int) -> object:
    """Decode the (checked) value whose type octet is at `offset`."""
    tag = data[offset]
    if tag in _FIXED:
        layout, convert = _FIXED[tag]
        return convert(layout.unpack_from(data, offset + 1)[0])
    if tag == ord("V"):
        return None
    if tag == ord("D"):
        scale, unscaled = _DECIMAL.unpack_from(data, offset + 1)
        return Decimal(unscaled).scaleb(-scale)
    if tag == ord("T"):
        return _timestamp(_TIMESTAMP.unpack_from(data, offset + 1)[0])
    start = offset + 5
    end = start + _U32.unpack_from(data, offset + 1)[0]
    if tag == ord("S"):
        raw = data[start:end]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    if tag == ord("x"):
        return bytearray(data[start:end])
    if tag == ord("F"):
        return {name.decode(errors="replace"): value(data, at) for name, at, _ in entries(data, start, end)}
    items: list[object] = []
    while start < end:
        items.append(value(data, start))
        start = skip(data, start, end, TABLE_DEPTH_MAX)
    return items


def _timestamp(seconds: int) -> object:
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return seconds


def encode(table: Mapping[str, object]) -> bytes:
    """Encode a table with its length in front. Takes whatever `decode` returns, so it never fails on a client's values."""
    parts: list[bytes] = []
    for name, item in table.items():
        raw = name.encode(errors="replace")[:NAME_BYTES_MAX]
        parts += (bytes((len(raw),)), raw, encode_value(item))
    return _sized(b"".join(parts))


def encode_value(item: object) -> bytes:
    """Encode a value behind its type octet; a number gets the narrowest type that RabbitMQ's clients use for it."""
    match item:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if item else b"t\x00"
        case int():
            return _encode_integer(item)
        case float():
            return b"d" + struct.pack(">d", item)
        case str():
            return b"S" + _sized(item.encode(errors="replace"))
        case bytearray():
            return b"x" + _sized(bytes(item))
        case bytes():
            return b"S" + _sized(item)
        case Decimal():
            sign, digits, exponent = item.as_tuple()
            unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
            return b"D" + _DECIMAL.pack(-int(exponent), unscaled)
        case datetime():
            return b"T" + _TIMESTAMP.pack(int(item.timestamp()))
        case Mapping():
            return b"F" + encode(item)
        case list() | tuple():
            return b"A" + _sized(b"".join(map(encode_value, item)))
        case _:
            raise TableError(f"no field type for a {type(item).__name__}")


def _encode_integer(number: int) -> bytes:
    if -(1 << 31) <= number < 1 << 31:
        return b"I" + number.to_bytes(4, "big", signed=True)
    if -(1 << 63) <= number < 1 << 63:
        return b"l" + number.to_bytes(8, "big", signed=True)
    if 0 <= number < 1 << 64:
        return b"T" + number.to_bytes(8, "big")  # a timestamp beyond the calendar is decoded to its number
    raise TableError(f"no field type for the number {number}")


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


#: Field types by their tag, as RabbitMQ names them in its texts.
TYPE_NAMES = {
    ord("t"): "bool",
    ord("b"): "byte",
    ord("B"): "unsignedbyte",
    ord("s"): "short",
    ord("u"): "unsignedshort",
    ord("I"): "signedint",
    ord("i"): "unsignedint",
    ord("l"): "long",
    ord("L"): "long",
    ord("f"): "float",
    ord("d"): "double",
    ord("D"): "decimal",
    ord("S"): "longstr",
    ord("x"): "binary",
    ord("A"): "array",
    ord("T"): "timestamp",
    ord("F"): "table",
    ord("V"): "void",
}


def types(table: bytes) -> dict[str, str]:
    """Return the type name of each field of a table with its length in front. Raises TableError."""
    end = check(table, 0, len(table))
    return {name.decode(errors="replace"): TYPE_NAMES[table[at]] for name, at, _ in entries(table, 4, end)}


def type_name(item: object) -> str:
    """Return the type name of a decoded value, as well as it can be told."""
    for kind, name in _PYTHON_TYPES:
        if isinstance(item, kind):
            return name
    return "void"


_PYTHON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (int, "signedint"),
    (float, "double"),
    (str, "longstr"),
    (bytes, "longstr"),
    (bytearray, "binary"),
    (list, "array"),
    (dict, "table"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
)


def replaced(table: bytes, changes: dict[bytes, bytes | None]) -> bytes:
    """Return the table with some fields replaced (by encoded values with their type octet), added or removed.

    All other fields keep their bytes, and so their types.
    """
    end = check(table, 0, len(table)) if table else 0
    parts: list[bytes] = []
    left = dict(changes)
    if table:
        for name, start, after in entries(table, 4, end):
            if name in changes:
                encoded = left.pop(name, None)
                if encoded is None:
                    continue
            else:
                encoded = table[start:after]
            parts.append(bytes((len(name),)) + name + encoded)
    for name, encoded in left.items():
        if encoded is not None:
            parts.append(bytes((len(name),)) + name + encoded)
    body = b"".join(parts)
    return _U32.pack(len(body)) + body
