"""A directory is turned into that of a cluster step by step: wherever the process ends, everything is there,
either as it was or turned.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_server.broker.access.users import User
from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    Operation,
    PutUser,
    PutVhost,
)
from amqp_server.broker.declared.records import QUEUES as QUEUES_TABLE
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded, key
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.metadata import encode
from amqp_server.broker.recovery import recovery
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.transactions import Producer, epochs_in
from amqp_server.cluster.errors import ClusterError
from amqp_server.cluster.membership import adoption
from amqp_server.cluster.membership.adoption import Adoption
from amqp_server.cluster.membership.membership import Directory, Founded, drop_copies
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.store import GroupStore
from amqp_server.cluster.topology_group import GROUP, Catalog
from amqp_server.config import Config
from amqp_server.streams.consumer_groups import partition_position
from amqp_server.streams.layout.named_offsets import Names
from amqp_server.streams.members.replica import StreamReplica, decode_state
from amqp_server.streams.stream_options import StreamOptions
from amqp_server.streams.tiers.node_manifest import IDENTITY, RANGES, encode_identity, encode_range
from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.environment import Environment
from persistence.journal import Journal
from persistence.record import Record
from persistence.replica_logs.logs import Groups
from persistence.streams import batch as batches
from persistence.streams.log import Stored
from persistence.streams.remote.manifest import Manifest, Range
from quorum_queue.cluster.snapshots.state import unpack_state
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.local_host import LocalHost
from quorum_queue.machine import codec, versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import id_of
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import decode_entry
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.record.states import Copy
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.states import DedupState
from quorum_queue.raft.members import Members
from tests import turns
from tests.amqp_server.cluster.simulation.node import SteppedJobs
from tests.clocks import ManualClock
from tests.persistence.streams import test_log as stream_log
from tests.persistence.streams.crashing import CrashingFiles
from tests.stores.memory import MemoryEnvironment

from ..connection.node import Commits, Marks, make_broker

NOW_MS = 1_700_000_000_000
ADDRESSES = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2", "n3": "127.0.0.1:3"}
IDENTITIES = {"n1": "d1", "n2": "d2", "n3": "d3"}
PLENTY = 1 << 40
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"x-queue-type": "quorum"},
    "patient": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "once": {"x-queue-type": "quorum", "x-deduplication": True},
    "brief": {"x-queue-type": "quorum", "x-message-ttl": 1000},
    "empty": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1},
    "classic": {"x-max-priority": 3},
}


class Message(NamedTuple):
    seq: int
    body: bytes
    head: bytes
    attributes: Attributes
    expires_at: int | None
    redelivered: bool
    attempts: int


class QueueState(NamedTuple):
    """The state of one queue."""

    messages: list[Message]
    next_seq: int
    dedup: DedupState | None
    #: When messages that wait are due.
    waiting: dict[int, int]
    #: What the record says of the messages with the ids `id 0` to `id 4`.
    known: list[list[Copy]]


class Deaf:
    """See amqp_server.cluster.topology_group.Listener."""

    def nodes_changed(self, removed: list[str]) -> None: ...

    def began(self, index: int) -> None: ...

    def applied(self) -> None: ...

    def decided(self, decisions: object, *, own: bool) -> None: ...

    def epoch_raised(self, producer: str, epoch: int) -> None: ...

    def decisions_restored(self, last_own: int) -> None: ...

    def when_spread(self, index: int, then: Callable[[], None]) -> None: ...


class Disk:
    """The data that outlives a process."""

    def __init__(self, environment: Any = None) -> None:
        self.environment: Any = environment or MemoryEnvironment()
        self.marks = Marks()
        self.files = CrashingFiles()

    def broker(self, node: str = "n1") -> Broker:
        commits = Commits(self.environment)
        return make_broker(
            Config(node=node),
            self.environment,
            ManualClock(NOW_MS),
            commits,
            marks=self.marks,
            turn=turns.at_once(commits),
        )

    def adoption(
        self, free_bytes: int = PLENTY, journal: Journal | None = None, version: int = versions.FIRST
    ) -> Adoption:
        environment = self.environment
        return Adoption(
            self.broker(),
            journal or Journal(environment),
            GroupStore(environment),
            Directory(environment, "d1", 1),
            SteppedJobs(self.files),
            StreamOptions().segment_size,
            addresses=ADDRESSES,
            identities=IDENTITIES,
            free_bytes=free_bytes,
            version=version,
        )

    @property
    def founded(self) -> Founded | None:
        return Directory(self.environment, "d1", 1).founded

    # -- what is in it ---------------------------------------------------------------------------------------

    def alone(self) -> dict[str, QueueState]:
        """Read it as a node that stands alone does."""
        assert self.founded is None
        journal = Journal(self.environment)
        stored = recovery.read_queues(self.broker(), journal)
        return {
            record.name: _state(stored.machines[queue_id], _journalled(journal, queue_id))
            for queue_id, record in stored.queues.items()
        }

    def turned(self) -> dict[str, QueueState]:
        """Read it as a member does."""
        founded = self.founded
        assert founded is not None
        store, journal = GroupStore(self.environment), Journal(self.environment)
        recovered = store.recovered()
        stored = recovery.read_queues(self.broker(), journal)
        states: dict[str, QueueState] = {}
        for queue_id, record in stored.queues.items():
            if not record.members:
                states[record.name] = _state(stored.machines[queue_id], _journalled(journal, queue_id))
                continue
            # Neither the journal nor the marks have anything of it left.
            assert queue_id not in stored.machines and queue_id not in stored.slots
            group = recovered.pop(queue_id)
            found = store.read_state(queue_id)
            assert found is not None
            index, term, state = found
            members, snapshot = unpack_state(state)
            assert members == Members(("n1",))
            assert (group.term, group.vote, group.snapshot) == (term, "n1", (index, term))
            assert group.last_index == index and not group.lost
            replica = QueueReplica.restore(snapshot)
            assert replica.applied == index
            indexes = [at for stored_range in group.stored for at in stored_range]
            assert indexes == replica.locations.pinned()
            states[record.name] = _state(replica.machine, _grouped(store, queue_id, replica))
        topology = recovered.pop(GROUP)
        assert topology.snapshot == (founded.began_at, topology.term)
        # Nothing is left of the earlier attempt.
        assert not recovered
        return states


def _journalled(journal: Journal, queue_id: int) -> Callable[[range], list[bytes]]:
    def bodies(seqs: range) -> list[bytes]:
        found: dict[int, bytes] = {}
        for record in journal.read(queue_id, seqs[0], seqs[-1]):
            found.update(enumerate(codec.decode_contents(record.payload), record.first_seq))
        return [found[seq] for seq in seqs]

    return bodies


def _grouped(store: GroupStore, queue_id: int, replica: QueueReplica) -> Callable[[range], list[bytes]]:
    machine = replica.machine
    runs = [*machine.ready.runs(), *machine.delayed.runs()]
    heads = {seq: run.head_of(at) for run in runs for at, seq in enumerate(run.seqs)}

    def bodies(seqs: range) -> list[bytes]:
        found: list[bytes] = []
        sent: list[bytes] = []
        for index, ordinals in replica.find(seqs):
            entry = decode_entry(store.read_one(queue_id, index).data)
            found += entry.bodies.contents(ordinals)
            (batch,) = entry.batches
            routed = [run.head_of(at) for _, run, *_ in batch.commands for at in range(len(run))]
            sent += routed[ordinals.start : ordinals.stop]
        # Each message has the same head in the entry as in the queue.
        assert sent == [heads[seq] for seq in seqs]
        return found

    return bodies


def _state(machine: Machine, bodies: Callable[[range], list[bytes]]) -> QueueState:
    # A member begins with the first version, which has the order in which messages came.
    machine.apply(Meta(0), [("version", versions.NEWEST)], Effects(hands_max=0, expires_max=0))
    messages = [
        Message(
            seq,
            body,
            run.head_of(at),
            run.attributes_of(at)._replace(frame_bytes=0),
            run.due_of(at),
            run.redelivered,
            run.attempts,
        )
        for whole in (*machine.ready.runs(), *(run for _, run in machine.delayed.items()))
        for run in whole.cut()
        if isinstance(run.seqs, range)
        for at, (seq, body) in enumerate(zip(run.seqs, bodies(run.seqs), strict=True))
    ]
    assert machine.ready.count + machine.delayed.count == len(messages) and not machine.unacked_count
    assert machine.ready.bytes + machine.delayed.bytes == sum(len(message.body) for message in messages)
    waiting = {seq: due_ms for due_ms, run in machine.delayed.items() for seq in run.seqs}
    record = machine.record
    known = [] if record is None else [record.find(b"id %d" % number, NOW_MS).copies for number in range(5)]
    dedup = None if machine.dedup is None else machine.dedup.state()
    return QueueState(messages, machine.next_seq, dedup, waiting, known)


# -- a node that stood alone ---------------------------------------------------------------------------------


class Sink:
    def deliver(self, consumer: Consumer, run: Run, first_id: int) -> None:
        pass


def declare(broker: Broker) -> None:
    operations: list[Operation] = [
        PutVhost(VhostRecord("/")),
        PutVhost(VhostRecord("v", "another", ("tag",))),
        PutUser(User("ann", "hash", ("administrator",))),
        DeclareExchange(ExchangeRecord("/", "x", "topic", False, False, encoded({}))),
    ]
    for name, arguments in QUEUES.items():
        record = QueueRecord("/", name, 0, False, encoded(arguments), node="old")
        operations += [DeclareQueue(record), Bind(BindingRecord("/", "x", name, "queue", "a.#", encoded({})))]
    for operation in operations:
        broker.propose(operation)
    broker.access.permissions.set("ann", "/", ".*", "a", "b")


def host_of(broker: Broker, name: str) -> LocalHost:
    host = broker.vhost("/").queues[name].host
    assert isinstance(host, LocalHost)
    return host


#: (queue, messages, their priority and size) or (queue, deliveries, done with them?)
publishes = st.tuples(st.sampled_from(list(QUEUES)), st.integers(1, 9), st.integers(0, 3), st.integers(0, 90))
takes = st.tuples(st.sampled_from(list(QUEUES)), st.integers(1, 6), st.sampled_from(("settle", "return", "")))


def use(broker: Broker, deeds: list[tuple[Any, ...]]) -> None:
    numbers = count(1)
    for name, number, *more in deeds:
        host = host_of(broker, name)
        if len(more) == 2:
            priority, size = more
            run = _run([b"%d " % next(numbers) + b"x" * size for _ in range(number)], priority)
            if name == "once":
                names = [id_of(content[:1]) for content in run.contents or ()]
                host.submit(("enqueue_once", run, None, 0, names))
            else:
                host.submit(("enqueue", run, None, 0))
            continue
        consumer = Consumer(("c", next(numbers)), prefetch=number, sink=Sink())
        host.submit(("attach", consumer))
        if more[0]:
            host.submit((more[0], consumer.key, 0, 1))
        # A consumer holds the unsettled messages when the node ends.
        host.machine.consumers.detach(consumer)


def _run(contents: list[bytes], priority: int) -> Run:
    # Neighbours with other routing become runs of mixed ones.
    return Run(range(len(contents)), contents, b"key%d" % (len(contents[0]) % 3), Attributes(True, priority))


DEEDS: list[tuple[Any, ...]] = [
    *((name, 5, level % 4, 40) for level in range(6) for name in QUEUES if name != "empty"),
    *(
        (name, 4, done)
        for done in ("settle", "return", "")
        for name in ("plain", "patient", "once", "classic")
    ),
    *(("plain", number, 0, 60 - number) for number in (3, 1, 2, 1)),
]


def made(deeds: list[tuple[Any, ...]]) -> Disk:
    disk = Disk()
    broker = disk.broker("old")
    declare(broker)
    use(broker, deeds)
    disk.environment.flush()
    disk.environment.crash()
    return disk


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    _small_steps(monkeypatch)


def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "ENTRY_BYTES", 150)
    monkeypatch.setattr(adoption, "STEP_BYTES", 600)


def run_to(disk: Disk, steps: int, version: int = versions.FIRST) -> bool:
    """Take this many steps, all but the last durable; return whether there were as many."""
    taking = disk.adoption(version=version).steps()
    for _ in range(steps):
        disk.environment.flush()
        if next(taking, "end") == "end":
            return False
    return True


# -- tests ---------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_member_is_read_from_the_store_whenever_turns_end(tmp_path: Path) -> None:
    """The end of a turn writes small commits to the log, and the store does not have these yet."""
    environment = Environment.open(tmp_path, map_bytes=1 << 30)
    disk, commit = Disk(environment), Commit(environment)
    declare(disk.broker("old"))
    environment.flush()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        done = trio.Event()

        async def adopt() -> None:
            await disk.adoption().carry_out(commit)
            done.set()

        async def turns_end() -> None:
            while True:
                commit.turn_begins()
                commit.turn_ends()
                await trio.lowlevel.checkpoint()

        nursery.start_soon(turns_end)
        nursery.start_soon(adopt)
        with trio.fail_after(PATIENCE_S):
            await done.wait()
        assert GROUP in GroupStore(environment).recovered()
        nursery.cancel_scope.cancel()
    environment.close()


@given(st.lists(publishes | takes, max_size=30), st.sampled_from((versions.FIRST, versions.NEWEST)))
@settings(max_examples=60)
def test_everything_is_as_a_restart_would_have_it(deeds: list[tuple[Any, ...]], version: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _small_steps(patch)
        disk = made(deeds)
        before = disk.alone()
        assert not run_to(disk, 1_000_000, version)
        assert disk.turned() == before


def test_messages_wait_on_and_are_remembered_if_all_nodes_know_how() -> None:
    def disk() -> Disk:
        made = Disk()
        broker = made.broker("old")
        broker.propose(PutVhost(VhostRecord("/")))
        arguments = encoded({"x-queue-type": "quorum", "x-message-status": True})
        broker.propose(DeclareQueue(QueueRecord("/", "reminders", 0, False, arguments, node="old")))
        host = host_of(broker, "reminders")
        for number, wait_ms in enumerate((5000, 0, 1000, 5000, 0)):
            run = _run([b"%d" % number], number)
            run.waits_until = wait_ms
            host.submit(("enqueue_known", run, None, 0, [b"id %d" % number]))
        made.environment.flush()
        made.environment.crash()
        return made

    new = disk()
    before = new.alone()["reminders"]
    assert before.waiting == {1: NOW_MS + 5000, 3: NOW_MS + 1000, 4: NOW_MS + 5000} and all(before.known)
    assert not run_to(new, 1_000_000, versions.NEWEST)
    assert new.turned()["reminders"] == before
    # Other nodes may know neither waits nor records.
    old = disk()
    assert not run_to(old, 1_000_000, versions.NEWEST - 1)
    after = old.turned()["reminders"]
    assert not after.waiting and len(after.messages) == 5 and not any(after.known)


@pytest.mark.parametrize("durable", [True, False])
def test_it_may_end_at_any_step(durable: bool) -> None:
    before = made(DEEDS).alone()
    assert len(before["plain"].messages) > 20
    assert {message.attempts for message in before["plain"].messages} >= {0, 1}
    turned = 0
    for steps in count(1):
        disk = made(DEEDS)
        more = run_to(disk, steps)
        if durable:
            disk.environment.flush()
        disk.environment.crash()
        if disk.founded is None:
            assert disk.alone() == before
            assert not run_to(disk, 1_000_000)
        else:
            turned += 1
        assert disk.turned() == before
        if not more:
            break
    # There are several steps, and only the last one makes it the directory of a member.
    assert steps > 8
    assert turned == (2 if durable else 1)


def test_a_node_that_goes_back_drops_the_copies() -> None:
    disk = made(DEEDS)
    before = disk.alone()
    assert run_to(disk, 5)
    disk.environment.flush()
    disk.environment.crash()
    assert disk.environment.groups.groups
    drop_copies(Groups(disk.environment))
    disk.environment.flush()
    assert not disk.environment.groups.groups
    assert disk.alone() == before


def test_copies_of_what_is_gone_since_are_dropped() -> None:
    disk = made(DEEDS)
    assert run_to(disk, 6)
    disk.environment.flush()
    disk.environment.crash()
    assert 1 in disk.environment.groups.groups
    broker = disk.broker("old")
    recovery.recover(broker, Journal(disk.environment))
    broker.vhost("/").queues["plain"].delete()
    disk.environment.flush()
    before = disk.alone()
    assert "plain" not in before
    assert not run_to(disk, 1_000_000)
    assert disk.turned() == before


def test_the_topology_is_the_first_snapshot() -> None:
    disk = made(DEEDS)
    assert not run_to(disk, 1_000_000)
    founded = disk.founded
    last = max(record.queue_id for record in _records(disk.broker()))
    assert founded == Founded(IDENTITIES, name="n1", origin="n1", began_at=last)
    assert founded.forgotten_before == last
    found = GroupStore(disk.environment).read_state(GROUP)
    assert found is not None and found[0] == last
    members, state = unpack_state(found[2])
    assert members == Members(("n1",))
    # Another node gets everything from there.
    other = Disk().broker("n2")
    _receive(Catalog("n2", 1, other.topology, Roster(), Deaf()), other, state)
    own = disk.broker()
    recovery.recover(own, Journal(disk.environment))
    assert own.topology.applied == other.topology.applied == last
    assert own.topology.snapshot() == other.topology.snapshot()
    roster = Roster()
    Catalog("n1", 1, own.topology, roster, Deaf()).load(state)
    assert roster.nodes == ADDRESSES
    assert other.access.users.get("ann") == User("ann", "hash", ("administrator",))
    assert {queue.name for queue in other.all_queues()} == {*QUEUES}
    _check_places({queue.name: queue for queue in other.all_queues()})


def test_earlier_starts_of_producers_stay_shut_out() -> None:
    disk = Disk()
    broker = disk.broker("old")
    declare(broker)
    broker.transactions.shut_out(Producer("/billing", 7))
    disk.environment.flush()
    disk.environment.crash()
    assert not run_to(disk, 1_000_000)
    found = GroupStore(disk.environment).read_state(GROUP)
    assert found is not None
    _, state = unpack_state(found[2])
    for name in ("n1", "n2"):
        other = Disk().broker(name)
        catalog = Catalog(name, 1, other.topology, Roster(), Deaf())
        _receive(catalog, other, state)
        assert catalog.decisions.epochs == {"/billing": 7}
    # From now on they are nowhere else.
    assert not epochs_in(disk.broker().metadata)


def _receive(catalog: Catalog, broker: Broker, state: bytes) -> None:
    """Another node's snapshot comes."""
    restored: list[bool] = []

    def come() -> None:
        catalog.restore(state)
        restored.append(True)

    broker.turn.run(catalog.come_to, state, come)
    while not restored:
        broker.turn.run(broker.turn.catch_up)


