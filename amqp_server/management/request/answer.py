"""Answers of handlers, and refusals that they may raise instead. All of them are sent as JSON."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from amqp_server.errors import AccessRefused, AMQPError, NotFound, SoftError, Unavailable

Found = TypeVar("Found")


class Answer(NamedTuple):
    status: int
    body: Any = None
    #: The `location` header.
    location: str = ""
    #: Called after the answer was sent.
    after: Callable[[], Awaitable[None]] | None = None
    #: True if it has an ETag: a client that has the same answer already gets 304.
    tagged: bool = False


NO_CONTENT = Answer(204)
CREATED = Answer(201)


def created(new: bool) -> Answer:
    """201 for a new object, 204 for one that existed before, as in RabbitMQ's API."""
    return CREATED if new else NO_CONTENT


class Refusal(Exception):
    def __init__(self, status: int, error: str, reason: str | list[str]) -> None:
        super().__init__(reason)
        self.status = status
        self.body: dict[str, object] = {"error": error, "reason": reason}


def bad_request(reason: str) -> Refusal:
    return Refusal(400, "bad_request", reason)


def not_found() -> Refusal:
    return Refusal(404, "Object Not Found", "Not Found")


def known(found: Found | None) -> Found:
    """Return what was found. Raises Refusal if it is None."""
    if found is None:
        raise not_found()
    return found


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into refusals of the request with their texts."""
    try:
        yield
    except kinds as error:
        raise bad_request(str(error)) from None


def not_authorised(reason: str) -> Refusal:
    return Refusal(401, "not_authorised", reason)


def login_failed() -> Refusal:
    """RabbitMQ's spelling: `not_authorized` for a failed login, `not_authorised` for a missing permission."""
    return Refusal(401, "not_authorized", "Login failed")


def refusal_of(error: AMQPError) -> Refusal:
    """Return the HTTP refusal for an AMQP error: the bare text, without the code that a channel is closed
    with.
    """
    if isinstance(error, NotFound):
        return Refusal(404, "not_found", error.text)
    if isinstance(error, AccessRefused):
        return not_authorised(error.text)
    if isinstance(error, Unavailable):
        return Refusal(503, "unavailable", error.text)
    return bad_request(error.text)


def with_code(error: AMQPError) -> Refusal:
    """Return the refusal for a message that was published or got: there RabbitMQ's text has the code."""
    if isinstance(error, (AccessRefused, Unavailable)):
        return refusal_of(error)
    return bad_request(f"{error.code} {error.reply_text() if isinstance(error, SoftError) else error.text}")


def plain(value: Any) -> Any:
    """A value of a field table as JSON can hold it. The depth of tables was checked when they arrived."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return text_of(bytes(value))
    if isinstance(value, datetime.datetime):
        return int(value.timestamp())
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value


def text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _foreign(value: Any) -> Any:
    known = plain(value)
    if known is value:
        raise NotImplementedError(f"no JSON for {type(value).__name__}")
    return known


#: Encodes an answer as JSON.
encode: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_foreign).encode
