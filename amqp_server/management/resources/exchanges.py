"""Exchanges: listed, declared, deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from amqp_server.broker.topology.super_streams import PARTITIONS, PLACES_MAX, partition_name
from amqp_server.management.objects.views import ExchangeView
from amqp_server.management.request.answer import NO_CONTENT, Answer, created, not_found, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.resources.messages import checked_properties, checked_routing_key
from amqp_server.management.statistics.stats import Stats, merged
from exchanges.binding import Binding
from exchanges.super_stream import SUPER_STREAM


def _shown(exchange: ExchangeView) -> dict[str, Any]:
    row = msgspec.structs.asdict(exchange)
    row["arguments"] = plain(exchange.arguments)
    if exchange.partitions is None:
        del row["partitions"]
    del row["stats"]
    for name in ("policy", "operator_policy", "effective_policy_definition"):
        # The field is absent if it is empty, as in RabbitMQ.
        if not row[name]:
            del row[name]
    return row | exchange.stats


async def exchanges(call: Call) -> Any:
    stats = None if call.flag("disable_stats") else call.stats
    found = (exchange for vhost in call.vhosts() for exchange in call.broker.exchanges.views(vhost, stats))
    if stats is None:
        return await listing(call, found, _shown)
    if call.local:
        return await listing(call, (exchange if exchange.stats else None for exchange in found), _counted)
    told: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in (await ask_others(call)).all_rows():
        told.setdefault((row["vhost"], row["name"]), []).append(row)
    return await listing(
        call, found, lambda exchange: _everywhere(exchange, told.get((exchange.vhost, exchange.name), ()))
    )


def _counted(exchange: ExchangeView) -> dict[str, Any]:
    return {"vhost": exchange.vhost, "name": exchange.name} | exchange.stats


def _everywhere(exchange: ExchangeView, told: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of an exchange, with the counts of publishes by clients of all nodes."""
    row = _shown(exchange)
    counted = [each["message_stats"] for each in (row, *told) if "message_stats" in each]
    return row | {"message_stats": merged(counted)} if counted else row


async def exchange(call: Call) -> Any:
    found = _exchange(call, call.vhost(), call.stats)
    if call.local:
        return _counted(found)
    bodies = (await ask_others(call)).bodies.values()
    row = _everywhere(found, [body for body in bodies if body is not None])
    # Counts for each pair of channel or queue and exchange are not kept.
    return row | {"incoming": [], "outgoing": []}


def _exchange(call: Call, vhost: str, stats: Stats | None = None) -> ExchangeView:
    found = call.broker.exchanges.find(vhost, call.exchange_name(), stats)
    if found is None:
        raise not_found()
    return found


class ExchangeRequest(msgspec.Struct):
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


async def put_exchange(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    asked = call.read(ExchangeRequest)
    call.require(vhost, "exchange", name, "configure")
    alternate = asked.arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        call.require(vhost, "exchange", name, "read")
        call.require(vhost, "exchange", alternate, "write")
    count = asked.arguments.get(PARTITIONS)
    if asked.type == SUPER_STREAM and isinstance(count, int):
        _require_partitions(
            call, vhost, [partition_name(name, number) for number in range(min(count, PLACES_MAX))]
        )
    new = await call.broker.exchanges.declare(
        vhost,
        name,
        asked.type,
        durable=asked.durable,
        auto_delete=asked.auto_delete,
        internal=asked.internal,
        arguments=asked.arguments,
    )
    return created(new)


def _require_partitions(call: Call, vhost: str, names: list[str]) -> None:
    """Refuse unless the user may declare and delete the partitions of a super stream."""
    for name in names:
        call.require(vhost, "queue", name, "configure")


class PartitionsRequest(msgspec.Struct):
    add: int


async def add_partitions(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    asked = call.read(PartitionsRequest)
    call.require(vhost, "exchange", name, "configure")
    present = len(_exchange(call, vhost).partitions or [])
    new = range(present, present + min(asked.add, PLACES_MAX))
    _require_partitions(call, vhost, [partition_name(name, number) for number in new])
    await call.broker.exchanges.add_partitions(vhost, name, asked.add)
    return NO_CONTENT


async def delete_exchange(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    call.require(vhost, "exchange", name, "configure")
    found = _exchange(call, vhost)
    if PARTITIONS in found.arguments:
        _require_partitions(call, vhost, found.partitions or [])
    await call.broker.exchanges.delete(vhost, name, if_unused=call.switch("if-unused"))
    return NO_CONTENT


class ExplainRequest(msgspec.Struct):
    routing_key: str = ""
    #: Properties of the message; exchanges look at headers, message_id, correlation_id and timestamp.
    properties: dict[str, Any] = {}


async def explain(call: Call) -> Any:
    """Say which queues a message would reach, and why. No message is published."""
    vhost = call.vhost()
    found = _exchange(call, vhost)
    asked = call.read(ExplainRequest)
    told = await call.broker.exchanges.explain(
        vhost, found.name, checked_routing_key(asked.routing_key), checked_properties(asked.properties)
    )
    return {
        "routed": bool(told.queues),
        "queues": list(told.queues),
        "certain": told.certain,
        "complete": not (told.cut or any(step.cut for step in told.steps)),
        "steps": [
            {
                "exchange": step.exchange,
                "type": step.type,
                "bindings": [_binding(binding) for binding in step.bindings],
                "alternate": step.alternate,
            }
            for step in told.steps
        ],
    }


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": plain(dict(binding.arguments)),
    }
