"""When the batches that a leader has received become an entry."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import pytest

from amqp_server.broker.timers import Timers
from amqp_server.cluster.store import GroupLog, GroupStore
from persistence.commits.stepped import SteppedCommit
from quorum_queue.boundary import Boundary
from quorum_queue.cluster.entry_batching import SMALL_ENTRY_BYTES
from quorum_queue.cluster.kept_entries import NOTHING_KEPT
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.replica_group import Foresee, Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.options import Options
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment

NAMES = ("a", "b", "c")


class Batches:
    """A state machine that remembers its entries."""

    title = "a group"
    foresee: Foresee | None = None
    keeps = NOTHING_KEPT
    awaited = True

    def __init__(self, *, single: bool) -> None:
        self.single = single
        self.entries: list[list[bytes]] = []

    def encode(self, batches: list[bytes]) -> bytes:
        return b"|".join(batches)

    def apply(self, index: int, data: bytes) -> None:
        self.entries.append(data.split(b"|"))

    def passed(self, index: int) -> None: ...
    def passed_over(self, index: int) -> None: ...

    def closed(self) -> None: ...
    def entries_applied(self) -> None: ...
    def covered(self, applied: int) -> int:
        return applied

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        then()

    @property
    def fills_itself(self) -> bool:
        return False

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        then(b"")

    def come_to(self, state: bytes, then: Callable[[], None]) -> None: ...
    def restore(self, state: bytes) -> None: ...
    def last_own_batch(self) -> int:
        return 0

    def failed(self, error: Exception) -> None:
        raise error

    def leader_changed(self) -> None: ...
    def members_changed(self, members: Members) -> None: ...


class GatheringNode:
    """A node whose disk writes when the test says so. It is its own turn, too."""

    def __init__(self, name: str, wire: list[tuple[str, str, bytes]], *, single: bool) -> None:
        self.name = name
        self._wire = wire
        self.clock = ManualClock(1_000)
        self.busy = False
        #: Work that a busy node has left for later.
        self.left: list[Callable[[], object]] = []
        self.timers = Timers(lambda: None)
        environment = MemoryEnvironment()
        self.disk = SteppedCommit(environment)
        self.machine = Batches(single=single)
        store = GroupStore(environment)
        self.replicas = Replicas(
            name,
            1,
            store=store,
            commits=self.disk,
            links=self,
            clock=self.clock,
            timers=self.timers,
            options=ReplicationOptions(),
            raft=Options(),
            boundary=Boundary(),
        )
        log = Log(GroupLog(store, 7))
        self.group: Group = self.replicas.open(
            7, self.machine, members=Members(NAMES), hard=HardState(0, ""), log=log, applied=0
        )

    def send(self, peer: str, parts: list[bytes]) -> bool:
        self._wire.append((self.name, peer, b"".join(parts)))
        return True

    def features_of(self, peer: str) -> Collection[str]:
        return ()

    def arrived_bytes(self, peer: str) -> int:
        return 0

    def pending_bytes(self, peer: str) -> int:
        return 0

    def connected(self) -> Collection[str]:
        return [name for name in NAMES if name != self.name]

    def sync(self) -> None:
        while self.disk.begin():
            self.disk.end()
        self.turn()

    def overdue(self) -> bool:
        return self.busy

    def later(self, unit: Group, call: Callable[[], object]) -> None:
        self.left.append(call)

    def turn(self) -> None:
        turn: Any = self
        left, self.left = self.left, []
        for call in left:
            call()
        while groups := self.replicas.take_dirty():
            for group in groups:
                self.replicas.carry_out(group, turn)
        self.replicas.write()


class Cluster:
    def __init__(self, *, single: bool = False) -> None:
        self.wire: list[tuple[str, str, bytes]] = []
        self.nodes = {name: GatheringNode(name, self.wire, single=single) for name in NAMES}
        self.leader = self.nodes["a"]
        self.leader.group.core.campaign()
        self.leader.replicas.touch(self.leader.group)
        self.settle()
        assert self.leader.group.is_leader

    def deliver(self) -> None:
        wire, self.wire[:] = list(self.wire), []
        for sender, to, frame in wire:
            self.nodes[to].replicas.received(sender, memoryview(frame))
        for node in self.nodes.values():
            node.turn()

    def settle(self) -> None:
        for _ in range(100):
            for node in self.nodes.values():
                node.turn()
                node.sync()
            if not self.wire:
                return
            self.deliver()
        raise AssertionError("the cluster never comes to rest")

    def take(self, batch: bytes) -> None:
        self.leader.group.take(batch)
        self.leader.turn()


def test_of_clients_that_wait_for_each_other_none_waits_for_an_entry() -> None:
    """The two are a publish, and the ack of the message before it."""
    cluster = Cluster()
    last = cluster.leader.group.core.last_index
    cluster.take(b"one")
    cluster.take(b"two")
    assert cluster.leader.group.core.last_index == last + 2


def test_what_comes_while_two_entries_are_on_their_way_goes_together() -> None:
    cluster = Cluster()
    for batch in (b"one", b"two", b"three", b"four"):
        cluster.take(batch)
    cluster.settle()
    for node in cluster.nodes.values():
        assert node.machine.entries == [[b"one"], [b"two"], [b"three", b"four"]]


def test_where_more_come_than_entries_an_entry_waits_for_the_one_before_it() -> None:
    cluster = Cluster()
    leader = cluster.leader
    for batch in (b"one", b"two", b"three", b"four"):
        cluster.take(batch)
    leader.sync()
    cluster.deliver()
    for name in "bc":
        cluster.nodes[name].sync()
    # The answers commit the first two, so the other two go together, and go out.
    cluster.deliver()
    last = leader.group.core.last_index
    assert leader.group.core.commit == last - 1
    leader.clock.now_ms += leader.replicas.options.gather_ms
    cluster.take(b"five")
    assert leader.group.core.last_index == last
    cluster.settle()
    assert leader.machine.entries == [[b"one"], [b"two"], [b"three", b"four"], [b"five"]]


def test_and_follows_it_no_sooner_than_a_moment_later() -> None:
    cluster = crowded()
    leader = cluster.leader
    last = leader.group.core.last_index
    cluster.take(b"five")
    cluster.take(b"six")
    assert leader.group.core.last_index == last
    due = leader.timers.next_ms
    assert due == leader.clock.now_ms + leader.replicas.options.gather_ms
    # No other batch comes.
    leader.clock.now_ms = due
    leader.timers.run(due)
    cluster.settle()
    assert leader.machine.entries[-1] == [b"five", b"six"]
    assert leader.timers.next_ms is None


def crowded() -> Cluster:
    """Return a cluster whose last entry had more than one batch, and is committed."""
    cluster = Cluster()
    for batch in (b"one", b"two", b"three", b"four"):
        cluster.take(batch)
    cluster.settle()
    assert cluster.leader.group.core.commit == cluster.leader.group.core.last_index
    return cluster


def test_large_batches_do_not_wait() -> None:
    cluster = Cluster()
    last = cluster.leader.group.core.last_index
    for batch in (b"one", b"two", b"x" * SMALL_ENTRY_BYTES):
        cluster.take(batch)
    assert cluster.leader.group.core.last_index == last + 3


@pytest.mark.parametrize("single", [False, True])
def test_what_is_committed_is_applied_in_parts(single: bool) -> None:
    """However many entries come at once, as after a pause. Those of the topology take longer."""
    cluster = Cluster(single=single)
    follower = cluster.nodes["b"]
    before = len(follower.machine.entries)
    for number in range(300):
        # These batches are too large to go together.
        cluster.take(b"%d" % number + b"x" * SMALL_ENTRY_BYTES)
    follower.busy = True
    counts = [before]
    while follower.left or counts[-1] < before + 300:
        for node in cluster.nodes.values():
            node.turn()
            counts += [len(follower.machine.entries)] if node is follower else []
            node.sync()
            counts += [len(follower.machine.entries)] if node is follower else []
        cluster.deliver()
        counts.append(len(follower.machine.entries))
        assert len(counts) < 1_000
    parts = [after - earlier for earlier, after in pairwise(counts) if after > earlier]
    most = Options().apply_single_max if single else Options().apply_entries_max
    assert len(parts) >= 5 and max(parts) <= most
    assert [entry[0][:3].rstrip(b"x") for entry in follower.machine.entries] == [
        b"%d" % n for n in range(300)
    ]