def _records(broker: Broker) -> list[QueueRecord]:
    recovery.recover(broker, Journal(broker.metadata))  # type: ignore[arg-type]
    return [queue.record for queue in broker.all_queues()]


def _check_places(queues: dict[str, Queue]) -> None:
    """A queue has as many nodes as if it had been declared in the cluster, this node among them, and the
    leaders are spread.
    """
    assert (queues["classic"].node, queues["classic"].members) == ("n1", ())
    assert (queues["empty"].members, queues["empty"].record.leader) == (("n1",), "n1")
    rest = [queue.record for name, queue in queues.items() if name not in ("classic", "empty")]
    assert all(record.members == ("n1", "n2", "n3") and not record.node for record in rest)
    assert {record.leader for record in rest} == {"n1", "n2", "n3"}


def test_room_is_looked_for_first() -> None:
    disk = made(DEEDS)
    before, groups = disk.alone(), dict(disk.environment.groups.groups)
    with pytest.raises(ClusterError, match="Free some space, or start the node without --peers"):
        list(disk.adoption(free_bytes=100).steps())
    disk.environment.flush()
    assert disk.alone() == before and disk.environment.groups.groups == groups


def with_stream() -> tuple[Disk, Journal]:
    """A node with a stream of 30 messages: 20 are in segments, and the journal has those from 15 on."""
    disk = made(DEEDS)
    record = QueueRecord("/", "log", 99, False, encoded({"x-queue-type": "stream"}))
    disk.environment.put(QUEUES_TABLE, key("/", "log"), encode(record))
    journal = Journal(disk.environment)
    parts = [stream_log.stored(base, 5, 1000 + base) for base in range(0, 30, 5)]
    log = SteppedJobs(disk.files).log(99, 200)
    log.open(0)
    log.append(parts[:4])
    for each in parts[3:]:
        journal.append(99, each.base, 5, list(each.parts), 1)
    journal.state(99, (15).to_bytes(8, "big"))
    disk.environment.flush()
    return disk, journal


