"""Messages of a queue or stream as they lie, without taking them: nothing about them changes, and consumers
get them as before.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from amqp_server.broker.topology.queue import Queue
from amqp_server.errors import AMQPError, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.messages.by_hand import read_stream, require_read
from amqp_server.management.messages.conditions import (
    Conditions,
    Message,
    Wanted,
    message_id_of,
    require_version,
    sieves,
    since_ms,
    wanted,
)
from amqp_server.management.request.answer import bad_request, known, plain, refusal_of, refusing
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import Instead, ask_node
from amqp_server.management.request.payloads import PIECE_BYTES
from amqp_server.management.resources.queues import home_of, host_of, members_of, online
from amqp_server.wire import content, tables, typed
from quorum_queue.machine import versions
from quorum_queue.machine.peeking import Look, Search, Seen
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.ports import Host, Refused

#: Messages that one request looks at, and how many unless it says so.
COUNT_MAX, COUNT = 1_000, 10
#: Bytes of messages that one request looks at; one message at least.
LOOK_BYTES = 1 << 20
#: Payloads are cut to so many bytes unless the request says otherwise, and to so many at most.
TRUNCATE, TRUNCATE_MAX = 50_000, 1 << 20
#: A stream has no message behind this time, s since 1970. Python has no times behind the year 9999.
LATEST_S = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
#: Messages that are passed over before other tasks may run.
PASSED_AT_ONCE = 64
#: Header with the place of a delivered message in its stream.
OFFSET = b"x-stream-offset"
#: An empty table.
NO_HEADERS = bytes(4)
#: Level and position; below zero is when a message is due that waits.
_PLACE = re.compile(r"-?[0-9]{1,30}\.[0-9]{1,30}")
ROUTE = "/api/queues/{vhost}/{name}/peek"


class Query(Conditions, kw_only=True):
    #: The place of a message: begin behind it. By default at the head.
    after: str = ""
    #: Messages to look at, whether they match or not.
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = COUNT
    truncate: Annotated[int, msgspec.Meta(ge=0, le=TRUNCATE_MAX)] = TRUNCATE
    #: Of the payloads; "typed": whole messages, which can be imported: payloads in Base64, and properties
    #: with the types of AMQP.
    encoding: Literal["auto", "base64", "typed"] = "auto"
    #: True: behind the ready messages also those that wait, with the time at which they are `due`.
    waiting: bool = False
    #: Of another node: message-ids in hexadecimal digits, of which a message must have one, with commas.
    ids: str | None = None


async def peek(call: Call) -> Any:
    """Return messages of a queue in the order in which consumers will get them, or of a stream, and where to
    go on. The query may name what they must have.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    require_read(call, vhost, name)
    queue = known(call.broker.vhost(vhost).queues.get(name))
    if queue.type.is_group:
        raise bad_request(f"queue '{name}' is a consumer group, which has no messages: look at its stream")
    return await look(call, queue, call.asked(Query))


async def look(call: Call, queue: Queue, asked: Query) -> dict[str, Any]:
    """Return the messages that one request looks at, as this node or another one has them. Raises Refusal."""
    if queue.type.is_group:
        raise bad_request(
            f"queue '{queue.name}' is a consumer group, which has no messages: look at its stream"
        )
    if asked.since is not None or asked.message_id is not None or asked.ids is not None:
        # Another node may have to look.
        require_version(call, versions.CANCELS)
    wants = list(wanted(asked, call.broker.clock.wall_ms()))
    if not queue.type.is_stream and not call.local and not host_of(call.broker, queue).peeks:
        return await _ask_others(call, queue, asked)
    if asked.ids is not None:
        return await _look_for(call, queue, asked, asked.ids)
    try:
        if not queue.type.is_stream:
            return await _look_into(call, queue, asked, wants)
        found = await _of_stream(call, queue, asked)
    except AMQPError as error:
        raise refusal_of(error) from None
    rows: list[dict[str, Any]] = []
    for each in found:
        await call.slices.rest()
        if all(fulfils(each) for fulfils in wants):
            rows.append(await _row(call, each, asked))
    return {"messages": rows, "looked_at": len(found), "next": found[-1].place if found else None}


