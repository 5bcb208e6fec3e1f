"""Messages published and got by hand. Meant for a few messages; for more, clients use AMQP."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec

from amqp_server.errors import AMQPError, NotFound
from amqp_server.management.objects.internal_session import Takes
from amqp_server.management.objects.views import Fate
from amqp_server.management.request.answer import Refusal, bad_request, not_found, with_code
from amqp_server.management.request.call import Call
from amqp_server.management.resources.payloads import Messages

COUNT_MAX = 1_000

#: JSON types of the properties that a message may have.
PROPERTIES: dict[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "headers": dict,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}
OCTETS = ("delivery_mode", "priority")
TIMESTAMP_MAX = (1 << 64) - 1
SHORT_STRING_BYTES_MAX = 255


class PublishRequest(msgspec.Struct):
    routing_key: str
    payload: str
    payload_encoding: Literal["string", "base64"]
    properties: dict[str, Any] = {}


async def publish(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.exchange_name()
    asked = call.read(PublishRequest)
    if not call.broker.exchanges.has(vhost, name):
        raise with_code(NotFound(f"no exchange '{name}' in vhost '{vhost}'"))
    call.require_own(vhost, "exchange", name, "write")
    routing_key = checked_routing_key(asked.routing_key)
    properties = checked_properties(asked.properties)
    if properties.get("user_id", call.user.name) != call.user.name:
        raise bad_request(
            f"406 PRECONDITION_FAILED - user_id property set to '{properties['user_id']}' but authenticated user was "
            f"'{call.user.name}'"
        )
    payload = _payload(asked)
    try:
        routed = await call.broker.messages.publish(
            vhost, name, routing_key, properties, payload, call.user.name, call.access
        )
    except AMQPError as error:
        raise with_code(error) from None
    return {"routed": routed}


def _payload(asked: PublishRequest) -> bytes:
    if asked.payload_encoding == "string":
        return asked.payload.encode()
    try:
        return base64.b64decode(asked.payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("payload is not base64") from None


def checked_routing_key(given: str) -> str:
    if len(given.encode()) > SHORT_STRING_BYTES_MAX:
        raise bad_request(f"routing_key may have at most {SHORT_STRING_BYTES_MAX} bytes")
    return given


def checked_properties(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        type_ = PROPERTIES.get(name)
        if type_ is None:
            raise bad_request(f"no property is named {name[:64]}")
        if not isinstance(value, type_) or isinstance(value, bool):
            raise bad_request(f"property {name} must be of type {type_.__name__}")
        if isinstance(value, str) and len(value.encode()) > SHORT_STRING_BYTES_MAX:
            raise bad_request(f"property {name} may have at most {SHORT_STRING_BYTES_MAX} bytes")
        if isinstance(value, int) and name in OCTETS and not 0 <= value <= 255:
            raise bad_request(f"property {name} must be 0 to 255")
    if not 0 <= given.get("timestamp", 0) <= TIMESTAMP_MAX:
        raise bad_request("property timestamp must be seconds since 1970")
    return given


FATES: dict[str, Fate] = {
    "ack_requeue_true": "requeue",
    "reject_requeue_true": "requeue",
    "ack_requeue_false": "ack",
    "reject_requeue_false": "reject",
}


class GetRequest(msgspec.Struct):
    count: int
    ackmode: Literal["ack_requeue_true", "reject_requeue_true", "ack_requeue_false", "reject_requeue_false"]
    encoding: Literal["auto", "base64"]
    #: Payloads are cut to this number of bytes.
    truncate: int | None = None


def _require_read(call: Call, vhost: str, name: str) -> None:
    """Refuse unless the user may read the queue, and the streams that it reads as a group."""
    call.require_own(vhost, "queue", name, "read")
    for each in call.broker.groups.read_by(vhost, name):
        call.require_own(vhost, "queue", each, "read")


async def get(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(GetRequest)
    _require_read(call, vhost, name)
    if not call.broker.queues.has(vhost, name):
        raise Refusal(404, "not_found", f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'")
    if not 1 <= asked.count <= COUNT_MAX:
        raise bad_request(f"count must be 1 to {COUNT_MAX}")
    if asked.truncate is not None and asked.truncate < 0:
        raise bad_request("truncate must not be negative")
    try:
        got = await call.broker.messages.get(
            vhost, name, asked.count, FATES[asked.ackmode], _takes(call), call.slices.rest
        )
    except AMQPError as error:
        raise with_code(error) from None
    found = [(None, message) for message in got]
    return Messages(found, call.slices, call.held, encoding=asked.encoding, truncate=asked.truncate)


def _takes(call: Call) -> Takes:
    """Return a function that counts messages while there is room for them. One that finds no room for the
    first message refuses the request.
    """
    held = call.held

    async def takes(size: int, before: int) -> bool:
        await call.slices.rest()
        if before and not held.has_room(size):
            return False
        held.add(size)
        return True

    return takes


class ReadRequest(msgspec.Struct):
    #: Where a consumer of the stream would begin: see x-stream-offset.
    offset: str | int = "first"
    count: int = 10
    #: Messages with this x-stream-filter-value only.
    filter: str | None = None
    encoding: Literal["auto", "base64"] = "auto"
    truncate: int | None = None


async def read(call: Call) -> Any:
    """Return messages of a stream, which does not change."""
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(ReadRequest)
    _require_read(call, vhost, name)
    if not 1 <= asked.count <= COUNT_MAX:
        raise bad_request(f"count must be 1 to {COUNT_MAX}")
    if asked.truncate is not None and asked.truncate < 0:
        raise bad_request("truncate must not be negative")
    arguments: dict[str, object] = {"x-stream-offset": asked.offset}
    if asked.filter is not None:
        arguments["x-stream-filter"] = asked.filter
    found = await call.broker.messages.read(
        vhost, name, arguments, asked.count, _takes(call), call.slices.rest
    )
    return Messages(found, call.slices, call.held, encoding=asked.encoding, truncate=asked.truncate)


#: Messages that one request may move; clients that want to move more send another one.
MOVE_MAX = 10_000


class MoveRequest(msgspec.Struct):
    #: Queue in the same vhost.
    destination: str
    #: Number of messages from the head of the queue; all that it has now unless given.
    count: int | None = None


async def move(call: Call) -> Any:
    """Answer with the number of moved messages, and with the number of messages after them that the other
    queue refused.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(MoveRequest)
    # The user needs the same permissions as a client that consumes from the queue and publishes by the
    # default exchange.
    _require_read(call, vhost, name)
    call.require_own(vhost, "exchange", "", "write")
    queue = call.broker.queues.find(vhost, name)
    if queue is None:
        raise not_found()
    if asked.destination == name:
        raise bad_request("destination is the queue itself")
    if asked.count is not None and not 1 <= asked.count <= MOVE_MAX:
        raise bad_request(f"count must be 1 to {MOVE_MAX}")
    count = min(queue.messages_ready, MOVE_MAX if asked.count is None else asked.count)
    moved, refused = await call.broker.messages.move(vhost, name, asked.destination, count)
    return {"moved": moved, "refused": refused}
