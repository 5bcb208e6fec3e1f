"""A leader's side: replication, commit, hand-over. A `Leadership` exists only while its node leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from quorum_queue.raft import readmission
from quorum_queue.raft.errors import MembershipRefused, TransferInProgress
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import (
    APPEND,
    COMMIT,
    EMPTY,
    MEMBERS,
    RESIGN,
    SNAPSHOT,
    SNAPSHOT_ANSWER,
    TIMEOUT_NOW,
    Entry,
    Message,
)
from quorum_queue.raft.progress import PROBE, REPLICATE, Progress
from quorum_queue.raft.progress import SNAPSHOT as NEEDS_SNAPSHOT

if TYPE_CHECKING:
    from quorum_queue.raft.core import Raft

#: A member that has stopped lacks at least one of so many entries behind those that it is known to have.
SHOWN_ENTRIES: Final = 16


class Leadership:
    __slots__ = (
        "due",
        "first_index",
        "peers",
        "quorum_silent",
        "raft",
        "telling",
        "transfer_silent",
        "transferring",
    )

    def __init__(self, raft: Raft) -> None:
        self.raft = raft
        #: The first entry of this term: all earlier entries are committed when it is.
        self.first_index = raft.log.last_index + 1
        self.peers: dict[str, Progress] = {}
        #: True if there may be something to send.
        self.due = True
        #: True after a tick: also tell the commit to followers that may hear of it late.
        self.telling = False
        self.quorum_silent = 0
        self.transferring = ""
        self.transfer_silent = 0
        self.meet_members()

    # -- proposals -------------------------------------------------------------------------------------------

    def propose(self, kind: int, data: bytes) -> int:
        raft = self.raft
        if self.transferring:
            raise TransferInProgress("")
        index = raft.log.last_index + 1
        raft.append((Entry(index, raft.term, kind, data),))
        self.due = True
        return index

    def open_term(self) -> None:
        self.propose(EMPTY, b"")

    def show_majority(self, name: str) -> None:
        """Append an empty entry, unless there is enough that this member has never had: its commit shows the
        member, which has stopped, that the others are a majority without it. Raises TransferInProgress.
        """
        peer, last = self.peers.get(name), self.raft.log.last_index
        if peer is not None and self.raft.commit == last < peer.match + SHOWN_ENTRIES:
            self.propose(EMPTY, b"")

    def propose_members(self, members: Members) -> int:
        """See Raft paper 4.3 (dissertation) and the erratum on it: not before an entry of this term is
        committed.
        """
        raft = self.raft
        problem = members.problem()
        if not problem and raft.commit < self.first_index:
            problem = "the leader has not committed an entry of its term yet"
        if not problem and raft.members_index > raft.commit:
            problem = f"the change at entry {raft.members_index} is not committed yet"
        if not problem and members.voters_changed(raft.members) > 1:
            problem = "only one voter may be added or removed at a time"
        for name in members.voters:
            peer = self.peers.get(name)
            if not problem and name not in raft.members.voters and peer is not None and peer.amnesiac:
                problem = f"{name} has lost its disk and has not caught up yet"
        if not problem and not self.could_commit(members):
            problem = "a majority of the voters that it leaves is not reached, so it might never be committed"
        if problem:
            raise MembershipRefused(problem)
        index = self.propose(MEMBERS, members.encode())
        self.meet_members()
        return index

    def forgetful(self) -> tuple[str, ...]:
        """Return the voters without a memory; empty if another voter cannot be reached."""
        peers = {name: self.peers[name] for name in self.raft.members.voters if name != self.raft.node}
        if not all(peer.contact for peer in peers.values()):
            return ()
        return tuple(name for name, peer in peers.items() if peer.amnesiac)

    def leave_out(self, names: tuple[str, ...]) -> None:
        """Make these members without a memory learners, all at once: see Raft.reform."""
        members = self.raft.members
        for name in names:
            members = members.demoted(name)
        self.propose(MEMBERS, members.encode())
        self.meet_members()

    def could_commit(self, members: Members) -> bool:
        """Return whether a majority of these voters is in contact and counts. New voters are assumed to."""
        ready = 0
        for name in members.voters:
            peer = self.peers.get(name)
            ready += name == self.raft.node or peer is None or (peer.contact and not peer.amnesiac)
        return ready > len(members.voters) // 2

    def meet_members(self) -> None:
        """Use new members at once; serve leaving members until their removal is committed."""
        raft = self.raft
        everyone = raft.members.everyone()
        for name in everyone:
            if name != raft.node and name not in self.peers:
                self.peers[name] = Progress(raft.log.last_index + 1)
        if raft.members_index <= raft.commit:
            self.peers = {name: peer for name, peer in self.peers.items() if name in everyone}
        self.due = True

    # -- time and contact ------------------------------------------------------------------------------------

    def tick(self, connected: Collection[str]) -> None:
        raft = self.raft
        options = raft.options
        for name, peer in self.peers.items():
            if name not in connected:
                peer.contact = False
            elif not peer.contact:
                self.in_contact(name)
            else:
                if peer.told < self.commit_for(peer):
                    self.telling = self.due = True
                if peer.is_behind(raft.log.last_index):
                    self._wait_for(peer)
        if self.has_quorum():
            self.quorum_silent = 0
        else:
            self.quorum_silent += 1
            if self.quorum_silent >= options.election_ticks:
                raft.step_down()
                return
        if self.transferring:
            self.transfer_silent += 1
            if self.transfer_silent >= options.election_ticks:
                self.transferring = ""

    def _wait_for(self, peer: Progress) -> None:
        if peer.state == NEEDS_SNAPSHOT and not peer.snapshot_sent:
            return
        options = self.raft.options
        peer.silent += 1
        if peer.silent >= (
            options.snapshot_ticks if peer.state == NEEDS_SNAPSHOT else peer.patience(options)
        ):
            peer.probe()
            self.due = True

    def in_contact(self, node: str) -> None:
        """A follower's node is in contact (again): tell it who leads, and find out how far its log agrees."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.contact = True
            if peer.state != NEEDS_SNAPSHOT:
                peer.probe()
            self.due = True

    def lost_contact(self, node: str) -> None:
        peer = self.peers.get(node)
        if peer is not None:
            peer.contact = False
            peer.probe()

    def has_quorum(self) -> bool:
        voters = self.raft.members.voters
        reached = sum(name == self.raft.node or self.peers[name].contact for name in voters)
        return reached > len(voters) // 2

    @property
    def quiet(self) -> bool:
        if self.transferring or self.quorum_silent:
            return False
        last_index = self.raft.log.last_index
        for peer in self.peers.values():
            if peer.contact and (peer.is_behind(last_index) or peer.told < self.commit_for(peer)):
                return False
        return self.has_quorum()

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send the followers everything that flow control permits."""
        self.due = False
        for name, peer in self.peers.items():
            if peer.contact and peer.state != NEEDS_SNAPSHOT:
                self._send_to(name, peer)
        self.telling = False
        target = self.peers.get(self.transferring)
        if target is not None and target.match == self.raft.log.last_index:
            self.raft.send(Message(TIMEOUT_NOW, self.raft.node, self.transferring, self.raft.term))
        if self.raft.members_index <= self.raft.commit and self.raft.node not in self.raft.members.voters:
            # The change that removes this node is committed, and the others were informed above.
            self.raft.step_down()

    def _send_to(self, name: str, peer: Progress) -> None:
        raft = self.raft
        options = raft.options
        if peer.next <= raft.log.snapshot_index:
            peer.state = NEEDS_SNAPSHOT
            peer.inflight.clear()
            peer.inflight_bytes = 0
            peer.snapshot_sent = False
            raft.snapshots += (name,)
        elif peer.state == PROBE:
            if peer.due:
                peer.due = False
                entries = raft.log.read(peer.next, raft.log.last_index, options.probe_bytes_max)
                peer.probe_bytes = sum(len(entry.data) for entry in entries)
                self._append(name, peer, entries)
        else:
            while peer.next <= raft.log.last_index and peer.has_room(options):
                entries = raft.log.read(peer.next, raft.log.last_index, options.append_bytes_max)
                if not entries:
                    break
                peer.sent(entries[-1].index, sum(len(entry.data) for entry in entries))
                peer.told = max(peer.told, self._append(name, peer, entries))
            self._tell_commit(name, peer)

    def _append(self, name: str, peer: Progress, entries: tuple[Entry, ...]) -> int:
        """Send an append; return the commit that it contains."""
        raft = self.raft
        index = entries[0].index - 1 if entries else self._known_index(peer)
        commit = min(raft.commit, entries[-1].index) if entries else self.commit_for(peer)
        admitted = peer.amnesiac if peer.floor >= 0 else 0
        raft.send(
            Message(
                APPEND,
                raft.node,
                name,
                raft.term,
                index,
                raft.log.term_at(index),
                commit,
                entries,
                hint=peer.floor if admitted else 0,
                hint_term=raft.commit,
                amnesiac=admitted,
            )  # fmt: skip
        )
        return commit

    def commit_for(self, peer: Progress) -> int:
        """Return the commit for a message without entries: no more than the follower certainly has."""
        return min(self.raft.commit, peer.match)

    def _known_index(self, peer: Progress) -> int:
        """Return the index that an append without entries follows on: for a follower in step, its known last
        one.
        """
        if peer.state == REPLICATE and peer.match >= self.raft.log.snapshot_index:
            return peer.match
        return max(peer.next - 1, self.raft.log.snapshot_index)

    def tell_all(self) -> None:
        """Tell the commit to all followers now, also to those that may hear of it late."""
        self.telling = self.due = True

    def _tell_commit(self, name: str, peer: Progress) -> None:
        raft = self.raft
        commit = self.commit_for(peer)
        if commit > peer.told and (self.telling or not peer.patient):
            peer.told = commit
            index = self._known_index(peer)
            raft.send(Message(COMMIT, raft.node, name, raft.term, index, raft.log.term_at(index), commit,
                              hint_term=raft.commit))  # fmt: skip

    # -- answers ---------------------------------------------------------------------------------------------

    def on_answer(self, message: Message) -> None:
        """Handle an answer to APPEND, COMMIT or SNAPSHOT."""
        peer = self.peers.get(message.sender)
        if peer is None:
            return
        peer.silent = 0
        peer.patient = message.patient
        if message.amnesiac != peer.amnesiac:
            readmission.memory_changed(message, peer)
        if message.reject:
            self._back_off(message, peer)
        else:
            self._accepted(message, peer)
        if peer.amnesiac:
            readmission.proceed(self, message.sender, peer)
        self.due = True

    def _accepted(self, message: Message, peer: Progress) -> None:
        peer.acked(message.index)
        peer.told = max(peer.told, message.commit)
        if (
            peer.state == PROBE
            or message.kind == SNAPSHOT_ANSWER
            or (peer.state == NEEDS_SNAPSHOT and peer.match >= self.raft.log.snapshot_index)
        ):
            peer.replicate()
        if peer.match > self.raft.commit:
            self.advance_commit()

    def _back_off(self, message: Message, peer: Progress) -> None:
        if peer.state == REPLICATE and message.index > peer.match:
            peer.probe()
        elif peer.state == PROBE and message.index == peer.next - 1:
            # A follower may have lost entries that it once acknowledged: send them again.
            peer.match = min(peer.match, message.hint)
            peer.probe()
        else:
            return
        log = self.raft.log
        best = log.last_before_conflict(message.hint, message.hint_term)
        if best == log.snapshot_index and log.snapshot_term > message.hint_term:
            best -= 1  # The logs do not even agree at its snapshot: it needs ours.
        peer.next = max(peer.match, best) + 1

    def snapshot_done(self, node: str, index: int, ok: bool) -> None:
        peer = self.peers.get(node)
        if peer is None or peer.state != NEEDS_SNAPSHOT:
            return
        peer.silent = 0
        if ok:
            peer.snapshot_sent = True
            peer.next = index + 1
        else:
            # The next probe waits for a tick: the same failure would come again at once.
            peer.probe()
            peer.due = False

    def snapshot_offer(self, node: str, index: int) -> Message:
        raft = self.raft
        return Message(SNAPSHOT, raft.node, node, raft.term, index, raft.log.term_at(index),
                       members=raft.members_at(index))  # fmt: skip

    # -- commit ----------------------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        raft = self.raft
        voters = raft.members.voters
        matches = [self._match(name) for name in voters]
        matches.sort()
        # More than half of them have at least this one.
        index = matches[(len(matches) - 1) // 2]
        # Entries of earlier terms are committed only along with one of this term (Raft paper, figure 8).
        if index > raft.commit and raft.log.term_at(index) == raft.term:
            raft.commit_to(index)

    def _match(self, name: str) -> int:
        if name == self.raft.node:
            return self.own_match()
        peer = self.peers[name]
        return 0 if peer.amnesiac else peer.match

    def own_match(self) -> int:
        """The leader's own disk counts only once its write is done."""
        return self.raft.log.stable_index

    def reached(self) -> int:
        """Return the index up to which all voters in contact have the log on their disks, and a majority of
        all.

        A voter that has lost its memory is no voter until it has caught up.
        """
        raft = self.raft
        index = min(raft.commit, self.own_match())
        for name in raft.members.voters:
            if name != raft.node:
                peer = self.peers[name]
                if peer.contact and not peer.amnesiac:
                    index = min(index, peer.match)
        return index

    def committed(self, before: int) -> None:
        """The commit has risen from the index `before`."""
        self.due = True
        changed = self.raft.members_index
        if changed > self.raft.commit:
            return
        if changed > before:
            self.meet_members()
        for name, peer in self.peers.items():
            if peer.amnesiac:
                readmission.proceed(self, name, peer)

    # -- the end ---------------------------------------------------------------------------------------------

    def transfer(self, to: str) -> None:
        peer = self.peers.get(to)
        if peer is None or to not in self.raft.members.voters or peer.amnesiac:
            raise MembershipRefused(f"{to} is no voter of this group")
        self.transferring = to
        self.transfer_silent = 0
        self.due = True

    def resign(self, besides: str = "") -> None:
        """Tell the others that this node no longer leads."""
        raft = self.raft
        for name in self.peers:
            if name != besides:
                raft.send(Message(RESIGN, raft.node, name, raft.term))
