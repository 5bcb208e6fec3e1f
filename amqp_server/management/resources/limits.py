"""Limits of vhosts and of users. See amqp_server.broker.topology.limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp_server.broker.declared.parameters import (
    GLOBAL,
    USER_LIMITS,
    VHOST_LIMITS,
    ParameterRecord,
    ParameterRefused,
)
from amqp_server.broker.topology.limits import LIMITS, OF_USERS, OF_VHOSTS, problem
from amqp_server.management.changes.proposals import clear_parameter, set_parameter
from amqp_server.management.request.answer import (
    NO_CONTENT,
    Answer,
    Refusal,
    bad_request,
    not_found,
    refusing,
)
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.resources.parameters import (
    require,
    vhost_to_set,
)


async def _set(call: Call, vhost: str, component: str, name: str, values: Mapping[str, Any]) -> None:
    before = call.broker.runtime.parameters.get(vhost, component, name)
    if values:
        with refusing(ParameterRefused):
            record = call.broker.runtime.parameters.prepare(vhost, component, name, dict(values))
        await set_parameter(call.broker, record)
    elif before is not None:
        # Without limits it would still count as a parameter (parameters_max).
        await clear_parameter(call.broker, before)


def _shown(key: str) -> Any:
    def shown(record: ParameterRecord) -> dict[str, Any]:
        return {key: record.vhost or record.name, "value": record.decoded}

    return shown


async def vhost_limits(call: Call) -> Any:
    found = [
        record
        for vhost in call.vhosts()
        for record in call.broker.runtime.parameters.of(vhost, VHOST_LIMITS)
        if record.name == LIMITS and record.decoded
    ]
    return await listing(call, found, _shown("vhost"))


async def put_vhost_limit(call: Call) -> Answer:
    vhost = vhost_to_set(call)
    values = call.broker.runtime.limits.of_vhost(vhost) | {call.path["name"]: require(call.table(), "value")}
    reason = problem(values, OF_VHOSTS, LIMITS)
    if reason is not None:
        raise bad_request(f"Validation failed\n\n{reason}\n")
    await _set(call, vhost, VHOST_LIMITS, LIMITS, values)
    return NO_CONTENT


async def delete_vhost_limit(call: Call) -> Answer:
    vhost = vhost_to_set(call)
    values = dict(call.broker.runtime.limits.of_vhost(vhost))
    values.pop(call.path["name"], None)
    await _set(call, vhost, VHOST_LIMITS, LIMITS, values)
    return NO_CONTENT


async def user_limits(call: Call) -> Any:
    wanted = call.path.get("user")
    if wanted is not None and call.broker.access.users.get(wanted) is None:
        raise not_found()
    found = [
        record
        for record in call.broker.runtime.parameters.of(GLOBAL, USER_LIMITS)
        if wanted in (None, record.name) and record.decoded
    ]
    return await listing(call, found, _shown("user"))


def _user(call: Call) -> str:
    name = call.path["user"]
    if call.broker.access.users.get(name) is None:
        raise Refusal(400, "bad_request", ["no_such_user", name])
    return name


async def put_user_limit(call: Call) -> Answer:
    user = _user(call)
    value = require(call.table(), "value")
    reason = problem({call.path["name"]: value}, OF_USERS, USER_LIMITS)
    if reason is not None:
        raise bad_request(reason)
    await _set(
        call, GLOBAL, USER_LIMITS, user, call.broker.runtime.limits.of_user(user) | {call.path["name"]: value}
    )
    return NO_CONTENT


async def delete_user_limit(call: Call) -> Answer:
    user = _user(call)
    values = dict(call.broker.runtime.limits.of_user(user))
    if call.path["name"] == "all":
        values.clear()
    values.pop(call.path["name"], None)
    await _set(call, GLOBAL, USER_LIMITS, user, values)
    return NO_CONTENT
