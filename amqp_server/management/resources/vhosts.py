"""Virtual hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from amqp_server.broker.declared.operations import DeleteVhost, PutVhost, SetPermission
from amqp_server.broker.declared.parameters import GLOBAL, TRACING, ParameterRecord, ParameterRefused
from amqp_server.broker.declared.vhosts import VhostRecord, VhostRefused
from amqp_server.management.changes.proposals import clear_parameter, propose, require_version, set_parameter
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
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.management.resources.explained import catch_up
from amqp_server.management.resources.queues import count_messages
from amqp_server.management.statistics.stats import merged
from quorum_queue.machine.versions import PROTECTION

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker


async def _shown(call: Call, vhost: VhostRecord) -> dict[str, Any]:
    counts = await count_messages(call, [vhost.name], own=call.parts.others is not None)
    told = call.stats.vhost(vhost.name) | {
        "messages": counts.messages,
        "messages_ready": counts.messages_ready,
        "messages_unacknowledged": counts.messages_unacknowledged,
    }
    return {
        "name": vhost.name,
        "description": vhost.description,
        "tags": list(vhost.tags),
        "metadata": metadata_of(vhost),
        "default_queue_type": vhost.default_queue_type or "undefined",
        "protected_from_deletion": vhost.protected_from_deletion,
        "tracing": _is_traced(call.broker, vhost.name),
        "cluster_state": {call.parts.config.node: "running"},
    } | told


def metadata_of(vhost: VhostRecord) -> dict[str, Any]:
    told: dict[str, Any] = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type:
        told["default_queue_type"] = vhost.default_queue_type
    if vhost.protected_from_deletion:
        told["protected_from_deletion"] = True
    return told


#: Fields of which each node has a part.
COUNTED = ("messages", "messages_ready", "messages_unacknowledged", "recv_oct", "send_oct", "message_stats")


def _everywhere(
    row: dict[str, Any], told: Iterable[dict[str, Any]], missing: Iterable[str]
) -> dict[str, Any]:
    told = list(told)
    parts = [
        {name: each[name] for name in each if name.removesuffix("_details") in COUNTED}
        for each in (row, *told)
    ]
    for each in told:
        row["cluster_state"] |= each["cluster_state"]
    row["cluster_state"] |= dict.fromkeys(missing, "nodedown")
    return row | merged(parts)


async def vhosts(call: Call) -> Any:
    rows = [await _shown(call, vhost) for vhost in call.visible_vhosts()]
    if not call.local:
        answers = await ask_others(call)
        told: dict[str, list[dict[str, Any]]] = {}
        for each in answers.all_rows():
            told.setdefault(each["name"], []).append(each)
        rows = [_everywhere(row, told.get(row["name"], ()), answers.missing) for row in rows]
    return await listing(call, rows, dict)


async def vhost(call: Call) -> Any:
    row = await _shown(call, call.broker.vhost_records.require(call.vhost()))
    answers = await ask_others(call)
    return _everywhere(row, [body for body in answers.bodies.values() if body], answers.missing)


class VhostRequest(msgspec.Struct):
    description: str | None = None
    tags: str | list[str] | None = None
    #: If it is missing, the vhost keeps its type.
    default_queue_type: str | None = None
    #: The same.
    protected_from_deletion: bool | None = None
    tracing: bool | None = None


async def put_vhost(call: Call) -> Answer:
    """Create or change a vhost. As in RabbitMQ, a user who creates one has all permissions there.

    `grant=false`: nobody has any.
    """
    grant = call.switch("grant", default=True)
    asked = call.read(VhostRequest)
    tags = asked.tags.split(",") if isinstance(asked.tags, str) else asked.tags or []
    told = tuple(tag.strip() for tag in tags if tag.strip())
    name = call.path["vhost"]
    if asked.protected_from_deletion:
        require_version(call.broker, PROTECTION)
    with refusing(VhostRefused, ParameterRefused):
        if asked.tracing:
            # Without room for it, there is no vhost either.
            _prepared_trace(call.broker, name)
        new = await create_vhost(
            call.broker,
            name,
            asked.description or "",
            told,
            _type(call, asked),
            protected=asked.protected_from_deletion,
        )
        if asked.tracing is not None:
            await _trace(call.broker, name, on=asked.tracing)
        if new and grant:
            await _grant_all(call, name)
    return created(new)


async def _grant_all(call: Call, vhost: str) -> None:
    """Give all permissions in a new vhost to the user who has created it."""
    access, user = call.broker.access, call.user.name
    if call.scopes is None and access.users.get(user) is not None:
        # Others have their permissions from a token or from the HTTP backend.
        await propose(call.broker, SetPermission(access.permissions.prepare(user, vhost, ".*", ".*", ".*")))


async def create_vhost(
    broker: Broker,
    name: str,
    description: str,
    tags: tuple[str, ...],
    default_queue_type: str,
    *,
    protected: bool | None = None,
) -> bool:
    """Return True if the vhost is new. Raises VhostRefused."""
    record = broker.vhost_records.prepare(name, description, tags, default_queue_type, protected=protected)
    return (await propose(broker, PutVhost(record))).changed


def _is_traced(broker: Broker, vhost: str) -> bool:
    return broker.runtime.parameters.get(GLOBAL, TRACING, vhost) is not None


def _prepared_trace(broker: Broker, vhost: str) -> ParameterRecord:
    """Raises ParameterRefused."""
    return broker.runtime.parameters.prepare(GLOBAL, TRACING, vhost, True)


async def _trace(broker: Broker, vhost: str, *, on: bool) -> None:
    """Turn the firehose of a vhost on or off. Raises ParameterRefused."""
    if on == _is_traced(broker, vhost):
        return
    record = _prepared_trace(broker, vhost)
    await (set_parameter if on else clear_parameter)(broker, record)


def _type(call: Call, asked: VhostRequest) -> str:
    if asked.default_queue_type is None:
        before = call.broker.vhost_records.get(call.path["vhost"])
        return before.default_queue_type if before is not None else ""
    return "" if asked.default_queue_type == "undefined" else asked.default_queue_type


async def start(call: Call) -> Answer:
    """Does nothing: in RabbitMQ a vhost can fail on one node and not on another; here it always runs."""
    name, node, others = call.path["vhost"], call.path["node"], call.parts.others
    if name not in call.broker.vhost_records:
        raise bad_request(f"Request to node {node} failed with no_such_vhost")
    if node != call.parts.config.node and (others is None or node not in others.names()):
        raise bad_request(f"Request to node {node} failed with nodedown")
    return NO_CONTENT


async def protect(call: Call) -> Answer:
    return await _protect(call, protected=True)


async def lift_protection(call: Call) -> Answer:
    return await _protect(call, protected=False)


async def _protect(call: Call, *, protected: bool) -> Answer:
    await catch_up(call.broker)
    record = known(call.broker.vhost_records.get(call.path["vhost"]))
    require_version(call.broker, PROTECTION)
    await propose(call.broker, PutVhost(replace(record, protected_from_deletion=protected)))
    return NO_CONTENT


async def delete_vhost(call: Call) -> Answer:
    name = call.path["vhost"]
    # Another node may have protected it.
    await catch_up(call.broker)
    if known(call.broker.vhost_records.get(name)).protected_from_deletion:
        raise Refusal(
            412,
            "precondition_failed",
            f"virtual host '{name}' is protected from deletion: lift the protection first "
            f"(mqctl disable_vhost_protection_from_deletion)",
        )
    # With everything in it; its connections are closed.
    await propose(call.broker, DeleteVhost(name))
    return NO_CONTENT
