"""AMQP URIs, as RabbitMQ reads them: the address, user and TLS options of a shovel's connection.

No text that this module makes has a password in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

PORT, TLS_PORT = 5672, 5671
DEFAULT_VHOST = "/"
#: Maximum length of the names of users, virtual hosts and hosts.
NAME_BYTES_MAX = 255
#: Stands for a password in a URI that is shown.
MASK = "***"

_CREDENTIALS = re.compile(r"(?P<before>://[^/?#:]*:)[^/?#]*(?P<after>@)")
_IN_QUERY = re.compile(r"(?P<before>[?&]password=)[^&#]*")
#: Parameters that are numbers.
_NUMBERS = frozenset({"heartbeat", "connection_timeout", "channel_max", "frame_max"})


class InvalidUri(ValueError):
    """An invalid URI; the text has the reason, and the URI without its password."""


class Uri(NamedTuple):
    secure: bool = False
    #: Empty: this node.
    host: str = ""
    port: int = PORT
    #: None if the URI names no user.
    user: str | None = None
    password: str | None = None
    vhost: str = DEFAULT_VHOST
    #: None if the URI does not set it.
    heartbeat_s: int | None = None
    connect_timeout_s: float | None = None
    #: False: the certificate of the other side is not checked.
    verify: bool = True
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    external: bool = False

    @property
    def shown(self) -> str:
        """The URI without user and password, as RabbitMQ shows it."""
        scheme = "amqps" if self.secure else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if not host or self.port == (TLS_PORT if self.secure else PORT) else f":{self.port}"
        quoted = quote(self.vhost, safe="").replace("%2F", "%2f")
        vhost = "" if self.vhost == DEFAULT_VHOST else f"/{quoted}"
        return f"{scheme}://{host}{port}{vhost}"

    def __repr__(self) -> str:
        return f"Uri({self.shown!r})"


def masked(text: str) -> str:
    """Return a URI with a mask instead of its password."""
    text = _CREDENTIALS.sub(rf"\g<before>{MASK}\g<after>", text)
    return _IN_QUERY.sub(rf"\g<before>{MASK}", text)


def unmasked(text: str, known: Iterable[str]) -> str:
    """Return a URI with the password of the first of the known ones that has the same scheme, user, host and
    port, if its own password is a mask.
    """
    mine = _login_of(text)
    if mine is None or mine[-1] != MASK:
        return text
    for each in known:
        other = _login_of(each)
        if other is not None and other[:-1] == mine[:-1] and other[-1] != MASK:
            return text.replace(f":{MASK}@", f":{other[-1]}@", 1)
    return text


def _login_of(text: str) -> tuple[str, str, str, int | None, str] | None:
    """Return scheme, user, host, port and password as they stand in a URI; None without a password."""
    try:
        parts = urlsplit(text)
        if parts.password is None:
            return None
        port = parts.port
    except ValueError:
        return None
    return parts.scheme, parts.username or "", parts.hostname or "", port, parts.password


def _hidden(text: str) -> str:
    """Mask a text that is no URI, in which the password cannot be located."""
    before, at, after = masked(text).rpartition("@")
    return f"{text.partition(':')[0]}:{MASK}@{after}" if at and not before.endswith(MASK) else masked(text)


def parse(text: str) -> Uri:
    """Parse a URI. Raises InvalidUri."""
    try:
        return _parse(text)
    except InvalidUri as invalid:
        raise InvalidUri(f'"{_hidden(text)}" not a valid URI: {invalid}') from None
    except ValueError:
        # The original error may repeat a part of the text.
        raise InvalidUri(f'"{_hidden(text)}" not a valid URI') from None


def _parse(text: str) -> Uri:
    if "\0" in text or not text.isprintable():
        raise InvalidUri("it has characters that are not printable")
    scheme, colon, _ = text.partition(":")
    if not colon:
        raise InvalidUri("{unable_to_parse_uri,no_scheme}")
    if scheme not in ("amqp", "amqps"):
        raise InvalidUri(f'{{unexpected_uri_scheme,"{scheme[:32]}"}}')
    parts = urlsplit(text)
    if parts.scheme not in ("amqp", "amqps") or not text.startswith(f"{scheme}://"):
        raise InvalidUri("{unable_to_parse_uri,no_authority}")
    secure = scheme == "amqps"
    try:
        port = parts.port
    except ValueError:
        raise InvalidUri("{port_out_of_range}") from None
    if port == 0:
        raise InvalidUri("{port_out_of_range,0}")
    host = unquote(parts.hostname or "")
    if not host and (secure or port is not None):
        raise InvalidUri("{no_host}")
    path = parts.path[1:]
    if "/" in path:
        raise InvalidUri("{invalid_vhost}")
    password = None if parts.password is None else unquote(parts.password)
    if password == MASK:
        raise InvalidUri("its password is masked; give the password itself")
    if not parts.username and parts.password is not None:
        raise InvalidUri("{no_username}")
    user = None if not parts.username else unquote(parts.username)
    vhost = unquote(path) or DEFAULT_VHOST
    if not (host + (user or "")).isprintable():
        # No user has such a name: they are reserved for the node itself; and host names appear in log lines.
        raise InvalidUri("{not_printable}")
    if max(len(each.encode()) for each in (host, user or "", vhost)) > NAME_BYTES_MAX:
        raise InvalidUri(f"a part has more than {NAME_BYTES_MAX} bytes")
    return Uri(
        secure=secure,
        host=host,
        port=port or (TLS_PORT if secure else PORT),
        user=user,
        password=password,
        vhost=vhost,
        **_query(parts.query, secure=secure),
    )


def _query(query: str, *, secure: bool) -> dict[str, Any]:
    """Parse the query. Unknown parameters are ignored, as in RabbitMQ."""
    found: dict[str, str] = dict(parse_qsl(query, keep_blank_values=True))
    if not all(value.isprintable() for value in found.values()):
        raise InvalidUri("{not_printable}")
    numbers: dict[str, int] = {}
    for name in _NUMBERS & found.keys():
        if not re.fullmatch(r"\d{1,9}", found[name], re.ASCII):
            raise InvalidUri(f"{{invalid_amqp_params_parameter,{name},{{not_an_integer}}}}")
        numbers[name] = int(found[name])
    told: dict[str, Any] = {"external": found.get("auth_mechanism", "").lower() == "external"}
    if "heartbeat" in numbers:
        told["heartbeat_s"] = min(numbers["heartbeat"], 65_535)
    if "connection_timeout" in numbers:
        told["connect_timeout_s"] = numbers["connection_timeout"] / 1000
    if secure:
        verify = found.get("verify", "verify_peer")
        if verify not in ("verify_peer", "verify_none"):
            raise InvalidUri("{invalid_amqp_params_parameter,verify}")
        told["verify"] = verify == "verify_peer"
        told["server_name"] = found.get("server_name_indication", "")
        for name, field in (("cacertfile", "ca_file"), ("certfile", "cert_file"), ("keyfile", "key_file")):
            told[field] = found.get(name, "")
    return told


def local_as(text: str, user: str) -> str:
    """Return a URI of this node that names no user, with this user. Raises InvalidUri."""
    named = text.replace("://@", "://", 1).replace("://", f"://{quote(user, safe='')}@", 1)
    if parse(named).user != user:
        raise InvalidUri(f'"{masked(text)}" not a valid URI')
    return named
