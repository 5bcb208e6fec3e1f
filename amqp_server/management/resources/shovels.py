"""Shovels, with the statuses from the nodes that run them. They are defined as parameters of the component
shovel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_server.broker.declared.parameters import (
    SHOVEL,
    NoRoomForParameter,
    ParameterRecord,
    ParameterRefused,
)
from amqp_server.management.changes.proposals import clear_parameter
from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal, bad_request, known, not_found
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import Row, ask_others
from amqp_server.shovels.definition import Definition, InvalidShovel, acts_as, may_reach, parse, unmasked
from amqp_server.shovels.uri import InvalidUri

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


def prepared(broker: Broker, vhost: str, name: str, value: object, *, user: str = "") -> ParameterRecord:
    """Check a shovel that is to be set. Raises ParameterRefused.

    `user` is a user without administrator rights: its shovels act as this user. It is empty if an
    administrator sets the shovel.
    """
    config = broker.config
    try:
        definition = parse(name, value, uris_max=config.shovel_uris_max)
    except InvalidShovel as invalid:
        raise ParameterRefused(str(invalid)) from None
    uris = (*definition.source_uris, *definition.destination_uris)
    host = may_reach(uris, config.shovel_hosts)
    if host:
        raise ParameterRefused(f"shovels may not connect to {host} (shovel_hosts)")
    for uri in uris:
        if uri.host:
            continue
        if uri.vhost not in broker.vhost_records:
            raise ParameterRefused(f'vhost "{uri.vhost}" of {uri.shown} does not exist')
        if user and not broker.access.permissions.may_open(user, uri.vhost):
            raise ParameterRefused(f'user "{user}" may not connect to vhost "{uri.vhost}"')
        if user and uri.password is None and uri.user not in (None, user):
            raise ParameterRefused(
                f'user "{user}" may not set a shovel that acts as user "{uri.user}" without its password'
            )
    count = sum(record.component == SHOVEL for record in broker.runtime.parameters)
    if broker.runtime.parameters.get(vhost, SHOVEL, name) is None and count >= config.shovels_max:
        raise NoRoomForParameter(f"there are {count} shovels already, the maximum (shovels_max)")
    if user and isinstance(value, dict):
        try:
            value = acts_as(value, user)
        except InvalidUri as invalid:
            raise ParameterRefused(str(invalid)) from None
    return broker.runtime.parameters.prepare(vhost, SHOVEL, name, value)


def asked(call: Call, vhost: str, name: str, value: object) -> ParameterRecord:
    """Check the shovel that a request sets. Raises Refusal, ParameterRefused."""
    user = "" if call.may("administrator") else call.user.name
    if user and call.scopes is not None:
        # A shovel runs longer than a token is valid.
        raise bad_request(
            "only administrators, and users of this broker who log in with a password, may set shovels"
        )
    before = call.broker.runtime.parameters.get(vhost, SHOVEL, name)
    if before is not None and not user:
        # Tools read a shovel, change a part of it, and write it back.
        value = unmasked(value, before.decoded)
    return prepared(call.broker, vhost, name, value, user=user)


async def _rows(call: Call) -> list[Row]:
    """All shovels of the path's vhost, or of those that the user sees."""
    vhosts = dict.fromkeys(call.vhosts())
    running = call.parts.shovels()
    own = [] if running is None else [row for row in running.statuses() if row["vhost"] in vhosts]
    if call.local:
        return own
    answers = await ask_others(call)
    rows = own + answers.all_rows()
    told = {(row["vhost"], row["name"]) for row in rows}
    for record in call.broker.runtime.parameters:
        if record.component == SHOVEL and record.vhost in vhosts and (record.vhost, record.name) not in told:
            # No node runs it now, or the node that runs it has not answered.
            rows.append(
                {
                    "node": "",
                    "name": record.name,
                    "vhost": record.vhost,
                    "type": "dynamic",
                    "state": "starting",
                }
            )
    return sorted(rows, key=lambda row: (row["vhost"], row["name"]))


async def shovels(call: Call) -> Any:
    return await listing(call, await _rows(call), dict)


async def _one(call: Call) -> list[Row]:
    rows = [row for row in await _rows(call) if row["name"] == call.path["name"]]
    if not rows and not call.local:
        raise not_found()
    return rows


async def shovel(call: Call) -> Any:
    rows = await _one(call)
    return await listing(call, rows, dict) if call.local else rows[0]


async def shovel_in_vhost(call: Call) -> Any:
    """RabbitMQ's path, which returns a list with one shovel."""
    return await listing(call, await _one(call), dict)


def _record(call: Call) -> ParameterRecord:
    call.require_policymaker()
    return known(call.broker.runtime.parameters.get(call.path["vhost"], SHOVEL, call.path["name"]))


async def delete(call: Call) -> Answer:
    await clear_parameter(call.broker, _record(call))
    return NO_CONTENT


async def restart(call: Call) -> Answer:
    record = _record(call)
    running = call.parts.shovels()
    if call.local or (running is not None and running.restart(record.vhost, record.name)):
        return NO_CONTENT
    answers = await ask_others(call)
    if answers.missing:
        raise Refusal(503, "unavailable", f"no answer from {', '.join(answers.missing)}")
    return NO_CONTENT


__all__ = ["Definition", "asked", "delete", "prepared", "restart", "shovel", "shovel_in_vhost", "shovels"]
