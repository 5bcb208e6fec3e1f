"""A node of the simulated cluster: the real broker and the real cluster part, over links and a disk in
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from outcome import Outcome, capture

from amqp_server.broker.access.permissions import Permission
from amqp_server.broker.access.users import User
from amqp_server.broker.alarms import Alarms
from amqp_server.broker.broker import Broker
from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.declared.operations import PutUser, PutVhost, SetPermission
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.recovery import recovery, stored_queue_time
from amqp_server.broker.timers import Timers
from amqp_server.broker.topology.topology import Topology
from amqp_server.cluster import wiring
from amqp_server.cluster.errors import ClusterError, StartAgain
from amqp_server.cluster.hosts import ClusterHosts
from amqp_server.cluster.node import ClusterNode
from amqp_server.cluster.wiring import FEATURES
from amqp_server.config import Config
from amqp_server.streams.local_host import StreamOptions, StreamServices
from amqp_server.streams.tiers.remotes import Remotes
from amqp_server.turn import Turn
from persistence.commits.layer import Layer
from persistence.commits.stepped import SteppedCommit
from persistence.errors import FULL
from persistence.journal import Journal
from persistence.streams.compaction import Throttle
from persistence.streams.compression import NONE
from persistence.streams.deduplication_file import Keeper
from persistence.streams.log import StreamLog
from persistence.streams.remote.objects import Objects
from persistence.streams.remote.table import Job
from quorum_queue.cluster import frames
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.links.handshake import Hello
from quorum_queue.local_host import NodeServices
from quorum_queue.machine import versions
from quorum_queue.memory import MemoryBudget
from tests.amqp_server.cluster.simulation.ledger import Ledger, watching
from tests.amqp_server.cluster.simulation.marks import Marks
from tests.amqp_server.cluster.simulation.mesh import SimulatedMesh
from tests.amqp_server.cluster.simulation.older import check_frame, check_versions
from tests.amqp_server.cluster.simulation.waiting import Task, sleep
from tests.clocks import ManualClock
from tests.persistence import disk_steps
from tests.persistence.streams.crashing import CrashingFiles
from tests.quorum_queue.cluster.levels import check_reached
from tests.quorum_queue.cluster.network import LinkSession, Network
from tests.stores.memory import Faults, MemoryEnvironment, MemoryTransaction
from tests.stores.objects import PlainTables, SimulatedStores
from tests.turns import Violation, strict_boundary

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.clients import Client

TICK_MS = 50
#: The time on all wall clocks at first.
WALL_MS = 1_000_000_000
#: Ticks of silence after which a session ends.
DEAD_TICKS = 6
USER = "guest"
#: See amqp_server.app.
FIRST_USER_WAIT_S = 0.1
#: Small limits, so that runs reach them.
LIMITS: dict[str, Any] = {
    "cluster_secret_file": "none", "election_ms": 200, "node_down_ms": 400, "disk_stall_ms": 800,
    "change_timeout_ms": 1500, "rebalance_ms": 300, "snapshot_entries": 16, "cluster_reach_ms": 200, "cluster_steady_ms": 2000,
    "handover_groups": 2, "tx_decision_ms": 2_000,
}  # fmt: skip


SLOW_READS = 0.4
#: Sizes of the write-ahead log in records, 0 for none; each node has one of them.
LOG_RECORDS = (0, 2, 10)


#: Small segments, so that there are many, and a tail of a few messages.
STREAMS: Final = StreamOptions(segment_bytes=900, flush_bytes=400, flush_ms=300)


class SimulatedConfig(Config):
    """Some of the nodes are workers, whose names no operator may give."""

    def __post_init__(self) -> None: ...

    def _is_name(self, name: str) -> bool:
        return True


class SteppedJobs:
    """The jobs for the threads of streams, done one by one, each thread's in order. See
    persistence.streams.store.StreamStore.
    """

    def __init__(self, files: CrashingFiles, random: Random | None = None) -> None:
        """`random` chooses the thread that does its next job."""
        self._files = files
        self._random = random or Random(0)
        self._writes: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._compactions: deque[Callable[[], None]] = deque()
        #: There are several threads that read.
        self.reads: list[Callable[[], None]] = []
        #: The threads of object stores; see RemoteJobs.
        self.remote: list[Callable[[], None]] = []
        #: Writes that found the disk full.
        self._refused: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def log(
        self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None, codec: str = NONE
    ) -> StreamLog:
        directory = Path("/streams") / str(queue_id)
        return StreamLog(self._files, directory, segment_bytes, keeper=keeper, codec=codec)

    def keep(self, queue_ids: Iterable[int], may_go: Callable[[int], bool] = lambda queue_id: True) -> None:
        kept = {str(queue_id) for queue_id in queue_ids}
        for directory in {path.parent for path in self._files.now}:
            if directory.name not in kept and may_go(int(directory.name)):
                self._files.remove_all(directory)

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._writes.append((call, done))

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.reads.append(lambda: done(capture(call)))

    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None:
        throttle = Throttle(1 << 40)
        self._compactions.append(lambda: done(capture(call, throttle)))

    def try_again(self) -> None:
        """Queue again the writes that found the disk full."""
        self._writes.extend(self._refused)
        self._refused.clear()

    @property
    def waits(self) -> bool:
        """Return whether any thread has something to do."""
        return bool(self._writes or self.reads or self._compactions or self.remote)

    def step(self) -> None:
        """Have some thread do its next job."""
        kinds = (self._writes, self.reads, self._compactions, self.remote)
        chosen = self._random.choice([each for each in kinds if each])
        if chosen is self._writes:
            self._write(*self._writes.popleft())
        elif chosen is self._compactions:
            self._compactions.popleft()()
        elif chosen is self.remote:
            self.remote.pop(self._random.randrange(len(self.remote)))()
        else:
            self.reads.pop(self._random.randrange(len(self.reads)))()

    def _write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = call()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._refused.append((call, done))
        else:
            done(result)


class RemoteJobs(SimulatedStores):
    """Calls to an object store: one step makes the call, and a later one has its result, so that a node may
    crash in between.
    """

    def __init__(self, stores: dict[str, Objects], name: str, jobs: SteppedJobs) -> None:
        super().__init__(stores, name)
        self._remote = jobs.remote

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self._remote.append(lambda: self._called(capture(call), done))

    def write(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.read(call, done)

    def table(self, job: Job, done: Callable[[Outcome[int]], None]) -> None:
        name = job.table.remote
        self.write(partial(PlainTables(name, self.objects(name)).do, job), done)

    def _called(self, outcome: Outcome[Any], done: Callable[[Outcome[Any]], None]) -> None:
        self._remote.append(lambda: done(outcome))


class Disk(MemoryEnvironment):
    """A disk that counts its commits, as LMDB does."""

    def __init__(self, faults: Faults, identity: str) -> None:
        super().__init__(faults, identity)
        self.written = self.found = 0

    def open(self) -> None:
        """A process opens it, which writes: see persistence.environment.Environment."""
        self.found = self.written
        self.written += 1

    def transaction(self, layer: Layer) -> MemoryTransaction:
        return _Transaction(self, layer)

    def log_record(self, layer: Layer) -> Callable[[], None] | None:
        write = super().log_record(layer)
        return None if write is None else partial(self._write, write)

    def _write(self, write: Callable[[], None]) -> None:
        write()
        self.written += 1


class _Transaction(MemoryTransaction):
    def finish(self) -> None:
        super().finish()
        disk: Any = self._store
        disk.written += 1


class SimulatedNode:
    """One End of the network, see tests.quorum_queue.cluster.network. It does here what amqp_server.app does
    in a real node.
    """

    cluster: ClusterNode
    broker: Broker

    def __init__(
        self,
        name: str,
        network: Network,
        ledger: Ledger,
        identities: dict[tuple[str, int], str],
        *,
        seed: int,
        rate: float,
    ) -> None:
        self.name = name
        self.network = network
        #: Entries after which a snapshot is due; 0 for the configured number.
        self.snapshot_entries = 0
        self.stream_options = STREAMS
        #: Object stores by name.
        self.stores: dict[str, Objects] = {}
        #: How often a turn may ask whether it is overdue before the answer is yes.
        self.turn_lasts = inf
        self._turn_asked = 0
        self.ledger = ledger
        self.alive = self.serving = False
        #: True if the node is to be stopped and started again.
        self.wants_start = False
        #: Why the node has to go, once another node has told it: then it needs an empty disk.
        self.out = ""
        self.incarnation = 0
        #: See quorum_queue.links.handshake.Hello. A node of the first version has none; see older.
        self.features: tuple[str, ...] = FEATURES
        self.zone = ""
        self.restored = 0
        self.clock = ManualClock(1_000_000 + seed % 977, WALL_MS)
        self.rate = rate
        self.sessions: dict[str, LinkSession] = {}
        self.silent: dict[str, int] = {}
        self.clients: list[Client] = []
        self.tasks: list[Task] = []
        #: Chooses what the disk does next, and what it was.
        self._disk_steps = Random(f"disk {seed}")
        self.disk_did = ""
        #: Chooses the thread of streams that does its next job.
        self._threads = Random(f"threads {seed}")
        self._identities = identities
        self._seed = seed
        self._disks = 0
        self.replace_disk()

    def replace_disk(self) -> None:
        self._disks += 1
        self.disk = Disk(Faults(seed=self._seed), f"{self.name}{self._disks}")
        # For many reads the disk has the pages only later.
        reads = Random(self._seed)
        self.disk.reader.waits = lambda: reads.random() < SLOW_READS
        self.disk.log_records_max = Random(f"log {self._seed}").choice(LOG_RECORDS)
        self.marks = Marks()
        self.files = CrashingFiles()
        self.files.random = Random(self._seed)
        self.out = ""

    @property
    def version(self) -> int:
        """The newest version of queues and the topology that it knows."""
        return versions.newest_of(self.features)

    @property
    def topology(self) -> Topology:
        return self.broker.topology

    @property
    def now_ms(self) -> int:
        """By the monotonic clock."""
        return self.clock.now_ms

    def set_clock(self, shift_ms: int) -> None:
        """The wall clock is set."""
        self.clock.shift_ms += shift_ms
        if self.alive:
            # The node would notice soon.
            self.turn.run(self.broker.time_notes.note)

    def set_alarm(self, raised: bool) -> None:
        """Raise or clear the node's memory alarm."""
        if self.alive:
            self.broker.alarms.set("memory", raised)
            self.end_turn()

    # -- life ------------------------------------------------------------------------------------------------

    def start(self, peers: Collection[str]) -> bool:
        """Start from the data on the disk; return whether the node may start."""
        self.clock.now_ms += 1
        self.disk.faults.full = 0
        self.alive, self.serving, self.full = True, False, False
        self.wants_start = False
        self.silent = {}
        config = SimulatedConfig(
            node=self.name, zone=self.zone, peers=tuple(f"{name}=127.0.0.1:1" for name in peers), **LIMITS
        )
        self.commits = commits = SteppedCommit(self.disk, logs=True, on_full=self._disk_full)
        self.disk.open()
        boundary = strict_boundary()
        timers, journal = Timers(changed=lambda: None, boundary=boundary), Journal(self.disk)
        environment: Any = self.disk
        directory, self.incarnation = wiring.begin(environment, self.clock)
        self.mesh = SimulatedMesh(self, self.name, config.peer_addresses)
        mesh: Any = self.mesh
        self.parts = made = wiring.make_parts(
            config,
            environment,
            commits,
            self.clock,
            timers,
            directory,
            self.incarnation,
            mesh,
            boundary,
        )
        if self.snapshot_entries:
            made.replicas.options = replace(made.replicas.options, snapshot_entries=self.snapshot_entries)
        self.turn = Turn(
            commits, made.peers, lambda: None, boundary, now=self._turn_time, lasts_s=self.turn_lasts
        )
        services = NodeServices(
            clock=self.clock, queue_time=stored_queue_time.restore(self.disk, self.clock), turn=self.turn, memory=MemoryBudget(1 << 30), timers=timers,
            dead_letters=DeadLetterSender(config.frame_max_bytes, self.clock), journal=journal,
            spill=Journal(self.disk.spill), commits=commits, marks=self.marks,
        )  # fmt: skip
        hosts = ClusterHosts(
            config, services, environment, made.groups, made.roster, made.topology_progress, made.reach,
            self._streams(services, journal),
        )  # fmt: skip
        self.broker = broker = Broker(
            config, environment, self.clock, turn=self.turn, timers=timers, alarms=Alarms(), services=services,
            hosts=hosts, replication=made.replication,
        )  # fmt: skip
        with watching(self, self.ledger):
            self.cluster = cluster = ClusterNode(broker, made, hosts, cast(Any, None))
        self._identities[self.name, self.incarnation] = self.disk.node_id
        self.turn.run(self._begin, cluster, journal)
        return self.alive

    def _turn_time(self) -> float:
        self._turn_asked += 1
        return self._turn_asked

    def _streams(self, services: NodeServices, journal: Journal) -> StreamServices:
        self.jobs = SteppedJobs(self.files, self._threads)
        stores = RemoteJobs(self.stores, f"{self.name}-{self.incarnation}", self.jobs)
        return StreamServices(
            clock=services.clock,
            queue_time=services.queue_time,
            turn=services.turn,
            memory=services.memory,
            timers=services.timers,
            journal=journal,
            commits=services.commits,
            store=self.jobs,
            options=self.stream_options,
            # A reader waits however long a store is away.
            remotes=Remotes(stores, timeout_ms=1 << 40),
        )

    def _begin(self, cluster: ClusterNode, journal: Journal) -> None:
        recovery.recover(self.broker, journal)
        self.ledger.recovered(self)
        try:
            cluster.check_directory()
        except ClusterError as error:
            self.out = str(error)
            self.alive = False
            return
        cluster.start()
        self.tasks = []
        for coroutine in (cluster._tick(), cluster._leave(), self._serve()):
            self.run(coroutine)

    async def _serve(self) -> None:
        """Do what amqp_server.app does before it listens to clients."""
        cluster, broker = self.cluster, self.broker
        await cluster.joined()
        if not cluster.roster.nodes:
            raise Violation(f"{self.name} serves before it knows what nodes there are")
        proposed = False
        while broker.access.permissions.get(USER, "/") is None:
            if cluster.leads_topology and not proposed:
                proposed = True
                self.turn.run(self._propose_first)
            await sleep(FIRST_USER_WAIT_S)
        self.serving = True

    def _propose_first(self) -> None:
        broker = self.broker
        broker.propose(PutVhost(VhostRecord("/")))
        broker.propose(PutUser(User(USER, "hash", ("administrator",))))
        broker.propose(SetPermission(Permission(USER, "/", ".*", ".*", ".*")))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Task:
        task = Task(coroutine, self.clock.monotonic_ms)
        self.tasks.append(task)
        return task

    def crash(self, *, written: bool) -> None:
        """Stop at once. The commit under way may have reached the disk, though no client was told."""
        self.alive = self.serving = False
        self.end_tasks()
        self.commits.die(logged=written, stored=written is not (self._disk_steps.random() < 0.3))
        self.disk.crash()
        self.files.crash()
        for client in self.clients:
            client.abandon()
        self.clients.clear()

    def end_tasks(self) -> None:
        for task in self.tasks:
            task.end()
        self.tasks = []

    # -- links -----------------------------------------------------------------------------------------------

    def link_up(self, peer: str, incarnation: int) -> None:
        self.silent.pop(peer, None)
        features = self.features_of(peer)
        identity = self._identities[peer, incarnation]
        self.cluster.link_up(peer, Hello(peer, incarnation, identity, features=features))
        self.end_turn()

    def sends(self, frame: bytes) -> None:
        """What a leader says of other nodes is checked on these."""
        if frame[0] == frames.REACHED:
            group_id, index = frames.parse_stopped(memoryview(frame))
            check_reached(self.cluster.replicas.groups[group_id], index, self.replicas_of_all())

    def replicas_of_all(self) -> dict[str, Replicas | None]:
        """Return what each running node has of all groups."""
        nodes: Any = self.network.nodes
        return {name: node.cluster.replicas if node.alive else None for name, node in nodes.items()}

    def features_of(self, peer: str) -> tuple[str, ...]:
        """A node of an older version ignores the features that it does not know."""
        told = self.network.nodes[peer].features
        return tuple(each for each in told if each in self.features or each not in FEATURES)

    def link_down(self, peer: str) -> None:
        self.mesh.dropped.pop(peer, None)
        self.cluster.link_down(peer)
        self.end_turn()

    def received(self, peer: str, found: list[bytes]) -> None:
        self.silent.pop(peer, None)
        for frame in found:
            check_frame(self, peer, frame[0])
        self.cluster.received(peer, [memoryview(frame) for frame in found])
        self.end_turn()

    def lets_in(self, peer: str) -> bool:
        return self.mesh.lets_in(peer)

    def dials(self, peer: str) -> bool:
        return peer in self.mesh.peers

    # -- turns, time, disk -----------------------------------------------------------------------------------

    def end_turn(self) -> None:
        if not self.alive:
            return
        self.turn.end()
        if self.turn.behind:
            self.turn.run(self.turn.catch_up)
        for client in list(self.clients):
            client.collect()
        for peer in list(self.mesh.dropped):
            session = self.sessions.get(peer)
            if session is None:
                self.mesh.dropped.pop(peer, None)
            else:
                self.network.close(session, self.name)

    def tick(self) -> None:
        self.clock.now_ms += round(TICK_MS * self.rate)
        for peer, session in list(self.sessions.items()):
            if (peer, self.name) in self.network.blocked or peer in self.network.standing:
                self.silent[peer] = self.silent.get(peer, 0) + 1
                if self.silent[peer] > DEAD_TICKS:
                    self.network.close(session, self.name)
            else:
                self.silent.pop(peer, None)
        if self.version != versions.NEWEST:
            check_versions(self)
        self.turn.run(self.broker.timers.run, self.now_ms)
        self.jobs.try_again()
        for task in list(self.tasks):
            if not task.go_on():
                continue
            self.tasks.remove(task)
            if isinstance(task.error, ClusterError):
                self.out = str(task.error)
            elif isinstance(task.error, StartAgain):
                self.wants_start = True
        self.end_turn()

    def step_disk(self) -> bool:
        """Let the disk begin something, or end what is under way; return whether there was anything to do."""
        self.turn.run(self._step_disk)
        self.end_turn()
        return bool(self.disk_did)

    def _step_disk(self) -> None:
        self.disk_did = disk_steps.step(self.commits, self._disk_steps)

    def step_read(self) -> bool:
        """Either the disk has the pages now that were asked for first, or a thread has done its next job."""
        if self.jobs.waits:
            self.turn.run(self.jobs.step)
            self.end_turn()
            return True
        reader = self.disk.reader
        if reader.waiting:
            self.turn.run(reader.step())
            self.end_turn()
            return True
        return False

    def _disk_full(self, full: bool) -> None:
        self.full = full
        self.broker.alarms.set("disk", full)
