"""Connections, channels and consumers. A user who may not see all of them sees only their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from amqp_server.broker.access.users import ADMINISTRATOR, MONITORING
from amqp_server.management.objects.views import ChannelView, ConnectionView, ConsumerView
from amqp_server.management.request.answer import NO_CONTENT, Answer, not_authorised, not_found, plain
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others

#: The same text as RabbitMQ's: clients and test suites compare it.
REASON = "Closed via management plugin"
REASON_CHARACTERS_MAX = 200


def visible_connections(call: Call) -> Iterator[ConnectionView]:
    return call.broker.connections.views(_whose(call), call.stats)


def visible_channels(call: Call) -> Iterator[ChannelView]:
    return call.broker.connections.channels(_whose(call), call.stats)


def _whose(call: Call) -> str | None:
    """Return the identity of the only user whose connections may be seen; None: all of them."""
    return None if call.may(MONITORING) else call.identity


def _shown(connection: ConnectionView) -> dict[str, Any]:
    row = msgspec.structs.asdict(connection)
    row["client_properties"] = plain(connection.client_properties)
    del row["stats"]
    if connection.user_provided_name is None:
        del row["user_provided_name"]
    return row | connection.stats


def channel_row(channel: ChannelView) -> dict[str, Any]:
    row = msgspec.structs.asdict(channel)
    del row["stats"]
    return row | channel.stats


async def _listed(call: Call, items: Iterable[object | None], shown: Callable[[Any], dict[str, Any]]) -> Any:
    """List the items of this node and of the others."""
    others = (await ask_others(call)).all_rows()
    return await listing(call, chain(items, others), shown)


async def connections(call: Call) -> Any:
    return await _listed(call, visible_connections(call), _shown)


async def connections_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    found = (each if each.vhost == vhost else None for each in visible_connections(call))
    return await _listed(call, found, _shown)


async def connections_of_user(call: Call) -> Any:
    name = call.path["user"]
    found = (each if each.user == name else None for each in visible_connections(call))
    return await _listed(call, found, _brief)


def _brief(connection: ConnectionView) -> dict[str, Any]:
    return {name: getattr(connection, name) for name in ("name", "node", "user", "vhost")}


async def connection(call: Call) -> Any:
    found = _connection(call)
    if found is None:
        return await _elsewhere(call)
    return _shown(found)


async def _elsewhere(call: Call) -> Any:
    """Return another node's answer for an object that this node does not have. Raises Refusal if no node has
    it.
    """
    answers = await ask_others(call)
    for body in answers.bodies.values():
        return body
    raise not_found()


def _connection(call: Call) -> ConnectionView | None:
    """Return the path's connection, None if this node has none that the user may see."""
    return call.broker.connections.find(call.path["name"], call.stats, _whose(call))


async def close_connection(call: Call) -> Answer:
    """Users may close their own connections, an administrator may close any."""
    found = _connection(call)
    if found is None:
        await _elsewhere(call)
        return NO_CONTENT
    own = call.broker.connections.find(found.name, identity=call.identity) is not None
    if not own and not call.may(ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    call.broker.connections.close(found.name, _reason(call))
    return NO_CONTENT


async def close_connections_of_user(call: Call) -> Answer:
    """An administrator closes those of all users with this name, wherever they come from."""
    name, administrates = call.path["user"], call.may(ADMINISTRATOR)
    if name != call.user.name and not administrates:
        raise not_authorised("Not administrator user")
    for each in list(call.broker.connections.views(None if administrates else call.identity)):
        await call.slices.rest()
        if each.user == name:
            call.broker.connections.close(each.name, _reason(call))
    await ask_others(call)
    return NO_CONTENT


def _reason(call: Call) -> str:
    given = call.reason or REASON
    return "".join(letter for letter in given[:REASON_CHARACTERS_MAX] if letter.isprintable())


async def channels(call: Call) -> Any:
    return await _listed(call, visible_channels(call), channel_row)


async def channels_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    found = (each if each.vhost == vhost else None for each in visible_channels(call))
    return await _listed(call, found, channel_row)


async def channels_of_connection(call: Call) -> Any:
    found = _connection(call)
    if found is not None:
        return await listing(call, call.broker.connections.channels_of(found.name, call.stats), channel_row)
    if call.local:
        raise not_found()
    answers = await ask_others(call)
    for node, rows in answers.rows.items():
        if node in answers.bodies:
            return await listing(call, rows, dict)
    raise not_found()


async def channel(call: Call) -> Any:
    connection, _, _ = call.path["name"].rpartition(" (")
    for each in call.broker.connections.channels_of(connection, call.stats, _whose(call)):
        if each.name == call.path["name"]:
            consumers = await consumer_rows(call, call.broker.consumers.of_channel(each.name))
            return channel_row(each) | {"consumer_details": consumers, "deliveries": [], "publishes": []}
    return await _elsewhere(call)


def consumer_row(consumer: ConsumerView) -> dict[str, Any]:
    row = msgspec.structs.asdict(consumer)
    row["arguments"] = plain(consumer.arguments)
    for name in ("offset", "lag"):
        if row[name] is None:
            del row[name]
    return row


async def consumer_rows(call: Call, found: Iterable[ConsumerView | None]) -> list[dict[str, Any]]:
    """Return the rows of consumers; there may be thousands."""
    rows: list[dict[str, Any]] = []
    for consumer in found:
        await call.slices.rest()
        if consumer is not None:
            rows.append(consumer_row(consumer))
    return rows


async def consumers(call: Call) -> Any:
    vhosts = call.vhosts()
    answers = await ask_others(call)
    # Each node knows the consumers of its own clients best.
    told = {call.broker.name, *answers.rows}

    def own() -> Iterator[ConsumerView | None]:
        for vhost in vhosts:
            for consumer in call.broker.consumers.views(vhost):
                if consumer is None:
                    yield None
                elif (
                    consumer.channel_details["node"] == call.broker.name
                    or not call.local
                    and consumer.channel_details["node"] not in told
                ):
                    yield consumer

    return await listing(call, chain(own(), answers.all_rows()), consumer_row)
