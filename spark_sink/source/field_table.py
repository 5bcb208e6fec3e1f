"""Decodes field tables (spec 4.2.5.5) in the dialect of RabbitMQ and its clients, to text for a column.

The types are those of https://www.rabbitmq.com/amqp-0-9-1-errata.html, section 3.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

LENGTH = struct.Struct(">I")
DECIMAL = struct.Struct(">BI")
SECONDS = struct.Struct(">Q")
#: Levels of tables and arrays that are decoded.
DEPTH_MAX = 128
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FIXED: dict[int, tuple[struct.Struct, Callable[[Any], Any]]] = {
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


class BadTable(ValueError):
    """The bytes are no field table."""


def decode(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Decode a table with its length in front; return it and the position after it. Raises BadTable."""
    try:
        end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise BadTable("it ends outside of its frame")
        return dict(_fields(data, at + LENGTH.size, end, DEPTH_MAX)), end
    except (struct.error, IndexError) as error:
        raise BadTable(f"it is cut off: {error}") from None


def _fields(data: bytes, at: int, end: int, depth: int) -> Iterator[tuple[str, Any]]:
    while at < end:
        start = at + 1
        at = start + data[at]
        name = data[start:at].decode(errors="replace")
        value, at = _value(data, at, depth)
        yield name, value
    _check_end(at, end)


def _items(data: bytes, at: int, end: int, depth: int) -> Iterator[Any]:
    while at < end:
        value, at = _value(data, at, depth)
        yield value
    _check_end(at, end)


def _check_end(at: int, end: int) -> None:
    if at != end:
        raise BadTable("a value ends outside of its table")


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        layout, make = fixed
        return make(layout.unpack_from(data, at)[0]), at + layout.size
    if kind == 0x56:  # V
        return None, at
    if kind == 0x44:  # D
        scale, unscaled = DECIMAL.unpack_from(data, at)
        signed = unscaled - (1 << 32) if unscaled >> 31 else unscaled
        return Decimal(signed).scaleb(-scale), at + DECIMAL.size
    if kind == 0x54:  # T
        return moment(SECONDS.unpack_from(data, at)[0]), at + SECONDS.size
    if kind not in b"SxFA":
        raise BadTable(f"unknown field type {kind:#04x}")
    start = at + LENGTH.size
    end = start + LENGTH.unpack_from(data, at)[0]
    if end > len(data):
        raise BadTable("a value ends outside of its table")
    if kind == 0x53:  # S
        return data[start:end].decode(errors="replace"), end
    if kind == 0x78:  # x
        return data[start:end], end
    if not depth:
        raise BadTable(f"it has more than {DEPTH_MAX} levels")
    if kind == 0x46:  # F
        return dict(_fields(data, start, end, depth - 1)), end
    return list(_items(data, start, end, depth - 1)), end


def moment(seconds: int) -> datetime | int:
    """Return a time; the number itself if it is beyond the year 9999, as milliseconds are."""
    try:
        return EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return seconds


def as_text(value: Any) -> str | None:
    """A header's value: text unchanged, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return the value with what JSON has: numbers that are none in JSON become text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return as_text(value) if isinstance(value, bytes | datetime | Decimal) else value


__all__ = ["BadTable", "as_text", "decode", "moment"]
