"""A node of the simulated cluster: the real replication over a disk in memory, below Trio and below AMQP."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from amqp_server.cluster.groups import Groups
from amqp_server.cluster.maintenance import Maintenance
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.store import GroupStore
from amqp_server.cluster.wiring import FEATURES
from amqp_server.config import Config
from amqp_server.turn import Turn
from persistence.commits.stepped import SteppedCommit
from quorum_queue.clock import KNOWN, QueueTime, TimeNote
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.dispatch import Dispatch
from quorum_queue.cluster.handover import HandOver
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.queues.guests import Guests
from quorum_queue.cluster.queues.undeclared import UndeclaredQueues
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.local_host import NodeServices
from quorum_queue.memory import MemoryBudget
from quorum_queue.raft.options import Options
from quorum_queue.steps import Steps
from tests.clocks import ManualClock
from tests.persistence import disk_steps
from tests.quorum_queue.cluster.broker import (
    Declared,
    Event,
    Letters,
    Proposals,
    SimulatedQueue,
    Timers,
    WatchedHosts,
)
from tests.quorum_queue.cluster.network import LinkSession, Network
from tests.stores.memory import Faults, MemoryEnvironment
from tests.turns import Violation, strict_boundary

if TYPE_CHECKING:
    from tests.quorum_queue.cluster.clients import Client

TICK_MS = 50
#: The time on all wall clocks at first.
WALL_MS = 1_000_000_000
#: Ticks of silence after which a session ends.
DEAD_TICKS = 3
#: Numbers from one start of a node to the next.
STARTS_APART = 100
#: Ticks between two looks of the maintenance.
LOOK_TICKS = 7
#: Sizes of the write-ahead log in records, 0 for none; each node has one of them.
LOG_RECORDS = (0, 2, 10)
#: Small limits, so that runs reach them.
RAFT = Options(
    election_ticks=4, lost_ticks_jitter=2, append_bytes_max=1500, probe_bytes_max=300, inflight_appends_max=3,
    inflight_bytes_max=3000, unanswered_bytes=4000, apply_bytes_max=1500, cache_bytes_max=4000, snapshot_ticks=20,
)  # fmt: skip
REPLICATION = ReplicationOptions(
    entry_bytes=800, batch_bytes=400, snapshot_entries=12, snapshot_bytes=3000, snapshot_growth=1,
    log_bytes_max=4000, piece_bytes=300, transfer_bytes_max=600, unsent_bytes_max=4000, node_down_ms=400, disk_stall_ms=800,
    bodies_bytes=6000, reach_ms=200, steady_ms=2000, handover_groups=2,
)  # fmt: skip


class Peers:
    """See amqp_server.turn.Peers. The simulated network takes frames as they are sent."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def turn_begins(self) -> None: ...

    @property
    def dirty(self) -> object:
        return self._replicas.dirty

    def take_dirty(self) -> list[Group]:
        return self._replicas.take_dirty()

    def carry_out(self, group: Group, turn: Turn) -> None:
        self._replicas.carry_out(group, turn)

    def touch_again(self, groups: Iterable[Group]) -> None:
        self._replicas.touch_again(groups)

    def write(self) -> None:
        self._replicas.write()

    def flush(self) -> None: ...


