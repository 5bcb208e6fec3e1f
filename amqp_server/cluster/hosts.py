"""Chooses the host of a queue on this node of a cluster, and the nodes of a new queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.group_members import GroupStreams
from amqp_server.broker.hosts import LocalHosts, limits_of, tiering_of
from amqp_server.broker.metadata import Metadata
from amqp_server.broker.reply import home_of
from amqp_server.broker.topology import consumer_groups
from amqp_server.broker.topology.queue import Queue
from amqp_server.cluster.direct_replies import RemoteReply
from amqp_server.cluster.leader_counts import Placed
from amqp_server.cluster.membership.machines import machine_of, on_machine
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.topology_group import GROUP
from amqp_server.cluster.topology_progress import TopologyProgress
from amqp_server.config import Config
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.streams.local_host import StreamServices
from amqp_server.streams.members.host import StreamMemberHost
from amqp_server.streams.members.requests import Asks
from amqp_server.streams.remote_host import Publisher, StreamRemoteHost
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.queues.deferred_host import DeferredHost
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host
from quorum_queue.queue_ids import index_of

if TYPE_CHECKING:
    from amqp_server.cluster.groups import Groups
    from quorum_queue.cluster.replica_group import Group

#: A member of the Raft group of a queue.
MemberHost = GroupHost | StreamMemberHost | ConsumerGroupMemberHost
RemoteHostT = TypeVar("RemoteHostT", bound=RemoteHost)


class ClusterHosts:
    def __init__(
        self,
        config: Config,
        services: NodeServices,
        metadata: Metadata,
        groups: Groups,
        roster: Roster,
        topology_progress: TopologyProgress,
        reach: Reach,
        streams: StreamServices,
    ) -> None:
        self._config = config
        self.streams = streams
        self.asks = Asks(groups.replicas.links, services.turn)
        self._services = services
        self._local = LocalHosts(services, metadata)
        self._groups = groups
        self._roster = roster
        self._topology_progress = topology_progress
        self._reach = reach
        #: Hosts of queues that live on other nodes.
        self.remote: dict[int, RemoteHost | StreamRemoteHost] = {}
        #: Hosts of quorum queues and streams that this node is a member of.
        self.grouped: dict[int, Any] = {}
        self._dropped_unclaimed = False
        #: Queues whose groups this node leaves when the others have removed it.
        self.leaving: dict[int, Queue] = {}
        #: Queues whose groups have stopped on this node; the others must be told.
        self.stopped: dict[int, Queue] = {}
        #: Queues that guests may use.
        self.queues: dict[int, Queue] = {}
        self._placed = Placed()

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        self.queues[queue.queue_id] = queue
        self._placed.put(queue)
        node = self._groups.replicas.node
        if queue.members:
            if node in queue.members:
                return self._begun(queue, self._group_host(queue))
            if self._groups.is_kept(queue.queue_id) or self._is_counted_on(queue):
                # The node stopped, or was unreachable, before the others had removed it, and they may still
                # need its vote.
                self.leaving[queue.queue_id] = queue
                return self._begun(queue, self._group_host(queue))
            return self._remote_host(queue)
        if queue.node in (node, "") and not self._is_former(queue):
            return self._local.make(queue, machine)
        # Nothing serves a former queue of this node: as of any home that is down.
        return self._remote_host(queue)

    def _is_former(self, queue: Queue) -> bool:
        """True if the queue ended with an earlier start of its node, and the topology does not say so yet."""
        record = queue.record
        if record.members or record.durable:
            return False
        known = self._groups.replicas.incarnations.get(record.node) or 0
        return record.incarnation < max(known, self._roster.incarnation_of(record.node))

    def _begun(self, queue: Queue, host: MemberHost) -> Host:
        """Return the host to use: until a stream's member that has lost its disk is filled, other members
        serve the stream.
        """
        if isinstance(host, StreamMemberHost) and host.group.core.amnesiac:
            queue.host = served = self._remote_host(queue)
            self._move_here(queue, host)
            return served
        return host

    def _is_counted_on(self, queue: Queue) -> bool:
        """True if a group began with this node as a member, and this node has never heard of the group: the
        group may need this node's vote for its first leader. A node that may have voted and forgotten its
        vote must not vote again.
        """
        founder = self._groups.replicas.node in queue.record.founders
        return founder and queue.unknown and not self._groups.may_have_forgotten(queue.queue_id)

    def expect(self, queue: Queue) -> None:
        """Keep messages of other members to the queue's group until the group is opened here."""
        if self._groups.replicas.node in queue.members:
            self._groups.replicas.unopened.expected[queue.queue_id] = None

    def gone(self, queue: Queue) -> None:
        """The queue is deleted."""
        self._local.gone(queue)
        queue_id = queue.queue_id
        self._groups.replicas.unopened.expected.pop(queue_id, None)
        self.queues.pop(queue_id, None)
        self._placed.remove(queue_id)
        remote = self.remote.get(queue_id)
        if remote is not None:
            # Messages may be on their way to clients of this node.
            remote.when_over(partial(self._not_remote, queue_id))
        self.leaving.pop(queue_id, None)
        group_host = self.grouped.pop(queue_id, None)
        if group_host is not None and group_host is not queue.host:
            # The queue was about to move to the member here.
            group_host.close()
        if self.stopped.pop(queue_id, None) is not None:
            self._groups.drop(queue_id)
        self._groups.replicas.gone(queue_id)

    def _not_remote(self, queue_id: int) -> None:
        self.remote.pop(queue_id, None)

    def more_marks(self, queue: Queue, count: int) -> list[int]:
        return self._local.more_marks(queue, count)

    def configure(self, queue: Queue) -> None:
        queue_id = queue.queue_id
        # Both hosts exist while the queue moves from one to the other.
        remote, grouped = self.remote.get(queue_id), self.grouped.get(queue_id)
        if remote is not None:
            remote.configure(queue.settings)
        if grouped is not None:
            grouped.configure(queue.settings)
            if isinstance(grouped, StreamMemberHost):
                grouped.limit(limits_of(queue), queue.effective.segment_bytes, tiering_of(queue))
        if remote is None and grouped is None:
            self._local.configure(queue)

    def drop_unclaimed(self, applied: int) -> None:
        """Delete segments of streams that are not on this node; only of queues declared up to this index."""
        if self._dropped_unclaimed:
            return
        self._dropped_unclaimed = True
        kept = [queue_id for queue_id, host in self.grouped.items() if isinstance(host, StreamMemberHost)]
        self.streams.store.keep([*kept, *self.stopped], lambda queue_id: index_of(queue_id) <= applied)

    def host_of(self, queue_id: int) -> Host | None:
        """Return the host of a queue that this node can serve others from."""
        queue = self.queues.get(queue_id)
        if queue is None or queue.deleted or queue_id in self.remote:
            return None
        return queue.host

    def leads(self, queue_id: int) -> Host | None:
        """Return the host of a queue if this node decides for it: it leads its group, or is its home."""
        grouped = self.grouped.get(queue_id)
        if grouped is not None:
            return self.host_of(queue_id) if grouped.group.is_leader else None
        return self.host_of(queue_id)

    def exists(self, queue_id: int) -> bool:
        """Return whether a queue with this id is declared."""
        queue = self.queues.get(queue_id)
        return queue is not None and not queue.deleted

    def leader(self, queue: Queue) -> str:
        host = self.grouped.get(queue.queue_id)
        if host is not None:
            leader: str = host.group.leader
            return leader
        # A node without a member only knows the preferred leader, and that it is not the leader itself.
        preferred = queue.record.leader
        return "" if preferred == self._groups.replicas.node else preferred

    def absent_home(self, queue: Queue) -> str:
        if queue.queue_id not in self.remote or queue.members:
            return ""
        reached = queue.node in self._groups.replicas.links.connected() and not self._is_former(queue)
        return "" if reached else queue.node

    def short_node(self, queue: Queue, short: Container[str]) -> str:
        if not queue.members:
            return queue.node if queue.queue_id in self.remote and queue.node in short else ""
        lacking = [node for node in queue.members if node in short]
        # The others can go on without these, and let them catch up later.
        left = len(queue.members) - len(lacking)
        return lacking[0] if lacking and left <= len(queue.members) // 2 else ""

    def reply(self, token: str) -> RemoteReply | None:
        replicas, home = self._groups.replicas, home_of(token)
        if home == replicas.node or home not in replicas.links.connected():
            return None
        turn = self._services.turn
        return RemoteReply(turn, token, home, replicas.links, replicas.node, replicas.incarnation)

    def reached(self) -> Iterator[None]:
        """A link is up: groups that this node should lead need not wait for an election timeout. Looks at one
        group at each step.
        """
        replicas = self._groups.replicas
        node, up = replicas.node, {replicas.node, *replicas.links.connected()}
        topology = replicas.groups.get(GROUP)
        if topology is not None and node == min(up.intersection(topology.core.members.voters), default=""):
            _hurry(topology, up)
        for queue_id, host in self.each_grouped():
            queue = self.queues.get(queue_id)
            if queue is not None and queue.record.leader == node:
                _hurry(host.group, up)
            yield

    def each_grouped(self) -> Iterator[tuple[int, Any]]:
        """Yield the hosts of `grouped`, for loops that take several turns: without those that are gone when
        it is their turn.
        """
        for queue_id, host in list(self.grouped.items()):
            known: Any = self.grouped.get(queue_id)
            if known is host:
                yield queue_id, known

    def _group_host(self, queue: Queue, *, late: bool = False) -> MemberHost:
        """Make the host of a queue that this node is a member of. `late`: this node joined after the queue
        was declared.
        """
        if queue.type.is_stream:
            return self._stream_group_host(queue, late=late)
        if queue.type.is_group:
            return self._consumer_group_host(queue, late=late)
        host = GroupHost(
            queue,
            queue.queue_id,
            queue.settings,
            self._services,
            self._groups.replicas,
            declared=queue.declared_settings,
        )
        self._groups.open(host, queue, late=late)
        self.grouped[queue.queue_id] = host
        return host

    def _stream_group_host(self, queue: Queue, *, late: bool) -> StreamMemberHost:
        groups = self._groups
        host = StreamMemberHost(
            queue,
            queue.queue_id,
            self.streams,
            limits_of(queue),
            queue.effective.segment_bytes,
            queue.settings,
            groups.replicas,
            self.asks,
            queue.parsed.compression,
            self.streams.options.compaction(queue.effective.compaction, queue.effective.tombstone_age_ms),
            tiering_of(queue),
        )
        groups.open(host, queue, late=late)
        self.grouped[queue.queue_id] = host
        return host

    def _consumer_group_host(self, queue: Queue, *, late: bool) -> ConsumerGroupMemberHost:
        groups = self._groups
        host = ConsumerGroupMemberHost(
            queue,
            queue.queue_id,
            self._services,
            consumer_groups.options_of(queue),
            queue.settings,
            groups.replicas,
            streams=GroupStreams(queue),
            has_heard_of=lambda queue_id: index_of(queue_id) <= groups.replicas.unopened.topology_index,
        )
        groups.open(host, queue, late=late)
        self.grouped[queue.queue_id] = host
        return host

    def _remote_host(self, queue: Queue) -> RemoteHost | StreamRemoteHost:
        if queue.type.is_stream:
            return self._stream_remote_host(queue)
        host = self.remote[queue.queue_id] = self._remote(queue, RemoteHost)
        return host

    def _remote(self, queue: Queue, kind: type[RemoteHostT]) -> RemoteHostT:
        replicas = self._groups.replicas
        return kind(
            queue,
            queue.queue_id,
            queue.name,
            queue.settings,
            replicas.links,
            self._services.turn,
            node=replicas.node,
            incarnation=replicas.incarnation,
            home=partial(self._home, queue),
            version=lambda: self._roster.version,
        )

    def _stream_remote_host(self, queue: Queue) -> StreamRemoteHost:
        host = self.remote[queue.queue_id] = StreamRemoteHost(
            queue,
            queue.queue_id,
            self.streams,
            queue.settings,
            self._remote(queue, Publisher),
            self.asks,
            partial(self._home, queue),
            lambda: queue.members,
            lambda: self._roster.version,
        )
        return host

    def _home(self, queue: Queue, avoid: str = "") -> str:
        """Return the node to ask: the queue's home, or a reachable member of its group.

        The member on this machine is the best one: its link does not break when the leader's node fails, and
        it has the messages. `avoid` is a node that does not serve the queue; it is returned only if there is
        no other.
        """
        if not queue.members:
            return queue.node
        replicas = self._groups.replicas
        connected = replicas.links.connected()
        near = on_machine(machine_of(replicas.node), queue.members)
        homes = [node for node in (*near, queue.record.leader, *queue.members) if node in connected]
        return next((node for node in homes if node != avoid), homes[0] if homes else "")

    # -- placing ---------------------------------------------------------------------------------------------

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        """Choose the members of a new quorum queue, its leader first: nodes of different zones, with the
        fewest leaders and members.

        A node that all members reach is preferred to a node that leads few queues.
        """
        return self._place(parsed, 1, parsed.leader_locator or self._config.queue_leader_locator)[0]

    def place_all(self, parsed: QueueArguments, count: int) -> list[tuple[str, ...]]:
        """Choose the members of queues that belong together: each node leads as many of them as any other,
        whatever else it leads. Unless declared so, the client's node does not lead all of them.
        """
        return self._place(parsed, count, parsed.leader_locator or "balanced")

    def _place(self, parsed: QueueArguments, count: int, locator: str) -> list[tuple[str, ...]]:
        if not parsed.type.replicated:
            return [()] * count
        leaders, members = dict(self._placed.leaders), dict(self._placed.members)
        size = parsed.initial_group_size or self._config.group_size
        together: dict[str, int] = {}
        found: list[tuple[str, ...]] = []
        for _ in range(count):
            placed = self._place_one(size, locator, together, leaders, members)
            found.append(placed)
            together[placed[0]] = together.get(placed[0], 0) + 1
            leaders[placed[0]] = leaders.get(placed[0], 0) + 1
            for node in placed:
                members[node] = members.get(node, 0) + 1
        return found

    def _place_one(
        self,
        size: int,
        locator: str,
        together: dict[str, int],
        leaders: dict[str, int],
        members: dict[str, int],
    ) -> tuple[str, ...]:
        """Choose the members of one queue, given the numbers of queues that each node leads of those that
        belong together, that it leads at all, and that it is a member of.
        """
        own = self._groups.replicas.node
        up = {own, *self._topology_progress.up()}
        # If all nodes are about to leave, the catalog refuses.
        nodes = self._roster.staying or sorted(self._roster.nodes) or [own]
        ranked = sorted(
            ((not self._roster.is_known(node), node not in up), members.get(node, 0), node) for node in nodes
        )
        nodes = [node for _, _, node in ranked]
        zones, by_rank = self._roster.zones, [(rank, node) for rank, _, node in ranked]

        def led_by(leader: str) -> tuple[str, ...]:
            return zones.choose(leader, by_rank, size)

        if locator == "client-local" and own in nodes:
            return led_by(self._near(own))
        reachable = [node for node in nodes if node in up] or nodes
        return min(
            map(led_by, reachable),
            key=lambda placed: (
                self._reach.missed(placed),
                zones.shared(placed),
                together.get(placed[0], 0),
                leaders.get(placed[0], 0),
                placed[0],
            ),
        )

    def home(self, *, durable: bool) -> str:
        own = self._groups.replicas.node
        # A transient queue ends with its node, and so it is where its client is.
        return self._near(own) if durable else own

    def _near(self, own: str) -> str:
        """Return this node, or a worker of the same machine that has far fewer queues."""
        up, machine = self._topology_progress.up(), machine_of(own)
        workers = [name for name in self._roster.staying if name in up and machine_of(name) == machine]
        return self._placed.emptier(own, workers) if workers else own

    # -- moving ----------------------------------------------------------------------------------------------

    def changed(self, queue: Queue) -> None:
        """The members have changed: this node may have become one, or may no longer be one."""
        queue_id = queue.queue_id
        self._placed.put(queue)
        if self._groups.replicas.node not in queue.members:
            if queue_id in self.grouped or queue_id in self.stopped:
                self.leaving[queue_id] = queue
            return
        self.leaving.pop(queue_id, None)
        if queue_id not in self.grouped and queue_id not in self.stopped:
            self._move_here(queue, self._group_host(queue, late=True))

    def _move_here(self, queue: Queue, after: MemberHost) -> None:
        """Let this node's own member serve the queue when the other one has answered all pending commands."""
        before = self.remote[queue.queue_id]
        moving: Any = before

        def answered() -> None:
            if queue.host is before and self.grouped.get(queue.queue_id) is after:
                del self.remote[queue.queue_id]
                queue.host = after
                moving.hand_over(after)

        if not isinstance(after, StreamMemberHost):
            moving.drain(answered)
            return

        def whole() -> None:
            if queue.host is before and self.grouped.get(queue.queue_id) is after:
                moving.drain(answered)

        # Consumers stay at another member until this one has their messages.
        after.when_whole(whole)

    def left(self, queue_id: int) -> None:
        """The other members have removed this node from the group."""
        queue = self.leaving.pop(queue_id, None)
        if queue is None:
            return
        if self.stopped.pop(queue_id, None) is not None:
            # The queue failed here. Until now the others counted on this node's vote.
            self._drop(queue_id)
            return
        before: Any = self.grouped.pop(queue_id)
        served = self.remote.get(queue_id)
        if served is not None:
            # The queue was about to move here: it stays on the other nodes.
            before.hand_over(served)
            served.resume()
            return
        after = queue.host = self._remote_host(queue)
        before.hand_over(after)

    def _drop(self, queue_id: int) -> None:
        """Delete the data of a group that has stopped here and is no longer needed."""
        self.leaving.pop(queue_id, None)
        self._groups.drop(queue_id)

    # -- queues that failed ----------------------------------------------------------------------------------

    def stop(self, queue: Queue, reason: str) -> None:
        """Stop this node's member of a group; its clients use the queue at the other members."""
        queue_id = queue.queue_id
        self._groups.replicas.unopened.expected.pop(queue_id, None)
        failed: Any = self.grouped.pop(queue_id, None)
        if failed is None and not queue.members:
            self._local.stop(queue, reason)
            return
        self.stopped[queue_id] = queue
        before = getattr(queue, "host", None)
        if isinstance(before, RemoteHost | StreamRemoteHost) and failed is not None:
            # The member failed before the queue had moved here.
            failed.hand_over(before, failed=True)
            before.resume()
            return
        after = queue.host = self._remote_host(queue)
        if isinstance(before, DeferredHost | StreamMemberHost | StreamRemoteHost):
            handing: Any = before
            handing.hand_over(after, failed=True)

    def is_stopped(self, queue: Queue) -> bool:
        return queue.queue_id in self.stopped or (not queue.members and self._local.is_stopped(queue))

    def revive(self, queue: Queue, attempt: int, done: Callable[[], None]) -> None:
        """Restart a group from its data on this node; if that did not help, let the others fill it."""
        if not queue.members:
            self._local.revive(queue, attempt, done)
            return

        stored = partial(self._stored, queue, attempt, done)
        if queue.type.is_stream:
            # Wait until the thread has written everything that it was given before.
            self.streams.store.write(
                _nothing, lambda result: self._services.commits.request(stored, to_store=True)
            )
        else:
            self._services.commits.request(stored, to_store=True)

    def _stored(self, queue: Queue, attempt: int, done: Callable[[], None]) -> None:
        """All writes of the group are on disk; restart it when they have been read."""
        if queue.deleted:
            return
        if queue.queue_id not in self.stopped:
            # This node has left the group meanwhile; other members serve the clients.
            return
        if self._groups.warm(queue.queue_id, partial(self._stored, queue, attempt, done)):
            self._services.turn.contain(queue, self._begin_anew, queue, attempt, done)

    def _begin_anew(self, queue: Queue, attempt: int, done: Callable[[], None]) -> None:
        queue_id = queue.queue_id
        refill = attempt > 1 and self._groups.others_go_on(queue_id)
        if refill:
            self._groups.drop(queue_id)
        else:
            self._groups.read_again(queue_id)
        del self.stopped[queue_id]
        self._move_here(queue, self._group_host(queue, late=refill))
        done()


def _nothing() -> None: ...


def _hurry(group: Group, up: Collection[str]) -> None:
    """Let this node stand for election soon, if there is no leader and it can be elected."""
    voters = group.core.members.voters
    if not group.core.leader and sum(name in up for name in voters) > len(voters) // 2:
        group.core.hurry()
