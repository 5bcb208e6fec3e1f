"""Offsets that a stream keeps by name: listed, with whether a consumer has the name now, and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_server.errors import AMQPError, Unavailable
from amqp_server.management.request.answer import NO_CONTENT, refusal_of
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.request.questions import Part

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue

Row = dict[str, Any]
#: Other nodes are asked only for their consumers that have names.
CONSUMERS = Part(rows=[])


async def offsets(call: Call) -> Any:
    queue = _stream(call, call.vhost())
    if call.local:
        of_members = call.part is None
        return await listing(call, await _kept(call, queue) if of_members else _consumers(call, queue))
    rows = await _kept(call, queue)
    connections = await _connections(call, queue)
    there = {row["name"] for row in rows}
    # The name of a consumer that has just come may not be among those that the stream keeps.
    rows += [
        {"name": name, "committed_offset": None, "lag": None} for name in connections if name not in there
    ]
    for row in rows:
        await call.slices.rest()
        row["in_use"] = row["name"] in connections
        row["connection"] = connections.get(row["name"]) or None
    return await listing(call, rows)


async def delete_offset(call: Call) -> Any:
    vhost = call.own_vhost()
    call.require(vhost, "queue", call.path["name"], "read")
    queue, name = _stream(call, vhost), call.path["offset"]
    broker = call.broker.offsets
    if call.local:
        return await listing(call, [row for row in _consumers(call, queue) if row["name"] == name])
    try:
        broker.check_version(queue)
        connections = await _connections(call, queue)
        if name in connections:
            raise broker.in_use(queue, name, connections[name])
        await broker.delete(queue, name)
    except AMQPError as error:
        raise refusal_of(error) from None
    return NO_CONTENT


def _stream(call: Call, vhost: str) -> Queue:
    try:
        return call.broker.offsets.stream(vhost, call.path["name"])
    except AMQPError as error:
        raise refusal_of(error) from None


def _consumers(call: Call, queue: Queue) -> list[Row]:
    """Return the names that consumers on this node have."""
    found = call.broker.offsets.consumers(queue)
    return [{"name": name, "connection": connection} for name, connection in found.items()]


async def _connections(call: Call, queue: Queue) -> dict[str, str]:
    """Return the names that consumers on any node have, with their connections."""
    told = (await ask_others(call, part=CONSUMERS)).all_rows() if queue.members else []
    return {row["name"]: row["connection"] for row in (*told, *_consumers(call, queue))}


async def _kept(call: Call, queue: Queue) -> list[Row]:
    """Return the names that the stream keeps; a node without a copy asks one that has a copy."""
    broker = call.broker.offsets
    try:
        if broker.keeps(queue):
            return await broker.kept(queue)
        if not call.local:
            for member in broker.members(queue):
                answers = await ask_others(call, [member])
                if member in answers.bodies:
                    return answers.rows[member]
        raise Unavailable(f"no node that has stream '{queue.name}' answers")
    except AMQPError as error:
        raise refusal_of(error) from None
