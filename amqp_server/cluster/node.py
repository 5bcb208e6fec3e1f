"""This node as one of several: its links, its groups, and what it does when it belongs to the cluster, or has to go."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec
import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology import Result
from amqp_server.cluster import replies, settings
from amqp_server.cluster.administration import Administration
from amqp_server.cluster.adoption import Adoption
from amqp_server.cluster.belonging import REMOVED, About, Directory, Founded
from amqp_server.cluster.catalog import GROUP, Catalog, Mark
from amqp_server.cluster.errors import ClusterError
from amqp_server.cluster.founding import Founding
from amqp_server.cluster.groups import Groups
from amqp_server.cluster.hosts import ClusterHosts
from amqp_server.cluster.replication import ClusterReplication
from amqp_server.cluster.spread import Spread
from amqp_server.cluster.steward import Steward
from amqp_server.cluster.store import GroupStore
from amqp_server.cluster.witnesses import Witnesses
from amqp_server.config import Config, parse_address
from persistence.environment import Environment
from persistence.journal import Journal
from quorum_queue.cluster import events, frames
from quorum_queue.cluster.guests import Guests
from quorum_queue.cluster.ports import Commits
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.handshake import Hello
from quorum_queue.links.mesh import Mesh
from quorum_queue.links.ports import Peer
from quorum_queue.machine.codec import CodecError as BatchError
from quorum_queue.ports import Refused
from quorum_queue.raft.errors import CodecError
from quorum_queue.raft.members import Members
from quorum_queue.raft.options import Options

logger = logging.getLogger("mqd.cluster")

#: One tick of the election clock, s.
TICK_S = 0.05
#: Between two words of a node that waits for others before it can serve, s.
WAITING_S = 5.0
#: Links with a node that was taken away stay so long, ms.
LEAVE_MS = 2_000
#: A node that was taken away and goes on is let in so often, to be told again, ms.
REMIND_MS = 10_000
#: Clients and whoever asked for it have so long to take their last bytes when the node has to go, s.
GOODBYE_S = 1.0


class ClusterNode:
    """See quorum_queue.links.ports.Events, and founding.Fate."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        environment: Environment,
        commits: Commits,
        listening: socket.socket,
        *,
        end_turn: Callable[[], None],
    ) -> None:
        self._config = config
        self._broker = broker
        self._environment = environment
        self._commits = commits
        self._end_turn = end_turn
        self.node = config.node
        self._directory = Directory(broker.metadata, environment.node_id, environment.written)
        self.incarnation = self._directory.begin(broker.clock())
        # Who has stood alone brings what it has.
        brings = config.data_dir if len(broker.users) else ""
        self._founding = Founding(
            self._directory, self.node, list(config.peer_addresses), brings, self.incarnation, self
        )
        # Others may hear of this start, so it must not be forgotten.
        environment.flush()
        self.store = GroupStore(environment)
        self.mesh = Mesh(
            node=config.node,
            incarnation=self.incarnation,
            identity=environment.node_id,
            cluster="mqd",
            listen=listening,
            peers=[Peer(name, *address) for name, address in config.peer_addresses.items()],
            secret=settings.secret(config),
            tls=settings.tls(config),
            options=settings.link_options(config),
            events=self,
            admit=self._admit,
        )
        self._spread = Spread(self.mesh, broker.clock)
        self._witnesses = Witnesses(self.mesh, lambda: environment.written)
        self.replicas = Replicas(
            config.node,
            self.incarnation,
            store=self.store,
            commits=commits,
            links=self.mesh,
            clock=broker.clock,
            timers=broker.timers,
            options=settings.replication_options(config),
            raft=Options(election_ticks=max(2, round(config.election_ms / 1000 / TICK_S))),
        )
        self.catalog = Catalog(config.node, self.incarnation, broker.topology)
        self.catalog.nodes_changed = self._nodes_changed
        self.catalog.spread = self._spread.wait
        self.catalog.began = self._began
        self.replication = ClusterReplication(
            config.node,
            self.incarnation,
            self.catalog,
            clock=broker.clock,
            timeout_ms=config.change_timeout_ms,
        )
        self.groups = Groups(self.replicas, self.store, self.store.recovered())
        self.hosts = ClusterHosts(
            broker,
            self.groups,
            nodes=lambda: self.catalog.staying,
            up=self._spread.up,
            is_known=self.catalog.is_known,
        )
        self.guests = Guests(self.mesh, host_of=self.hosts.host_of, dirty=self._dirty)
        self.steward = Steward(
            self.replicas,
            self.catalog,
            self.hosts,
            self.replication,
            addresses=self._addresses,
        )
        self.replicas.early.may_come = self._may_come
        self.administration = Administration(self)
        #: All others are there, and empty.
        self._awaited = trio.Event()
        #: Why this node has to go, once it has.
        self._out = trio.Event()
        self._why_out = ""
        #: Nodes that were taken away, and when their links end: they are to hear of it, ms.
        self._leaving: dict[str, int] = {}
        #: Nodes that were taken away, there is a link with, and were told so.
        self._told_removed: dict[str, None] = {}
        #: When nodes that were taken away and told so may be told again, ms.
        self._reminded: dict[str, int] = {}
        #: When links broke, for nodes that are not taken for down yet, ms.
        self._broken_at: dict[str, int] = {}
        self._joined = trio.Event()
        #: When this process was last seen running, and peers whose present session is from before it stood still.
        self._awake_ms = broker.clock()
        self._from_before: dict[str, None] = {}
        founded = self._founding.founded
        if founded is not None:
            self.groups.lost_before = founded.forgotten_before

    def _addresses(self) -> dict[str, str]:
        return dict(peer.split("=", 1) for peer in self._config.peers)

    # -- belonging -------------------------------------------------------------------------------------------------

    def check_directory(self) -> None:
        """Raises ClusterError for a data directory that is not this node's of a cluster."""
        self._directory.check(self._config.data_dir, self.node)

    @property
    def stood_alone(self) -> bool:
        """Is `adopt` to be called before anything of the directory is read?"""
        return bool(self._founding.brings)

    @property
    def began_empty(self) -> bool:
        """Did the cluster begin without any data?"""
        founded = self._founding.founded
        return founded is None or not founded.origin

    async def adopt(self, journal: Journal) -> None:
        """Wait for the other nodes, all empty, and make this directory that of the first node. Raises ClusterError."""
        await self._patiently(self._awaited.wait)
        environment, config = self._environment, self._config
        disk = os.statvfs(config.data_dir)
        adoption = Adoption(
            self._broker,
            journal,
            self.store,
            self._directory,
            addresses=self._addresses(),
            identities=self._founding.identities(),
            free_bytes=disk.f_bavail * disk.f_frsize + environment.free_bytes(),
        )
        for _ in adoption.steps():
            durable = trio.Event()
            self._commits.request(durable.set)
            await durable.wait()
        founded = self._founding.noted()
        self.groups.found(self.store.recovered())
        self.groups.lost_before = founded.forgotten_before

    def start(self) -> None:
        """Go on as the member that this node was before, if it was one. After the topology's records were read."""
        now, up = self._broker.clock(), {self.node, *self.mesh.connected()}
        self._broken_at = {name: now for name in self._config.peer_addresses if name not in up}
        if self._founding.founded is not None:
            self._open_and_tell()

    def belong(self, founded: Founded) -> None:
        self.groups.lost_before = founded.forgotten_before
        self._note(founded, self._open_and_tell)

    def complete(self) -> None:
        self._awaited.set()

    def _note(self, founded: Founded, done: Callable[[], None]) -> None:
        self._founding.note(founded)
        self._commits.request(done)

    def _open_and_tell(self) -> None:
        self._open_catalog()
        for peer in self.mesh.connected():
            self._tell_about(peer)

    def _open_catalog(self) -> None:
        founded = self._founding.founded
        assert founded is not None
        members = Members((founded.origin,) if founded.origin else tuple(sorted(founded.nodes)))
        group = self.groups.start(self.catalog, GROUP, members, lost=founded.lost)
        self._nodes_changed()
        self.replication.start(group)
        self._joined.set()

    def _tell_about(self, peer: str) -> None:
        incarnation = self.catalog.incarnation_of(peer)
        seen = msgspec.structs.replace(self._witnesses.seen(peer), incarnation=incarnation)
        removed_at = 0 if self._is_behind else self.catalog.removed_at(peer)
        about = self._founding.tell(seen, self.catalog.nodes, removed_at)
        self.mesh.send(peer, [bytes((frames.ABOUT,)), msgspec.msgpack.encode(about)])

    def _admit(self, name: str) -> bool:
        if name in (self.catalog.nodes or self._founding.expected):
            return True
        # Who was cut off when it was taken away is to hear of it.
        removed = not self._is_behind and self.catalog.removed_at(name) > 0
        return removed and self._reminded.get(name, 0) <= self._broker.clock()

    @property
    def applied(self) -> int:
        group = self.replication.group
        return group.applied if group is not None else 0

    @property
    def _is_behind(self) -> bool:
        """May others know more of who belongs to the cluster?"""
        group = self.replication.group
        return group is None or group.behind or bool(group.core.amnesiac)

    def _nodes_changed(self) -> None:
        """The cluster has other nodes: have links with them, and with no others."""
        nodes = self.catalog.nodes
        configured = self._config.peer_addresses
        for name, address in sorted(nodes.items()):
            parsed = configured.get(name) or parse_address(address)
            if name != self.node and parsed is not None:
                self.mesh.add_peer(Peer(name, *parsed))
        for name in self.catalog.removed:
            if name == self.node and name not in nodes:
                self.go(REMOVED)
            elif name not in nodes:
                self._leaving[name] = self._broker.clock() + LEAVE_MS
        self.catalog.removed.clear()

    def _end_links(self, now: int) -> None:
        """End the links with nodes that were taken away and had time to hear of it."""
        for name in [name for name, at in self._leaving.items() if at <= now]:
            del self._leaving[name]
            if name not in self.catalog.nodes:
                if name in self._told_removed:
                    self._reminded[name] = now + REMIND_MS
                self.mesh.remove_peer(name)

    def _tell_the_removed(self, now: int) -> None:
        """Nobody else may tell them: they get nothing of the log any more."""
        if self._is_behind:
            return
        for name in self.mesh.connected():
            if name not in self._told_removed and self.catalog.removed_at(name):
                self._told_removed[name] = None
                self._tell_about(name)
                self._leaving.setdefault(name, now + LEAVE_MS)

    # -- going -----------------------------------------------------------------------------------------------------

    def go(self, why: str) -> None:
        if self._why_out:
            return
        logger.critical("%s", why)
        self._why_out = why
        self._directory.note_out(why)
        self._commits.request(self._out.set)

    def refuse(self, why: str) -> None:
        if not self._why_out:
            logger.critical("%s", why)
            self._why_out = why
            self._out.set()

    async def _leave(self) -> None:
        """Raises ClusterError when this node has to go."""
        await self._out.wait()
        for session in list(self._broker.sessions.values()):
            session.force_close("broker forced connection closure with reason 'shutdown'")
        self._end_turn()
        await trio.sleep(GOODBYE_S)
        raise ClusterError(self._why_out)

    def _may_come(self, group_id: int) -> bool:
        return group_id > self._broker.topology.applied

    # -- links -----------------------------------------------------------------------------------------------------

    def link_up(self, peer: str, hello: Hello) -> None:
        self._broken_at.pop(peer, None)
        self._tell_about(peer)
        self._spread.link_up(peer)
        self._witnesses.link_up(peer, hello)
        self._node_is(peer, hello.incarnation)
        self.replicas.link_up(peer)
        self.hosts.reached()

    def link_down(self, peer: str) -> None:
        self._told_removed.pop(peer, None)
        self._from_before.pop(peer, None)
        self._broken_at[peer] = self._broker.clock()
        self.replicas.link_down(peer)
        self.guests.link_down(peer)
        self._spread.go_on()
        for host in list(self.hosts.remote.values()):
            host.link_down(peer)

    def _look_at_clock(self) -> None:
        """Find out whether this process stood still so long that the others may have gone on without it.

        What waits in its sockets then is the past. It might be handed to clients as news: messages that others have
        got and acked meanwhile. So all sessions begin anew, and this node leads nothing until it is told how things are.
        """
        now = self._broker.clock()
        asleep_ms, self._awake_ms = now - self._awake_ms, now
        if asleep_ms < self._config.cluster_dead_ms + self._config.node_down_ms // 2:
            return
        logger.warning("this process stood still for %d ms: asking the other nodes how things are", asleep_ms)
        self._from_before = dict.fromkeys(self.mesh.connected())
        for peer in self._from_before:
            self.mesh.drop(peer)
        self.replicas.distrust()

    def _node_is(self, node: str, incarnation: int | None) -> None:
        """Have the queues led here let go of the consumers of a node that is down, or was and is back."""
        self.replicas.incarnations[node] = incarnation
        for host in self.hosts.grouped.values():
            if host.group.is_leader:
                host.gone_members()

    def received(self, peer: str, found: list[memoryview]) -> None:
        self._look_at_clock()
        if peer in self._from_before:
            return
        try:
            for frame in found:
                self._frame(peer, frame)
        except (frames.FrameError, CodecError, BatchError, msgspec.MsgspecError) as error:
            logger.error("node %s sent what is no frame of this version: %s", peer, error)
            self.mesh.drop(peer)

    def _frame(self, peer: str, frame: memoryview) -> None:
        kind = frame[0]
        if kind == frames.QUEUE:
            self.guests.received(peer, frame)
        elif kind == frames.EVENTS:
            queue_id, head, bodies = frames.parse_events(frame)
            host = self.hosts.remote.get(queue_id)
            if host is not None:
                host.received(events.decode(head), bodies)
        elif kind == frames.REPLY:
            self._replied(*frames.parse_reply(frame))
        elif kind == frames.APPLIED:
            self._spread.heard(peer, frames.parse_applied(frame))
        elif kind == frames.LEAVING:
            self._peer_leaves(peer, frames.parse_group(frame))
        elif kind == frames.LEFT:
            self.hosts.left(frames.parse_group(frame))
        elif kind == frames.WRITTEN:
            self._witnesses.heard(peer, frames.parse_written(frame))
        elif kind == frames.ABOUT:
            self._founding.heard(peer, msgspec.msgpack.decode(frame[1:], type=About))
        else:
            self.replicas.received(peer, frame)

    def _peer_leaves(self, peer: str, group_id: int) -> None:
        """A node that is to leave a group asks whether it has left."""
        group = self.replicas.groups.get(group_id)
        if group is None:
            return
        core = group.core
        # Only the leader knows: a member that comes just now has yet to be told who the others are.
        if group.is_leader and core.members_index <= core.commit and peer not in core.members.everyone():
            self.mesh.send(peer, frames.left(group_id))

    def _replied(self, token: str, batch: bytes) -> None:
        host = self._broker.reply_hosts.get(token)
        if host is not None:
            host.pending += replies.decode(batch)
            self._dirty(host)

    def turn_ended(self) -> None:
        self._end_turn()

    def _dirty(self, host: object) -> None:
        self._broker.dirty[host] = None
        self._broker.want_turn()

    # -- turns and time --------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Carry out what the groups ask for; return whether there was anything."""
        return self.replicas.turn()

    def flush(self) -> None:
        """Send what the turn has left for other nodes."""
        group = self.replication.group
        # Before a node has a word in the log it is filled, and no place for new queues.
        if group is not None and self.catalog.landed():
            self._spread.tell(group.applied)
        self.guests.flush()
        # With what leaves anyway, above all the answers that rest on a commit: by itself it would wake the others.
        self._witnesses.tell(self.mesh.waiting())
        self.mesh.flush()

    async def run(self) -> None:
        """Keep the links and the clocks of the groups until cancelled."""
        self._awake_ms = self._broker.clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.mesh.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._leave)

    async def _tick(self) -> None:
        config = self._config
        looked = 0
        while True:
            await trio.sleep(TICK_S)
            self._look_at_clock()
            now = self._broker.clock()
            self.replicas.tick(self.mesh.heard_within(config.cluster_dead_ms / 1000))
            self.guests.tick()
            self._spread.go_on()
            self._tell_the_removed(now)
            self._end_links(now)
            self.replication.tick()
            for node, since in list(self._broken_at.items()):
                if now - since >= config.node_down_ms:
                    del self._broken_at[node]
                    self._node_is(node, None)
            founding = self.leads_topology and not self.catalog.nodes
            if founding or now - looked >= config.rebalance_ms:
                looked = now
                self._witnesses.tell(self.mesh.connected())
                self._settle_memory()
                self.steward.look()
            self._end_turn()

    def _began(self, index: int) -> None:
        """This node's first word is in the log: no disk can have forgotten a queue that is declared after it."""
        founded = self._founding.founded
        if founded is not None and founded.lost and not founded.lost_before:
            self.groups.lost_before = min(index, self.groups.lost_before)

    def _settle_memory(self) -> None:
        """Once the topology is known again, a disk that was lost is a thing of the past."""
        group, founded = self.replication.group, self._founding.founded
        if group is None or founded is None:
            return
        if founded.lost and not founded.lost_before and group.applied and not group.core.amnesiac:
            self.groups.lost_before = min(group.applied, self.groups.lost_before)
            self._note(msgspec.structs.replace(founded, lost_before=self.groups.lost_before), lambda: None)
        self.replicas.topology_came()
        if group.core.leader and not group.core.amnesiac:
            self.groups.drop_unclaimed(min(group.applied, self._broker.topology.applied))

    @property
    def leads_topology(self) -> bool:
        return self.replication.group is not None and self.replication.group.is_leader

    async def joined(self) -> None:
        """Wait until this node belongs to the cluster and knows all that was decided before."""
        await self._patiently(self._join)

    async def _join(self) -> None:
        await self._joined.wait()
        await self.mark()

    async def _patiently(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait, and say now and then for whom."""
        waiting = True
        while waiting:
            with trio.move_on_after(WAITING_S):
                await wait()
                waiting = False
            if waiting:
                missing = [
                    name
                    for name in self.catalog.nodes or self._config.peer_addresses
                    if name != self.node and name not in self.mesh.connected()
                ]
                bringing = list(self._founding.bringing())
                if missing or not bringing:
                    what = "nodes that cannot be reached: " + ", ".join(missing)
                else:
                    what = f"node {bringing[0]} makes its data that of the cluster"
                logger.warning("waiting for the cluster; %s", what)

    async def mark(self) -> None:
        """Wait until a proposal of this node has been applied here."""
        while True:
            done = trio.Event()
            outcome: list[Result | Refused] = []

            def told(
                result: Result | Refused, done: trio.Event = done, outcome: list[Result | Refused] = outcome
            ) -> None:
                outcome.append(result)
                done.set()

            self.replication.submit(Mark(), told)
            self._broker.want_turn()
            await done.wait()
            if not isinstance(outcome[0], Refused):
                return

    async def drain(self, timeout_s: float) -> None:
        """Hand over what this node leads."""
        with trio.move_on_after(timeout_s):
            while self.steward.drain():
                self._end_turn()
                await trio.sleep(TICK_S)