def stream_of(disk: Disk) -> list[int]:
    """Return the offsets in the segments of the stream."""
    log = SteppedJobs(disk.files).log(99, 200)
    log.open(0, mendable=True)
    offsets, lost = stream_log.read_all(log)
    assert not lost
    return offsets


def test_streams_are_brought_along() -> None:
    disk, _ = with_stream()
    list(disk.adoption().steps())
    disk.environment.flush()
    assert stream_of(disk) == [*range(30)]
    found = GroupStore(disk.environment).read_state(99)
    assert found is not None
    members, state = unpack_state(found[2])
    told = decode_state(state)
    assert (members.voters, told.first_offset, told.next_offset, told.last_ms) == (("n1",), 0, 30, 1025)
    assert Journal(disk.environment).recover_queue(99) is None


def test_offsets_by_name_are_brought_along() -> None:
    """At first no name is stored; a name that is ahead of the stream is put at its end."""
    disk, journal = with_stream()
    names = Names(3)
    for name, offset in (("a", 7), ("b", 30), ("a", 12), ("ahead", 31)):
        journal.annotate(99, *names.put(name, offset))
    disk.environment.flush()
    list(disk.adoption().steps())
    disk.environment.flush()
    found = GroupStore(disk.environment).read_state(99)
    assert found is not None
    replica = StreamReplica.restore(unpack_state(found[2])[1])
    assert replica.names == {"a": (12, ""), "b": (30, ""), "ahead": (30, "")}


