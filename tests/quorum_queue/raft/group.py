"""A group driven by the test: messages wait until they are delivered, and writes until they are synced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from quorum_queue.raft.core import Raft
from quorum_queue.raft.leading import Leadership
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import Message, decode_message, encode_message
from quorum_queue.raft.options import Options
from quorum_queue.raft.roles import FOLLOWER, LEADER
from tests.quorum_queue.raft.disk import SimulatedMember, Snapshot

OPTIONS = Options()


class Group:
    def __init__(
        self,
        voters: str = "abc",
        *,
        learners: str = "",
        others: str = "",
        options: Options = OPTIONS,
    ) -> None:
        self.members = Members(tuple(voters), tuple(learners))
        self.wire: list[tuple[Message, Snapshot | None]] = []
        self.sent: list[Message] = []
        self.cut: list[tuple[str, str]] = []
        self.nodes = {
            name: SimulatedMember(name, self.members, options, self.send)
            for name in voters + learners + others
        }

    def __getitem__(self, name: str) -> Raft:
        return self.nodes[name].raft

    def send(self, message: Message, snapshot: Snapshot | None) -> None:
        group, decoded = decode_message(b"".join(encode_message(7, message)))
        assert (group, decoded) == (7, message)
        self.sent.append(message)
        self.wire.append((message, snapshot))

    def pump(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                node.pump()

    def deliver(self, wanted: Callable[[Message], bool] = lambda message: True) -> int:
        """Deliver the wanted ones of the messages that wait now; the others go on waiting. Return how
        many.
        """
        waiting, self.wire = self.wire, []
        count = 0
        for message, snapshot in waiting:
            if not wanted(message):
                self.wire.append((message, snapshot))
                continue
            count += 1
            node = self.nodes.get(message.to)
            if node is not None and node.alive and (message.sender, message.to) not in self.cut:
                node.receive(message, snapshot)
        self.pump()
        return count

    def lose(self, wanted: Callable[[Message], bool] = lambda message: True) -> None:
        self.wire = [(message, snapshot) for message, snapshot in self.wire if not wanted(message)]

    def settle(self, synced: Collection[str] | None = None) -> None:
        """Go on until nothing moves: disks of these nodes (or all) write, messages arrive."""
        for _ in range(1000):
            self.pump()
            for node in self.nodes.values():
                if node.alive and (synced is None or node.name in synced):
                    node.sync_all()
            if not self.deliver():
                return
        raise AssertionError("the group never comes to rest")

    def elect_without(self, name: str, withheld: Callable[[Message], bool]) -> None:
        """Let a node become leader, but lose these messages."""
        for _ in range(20):
            self.lose(withheld)
            if self[name].role == FOLLOWER:
                self[name].campaign()
            self.pump()
            for node in self.nodes.values():
                if node.alive:
                    node.sync_all()
            self.lose(withheld)
            self.deliver()
        assert self[name].role == LEADER

    def heard(self, name: str) -> list[str]:
        """Return the nodes that this one hears."""
        return [
            other.name
            for other in self.nodes.values()
            if other.alive and other.name != name and (other.name, name) not in self.cut
        ]

    def tick(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            self[name].tick(self.heard(name))

    def tick_all(self, count: int) -> None:
        for _ in range(count):
            for node in self.nodes.values():
                if node.alive:
                    node.raft.tick(self.heard(node.name))
            self.settle()

    def elect(self, name: str) -> None:
        self[name].campaign()
        self.settle()
        assert self[name].role == LEADER

    def propose(self, name: str, data: bytes = b"x") -> int:
        index = self[name].propose(data)
        self.settle()
        return index

    def isolate(self, name: str) -> None:
        """No link of this node works any more, and all know it."""
        for other in self.nodes:
            if other != name:
                self.disconnect(name, other)

    def disconnect(self, name: str, other: str) -> None:
        self.cut += [(name, other), (other, name)]
        self.lose(lambda message: {message.sender, message.to} == {name, other})
        for one, two in ((name, other), (other, name)):
            if self.nodes[one].alive:
                self[one].lost_contact(two)

    def connect(self, name: str, other: str) -> None:
        self.cut = [pair for pair in self.cut if pair not in ((name, other), (other, name))]
        for one, two in ((name, other), (other, name)):
            if self.nodes[one].alive and self.nodes[two].alive:
                self[one].in_contact(two)

    def heal(self) -> None:
        names = list(self.nodes)
        for at, name in enumerate(names):
            for other in names[at + 1 :]:
                self.connect(name, other)

    def crash(self, name: str, writes_done: int = 0) -> None:
        self.nodes[name].crash(writes_done)
        self.lose(lambda message: name in (message.sender, message.to))
        for other in self.nodes.values():
            if other.alive:
                other.raft.lost_contact(name)

    def restart(self, name: str) -> None:
        self.nodes[name].start()
        self.reconnect(name)

    def reconnect(self, name: str) -> None:
        for other in self.nodes:
            if other != name:
                self.connect(name, other)

    def leaders(self) -> list[str]:
        return [node.name for node in self.nodes.values() if node.alive and node.raft.role == LEADER]

    def applied(self, name: str) -> list[bytes]:
        return [entry.data for entry in self.nodes[name].entries if entry.kind == 0]


def leading(group: Group, name: str) -> Leadership:
    leadership = group[name].leadership
    assert leadership is not None
    return leadership


def members(voters: Iterable[str], learners: Iterable[str] = ()) -> Members:
    return Members(tuple(voters), tuple(learners))
