"""Conditions that messages have to fulfil."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from amqp_server.broker.pattern import compile_filter
from amqp_server.management.messages.by_hand import properties_of
from amqp_server.management.request.answer import bad_request, plain, refusing
from amqp_server.management.request.call import Call
from amqp_server.wire import content

PATTERN_BYTES_MAX = 256
#: Longest name of a header.
NAME_BYTES_MAX = 255
#: Units of an age, s.
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_MILLISECONDS = re.compile(r"[0-9]{1,15}")


class Conditions(msgspec.Struct, kw_only=True):
    #: A regular expression that is found in the routing key, in any case.
    routing_key: Annotated[str, msgspec.Meta(max_length=PATTERN_BYTES_MAX)] | None = None
    #: NAME=VALUE.
    header: str | None = None
    #: A text in the payload.
    contains: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    #: The message-id.
    message_id: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    #: They came then, or later: a time in ISO 8601, ms since 1970, or an age such as 90s, 15m, 2h or 7d.
    since: str | None = None


class Message(NamedTuple):
    """A message that was looked at."""

    place: str
    exchange: str
    routing_key: str
    redelivered: bool
    #: Returns its properties.
    header: Callable[[], content.Properties]
    body: bytes
    #: When its wait is over, ms since 1970; None if it is ready.
    due_ms: int | None = None
    #: Returns when it came, ms since 1970, or somewhat earlier; None if nobody knows. Messages of a stream
    #: have none: those that came before are not looked at.
    came_ms: Callable[[], int | None] | None = None

    def properties(self) -> dict[str, Any]:
        return properties_of(self.header())


Wanted = Callable[[Message], bool]


def given(asked: Conditions) -> dict[str, Any]:
    """Return the conditions that are set, by their names."""
    conditions = {name: getattr(asked, name) for name in Conditions.__struct_fields__}
    return {name: value for name, value in conditions.items() if value is not None}


def require_version(call: Call, version: int) -> None:
    """Refuse a request that nodes of earlier versions would not understand."""
    if call.broker.replication.version < version:
        raise bad_request("this needs a cluster whose nodes all run this version of mqd")


def since_ms(asked: Conditions, now_ms: int) -> int | None:
    """Return the time of the condition `since`, ms since 1970, if it is given. Raises Refusal."""
    text = asked.since
    if text is None:
        return None
    age = _AGE.fullmatch(text)
    if age is not None:
        return now_ms - int(age[1]) * _UNITS[age[2]] * 1000
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise bad_request(
            "since must be a time such as 2026-11-29T12:00:00Z, ms since 1970, or an age such as 15m or 2h"
        ) from None


def wanted(asked: Conditions, now_ms: int) -> Iterator[Wanted]:
    """Yield what messages must fulfil; `now_ms` is the wall clock. Raises Refusal."""
    since = since_ms(asked, now_ms)
    if since is not None:
        yield lambda message: message.came_ms is None or (message.came_ms() or 0) >= since
    if asked.routing_key is not None:
        with refusing(ValueError):
            matches = compile_filter(asked.routing_key, PATTERN_BYTES_MAX)
        yield lambda message: matches(message.routing_key)
    if asked.header is not None:
        name, equals, value = asked.header.partition("=")
        if not (name and equals):
            raise bad_request("header must be NAME=VALUE")
        yield lambda message: _text((message.header().headers or {}).get(name)) == value
    if asked.contains is not None:
        sought = asked.contains.encode()
        yield lambda message: sought in message.body
    if asked.message_id is not None:
        with refusing(UnicodeEncodeError):
            named = asked.message_id.encode()
        yield lambda message: message_id_of(message.header()) == named


#: Returns False for the frames of a message that does not fulfil a condition, without a copy of any part.
#: True says nothing.
Sieve = Callable[[bytes], bool]


def sieves(asked: Conditions) -> list[Sieve]:
    """Return quick looks at messages: most of those that are not meant need not be decoded."""
    found: list[Sieve] = []
    if asked.header is not None:
        name, _, value = asked.header.partition("=")
        found.append(_header_sieve(name.encode(errors="replace"), value.encode(errors="replace")))
    if asked.contains is not None:
        found.append(_body_sieve(asked.contains.encode()))
    if asked.message_id is not None:
        found.append(_id_sieve(asked.message_id.encode(errors="replace")))
    return found


def _header_end(item: bytes) -> int:
    """Return the end of the first frame, which is the content header."""
    return 8 + int.from_bytes(item[3:7], "big")


def _header_sieve(name: bytes, value: bytes) -> Sieve:
    # No header has a longer name.
    mark = bytes((len(name),)) + name if len(name) <= NAME_BYTES_MAX else b""
    text = b"S" + len(value).to_bytes(4, "big") + value

    def may_have(item: bytes) -> bool:
        end = _header_end(item)
        at = item.find(mark, 0, end) + len(mark) if mark else -1
        if at < len(mark) or not mark:
            return False
        if item.startswith(text, at) or item[at] != ord("S") or item.find(mark, at, end) >= 0:
            # Numbers and other types are compared as texts, and the bytes may stand in a value, too.
            return True
        start = at + 5
        # What is no text is shown as one.
        return not item[start : start + int.from_bytes(item[at + 1 : start], "big")].isascii()

    return may_have


def _body_sieve(sought: bytes) -> Sieve:
    def may_contain(item: bytes) -> bool:
        end = _header_end(item)
        # The text may be cut by the end of a frame.
        return item.find(sought, end) >= 0 or len(item) > end + 8 + int.from_bytes(
            item[end + 3 : end + 7], "big"
        )

    return may_contain


def _id_sieve(sought: bytes) -> Sieve:
    def may_have(item: bytes) -> bool:
        return item.find(sought, 0, _header_end(item)) >= 0

    return may_have


def message_id_of(properties: content.Properties) -> bytes:
    """Return the bytes of the message-id, empty without one."""
    return properties.raw.get("message_id", b"\0")[1:]


def _text(value: object) -> str | None:
    """Return the value of a header as an operator writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(plain(value))
