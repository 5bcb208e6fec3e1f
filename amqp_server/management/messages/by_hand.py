"""Messages published and got by hand. Meant for a few messages; for more, clients use AMQP."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import trio
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.access.users import IMPERSONATOR
from amqp_server.broker.topology.consumer_groups import streams_of
from amqp_server.errors import AMQPError, NotFound, PreconditionFailed, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.changes.internal_session import Content, Direct, Read, Takes
from amqp_server.management.request.answer import Refusal, bad_request, with_code
from amqp_server.management.request.call import Call
from amqp_server.management.request.payloads import Messages, MessageView
from amqp_server.management.request.time_slices import Rest
from amqp_server.streams.local_host import StreamHost
from amqp_server.wire import content, methods

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: A message that was got is acked, requeued, or rejected as by a consumer (dead-lettered).
Fate = Literal["ack", "requeue", "reject"]
COUNT_MAX = 1_000
#: Bytes of bodies that one request may get; the next request gets the rest.
GET_BYTES_MAX = 32 << 20

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
    if call.broker.vhost(vhost).router.get(name) is None:
        raise with_code(NotFound(f"no exchange '{name}' in vhost '{vhost}'"))
    call.require_own(vhost, "exchange", name, "write")
    routing_key = checked_routing_key(asked.routing_key)
    properties = checked_properties(asked.properties)
    claimed = properties.get("user_id", call.user.name)
    if claimed != call.user.name and IMPERSONATOR not in call.user.tags:
        raise bad_request(
            f"406 PRECONDITION_FAILED - user_id property set to '{claimed}' but authenticated user was "
            f"'{call.user.name}'"
        )
    payload = _payload(asked)
    try:
        routed = await publish_message(
            call.broker, vhost, name, routing_key, properties, payload, call.user.name, call.access
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


def require_read(call: Call, vhost: str, name: str) -> None:
    """Refuse unless the user may read the queue, and the streams that it reads as a group."""
    call.require_own(vhost, "queue", name, "read")
    topology = call.broker.vhost(vhost)
    group = topology.groups.get(name)
    for each in () if group is None else streams_of(topology, group.parsed.stream):
        call.require_own(vhost, "queue", each.name, "read")


async def get(call: Call) -> Any:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(GetRequest)
    require_read(call, vhost, name)
    if name not in call.broker.vhost(vhost).queues:
        raise Refusal(404, "not_found", f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'")
    if not 1 <= asked.count <= COUNT_MAX:
        raise bad_request(f"count must be 1 to {COUNT_MAX}")
    if asked.truncate is not None and asked.truncate < 0:
        raise bad_request("truncate must not be negative")
    try:
        got = await get_messages(
            call.broker, vhost, name, asked.count, FATES[asked.ackmode], _takes(call), call.slices.rest
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
    require_read(call, vhost, name)
    if not 1 <= asked.count <= COUNT_MAX:
        raise bad_request(f"count must be 1 to {COUNT_MAX}")
    if asked.truncate is not None and asked.truncate < 0:
        raise bad_request("truncate must not be negative")
    arguments: dict[str, object] = {"x-stream-offset": asked.offset}
    if asked.filter is not None:
        arguments["x-stream-filter"] = asked.filter
    found = await read_messages(
        call.broker, vhost, name, arguments, asked.count, _takes(call), call.slices.rest
    )
    return Messages(found, call.slices, call.held, encoding=asked.encoding, truncate=asked.truncate)


# -- of the broker -------------------------------------------------------------------------------------------


def refuse_while_blocked(broker: Broker) -> None:
    """Raise PreconditionFailed while an alarm blocks publishers."""
    if broker.alarms.active:
        raise PreconditionFailed(f"publishers are blocked: {broker.alarms.reason}")


async def publish_message(
    broker: Broker,
    vhost: str,
    exchange: str,
    routing_key: str,
    properties: Mapping[str, object],
    body: bytes,
    user: str,
    access: str = "",
) -> bool:
    """Return True if it reached a queue. `access`: see Session.logged_in.

    Properties have their AMQP names (`content_type`, `headers` …).
    """
    refuse_while_blocked(broker)
    method = methods.make(commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=True)
    with Direct(broker, vhost, user, access) as direct:
        return await direct.publish(method, properties, body)


def _view(
    method: commands.Basic.GetOk | commands.Basic.Deliver, message: Content, redelivered: bool, left: int
) -> MessageView:
    """`left`: how many messages the queue had then."""
    return MessageView(
        exchange=method.exchange or "",
        routing_key=method.routing_key or "",
        redelivered=redelivered,
        message_count=left,
        properties=partial(properties_of, message.properties),
        body=message.body,
        size=message.size,
    )


async def get_messages(
    broker: Broker,
    vhost: str,
    queue: str,
    count: int,
    fate: Fate,
    takes: Takes | None = None,
    rest: Rest = trio.lowlevel.checkpoint,
) -> list[MessageView]:
    """`takes` is asked about each message; the first that it does not take is requeued, and the last."""
    takes = takes or _take_all
    got: list[MessageView] = []
    size = tag = 0
    with Direct(broker, vhost, ITSELF) as direct:
        while len(got) < count and size < GET_BYTES_MAX:
            taken = await direct.get(queue, rest)
            if taken is None:
                break
            told, message = taken.ok, taken.content
            view = _view(told, message, bool(told.redelivered), told.message_count or 0)
            if not await takes(view.size, len(got)):
                break
            tag = taken.tag
            size += view.size
            got.append(view)
        if tag and fate == "ack":
            await direct.ask(commands.Basic.Ack(tag, True))
        elif tag and fate == "reject":
            await direct.ask(commands.Basic.Nack(tag, True, False))
        # The end of the session would be a failed delivery, and too many of them discard a message.
        direct.put_back()
    return got


async def read_messages(
    broker: Broker,
    vhost: str,
    stream: str,
    arguments: Mapping[str, object],
    count: int,
    takes: Takes | None = None,
    rest: Rest = trio.lowlevel.checkpoint,
) -> list[tuple[int, MessageView]]:
    """Return messages of a stream with their offsets, as a consumer with these arguments gets them.
    `takes` is asked about each one; the first that it does not take is the end.

    Raises PreconditionFailed if the queue is no stream, and for invalid arguments.
    """
    found = await read_stream(broker, vhost, stream, arguments, count, takes, rest)
    return [(each.offset, _view(each.deliver, each.content, redelivered=False, left=0)) for each in found]


async def read_stream(
    broker: Broker,
    vhost: str,
    stream: str,
    arguments: Mapping[str, object],
    count: int,
    takes: Takes | None = None,
    rest: Rest = trio.lowlevel.checkpoint,
) -> list[Read]:
    """See read_messages."""
    queue = broker.vhost(vhost).queues.get(stream)
    if queue is None:
        raise NotFound(f"no queue '{stream}' in vhost '{vhost}'")
    if not isinstance(queue.host, StreamHost):
        raise PreconditionFailed(
            f"queue '{stream}' in vhost '{vhost}' is not a stream, or has failed on this node"
        )
    # This node may not know yet of messages that are confirmed.
    known, start = await _offsets(broker, queue.host), arguments.get("x-stream-offset")
    if known is None:
        raise Unavailable(
            f"offsets of stream '{stream}' in vhost '{vhost}' are not known on this node now: ask again"
        )
    end = known.stop
    if not known or (isinstance(start, int) and start >= end):
        return []
    with Direct(broker, vhost, ITSELF) as direct:
        found = await direct.read(stream, arguments, count, GET_BYTES_MAX, end, takes or _take_all, rest)
    # The stream may have got messages since `end` was read.
    return [each for each in found if each.offset < end]


async def _offsets(broker: Broker, host: StreamHost) -> range | None:
    found = await answers_of(broker.turn, host.offsets, ANSWER_S)
    return found[0] if found else None


async def _take_all(size: int, before: int) -> bool:
    return True


def properties_of(properties: content.Properties) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in content.PROPERTIES:
        if name not in properties.raw:
            continue
        if name == "headers":
            told[name] = properties.headers
        elif name in ("delivery_mode", "priority"):
            told[name] = properties.octet(name)
        elif name == "timestamp":
            told[name] = int.from_bytes(properties.raw[name], "big")
        else:
            told[name] = properties.text(name)
    return told
