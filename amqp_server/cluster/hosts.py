"""Which host a queue gets on this node of a cluster, and which nodes a new queue gets."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from amqp_server.broker.arguments import QueueArguments
from amqp_server.broker.hosts import local_host
from amqp_server.broker.queue import Queue, settings_of
from amqp_server.broker.reply import home_of
from amqp_server.cluster.catalog import GROUP
from amqp_server.cluster.replies import AwayReply
from quorum_queue.cluster.away import Away
from quorum_queue.cluster.group_host import GroupHost
from quorum_queue.cluster.remote_host import RemoteHost
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.cluster.groups import Groups
    from quorum_queue.cluster.group import Group


class ClusterHosts:
    """See amqp_server.broker.hosts.Hosts."""

    def __init__(
        self,
        broker: Broker,
        groups: Groups,
        *,
        nodes: Callable[[], Collection[str]],
        up: Callable[[], Collection[str]],
        is_known: Callable[[str], bool],
    ) -> None:
        self._broker = broker
        self._groups = groups
        #: All nodes of the cluster.
        self._nodes = nodes
        #: Those of the others that are there, and not to be filled first.
        self._up = up
        #: Has a node been there since it joined? A group of nodes that have yet to be filled would have no leader.
        self._is_known = is_known
        #: Hosts of queues that this node has no part of.
        self.remote: dict[int, RemoteHost] = {}
        #: Hosts of quorum queues that this node is a member of.
        self.grouped: dict[int, GroupHost] = {}
        #: Those that it is to leave, and cannot before the others have taken it out of the group.
        self.parting: dict[int, Queue] = {}
        #: Hosts that guests may use, by queue.
        self.queues: dict[int, Queue] = {}
        #: One for all hosts.
        self._host_dirty = self._dirty

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        self.queues[queue.queue_id] = queue
        return self._make(queue, machine)

    def _make(self, queue: Queue, machine: Machine | None) -> Host:
        node = self._groups.replicas.node
        if queue.members:
            if node in queue.members:
                return self._group_host(queue)
            if self._groups.is_kept(queue.queue_id):
                # It stopped before the others had let it go, and they may still count on it.
                self.parting[queue.queue_id] = queue
                return self._group_host(queue)
            return self._remote_host(queue)
        if queue.node in (node, ""):
            return local_host(self._broker, queue, machine)
        return self._remote_host(queue)

    def gone(self, queue: Queue) -> None:
        """The queue is deleted."""
        self.queues.pop(queue.queue_id, None)
        self.remote.pop(queue.queue_id, None)
        self.grouped.pop(queue.queue_id, None)
        self.parting.pop(queue.queue_id, None)

    def host_of(self, queue_id: int) -> Host | None:
        """Return the host of a queue that this node can serve others from."""
        queue = self.queues.get(queue_id)
        if queue is None or queue.deleted or queue_id in self.remote:
            return None
        return queue.host

    def leader(self, queue: Queue) -> str:
        host = self.grouped.get(queue.queue_id)
        # Who is no member knows only where the leader is to be.
        return queue.record.leader if host is None else host.group.leader

    def absent_home(self, queue: Queue) -> str:
        if queue.queue_id not in self.remote or queue.members:
            return ""
        return "" if queue.node in self._groups.replicas.links.connected() else queue.node

    def reply(self, token: str) -> AwayReply | None:
        replicas, home = self._groups.replicas, home_of(token)
        if home == replicas.node or home not in replicas.links.connected():
            return None
        return AwayReply(token, home, replicas.links, replicas.node, replicas.incarnation)

    def reached(self) -> None:
        """There is one more link: what this node is to lead need not wait for an election timeout."""
        replicas = self._groups.replicas
        node, up = replicas.node, {replicas.node, *replicas.links.connected()}
        topology = replicas.groups.get(GROUP)
        if topology is not None and node == min(up.intersection(topology.core.members.voters), default=""):
            _hurry(topology, up)
        for host in self.grouped.values():
            if host.queue.record.leader == node:
                _hurry(host.group, up)

    def _late_host(self, queue: Queue) -> GroupHost:
        """Make the host of a queue whose members this node has come to be one of."""
        return self._group_host(queue, late=True)

    def _group_host(self, queue: Queue, *, late: bool = False) -> GroupHost:
        host = GroupHost(
            queue,
            queue.queue_id,
            settings_of(queue.parsed),
            self._broker.services,
            self._groups.replicas,
            dirty=self._host_dirty,
        )
        self._groups.open(host, queue, late=late)
        self.grouped[queue.queue_id] = host
        return host

    def _remote_host(self, queue: Queue) -> RemoteHost:
        replicas = self._groups.replicas
        host = self.remote[queue.queue_id] = RemoteHost(
            queue,
            queue.queue_id,
            queue.name,
            settings_of(queue.parsed),
            replicas.links,
            node=replicas.node,
            incarnation=replicas.incarnation,
            home=lambda: self._home(queue),
        )
        return host

    def _home(self, queue: Queue) -> str:
        """Return the node to ask: where the queue lives, or a member of its group that can be reached."""
        if not queue.members:
            return queue.node
        connected = self._groups.replicas.links.connected()
        for node in (queue.record.leader, *queue.members):
            if node in connected:
                return node
        return ""

    def _dirty(self, host: object) -> None:
        self._broker.dirty[host] = None
        self._broker.want_turn()

    # -- placing ---------------------------------------------------------------------------------------------------

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        """Choose the members of a new quorum queue, its leader first: nodes with the fewest leaders and members."""
        if parsed.queue_type != "quorum":
            return ()
        own = self._groups.replicas.node
        up = {own, *self._up()}
        leaders: dict[str, int] = {}
        members: dict[str, int] = {}
        for queue in self.queues.values():
            for node in queue.members:
                members[node] = members.get(node, 0) + 1
            leaders[queue.record.leader] = leaders.get(queue.record.leader, 0) + 1
        nodes = sorted(self._nodes())
        size = parsed.initial_group_size or self._broker.config.group_size
        locator = parsed.leader_locator or self._broker.config.queue_leader_locator
        reachable = [node for node in nodes if node in up] or nodes
        leader = min(reachable, key=lambda node: (leaders.get(node, 0), node))
        if locator == "client-local" and own in nodes:
            leader = own
        others = [node for node in nodes if node != leader]
        others.sort(key=lambda node: (not self._is_known(node), node not in up, members.get(node, 0), node))
        return (leader, *others[: size - 1])

    def changed(self, queue: Queue) -> None:
        """The members are others now: this node may be one of them, or not be one any more."""
        queue_id = queue.queue_id
        if self._groups.replicas.node not in queue.members:
            if queue_id in self.grouped:
                self.parting[queue_id] = queue
            return
        self.parting.pop(queue_id, None)
        if queue_id not in self.grouped:
            del self.remote[queue_id]
            self._move(queue, self._late_host)

    def left(self, queue_id: int) -> None:
        """The other members have taken this node out of the group: it is not needed there any more."""
        queue = self.parting.pop(queue_id, None)
        if queue is not None:
            del self.grouped[queue_id]
            self._move(queue, self._remote_host)

    def _move(self, queue: Queue, make: Callable[[Queue], Host]) -> None:
        before = queue.host
        assert isinstance(before, Away)
        after = queue.host = make(queue)
        assert isinstance(after, Away)
        before.hand_over(after)
        self._broker.changed()


def _hurry(group: Group, up: Collection[str]) -> None:
    """Have this node stand for election soon, if nobody leads and it can be elected."""
    voters = group.core.members.voters
    if not group.core.leader and sum(name in up for name in voters) > len(voters) // 2:
        group.core.hurry()