class SimulatedNode:
    """See quorum_queue.cluster.replicas.Links, and amqp_server.cluster.node, for which it stands in."""

    def __init__(
        self,
        name: str,
        names: tuple[str, ...],
        network: Network,
        events: list[Event],
        *,
        seed: int,
        rate: float,
    ) -> None:
        self.name = name
        self.names = names
        self.network = network
        self.events = events
        #: The number of events that this node knows.
        self.known = len(events)
        self.alive = False
        #: Snapshots that the node took over.
        self.restored = 0
        self.incarnation = 0
        #: Empty for a node of the version before.
        self.features: tuple[str, ...] = FEATURES
        self.environment = MemoryEnvironment(Faults(seed=seed))
        self.environment.log_records_max = Random(f"log {seed}").choice(LOG_RECORDS)
        #: The share of reads that wait for the disk. None in scenes, which decide about reads themselves.
        self.slow_reads = 0.0
        self._reads = Random(seed)
        #: Chooses what the disk does next, and what it was.
        self._disk_steps = Random(f"disk {seed}")
        self.disk_did = ""
        self.sessions: dict[str, LinkSession] = {}
        self.clock = ManualClock(1000 + seed % 977, WALL_MS)
        #: The note of the queue time on its disk: the cluster has existed for a while.
        self.time_note: TimeNote | None = QueueTime(self.clock).note()
        self.rate = rate
        self.replication = REPLICATION
        #: See amqp_server.cluster.groups.Groups.
        self.lost_before = 0
        #: Sealed queues whose deletion this node has proposed.
        self.deletions: dict[Declared, None] = {}
        #: The version of each queue's members that this node knows.
        self.versions: dict[int, int] = {}
        self.clients: list[Client] = []
        self.silent: dict[str, int] = {}
        self.ticks = 0
        self.changed: Callable[[Any], None] = lambda operation: None
        self.sent: Callable[[str, str, bytes], None] = lambda sender, to, frame: None

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start from the data on the disk."""
        # A real node takes a time as its number, so there are numbers between two starts here, too.
        self.incarnation += STARTS_APART
        self.alive = True
        self.silent = {}
        self.full = False
        self.store = GroupStore(self.environment)
        self.disk = SteppedCommit(self.environment, logs=True, on_full=self._disk_full)
        self.environment.reader.waits = lambda: self._reads.random() < self.slow_reads
        self.timers = Timers()
        nothing: Any = None
        boundary = strict_boundary()
        self.queue_time = QueueTime(self.clock, self.time_note)
        #: Nodes that have told their time since this start.
        self.told_time: dict[str, None] = {}
        self.replicas = Replicas(
            self.name, self.incarnation, store=self.store, commits=self.disk, links=self, clock=self.clock,
            timers=self.timers, options=self.replication, raft=RAFT, boundary=boundary,
        )  # fmt: skip
        self.reach = Reach(
            self.name, self, self.clock, leads=lambda: self.replicas.takes_leaders, options=self.replication
        )
        self.hand_over = HandOver(self.replicas, self.reach)
        self.turn = Turn(self.disk, Peers(self.replicas), lambda: None, boundary)
        services = NodeServices(
            clock=self.clock, queue_time=self.queue_time, turn=self.turn, memory=MemoryBudget(1 << 30), timers=self.timers, dead_letters=Letters(self),
            journal=nothing, spill=nothing, commits=self.disk, marks=nothing,
        )  # fmt: skip
        self.groups = Groups(self.replicas, self.store, self.store.recovered(), lost_before=self.lost_before)
        self.roster = roster = Roster()
        self.replicas.version = lambda: roster.version
        roster.nodes = dict.fromkeys(self.names, "here")
        topology_progress: Any = SimpleNamespace(up=self.connected)
        self.hosts = WatchedHosts(
            Config(),
            services,
            self.environment,
            self.groups,
            roster,
            topology_progress,
            self.reach,
            nothing,
        )
        # All queues are declared before the nodes start.
        undeclared = UndeclaredQueues(lambda queue_id: False, 0)
        self.guests = Guests(self, self.turn, self.hosts.host_of, undeclared)
        self.dispatch = Dispatch(self.replicas, self, self.guests, self.hosts, self.reach)
        replication: Any = Proposals(self._members_changed)
        self.maintenance = Maintenance(
            self.replicas,
            roster,
            self.hosts,
            replication,
            self.reach,
            self.turn,
            addresses={},
            propose=replication.propose,
            joined_at=lambda: 0,
        )
        self.links_told = Steps(self.turn, self.replicas.tell, "links could not be told")
        self.group_ticks = Steps(self.turn, self.replicas.ticks, "no tick")
        self.broken_at = {name: self.now_ms for name in self.names if name != self.name}
        self.queues: dict[str, SimulatedQueue] = {}
        there: dict[int, Declared] = {}
        for declared, exists in self.events[: self.known]:
            if exists:
                there[declared.queue_id] = declared
            else:
                del there[declared.queue_id]
        for declared in there.values():
            self.declare(declared)
        self.replicas.unopened.topology_index = self.last_id
        self.groups.drop_unclaimed(self.last_id)
        # The node serves nobody before this.
        self.environment.groups.stood_still.clear()
        self.end_turn()

    @property
    def last_id(self) -> int:
        """Return the last queue that this node has heard of, whether it is still there or not."""
        return max((event.declared.queue_id for event in self.events[: self.known]), default=0)

    def declare(self, declared: Declared) -> None:
        queue: Any = SimulatedQueue(self, declared, self.versions.get(declared.queue_id, 0))
        self.queues[declared.name] = queue
        queue.host = self.hosts.make(queue, None)

    def _members_changed(self, operation: Any) -> None:
        self.changed(operation)

    def crash(self, *, written: bool) -> None:
        """Stop at once. The commit under way may have reached the disk, though no client was told."""
        self.alive = False
        self.disk.die(logged=written, stored=written is not (self._disk_steps.random() < 0.3))
        self.environment.crash()
        self.clients.clear()

    def lose_disk(self) -> None:
        log_records_max = self.environment.log_records_max
        self.environment = MemoryEnvironment(self.environment.faults)
        self.environment.log_records_max = log_records_max
        self.lost_before = self.last_id
        self.time_note = None

    # -- links -----------------------------------------------------------------------------------------------

    def send(self, peer: str, parts: list[bytes]) -> bool:
        frame = b"".join(parts)
        if not self.network.send(self.name, peer, frame):
            return False
        self.sent(self.name, peer, frame)
        return True

    def arrived_bytes(self, peer: str) -> int:
        """Frames of this network come as a whole."""
        return 0

    def pending_bytes(self, peer: str) -> int:
        session = self.sessions.get(peer)
        return 0 if session is None else session.bytes_to(peer)

    def connected(self) -> Collection[str]:
        return list(self.sessions)

    def link_up(self, peer: str, incarnation: int) -> None:
        self.turn.run(self._link_up, peer, incarnation)

    def _link_up(self, peer: str, incarnation: int) -> None:
        self.broken_at.pop(peer, None)
        self.silent.pop(peer, None)
        self._tell_time([peer])
        self._node_is(peer, incarnation)
        self.reach.link_up(peer, self.features_of(peer))
        self.replicas.link_up(peer)
        self.links_told.begin()

    def link_down(self, peer: str) -> None:
        self.turn.run(self._link_down, peer)

    def _link_down(self, peer: str) -> None:
        self.broken_at[peer] = self.now_ms
        self.reach.link_down(peer)
        self.replicas.link_down(peer)
        self.links_told.begin()
        for _ in self.guests.lose(peer):
            pass
        for host in list(self.hosts.remote.values()):
            host.link_down(peer)

    def features_of(self, peer: str) -> tuple[str, ...]:
        """A node of the version before ignores the features of a peer."""
        return self.network.nodes[peer].features if self.features else ()

    def _node_is(self, node: str, incarnation: int | None) -> None:
        self.replicas.incarnations[node] = incarnation
        for host in self.hosts.grouped.values():
            if host.group.is_leader:
                host.gone_members()

    def received(self, peer: str, found: list[bytes]) -> None:
        self.turn.run(self._received, peer, found)

    def _received(self, peer: str, found: list[bytes]) -> None:
        self.silent.pop(peer, None)
        for frame in found:
            if frame[0] == frames.REACH:
                if not self.features:
                    raise Violation(f"{peer} sent what a node of the version before does not know")
                self.reach.heard(peer, frames.parse_reach(memoryview(frame)))
            elif frame[0] == frames.TIME:
                self.told_time[peer] = None
                self._heard_time(*frames.parse_time(memoryview(frame)))
            else:
                self.dispatch.frame(peer, memoryview(frame))

    # -- turns, time, disk -----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Time of the monotonic clock."""
        return self.clock.now_ms

    def end_turn(self) -> None:
        self.turn.end()
        if self.replicas.lost_entries.found_count and not self.environment.groups.was_damaged:
            raise Violation(f"{self.name} takes entries for lost, and nothing on its disk was damaged")
        if self.environment.groups.stood_still:
            raise Violation(f"{self.name} waits for the disk: {self.environment.groups.stood_still}")

    def tick(self) -> None:
        self.turn.run(self._tick)

    def _tick(self) -> None:
        self.clock.now_ms += round(TICK_MS * self.rate)
        self.ticks += 1
        self._keep_time()
        for peer, session in list(self.sessions.items()):
            if (peer, self.name) in self.network.blocked:
                self.silent[peer] = self.silent.get(peer, 0) + 1
                if self.silent[peer] > DEAD_TICKS:
                    self.network.close(session, self.name)
            else:
                self.silent.pop(peer, None)
        self.replicas.tick()
        self.links_told.begin()
        self.group_ticks.begin()
        self.roster.version = self.network.version
        self.reach.tell()
        self.hand_over.tick()
        for _ in self.hand_over.hand_over():
            pass
        self.guests.tick()
        for node, since in list(self.broken_at.items()):
            if self.now_ms - since >= REPLICATION.node_down_ms:
                del self.broken_at[node]
                self.replicas.down_since[node] = since
                self._node_is(node, None)
        if self.ticks % LOOK_TICKS == 0:
            self.maintenance.look()
            self._tell_time(self.sessions)
        self.timers.run(self.now_ms)

    def _keep_time(self) -> None:
        """See amqp_server.broker.recovery.stored_queue_time, and amqp_server.cluster.node."""
        self.time_note = self.queue_time.note()
        heard = self.told_time if self.features else self.sessions
        if self.queue_time.trust < KNOWN and 2 * (1 + len(heard)) > len(self.names):
            self.queue_time.serves()
            self._tell_time(self.sessions)

    def set_clock(self, shift_ms: int) -> None:
        """Set the wall clock. While the node runs it makes a note of that; see
        amqp_server.broker.recovery.stored_queue_time.
        """
        self.clock.shift_ms += shift_ms
        if self.alive:
            self.time_note = self.queue_time.note()

    def had_clock(self, shift_ms: int) -> None:
        """The node's wall clock is this much ahead, and has always been."""
        assert self.time_note is not None and not self.alive
        self.clock.shift_ms += shift_ms
        self.time_note = TimeNote(self.time_note.queue_ms, self.clock.wall_ms())

    def _tell_time(self, peers: Iterable[str]) -> None:
        for peer in peers:
            if frames.TIME_FEATURE in self.features_of(peer):
                self.send(peer, frames.time(self.queue_time.trust, self.queue_time.now_ms()))

    def _heard_time(self, trust: int, queue_ms: int) -> None:
        if self.queue_time.heard(trust, queue_ms):
            for host in self.hosts.grouped.values():
                host.wake()

    def step_disk(self) -> bool:
        """Let the disk begin something, or end what is under way; return whether there was anything to do."""
        self.turn.run(self._step_disk)
        return bool(self.disk_did)

    def _step_disk(self) -> None:
        self.disk_did = disk_steps.step(self.disk, self._disk_steps)

    def step_read(self) -> bool:
        """The disk has the pages now that were asked for first, if there were any."""
        reader = self.environment.reader
        if reader.waiting:
            self.turn.run(reader.step())
            return True
        return False

    def _disk_full(self, full: bool) -> None:
        if full is not self.full:
            self.full = full
            self.replicas.disk_full(full)
            self.links_told.begin()

    def learn(self, declared: Declared) -> None:
        """The topology tells the node of a queue's next members."""
        queue: Any = self.queues[declared.name]
        queue.change(queue.version + 1)
        self.versions[queue.queue_id] = queue.version
        self.turn.run(self._change, queue)

    def _change(self, queue: Any) -> None:
        self.hosts.changed(queue)
        # A queue that goes reads its dead letters at once.
        self.environment.groups.stood_still.clear()

    def go_on(self, *, latest: bool = False) -> None:
        """The topology tells the node of a new queue, or of a deleted one."""
        self.turn.run(self._go_on, latest)

    def _go_on(self, latest: bool) -> None:
        declared, there = self.events[self.known]
        self.known += 1
        if there:
            self.versions[declared.queue_id] = len(declared.members) - 1 if latest else 0
            self.declare(declared)
        else:
            self.queues.pop(declared.name).delete()
            self.environment.groups.stood_still.clear()
        self.replicas.topology_came(self.last_id)
