"""Policies and operator policies. See amqp_server.broker.topology.policies."""

from __future__ import annotations

from typing import Any

import msgspec

from amqp_server.broker.declared.parameters import OPERATOR_POLICY, POLICY, ParameterRecord, ParameterRefused
from amqp_server.broker.declared.policy import EXCHANGE, KINDS
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.management.changes.proposals import clear_parameter, set_parameter
from amqp_server.management.request.answer import NO_CONTENT, Answer, bad_request, created, known
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.resources.parameters import (
    invalid,
    require,
    vhost_to_set,
)


def shown(record: ParameterRecord) -> dict[str, Any]:
    value = record.decoded
    return {
        "vhost": record.vhost,
        "name": record.name,
        "pattern": value["pattern"],
        "apply-to": value["apply-to"],
        "definition": value["definition"],
        "priority": value["priority"],
    }


async def _listed(call: Call, component: str) -> Any:
    found = [
        record for vhost in call.vhosts() for record in call.broker.runtime.parameters.of(vhost, component)
    ]
    return await listing(call, found, shown)


def _one(call: Call, component: str) -> ParameterRecord:
    return known(call.broker.runtime.parameters.get(call.path["vhost"], component, call.path["name"]))


async def _put(call: Call, component: str) -> Answer:
    vhost = vhost_to_set(call)
    asked = call.table()
    pattern, definition = require(asked, "pattern"), require(asked, "definition")
    try:
        record = call.broker.runtime.policies.prepare(
            vhost,
            call.path["name"],
            pattern=pattern,
            # Clients write an empty table as an empty array.
            definition={} if definition == [] else definition,
            priority=asked.get("priority", 0),
            apply_to=asked.get("apply-to", "all"),
            operator=component == OPERATOR_POLICY,
        )
    except ParameterRefused as refused:
        raise invalid(str(refused)) from None
    return created(await set_parameter(call.broker, record))


async def _delete(call: Call, component: str) -> Answer:
    await clear_parameter(call.broker, _one(call, component))
    return NO_CONTENT


async def policies(call: Call) -> Any:
    return await _listed(call, POLICY)


async def policy(call: Call) -> Any:
    call.require_policymaker()
    return shown(_one(call, POLICY))


async def put_policy(call: Call) -> Answer:
    call.require_policymaker()
    return await _put(call, POLICY)


async def delete_policy(call: Call) -> Answer:
    call.require_policymaker()
    return await _delete(call, POLICY)


async def operator_policies(call: Call) -> Any:
    return await _listed(call, OPERATOR_POLICY)


async def operator_policy(call: Call) -> Any:
    return shown(_one(call, OPERATOR_POLICY))


async def put_operator_policy(call: Call) -> Answer:
    return await _put(call, OPERATOR_POLICY)


async def delete_operator_policy(call: Call) -> Answer:
    return await _delete(call, OPERATOR_POLICY)


class _Applied(msgspec.Struct):
    """The name and the type of a queue, or of an exchange, that need not exist."""

    name: str = ""
    type: str = "classic"


async def applied_policies(call: Call) -> dict[str, Any]:
    """Which policies would apply to a queue or an exchange of this name."""
    vhost, asked = call.vhost(), call.asked(_Applied)
    known(call.broker.vhosts.get(vhost))
    if asked.type not in KINDS and asked.type not in QUEUE_TYPES:
        raise bad_request(f"type must be one of {', '.join((*QUEUE_TYPES, EXCHANGE))}")
    found = call.broker.runtime.policies
    if asked.type == EXCHANGE:
        applied = found.of_exchange(vhost, asked.name)
    else:
        applied = found.of_queue(vhost, asked.name, QUEUE_TYPES[asked.type])
    return {
        "policy": None if applied.policy is None else applied.policy.name,
        "operator_policy": None if applied.operator_policy is None else applied.operator_policy.name,
        "definition": applied.definition,
    }
