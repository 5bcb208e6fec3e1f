"""This node as one of several: its links, its groups, and how it came to belong to the cluster.

A cluster is founded when all nodes that it is configured with see one another for the first time, each with an empty
data directory: then each notes the identities of all those directories. A node whose directory is not among the noted
ones has lost its disk, or is new; either way it has no memory, gives no vote for what it may have known, and is filled
by the others. One of them may have stood alone before: then the cluster begins with what it has, see adoption.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology import Result
from amqp_server.cluster import replies, settings
from amqp_server.cluster.administration import Administration
from amqp_server.cluster.adoption import Adoption
from amqp_server.cluster.belonging import (
    CHOOSE_ONE,
    REMOVED,
    TOO_LATE,
    TURNED_BACK,
    About,
    Directory,
    Founded,
    Seen,
)
from amqp_server.cluster.catalog import GROUP, Catalog, Mark
from amqp_server.cluster.errors import ClusterError
from amqp_server.cluster.groups import Groups
from amqp_server.cluster.hosts import ClusterHosts
from amqp_server.cluster.replication import ClusterReplication
from amqp_server.cluster.steward import Steward
from amqp_server.cluster.store import GroupStore
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
#: A node that has not applied a change by then is not waited for, ms.
SPREAD_MS = 1_000
#: Between two words of a node that waits for others before it can serve, s.
WAITING_S = 5.0
#: Links with a node that was taken away stay so long, ms.
LEAVE_MS = 2_000
#: Clients and whoever asked for it have so long to take their last bytes when the node has to go, s.
GOODBYE_S = 1.0


class ClusterNode:
    """See quorum_queue.links.ports.Events."""

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
        self.catalog.spread = self._spread
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
            up=self._up,
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
        self._abouts: dict[str, About] = {}
        #: Nodes that others have told of, for as long as the topology is not here.
        self._expected: dict[str, str] = {}
        self._founded = self._directory.founded
        #: The directory, if this node has stood alone with it, and the cluster is to begin with what is in it.
        self._brings = config.data_dir if self._founded is None and len(broker.users) else ""
        #: All others are there, and empty.
        self._awaited = trio.Event()
        #: Why this node has to go, once it has.
        self._out = trio.Event()
        self._why_out = ""
        #: Directory and start of the peers that there are links with.
        self._session_of: dict[str, tuple[str, int]] = {}
        #: What others have told of how far their disks are.
        self._written: dict[str, Seen] = {}
        self._told_written: dict[str, int] = {}
        #: Nodes that were taken away, and when their links end: they are to hear of it, ms.
        self._leaving: dict[str, int] = {}
        #: When links broke, for nodes that are not taken for down yet, ms.
        self._broken_at: dict[str, int] = {}
        self._joined = trio.Event()
        #: When this process was last seen running, and peers whose present session is from before it stood still.
        self._awake_ms = broker.clock()
        self._from_before: dict[str, None] = {}
        #: How far the topology is here, as the others were told, and how far it is there.
        self._told_applied = 0
        self._peers_applied: dict[str, int] = {}
        #: Who waits for all nodes to have applied an index.
        self._spreading: deque[tuple[int, int, Callable[[], None]]] = deque()
        if self._founded is not None:
            self.groups.lost_before = self._founded.forgotten_before

    def _addresses(self) -> dict[str, str]:
        return dict(peer.split("=", 1) for peer in self._config.peers)

    # -- belonging -------------------------------------------------------------------------------------------------

    def check_directory(self) -> None:
        """Raises ClusterError for a data directory that is not this node's of a cluster."""
        self._directory.check(self._config.data_dir, self.node)

    @property
    def stood_alone(self) -> bool:
        """Is `adopt` to be called before anything of the directory is read?"""
        return bool(self._brings)

    @property
    def began_empty(self) -> bool:
        """Did the cluster begin without any data?"""
        return self._founded is None or not self._founded.origin

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
            identities=self._identities(),
            free_bytes=disk.f_bavail * disk.f_frsize + environment.free_bytes(),
        )
        for _ in adoption.steps():
            durable = trio.Event()
            self._commits.request(durable.set)
            await durable.wait()
        self._founded, self._brings = self._directory.founded, ""
        assert self._founded is not None
        self.groups.found(self.store.recovered())
        self.groups.lost_before = self._founded.forgotten_before

    def start(self) -> None:
        """Go on as the member that this node was before, if it was one. After the topology's records were read."""
        now, up = self._broker.clock(), {self.node, *self.mesh.connected()}
        self._broken_at = {name: now for name in self._config.peer_addresses if name not in up}
        if self._founded is not None:
            self._open_and_tell()

    def _about(self, peer: str, about: About) -> None:
        # Who has not been in any cluster with this directory has promised nothing.
        promised = self._founded is not None or (about.founded is not None and not self._brings)
        if promised and self._directory.turned_back(about.seen, self.incarnation):
            self._go(TURNED_BACK)
        self._abouts[peer] = about
        if not self.catalog.nodes:
            # Whoever leads the topology may have joined later than this node was configured.
            self._expected = about.nodes
        if self._founded is not None:
            if about.brings:
                logger.error("%s", TOO_LATE.format(name=peer, data=about.brings, peer=self.node))
            return
        own = self._directory.identity
        if about.founded is not None:
            if self._brings:
                self._refuse(TOO_LATE.format(name=self.node, data=self._brings, peer=peer))
                return
            lost = about.founded.nodes.get(self.node) != own
            if lost:
                logger.warning("this node's data directory is new to the cluster: the other nodes fill it")
            self._belong(msgspec.structs.replace(about.founded, lost=lost, lost_before=0, name=self.node))
            return
        ours = sorted(self._config.peer_addresses)
        if about.peers != ours:
            logger.error(
                "node %s is configured with the peers %s, this node with %s: no cluster is founded before they agree",
                *(peer, ", ".join(about.peers), ", ".join(ours)),
            )
        bringing = {name: known.brings for name, known in self._abouts.items()} | {self.node: self._brings}
        bringing = {name: data for name, data in sorted(bringing.items()) if data}
        if len(bringing) > 1:
            self._choose_one(bringing)
            return
        known = {name: known for name, known in self._abouts.items() if known.peers == ours}
        if any(name not in known for name in ours if name != self.node):
            return
        if self._brings:
            self._awaited.set()
        elif not bringing:
            self._belong(Founded(self._identities(), name=self.node))

    def _identities(self) -> dict[str, str]:
        """Return the directories of all nodes, which have told of theirs."""
        others = {
            name: self._abouts[name].identity for name in self._config.peer_addresses if name != self.node
        }
        return others | {self.node: self._directory.identity}

    def _choose_one(self, bringing: dict[str, str]) -> None:
        """Several nodes have stood alone. Their data can't be made one."""
        (first, first_data), (second, second_data) = list(bringing.items())[:2]
        why = CHOOSE_ONE.format(first=first, first_data=first_data, second=second, second_data=second_data)
        if self._brings:
            self._refuse(why)
        else:
            logger.error("%s", why)

    def _belong(self, founded: Founded) -> None:
        self._founded = founded
        self.groups.lost_before = founded.forgotten_before
        self._note(founded, self._open_and_tell)

    def _note(self, founded: Founded, done: Callable[[], None]) -> None:
        self._directory.note_founded(founded)
        self._commits.request(done)

    def _open_and_tell(self) -> None:
        self._open_catalog()
        for peer in self.mesh.connected():
            self._tell_about(peer)

    def _open_catalog(self) -> None:
        assert self._founded is not None
        origin = self._founded.origin
        members = Members((origin,) if origin else tuple(sorted(self._founded.nodes)))
        group = self.groups.start(self.catalog, GROUP, members, lost=self._founded.lost)
        self._nodes_changed()
        self.replication.start(group)
        self._joined.set()

    def _tell_about(self, peer: str) -> None:
        said = self._written.get(peer, Seen())
        seen = msgspec.structs.replace(said, incarnation=self.catalog.incarnation_of(peer))
        about = About(
            self._directory.identity,
            self._founded,
            sorted(self._config.peer_addresses),
            seen,
            self._brings,
            self.catalog.nodes,
        )
        self.mesh.send(peer, [bytes((frames.ABOUT,)), msgspec.msgpack.encode(about)])

    def _admit(self, name: str) -> bool:
        return name in (self.catalog.nodes or self._expected)

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
                self._go(REMOVED)
            elif name not in nodes:
                self._leaving[name] = self._broker.clock() + LEAVE_MS
        self.catalog.removed.clear()

    def _end_links(self, now: int) -> None:
        """End the links with nodes that were taken away and had time to hear of it."""
        for name in [name for name, at in self._leaving.items() if at <= now]:
            del self._leaving[name]
            if name not in self.catalog.nodes:
                self.mesh.remove_peer(name)

    # -- going -----------------------------------------------------------------------------------------------------

    def _go(self, why: str) -> None:
        """This node is not to be a part of the cluster any more, nor to begin again as if it were."""
        if self._why_out:
            return
        logger.critical("%s", why)
        self._why_out = why
        self._directory.note_out(why)
        self._commits.request(self._out.set)

    def _refuse(self, why: str) -> None:
        """This node can't be a part of the cluster with the directory that it has, which may be used otherwise."""
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

    # -- what all nodes have ---------------------------------------------------------------------------------------

    def _up(self) -> list[str]:
        """Return the other nodes that can be reached and know the topology."""
        return [peer for peer in self.mesh.connected() if self._peers_applied.get(peer)]

    def _spread(self, index: int, then: Callable[[], None]) -> None:
        """Call back when the nodes in reach have applied this: a client may go on at any of them."""
        self._spreading.append((index, self._broker.clock() + SPREAD_MS, then))
        self._spread_further()

    def _spread_further(self) -> None:
        applied = self._peers_applied
        while self._spreading:
            index, deadline_ms, then = self._spreading[0]
            lag = any(applied.get(peer, 0) < index for peer in self.mesh.connected())
            if lag and self._broker.clock() < deadline_ms:
                return
            self._spreading.popleft()
            then()

    def _tell_applied(self) -> None:
        group = self.replication.group
        # Before a node has a word in the log it is filled, and no place for new queues.
        if group is not None and group.applied > self._told_applied and self.catalog.landed():
            self._told_applied = group.applied
            for peer in self.mesh.connected():
                self.mesh.send(peer, frames.applied(group.applied))

    def _tell_written(self, peers: Iterable[str]) -> None:
        """Have these nodes know how far the disk is: see belonging."""
        written = self._environment.written
        for peer in peers:
            if self._told_written.get(peer) != written:
                self._told_written[peer] = written
                self.mesh.send(peer, frames.written(written))

    # -- links -----------------------------------------------------------------------------------------------------

    def link_up(self, peer: str, hello: Hello) -> None:
        self._broken_at.pop(peer, None)
        self._tell_about(peer)
        self._peers_applied[peer] = 0
        self.mesh.send(peer, frames.applied(self._told_applied))
        self._told_written.pop(peer, None)
        self._tell_written([peer])
        self._session_of[peer] = (hello.identity, hello.incarnation)
        self._node_is(peer, hello.incarnation)
        self.replicas.link_up(peer)
        self.hosts.reached()

    def link_down(self, peer: str) -> None:
        self._from_before.pop(peer, None)
        self._broken_at[peer] = self._broker.clock()
        self.replicas.link_down(peer)
        self.guests.link_down(peer)
        self._spread_further()
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
            self._peers_applied[peer] = frames.parse_applied(frame)
            self._spread_further()
        elif kind == frames.LEAVING:
            self._peer_leaves(peer, frames.parse_group(frame))
        elif kind == frames.LEFT:
            self.hosts.left(frames.parse_group(frame))
        elif kind == frames.WRITTEN:
            identity, said_in = self._session_of[peer]
            self._written[peer] = Seen(0, identity, said_in, frames.parse_written(frame))
        elif kind == frames.ABOUT:
            self._about(peer, msgspec.msgpack.decode(frame[1:], type=About))
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
        self._tell_applied()
        self.guests.flush()
        # With what leaves anyway, above all the answers that rest on a commit: by itself it would wake the others.
        self._tell_written(self.mesh.waiting())
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
            self._spread_further()
            self._end_links(now)
            self.replication.tick()
            for node, since in list(self._broken_at.items()):
                if now - since >= config.node_down_ms:
                    del self._broken_at[node]
                    self._node_is(node, None)
            founding = self.leads_topology and not self.catalog.nodes
            if founding or now - looked >= config.rebalance_ms:
                looked = now
                self._tell_written(self.mesh.connected())
                self._settle_memory()
                self.steward.look()
            self._end_turn()

    def _began(self, index: int) -> None:
        """This node's first word is in the log: no disk can have forgotten a queue that is declared after it."""
        if self._founded is not None and self._founded.lost and not self._founded.lost_before:
            self.groups.lost_before = min(index, self.groups.lost_before)

    def _settle_memory(self) -> None:
        """Once the topology is known again, a disk that was lost is a thing of the past."""
        group, founded = self.replication.group, self._founded
        if group is None or founded is None:
            return
        if founded.lost and not founded.lost_before and group.applied and not group.core.amnesiac:
            self._founded = msgspec.structs.replace(
                founded, lost_before=min(group.applied, self.groups.lost_before)
            )
            self.groups.lost_before = self._founded.lost_before
            self._note(self._founded, lambda: None)
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
                bringing = [name for name, about in self._abouts.items() if about.brings]
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
