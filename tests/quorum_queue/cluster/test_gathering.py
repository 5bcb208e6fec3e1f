"""When the batches that reach a leader become an entry."""

from __future__ import annotations

from collections.abc import Collection

from amqp_server.cluster.store import GroupLog, GroupStore
from persistence.memory import MemoryEnvironment
from persistence.stepped import SteppedCommit
from quorum_queue.cluster.group import Group
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.replicas import SMALL_ENTRY_BYTES, Replicas
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.options import Options

NAMES = ("a", "b", "c")


class Batches:
    """A state machine that remembers the entries that it was given."""

    single = False
    awaited = True

    def __init__(self) -> None:
        self.entries: list[list[bytes]] = []

    def encode(self, now_ms: int, batches: list[bytes]) -> bytes:
        return b"|".join(batches)

    def apply(self, index: int, data: bytes) -> None:
        self.entries.append(data.split(b"|"))

    def passed(self, index: int) -> None: ...
    def settled(self) -> None: ...
    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None: ...
    def wanted(self, index: int) -> bool:
        return True

    def kept_in(self, state: bytes) -> list[int]:
        return []

    def landed(self) -> int:
        return 0

    def kept(self) -> list[int]:
        return []

    def released(self) -> list[int]:
        return []

    def leader_changed(self) -> None: ...
    def members_changed(self, members: Members) -> None: ...


class Node:
    """Its disk writes when the test says so."""

    def __init__(self, name: str, wire: list[tuple[str, str, bytes]]) -> None:
        self.name = name
        self._wire = wire
        environment = MemoryEnvironment()
        self.disk = SteppedCommit(environment)
        self.machine = Batches()
        store = GroupStore(environment)
        self.replicas = Replicas(
            name,
            1,
            store=store,
            commits=self.disk,
            links=self,
            clock=lambda: 1,
            options=ReplicationOptions(),
            raft=Options(),
        )
        log = Log(GroupLog(store, 7))
        self.group: Group = self.replicas.open(
            7, self.machine, members=Members(NAMES), hard=HardState(0, ""), log=log, applied=0
        )

    def send(self, peer: str, parts: list[bytes]) -> bool:
        self._wire.append((self.name, peer, b"".join(parts)))
        return True

    def pending_bytes(self, peer: str) -> int:
        return 0

    def connected(self) -> Collection[str]:
        return [name for name in NAMES if name != self.name]

    def sync(self) -> None:
        while self.disk.begin():
            self.disk.end()
        self.replicas.turn()


class Cluster:
    def __init__(self) -> None:
        self.wire: list[tuple[str, str, bytes]] = []
        self.nodes = {name: Node(name, self.wire) for name in NAMES}
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
            node.replicas.turn()

    def settle(self) -> None:
        for _ in range(100):
            for node in self.nodes.values():
                node.replicas.turn()
                node.sync()
            if not self.wire:
                return
            self.deliver()
        raise AssertionError("the cluster never comes to rest")

    def take(self, batch: bytes) -> None:
        self.leader.group.take(batch)
        self.leader.replicas.turn()


def test_the_first_batch_goes_at_once_and_what_comes_while_it_is_written_goes_together() -> None:
    cluster = Cluster()
    last = cluster.leader.group.core.last_index
    for batch in (b"one", b"two", b"three"):
        cluster.take(batch)
    assert cluster.leader.group.core.last_index == last + 1
    cluster.settle()
    for node in cluster.nodes.values():
        assert node.machine.entries == [[b"one"], [b"two", b"three"]]


def test_what_waits_goes_when_the_own_disk_is_done_though_nobody_answers() -> None:
    cluster = Cluster()
    cluster.take(b"one")
    cluster.take(b"two")
    last = cluster.leader.group.core.last_index
    cluster.leader.sync()
    assert cluster.leader.group.core.last_index == last + 1


def test_what_waits_goes_when_the_others_have_committed_though_the_own_disk_is_not_done() -> None:
    cluster = Cluster()
    cluster.take(b"one")
    cluster.take(b"two")
    last = cluster.leader.group.core.last_index
    cluster.deliver()
    cluster.nodes["b"].sync()
    cluster.nodes["c"].sync()
    cluster.deliver()
    assert cluster.leader.machine.entries == [[b"one"]]
    assert cluster.leader.group.core.last_index == last + 1


def test_large_batches_do_not_wait() -> None:
    cluster = Cluster()
    last = cluster.leader.group.core.last_index
    cluster.take(b"one")
    cluster.take(b"x" * SMALL_ENTRY_BYTES)
    assert cluster.leader.group.core.last_index == last + 2
