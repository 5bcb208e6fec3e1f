"""Messages of a queue or stream as they lie, without taking them: nothing about them changes, and consumers
get them as before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from amqp_server.broker.pattern import compile_filter
from amqp_server.broker.topology.queue import Queue
from amqp_server.errors import AMQPError, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.messages.by_hand import (
    properties_of,
    read_messages,
    require_read,
)
from amqp_server.management.request.answer import (
    bad_request,
    known,
    plain,
    refusal_of,
    refusing,
)
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_node
from amqp_server.management.resources.queues import home_of, host_of, members_of, online
from amqp_server.wire import content
from quorum_queue.machine.peeking import Seen
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.ports import Refused

#: Messages that one request looks at, and how many unless it says so.
COUNT_MAX, COUNT = 1_000, 10
#: Bytes of messages that one request looks at; one message at least.
LOOK_BYTES = 1 << 20
#: Payloads are cut to so many bytes unless the request says otherwise, and to so many at most.
TRUNCATE, TRUNCATE_MAX = 50_000, 1 << 20
PATTERN_BYTES_MAX = 256


class Query(msgspec.Struct):
    #: The place of a message: begin behind it. By default at the head.
    after: str = ""
    #: Messages to look at, whether they match or not.
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = COUNT
    truncate: Annotated[int, msgspec.Meta(ge=0, le=TRUNCATE_MAX)] = TRUNCATE
    encoding: Literal["auto", "base64"] = "auto"
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
    properties: Callable[[], dict[str, Any]]
    body: bytes


Wanted = Callable[[Message], bool]


async def peek(call: Call) -> Any:
    """Return messages of a queue in the order in which consumers will get them, or of a stream, and where to
    go on. The query may name what they must have.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    require_read(call, vhost, name)
    queue = known(call.broker.vhost(vhost).queues.get(name))
    if queue.type.is_group:
        raise bad_request(f"queue '{name}' is a consumer group, which has no messages: look at its stream")
    asked = call.asked(Query)
    wanted = list(_wanted(asked))
    if not queue.type.is_stream and not call.local and not host_of(call.broker, queue).peeks:
        return await _ask_others(call, queue)
    try:
        found = await (_of_stream if queue.type.is_stream else _of_queue)(
            call, queue, asked.after, asked.count
        )
    except AMQPError as error:
        raise refusal_of(error) from None
    rows: list[dict[str, Any]] = []
    looked_at, last = 0, None
    for each in found:
        await call.slices.rest()
        looked_at, last = looked_at + 1, each.place
        if all(wants(each) for wants in wanted):
            rows.append(_row(each, asked.truncate, texts=asked.encoding == "auto"))
    return {"messages": rows, "looked_at": looked_at, "next": last}


async def _ask_others(call: Call, queue: Queue) -> Any:
    """Ask a node that has the messages: the queue's home, or else another member."""
    parts, own = call.parts, call.parts.config.node
    home = home_of(parts, queue)
    nodes = dict.fromkeys([home, *online(parts, members_of(parts, queue))])
    for node in nodes:
        if node == own:
            continue
        answers = await ask_node(call, node, Query.__struct_fields__)
        refusal = answers.refusals.get(node)
        if refusal is not None and refusal.status != 503:
            raise refusal
        if answers.bodies.get(node) is not None:
            return answers.bodies[node]
    raise refusal_of(Unavailable(f"no node that has queue '{queue.name}' answers; try again"))


# -- what is asked -------------------------------------------------------------------------------------------


def _wanted(asked: Query) -> Iterator[Wanted]:
    """Yield what messages must fulfil. Raises Refusal."""
    if asked.routing_key is not None:
        with refusing(ValueError):
            matches = compile_filter(asked.routing_key, PATTERN_BYTES_MAX)
        yield lambda message: matches(message.routing_key)
    if asked.header is not None:
        name, equals, value = asked.header.partition("=")
        if not (name and equals):
            raise bad_request("header must be NAME=VALUE")
        yield lambda message: _text((message.properties().get("headers") or {}).get(name)) == value
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


# -- what is there -------------------------------------------------------------------------------------------


async def _of_queue(call: Call, queue: Queue, after: str, count: int) -> Iterable[Message]:
    place = HEAD
    if after:
        level, point, position = after.partition(".")
        if not (point and all(part.isascii() and part.isdigit() for part in (level, position))):
            raise bad_request("after must be the place of a message, such as 0.17")
        place = Place(int(level), int(position))
    host = host_of(call.broker, queue)
    answers = await answers_of(call.broker.turn, partial(host.peek, place, count, LOOK_BYTES), ANSWER_S)
    if not answers:
        raise Unavailable(f"queue '{queue.name}' has not answered in {ANSWER_S:g} s; try again")
    found = answers[0]
    if isinstance(found, Refused):
        raise Unavailable(f"queue '{queue.name}': {found.text}")
    # Their copies, and as much again for the answer.
    call.held.add(2 * sum(each.run.size for each in found))
    return _messages(found)


def _messages(found: Iterable[Seen]) -> Iterator[Message]:
    for seen in found:
        run = seen.run
        for index, (place, item) in enumerate(zip(seen.places(), run.contents or (), strict=True)):
            payload, body = content.split(item)
            head = run.head_of(index)
            split = 1 + head[0]
            yield Message(
                f"{place.level}.{place.position}",
                head[1:split].decode(errors="replace"),
                head[split + 1 : split + 1 + head[split]].decode(errors="replace"),
                run.redelivered,
                partial(properties_of, content.Properties.parse(payload, checked=True)),
                body,
            )


async def _of_stream(call: Call, queue: Queue, after: str, count: int) -> Iterable[Message]:
    if after and not (after.isascii() and after.isdigit()):
        raise bad_request("after must be an offset of the stream")
    total = 0

    async def takes(size: int, before: int) -> bool:
        nonlocal total
        await call.slices.rest()
        total += size
        if before and total > LOOK_BYTES:
            return False
        call.held.add(2 * size)
        return True

    start: object = int(after) + 1 if after else "first"
    found = await read_messages(
        call.broker, queue.vhost.name, queue.name, {"x-stream-offset": start}, count, takes, call.slices.rest
    )
    return [
        Message(str(offset), each.exchange, each.routing_key, False, each.properties, bytes(each.body))
        for offset, each in found
    ]


def _row(message: Message, truncate: int, *, texts: bool) -> dict[str, Any]:
    body = message.body[:truncate]
    payload = _as_text(body, cut=truncate < len(message.body)) if texts else None
    return {
        "place": message.place,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
        "properties": plain(message.properties()),
        "payload_bytes": len(message.body),
        "payload_encoding": "base64" if payload is None else "string",
        "payload": base64.b64encode(body).decode() if payload is None else payload,
    }


def _as_text(body: bytes, *, cut: bool) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if cut and error.end == len(body) and len(body) - error.start < 4:
            # Only its last character is cut.
            return body[: error.start].decode()
        return None
