"""Properties of messages, and field tables, as JSON that keeps the types of AMQP: what `properties_of` makes
of it has the same bytes as before.

    {"type": "text", "delivery_mode": 2, "headers": [["tenant", "S", "acme"], ["tries", "I", 3]]}

A field of a table is a list with its name, the letter of its type (see tables), and its value; a value in an
array (A) is a list without a name. A text that is no UTF-8, a number that is none, and a switch that is
neither 0 nor 1 are {"base64": …}, the bytes behind the letter. A decimal (D) is a list of its scale and its
unscaled number.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable
from typing import Any, Final

from amqp_server.wire import content, tables

_INTEGERS: Final[dict[str, struct.Struct]] = {
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "T": struct.Struct(">Q"),
}
_FLOATS: Final[dict[str, struct.Struct]] = {"f": struct.Struct(">f"), "d": struct.Struct(">d")}
_DECIMAL: Final = struct.Struct(">Bi")
_U32: Final = struct.Struct(">I")
_TEXTS: Final = ("S", "x")
_BASE64: Final = "base64"
_OCTETS: Final = ("delivery_mode", "priority")
_SHORT_BYTES_MAX: Final = 255


class TypedError(ValueError):
    """A value is not of the form that this module writes."""


# -- to JSON -------------------------------------------------------------------------------------------------


def of_properties(properties: content.Properties) -> dict[str, Any]:
    """Return the properties that are set, under their AMQP names. Their headers were checked."""
    told: dict[str, Any] = {}
    for name, raw in properties.raw.items():
        if name == "headers":
            told[name] = _fields_of(raw, 4, len(raw))
        elif name in _OCTETS:
            told[name] = raw[0]
        elif name == "timestamp":
            told[name] = int.from_bytes(raw, "big")
        else:
            told[name] = _text_of(raw[1:])
    return told


def _fields_of(data: bytes, start: int, end: int) -> list[list[Any]]:
    return [
        [_text_of(name), *_value_of(data, at, after)] for name, at, after in tables.entries(data, start, end)
    ]


def _value_of(data: bytes, at: int, after: int) -> tuple[str, Any]:
    """Return type and value, of which the letter is at `at`."""
    letter, start = chr(data[at]), at + 1
    if letter in _INTEGERS:
        return letter, _INTEGERS[letter].unpack_from(data, start)[0]
    if letter in _FLOATS:
        number = _FLOATS[letter].unpack_from(data, start)[0]
        return letter, number if math.isfinite(number) else _bytes_of(data[start:after])
    if letter == "t":
        return letter, bool(data[start]) if data[start] < 2 else _bytes_of(data[start:after])
    if letter == "D":
        return letter, list(_DECIMAL.unpack_from(data, start))
    if letter == "V":
        return letter, None
    if letter == "S":
        return letter, _text_of(data[start + 4 : after])
    if letter == "x":
        return letter, _bytes_of(data[start + 4 : after])
    if letter == "F":
        return letter, _fields_of(data, start + 4, after)
    items: list[list[Any]] = []
    inner = start + 4
    while inner < after:
        behind = tables.skip(data, inner, after, tables.DEPTH_MAX)
        items.append(list(_value_of(data, inner, behind)))
        inner = behind
    return letter, items


def _text_of(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _bytes_of(raw)


def _bytes_of(raw: bytes) -> dict[str, str]:
    return {_BASE64: base64.b64encode(raw).decode()}


# -- from JSON -----------------------------------------------------------------------------------------------


def properties_of(told: object, depth: int) -> content.Properties:
    """Return the properties that `of_properties` returned. Tables have at most this depth. Raises TypedError,
    which says which value is wrong.
    """
    if not isinstance(told, dict):
        raise TypedError("properties must be an object")
    properties = content.Properties()
    for name in told:
        if name not in content.PROPERTIES:
            raise TypedError(f"no property is named {str(name)[:64]!r}")
    for name in content.PROPERTIES:
        if name not in told:
            continue
        value, where = told[name], f"property {name}"
        if name == "headers":
            properties.raw[name] = _table(value, depth, where)
        elif name in _OCTETS or name == "timestamp":
            layout = _INTEGERS["T" if name == "timestamp" else "B"]
            properties.raw[name] = _packed(layout, value, where)
        else:
            properties.raw[name] = _short(value, where)
    return properties


def short_text(value: object, where: str) -> bytes:
    """Return the bytes of a text of at most 255 bytes. Raises TypedError."""
    return _short(value, where)[1:]


def _short(value: object, where: str) -> bytes:
    raw = _raw(value, where)
    if len(raw) > _SHORT_BYTES_MAX:
        raise TypedError(f"{where} may have at most {_SHORT_BYTES_MAX} bytes")
    return bytes((len(raw),)) + raw


def _table(value: object, depth: int, where: str) -> bytes:
    parts: list[bytes] = []
    for field in _list(value, where):
        if not isinstance(field, list) or len(field) != 3:
            raise TypedError(f"{where}: a field must be a list of name, type and value")
        name = _short(field[0], f"{where}: a name")
        parts += (name, _value(field[1], field[2], depth, f"{where}, field {str(field[0])[:64]!r}"))
    return _sized(b"".join(parts))


def _value(letter: object, value: object, depth: int, where: str) -> bytes:
    make = _MAKE.get(letter) if isinstance(letter, str) else None
    if make is None or not isinstance(letter, str):
        raise TypedError(f"{where}: no type has the letter {str(letter)[:8]!r}")
    if letter in ("F", "A") and depth == 0:
        raise TypedError(f"{where}: tables and arrays are nested too deeply (table_depth_max)")
    return letter.encode() + make(letter, value, depth - 1, where)


def _integer(letter: str, value: object, depth: int, where: str) -> bytes:
    return _packed(_INTEGERS[letter], value, where)


def _packed(layout: struct.Struct, value: object, where: str) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypedError(f"{where} must be an integer")
    try:
        return layout.pack(value)
    except struct.error as error:
        raise TypedError(f"{where}: {error}") from None


def _float(letter: str, value: object, depth: int, where: str) -> bytes:
    layout = _FLOATS[letter]
    if isinstance(value, dict):
        return _exactly(value, layout.size, where)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypedError(f"{where} must be a number")
    try:
        return layout.pack(value)
    except (struct.error, OverflowError) as error:
        raise TypedError(f"{where}: {error}") from None


def _switch(letter: str, value: object, depth: int, where: str) -> bytes:
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    return _exactly(value, 1, where)


def _decimal(letter: str, value: object, depth: int, where: str) -> bytes:
    told = _list(value, where)
    if len(told) != 2 or not all(isinstance(each, int) and not isinstance(each, bool) for each in told):
        raise TypedError(f"{where} must be a list of scale and unscaled number")
    try:
        return _DECIMAL.pack(*told)
    except struct.error as error:
        raise TypedError(f"{where}: {error}") from None


def _nothing(letter: str, value: object, depth: int, where: str) -> bytes:
    if value is not None:
        raise TypedError(f"{where} must be null")
    return b""


def _string(letter: str, value: object, depth: int, where: str) -> bytes:
    return _sized(_raw(value, where))


def _fields(letter: str, value: object, depth: int, where: str) -> bytes:
    return _table(value, depth, where)


def _array(letter: str, value: object, depth: int, where: str) -> bytes:
    parts: list[bytes] = []
    for item in _list(value, where):
        if not isinstance(item, list) or len(item) != 2:
            raise TypedError(f"{where}: an item must be a list of type and value")
        parts.append(_value(item[0], item[1], depth, where))
    return _sized(b"".join(parts))


def _raw(value: object, where: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise TypedError(f"{where} has half a character (a surrogate)") from None
    return _unpacked(value, where)


def _unpacked(value: object, where: str) -> bytes:
    encoded = value.get(_BASE64) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(encoded, str):
        raise TypedError(f'{where} must be a text or {{"{_BASE64}": …}}')
    return from_base64(encoded, where)


def from_base64(encoded: str, where: str) -> bytes:
    """Raises TypedError."""
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise TypedError(f"{where} is not base64") from None


def _exactly(value: object, size: int, where: str) -> bytes:
    raw = _unpacked(value, where)
    if len(raw) != size:
        raise TypedError(f"{where} must have {size} bytes, not {len(raw)}")
    return raw


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypedError(f"{where} must be a list")
    return value


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


_MAKE: Final[dict[str, Callable[[str, object, int, str], bytes]]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    **dict.fromkeys(_FLOATS, _float),
    **dict.fromkeys(_TEXTS, _string),
    "t": _switch,
    "D": _decimal,
    "V": _nothing,
    "F": _fields,
    "A": _array,
}
