"""Messages copied to another queue, and brought in from a file, with the properties that they had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from amqp_server.broker.access.users import IMPERSONATOR
from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.publish import expiration_ms
from amqp_server.errors import AMQPError
from amqp_server.management.changes.internal_session import Carried, Content
from amqp_server.management.messages import peeking
from amqp_server.management.messages.by_hand import refuse_while_blocked, require_read
from amqp_server.management.messages.conditions import Conditions, given
from amqp_server.management.messages.moving import confirming, destination_of
from amqp_server.management.request.answer import bad_request, known
from amqp_server.management.request.call import Call
from amqp_server.wire import frames, typed

#: Characters of a payload in Base64 that are decoded in one step, a multiple of four.
PIECE_CHARACTERS = 64 * 1024
#: Messages that one request brings in.
LINES_MAX = 1_000


class CopyRequest(Conditions, kw_only=True):
    #: Queue or stream in the same vhost.
    destination: str
    #: Messages to look at, whether they fulfil the conditions or not.
    count: int = peeking.COUNT_MAX
    #: Number of messages that are copied, at most.
    limit: int | None = None
    #: The place of a message; begin behind it. By default at the head.
    after: str = ""


async def copy(call: Call) -> Any:
    """Publish copies of messages in a part of a queue or stream to another one. Answer with the number of
    copies, and of those that the other queue refused; `next` is the end of the part.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(CopyRequest)
    require_read(call, vhost, name)
    call.require_own(vhost, "exchange", "", "write")
    queue = known(call.broker.vhost(vhost).queues.get(name))
    if asked.destination == name:
        raise bad_request("destination is the queue itself")
    if not 1 <= asked.count <= peeking.COUNT_MAX:
        raise bad_request(f"count must be 1 to {peeking.COUNT_MAX}")
    if asked.limit is not None and asked.limit < 1:
        raise bad_request("limit must be at least 1")
    destination = destination_of(call.broker, vhost, asked.destination)
    refuse_while_blocked(call.broker)
    query = peeking.Query(after=asked.after, count=asked.count, encoding="typed", **given(asked))
    page = await peeking.look(call, queue, query)
    rows, end = page["messages"], page["next"]
    if asked.limit is not None and len(rows) > asked.limit:
        rows = rows[: asked.limit]
        end = rows[-1]["place"]
    messages = [await _carried(call, msgspec.convert(row, Line)) for row in rows]
    taken = await _give(call, destination, messages)
    return {
        "copied": len(taken),
        "refused": len(messages) - len(taken),
        "looked_at": page["looked_at"],
        "next": end,
    }


class ImportRequest(msgspec.Struct):
    #: Messages, each a JSON object on a line of its own, as `peek` with encoding=typed returns them.
    lines: str


class Line(msgspec.Struct):
    """A message in a file. Other members, such as its place, are passed over."""

    routing_key: Any
    properties: Any
    #: In Base64.
    payload: str
    exchange: Any = ""


async def bring(call: Call) -> Any:
    """Publish messages to a queue or stream. Answer with the number of those that it took, and the numbers of
    the lines (from 1 on) that it refused. If a line is wrong, nothing is published.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(ImportRequest)
    call.require_own(vhost, "exchange", "", "write")
    destination = destination_of(call.broker, vhost, name)
    refuse_while_blocked(call.broker)
    messages: list[Carried] = []
    numbers: list[int] = []
    for number, text in enumerate(asked.lines.split("\n"), 1):
        if not text.strip():
            continue
        if len(messages) == LINES_MAX:
            raise bad_request(f"line {number}: one request may have at most {LINES_MAX} messages")
        await call.slices.rest()
        call.held.add(len(text))
        try:
            line = msgspec.json.decode(text, type=Line)
            message = await _carried(call, line)
            _check(call, message)
        except (msgspec.MsgspecError, typed.TypedError, RecursionError) as error:
            raise bad_request(f"line {number}: {error}") from None
        messages.append(message)
        numbers.append(number)
    taken = set(await _give(call, destination, messages))
    return {
        "imported": len(taken),
        "refused": [number for index, number in enumerate(numbers) if index not in taken],
    }


async def _carried(call: Call, line: Line) -> Carried:
    """Raises TypedError."""
    config = call.broker.config
    parts: list[bytes] = []
    for start in range(0, len(line.payload), PIECE_CHARACTERS):
        await call.slices.rest()
        parts.append(typed.from_base64(line.payload[start : start + PIECE_CHARACTERS], "payload"))
    properties = typed.properties_of(line.properties, config.table_depth_max)
    return Carried(
        typed.short_text(line.exchange, "exchange").decode(errors="replace"),
        typed.short_text(line.routing_key, "routing_key").decode(errors="replace"),
        Content(properties, b"".join(parts)),
    )


def _check(call: Call, message: Carried) -> None:
    """Check what a client's publish is checked for. Raises TypedError."""
    config, (properties, body) = call.broker.config, message.content
    if len(body) > config.message_bytes_max:
        raise typed.TypedError(
            f"payload of {len(body)} bytes is larger than {config.message_bytes_max} (message_bytes_max)"
        )
    header_bytes = len(properties.encode(len(body)))
    if header_bytes > config.frame_max_bytes - frames.OVERHEAD:
        raise typed.TypedError(
            f"properties of {header_bytes} bytes do not fit into a frame (frame_max_bytes)"
        )
    try:
        expiration_ms(properties.text("expiration"))
    except AMQPError as error:
        raise typed.TypedError(error.text) from None
    user_id = properties.text("user_id")
    if user_id is not None and user_id != call.user.name and IMPERSONATOR not in call.user.tags:
        raise typed.TypedError(
            f"property user_id is {user_id!r}, and you are {call.user.name!r}: give your user the tag "
            f"{IMPERSONATOR}"
        )


async def _give(call: Call, destination: Queue, messages: Sequence[Carried]) -> list[int]:
    """Return the indexes of the messages that the queue took."""
    if not messages:
        return []
    async with confirming(call.broker, destination.vhost.name) as direct:
        return await direct.give(destination, messages, call.parts.commits.barrier, call.slices.rest)
