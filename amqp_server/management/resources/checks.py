"""Health checks under RabbitMQ's names: 200 if all is well, 503 with the reason if not."""

from __future__ import annotations

import time
from typing import Any

import trio

from amqp_server.broker.access.permissions import Access
from amqp_server.broker.pattern import compile_filter
from amqp_server.conditions import certificate_ends
from amqp_server.errors import AMQPError
from amqp_server.management.messages.by_hand import get_messages, publish_message
from amqp_server.management.request.answer import Answer, bad_request, refusal_of, refusing
from amqp_server.management.request.call import Call
from amqp_server.management.request.other_nodes import ask_others, ask_whole_node, ask_workers, once_per_node
from amqp_server.management.resources import queues
from amqp_server.management.resources.node import listeners

ALIVENESS_QUEUE = "aliveness-test"
#: Names of protocols as clients ask for them.
PROTOCOLS = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
DRAINED = "this node is drained: `mqctl revive` puts it into service again"
DAY_S = 86_400
UNITS_S = {"days": DAY_S, "weeks": 7 * DAY_S, "months": 30 * DAY_S, "years": 365 * DAY_S}
WITHIN_MAX = 100_000


def _failed(reason: str, **more: Any) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})


def _alarms_here(call: Call) -> list[dict[str, str]]:
    found = {"disk" if name.startswith("disk") else name for name in call.broker.alarms.names()}
    return [{"node": call.parts.config.node, "resource": name} for name in sorted(found)]


async def alarms(call: Call) -> Any:
    """Alarms of all nodes. A node that does not answer counts as one without alarms: other checks find such
    nodes.
    """
    raised = _alarms_here(call)
    if call.local:
        return {"alarms": raised}
    for body in (await ask_others(call)).bodies.values():
        raised += body["alarms"]
    if not raised:
        return {"status": "ok"}
    raised = once_per_node(call, raised, "resource")
    return _failed("There are alarms in effect in the cluster", alarms=raised)


async def local_alarms(call: Call) -> Any:
    raised = _alarms_here(call)
    if call.local:
        return {"alarms": raised}
    for body in (await ask_workers(call)).bodies.values():
        raised += body["alarms"]
    if not raised:
        return {"status": "ok"}
    raised = once_per_node(call, raised, "resource")
    return _failed("There are alarms in effect on the node", alarms=raised)


async def node(call: Call) -> Any:
    """The check that old clients use, for one node: this one unless the path names another."""
    here, answers = await ask_whole_node(call, call.path.get("node", call.parts.config.node))
    raised = _alarms_here(call) if here else []
    if call.local:
        return {"alarms": raised}
    for name in answers.missing:
        return _failed(f"node {name} does not answer")
    for body in answers.bodies.values():
        raised += body["alarms"]
    if not raised:
        return {"status": "ok"}
    return _failed(f"resource alarm(s) in effect: {', '.join(sorted({each['resource'] for each in raised}))}")


async def virtual_hosts(call: Call) -> Any:
    return {"status": "ok"}


async def port_listener(call: Call) -> Any:
    asked = call.path["port"]
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 5):
        raise bad_request("port must be a number")
    ports = [each["port"] for each in listeners(call.parts)]
    if int(asked) in ports:
        return {"status": "ok", "port": int(asked)}
    return _failed("No active listener", missing=int(asked), ports=ports)


async def protocol_listener(call: Call) -> Any:
    """One protocol, or several with commas between them, as in RabbitMQ 4."""
    asked = [PROTOCOLS.get(name, name) for name in call.path["protocol"].split(",")]
    protocols = [each["protocol"] for each in listeners(call.parts)]
    missing = [name for name in asked if name not in protocols]
    if len(asked) == 1:
        if not missing:
            return {"status": "ok", "protocol": asked[0]}
        return _failed("No active listener", missing=asked[0], protocols=protocols)
    if not missing:
        return {"status": "ok", "protocols": protocols}
    return _failed("No active listener", missing=missing, protocols=protocols)