async def _ask_others(call: Call, queue: Queue, asked: Query) -> dict[str, Any]:
    """Ask a node that has the messages: the queue's home, or else another member."""
    parts, own = call.parts, call.parts.config.node
    home = home_of(parts, queue)
    nodes = dict.fromkeys([home, *online(parts, members_of(parts, queue))])
    query = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in msgspec.structs.asdict(asked).items()
        if value is not None
    }
    for node in nodes:
        if node == own:
            continue
        answers = await ask_node(call, node, instead=Instead(ROUTE, query))
        refusal = answers.refusals.get(node)
        if refusal is not None and refusal.status != 503:
            raise refusal
        body = answers.bodies.get(node)
        if isinstance(body, dict):
            return body
    raise refusal_of(Unavailable(f"no node that has queue '{queue.name}' answers; try again"))


# -- what is there -------------------------------------------------------------------------------------------


async def _look_into(call: Call, queue: Queue, asked: Query, wants: Sequence[Wanted]) -> dict[str, Any]:
    """As `look`, on a node that has the queue's messages."""
    host, now_ms = host_of(call.broker, queue), call.broker.clock.wall_ms()
    rows: list[dict[str, Any]] = []
    looked_at, last, passed_over = 0, None, sieves(asked)
    for seen in await _seen(call, host, queue, asked):
        run = seen.run
        contents = run.contents or []
        for index, item in enumerate(contents):
            if not index % PASSED_AT_ONCE:
                await call.slices.rest()
            if not all(may_be(item) for may_be in passed_over):
                continue
            await call.slices.rest()
            each = _message(host, seen, index, now_ms)
            if all(fulfils(each) for fulfils in wants):
                rows.append(await _row(call, each, asked))
        looked_at += len(contents)
        last = f"{seen.level}.{run.seqs[-1]}"
    return {"messages": rows, "looked_at": looked_at, "next": last}


async def _seen(
    call: Call, host: Host, queue: Queue, asked: Query, search: Search | None = None
) -> list[Seen]:
    place = HEAD
    if asked.after:
        if not _PLACE.fullmatch(asked.after) or (asked.after.startswith("-") and not asked.waiting):
            raise bad_request("after must be the place of a message, such as 0.17")
        place = place_of(asked.after)
    look = Look(place, asked.count, LOOK_BYTES, asked.waiting, search)
    answers = await answers_of(call.broker.turn, partial(host.peek, look), ANSWER_S)
    if not answers:
        raise Unavailable(f"queue '{queue.name}' has not answered in {ANSWER_S:g} s; try again")
    found: list[Seen] | Refused = answers[0]
    if isinstance(found, Refused):
        raise Unavailable(f"queue '{queue.name}': {found.text}")
    # Their copies, and as much again for the answer.
    call.held.add(2 * sum(each.run.size for each in found))
    return found


def place_of(text: str) -> Place:
    """Return the place of a message from its text."""
    level, _, position = text.partition(".")
    return Place(int(level), int(position))


async def _look_for(call: Call, queue: Queue, asked: Query, ids: str) -> dict[str, Any]:
    """As `look`, for messages with one of these ids: most others are passed over unread."""
    with refusing(ValueError):
        sought = [bytes.fromhex(each) for each in ids.split(",")]
    rows: list[dict[str, Any]] = []
    host, search = host_of(call.broker, queue), Search(sought)
    found = await _seen(call, host, queue, asked, search)
    await call.slices.rest()
    for seen in found:
        await call.slices.rest()
        for index, item in enumerate(seen.run.contents or ()):
            if not any(each in item for each in sought):
                continue
            message = _message(host, seen, index, call.broker.clock.wall_ms())
            if message_id_of(message.header()) in sought:
                rows.append(await _row(call, message, asked))
    last = None if search.last is None else f"{search.last.level}.{search.last.position}"
    return {"messages": rows, "looked_at": search.looked_at, "next": last}


