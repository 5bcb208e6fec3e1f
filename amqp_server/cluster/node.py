"""This node as a member of a cluster: it joins, handles links and frames of peers, and leaves."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

import msgspec
import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import NodeDown
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.replication import Done, Result
from amqp_server.cluster import direct_replies
from amqp_server.cluster.administration import Administration
from amqp_server.cluster.api_questions import Questions
from amqp_server.cluster.client_counts import ClientCounts
from amqp_server.cluster.coordinator.decisions import Decision
from amqp_server.cluster.coordinator.transactions import Transactions
from amqp_server.cluster.errors import ClusterError, OutOfCluster, StartAgain
from amqp_server.cluster.hosts import ClusterHosts
from amqp_server.cluster.incoming import Handler, IncomingFrames
from amqp_server.cluster.lost_links import LostLinks
from amqp_server.cluster.maintenance import Maintenance
from amqp_server.cluster.membership.adoption import Adoption
from amqp_server.cluster.membership.founding import Founding
from amqp_server.cluster.membership.machines import machine_of, number_of, on_machine, votes
from amqp_server.cluster.membership.membership import REMOVED, About, Founded
from amqp_server.cluster.membership.node_alarms import NodeAlarms
from amqp_server.cluster.membership.removed_nodes import RemovedNodes
from amqp_server.cluster.readiness import obstacle
from amqp_server.cluster.topology_group import GROUP, Catalog, Mark
from amqp_server.cluster.wiring import TICK_S, ClusterParts, peer_at
from amqp_server.config import parse_address
from persistence.journal import Journal
from quorum_queue.cluster import frames
from quorum_queue.cluster.dispatch import Dispatch
from quorum_queue.cluster.handover import HandOver
from quorum_queue.cluster.queues.guests import Guests
from quorum_queue.cluster.queues.undeclared import UndeclaredQueues
from quorum_queue.links.handshake import Hello
from quorum_queue.links.ports import Poll
from quorum_queue.machine import versions
from quorum_queue.ports import Refused
from quorum_queue.raft.members import Members
from quorum_queue.shared_ticks import until_beat_s
from quorum_queue.steps import Steps

logger = logging.getLogger("mqd.cluster")

#: Interval of log lines of a node that waits for others before it can serve, s.
WAITING_S = 5.0
#: If the queue time changes by this much, hosts check their timers again, ms.
TIME_CHANGED_MS = 500
#: Time for clients to take their last bytes when the node has to stop, s.
GOODBYE_S = 1.0
#: The leader proposes its own topology if no node has done so for this long after entries were given up, ms.
RESTATE_LATE_MS = 5_000


class ClusterNode:
    """See quorum_queue.links.ports.Events, founding.Fate and catalog.Listener."""

    def __init__(self, broker: Broker, parts: ClusterParts, hosts: ClusterHosts, poll: Poll) -> None:
        self._poll = poll
        self._config = config = broker.config
        self._broker = broker
        self._turn = broker.turn
        self._parts = parts
        self.node = config.node
        self.incarnation = parts.incarnation
        self.mesh = parts.mesh
        self.replicas = parts.replicas
        self.roster = parts.roster
        self.replication = parts.replication
        self.hosts = hosts
        # A node that has run without a cluster brings its data.
        brings = config.data_dir if len(broker.access.users) else ""
        self._founding = Founding(
            parts.directory,
            self.node,
            list(filter(votes, config.peer_addresses)),
            brings,
            self.incarnation,
            self,
        )
        self.catalog = Catalog(self.node, self.incarnation, broker.topology, self.roster, self)
        self.transactions = Transactions(
            self.node,
            self.incarnation,
            decisions=self.catalog.decisions,
            log=self.replication,
            hosts=hosts,
            nodes=self.roster,
            is_up=self._is_up,
            turn=broker.turn,
            clock=broker.clock,
            timeout_ms=config.change_timeout_ms,
            decision_ms=config.tx_decision_ms,
            producers_max=config.tx_producers_max,
        )
        broker.transactions = broker.services.undecided = self.transactions
        hosts.streams.undecided = self.transactions
        undeclared = UndeclaredQueues(self._may_come, self.replicas.options.unopened_bytes_max)
        self._guests = Guests(self.mesh, self._turn, hosts.host_of, undeclared)
        self._lost_links = LostLinks(broker.turn, self._guests, hosts)
        self.reach = parts.reach
        self.maintenance = Maintenance(
            self.replicas,
            self.roster,
            hosts,
            self.replication,
            self.reach,
            broker.turn,
            addresses=config.told_addresses,
            propose=broker.propose,
            joined_at=self._joined_at,
        )
        self._wakes = Steps(broker.turn, self._wake_queues, "queues could not look at the time")
        self._ticks = Steps(broker.turn, self.replicas.ticks, "groups could not look at the time")
        self._links_told = Steps(broker.turn, self._tell_links, "groups could not be told of a link")
        #: True if a link has come up since groups were told of links.
        self._reached = False
        self._gone_nodes = Steps(broker.turn, self._look_for_gone_nodes, "queues could not be told of a node")
        self._hand_over = HandOver(self.replicas, self.reach)
        self._handings = Steps(broker.turn, self._hand_over.hand_over, "groups could not be handed over")
        self._removed = RemovedNodes(self.mesh, self.roster, broker.clock)
        self.administration = Administration(self, self._turn, propose=broker.propose)
        self.questions = Questions(
            self.mesh,
            timeout_s=config.cluster_answer_ms / 1000,
            bytes_max=config.cluster_answer_bytes_max,
        )
        #: Set when all other nodes are linked and empty.
        self._awaited = trio.Event()
        #: Set when this node has to stop; the reason is in `_why_out`.
        self._out = trio.Event()
        self._why_out = ""
        #: Called when this process is about to end because of that.
        self.ends: Callable[[], None] = lambda: None
        self._again = False
        #: True if the first batch of this node's start is in the log.
        self._began = False
        #: When entries of the topology were given up, and whether this node has proposed its own topology.
        self._given_up_ms = 0
        self._restating = False
        #: When links broke, for nodes that do not count as down yet, ms.
        self._broken_at: dict[str, int] = {}
        self._joined = trio.Event()
        self._queue_time = broker.services.queue_time
        self._node_alarms = NodeAlarms(
            self.mesh, broker.alarms, lambda: self.replicas.stalled, parts.topology_progress.stalls
        )
        self.client_counts = ClientCounts(self.mesh, self._turn, broker.sessions, broker.runtime.limits)
        self._incoming = IncomingFrames(
            self._turn,
            broker.clock,
            self.mesh,
            Dispatch(self.replicas, self.mesh, self._guests, hosts, self.reach),
            self._handlers(),
            asleep_ms_max=config.cluster_dead_ms + config.node_down_ms // 2,
            distrust=self._distrust,
        )
        #: See quorum_queue.links.ports.Events.
        self.received = self._incoming.received
        broker.alarms.subscribe(self._alarm_changed)

    @property
    def founded(self) -> Founded | None:
        """This node's note about its cluster."""
        return self._founding.founded

    def queue(self, vhost: str, name: str) -> Queue | None:
        """Return a queue that is declared, of any type and at any place."""
        found = self._broker.vhosts.get(vhost)
        return None if found is None else found.queues.get(name)

    def _alarm_changed(self) -> None:
        self.replicas.disk_full("disk" in self._broker.alarms.names())
        self._turn.run(self._node_alarms.tell)
        if self.replicas.has_news:
            self._turn.run(self._links_told.begin)

    # -- belonging -------------------------------------------------------------------------------------------

    def check_directory(self) -> None:
        """Raise ClusterError if the data directory does not belong to this node of a cluster."""
        self._parts.directory.check(self._config.data_dir, self.node)

    @property
    def stood_alone(self) -> bool:
        """True if `adopt` must be called before the directory is read."""
        return bool(self._founding.brings)

    @property
    def began_empty(self) -> bool:
        """True if the cluster began without any data."""
        founded = self._founding.founded
        return founded is None or not founded.origin

    def _joined_at(self) -> int:
        """Return the index of group 0 at which this directory has joined the cluster, once it is filled; 0
        before that, and if the cluster was founded with it.
        """
        founded = self._founding.founded
        return 0 if founded is None else founded.lost_before

    async def adopt(self, journal: Journal) -> None:
        """Wait for the other nodes, all empty, and convert this directory into that of the first node. Raises
        ClusterError.
        """
        self._founding.begin()
        await self._patiently(self._awaited.wait)
        parts, config = self._parts, self._config
        disk = os.statvfs(config.data_dir)
        adoption = Adoption(
            self._broker,
            journal,
            parts.store,
            parts.directory,
            self.hosts.streams.store,
            self.hosts.streams.options.segment_size,
            addresses=config.told_addresses,
            identities=self._founding.identities(),
            free_bytes=disk.f_bavail * disk.f_frsize + parts.environment.free_bytes(),
            version=self._known_version(),
            zones=self.roster.zones,
        )
        await adoption.carry_out(parts.commits)
        founded = self._founding.noted()
        parts.groups.found(parts.store.recovered(), founded.forgotten_before)

    def _known_version(self) -> int:
        """Return the newest version of queues that all founding nodes know, which are linked now."""
        others = [name for name in self._config.peer_addresses if votes(name) and name != self.node]
        return min(
            [versions.newest_of(self.mesh.features_of(name)) for name in others], default=versions.NEWEST
        )

    def start(self) -> None:
        """Continue as a member if this node was one. Call this after the topology's records were read."""
        now, up = self._broker.clock.monotonic_ms(), {self.node, *self.mesh.connected()}
        self._broken_at = {name: now for name in self._config.peer_addresses if name not in up}
        self.replicas.topology_came(self._broker.topology.applied)
        if self._founding.founded is not None:
            self._open_and_tell()
        else:
            self._founding.begin()

    def belong(self, founded: Founded) -> None:
        self._parts.groups.may_lack(founded.forgotten_before)
        self._note(founded, self._open_and_tell)

    def complete(self) -> None:
        self._awaited.set()

    def _note(self, founded: Founded, done: Callable[[], None]) -> None:
        self._founding.note(founded)
        self._parts.commits.request(done)

    def _open_and_tell(self) -> None:
        self._open_catalog()
        for peer in self.mesh.connected():
            self._tell_about(peer)

    def _open_catalog(self) -> None:
        founded = self._founding.founded
        assert founded is not None
        first = tuple(sorted(filter(votes, founded.nodes)))
        members = Members((founded.origin,) if founded.origin else first)
        group = self._parts.groups.start(self.catalog, GROUP, members, lost=founded.lost)
        if members.voters == (self.node,) == group.core.members.voters:
            # Nobody else can lead, so there is nothing to wait for.
            group.core.hurry()
        self.nodes_changed([])
        self.replication.start(group, self.catalog)
        self._joined.set()

    def _tell_about(self, peer: str) -> None:
        incarnation = self.roster.incarnation_of(peer)
        seen = msgspec.structs.replace(self._parts.disk_progress.seen(peer), incarnation=incarnation)
        removed_at = 0 if self._is_behind else self.roster.removed_at(peer)
        about = self._founding.tell(seen, self.roster.nodes, removed_at)
        self.mesh.send(peer, [bytes((frames.ABOUT,)), msgspec.msgpack.encode(about)])

    def refusal(self, hello: Hello) -> str:
        """Refuse a node that cannot apply the version of this cluster's queues: it would lose messages."""
        known, wanted = versions.newest_of(hello.features), self.roster.version
        if known >= wanted:
            return ""
        return (
            f"node {hello.name} runs a version of mqd that is too old for this cluster, whose queues have version "
            f"{wanted}: it knows {known}. Start the version that the other nodes run"
        )

    def admits(self, name: str) -> bool:
        """True if a node that is no peer may have a link: it is about to join, or must hear that it was
        removed.
        """
        # Workers that are new are not among the nodes yet; their first one is.
        if machine_of(name) in (self.roster.nodes or self._founding.expected or self._config.peer_addresses):
            return True
        return not self._is_behind and self._removed.may_link(name)

    @property
    def topology_index(self) -> int:
        """Index up to which this node has read the log of group 0."""
        group = self.replication.group
        return group.applied if group is not None else 0

    @property
    def _is_behind(self) -> bool:
        """True if other nodes may know more about the members of the cluster."""
        group = self.replication.group
        return group is None or group.behind or bool(group.core.amnesiac)

    # -- what the topology's log says ------------------------------------------------------------------------

    def nodes_changed(self, removed: list[str]) -> None:
        """The nodes of the cluster changed: keep links with exactly these."""
        nodes = self.roster.nodes
        configured = self._config.peer_addresses
        for name, address in sorted(nodes.items()):
            # This node may reach another one at another address than the rest does.
            parsed = configured.get(name) or configured.get(machine_of(name)) or parse_address(address)
            if name != self.node and parsed is not None:
                self.mesh.add_peer(peer_at(name, parsed))
        for name in removed:
            if name == self.node and name not in nodes:
                self.go(REMOVED)
            elif name not in nodes:
                self._removed.add(name)

    def began(self, index: int) -> None:
        """This node's first batch is in the log: no earlier disk can have known a queue that is declared
        after it.
        """
        founded, groups = self._founding.founded, self._parts.groups
        self._began = True
        self._parts.directory.note_began()
        if founded is not None and founded.lost and not founded.lost_before:
            groups.has_all_after(index)

    def applied(self) -> None:
        known = self.roster.incarnation_of(self.node)
        if known > self.incarnation:
            self.overtaken(known)
        self.replicas.unopened.topology_index = self._broker.topology.applied
        self._guests.topology_came()
        self._turn.gather(self)

    def _may_come(self, queue_id: int) -> bool:
        """True if this node serves, and a queue with this id may still be declared here.

        A node that is catching up may need a long time: other members of the queue can serve it meanwhile.
        """
        return bool(self.catalog.last_own_batch()) and self.replicas.unopened.may_come(queue_id)

    def flush(self) -> None:
        """Tell the others up to which index the topology is applied here. See amqp_server.turn.Gatherer."""
        # Until its first batch is applied a node is catching up, and gets no new queues.
        if self.catalog.last_own_batch():
            self._parts.topology_progress.applied_here(self.topology_index)

    def decided(self, decisions: tuple[Decision, ...], *, own: bool) -> None:
        self.transactions.decided(decisions, own=own)

    def epoch_raised(self, producer: str, epoch: int) -> None:
        self._broker.open_transactions.shut_out(producer, epoch)

    def decisions_restored(self, last_own: int) -> None:
        self.transactions.came_by_snapshot(last_own)
        self._broker.open_transactions.epochs_came(self.transactions.epoch_of)

    def _is_up(self, node: str) -> bool:
        return node == self.node or node in self.mesh.connected()

    def when_spread(self, index: int, then: Callable[[], None]) -> None:
        self._parts.topology_progress.wait(index, then)

    # -- going -----------------------------------------------------------------------------------------------

    def go(self, why: str) -> None:
        if self._why_out:
            return
        logger.critical("%s", why)
        self._why_out = why
        self._parts.directory.note_out(why)
        self._parts.commits.request(self._out.set)

    def refuse(self, why: str) -> None:
        if not self._why_out:
            logger.critical("%s", why)
            self._why_out = why
            self._out.set()

    def overtaken(self, incarnation: int) -> None:
        """Restart the process with a higher number than this: the whole process uses the current number."""
        if self._began or self._why_out:
            # After the first batch only another process under this node's name can have such a number.
            return
        self._why_out = (
            f"the cluster knows start number {incarnation} of this node, but this start has number "
            f"{self.incarnation}: the data directory is new, and the clock of this machine is behind. The "
            "process restarts with a higher number"
        )
        logger.warning("%s", self._why_out)
        self._again = True
        self._parts.directory.note_later_start(incarnation)
        self._parts.commits.request(self._out.set)

    async def _leave(self) -> None:
        """Wait until this node has to stop. Raises ClusterError when it must leave, StartAgain when it must
        restart.
        """
        await self._out.wait()
        if self._again:
            raise StartAgain(self._why_out)
        self.ends()
        self._turn.run(self._close_sessions)
        await trio.sleep(GOODBYE_S)
        raise OutOfCluster(self._why_out)

    def _close_sessions(self) -> None:
        self._broker.close_sessions(
            self._broker.sessions, "broker forced connection closure with reason 'shutdown'"
        )

    # -- links -----------------------------------------------------------------------------------------------

    def link_up(self, peer: str, hello: Hello) -> None:
        self._turn.run(self._link_up, peer, hello)

    def _link_up(self, peer: str, hello: Hello) -> None:
        self._lost_links.up(peer)
        self._broken_at.pop(peer, None)
        self._tell_about(peer)
        self._tell_time([peer])
        self.reach.link_up(peer, hello.features)
        self.roster.zones.heard(peer, hello.features)
        self._parts.topology_progress.link_up(peer)
        self._parts.disk_progress.link_up(peer, hello)
        self._node_is(peer, hello.incarnation)
        self.replicas.link_up(peer)
        self.client_counts.link_up(peer)
        self._node_alarms.link_up(peer)
        self._reached = True
        self._links_told.begin()

    def link_down(self, peer: str) -> None:
        self._turn.run(self._link_down, peer)

    def _link_down(self, peer: str) -> None:
        self._removed.link_down(peer)
        self._incoming.link_down(peer)
        self._broken_at[peer] = self._broker.clock.monotonic_ms()
        self.reach.link_down(peer)
        self.replicas.link_down(peer)
        self._links_told.begin()
        self.questions.link_down(peer)
        self.client_counts.link_down(peer)
        self._node_alarms.link_down(peer)
        self.hosts.asks.link_down(peer)
        self._parts.topology_progress.go_on()
        self._lost_links.down(peer)

    def _node_is(self, node: str, incarnation: int | None) -> None:
        """Tell the queues led here to drop the consumers of a node that is down, or has restarted."""
        self.replicas.incarnations[node] = incarnation
        if incarnation is None:
            self.client_counts.node_down(node)
        self._gone_nodes.begin()

    def _distrust(self) -> None:
        self.replicas.distrust()
        self._links_told.begin()

    def _tell_links(self) -> Iterator[None]:
        yield from self.replicas.tell()
        if self._reached:
            self._reached = False
            yield from self.hosts.reached()

    def _look_for_gone_nodes(self) -> Iterator[None]:
        for _, host in self.hosts.each_grouped():
            if host.group.is_leader:
                self._turn.contain(host, host.gone_members)
            yield

    def _handlers(self) -> dict[int, Handler]:
        """Handlers of frames that are not about a queue or its group."""
        parts = self._parts
        return {
            frames.REPLY: lambda peer, frame: self._replied(*frames.parse_reply(frame)),
            frames.APPLIED: lambda peer, frame: parts.topology_progress.heard(
                peer, frames.parse_applied(frame)
            ),
            frames.FURTHER: lambda peer, frame: parts.topology_progress.heard_of(
                *frames.parse_further(frame)
            ),
            frames.REACH: self._heard_reach,
            frames.WRITTEN: parts.disk_progress.heard_frame,
            frames.TIME: lambda peer, frame: self._heard_time(*frames.parse_time(frame)),
            frames.ASK: lambda peer, frame: self.questions.asked(peer, *frames.parse_ask(frame)),
            frames.ANSWER: self._heard_answer,
            frames.CLIENTS: self.client_counts.heard,
            frames.ALARM: self._node_alarms.heard,
            frames.QUERY: self.hosts.asks.asked,
            frames.TOLD: self.hosts.asks.told,
            frames.ABOUT: lambda peer, frame: self._founding.heard(
                peer, msgspec.msgpack.decode(frame[1:], type=About)
            ),
        }

    def _heard_reach(self, peer: str, frame: memoryview) -> None:
        self.reach.heard(peer, frames.parse_reach(frame))
        self._parts.topology_progress.reach_changed(peer)

    def _heard_answer(self, peer: str, frame: memoryview) -> None:
        number, last, part = frames.parse_answer(frame)
        self.questions.answered(peer, number, last=last, part=part)

    def _replied(self, token: str, batch: bytes) -> None:
        host = self._broker.replies.get(token)
        if host is not None:
            host.submit(*direct_replies.decode(batch))

    # -- time ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the links and the clocks of the groups until cancelled."""
        self._incoming.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.mesh.run, self, self._poll)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._leave)

    async def _tick(self) -> None:
        clock, tick_ms, looked = self._broker.clock, round(TICK_S * 1000), 0
        while True:
            await trio.sleep(until_beat_s(tick_ms, clock.monotonic_ms()))
            now = clock.monotonic_ms()
            founding = self.leads_topology and not (self._knows_nodes and self._all_are_members)
            look = founding or now - looked >= self._config.rebalance_ms
            if look:
                looked = now
            self._turn.run(self._ticked, now, look)

    def _ticked(self, now: int, look: bool) -> None:
        config = self._config
        self._incoming.look_at_clock()
        self.replicas.tick()
        if self.replicas.has_news:
            self._links_told.begin()
        if not self._ticks.under_way:
            self._ticks.begin()
        self.reach.tell()
        self._node_alarms.tell()
        self._hand_over.tick()
        if not self._handings.under_way:
            self._handings.begin()
        self._guests.tick()
        self._parts.topology_progress.go_on()
        if not self._is_behind:
            self._removed.tell(self._tell_about)
        self._removed.end_links()
        self.replication.tick()
        self.transactions.tick(now)
        self._give_up_losses()
        self._restate(now)
        for node, since in list(self._broken_at.items()):
            if now - since >= config.node_down_ms:
                del self._broken_at[node]
                self.replicas.down_since[node] = since
                self._node_is(node, None)
        if look:
            self._parts.disk_progress.tell(self.mesh.connected())
            self._tell_time(self.mesh.connected())
            self._forget_lost_disk()
            self.maintenance.look()

    def _give_up_losses(self) -> None:
        """Give up entries of the topology if the operator has named the first of them at this start.

        Before the topology is read, a node has no users, so no request could do this.
        """
        lost = self._config.accept_topology_loss and self.replicas.lost_entries.waiting_for_operator(GROUP)
        if lost and min(lost) == self._config.accept_topology_loss:
            self.replicas.lost_entries.accept(GROUP)

    def _restate(self, now: int) -> None:
        """Propose this node's topology for all if entries were given up that only its records may have."""
        if not self.roster.given_up.first:
            self._given_up_ms = now
        late = self.leads_topology and now - self._given_up_ms >= RESTATE_LATE_MS
        restatement = None if self._restating else self.catalog.restatement(late=late)
        if restatement is not None and not self._is_behind:
            self._restating = True
            self.replication.submit(restatement, self._restated)

    def _restated(self, result: Result | Refused) -> None:
        self._restating = False

    def _tell_time(self, peers: Iterable[str]) -> None:
        time = self._queue_time
        for peer in peers:
            if frames.TIME_FEATURE in self.mesh.features_of(peer):
                self.mesh.send(peer, frames.time(time.trust, time.now_ms()))

    def _heard_time(self, trust: int, queue_ms: int) -> None:
        if abs(self._queue_time.heard(trust, queue_ms)) >= TIME_CHANGED_MS:
            self._broker.time_notes.note()
            # The next expiry has moved.
            self._wakes.begin()

    def _wake_queues(self) -> Iterator[None]:
        for queue in list(self._broker.all_queues()):
            if not queue.deleted:
                self._turn.contain(queue.host, queue.host.wake)
                yield

    def _forget_lost_disk(self) -> None:
        """A lost disk no longer matters once this node has caught up with the topology."""
        group, founded, groups = self.replication.group, self._founding.founded, self._parts.groups
        if group is None or founded is None:
            return
        if founded.lost and not founded.lost_before and group.applied and not group.core.amnesiac:
            lost_before = groups.has_all_after(group.applied)
            self._note(msgspec.structs.replace(founded, lost_before=lost_before), lambda: None)
        self.replicas.topology_came(self._broker.topology.applied)
        self._guests.topology_came()
        if group.core.leader and not group.core.amnesiac:
            applied = min(group.applied, self._broker.topology.applied)
            groups.drop_unclaimed(applied)
            self.hosts.drop_unclaimed(applied)

    @property
    def leads_topology(self) -> bool:
        return self.replication.group is not None and self.replication.group.is_leader

    async def joined(self) -> None:
        """Wait until this node belongs to the cluster and has applied all earlier changes of the topology.
        Raises ClusterError if it has fewer workers than the cluster knows of it.
        """
        await self._patiently(self._join)
        self._check_workers()
        self._queue_time.serves()
        self._tell_time(self.mesh.connected())

    async def _join(self) -> None:
        await self._joined.wait()
        founded = self._founding.founded
        # A node with a new directory gets the log once the cluster has the node. What it sends before that is
        # not taken, and its later proposals would wait for that one for ever.
        while founded is not None and founded.lost and self.node not in self.roster.nodes:
            await trio.sleep(TICK_S)
        await self.mark()
        # The topology's leader does the same, later: clients must not find what ended with an earlier start.
        await self._until_applied(partial(self._broker.propose, NodeDown(self.node, self.incarnation - 1)))
        # A queue declared before the nodes are known would get too few members, or none.
        while not (self._knows_nodes and self.node in self.roster.nodes):
            await trio.sleep(TICK_S)

    def _check_workers(self) -> None:
        """Raise ClusterError if workers of this machine are missing, as with an empty directory they may: the
        cluster would wait for them for ever, and count their members of queues.
        """
        if not votes(self.node):
            return
        known = 1 + max(map(number_of, on_machine(self.node, self.roster.nodes)), default=0)
        count = len(self._own_workers)
        if count < known:
            raise ClusterError(
                f"the cluster knows {known} workers of node '{self.node}', and this start has {count}: start it with "
                f"--workers {known}, and the other nodes fill them. To have fewer, forget the node (mqctl cluster "
                f"forget {self.node}) while it is stopped, let it join, and start it with an empty data directory"
            )

    @property
    def _own_workers(self) -> list[str]:
        return on_machine(self.node, self._config.peer_addresses)

    @property
    def _knows_nodes(self) -> bool:
        group = self.replication.group
        return group is not None and not self.roster.unnamed(group.core.members.voters)

    @property
    def _all_are_members(self) -> bool:
        """True if all nodes have the topology, or are about to; also the workers of this machine."""
        group = self.replication.group
        if group is None:
            return False
        return {*self.roster.nodes, *self._own_workers} <= {*group.core.members.everyone()}

    async def _patiently(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait, and log from time to time which nodes are missing."""
        waiting = True
        while waiting:
            with trio.move_on_after(WAITING_S):
                await wait()
                waiting = False
            if waiting:
                logger.warning("waiting for the cluster; %s", "; ".join(self._awaits()))

    def _awaits(self) -> list[str]:
        """Return a text with the reason why this node cannot serve yet."""
        known, connected = self.roster.nodes or self._config.peer_addresses, self.mesh.connected()
        missing = [name for name in known if name != self.node and name not in connected]
        reasons = ["nodes that cannot be reached: " + ", ".join(missing)] if missing else []
        group, bringing = self.replication.group, list(self._founding.bringing())
        if bringing and not missing:
            reasons.append(f"node {bringing[0]} is bringing its data into the cluster")
        elif group is not None and (reason := obstacle(group)):
            reasons.append(reason)
        elif group is not None:
            last = max(group.core.leader_commit, group.core.last_index)
            reasons.append(
                f"this node has read the topology up to entry {group.applied} of {last}, and its start is not "
                "in the log yet"
            )
        return reasons or ["the nodes do not agree yet on what cluster this is"]

    async def mark(self) -> None:
        """Wait until a proposal of this node has been applied here."""
        await self._until_applied(partial(self.replication.submit, Mark()))

    async def _until_applied(self, propose: Callable[[Done], object]) -> None:
        """Propose something until it has been applied here, and by all nodes in reach."""
        while True:
            done = trio.Event()
            outcome: list[Result | Refused] = []

            def told(
                result: Result | Refused, done: trio.Event = done, outcome: list[Result | Refused] = outcome
            ) -> None:
                outcome.append(result)
                done.set()

            self._turn.run(propose, told)
            await done.wait()
            if not isinstance(outcome[0], Refused):
                return

    async def drain(self, timeout_s: float) -> None:
        """Hand over the groups that this node leads."""
        with trio.move_on_after(timeout_s):
            while self.give_leaders_away():
                await trio.sleep(TICK_S)

    def give_leaders_away(self) -> int:
        """Hand over groups that this node leads, and accept no others until `take_leaders`. Return how many
        are left.
        """
        left = self.maintenance.drain()
        self._turn.end()
        return left

    def take_leaders(self) -> None:
        """Lead groups again."""
        self.replicas.draining = False
        self.reach.tell()
        self._turn.end()