async def certificate_expiration(call: Call) -> Any:
    """Check if a certificate of a listener expires within this time."""
    within, unit = call.path["within"], call.path["unit"]
    # The length is checked first, so that only short texts are converted to a number.
    if not (within.isascii() and within.isdigit() and len(within) <= 6 and 0 < int(within) <= WITHIN_MAX):
        raise bad_request("Invalid expiration value.")
    if unit not in UNITS_S:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS_S)}.")
    until = time.time() + int(within) * UNITS_S[unit]
    parts = call.parts
    ends = await trio.to_thread.run_sync(certificate_ends, parts.config, parts.cluster is not None)
    expired = [_expiring(file, end) for file, end in ends.items() if end is None or end < until]
    if expired:
        return _failed("Certificates expiring", expired=expired)
    return {"status": "ok"}


def _expiring(file: str, end: float | None) -> dict[str, str]:
    ends_on = "unknown" if end is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
    return {"file": file, "cert_expires_on": ends_on}


async def mirror_sync_critical(call: Call) -> Any:
    """There are no mirrored queues."""
    return {
        "status": "ok",
        "reason": "single node cluster" if call.parts.administration is None else "no mirrors",
    }


#: Bytes of a pattern for names of queues.
PATTERN_BYTES_MAX = 256


async def leaderless(call: Call) -> Any:
    """Check that each quorum queue whose name matches has a leader that one of its members knows."""
    with refusing(ValueError):
        matches = compile_filter(call.path.get("pattern", ".*"), PATTERN_BYTES_MAX)
    own, hosts = call.parts.config.node, call.broker.hosts
    if call.parts.administration is None:
        # Its log needs no votes.
        return {"status": "ok"}
    found = []
    for queue in queues.queues_of(call.broker, call.vhosts()):
        await call.slices.rest()
        if queue.type.strict and matches(queue.name):
            found.append(queue)
    here = {queue.queue_id for queue in found if own in queue.members and not hosts.leader(queue)}
    if call.local:
        return {"queues": sorted(here)}
    answers = await ask_others(call)
    without = {node: set(body["queues"]) for node, body in answers.bodies.items() if body} | {own: here}
    missing = [
        queue
        for queue in found
        if all(node not in without or queue.queue_id in without[node] for node in queue.members)
    ]
    if not missing:
        return {"status": "ok"}
    rows = [
        {
            "name": queue.name,
            "virtual_host": queue.vhost.name,
            "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost.name}'",
            "type": queue.type.name,
        }
        for queue in missing
    ]
    return _failed("Detected quorum queues without an elected leader", queues=rows)


async def below_connection_limit(call: Call) -> Any:
    """The limit is that of the node. Each of its workers has descriptors of its own."""
    limit, open_ = call.parts.descriptors.clients_max, len(call.broker.sessions)
    if call.local:
        return {"limit": limit, "connections": open_}
    for body in (await ask_workers(call)).bodies.values():
        limit += body["limit"]
        open_ += body["connections"]
    limit = min(limit, call.parts.config.connections_max)
    if open_ < limit:
        return {"status": "ok", "limit": limit, "connections": open_}
    return _failed("Connection limit reached", limit=limit, connections=open_)


async def ready_to_serve(call: Call) -> Any:
    cluster = call.parts.administration
    obstacle = "" if cluster is None else cluster.obstacle()
    if call.parts.draining.drained:
        obstacle = DRAINED
    return _failed(obstacle) if obstacle else {"status": "ok"}


async def aliveness(call: Call) -> Any:
    """Declare a queue, publish to it, and get the message back."""
    vhost, broker = call.vhost(), call.broker
    accesses: tuple[Access, ...] = ("configure", "write", "read")
    for access in accesses:
        call.require_own(vhost, "queue", ALIVENESS_QUEUE, access)
    try:
        await queues.declare(broker, vhost, ALIVENESS_QUEUE, durable=False, auto_delete=False, arguments={})
        await publish_message(
            broker, vhost, "", ALIVENESS_QUEUE, {}, b"test_message", call.user.name, call.access
        )
        got = await get_messages(broker, vhost, ALIVENESS_QUEUE, 1, "ack")
    except AMQPError as error:
        raise refusal_of(error) from None
    return {"status": "ok"} if got else _failed("the message did not come back")
