"""Offsets that a stream keeps by name: listed, with whether a consumer has the name now, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_server.errors import AMQPError, NotFound, NotImplemented_, PreconditionFailed, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.request.answer import NO_CONTENT, refusal_of
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.request.questions import Part
from amqp_server.streams.layout.named_offsets import NAME_ABSENT, NAME_IN_USE
from amqp_server.streams.local_host import StreamHost
from amqp_server.streams.remote_host import StreamRemoteHost
from quorum_queue.machine.versions import NAMES_REFUSED
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue

Row = dict[str, Any]
Answer = TypeVar("Answer")
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
    broker = call.broker
    if call.local:
        return await listing(call, [row for row in _consumers(call, queue) if row["name"] == name])
    try:
        if broker.replication.version < NAMES_REFUSED:
            raise NotImplemented_(
                "deleting a named offset in a cluster needs nodes that all run a version of mqd that supports "
                f"it: {_place(queue)}"
            )
        connections = await _connections(call, queue)
        if name in connections:
            raise _in_use(queue, name, connections[name])
        await delete_name(broker, queue, name)
    except AMQPError as error:
        raise refusal_of(error) from None
    return NO_CONTENT


def _stream(call: Call, vhost: str) -> Queue:
    """Return the path's stream. Raises Refusal."""
    name = call.path["name"]
    queue = call.broker.vhost(vhost).queues.get(name)
    try:
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        if not queue.type.is_stream:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' is not a stream")
    except AMQPError as error:
        raise refusal_of(error) from None
    return queue


def _consumers(call: Call, queue: Queue) -> list[Row]:
    """Return the names that consumers on this node have."""
    found = consumers_of(queue)
    return [{"name": name, "connection": connection} for name, connection in found.items()]


async def _connections(call: Call, queue: Queue) -> dict[str, str]:
    """Return the names that consumers on any node have, with their connections."""
    told = (await ask_others(call, part=CONSUMERS)).all_rows() if queue.members else []
    return {row["name"]: row["connection"] for row in (*told, *_consumers(call, queue))}


async def _kept(call: Call, queue: Queue) -> list[Row]:
    """Return the names that the stream keeps; a node without a copy asks one that has a copy."""
    try:
        if not isinstance(queue.host, StreamRemoteHost):
            return await names_of(call.broker, queue)
        if not call.local:
            leader = call.broker.hosts.leader(queue)
            for member in sorted(queue.members, key=lambda name: (name != leader, name)):
                answers = await ask_others(call, [member])
                if member in answers.bodies:
                    return answers.rows[member]
        raise Unavailable(f"no node that has stream '{queue.name}' answers")
    except AMQPError as error:
        raise refusal_of(error) from None


# -- of a stream ---------------------------------------------------------------------------------------------


def consumers_of(queue: Queue) -> dict[str, str]:
    """Return the names that consumers on this node have, with their connections; "" for consumers that
    were cancelled, and may still ack what they have.
    """
    host = _host(queue)
    return dict.fromkeys(sorted(host.names_here()), "") | {
        subscription.start.group: subscription.channel.connection.client.name
        for subscription in queue.subscriptions.values()
        if subscription.start.group
    }


async def names_of(broker: Broker, queue: Queue) -> list[dict[str, Any]]:
    """Return the names of a stream that this node has a copy of, the least recently used first. Raises
    Unavailable.
    """
    host = _host(queue)
    found = await _answer(broker, queue, host.kept_names)
    if isinstance(found, Refused):
        raise Unavailable(f"{_place(queue)} is not available at the moment: {found.text}")
    first, end = host.first_offset, host.end_offset
    return [
        {
            "name": name,
            "committed_offset": offset,
            "lag": None if offset is None else max(end - max(offset, first), 0),
        }
        for name, offset in found
    ]


async def delete_name(broker: Broker, queue: Queue, name: str) -> None:
    """Delete a name that no consumer has. Raises NotFound, PreconditionFailed, Unavailable."""
    refused = await _answer(broker, queue, partial(_host(queue).delete_name, name))
    if refused == NAME_ABSENT:
        raise NotFound(f"{_place(queue)} has no offset with the name '{name}'")
    if refused == NAME_IN_USE:
        raise _in_use(queue, name)
    if refused is not None:
        raise Unavailable(f"{_place(queue)} is not available at the moment: {refused.text}")


def _in_use(queue: Queue, name: str, connection: str = "") -> PreconditionFailed:
    of = f" of connection '{connection}'" if connection else ""
    return PreconditionFailed(
        f"{_place(queue)}: a consumer{of} uses the name '{name}': stop it before you delete the offset"
    )


async def _answer(broker: Broker, queue: Queue, ask: Callable[[Callable[[Answer], None]], None]) -> Answer:
    """Return what the host answers. Raises Unavailable if it takes too long."""
    answers = await answers_of(broker.turn, ask, ANSWER_S)
    if not answers:
        raise Unavailable(
            f"{_place(queue)} has not answered; `mqctl cluster status` shows whether it has a majority"
        )
    return answers[0]


def _host(queue: Queue) -> StreamHost:
    """Raises Unavailable."""
    host = queue.host
    if not isinstance(host, StreamHost):
        raise Unavailable(f"{_place(queue)} has failed on this node")
    return host


def _place(queue: Queue) -> str:
    return f"stream '{queue.name}' in vhost '{queue.vhost.name}'"
