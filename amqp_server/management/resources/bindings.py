"""Bindings: listed, made, removed. `properties_key` names one of several bindings between the same source and
destination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, unquote_plus

import msgspec
from pamqp import base, commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.topology.consumer_groups import feeds_groups
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_found, plain
from amqp_server.management.request.call import DEFAULT_EXCHANGE, Call
from amqp_server.management.request.listing import listing
from amqp_server.management.resources.queues import queues_of
from amqp_server.wire import methods
from exchanges.binding import Binding, DestinationKind

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


class BindingView(msgspec.Struct, kw_only=True):
    source: str
    vhost: str
    destination: str
    #: "queue" or "exchange".
    destination_type: str
    routing_key: str
    arguments: dict[str, Any] = {}
    properties_key: str = ""


def bindings_of(broker: Broker, vhost: str) -> Iterator[BindingView]:
    yield from _from_exchange(broker, vhost, "")
    for exchange in list(broker.vhost(vhost).router.exchanges()):
        if exchange.name:
            yield from _from_exchange(broker, vhost, exchange.name)


def _from_exchange(broker: Broker, vhost: str, source: str) -> Iterator[BindingView]:
    if not source:
        # Every queue is bound to the default exchange by its name; this binding cannot be removed.
        return (_default_binding(vhost, queue.name) for queue in queues_of(broker, [vhost]))
    return (_view(vhost, binding) for binding in broker.vhost(vhost).router.bindings(source=source))


def _to_destination(
    broker: Broker, vhost: str, kind: DestinationKind, destination: str
) -> Iterator[BindingView]:
    topology = broker.vhost(vhost)
    if kind == "queue" and destination in topology.queues:
        yield _default_binding(vhost, destination)
    for binding in topology.router.bindings(kind=kind, destination=destination):
        yield _view(vhost, binding)


def _default_binding(vhost: str, queue: str) -> BindingView:
    return BindingView(source="", vhost=vhost, destination=queue, destination_type="queue", routing_key=queue)


def _view(vhost: str, binding: Binding) -> BindingView:
    return BindingView(
        source=binding.source,
        vhost=vhost,
        destination=binding.destination,
        destination_type=binding.kind,
        routing_key=binding.routing_key,
        arguments=dict(binding.arguments),
    )


async def change(
    broker: Broker,
    binding: BindingView,
    of_queue: type[commands.Queue.Bind | commands.Queue.Unbind],
    of_exchange: type[commands.Exchange.Bind | commands.Exchange.Unbind],
) -> None:
    """Make or remove a binding, by the method for bindings of its kind."""
    key, arguments = binding.routing_key, dict(binding.arguments)
    method: base.Frame
    if binding.destination_type == "queue":
        method = methods.make(
            of_queue,
            queue=binding.destination,
            exchange=binding.source,
            routing_key=key,
            arguments=arguments,
        )
    else:
        method = methods.make(
            of_exchange,
            destination=binding.destination,
            source=binding.source,
            routing_key=key,
            arguments=arguments,
        )
    with Direct(broker, binding.vhost, ITSELF) as direct:
        await direct.ask(method)


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
        call, (binding for vhost in call.vhosts() for binding in bindings_of(call.broker, vhost)), _shown
    )


async def bindings_of_queue(call: Call) -> Any:
    vhost, name = call.vhost(), call.path["name"]
    if name not in call.broker.vhost(vhost).queues:
        raise not_found()
    return await listing(call, _to_destination(call.broker, vhost, "queue", name), _shown)


async def bindings_from_exchange(call: Call) -> Any:
    vhost, name = _exchange(call)
    return await listing(call, _from_exchange(call.broker, vhost, name), _shown)


async def bindings_to_exchange(call: Call) -> Any:
    vhost, name = _exchange(call)
    return await listing(call, _to_destination(call.broker, vhost, "exchange", name), _shown)


def _exchange(call: Call) -> tuple[str, str]:
    vhost, name = call.vhost(), call.exchange_name()
    if call.broker.vhost(vhost).router.get(name) is None:
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
    if feeds_groups(call.broker.vhost(vhost), source, type_, destination):
        call.require(vhost, "queue", destination, "read")
    binding = BindingView(
        source=source,
        vhost=vhost,
        destination=destination,
        destination_type=type_,
        routing_key=asked.routing_key,
        arguments=asked.arguments,
    )
    await change(call.broker, binding, commands.Queue.Bind, commands.Exchange.Bind)
    key = properties_key(asked.routing_key, asked.arguments)
    # As in RabbitMQ, the location is relative to the path and the key's percent signs are encoded: tools read
    # the key only here.
    return Answer(201, location=f"{quote(destination, safe='')}/{quote(key, safe='~')}")


async def delete_binding(call: Call) -> Answer:
    vhost = call.own_vhost()
    _require_ends(call, vhost)
    binding = await _binding(call, vhost)
    _require_topic(call, vhost, binding.routing_key)
    await change(call.broker, binding, commands.Queue.Unbind, commands.Exchange.Unbind)
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
    exchange = call.broker.vhost(vhost).router.get(source)
    if exchange is not None and exchange.routing_type == "topic":
        call.require_topic(vhost, source, routing_key, "read")


def _between(call: Call, vhost: str) -> Iterator[BindingView]:
    source, type_, destination = _ends(call)
    return (
        found for found in _to_destination(call.broker, vhost, type_, destination) if found.source == source
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
