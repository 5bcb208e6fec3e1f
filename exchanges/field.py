"""Values of AMQP field tables: equality, and RabbitMQ's names and formats.

Python's `==` is too generous for arguments: `1 == True == 1.0`, while AMQP distinguishes integers, booleans
and floats. Integers of different widths are decoded to the same value and count as the same.
"""

from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal

_SIGNED_32 = range(-(2**31), 2**31)


def token(value: object) -> Hashable:
    """Return a hashable stand-in for a value and its type: tokens are equal if the AMQP values are."""
    if value is None:
        return ("void",)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return ("float", value if value == value else "nan")  # a NaN is not even equal to itself
    if isinstance(value, bytes | bytearray | memoryview):
        return ("binary", bytes(value))
    if isinstance(value, Mapping):
        return ("table", table_token(value))
    if isinstance(value, list | tuple):
        return ("array", tuple([token(item) for item in value]))
    if isinstance(value, Decimal):
        return ("decimal", value.as_tuple())
    if isinstance(value, datetime):
        return ("timestamp", value.timestamp())
    return (type(value).__name__, repr(value))


def matching_token(value: object) -> Hashable:
    """Like `token`, but equal for all values that RabbitMQ's headers exchange considers equal: integers,
    floats and timestamps by their number, text and binary by their octets.
    """
    if isinstance(value, float) and value == value:
        return value
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return ("binary", bytes(value))
    return token(value)


def table_token(table: Mapping[str, object]) -> tuple[tuple[str, Hashable], ...]:
    return tuple([(name, token(table[name])) for name in sorted(table)])


def type_name(value: object) -> str:
    """RabbitMQ's name for the field's type, as far as the decoded value still shows it."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case int():
            return "signedint" if value in _SIGNED_32 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes() | bytearray() | memoryview():
            return "binary"
        case Decimal():
            return "decimal"
        case datetime():
            return "timestamp"
        case Mapping():
            return "table"
        case list() | tuple():
            return "array"
        case _:
            return type(value).__name__


def erlang_term(value: object) -> str:
    """The value as Erlang's `~p` prints it, because RabbitMQ's refusals contain it in this form."""
    match value:
        case None:
            return "undefined"
        case bool():
            return "true" if value else "false"
        case str():
            return _binary(value.encode())
        case bytes() | bytearray() | memoryview():
            return _binary(bytes(value))
        case datetime():
            return str(int(value.timestamp()))
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
            return f"{{{-exponent if isinstance(exponent, int) else 0},{number}}}"
        case Mapping():
            rows = [f"{{{_binary(k.encode())},{type_name(v)},{erlang_term(v)}}}" for k, v in value.items()]
            return "[" + ",".join(rows) + "]"
        case list() | tuple():
            return "[" + ",".join(f"{{{type_name(item)},{erlang_term(item)}}}" for item in value) + "]"
        case _:
            return str(value)


def _binary(data: bytes) -> str:
    if all(32 <= octet < 127 or octet >= 160 or octet in b"\n\r\t\v\b\f\x1b" for octet in data):
        text = data.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{text}">>' if data else "<<>>"
    return "<<" + ",".join(map(str, data)) + ">>"
