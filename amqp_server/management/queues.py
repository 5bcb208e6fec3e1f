"""Queues: listed, declared, deleted, purged."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.management.answer import NO_CONTENT, Answer, created, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.views import QueueView


def _shown(queue: QueueView) -> dict[str, Any]:
    row = msgspec.structs.asdict(queue)
    row["arguments"] = plain(queue.arguments)
    del row["stream"]
    row.update(queue.stream)
    return row


async def queues(call: Call) -> Any:
    return await listing(
        call, (queue for vhost in call.vhosts() for queue in call.broker.queues(vhost)), _shown
    )


async def queue(call: Call) -> Any:
    return _shown(_queue(call, call.vhost()))


def _queue(call: Call, vhost: str) -> QueueView:
    found = call.broker.queue(vhost, call.path["name"])
    if found is None:
        raise not_found()
    return found


class QueueRequest(msgspec.Struct):
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


async def put_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(QueueRequest)
    call.require(vhost, "queue", name, "configure")
    dead_letter_exchange = asked.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letter_exchange, str):
        call.require(vhost, "queue", name, "read")
        call.require(vhost, "exchange", dead_letter_exchange, "write")
    new = await call.broker.declare_queue(
        vhost, name, durable=asked.durable, auto_delete=asked.auto_delete, arguments=asked.arguments
    )
    return created(new)


async def delete_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "configure")
    _queue(call, vhost)
    await call.broker.delete_queue(
        vhost, name, if_unused=call.switch("if-unused"), if_empty=call.switch("if-empty")
    )
    return NO_CONTENT


async def purge_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "read")
    _queue(call, vhost)
    await call.broker.purge_queue(vhost, name)
    return NO_CONTENT
