"""Method frames: decoding and encoding of their arguments, by the field types that pamqp lists for each
method.

pamqp's own `unmarshal` ignores missing and extra bytes, and its `validate` refuses names that RabbitMQ
accepts (longer than 127 bytes, or not ASCII). So only its classes are used here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from pamqp import base, commands

from amqp_server.errors import CommandInvalid, FrameError
from amqp_server.wire import tables

M = TypeVar("M", bound=base.Frame)

_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
#: connection.start-ok, secure-ok and update-secret.
_SECRETS = ((10, 11), (10, 21), (10, 70))


class _Misfit(Exception):
    """The bytes are not this method's arguments."""


def ids(payload: bytes) -> tuple[int, int]:
    """Return the class and method id that a method frame's payload begins with."""
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")


def decode(payload: bytes, depth: int = tables.DEPTH_MAX) -> base.Frame:
    """Decode a method frame's payload, with tables of at most this depth.
    Raises CommandInvalid, FrameError.
    """
    where = ids(payload)
    kind: type[base.Frame] | None = commands.INDEX_MAPPING.get(where[0] << 16 | where[1])
    if kind is None:
        raise CommandInvalid(f"unknown class or method ({where[0]}, {where[1]})", where)
    method: base.Frame = object.__new__(kind)
    try:
        _decode_into(method, payload, depth)
    except tables.TableTooDeep as error:
        raise FrameError(str(error), where) from None
    except (_Misfit, tables.TableError, IndexError, struct.error):
        # The text must not repeat the octets of a login.
        octets = "..." if where in _SECRETS else ",".join(map(str, payload[4:]))
        raise FrameError(f"cannot decode <<{octets}>>", where) from None
    return method


def _decode_into(method: base.Frame, payload: bytes, depth: int) -> None:
    offset, end, bit = 4, len(payload), 0
    for name in method.__slots__:
        field_type = method.amqp_type(name)
        if field_type == "bit":
            if bit == 8:
                offset, bit = offset + 1, 0
            setattr(method, name, bool(payload[offset] >> bit & 1))
            bit += 1
            continue
        if bit:
            offset, bit = offset + 1, 0
        if field_type == "table":
            value, offset = _table(payload, offset, depth)
        else:
            value, offset = _FIELDS[field_type](payload, offset)
        if offset > end:
            raise _Misfit
        setattr(method, name, value)
    if offset + (1 if bit else 0) != end:
        raise _Misfit


def _integer(layout: struct.Struct) -> Callable[[bytes, int], tuple[Any, int]]:
    def decode_integer(payload: bytes, offset: int) -> tuple[Any, int]:
        return layout.unpack_from(payload, offset)[0], offset + layout.size

    return decode_integer


def _short_string(payload: bytes, offset: int) -> tuple[Any, int]:
    after = offset + 1 + payload[offset]
    if after > len(payload):
        raise _Misfit
    try:
        return payload[offset + 1 : after].decode(), after
    except UnicodeDecodeError:
        raise FrameError("Malformed UTF-8 in shortstr", (0, 0)) from None


def _long_string(payload: bytes, offset: int) -> tuple[Any, int]:
    """Long strings stay bytes: the only one that clients send, the SASL response, may be no text."""
    after = offset + 4 + _INTEGERS["long"].unpack_from(payload, offset)[0]
    return payload[offset + 4 : after], after


def _table(payload: bytes, offset: int, depth: int) -> tuple[Any, int]:
    after = tables.check(payload, offset, len(payload), depth)
    return tables.decode(payload[offset:after]), after


_FIELDS: dict[str, Callable[[bytes, int], tuple[Any, int]]] = {
    **{name: _integer(layout) for name, layout in _INTEGERS.items()},
    "shortstr": _short_string,
    "longstr": _long_string,
}


def make(kind: type[M], **fields: object) -> M:
    """Make a method without pamqp's checks of names."""
    method = object.__new__(kind)
    for name in method.__slots__:
        setattr(method, name, fields.get(name))
    return method


def encode(method: base.Frame) -> bytes:
    """Return a method frame's payload."""
    parts = [method.index.to_bytes(4, "big")]
    bits = count = 0
    for name in method.__slots__:
        field_type, value = method.amqp_type(name), getattr(method, name)
        if field_type == "bit":
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            parts.append(bytes((bits,)))
            bits = count = 0
        parts.append(_encode_field(field_type, value))
    if count:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _encode_field(field_type: str, value: Any) -> bytes:
    layout = _INTEGERS.get(field_type)
    if layout is not None:
        return layout.pack(value or 0)
    if field_type == "table":
        return tables.encode(value or {})
    data = value.encode() if isinstance(value, str) else bytes(value or b"")
    size = len(data).to_bytes(1 if field_type == "shortstr" else 4, "big")
    return size + data
