"""A group in a world of its own: links, disks, and every fault that may befall them, one at a time.

A link is a session of two ordered streams, as TCP makes them. A lossy world also loses, duplicates and
reorders messages within them. That may stop progress until the sessions begin anew, but may never break what
the oracle watches.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from quorum_queue.raft.errors import MembershipRefused, NotLeader
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import MEMBERS, Message, decode_message, encode_message
from quorum_queue.raft.options import Options
from quorum_queue.raft.ready import Ready
from quorum_queue.raft.roles import LEADER
from tests.quorum_queue.raft.disk import SimulatedMember, Snapshot, Write
from tests.quorum_queue.raft.oracle import Oracle, Violation

#: Ticks of silence after which a session ends.
DEAD_TICKS = 3
#: Small limits, so that runs reach them.
OPTIONS = Options(
    election_ticks=4, lost_ticks_jitter=2, append_bytes_max=60, probe_bytes_max=20, inflight_appends_max=3, inflight_bytes_max=150, apply_bytes_max=100,
    cache_bytes_max=400, snapshot_ticks=20,
)  # fmt: skip

Packet = tuple[bytes, Snapshot | None]


class SimulatedNode(SimulatedMember):
    """A node that reports to the oracle."""

    def __init__(
        self,
        name: str,
        members: Members,
        send: Callable[[Message, Snapshot | None], None],
        oracle: Oracle,
        random: Random,
    ) -> None:
        self.oracle = oracle
        self.random = random
        self.slow_reads = random.choice((0.0, 0.3, 1.0))
        super().__init__(name, members, OPTIONS, send)

    def reads_wait(self) -> bool:
        return self.random.random() < self.slow_reads

    def handle(self, ready: Ready) -> None:
        self.oracle.handing_out(self, ready)
        super().handle(ready)

    def write_one(self) -> Write:
        write = super().write_one()
        self.oracle.written(self)
        return write


class World:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.trace = trace
        self.step = 0
        self.oracle = Oracle()
        size = self.random.choice((3, 3, 3, 5))
        names = tuple("abcdef"[:size])
        spare = tuple("xyz"[: self.random.choice((0, 0, 1))])
        self.members = Members(names)
        self.nodes: dict[str, SimulatedNode] = {}
        for name in names + spare:
            self.nodes[name] = SimulatedNode(name, self.members, self.send, self.oracle, self.random)
        self.names = list(self.nodes)
        self.pairs = [(one, two) for one in self.names for two in self.names if one != two]
        #: Both streams of a session, by (sender, receiver); no session, no entry.
        self.streams: dict[tuple[str, str], list[Packet]] = {}
        #: Directions in which nothing arrives, with the receiver's ticks since.
        self.blocked: dict[tuple[str, str], int] = {}
        self.lossy = self.random.random() < 0.3
        self.clocks = {name: self.random.choice((0.3, 0.6, 1.0)) for name in self.names}
        self.disks = {name: self.random.choice((0.1, 1.0, 1.0)) for name in self.names}
        self.next_value = 0
        self.wiped = ""
        self.disk_number = 0
        self.calm = False
        self.mend()

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.step:5} {text}")

    # -- network ---------------------------------------------------------------------------------------------

    def send(self, message: Message, snapshot: Snapshot | None) -> None:
        self.oracle.sending(self.nodes[message.sender], message)
        stream = self.streams.get((message.sender, message.to))
        if stream is not None:
            stream.append((b"".join(encode_message(7, message)), snapshot))

    def up(self, one: str, two: str) -> bool:
        return (one, two) in self.streams

    def open_session(self, one: str, two: str) -> None:
        """The first end to learn of the session may send before the other one learns of it."""
        if self.up(one, two) or not self.nodes[one].alive or not self.nodes[two].alive:
            return
        self.streams[one, two] = []
        self.streams[two, one] = []
        self.log(f"{one} and {two} are in contact")
        for name, other in ((one, two), (two, one)):
            self.nodes[name].raft.in_contact(other)
            self.nodes[name].pump()

    def close_session(self, one: str, two: str) -> None:
        if self.streams.pop((one, two), None) is None:
            return
        del self.streams[two, one]
        self.log(f"{one} and {two} have lost contact")
        for name, other in ((one, two), (two, one)):
            if self.nodes[name].alive:
                self.nodes[name].raft.lost_contact(other)
                self.nodes[name].pump()

    def deliver(self, pair: tuple[str, str]) -> None:
        stream = self.streams.get(pair)
        if not stream or pair in self.blocked:
            return
        chance = self.random.random() if self.lossy and not self.calm else 1.0
        packet = stream.pop(self.random.randrange(len(stream)) if chance < 0.05 else 0)
        if 0.05 < chance < 0.08:
            return
        if 0.08 < chance < 0.11:
            stream.insert(self.random.randrange(len(stream) + 1), packet)
        _, message = decode_message(memoryview(packet[0]))
        if self.trace is not None:
            self.log(f"{pair[1]} gets {_shown(message)}")
        node = self.nodes[pair[1]]
        node.receive(message, packet[1])
        node.pump()

    # -- what happens ----------------------------------------------------------------------------------------

    def tick(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive:
            return
        for pair in list(self.blocked):
            if pair[1] == name:
                self.blocked[pair] += 1
                if self.blocked[pair] > DEAD_TICKS:
                    self.close_session(*pair)
        if not node.raft.quiet:
            node.raft.tick([other for other in self.names if self.up(other, name)])
            node.pump()

    def leader(self) -> SimulatedNode | None:
        """Return the leader of the highest term."""
        leading = [node for node in self.nodes.values() if node.alive and node.raft.role == LEADER]
        return max(leading, key=lambda node: node.raft.term, default=None)

    def propose(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive:
            self.next_value += 1
            try:
                index = node.raft.propose(b"%d" % self.next_value + b"." * self.random.choice((0, 10, 80)))
            except NotLeader:
                return
            self.log(f"{name} proposes entry {index}")
            node.pump()

    def change_members(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive or node.raft.role != LEADER or self.wiped:
            # If the change needed the member that forgot, it would wait forever, and everything else with it.
            return
        members = node.raft.members
        other = self.random.choice(self.names)
        if self.random.random() < 0.2:
            # Any members at all; the core refuses them unless they happen to differ by one voter.
            change = Members(tuple(self.random.sample(self.names, self.random.randint(2, len(self.names)))))
        elif other in members.learners:
            if not node.raft.caught_up(other):
                return
            change = Members((*members.voters, other), tuple(n for n in members.learners if n != other))
        elif other in members.voters:
            if len(members.voters) <= 2 or self.random.random() < 0.5:
                return
            change = Members(tuple(n for n in members.voters if n != other), members.learners)
        else:
            change = Members(members.voters, (*members.learners, other))
        self.propose_members(node, change)

    def propose_members(self, node: SimulatedNode, change: Members) -> None:
        try:
            index = node.raft.propose_members(change)
        except (MembershipRefused, NotLeader) as error:
            self.log(f"{node.name} refuses members: {error}")
            return
        self.log(f"{node.name} proposes {change} as entry {index}")
        node.pump()

    def crash(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive:
            return
        writes = self.random.randrange(len(node.disk.pending) + 1)
        self.log(f"{name} crashes, {len(node.disk.pending) - writes} writes are lost")
        for other in self.names:
            if other != name:
                self.streams.get((name, other), []).clear()
        node.crash(writes)
        for other in self.names:
            if other != name:
                self.close_session(name, other)

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive:
            self.log(f"{name} starts")
            node.start()
            node.pump()

    def lose_disk(self, name: str) -> None:
        """One disk at a time, in a group of three voters or more: Raft relies on the memory of a majority."""
        if self.wiped or any(
            node.raft.members_index > node.raft.commit or len(node.raft.members.voters) < 3
            for node in self.nodes.values()
        ):
            return
        self.crash(name)
        self.wiped = name
        self.disk_number += 1
        self.log(f"{name} starts with an empty disk")
        self.nodes[name].lose_disk(self.disk_number, self.members)
        self.nodes[name].pump()

    def check_wiped(self) -> None:
        """The next disk may be lost once this one's node is a voter again and has all committed entries."""
        if self.wiped:
            leader, node = self.leader(), self.nodes[self.wiped]
            if leader is None or not node.alive or node.raft.amnesiac:
                return
            members = leader.raft.members
            self.promote(leader)
            settled = leader.raft.members_index <= leader.raft.commit == self.oracle.last_committed
            if settled and self.wiped in members.voters and leader.raft.caught_up(self.wiped):
                self.wiped = ""

    def cut(self, pair: tuple[str, str]) -> None:
        self.log(f"nothing gets from {pair[0]} to {pair[1]}")
        self.blocked.setdefault(pair, 0)

    def transfer(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive and node.raft.role == LEADER:
            to = self.random.choice(self.names)
            if to != name and to in node.raft.members.voters:
                try:
                    node.raft.transfer(to)
                except MembershipRefused:
                    return
                self.log(f"{name} hands over to {to}")
                node.pump()

    def sync(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive and node.disk.pending:
            self.log(f"the disk of {name} has written {_pending(node)}")
            node.sync()

    def read(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive and node.reading:
            self.log(f"the disk of {name} has entries {node.reading[0][0]}…{node.reading[0][1]} at hand")
            node.read_one()

    # -- the end ---------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Make everything work again: nodes are up, and all links begin anew."""
        self.blocked.clear()
        for one, two in self.pairs:
            self.close_session(one, two)
        for name in self.names:
            self.restart(name)
        for one, two in self.pairs:
            self.open_session(one, two)

    def come_to_rest(self) -> None:
        """There is a leader, it takes an entry, every member gets it, and then nothing moves any more."""
        proposed = 0
        for _ in range(400):
            self.step += 1
            self.work_off()
            leader = self.leader()
            if leader is not None and not proposed and not leader.raft.members.learners:
                before = self.next_value
                self.propose(leader.name)
                proposed = self.next_value - before
                continue
            if leader is not None:
                self.promote(leader)
                if proposed and self.is_quiet(leader):
                    members = leader.raft.members
                    self.oracle.at_rest([self.nodes[name] for name in members.everyone()])
                    return
            for name in self.names:
                self.tick(name)
        raise Violation("the group makes no progress though everything works")

    def promote(self, leader: SimulatedNode) -> None:
        """A host's policy: a member that has caught up becomes a voter."""
        raft = leader.raft
        for name in raft.members.learners:
            if raft.members_index <= raft.commit and raft.caught_up(name):
                others = tuple(n for n in raft.members.learners if n != name)
                self.propose_members(leader, Members((*raft.members.voters, name), others))
                return

    def is_quiet(self, leader: SimulatedNode) -> bool:
        names = leader.raft.members.everyone()
        return (
            all(self.nodes[name].raft.quiet for name in names)
            and not any(self.nodes[name].raft.amnesiac for name in names)
            and leader.raft.commit == leader.raft.last_index
        )

    def work_off(self) -> None:
        for _ in range(2000):
            pending = [name for name in self.names if self.nodes[name].disk.pending]
            for name in pending:
                self.sync(name)
            reading = [name for name in self.names if self.nodes[name].reading]
            for name in reading:
                self.read(name)
            waiting = [pair for pair in self.streams if self.streams[pair]]
            for pair in waiting:
                self.deliver(pair)
            if not pending and not reading and not waiting:
                return
        raise Violation("messages go round for ever")


def _pending(node: SimulatedMember) -> str:
    write = node.disk.pending[0]
    entries = f" entries {write.entries[0].index}…{write.entries[-1].index}" if write.entries else ""
    return f"{write.hard or ''}{entries}{' a snapshot' if write.snapshot else ''}"


def _shown(message: Message) -> str:
    names = "? append answer pre-vote pre-vote-answer vote vote-answer snapshot snapshot-answer timeout-now resign commit"
    fields = message.fields()
    text = [f"{names.split()[message.kind]} of {message.sender} term {message.term}"]
    text += [
        f"{key}={fields[key]}"
        for key in ("index", "log_term", "commit", "reject", "hint", "hint_term", "context", "amnesiac")
        if fields[key]
    ]
    text += [f"{entry.index}@{entry.term}{'M' if entry.kind == MEMBERS else ''}" for entry in message.entries]
    return " ".join(text)
