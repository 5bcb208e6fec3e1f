"""The login mechanisms: decode a SASL response to a user's name and password.

EXTERNAL has neither: the certificate names the user (`certificate_names`). PLAIN is RFC 4616 without an
authorization identity, AMQPLAIN a field table without its length, as RabbitMQ reads both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from amqp_server.errors import CommandInvalid, SyntaxError_

#: The mechanisms in the order in which they are offered.
MECHANISMS = ("AMQPLAIN", "PLAIN")
#: Offered as well if certificates can log in.
EXTERNAL = "EXTERNAL"

USER_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 1_024
#: Room for the longest name and password in either mechanism, and for a few more fields.
RESPONSE_BYTES_MAX = 4_096

# Sizes of the field table's types that have one (RabbitMQ's errata of the specification, section 3).
_FIXED = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8, b"f": 4, b"d": 8}
_FIXED |= {b"D": 5, b"T": 8, b"V": 0}
_MEASURED = frozenset((b"S", b"x", b"A", b"F"))


class Credentials(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r})"


def parse_response(mechanism: str, response: bytes, token_bytes_max: int = 0) -> Credentials:
    """Parse a response; `token_bytes_max` is the maximum length of a token in place of a password.

    Raises CommandInvalid for a mechanism that isn't offered, SyntaxError_ for a bad response.
    """
    parse = _PARSERS.get(mechanism)
    if parse is None:
        raise CommandInvalid(f"unknown authentication mechanism '{mechanism[:64]}'")
    response_bytes_max = RESPONSE_BYTES_MAX + token_bytes_max
    if len(response) > response_bytes_max:
        raise SyntaxError_(f"{mechanism} response longer than {response_bytes_max} bytes")
    user, password = parse(response)
    if len(user) > USER_BYTES_MAX or len(password) > max(PASSWORD_BYTES_MAX, token_bytes_max):
        raise SyntaxError_(f"{mechanism} response with a name or password that is too long")
    try:
        return Credentials(user.decode(), password.decode())
    except UnicodeDecodeError:
        raise SyntaxError_(f"{mechanism} response is not UTF-8") from None


def _plain(response: bytes) -> tuple[bytes, bytes]:
    """`NUL name NUL password`."""
    parts = response.split(b"\0")
    # Unlike RabbitMQ's, refusals never quote the response: it may hold a password.
    if len(parts) != 3 or parts[0]:
        raise SyntaxError_("PLAIN response invalid")
    return parts[1], parts[2]


def _amqplain(response: bytes) -> tuple[bytes, bytes]:
    found: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(response):
        name_at = at + 1
        type_at = name_at + response[at]
        name, type_ = response[name_at:type_at], response[type_at : type_at + 1]
        at = type_at + 1
        size = _FIXED.get(type_)
        if size is None:
            if type_ not in _MEASURED or at + 4 > len(response):
                raise SyntaxError_("AMQPLAIN response invalid")
            size = int.from_bytes(response[at : at + 4], "big")
            at += 4
        if size > len(response) - at:
            raise SyntaxError_("AMQPLAIN response invalid")
        found.setdefault(name, response[at : at + size] if type_ == b"S" else None)
        at += size
    if b"LOGIN" not in found or b"PASSWORD" not in found:
        raise SyntaxError_("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    user, password = found[b"LOGIN"], found[b"PASSWORD"]
    if user is None or password is None:
        raise SyntaxError_("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
    return user, password


_PARSERS: dict[str, Callable[[bytes], tuple[bytes, bytes]]] = {"PLAIN": _plain, "AMQPLAIN": _amqplain}
