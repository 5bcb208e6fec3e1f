"""Runtime parameters. See amqp_server.broker.declared.parameters."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from amqp_server.broker.declared.parameters import (
    CLUSTER_ID,
    CLUSTER_NAME,
    GLOBAL,
    OPERATOR_POLICY,
    POLICY,
    SHOVEL,
    VHOST_LIMITS,
    ParameterRecord,
    ParameterRefused,
)
from amqp_server.broker.topology.limits import LIMITS, OF_VHOSTS, problem
from amqp_server.management.changes.proposals import clear_parameter, set_parameter
from amqp_server.management.request.answer import (
    NO_CONTENT,
    Answer,
    Refusal,
    bad_request,
    created,
    known,
    refusing,
)
from amqp_server.management.request.call import Call
from amqp_server.management.request.identity import cluster_id
from amqp_server.management.request.listing import listing
from amqp_server.management.resources import shovels
from amqp_server.shovels.definition import masked

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


def vhost_to_set(call: Call) -> str:
    """Return the path's vhost, for any user."""
    name = call.path["vhost"]
    if name not in call.broker.vhost_records:
        raise Refusal(404, "not_found", "vhost_not_found")
    return name


def require(asked: Mapping[str, Any], key: str) -> Any:
    if key not in asked:
        raise bad_request(f"[{{key_missing,{key}}}]")
    return asked[key]


def invalid(reason: str) -> Refusal:
    """Return a refusal with HTML escaped in the reason, as RabbitMQ does."""
    escaped = reason.replace("<", "&lt;").replace(">", "&gt;")
    return bad_request(f"Validation failed\n\n{escaped}\n")


def shown(record: ParameterRecord) -> dict[str, Any]:
    return {
        "value": record.decoded,
        "vhost": record.vhost,
        "component": record.component,
        "name": record.name,
    }


def _masked(record: ParameterRecord) -> dict[str, Any]:
    """Return a parameter with its passwords masked: only definitions, which are for administrators, have
    passwords.
    """
    told = shown(record)
    return told | {"value": masked(told["value"])} if record.component == SHOVEL else told


def _visible(call: Call) -> list[ParameterRecord]:
    call.require_policymaker()
    component, vhosts = call.path.get("component"), dict.fromkeys(call.vhosts())
    return [
        record
        for record in call.broker.runtime.parameters
        # Policies are listed only if the path names their component, as in RabbitMQ.
        if record.vhost in vhosts
        and (record.component == component or (component is None and record.component != POLICY))
    ]


async def parameters(call: Call) -> Any:
    return await listing(call, _visible(call), _masked)


def _one(call: Call) -> ParameterRecord:
    call.require_policymaker()
    path = call.path
    return known(call.broker.runtime.parameters.get(path["vhost"], path["component"], path["name"]))


async def parameter(call: Call) -> Any:
    return _masked(_one(call))


def checked(broker: Broker, vhost: str, component: str, name: str, value: object) -> ParameterRecord:
    """Check a parameter of a vhost by its component. Raises Refusal."""
    try:
        if component == VHOST_LIMITS:
            reason = problem(value, OF_VHOSTS, LIMITS)
            if reason is not None:
                raise ParameterRefused(reason)
            return broker.runtime.parameters.prepare(vhost, component, LIMITS, value)
        if component not in (POLICY, OPERATOR_POLICY):
            raise ParameterRefused(f"component {component} not found")
        told = value if isinstance(value, dict) else {}
        return broker.runtime.policies.prepare(
            vhost,
            name,
            pattern=told.get("pattern"),
            definition=told.get("definition"),
            priority=told.get("priority", 0),
            apply_to=told.get("apply-to", "all"),
            operator=component == OPERATOR_POLICY,
        )
    except ParameterRefused as refused:
        raise invalid(str(refused)) from None


async def put_parameter(call: Call) -> Answer:
    call.require_policymaker()
    vhost, component = vhost_to_set(call), call.path["component"]
    value = require(call.table(), "value")
    if component == POLICY:
        raise bad_request("policies may not be set using this method")
    if component in (OPERATOR_POLICY, VHOST_LIMITS):
        # The separate paths of these components are for administrators only.
        call.require_administrator()
    name = call.path["name"]
    if component == SHOVEL:
        try:
            record = shovels.asked(call, vhost, name, value)
        except ParameterRefused as refused:
            raise invalid(str(refused)) from None
    else:
        record = checked(call.broker, vhost, component, name, value)
    return created(await set_parameter(call.broker, record))


async def delete_parameter(call: Call) -> Answer:
    record = _one(call)
    if record.component == POLICY:
        raise bad_request("policies may not be cleared using this method")
    if record.component != SHOVEL:
        call.require_administrator()
    await clear_parameter(call.broker, record)
    return NO_CONTENT


# -- global ones --------------------------------------------------------------------------------


def shown_global(record: ParameterRecord) -> dict[str, Any]:
    return {"name": record.name, "value": record.decoded}


def _unset(call: Call) -> list[dict[str, Any]]:
    """Return the parameter that RabbitMQ sets when it founds a cluster; mqd knows the value without it."""
    if call.broker.runtime.parameters.get(GLOBAL, GLOBAL, CLUSTER_ID) is not None:
        return []
    return [{"name": CLUSTER_ID, "value": cluster_id(call.parts)}]


async def global_parameters(call: Call) -> Any:
    told = [shown_global(record) for record in call.broker.runtime.parameters.of(GLOBAL, GLOBAL)] + _unset(
        call
    )
    told.sort(key=itemgetter("name"))
    return await listing(call, told)


def _global(call: Call) -> ParameterRecord:
    return known(call.broker.runtime.parameters.get(GLOBAL, GLOBAL, call.path["name"]))


async def global_parameter(call: Call) -> Any:
    for unset in _unset(call):
        if call.path["name"] == unset["name"]:
            return unset
    return shown_global(_global(call))


async def put_global_parameter(call: Call) -> Answer:
    value = require(call.table(), "value")
    with refusing(ParameterRefused):
        record = call.broker.runtime.parameters.prepare(GLOBAL, GLOBAL, call.path["name"], value)
    return created(await set_parameter(call.broker, record))


async def put_cluster_name(call: Call) -> Answer:
    name = require(call.table(), "name")
    with refusing(ParameterRefused):
        record = call.broker.runtime.parameters.prepare(GLOBAL, GLOBAL, CLUSTER_NAME, name)
    if not isinstance(name, str) or not name:
        raise bad_request("name must be a text")
    await set_parameter(call.broker, record)
    return NO_CONTENT


async def delete_global_parameter(call: Call) -> Answer:
    await clear_parameter(call.broker, _global(call))
    return NO_CONTENT
