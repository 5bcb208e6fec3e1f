"""Queues: listed, declared, deleted, purged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.management.objects.views import QueueView
from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal, created, not_found, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing, read_paths
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.resources.connections import consumer_rows
from amqp_server.management.resources.queue_columns import QueueColumns
from amqp_server.management.resources.queues_everywhere import QueuesEverywhere, joined, of_this_node

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue

#: Columns that only classic queues have, as in RabbitMQ.
CLASSIC_ONLY = (
    "exclusive_consumer_tag",
    "head_message_timestamp",
    "message_bytes_ram",
    "single_active_consumer_tag",
)
REPLICATED_ONLY = ("leader", "members", "online")
#: Columns that streams do not have.
NOT_OF_STREAMS = (
    "consumer_capacity",
    "consumer_utilisation",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
)
#: The columns that `disable_stats` leaves, and those that `enable_queue_totals` adds.
BASIC = (
    "arguments",
    "auto_delete",
    "durable",
    "exclusive",
    "name",
    "node",
    "policy",
    "state",
    "type",
    "vhost",
)
TOTALS = ("messages", "messages_ready", "messages_unacknowledged")


def _shown(queue: QueueView) -> dict[str, Any]:
    row = msgspec.structs.asdict(queue)
    row["arguments"] = plain(queue.arguments)
    del row["stream"], row["stats"]
    row.update(queue.stream)
    row.update(queue.stats)
    if not queue.exclusive:
        del row["owner_pid_details"]
    if queue.type == "quorum":
        # RabbitMQ uses another name for the consumer tag of these queues.
        row["single_active_consumer_ctag"] = row["single_active_consumer_tag"]
        del row["exclusive_consumer_tag"], row["head_message_timestamp"]
    elif queue.type == "stream":
        for name in (*CLASSIC_ONLY, *NOT_OF_STREAMS):
            del row[name]
    elif queue.type == "classic":
        for name in REPLICATED_ONLY:
            del row[name]
    return row


def _basic(call: Call) -> tuple[tuple[str, ...], Callable[[QueueView], dict[str, Any]]]:
    """Return the columns of rows without statistics, and the function that makes the rows."""
    names = BASIC + TOTALS if call.flag("enable_queue_totals") else BASIC

    def shown(queue: QueueView) -> dict[str, Any]:
        row = {name: getattr(queue, name) for name in names}
        row["arguments"] = plain(queue.arguments)
        if row["policy"] is None:
            del row["policy"]
        return row

    return names, shown


def _whole(call: Call) -> Callable[[Queue], dict[str, Any]]:
    view, stats = call.broker.queues.view, call.stats
    return lambda queue: _shown(view(queue, stats))


async def queues(call: Call) -> Any:
    view, whole = call.broker.queues.view, _whole(call)
    columns = QueueColumns(call.broker.queues, call.stats, whole)
    found = (queue for vhost in call.vhosts() for queue in call.broker.queues.each(vhost))
    if call.flag("disable_stats"):
        names, basic = _basic(call)
        return await listing(
            call,
            found,
            lambda queue: None if queue.deleted else basic(view(queue)),
            lambda path: columns.read(path) if path[0] in names else _nothing,
        )
    if call.local:
        return await listing(call, of_this_node(call, whole, columns.read), dict)
    if call.broker.others is None:
        row = columns.rows(read_paths(call.query)) or whole
        return await listing(call, found, lambda queue: None if queue.deleted else row(queue), columns.read)
    return await QueuesEverywhere(call, whole, columns.read).listed(found)


def _nothing(queue: Queue) -> None:
    return None


async def queue(call: Call) -> Any:
    vhost = call.vhost()
    if call.flag("disable_stats"):
        return _basic(call)[1](_queue(call, vhost))
    found = call.broker.queues.get(vhost, call.path["name"])
    if found is None:
        raise not_found()
    answers = await ask_others(call)
    row = joined(call, found, _whole(call), [body for body in answers.bodies.values() if body is not None])
    own = await consumer_rows(call, call.broker.consumers.of_queue(vhost, found.name))
    here = [each for each in own if each["channel_details"]["node"] == call.broker.name]
    if call.local:
        # For a queue of another node, the row has only what this node knows.
        if call.broker.queues.home_of(found) != call.broker.name:
            row = {name: row[name] for name in ("vhost", "name", "message_stats") if name in row}
        return row | {"consumer_details": here}
    there = [
        each
        for body in answers.bodies.values()
        if body is not None
        for each in body.get("consumer_details", ())
    ]
    named = {each["channel_details"]["node"] for each in (*here, *there)}
    unknown = [each for each in own if each["channel_details"]["node"] not in named]
    row["consumer_details"] = [*here, *there, *unknown]
    # Counts for each pair of channel or exchange and queue are not kept.
    return row | {"deliveries": [], "incoming": []}


def _queue(call: Call, vhost: str) -> QueueView:
    found = call.broker.queues.find(vhost, call.path["name"])
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
    stream = asked.arguments.get("x-stream")
    if isinstance(stream, str):
        for each in call.broker.groups.streams_of(vhost, stream):
            call.require(vhost, "queue", each, "read")
    new = await call.broker.queues.declare(
        vhost, name, durable=asked.durable, auto_delete=asked.auto_delete, arguments=asked.arguments
    )
    return created(new)


async def delete_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "configure")
    _queue(call, vhost)
    await call.broker.queues.delete(
        vhost, name, if_unused=call.switch("if-unused"), if_empty=call.switch("if-empty")
    )
    return NO_CONTENT


async def explain(call: Call) -> Any:
    """Say where a queue is, where its settings come from, and where decisions about it are taken."""
    await call.broker.queues.catch_up()
    found = call.broker.queues.get(call.vhost(), call.path["name"])
    if found is None:
        raise not_found()
    return plain(await call.broker.queues.explain(found))


async def purge_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "read")
    _queue(call, vhost)
    await call.broker.queues.purge(vhost, name)
    return NO_CONTENT


class ActionRequest(msgspec.Struct):
    action: str


async def act(call: Call) -> Answer:
    """Actions on RabbitMQ's mirrored queues: mqd accepts them and does nothing."""
    vhost = call.own_vhost()
    asked = call.read(ActionRequest)
    call.require(vhost, "queue", call.path["name"], "configure")
    _queue(call, vhost)
    if asked.action not in ("sync", "cancel_sync"):
        raise Refusal(400, "bad_request", ["unknown", asked.action])
    return NO_CONTENT
