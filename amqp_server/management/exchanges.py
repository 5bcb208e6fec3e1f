"""Exchanges: listed, declared, deleted."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.management.answer import NO_CONTENT, Answer, created, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.views import ExchangeView


def _shown(exchange: ExchangeView) -> dict[str, Any]:
    row = msgspec.structs.asdict(exchange)
    row["arguments"] = plain(exchange.arguments)
    for name in ("policy", "operator_policy", "effective_policy_definition"):
        # Absent where there is none, as in RabbitMQ.
        if not row[name]:
            del row[name]
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


async def delete_exchange(call: Call) -> Answer:
    vhost, name = call.own_vhost(), call.exchange_name()
    call.require(vhost, "exchange", name, "configure")
    _exchange(call, vhost)
    await call.broker.delete_exchange(vhost, name, if_unused=call.switch("if-unused"))
    return NO_CONTENT