def test_what_an_object_store_has_is_brought_along() -> None:
    """The node's disk begins behind what the store has."""
    disk, journal = with_stream()
    manifest = Manifest("identity", "archive", (Range(0, 7, 70, 32, 1000, 1005, "sum"),))
    journal.annotate(99, IDENTITY, encode_identity(manifest))
    journal.annotate(99, RANGES, encode_range(manifest.ranges[0]))
    disk.environment.flush()
    list(disk.adoption().steps())
    disk.environment.flush()
    found = GroupStore(disk.environment).read_state(99)
    assert found is not None
    replica = StreamReplica.restore(unpack_state(found[2])[1])
    assert replica.manifest is not None and replica.manifest.ranges == manifest.ranges
    assert (replica.manifest.identity, replica.manifest.remote) == ("identity", "archive")
    assert replica.first_offset == 0 and not replica.names


def test_what_a_stream_has_taken_is_brought_along() -> None:
    """Both from the batches in the segments, and from those that only the journal has."""
    disk, journal = with_stream()
    table: dict[str, Any] = {"x-queue-type": "stream", "x-deduplication": True}
    record = QueueRecord("/", "log", 99, False, encoded(table))
    disk.environment.put(QUEUES_TABLE, key("/", "log"), encode(record))
    log = SteppedJobs(disk.files).log(99, 200)
    log.open(20)
    for base in (20, 25):
        log.append([named(base)])
    journal.append(99, 30, 5, list(named(30).parts), 1)
    disk.environment.flush()
    list(disk.adoption().steps())
    disk.environment.flush()
    found = GroupStore(disk.environment).read_state(99)
    assert found is not None
    replica = StreamReplica.restore(unpack_state(found[2])[1], Settings(deduplication_window_ms=600_000))
    assert replica.taken is not None and replica.next_offset == 35
    assert replica.taken.new_of([*names_from(20), *names_from(25), *names_from(30)], 1_040) == []
    assert replica.taken.new_of(list(names_from(35)), 1_040) == [range(5)]


