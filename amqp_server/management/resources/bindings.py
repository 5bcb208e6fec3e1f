"""Bindings: listed, made, removed. `properties_key` names one of several bindings between the same source and
destination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import msgspec

from amqp_server.management.objects.views import BindingView
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found, plain
from amqp_server.management.request.call import DEFAULT_EXCHANGE, Call
from amqp_server.management.request.listing import listing
from exchanges.binding import DestinationKind

DESTINATION_TYPES: dict[str, DestinationKind] = {"q": "queue", "e": "exchange"}


def properties_key(routing_key: str, arguments: dict[str, Any]) -> str:
    # Encoded as in a form: a blank becomes a plus.
    quoted = quote_plus(routing_key, safe="").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    told = msgspec.json.encode(plain(arguments), order="deterministic")
    return f"{quoted}~{hashlib.blake2b(told, digest_size=12).hexdigest()}"


def _shown(binding: BindingView) -> dict[str, Any]:
    row = msgspec.structs.asdict(binding)
    row["arguments"] = plain(binding.arguments)
    row["properties_key"] = properties_key(binding.routing_key, binding.arguments)
    return row


async def bindings(call: Call) -> Any:
    return await listing(
        call, (binding for vhost in call.vhosts() for binding in call.broker.bindings.views(vhost)), _shown
    )


async def bindings_of_queue(call: Call) -> Any:
    vhost, name = call.vhost(), call.path["name"]
    if name not in call.parts.broker.vhost(vhost).queues:
        raise not_found()
    return await listing(call, call.broker.bindings.to_destination(vhost, "queue", name), _shown)


async def bindings_from_exchange(call: Call) -> Any:
    vhost, name = _exchange(call)
    return await listing(call, call.broker.bindings.from_exchange(vhost, name), _shown)


async def bindings_to_exchange(call: Call) -> Any:
    vhost, name = _exchange(call)
    return await listing(call, call.broker.bindings.to_destination(vhost, "exchange", name), _shown)


def _exchange(call: Call) -> tuple[str, str]:
    vhost, name = call.vhost(), call.exchange_name()
    if not call.broker.exchanges.has(vhost, name):
        raise not_found()
    return vhost, name


# -- between two ends ----------------------------------------------------------------------


async def bindings_between(call: Call) -> Any:
    return await listing(call, _between(call, call.vhost()), _shown)


async def binding(call: Call) -> Any:
    return _shown(await _binding(call, call.vhost()))


class BindingRequest(msgspec.Struct):
    routing_key: str = ""
    arguments: dict[str, Any] = {}


async def post_binding(call: Call) -> Answer:
    vhost = call.own_vhost()
    asked = call.read(BindingRequest)
    source, type_, destination = _ends(call)
    _require_ends(call, vhost)
    _require_topic(call, vhost, asked.routing_key)
    if call.broker.bindings.feeds_groups(vhost, source, type_, destination):
        call.require(vhost, "queue", destination, "read")
    await call.broker.bindings.add(
        vhost,
        BindingView(
            source=source,
            vhost=vhost,
            destination=destination,
            destination_type=type_,
            routing_key=asked.routing_key,
            arguments=asked.arguments,
        ),
    )
    key = properties_key(asked.routing_key, asked.arguments)
    # As in RabbitMQ, the location is relative to the path and the key's percent signs are encoded: tools read
    # the key only here.
    return Answer(201, location=f"{quote(destination, safe='')}/{quote(key, safe='~')}")


async def delete_binding(call: Call) -> Answer:
    vhost = call.own_vhost()
    _require_ends(call, vhost)
    binding = await _binding(call, vhost)
    _require_topic(call, vhost, binding.routing_key)
    await call.broker.bindings.remove(vhost, binding)
    return NO_CONTENT


def _ends(call: Call) -> tuple[str, DestinationKind, str]:
    type_ = DESTINATION_TYPES.get(call.path["kind"])
    if type_ is None:
        raise not_found()
    source, destination = call.path["source"], call.path["destination"]
    return "" if source == DEFAULT_EXCHANGE else source, type_, destination


def _require_ends(call: Call, vhost: str) -> None:
    source, type_, destination = _ends(call)
    call.require(vhost, "queue" if type_ == "queue" else "exchange", destination, "write")
    call.require(vhost, "exchange", source, "read")


def _require_topic(call: Call, vhost: str, routing_key: str) -> None:
    source, _, _ = _ends(call)
    exchange = call.broker.exchanges.find(vhost, source)
    if exchange is not None and exchange.type == "topic":
        call.require_topic(vhost, source, routing_key, "read")


def _between(call: Call, vhost: str) -> Iterator[BindingView]:
    source, type_, destination = _ends(call)
    return (
        found
        for found in call.broker.bindings.to_destination(vhost, type_, destination)
        if found.source == source
    )


async def _binding(call: Call, vhost: str) -> BindingView:
    wanted = call.path["properties"]
    likely: BindingView | None = None
    for found in _between(call, vhost):
        await call.slices.rest()
        key = properties_key(found.routing_key, found.arguments)
        if wanted == key:
            return found
        # The key has percent signs of its own, and not every tool encodes them for the path.
        if wanted == unquote_plus(key):
            likely = found
    if likely is None:
        raise not_found()
    return likely
