"""Field tables, decoded by offset, with a limit on their depth.

Tables from clients are checked against the configured depth (table_depth_max), and no table is deeper than
DEPTH_MAX: code that walks a table, here and elsewhere, recurses a few times for each level.

A table may be as large as a frame, and pamqp copies the rest of the buffer for each value, which is
quadratic. The types are RabbitMQ's (https://www.rabbitmq.com/amqp-0-9-1-errata.html, section 3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

#: The highest possible table_depth_max. Tables that were stored under another limit are read with this one.
DEPTH_MAX: Final = 128
NAME_BYTES_MAX: Final = 255

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
_U32: Final = struct.Struct(">I")
_DECIMAL: Final = struct.Struct(">Bi")
_TIMESTAMP: Final = struct.Struct(">Q")
_LONG_STRING = ord("S")
_LONG_STRINGS = (_LONG_STRING, ord("x"))


class TableError(ValueError):
    """The bytes are no field table, or a table that is nested too deeply."""


class TableTooDeep(TableError):
    """A table has more levels of tables and arrays than allowed."""

    def __init__(self, depth: int = DEPTH_MAX) -> None:
        super().__init__(f"tables and arrays are nested more than {depth} deep (table_depth_max)")


def entries(data: bytes, start: int, end: int, depth: int = DEPTH_MAX) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, offset of the value's type octet, offset after the value) of each field in
    data[start:end].

    `start` points behind the table's length. Values are checked for their length and depth, not decoded.
    """
    offset = start
    while offset < end:
        name_end = offset + 1 + data[offset]
        if name_end >= end:
            raise TableError("a field name ends outside its table")
        after = skip(data, name_end, end, depth)
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
            raise TableTooDeep
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


def check(data: bytes, offset: int, end: int, depth: int = DEPTH_MAX) -> int:
    """Check the table whose length is at `offset`; return the offset after it. Raises TableError.

    Up to `depth` tables and arrays may be nested in it.
    """
    if offset + 4 > end:
        raise TableError("a table's length is missing")
    after: int = offset + 4 + _U32.unpack_from(data, offset)[0]
    if after > end:
        raise TableError("a table ends outside its frame")
    try:
        _check_fields(data, offset + 4, after, depth)
    except TableTooDeep:
        raise TableTooDeep(depth) from None
    return after


def _check_fields(data: bytes, offset: int, end: int, depth: int) -> None:
    """Check the fields in data[offset:end]: there may be thousands of them in each message."""
    unpack = _U32.unpack_from
    while offset < end:
        name_end = offset + 1 + data[offset]
        if name_end >= end:
            raise TableError("a field name ends outside its table")
        if data[name_end] == _LONG_STRING and name_end + 5 <= end:
            offset = name_end + 5 + unpack(data, name_end + 1)[0]
            if offset > end:
                raise TableError("a field value ends outside its table")
        else:
            offset = skip(data, name_end, end, depth)


def decode(table: bytes) -> dict[str, object]:
    """Decode a table with its length in front. Raises TableError."""
    return _fields(table, 4, check(table, 0, len(table)))


def decode_checked(table: bytes) -> dict[str, object]:
    """Decode a table with its length in front that `check` has passed."""
    return _fields(table, 4, len(table))