def names_from(base: int) -> list[bytes]:
    return [id_of(b"%d" % number) for number in range(base, base + 5)]


def named(base: int) -> Stored:
    """Five messages that the stream has taken."""
    plain = stream_log.stored(base, 5, 1_000 + base)
    head = batches.decode_head(plain.parts[0])
    whole = batches.decode(head, b"".join(plain.parts))
    parts = batches.encode(base, 1_000 + base, whole.shapes, bytes(whole.items), [None], [], names_from(base))
    return Stored(base, base + 5, 1_000 + base, parts, sum(map(len, parts)), names_from(base))


def test_streams_that_no_cluster_can_have() -> None:
    disk, _ = with_stream()
    table: dict[str, Any] = {"x-queue-type": "stream", "x-stream-unheard-of": 1}
    record = QueueRecord("/", "log", 99, False, encoded(table))
    disk.environment.put(QUEUES_TABLE, key("/", "log"), encode(record))
    disk.environment.flush()
    with pytest.raises(
        ClusterError, match="is a stream with 'x-stream-unheard-of', which streams in a cluster do not"
    ):
        list(disk.adoption().steps())
    assert disk.founded is None


def test_a_group_goes_on_where_it_was() -> None:
    """Messages that were held, and those handed out without a note, come again; messages acked behind them do
    not.
    """
    disk, journal = with_stream()
    table: dict[str, Any] = {"x-queue-type": "stream-group", "x-stream": "log"}
    record = QueueRecord("/", "readers", 100, False, encoded(table))
    disk.environment.put(QUEUES_TABLE, key("/", "readers"), encode(record))
    journal.state(100, b"\x01")
    stored = Partition(99, "log", 0)
    stored.cursor = 20
    stored.held.extend([Span(5, 8, 0), Span(12, 13, 3)])
    journal.annotate(100, 0, partition_position.encode(stored))
    disk.environment.flush()
    list(disk.adoption().steps())
    disk.environment.flush()
    found = GroupStore(disk.environment).read_state(100)
    assert found is not None
    members, state = unpack_state(found[2])
    replica = GroupReplica.restore(state, None, dead_letters=False)
    partition = replica.group.partitions[99]
    assert members.voters == ("n1",) and replica.known
    assert (partition.name, partition.cursor, partition.committed) == ("log", 20, 5)
    assert partition.pending() == [Span(5, 8, 1), Span(12, 13, 3)]
    assert Journal(disk.environment).recover_queue(100) is None


