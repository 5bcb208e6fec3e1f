"""Operators' requests about a cluster and changes to it, at any node. A change is one operation for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import trio

from amqp_server.broker.declared.operations import DeleteQueue, NodeDown, Operation, SetMembers
from amqp_server.broker.topology.replication import Done, Result
from amqp_server.cluster.api_questions import Answerer, Unanswered
from amqp_server.cluster.membership.machines import machine_of, machines, number_of, on_machine
from amqp_server.cluster.readiness import has_majority, obstacle
from amqp_server.cluster.topology_group import GROUP, Proposal, PutNode, RemoveNode
from amqp_server.config import parse_address
from amqp_server.errors import NotFound, PreconditionFailed, Unavailable
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.streams.members.host import StreamMemberHost
from amqp_server.turn import Turn
from exchanges.stable_hash import stable_hash
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.snapshots.lost_entries import GivenUp
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.cluster.node import ClusterNode

#: Time for groups to release a node that leaves, and between two checks, s.
PART_TIMEOUT_S = 30.0
PART_LOOK_S = 0.05


class Administration:
    """The cluster as the HTTP API uses it."""

    def __init__(
        self, cluster: ClusterNode, turn: Turn, *, propose: Callable[[Operation, Done | None], None]
    ) -> None:
        self._cluster = cluster
        self._turn = turn
        #: Deletes large objects in parts; see amqp_server.broker.in_parts.deletion_in_parts.
        self._propose_in_parts = propose

    # -- the others' management ------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(name for name in self._cluster.roster.nodes if name != self._cluster.node)

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        try:
            return await self._cluster.questions.ask(node, question)
        except Unanswered:
            return None

    async def answer(self, answerer: Answerer) -> None:
        """Answer questions of the other nodes' management APIs, until cancelled."""
        await self._cluster.questions.run(answerer)

    # -- looking ---------------------------------------------------------------------------------------------

    # These iterators yield objects that existed when the iteration began: the node goes on between two items.

    def leaders(self) -> Iterator[str]:
        """Yield the leader of each group of queues, "" for none."""
        return (host.group.leader for host in list(self._cluster.hosts.grouped.values()))

    def status(self, leaders: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the state of the cluster as this node sees it."""
        cluster = self._cluster
        replicas = cluster.replicas
        led = Counter(self.leaders() if leaders is None else leaders)
        group = replicas.groups.get(GROUP)
        return {
            "node": cluster.node,
            "incarnation": cluster.incarnation,
            "majority": not self.obstacle(),
            "obstacle": self.obstacle(),
            "dead_links": cluster.reach.dead_links(cluster.roster.nodes),
            "nodes": [self._node(name, address) for name, address in sorted(cluster.roster.nodes.items())],
            "groups": {name: count for name, count in sorted(led.items()) if name},
            "groups_total": len(cluster.hosts.grouped),
            "groups_without_leader": led[""],
            "disk_stalled": replicas.stalled,
            "lost_entries": {
                replicas.groups[group_id].machine.title: len(
                    replicas.lost_entries.waiting_for_operator(group_id)
                )
                for group_id in replicas.lost_entries.groups_with_losses()
            },
            "machine_version": cluster.roster.version,
            "topology": None if group is None else self._group(group),
        }

    def obstacle(self) -> str:
        """Return the reason why this node cannot change the topology now; empty if it can."""
        return obstacle(self._cluster.replicas.groups.get(GROUP))

    def has_majority(self) -> bool:
        group = self._cluster.replicas.groups.get(GROUP)
        return group is not None and has_majority(group)

    def _node(self, name: str, address: str) -> dict[str, Any]:
        cluster = self._cluster
        running = name == cluster.node or name in cluster.mesh.connected()
        return {
            "name": name,
            "address": address,
            "leaving": not address,
            "zone": cluster.roster.zones.of(name),
            "running": running,
            "incarnation": cluster.replicas.incarnations.get(name) if running else None,
        }

    def _group(self, group: Group) -> dict[str, Any]:
        """Return the state of one group at this member; `match` is the leader's knowledge about the other
        members.
        """
        core = group.core
        cluster = self._cluster
        connected = {cluster.node, *cluster.mesh.connected()}
        peers = core.leadership.peers if core.leadership is not None else {}
        members = [
            {
                "node": name,
                "voter": name in core.members.voters,
                "online": name in connected,
                "match": core.log.stable_index if name == cluster.node else peers[name].match,
            }
            if name == cluster.node or name in peers
            else {"node": name, "voter": name in core.members.voters, "online": name in connected}
            for name in core.members.everyone()
        ]
        return {
            "node": cluster.node,
            "leader": core.leader,
            "term": core.term,
            "commit": core.commit,
            "applied": group.applied,
            "last_index": core.last_index,
            "snapshot_index": group.snapshot_index,
            "filling": group.receiving is not None or bool(core.amnesiac),
            "lost_entries": len(cluster.replicas.lost_entries.waiting_for_operator(group.id)),
            "members": members,
            "in_sync": core.leadership is not None
            and all(peer.match == core.last_index for peer in peers.values())
            and not core.members.learners,
        }

    @property
    def machine(self) -> str:
        """The name of the node that this process is a worker of; its own name without workers."""
        return machine_of(self._cluster.node)

    @staticmethod
    def node_of(worker: str) -> str:
        """Return the name of the node to which a worker belongs."""
        return machine_of(worker)

    def other_workers(self) -> list[str]:
        """Return the other workers of this node."""
        own = self._cluster.node
        return [name for name in on_machine(self.machine, self._cluster.roster.nodes) if name != own]

    def workers_of(self, node: str) -> list[str]:
        """Return the workers of a node; nothing if there is no node of this name."""
        return on_machine(node, self._cluster.roster.nodes)

    def queues_on(self, workers: Collection[str]) -> int:
        """Return the number of replicated queues that have a member among these."""
        return sum(any(member in workers for member in queue.members) for queue in self._quorum_queues())

    def other_workers_with(self, vhost: str, name: str) -> list[str]:
        """Return the other worker of this node that has a queue, or is a member of it, if there is one."""
        queue = self._cluster.queue(vhost, name)
        places = () if queue is None else queue.members or (queue.node,)
        return [worker for worker in self.other_workers() if worker in places]

    def online(self, members: Iterable[str]) -> list[str]:
        """Return those of a queue's members that are up."""
        connected = {self._cluster.node, *self._cluster.mesh.connected()}
        return [name for name in members if name in connected]

    def keeper_of(self, task: str) -> str:
        """Return the node for a job that exactly one node must do; empty without a majority.

        The leader of the topology reaches this node, so that nodes that cannot reach each other agree on it.
        """
        cluster = self._cluster
        group = cluster.replicas.groups.get(GROUP)
        if group is None or obstacle(group):
            return ""
        reached = [name for name in cluster.roster.staying if cluster.reach.linked(group.leader, name)]
        return max(reached, key=lambda name: stable_hash(f"{name}\0{task}".encode()), default="")

    def queues(self, vhosts: Collection[str]) -> Iterator[dict[str, Any] | None]:
        """Yield short rows of the quorum queues of these vhosts; None for a queue of another vhost."""
        connected = {self._cluster.node, *self._cluster.mesh.connected()}
        for queue in self._quorum_queues():
            if queue.vhost.name not in vhosts:
                yield None
                continue
            yield {
                "vhost": queue.vhost.name,
                "name": queue.name,
                "leader": self._cluster.hosts.leader(queue),
                "members": list(queue.members),
                "online": [name for name in queue.members if name in connected],
                "lost_entries": len(self._cluster.replicas.lost_entries.waiting_for_operator(queue.queue_id)),
            }

    def queue(self, vhost: str, name: str, *, digest: bool = False) -> dict[str, Any]:
        """Return the group of a quorum queue as this node has it. Raises NotFound.

        `digest`: with a digest of its state, which all members have when they have applied the same entries.
        This goes over all messages in one step, so it is for tests.
        """
        queue = self._queue(vhost, name)
        host = self._cluster.hosts.grouped.get(queue.queue_id)
        told: dict[str, Any] = {"vhost": vhost, "name": name, "placed": list(queue.members)}
        if host is None:
            return told | {
                "node": self._cluster.node,
                "leader": self._cluster.hosts.leader(queue),
                "members": [],
            }
        told |= self._group(host.group)
        if digest:
            found = host.replica.digest()
            told["digest"] = found.hex() if isinstance(found, bytes) else found
        if isinstance(host, StreamMemberHost):
            return told | {
                "first_offset": host.first_offset,
                "next_offset": host.next_offset,
                "stored_offset": host.stored_offset,
                "missing": host.missing_count,
                "consumers": host.consumer_count,
            }
        if isinstance(host, ConsumerGroupMemberHost):
            return told | {
                "generation": host.replica.group.generation,
                "ready": host.ready_count,
                "unacked": host.unacked_count,
                "consumers": host.consumer_count,
            }
        machine = host.replica.machine
        return told | {
            "machine_version": machine.version,
            "ready": machine.ready.count,
            "unacked": machine.unacked_count,
            "consumers": machine.consumers.count,
        }

    def critical(self) -> Iterator[str | None]:
        """Yield the groups that would have no majority without this node, or have none already; None for
        other groups.
        """
        cluster, reach = self._cluster, self._cluster.reach
        connected = cluster.mesh.connected()
        for group in list(cluster.replicas.groups.values()):
            voters = group.core.members.voters
            others = [name for name in voters if name != cluster.node]
            # One of the other members has to lead then, and must reach a majority.
            reached = max((reach.count(name, others) for name in others if name in connected), default=0)
            needed = cluster.node in voters and others and reached <= len(voters) // 2
            # Groups of queues that were deleted meanwhile are gone.
            yield self._name_of(group) if needed and group.id in cluster.replicas.groups else None

    def _name_of(self, group: Group) -> str:
        if group.id == GROUP:
            return "the topology"
        queue = self._cluster.hosts.queues[group.id]
        return f"queue '{queue.name}' in vhost '{queue.vhost.name}'"

    # -- doing -----------------------------------------------------------------------------------------------

    async def join(self, name: str, address: str) -> None:
        """Let a node join: from now on the others expect it at this address. Raises PreconditionFailed,
        Unavailable.
        """
        if parse_address(address) is None:
            raise PreconditionFailed(f"the address of node '{name}' must be host:port, not '{address}'")
        await self._propose(PutNode(name, address))

    async def forget(self, name: str) -> None:
        """Take a node that is down out of the cluster, with all its workers, and out of all queues. Raises
        NotFound, PreconditionFailed, Unavailable.
        """
        workers = self._going(name)
        for worker in workers:
            if worker in self._cluster.mesh.connected():
                raise PreconditionFailed(
                    f"node '{worker}' is up: stop it first, or remove it with `mqctl cluster leave`"
                )
            self._check_only_on(worker, own=False)
        for worker in workers:
            await self._take_out(worker, own=False)

    def may_leave(self) -> None:
        """Raises PreconditionFailed if this node cannot leave its cluster now."""
        for worker in self._going(self.machine):
            self._check_only_on(worker, own=True)
            if worker not in self.online([worker]):
                raise PreconditionFailed(f"worker '{worker}' of this node is down: it has to run to leave")

    async def leave(self) -> None:
        """Take this process out of its cluster, and out of all queues. May be called again if it was
        cancelled. Raises PreconditionFailed, Unavailable.
        """
        self._check_only_on(self._cluster.node, own=True)
        await self._take_out(self._cluster.node, own=True)

    def _going(self, name: str) -> list[str]:
        """Return the workers of a node that is to go, the first one last. Raises NotFound,
        PreconditionFailed.
        """
        nodes = self._cluster.roster.nodes
        if machine_of(name) != name and name in nodes:
            raise PreconditionFailed(f"'{name}' is a worker of node '{machine_of(name)}': name the node")
        if name not in nodes:
            raise NotFound(f"no node '{name}' in the cluster")
        if machines(nodes) == {name}:
            raise PreconditionFailed(f"node '{name}' is the last one of its cluster")
        return sorted(on_machine(name, nodes), key=number_of, reverse=True)

    async def _take_out(self, name: str, *, own: bool) -> None:
        address = self._cluster.roster.nodes[name]
        # From now on the cluster places no queue on this node, and adds no members there.
        await self._propose(PutNode(name, ""))
        try:
            # Before that change, a queue may have been placed on this node alone.
            homed = self._check_only_on(name, own=own)
        except PreconditionFailed:
            if address:
                await self._propose(PutNode(name, address))
            raise
        await self._shrink(name)
        if own:
            await self._parted()
        for queue in homed:
            await self._change(DeleteQueue(queue.vhost.name, queue.name, queue.queue_id))
        await self._change(NodeDown(name, self._cluster.roster.incarnation_of(name)))
        await self._propose(RemoveNode(name))

    def _check_only_on(self, name: str, *, own: bool) -> list[Queue]:
        """Return the queues that only this node has. Raises PreconditionFailed if they must not be lost."""
        homed = self._only_on(name)
        for queue in homed:
            # Queues that only a dead node had are lost. A node that leaves in order must not lose any.
            if own or queue.members:
                raise PreconditionFailed(
                    f"queue '{queue.name}' in vhost '{queue.vhost.name}' has its only copy on node '{name}': add a "
                    "member on another node first, or delete the queue"
                )
        return homed

    def _only_on(self, name: str) -> list[Queue]:
        """Return the durable queues that would be lost with a node: other members that are about to leave do
        not count.
        """
        staying = [node for node in self._cluster.roster.staying if node != name]
        return [
            queue
            for queue in list(self._cluster.hosts.queues.values())
            if (name in queue.members and not any(node in staying for node in queue.members))
            or (queue.node == name and queue.durable and not queue.exclusive)
        ]

    async def _parted(self) -> None:
        """Wait until no group has this node as a member. Raises Unavailable."""
        with trio.move_on_after(PART_TIMEOUT_S):
            while self._cluster.hosts.leaving:
                await trio.sleep(PART_LOOK_S)
        left = len(self._cluster.hosts.leaving)
        if left:
            raise Unavailable(
                f"{left} queues still need this node, because other members are down or are being filled: try "
                "again later"
            )

    async def grow(self, name: str, vhosts: Iterable[str]) -> int:
        """Add a node to all quorum queues of these vhosts; return the number of queues."""
        self._require_node(name)
        workers = on_machine(name, self._cluster.roster.staying) or [name]
        kept = Counter(member for queue in self._quorum_queues() for member in queue.members)
        grown = [
            queue
            for queue in self._quorum_queues()
            if queue.vhost.name in vhosts and machine_of(name) not in machines(queue.members)
        ]
        for queue in grown:
            if machine_of(name) not in machines(queue.members):
                worker = min(workers, key=lambda each: (kept[each], each))
                kept[worker] += 1
                await self._set_members(queue, (*queue.members, worker), queue.record.leader)
        return len(grown)

    async def shrink(self, name: str) -> int:
        """Remove a node from all quorum queues that have other members; return the number of queues."""
        workers = on_machine(name, self._cluster.roster.nodes) or [name]
        return sum([await self._shrink(worker) for worker in workers])

    async def _shrink(self, name: str) -> int:
        shrunk = [
            queue for queue in self._quorum_queues() if name in queue.members and len(queue.members) > 1
        ]
        for queue in shrunk:
            members = tuple(member for member in queue.members if member != name)
            leader = queue.record.leader if queue.record.leader in members else members[0]
            await self._set_members(queue, members, leader)
        return len(shrunk)

    async def transfer_leader(self, vhost: str, name: str, to: str) -> None:
        """Make another member of a queue its leader. Raises NotFound, PreconditionFailed."""
        queue = self._queue(vhost, name)
        # The member of a node may be any of its workers.
        member = next((each for each in queue.members if to in (each, machine_of(each))), None)
        if member is None:
            raise PreconditionFailed(
                f"node '{to}' is not a member of queue '{name}' in vhost '{vhost}'; its members are "
                f"{', '.join(queue.members)}"
            )
        await self._set_members(queue, queue.members, member)

    async def accept_loss(self, vhost: str, name: str) -> GivenUp:
        """Let a queue continue without the entries that none of its members can read, or without forgotten
        votes; return both.

        Raises NotFound, PreconditionFailed.
        """
        queue = self._queue(vhost, name)
        if self._cluster.node not in queue.members:
            raise PreconditionFailed(
                f"this node is not a member of queue '{name}' in vhost '{vhost}': ask one of "
                f"{', '.join(queue.members)}"
            )
        accepted: list[GivenUp] = []
        self._turn.run(lambda: accepted.append(self._cluster.replicas.lost_entries.accept(queue.queue_id)))
        if not accepted[0]:
            raise PreconditionFailed(
                f"this node knows of no log entry of queue '{name}' in vhost '{vhost}' that all members have "
                "lost: all members must be up and have searched for it"
            )
        return accepted[0]

    async def accept_topology_loss(self) -> GivenUp:
        """Let the topology continue without the entries that no node can read; return those.

        Raises PreconditionFailed.
        """
        accepted: list[GivenUp] = []
        self._turn.run(lambda: accepted.append(self._cluster.replicas.lost_entries.accept(GROUP)))
        if not accepted[0]:
            raise PreconditionFailed(
                "this node knows of no log entry of the topology that all nodes have lost: all nodes must be "
                "up and have searched for it"
            )
        return accepted[0]

    async def rebalance(self) -> int:
        """Spread the leaders over the nodes that are up; return how many will move."""
        connected = {self._cluster.node, *self._cluster.mesh.connected()}
        led = dict.fromkeys(sorted(connected), 0)
        moved = 0
        for queue in sorted(self._quorum_queues(), key=lambda queue: queue.queue_id):
            up = [name for name in queue.members if name in connected]
            if not up:
                continue
            leader = min(up, key=lambda name: (led[name], name != queue.record.leader))
            led[leader] += 1
            if leader != queue.record.leader:
                await self._set_members(queue, queue.members, leader)
                moved += 1
        return moved

    def _quorum_queues(self) -> list[Queue]:
        return [queue for queue in list(self._cluster.hosts.queues.values()) if queue.members]

    def _queue(self, vhost: str, name: str) -> Queue:
        queue = self._cluster.queue(vhost, name)
        if queue is None or not queue.members:
            raise NotFound(f"no quorum queue '{name}' in vhost '{vhost}'")
        return queue

    def _require_node(self, name: str) -> None:
        if name not in self._cluster.roster.nodes:
            raise NotFound(f"no node '{name}' in the cluster")
        if name not in self._cluster.roster.staying:
            raise PreconditionFailed(f"node '{name}' is about to leave the cluster")

    async def _set_members(self, queue: Queue, members: tuple[str, ...], leader: str) -> None:
        await self._change(SetMembers(queue.vhost.name, queue.name, queue.queue_id, members, leader))

    async def _change(self, operation: Operation) -> None:
        await self._told(self._propose_in_parts, operation)

    async def _propose(self, proposal: Proposal) -> None:
        await self._told(self._cluster.replication.submit, proposal)

    async def _told(
        self, submit: Callable[[Any, Done | None], object], proposal: Operation | Proposal
    ) -> None:
        """Make a change, and wait for it. Raises Unavailable."""
        answers: list[Result | Refused] = []
        done = trio.Event()

        def told(result: Result | Refused) -> None:
            answers.append(result)
            done.set()

        self._turn.run(submit, proposal, told)
        await done.wait()
        if isinstance(answers[0], Refused):
            raise Unavailable(answers[0].text)
