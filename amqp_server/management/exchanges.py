"""Exchanges: listed, declared, deleted."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.broker.super_streams import PARTITIONS, PLACES_MAX, partition_name
from amqp_server.management.answer import NO_CONTENT, Answer, created, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.views import ExchangeView
from exchanges.super_stream import SUPER_STREAM


def _shown(exchange: ExchangeView) -> dict[str, Any]:
    row = msgspec.structs.asdict(exchange)
    row["arguments"] = plain(exchange.arguments)
    if exchange.partitions is None:
        del row["partitions"]
    return row


async def exchanges(call: Call) -> Any:
    found = (exchange for vhost in call.vhosts() for exchange in call.broker.exchanges(vhost))
    return await listing(call, found, _shown)


async def exchange(call: Call) -> Any:
    return _shown(_exchange(call, call.vhost()))


def _exchange(call: Call, vhost: str) -> ExchangeView:
    found = call.broker.exchange(vhost, call.exchange_name())
    if found is None:
        raise not_found()
    return found


class ExchangeRequest(msgspec.Struct):
    type: str
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
    new = await call.broker.declare_exchange(
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
    """The user may have the partitions of a super stream made and deleted."""
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
    await call.broker.add_partitions(vhost, name, asked.add)
    return NO_CONTENT


async def delete_exchange(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    call.require(vhost, "exchange", name, "configure")
    found = _exchange(call, vhost)
    if PARTITIONS in found.arguments:
        _require_partitions(call, vhost, found.partitions or [])
    await call.broker.delete_exchange(vhost, name, if_unused=call.switch("if-unused"))
    return NO_CONTENT