def test_streams_survive_an_adoption_that_is_not_finished() -> None:
    for done in range(30):
        disk, _ = with_stream()
        steps = disk.adoption().steps()
        for _ in zip(range(done), steps, strict=False):
            disk.environment.flush()
        disk.environment.crash()
        disk.files.crash()
        if disk.founded is not None:
            assert stream_of(disk) == [*range(30)]
            return
        recovered = Journal(disk.environment).recover_queue(99)
        assert recovered is not None
        rest = [record.first_seq for record in recovered.records]
        assert rest == [15, 20, 25]
        assert stream_of(disk)[:15] == [*range(15)]
    raise AssertionError("the adoption does not come to an end")


def test_messages_that_no_entry_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "ENTRY_BYTES_MAX", adoption.HEAD_BYTES + 44)
    disk = made(DEEDS)
    with pytest.raises(
        ClusterError, match="queue 'plain' in vhost '/' holds a message of 6. bytes; .* at most 44 bytes"
    ):
        list(disk.adoption().steps())


class Damaged(Journal):
    """A journal that has lost some of its bodies."""

    lost: range

    def read(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        return [
            record._replace(payload=b"", fault="it is damaged")
            if queue_id == 1 and record.first_seq in self.lost
            else record
            for record in super().read(queue_id, first_seq, last_seq)
        ]


def test_damaged_bodies_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A node that stands alone leaves these out, too."""
    disk = made(DEEDS)
    before = disk.alone()
    journal = Damaged(disk.environment)
    journal.lost = range(6, 16)
    for _ in disk.adoption(journal=journal).steps():
        disk.environment.flush()
    kept = [message for message in before["plain"].messages if message.seq not in journal.lost]
    assert 0 < len(kept) < len(before["plain"].messages)
    after = disk.turned()
    assert after.pop("plain") == before.pop("plain")._replace(messages=kept)
    assert after == before
    assert "queue 'plain' lost 10 messages, the first at 6" in caplog.text


def test_about_is_told_in_full() -> None:
    """The other nodes take over what one node notes, with their own name."""
    founded = Founded(IDENTITIES, name="n1", origin="n1", began_at=7)
    taken = msgspec.structs.replace(founded, lost=True, lost_before=0, name="n2")
    assert (taken.origin, taken.began_at, taken.forgotten_before) == ("n1", 7, 1 << 62)
    assert msgspec.structs.replace(taken, lost_before=30).forgotten_before == 30
    assert Founded(IDENTITIES).forgotten_before == 0
