"""The checks that must hold at every moment of a run, whatever fails."""

from __future__ import annotations

from quorum_queue.raft.core import Raft
from quorum_queue.raft.messages import APPEND_ANSWER, SNAPSHOT_ANSWER, VOTE_ANSWER, Entry, Message
from quorum_queue.raft.ready import Ready
from tests.quorum_queue.raft.disk import SimulatedMember


class Violation(AssertionError):
    pass


class Oracle:
    """Sees everything that nodes do and everything that reaches their disks."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        #: (voter, term) → the candidate that has its vote
        self.votes: dict[tuple[str, int], str] = {}
        #: (index, term) → the entry, and the term of the one before
        self.seen: dict[tuple[int, int], tuple[Entry, int]] = {}
        #: (index, term) → nodes whose disks had it at some time
        self.on_disks: dict[tuple[int, int], list[str]] = {}
        #: index → the entry that was applied, and the term in which this was first seen
        self.committed: dict[int, tuple[Entry, int]] = {}
        self.last_committed = 0

    def handing_out(self, node: SimulatedMember, ready: Ready) -> None:
        log = node.raft.log
        for entry in ready.entries:
            before = log.term_at(entry.index - 1)
            known = self.seen.setdefault((entry.index, entry.term), (entry, before))
            if known[0] != entry or (known[1] != before and -1 not in (known[1], before)):
                raise Violation(
                    f"log matching: {node.name} has {entry} after term {before}, another had {known}"
                )
        if ready.role_changed and node.raft.leadership is not None:
            self._leads(node.name, node.raft)
        for entry in ready.committed:
            self._applies(node, entry)

    def _leads(self, name: str, raft: Raft) -> None:
        other = self.leaders.setdefault(raft.term, name)
        if other != name:
            raise Violation(f"election safety: {name} and {other} lead in term {raft.term}")
        for index, (entry, since) in self.committed.items():
            if (
                since < raft.term
                and index > raft.log.snapshot_index
                and raft.log.term_at(index) != entry.term
            ):
                raise Violation(f"leader completeness: {name} leads in term {raft.term} without {entry}")

    def _applies(self, node: SimulatedMember, entry: Entry) -> None:
        raft = node.raft
        known = self.committed.setdefault(entry.index, (entry, raft.term))
        if known[0] != entry:
            raise Violation(f"state machine safety: {node.name} applies {entry}, another had {known[0]}")
        if entry.index > self.last_committed:
            self.last_committed = entry.index
            holders = self.on_disks.get((entry.index, entry.term), [])
            # A leader counts by its newest members, which the node that applies first may not have yet.
            if not any(
                sum(name in holders for name in members.voters) > len(members.voters) // 2
                for members in (raft.members_at(entry.index), raft.members)
            ):
                raise Violation(f"durability: {node.name} applies {entry}, which only {holders} have written")

    def written(self, node: SimulatedMember) -> None:
        """A write has reached the disk of this node."""
        for entry in node.disk.log.values():
            holders = self.on_disks.setdefault((entry.index, entry.term), [])
            if node.name not in holders:
                holders.append(node.name)

    def sending(self, node: SimulatedMember, message: Message) -> None:
        if message.kind == VOTE_ANSWER and not message.reject:
            other = self.votes.setdefault((node.name, message.term), message.to)
            if other != message.to:
                raise Violation(f"{node.name} votes for {message.to} after {other} in term {message.term}")
            if node.disk.hard.term < message.term or (
                node.disk.hard.term == message.term and node.disk.hard.vote != message.to
            ):
                raise Violation(f"{node.name} sends a vote that is not on its disk: {message}")
        elif message.kind in (APPEND_ANSWER, SNAPSHOT_ANSWER) and not message.reject:
            if message.index > max(node.disk.last_index, node.disk.snapshot.index):
                raise Violation(f"{node.name} acknowledges what is not on its disk: {message}")
            if node.disk.hard.term < message.term:
                raise Violation(f"{node.name} answers in a term that is not on its disk: {message}")

    def at_rest(self, nodes: list[SimulatedMember]) -> None:
        """After everything is mended and calm, all members are the same."""
        for node in nodes:
            if node.applied < self.last_committed:
                raise Violation(f"{node.name} has applied {node.applied} of {self.last_committed}")
            if node.digest != nodes[0].digest:
                raise Violation(f"{node.name} and {nodes[0].name} have applied different entries")
            if node.raft.members != nodes[0].raft.members:
                raise Violation(f"{node.name} and {nodes[0].name} differ on who the members are")
