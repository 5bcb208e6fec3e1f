"""Connections, channels and consumers. A user who may not see all of them sees their own."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.broker.users import ADMINISTRATOR, MONITORING
from amqp_server.management.answer import NO_CONTENT, Answer, not_authorised, not_found, plain
from amqp_server.management.call import Call
from amqp_server.management.listing import listing
from amqp_server.management.views import ChannelView, ConnectionView

REASON = "Closed via management API"
REASON_CHARACTERS_MAX = 200


def visible_connections(call: Call) -> list[ConnectionView]:
    every = call.may(MONITORING)
    return [each for each in call.broker.connections() if every or each.user == call.user.name]


def visible_channels(call: Call) -> list[ChannelView]:
    every = call.may(MONITORING)
    return [each for each in call.broker.channels() if every or each.user == call.user.name]


def _shown(connection: ConnectionView) -> dict[str, Any]:
    row = msgspec.structs.asdict(connection)
    row["client_properties"] = plain(connection.client_properties)
    return row


async def connections(call: Call) -> Any:
    return listing(map(_shown, visible_connections(call)), call.query)


async def connections_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    return listing((_shown(each) for each in visible_connections(call) if each.vhost == vhost), call.query)


async def connections_of_user(call: Call) -> Any:
    name = call.path["user"]
    return listing((_shown(each) for each in visible_connections(call) if each.user == name), call.query)


async def connection(call: Call) -> Any:
    return _shown(_connection(call))


def _connection(call: Call) -> ConnectionView:
    for each in visible_connections(call):
        if each.name == call.path["name"]:
            return each
    raise not_found()


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
    for each in visible_connections(call):
        if each.user == name:
            call.broker.close_connection(each.name, _reason(call))
    return NO_CONTENT


def _reason(call: Call) -> str:
    given = call.query.get("reason") or REASON
    return "".join(letter for letter in given[:REASON_CHARACTERS_MAX] if letter.isprintable())


async def channels(call: Call) -> Any:
    return listing(visible_channels(call), call.query)


async def channels_of_vhost(call: Call) -> Any:
    vhost = call.vhost()
    return listing((each for each in visible_channels(call) if each.vhost == vhost), call.query)


async def channels_of_connection(call: Call) -> Any:
    name = _connection(call).name
    mine = (each for each in visible_channels(call) if each.connection_details.get("name") == name)
    return listing(mine, call.query)


async def channel(call: Call) -> Any:
    for each in visible_channels(call):
        if each.name == call.path["name"]:
            return each
    raise not_found()


async def consumers(call: Call) -> Any:
    rows = []
    for vhost in call.vhosts():
        for each in call.broker.consumers(vhost):
            row = msgspec.structs.asdict(each)
            row["arguments"] = plain(each.arguments)
            rows.append(row)
    return listing(rows, call.query)
