"""The cluster: its nodes, the leader of each queue, and nodes that could be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing

if TYPE_CHECKING:
    from amqp_server.cluster.administration import Administration


class NodeAddress(msgspec.Struct):
    name: str
    address: str


class NodeName(msgspec.Struct):
    node: str


def _cluster(call: Call) -> Administration:
    cluster = call.parts.administration
    if cluster is None:
        raise Refusal(
            404, "no cluster", "this node stands alone: start it with --peers to make it part of a cluster"
        )
    return cluster


async def status(call: Call) -> Any:
    cluster, leaders = _cluster(call), list[str]()
    for leader in cluster.leaders():
        await call.slices.rest()
        leaders.append(leader)
    return cluster.status(leaders)


async def queues(call: Call) -> Any:
    return await listing(call, _cluster(call).queues(set(call.vhosts())), lambda row: row)


async def queue(call: Call) -> Any:
    return _cluster(call).queue(call.vhost(), call.path["name"])


async def join(call: Call) -> Answer:
    joining = call.read(NodeAddress)
    await _cluster(call).join(joining.name, joining.address)
    return NO_CONTENT


async def forget(call: Call) -> Answer:
    await _cluster(call).forget(call.path["node"])
    return NO_CONTENT


async def grow(call: Call) -> Any:
    return {"queues": await _cluster(call).grow(call.path["node"], list(call.vhosts()))}


async def shrink(call: Call) -> Any:
    return {"queues": await _cluster(call).shrink(call.path["node"])}


async def rebalance(call: Call) -> Any:
    return {"queues": await _cluster(call).rebalance()}


async def rebalance_queues(call: Call) -> Answer:
    """As in RabbitMQ, the request is accepted, also by a node without a cluster."""
    if call.parts.administration is not None:
        await call.parts.administration.rebalance()
    return NO_CONTENT


async def transfer_leader(call: Call) -> Answer:
    to = call.read(NodeName).node
    await _cluster(call).transfer_leader(call.own_vhost(), call.path["name"], to)
    return NO_CONTENT


async def accept_loss(call: Call) -> Any:
    given_up = await _cluster(call).accept_loss(call.own_vhost(), call.path["name"])
    return {"entries": given_up.entries, "members": list(given_up.members)}


async def accept_topology_loss(call: Call) -> Any:
    given_up = await _cluster(call).accept_topology_loss()
    return {"entries": given_up.entries, "members": list(given_up.members)}


async def quorum_critical(call: Call) -> Any:
    """503 if something would have no majority without this node, like RabbitMQ's check of this name."""
    cluster = call.parts.administration
    critical = list[str]()
    for group in () if cluster is None else cluster.critical():
        await call.slices.rest()
        if group is not None:
            critical.append(group)
    critical.sort()
    if not critical:
        return {"status": "ok"} | ({"reason": "single node cluster"} if cluster is None else {})
    reason = "There would be queues without a majority if this node were stopped"
    return Answer(503, {"status": "failed", "reason": reason, "queues": critical})
