"""Periodic work of a group's leader: its members, the choice of the leader, and leftovers to delete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp_server.broker.declared.operations import NodeDown, Operation, SetMembers
from amqp_server.cluster.membership.machines import machine_of, machines, votes
from amqp_server.cluster.topology_group import GROUP, PutNode, RaiseVersion
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.handover import transfer
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.snapshots import compaction
from quorum_queue.machine import versions
from quorum_queue.raft.errors import MembershipRefused, NotLeader
from quorum_queue.raft.members import Members
from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.cluster.hosts import ClusterHosts
    from amqp_server.cluster.membership.roster import Roster
    from amqp_server.cluster.replication import ClusterReplication
    from quorum_queue.cluster.replicas import Replicas
    from quorum_queue.ports import Turn

logger = logging.getLogger("mqd.cluster")

#: A node that has been down for this many times `node_down_ms` loses its transient and exclusive queues.
LOST_FACTOR = 10
#: Idle groups whose log is cut in one round.
CUT_GROUPS = 20
#: Groups that a node that is about to stop hands over at once.
DRAINED_AT_ONCE = 500
#: A log is cut only if this many times its size is at least the size of the snapshot.
CUT_GROWTH = 8


class Maintenance:
    def __init__(
        self,
        replicas: Replicas,
        roster: Roster,
        hosts: ClusterHosts,
        replication: ClusterReplication,
        reach: Reach,
        turn: Turn,
        *,
        addresses: Mapping[str, str],
        propose: Callable[[Operation], None],
        joined_at: Callable[[], int],
    ) -> None:
        """`addresses` are those of the configured nodes; `propose` makes changes, large ones in parts;
        `joined_at` returns the index of group 0 at which this directory has joined, or 0.
        """
        self._replicas = replicas
        self._roster = roster
        self._hosts = hosts
        self._replication = replication
        self._reach = reach
        self._addresses = addresses
        self._propose = propose
        self._joined_at = joined_at
        #: Starts of nodes whose earlier starts the topology has ended.
        self._told: dict[str, int] = {}
        #: Changes of members that were proposed and not applied yet.
        self._changing: dict[int, None] = {}
        self._founded = False
        #: Nodes whose present address the topology was asked to take.
        self._telling: dict[str, None] = {}
        self._looks = Steps(turn, self._look_at_groups, "the groups could not be looked after")
        #: When nodes went down, by this node's clock, and nodes that the topology counts as lost.
        self._down_since: dict[str, int] = {}
        self._lost: dict[str, None] = {}

    def look(self) -> None:
        """Do the periodic work for all groups that this node leads, those of queues in as many turns as they
        take.
        """
        group = self._replicas.groups.get(GROUP)
        if group is not None and group.is_leader:
            self._look_after_nodes(group)
        self._tell_addresses()
        if not self._looks.under_way:
            self._looks.begin()

    def _look_at_groups(self) -> Iterator[None]:
        moved = 0
        for queue_id, host in self._hosts.each_grouped():
            queue = self._hosts.queues.get(queue_id)
            if queue is not None and host.group.is_leader:
                moved += self._look_at(host, queue, may_move=moved < self._replicas.options.rebalance_groups)
            yield
        yield from self._ask_to_leave()
        yield from self._tell_stopped()
        yield from self._cut_logs()

    def _look_at(self, host: Any, queue: Queue, *, may_move: bool) -> int:
        """Look after a group that this node leads; return 1 if it is handed over."""
        self._adjust_members(host.group, queue.members)
        self._grow(queue)
        if isinstance(host, GroupHost) and host.replica.machine.version < self._roster.version:
            host.submit(("version", self._roster.version))
        if self._replicas.draining or not may_move:
            return 0
        return self._move(host.group, queue.record.leader)

    # -- group 0 ---------------------------------------------------------------------------------------------

    def _look_after_nodes(self, group: Group) -> None:
        nodes = self._roster.nodes
        unnamed = self._roster.unnamed(group.core.members.voters)
        if not unnamed:
            following = [name for name in nodes if not votes(name)]
            self._adjust_members(group, [name for name in nodes if votes(name)], following)
        elif not self._founded:
            # Propose all nodes, or those that the previous leader did not reach.
            self._founded = True
            for name in unnamed:
                self._replication.submit(PutNode(name, self._addresses.get(name, "")))
            # A new cluster begins with the newest version, before there is any queue.
            self._raise_version(group.core.members.voters)
        for node, incarnation in self._replicas.incarnations.items():
            if incarnation is not None and self._told.get(node) != incarnation and node in nodes:
                self._told[node] = incarnation
                self._propose(NodeDown(node, incarnation - 1))
        for node in nodes:
            self._look_after_lost(node)
        self._raise_version(nodes)

    def _tell_addresses(self) -> None:
        """This start of the node may have another address than the last one. The first worker of a machine
        tells those of all of them, and so names workers that are new, or that have joined again with it.
        """
        own, addresses, known = self._replicas.node, self._addresses, self._roster.nodes
        # A node without an address leaves the cluster, and one that was removed joins by an operator's hand.
        if not known.get(own):
            return
        told = [name for name in addresses if votes(own) and machine_of(name) == own] or [own]
        for name in told:
            present = addresses.get(name)
            # The removal was that of an earlier directory if the one of this machine has joined since.
            is_new = (
                bool(self._roster.unnamed([name])) or 0 < self._roster.removed_at(name) < self._joined_at()
            )
            if present is None or name in self._telling or not (is_new or known.get(name)):
                continue
            if known.get(name) != present:
                self._telling[name] = None
                self._replication.submit(PutNode(name, present), partial(self._told_address, name))

    def _told_address(self, name: str, result: object) -> None:
        """The topology has the address, or the proposal has failed: then the next round tries again."""
        self._telling.pop(name, None)

    def _raise_version(self, nodes: Collection[str]) -> None:
        """Raise queues to a version when all nodes know it. An unreachable node may come back with the old
        version.
        """
        links, own = self._replicas.links, self._replicas.node
        connected = links.connected()
        if not nodes or any(name != own and name not in connected for name in nodes):
            return
        others = [versions.newest_of(links.features_of(name)) for name in nodes if name != own]
        known = min(others, default=versions.NEWEST)
        if known > self._roster.version:
            logger.info("all nodes know version %d of queues: raising queues to it", known)
            self._replication.submit(RaiseVersion(known))

    def _look_after_lost(self, node: str) -> None:
        """Delete transient and exclusive queues of a node that has been down for a long time: clients declare
        them again on other nodes.
        """
        if self._replicas.incarnations.get(node) is not None or self._reach.is_alive(node):
            self._down_since.pop(node, None)
            self._lost.pop(node, None)
            return
        now = self._replicas.clock.monotonic_ms()
        since = self._down_since.setdefault(node, now)
        if node not in self._lost and now - since >= LOST_FACTOR * self._replicas.options.node_down_ms:
            self._lost[node] = None
            logger.warning("node %s is down for too long: deleting its transient and exclusive queues", node)
            self._propose(NodeDown(node, self._roster.incarnation_of(node)))

    # -- members ---------------------------------------------------------------------------------------------

    def _adjust_members(self, group: Group, wanted: Collection[str], following: Collection[str] = ()) -> None:
        """Bring the members of a group one step nearer to the wanted voters, and learners that follow."""
        core = group.core
        members = core.members
        if core.members_index > core.commit:
            return
        change = self._next_members(group, members, wanted, following)
        if change is None:
            return
        try:
            core.propose_members(change)
        except (MembershipRefused, NotLeader) as refused:
            logger.debug("replica group %d: %s", group.id, refused)
        self._replicas.touch(group)

    def _next_members(
        self, group: Group, members: Members, wanted: Collection[str], following: Collection[str]
    ) -> Members | None:
        voters, learners = members.voters, members.learners
        if voters == wanted and not learners:
            return None
        for name in learners:
            if name in wanted and group.core.caught_up(name):
                return Members((*voters, name), _without(learners, name))
        for name in (*wanted, *following):
            if name not in voters and name not in learners:
                return Members(voters, (*learners, name))
        if any(name not in voters for name in wanted):
            # Add members before removing others.
            return None
        for name in learners:
            if name not in wanted and name not in following:
                return Members(voters, _without(learners, name))
        own = self._replicas.node
        for name in voters:
            left = _without(voters, name)
            if name not in wanted and name != own and self._has_majority(group, left):
                return Members(left, learners)
        if own in voters and own not in wanted:
            self._give_away(
                group, [name for name in voters if name in wanted and self._replaces(name, members)]
            )
        return None

    def _has_majority(self, group: Group, voters: Collection[str]) -> bool:
        """True if more than half of these voters have all committed entries.

        With too many voters that have forgotten their logs, or are members by name only, the group could
        commit nothing, not even the change back.
        """
        ready = sum(name == self._replicas.node or group.core.caught_up(name) for name in voters)
        return ready > len(voters) // 2

    def _replaces(self, name: str, members: Members) -> bool:
        """True if the group has a majority without this node when the other node leads; else leadership would
        come back.
        """
        everyone, reach = members.everyone(), self._reach
        return reach.count(name, everyone) >= reach.count(self._replicas.node, everyone)

    def _ask_to_leave(self) -> Iterator[None]:
        """Ask whether the groups that this node is to leave have removed it."""
        for queue_id, queue in list(self._hosts.leaving.items()):
            if queue_id in self._hosts.leaving:
                for name in queue.members:
                    self._replicas.send(name, frames.leaving(queue_id))
            yield

    def _tell_stopped(self) -> Iterator[None]:
        """Tell the members of groups that failed here: the leader requeues the deliveries of this node's
        consumers.
        """
        for queue_id, queue in list(self._hosts.stopped.items()):
            yield
            if queue_id not in self._hosts.stopped:
                continue
            _, incarnation = self._replicas.own_in(queue_id)
            for name in queue.members:
                if frames.STOPPED_FEATURE in self._replicas.links.features_of(name):
                    self._replicas.send(name, frames.stopped(queue_id, incarnation - 1))

    def _grow(self, queue: Queue) -> None:
        """Add members to a queue up to its declared target size, as soon as there are nodes for them."""
        target = queue.effective.target_group_size
        staying, taken = self._roster.staying, machines(queue.members)
        if target is None or len(queue.members) >= min(target, len(machines(staying))):
            return
        up = self._replicas.links.connected()
        spare = [name for name in staying if machine_of(name) not in taken and name in up]
        if spare:
            crowd = self._roster.zones.crowd
            self.set_members(
                queue, (*queue.members, min(spare, key=lambda name: (crowd(name, queue.members), name)))
            )

    def set_members(self, queue: Queue, members: tuple[str, ...]) -> None:
        """Make these nodes the members of a queue; the group's leader does that step by step."""
        if queue.queue_id in self._changing:
            return
        self._changing[queue.queue_id] = None
        leader = queue.record.leader if queue.record.leader in members else members[0]
        self._replication.propose(
            SetMembers(queue.vhost.name, queue.name, queue.queue_id, members, leader),
            lambda result: self._changing.pop(queue.queue_id, None),
        )

    # -- leaders ---------------------------------------------------------------------------------------------

    def _move(self, group: Group, preferred: str) -> int:
        """Hand a group to its preferred leader, if that node is ready; return whether it was done."""
        core = group.core
        if preferred == self._replicas.node or preferred not in core.members.voters:
            return 0
        if preferred not in self._replicas.links.connected() or not core.caught_up(preferred):
            return 0
        if not self._reach.may_return(preferred, core.members.everyone()):
            return 0
        return int(transfer(self._replicas, group, preferred))

    def _give_away(self, group: Group, names: Iterable[str]) -> bool:
        """Hand a group to the node among these that has all entries and reaches most members."""
        connected, members = self._replicas.links.connected(), group.core.members.everyone()
        ready = [name for name in names if name in connected and group.core.caught_up(name)]
        if not ready:
            return False
        best = max(
            ready, key=lambda name: (self._reach.takes_leaders(name), self._reach.count(name, members))
        )
        return transfer(self._replicas, group, best)

    def transfer(self, group: Group, to: str) -> bool:
        """Hand over a group that this node leads; return whether that has begun."""
        return transfer(self._replicas, group, to)

    def drain(self) -> int:
        """Hand over the groups that this node leads; return how many are left."""
        self._replicas.draining = True
        # Tell the others first, so that the receivers do not hand leadership back.
        self._reach.tell()
        left = given = 0
        for group in list(self._replicas.groups.values()):
            if group.is_leader:
                others = [name for name in group.core.members.voters if name != self._replicas.node]
                connected = self._replicas.links.connected()
                if any(name in connected for name in others):
                    left += 1
                    if given < DRAINED_AT_ONCE:
                        given += self._give_away(group, others)
        return left

    # -- logs ------------------------------------------------------------------------------------------------

    def _cut_logs(self) -> Iterator[None]:
        """Take snapshots of idle groups, so that their logs take no space, and no time at a start."""
        cut = 0
        for group in list(self._replicas.groups.values()):
            yield
            if self._replicas.groups.get(group.id) is not group:
                continue
            resting = group.core.quiet and not group.snapshotting and not group.sending
            if resting and group.since_bytes and CUT_GROWTH * group.since_bytes >= group.snapshot_bytes:
                compaction.take_snapshot(group)
                cut += 1
            elif group.released or group.cleaned < group.snapshot_index:
                compaction.compact(group)
            if cut >= CUT_GROUPS:
                return


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)
