"""Conditions that messages have to fulfil."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from amqp_server.broker.pattern import compile_filter
from amqp_server.management.messages.by_hand import properties_of
from amqp_server.management.request.answer import bad_request, plain, refusing
from amqp_server.wire import content

PATTERN_BYTES_MAX = 256


class Conditions(msgspec.Struct, kw_only=True):
    #: A regular expression that is found in the routing key, in any case.
    routing_key: Annotated[str, msgspec.Meta(max_length=PATTERN_BYTES_MAX)] | None = None
    #: NAME=VALUE.
    header: str | None = None
    #: A text in the payload.
    contains: Annotated[str, msgspec.Meta(min_length=1)] | None = None


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

    def properties(self) -> dict[str, Any]:
        return properties_of(self.header())


Wanted = Callable[[Message], bool]


def given(asked: Conditions) -> dict[str, Any]:
    """Return the conditions that are set, by their names."""
    conditions = {name: getattr(asked, name) for name in Conditions.__struct_fields__}
    return {name: value for name, value in conditions.items() if value is not None}


def wanted(asked: Conditions) -> Iterator[Wanted]:
    """Yield what messages must fulfil. Raises Refusal."""
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


def _text(value: object) -> str | None:
    """Return the value of a header as an operator writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(plain(value))