def checked_entries(table: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the same as `entries`, of a table with its length in front that `check` has passed: it does not
    look into values, which may be large.
    """
    offset, end = 4, len(table)
    while offset < end:
        name_end = offset + 1 + table[offset]
        after = _behind(table, name_end)
        yield table[offset + 1 : name_end], name_end, after
        offset = after


def _behind(data: bytes, offset: int) -> int:
    """Return the offset after the (checked) value whose type octet is at `offset`."""
    size = _SIZES.get(data[offset])
    if size is not None:
        return offset + 1 + size
    after: int = offset + 5 + _U32.unpack_from(data, offset + 1)[0]
    return after


def values_in(table: bytes, names: Collection[bytes]) -> dict[bytes, object]:
    """Return the fields with these names of an encoded (and checked) table; as in `decode`, the last one of
    several with one name.
    """
    found: dict[bytes, object] = {}
    for field, at, _ in checked_entries(table):
        if field in names:
            found[field], _ = _value(table, at)
    return found


def has(table: bytes, name: bytes) -> bool:
    """Return whether an encoded (and checked) table has this field."""
    return any(field == name for field, _, _ in checked_entries(table))


def value_at(data: bytes, offset: int) -> object:
    """Decode the (checked) value whose type octet is at `offset`."""
    return _value(data, offset)[0]


def tables_in(table: bytes, name: bytes) -> Iterator[bytes]:
    """Yield the tables, encoded, in the array that a field of an encoded (and checked) table holds."""
    for field, start, after in checked_entries(table):
        if field != name or table[start] != ord("A"):
            continue
        at = start + 5
        while at < after:
            behind = _behind(table, at)
            if table[at] == ord("F"):
                yield table[at + 1 : behind]
            at = behind


def _fields(data: bytes, offset: int, end: int) -> dict[str, object]:
    """Decode the (checked) fields in data[offset:end]."""
    fields: dict[str, object] = {}
    unpack = _U32.unpack_from
    while offset < end:
        after = offset + 1 + data[offset]
        name = data[offset + 1 : after].decode(errors="replace")
        if data[after] == _LONG_STRING:
            start = after + 5
            offset = start + unpack(data, after + 1)[0]
            raw = data[start:offset]
            try:
                fields[name] = raw.decode()
            except UnicodeDecodeError:
                fields[name] = raw
        else:
            fields[name], offset = _value(data, after)
    return fields


def _value(data: bytes, offset: int) -> tuple[object, int]:
    """Decode the (checked) value whose type octet is at `offset`; return also the offset after it."""
    tag = data[offset]
    size = _SIZES.get(tag)
    if size is not None:
        return _fixed(data, offset, tag), offset + 1 + size
    start = offset + 5
    end = start + _U32.unpack_from(data, offset + 1)[0]
    if tag == _LONG_STRING:
        raw = data[start:end]
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw, end
    if tag == ord("x"):
        return bytearray(data[start:end]), end
    if tag == ord("F"):
        return _fields(data, start, end), end
    items: list[object] = []
    while start < end:
        item, start = _value(data, start)
        items.append(item)
    return items, end


def _fixed(data: bytes, offset: int, tag: int) -> object:
    if tag in _FIXED:
        layout, convert = _FIXED[tag]
        return convert(layout.unpack_from(data, offset + 1)[0])
    if tag == ord("V"):
        return None
    if tag == ord("D"):
        scale, unscaled = _DECIMAL.unpack_from(data, offset + 1)
        return Decimal(unscaled).scaleb(-scale)
    return _timestamp(_TIMESTAMP.unpack_from(data, offset + 1)[0])


def _timestamp(seconds: int) -> object:
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return seconds


def encode(table: Mapping[str, object], depth: int = DEPTH_MAX) -> bytes:
    """Encode a table with its length in front. Accepts everything that `decode` returns, so it never fails on
    a client's values.

    Raises TableError for values that did not come by AMQP: numbers that fit no type, and values nested deeper
    than `depth`.
    """
    parts: list[bytes] = []
    for name, item in table.items():
        raw = name.encode(errors="replace")[:NAME_BYTES_MAX]
        parts += (bytes((len(raw),)), raw, encode_value(item, depth))
    return _sized(b"".join(parts))


def encode_value(item: object, depth: int = DEPTH_MAX) -> bytes:
    """Encode a value behind its type octet; a number gets the narrowest type that RabbitMQ's clients use for
    it.
    """
    if depth == 0 and isinstance(item, Mapping | list | tuple):
        raise TableTooDeep
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
            return b"F" + encode(item, depth - 1)
        case list() | tuple():
            return b"A" + _sized(b"".join([encode_value(each, depth - 1) for each in item]))
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
    """Return the best known type name of a decoded value."""
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


def replaced(table: bytes, changes: dict[bytes, bytes | None], *, checked: bool = False) -> bytes:
    """Return the table with some fields replaced (by encoded values with their type octet), added or removed.

    All other fields keep their bytes, and so their types. `checked`: the table was checked already.
    """
    parts: list[bytes] = []
    left = dict(changes)
    if table:
        if not checked:
            check(table, 0, len(table))
        for name, start, after in checked_entries(table):
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
