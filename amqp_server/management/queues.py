"""Queues: listed, declared, deleted, purged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.management.answer import NO_CONTENT, Answer, Refusal, created, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.connections import consumer_rows
from amqp_server.management.everywhere import ask_others
from amqp_server.management.listing import listing
from amqp_server.management.stats import Stats, merged
from amqp_server.management.views import QueueView

if TYPE_CHECKING:
    from amqp_server.broker.queue import Queue

#: Of queues of one type only, as in RabbitMQ.
CLASSIC_ONLY = (
    "exclusive_consumer_tag",
    "head_message_timestamp",
    "message_bytes_ram",
    "single_active_consumer_tag",
)
REPLICATED_ONLY = ("leader", "members", "online")
#: Not of streams.
NOT_OF_STREAMS = (
    "consumer_capacity",
    "consumer_utilisation",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
)
#: All that `disable_stats` leaves, and what `enable_queue_totals` adds.
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
        # RabbitMQ has another name for it there.
        row["single_active_consumer_ctag"] = row["single_active_consumer_tag"]
        del row["exclusive_consumer_tag"], row["head_message_timestamp"]
    elif queue.type == "stream":
        for name in (*CLASSIC_ONLY, *NOT_OF_STREAMS):
            del row[name]
    elif queue.type == "classic":
        for name in REPLICATED_ONLY:
            del row[name]
    return row


def _basic(call: Call) -> Callable[[QueueView], dict[str, Any]]:
    """Return how rows without statistics are made."""
    names = BASIC + TOTALS if call.flag("enable_queue_totals") else BASIC

    def shown(queue: QueueView) -> dict[str, Any]:
        row = {name: getattr(queue, name) for name in names}
        row["arguments"] = plain(queue.arguments)
        if row["policy"] is None:
            del row["policy"]
        return row

    return shown


async def queues(call: Call) -> Any:
    vhosts, stats, view = call.vhosts(), call.stats, call.broker.queues.view
    found = (queue for vhost in vhosts for queue in call.broker.queues.each(vhost))
    if call.flag("disable_stats"):
        basic = _basic(call)
        return await listing(call, found, lambda queue: basic(view(queue)), _brief)
    if call.local:
        return await listing(call, _of_this_node(call, vhosts), dict)
    answers = await ask_others(call)
    if not answers.rows and not answers.missing:
        return await listing(call, found, lambda queue: _shown(view(queue, stats)), _brief)
    told: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in answers.all_rows():
        told.setdefault((row["vhost"], row["name"]), []).append(row)

    def everywhere(queue: Queue) -> dict[str, Any]:
        return _everywhere(call, view(queue, stats), told.get((queue.vhost.name, queue.name), ()))

    return await listing(call, found, everywhere, _brief)


def _brief(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "type": queue.type.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
    }


def _of_this_node(call: Call, vhosts: Iterable[str]) -> Iterator[dict[str, Any] | None]:
    """Yield what only this node knows: of its queues all, of others what its clients have done with them."""
    for vhost in vhosts:
        for queue in call.broker.queues.views(vhost, call.stats):
            if queue.node == call.broker.name:
                yield _shown(queue)
            elif "message_stats" in queue.stats:
                yield {"vhost": vhost, "name": queue.name, "message_stats": queue.stats["message_stats"]}
            else:
                yield None


def _everywhere(call: Call, queue: QueueView, told: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a queue: from its own node, with the messages that clients of all nodes have moved."""
    row = _shown(queue)
    counted = [each.pop("message_stats") for each in (row, *told) if "message_stats" in each]
    home = next((each for each in told if "state" in each), None)
    if home is not None:
        row = home
    elif queue.node in call.missing and not queue.online:
        row["state"] = "down"
    if counted:
        row["message_stats"] = merged(counted)
    return row


async def queue(call: Call) -> Any:
    vhost = call.vhost()
    if call.flag("disable_stats"):
        return _basic(call)(_queue(call, vhost))
    found = _queue(call, vhost, call.stats)
    answers = await ask_others(call)
    row = _everywhere(call, found, [body for body in answers.bodies.values() if body is not None])
    own = await consumer_rows(call, call.broker.consumers.of_queue(vhost, found.name))
    here = [each for each in own if each["channel_details"]["node"] == call.broker.name]
    if call.local:
        # Of a queue of another node only what is known here.
        if found.node != call.broker.name:
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
    # What each channel and exchange has to do with the queue is not counted.
    return row | {"deliveries": [], "incoming": []}


def _queue(call: Call, vhost: str, stats: Stats | None = None) -> QueueView:
    found = call.broker.queues.find(vhost, call.path["name"], stats)
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


async def purge_queue(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.path["name"]
    call.require(vhost, "queue", name, "read")
    _queue(call, vhost)
    await call.broker.queues.purge(vhost, name)
    return NO_CONTENT


class ActionRequest(msgspec.Struct):
    action: str


async def act(call: Call) -> Answer:
    """What RabbitMQ's mirrored queues can be asked for: there is nothing to be done here."""
    vhost = call.own_vhost()
    asked = call.read(ActionRequest)
    call.require(vhost, "queue", call.path["name"], "configure")
    _queue(call, vhost)
    if asked.action not in ("sync", "cancel_sync"):
        raise Refusal(400, "bad_request", ["unknown", asked.action])
    return NO_CONTENT