def _message(host: Host, seen: Seen, index: int, now_ms: int) -> Message:
    """Return one of the messages, which has its body. `now_ms`: the wall clock."""
    run, position = seen.run, seen.run.seqs[index]
    assert run.contents is not None
    payload, body = content.split(run.contents[index])
    head = run.head_of(index)
    split = 1 + head[0]
    return Message(
        f"{seen.level}.{position}",
        head[1:split].decode(errors="replace"),
        head[split + 1 : split + 1 + head[split]].decode(errors="replace"),
        run.redelivered,
        partial(content.Properties.parse, payload, checked=True),
        body,
        None if seen.level >= 0 else now_ms + host.ms_until(-seen.level),
        partial(_came_ms, host, position, now_ms),
    )


def _came_ms(host: Host, position: int, now_ms: int) -> int | None:
    came_ms = host.came_ms(position)
    return None if came_ms is None else now_ms + host.ms_until(came_ms)


async def _of_stream(call: Call, queue: Queue, asked: Query) -> list[Message]:
    after, count = asked.after, asked.count
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
    since = since_ms(asked, call.broker.clock.wall_ms())
    if since is not None and not after:
        start = _start_since(call, since)
    found = await read_stream(
        call.broker, queue.vhost.name, queue.name, {"x-stream-offset": start}, count, takes, call.slices.rest
    )
    return [
        Message(
            str(each.offset),
            each.deliver.exchange or "",
            each.deliver.routing_key or "",
            False,
            partial(_itself, each.content.properties),
            bytes(each.content.body),
        )
        for each in found
    ]


def _start_since(call: Call, since: int) -> datetime:
    """Return a time of the wall clock by the clock of the messages, which does not follow it."""
    clock, queue_time = call.broker.clock, call.broker.services.queue_time
    at_s = (since + queue_time.now_ms() - clock.wall_ms()) // 1000
    return datetime.fromtimestamp(min(max(at_s, 0), LATEST_S), UTC)


def _itself(properties: content.Properties) -> content.Properties:
    return properties


async def _row(call: Call, message: Message, asked: Query) -> dict[str, Any]:
    row: dict[str, Any] = {
        "place": message.place,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
    }
    if message.due_ms is not None:
        row["due"] = message.due_ms
    if asked.encoding == "typed":
        return row | {
            "properties": typed.of_properties(_as_published(message.header())),
            "payload": await _base64(call, message.body),
        }
    body = message.body[: asked.truncate]
    texts = asked.encoding == "auto"
    payload = _as_text(body, cut=asked.truncate < len(message.body)) if texts else None
    return row | {
        "properties": plain(message.properties()),
        "payload_bytes": len(message.body),
        "payload_encoding": "base64" if payload is None else "string",
        "payload": base64.b64encode(body).decode() if payload is None else payload,
    }


def _as_published(properties: content.Properties) -> content.Properties:
    """Return the properties without what a stream adds when it delivers a message."""
    headers = properties.raw.get("headers")
    if headers is None or not tables.has(headers, OFFSET):
        return properties
    left = tables.replaced(headers, {OFFSET: None}, checked=True)
    raw = {name: value for name, value in properties.raw.items() if name != "headers"}
    return content.Properties(raw if left == NO_HEADERS else raw | {"headers": left})


async def _base64(call: Call, body: bytes) -> str:
    parts: list[bytes] = []
    for start in range(0, len(body), PIECE_BYTES):
        await call.slices.rest()
        parts.append(base64.b64encode(memoryview(body)[start : start + PIECE_BYTES]))
    return b"".join(parts).decode()


def _as_text(body: bytes, *, cut: bool) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if cut and error.end == len(body) and len(body) - error.start < 4:
            # Only its last character is cut.
            return body[: error.start].decode()
        return None
