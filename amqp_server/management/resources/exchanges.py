"""Exchanges: listed, shown, explained, declared, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.routing_view import RoutingView
from amqp_server.broker.topology.super_streams import (
    PARTITIONS,
    PLACES_MAX,
    growth,
    partition_name,
    partitions_of,
)
from amqp_server.errors import PreconditionFailed
from amqp_server.management.changes.internal_session import Direct, encode_properties
from amqp_server.management.changes.proposals import propose
from amqp_server.management.messages.by_hand import checked_properties, checked_routing_key
from amqp_server.management.request.answer import NO_CONTENT, Answer, created, known, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import ABSENT, Column, Merge, Row, Table
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.statistics.stats import Stats, merged
from amqp_server.wire import methods
from exchanges.binding import Binding
from exchanges.explained import Explanation
from exchanges.explained import explain as explanation
from exchanges.router import RoutingTooLong
from exchanges.super_stream import SUPER_STREAM

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from exchanges.router import Exchange


class Seen(NamedTuple):
    vhost: str
    exchange: Exchange


class ExchangeReads:
    """What one request reads exchanges with. See COLUMNS."""

    def __init__(self, broker: Broker, stats: Stats | None) -> None:
        self._broker = broker
        self._stats = stats

    def settings(self, seen: Seen) -> Sequence[Any]:
        vhost, exchange = seen
        policies = self._broker.runtime.policies.of_exchange(vhost, exchange.name)
        partitions = partitions_of(self._broker.vhost(vhost), exchange)
        return (
            exchange.durable or exchange.predeclared,
            plain(dict(exchange.arguments)),
            # As in RabbitMQ, what is empty is absent.
            ABSENT if policies.policy is None else policies.policy.name,
            ABSENT if policies.operator_policy is None else policies.operator_policy.name,
            dict(policies.definition) or ABSENT,
            "rmq-internal" if exchange.predeclared else "",
            ABSENT if partitions is None else partitions,
        )

    def statistics(self, seen: Seen) -> Sequence[Any]:
        return (ABSENT if self._stats is None else self._stats.exchange(seen.exchange) or ABSENT,)


_SAME = Merge.SAME
COLUMNS = Table(
    "Exchange",
    (
        Column("name", "string", "exchange.name", merge=_SAME),
        Column("vhost", "string", "vhost", merge=_SAME),
        Column("type", "string", "exchange.type", merge=_SAME),
        Column("auto_delete", "boolean", "exchange.auto_delete", merge=_SAME),
        Column("internal", "boolean", "exchange.internal", merge=_SAME),
        Column("durable", "boolean", ExchangeReads.settings, merge=_SAME),
        Column("arguments", "object", ExchangeReads.settings, merge=_SAME),
        Column("policy", "string", ExchangeReads.settings),
        Column("operator_policy", "string", ExchangeReads.settings),
        Column("effective_policy_definition", "object", ExchangeReads.settings),
        Column("user_who_performed_action", "string", ExchangeReads.settings),
        #: The partitions of a super stream, in their order.
        Column("partitions", "array", ExchangeReads.settings),
        #: Absent if nothing was published.
        Column("message_stats", "object", ExchangeReads.statistics, merge=Merge.ADDED),
    ),
)
#: The columns that each node tells the others.
TOLD = ("vhost", "name", *(name for name, column in COLUMNS.columns.items() if column.merge is Merge.ADDED))


def exchanges_of(broker: Broker, vhosts: Iterable[str]) -> Iterator[Seen]:
    """Yield the exchanges that a vhost has when it is reached."""
    return (
        Seen(vhost, exchange) for vhost in vhosts for exchange in list(broker.vhost(vhost).router.exchanges())
    )


async def exchanges(call: Call) -> Any:
    stats = None if call.flag("disable_stats") else call.stats
    reads, found = ExchangeReads(call.broker, stats), exchanges_of(call.broker, call.vhosts())
    row = COLUMNS.rows(reads)
    if stats is None:
        return await listing(call, found, row)
    if call.local:
        told_row = COLUMNS.rows(reads, TOLD)
        used = (seen if seen.exchange.published_in or seen.exchange.published_out else None for seen in found)
        return await listing(call, used, told_row)
    told: dict[tuple[str, str], list[Row]] = {}
    for each in (await ask_others(call)).all_rows():
        told.setdefault((each["vhost"], each["name"]), []).append(each)
    if not told:
        return await listing(call, found, row)
    return await listing(
        call, found, lambda seen: _joined(row, seen, told.get((seen.vhost, seen.exchange.name), ()))
    )


def _joined(row: Callable[[Any], Row | None], seen: Seen, told: Iterable[Row]) -> Row | None:
    """Return the row of an exchange, with the counts of publishes by clients of all nodes."""
    made = row(seen)
    counted = [each["message_stats"] for each in (made, *told) if each and "message_stats" in each]
    return made | {"message_stats": merged(counted)} if made and counted else made


async def exchange(call: Call) -> Any:
    vhost = call.vhost()
    seen, reads = Seen(vhost, _exchange(call, vhost)), ExchangeReads(call.broker, call.stats)
    if call.local:
        return COLUMNS.rows(reads, TOLD)(seen)
    bodies = (await ask_others(call)).bodies.values()
    row = _joined(COLUMNS.rows(reads), seen, [body for body in bodies if body is not None])
    # Counts for each pair of channel or queue and exchange are not kept.
    return (row or {}) | {"incoming": [], "outgoing": []}


def _exchange(call: Call, vhost: str) -> Exchange:
    """Return the path's exchange. Raises Refusal."""
    return known(call.broker.vhost(vhost).router.get(call.exchange_name()))


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
    new = call.broker.vhost(vhost).router.get(name) is None
    with Direct(call.broker, vhost, ITSELF) as direct:
        await direct.ask(
            methods.make(
                commands.Exchange.Declare,
                exchange=name,
                exchange_type=asked.type,
                durable=asked.durable,
                auto_delete=asked.auto_delete,
                internal=asked.internal,
                arguments=asked.arguments,
            )
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
    present = len(partitions_of(call.broker.vhost(vhost), _exchange(call, vhost)) or [])
    new = range(present, present + min(asked.add, PLACES_MAX))
    _require_partitions(call, vhost, [partition_name(name, number) for number in new])
    result = await propose(call.broker, growth(call.broker.vhost(vhost), name, asked.add))
    if result.error:
        raise PreconditionFailed(result.error)
    return NO_CONTENT


async def delete_exchange(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    call.require(vhost, "exchange", name, "configure")
    found = _exchange(call, vhost)
    if PARTITIONS in found.arguments:
        _require_partitions(call, vhost, partitions_of(call.broker.vhost(vhost), found) or [])
    if_unused = call.switch("if-unused")
    with Direct(call.broker, vhost, ITSELF) as direct:
        await direct.ask(methods.make(commands.Exchange.Delete, exchange=name, if_unused=if_unused))
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
    routing_key, properties = checked_routing_key(asked.routing_key), checked_properties(asked.properties)
    told = await _explained(call.broker, vhost, found.name, routing_key, properties)
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


async def _explained(
    broker: Broker, vhost: str, exchange: str, routing_key: str, properties: dict[str, Any]
) -> Explanation:
    """Raises PreconditionFailed for invalid properties, and for a message that would be refused because its
    way is too long.
    """
    encoded = encode_properties(properties, broker.config.table_depth_max)
    steps = explanation(broker.vhost(vhost).router, exchange, routing_key, RoutingView(encoded))
    try:
        while True:
            next(steps)
            await trio.lowlevel.checkpoint()
    except StopIteration as end:
        told: Explanation = end.value
        return told
    except RoutingTooLong as error:
        raise PreconditionFailed(
            f"the way takes more than {error.args[0]} steps (routing_steps_max)"
        ) from None


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": plain(dict(binding.arguments)),
    }
