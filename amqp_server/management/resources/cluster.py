"""The cluster: its nodes, the leader of each queue, and nodes that could be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import trio

from amqp_server.errors import Unavailable
from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal, bad_request, known
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import Answers, ask_others, ask_workers

if TYPE_CHECKING:
    from amqp_server.cluster.administration import Administration


#: Time without a queue that leaves the other workers of a node, after which the node stays, and time between
#: two questions whether they have left, s.
WORKERS_LEAVE_S = 30.0
LEAVE_LOOK_S = 0.1


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


async def _ask_member(call: Call, vhost: str) -> Answers:
    """Ask the other worker of this node that is a member of a queue, if there is one."""
    workers = _cluster(call).other_workers_with(vhost, call.path["name"])
    return await ask_others(call, workers, passed_on=("digest",))


async def queue(call: Call) -> Any:
    """A replicated queue as this node has it; the worker that is the member answers."""
    vhost = call.vhost()
    for body in (await _ask_member(call, vhost)).bodies.values():
        return body
    return _cluster(call).queue(vhost, call.path["name"], digest=call.flag("digest"))


#: Types of queues that have members.
REPLICATED = ("quorum", "stream", "stream-group")
#: Fields of a member of a queue, with their names in RabbitMQ's answer.
MEMBER = {
    "term": "Term",
    "last_index": "Last Log Index",
    "commit": "Commit Index",
    "applied": "Last Applied",
    "snapshot_index": "Snapshot Index",
    "machine_version": "Machine Version",
}


async def quorum_status(call: Call) -> Any:
    """The members of a replicated queue, each as its own node has it. As in RabbitMQ, with `online`."""
    if call.parts.administration is None:
        return [_alone(call)]
    told = _cluster(call).queue(call.vhost(), call.path["name"])
    if call.local:
        return told
    node, answers = call.parts.config.node, await ask_others(call, _others_of(call, told["placed"]))
    views = {node: told} | {name: body for name, body in answers.bodies.items() if body is not None}
    rows = []
    for name in told["placed"]:
        view = views.get(name)
        row: dict[str, Any] = {"Node Name": name, "online": view is not None}
        if view is None or "term" not in view:
            rows.append(row | {"Raft State": "unknown" if view is None else "filling"})
            continue
        state = "leader" if view["leader"] == name else "follower"
        row["Raft State"] = "filling" if view["filling"] else state
        rows.append(row | {title: view[field] for field, title in MEMBER.items() if field in view})
    return rows


def _alone(call: Call) -> dict[str, Any]:
    """Return the only member of a queue of a node without a cluster."""
    queue = known(call.broker.vhost(call.vhost()).queues.get(call.path["name"]))
    if queue.type.name not in REPLICATED:
        raise bad_request(f"queue '{queue.name}' is a {queue.type.name} queue, which has no members")
    return {"Node Name": call.parts.config.node, "online": True, "Raft State": "leader"}


def _others_of(call: Call, members: list[str]) -> list[str]:
    others = call.parts.others
    return [] if others is None else [name for name in others.names() if name in members]


async def join(call: Call) -> Answer:
    joining = call.read(NodeAddress)
    await _cluster(call).join(joining.name, joining.address)
    return NO_CONTENT


async def forget(call: Call) -> Answer:
    cluster, name = _cluster(call), call.path["node"]
    if call.local:
        # The first worker of this node asks.
        await cluster.leave()
    elif name == call.parts.config.node:
        cluster.may_leave()
        left = -1
        with trio.move_on_after(WORKERS_LEAVE_S) as patience:
            # Leaving may take longer than the time that they have for an answer.
            while workers := cluster.other_workers():
                if left != (left := cluster.queues_on(workers)):
                    patience.deadline = trio.current_time() + WORKERS_LEAVE_S
                for refusal in (await ask_workers(call)).refusals.values():
                    raise refusal
                await trio.sleep(LEAVE_LOOK_S)
        if cluster.other_workers():
            raise Unavailable(
                f"{', '.join(cluster.other_workers())} of this node have queues that still need them: try again later"
            )
        await cluster.leave()
    else:
        await cluster.forget(name)
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
    vhost = call.own_vhost()
    for body in (await _ask_member(call, vhost)).complete():
        return body
    given_up = await _cluster(call).accept_loss(vhost, call.path["name"])
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
    if call.local:
        return critical
    answers = await ask_workers(call)
    if cluster is not None and (silent := cluster.online(answers.missing)):
        # The queues of a worker that is down do not depend on this node.
        return Answer(
            503,
            {
                "status": "failed",
                "reason": f"{', '.join(silent)} of this node do not answer",
                "queues": critical,
            },
        )
    for body in answers.bodies.values():
        critical += body
    critical.sort()
    if not critical:
        return {"status": "ok"} | ({"reason": "single node cluster"} if cluster is None else {})
    reason = "There would be queues without a majority if this node were stopped"
    return Answer(503, {"status": "failed", "reason": reason, "queues": critical})
