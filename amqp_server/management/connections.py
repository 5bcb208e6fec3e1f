"""Connections, channels and consumers. A user who may not see all of them sees their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from amqp_server.broker.users import ADMINISTRATOR, MONITORING
from amqp_server.management.answer import NO_CONTENT, Answer, not_authorised, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.views import ChannelView, ConnectionView, ConsumerView

REASON = "Closed via management API"
REASON_CHARACTERS_MAX = 200


def visible_connections(call: Call) -> Iterator[ConnectionView]:
    return call.broker.connections(_whose(call))


def visible_channels(call: Call) -> Iterator[ChannelView]:
    return call.broker.channels(_whose(call))


def _whose(call: Call) -> str | None:
    """Return the only user whose connections may be seen; None: all of them."""
    return None if call.may(MONITORING) else call.user.name


def _shown(connection: ConnectionView) -> dict[str, Any]:
    row = msgspec.structs.asdict(connection)
    row["client_properties"] = plain(connection.client_properties)
    return row


async def connections(call: Call) -> Any:
    return await listing(call, visible_connections(call), _shown)


async def connections_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    return await listing(
        call, (each if each.vhost == vhost else None for each in visible_connections(call)), _shown
    )


async def connections_of_user(call: Call) -> Any:
    name = call.path["user"]
    return await listing(
        call, (each if each.user == name else None for each in visible_connections(call)), _shown
    )


async def connection(call: Call) -> Any:
    return _shown(_connection(call))


def _connection(call: Call) -> ConnectionView:
    found = call.broker.connection(call.path["name"])
    if found is None or (not call.may(MONITORING) and found.user != call.user.name):
        raise not_found()
    return found


async def close_connection(call: Call) -> Answer:
    """A user may close his own, an administrator each."""
    found = _connection(call)
    if found.user != call.user.name and not call.may(ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    call.broker.close_connection(found.name, _reason(call))
    return NO_CONTENT


async def close_connections_of_user(call: Call) -> Answer:
    name = call.path["user"]
    if name != call.user.name and not call.may(ADMINISTRATOR):
        raise not_authorised("Not administrator user")
    for each in list(call.broker.connections(name)):
        await call.slices.rest()
        call.broker.close_connection(each.name, _reason(call))
    return NO_CONTENT


def _reason(call: Call) -> str:
    given = call.query.get("reason") or REASON
    return "".join(letter for letter in given[:REASON_CHARACTERS_MAX] if letter.isprintable())


async def channels(call: Call) -> Any:
    return await listing(call, visible_channels(call))


async def channels_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    return await listing(call, (each if each.vhost == vhost else None for each in visible_channels(call)))


async def channels_of_connection(call: Call) -> Any:
    return await listing(call, call.broker.channels_of(_connection(call).name))


async def channel(call: Call) -> Any:
    connection, _, _ = call.path["name"].rpartition(" (")
    for each in call.broker.channels_of(connection):
        if each.name == call.path["name"] and _whose(call) in (None, each.user):
            return each
    raise not_found()


def _consumer(consumer: ConsumerView) -> dict[str, Any]:
    row = msgspec.structs.asdict(consumer)
    row["arguments"] = plain(consumer.arguments)
    return row


async def consumers(call: Call) -> Any:
    found = (consumer for vhost in call.vhosts() for consumer in call.broker.consumers(vhost))
    return await listing(call, found, _consumer)
