"""Raft for one group, without I/O: calls in, `Ready` out. In the style of etcd/raft; see the Raft paper and
thesis.

Two things differ from the textbook. Groups have no heartbeats: the driver knows for each pair of nodes
whether they are in contact, and an idle group costs nothing. A follower therefore trusts its leader as long
as their nodes stay in contact, from the first message of that leader in the present session of their link
until the session ends (`lost_contact`) or the leader resigns. Secondly, the driver tells a member that it
lost its disk (`amnesiac`). The member may have given votes and acknowledged entries that it forgot, so it
neither votes nor counts until the leader has made it a learner by an entry of the log, and it has that entry.

Messages may be lost, doubled and reordered without harm. Progress after a loss depends on the sessions: a
message lost within one is sent again only while the leader waits for an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from quorum_queue.raft import dispatch, election, following
from quorum_queue.raft.errors import LogDiverged, NotLeader
from quorum_queue.raft.leading import Leadership
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import MEMBERS, NORMAL, SNAPSHOT_ANSWER, Entry, Message
from quorum_queue.raft.options import Options
from quorum_queue.raft.ready import Ready
from quorum_queue.raft.roles import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE
from quorum_queue.raft.timeouts import election_timeout, lost_timeout

#: Replaces the vote while the member has no memory; followed by the number of its new disk.
_AMNESIAC: Final = "?"


class Raft:
    """One member of one group."""

    __slots__ = (
        "attempt",
        "_configs",
        "durable_hard",
        "elapsed",
        "granted",
        "_handed_hard",
        "_messages",
        "_resting",
        "timeout",
        "_told_leader",
        "_told_role",
        "_applied",
        "acked",
        "amnesiac",
        "applies_later",
        "commit",
        "forgetful",
        "group",
        "hard",
        "installing_index",
        "leader",
        "leader_commit",
        "leadership",
        "log",
        "node",
        "offer",
        "options",
        "patient",
        "reforming",
        "role",
        "snapshots",
        "unjudged",
        "verified",
    )

    def __init__(
        self,
        node: str,
        group: int,
        *,
        members: Members,
        hard: HardState,
        log: Log,
        options: Options,
        changes: Iterable[tuple[int, Members]] = (),
        amnesiac: int = 0,
    ) -> None:
        """`members` are those at the log's snapshot (at the start of the group without one), `changes` the
        members entries after it by index. `amnesiac` is a number that no earlier disk of this node had, if
        this group's disk here is lost; the hard state keeps it for later starts."""
        self.node = node
        self.group = group
        self.options = options
        self.log = log
        self._configs: list[tuple[int, Members]] = [(log.snapshot_index, members), *changes]
        self.amnesiac = int(amnesiac)
        if hard.vote.startswith(_AMNESIAC):
            self.amnesiac = int(hard.vote[len(_AMNESIAC) :], 16)
        self.durable_hard = self._handed_hard = self.hard = hard
        self.set_hard(hard.term, "" if self.amnesiac else hard.vote)
        self.role = self._told_role = FOLLOWER
        self.leader = self._told_leader = ""
        #: The commit index that a leader has sent, whether or not the entries are here.
        self.leader_commit = 0
        self.leadership: Leadership | None = None
        self.commit = self._applied = log.snapshot_index
        #: The log equals that of this term's leader up to this index; and the index that was reported to the
        #: leader.
        self.verified = 0
        self.acked = 0
        #: The last entry of an append that could not be checked, because an unreadable entry may be among its
        #: entries.
        self.unjudged = 0
        #: True while a snapshot is being written to disk.
        self.installing_index = 0
        #: Answers in this candidacy: whether each member grants its vote.
        self.granted: dict[str, bool] | None = None
        #: Voters that said in the last candidacies that they have no memory, and have no more in their logs.
        self.forgetful: tuple[str, ...] = ()
        #: True if an operator allows this candidacy to do without voters that have no memory.
        self.reforming = False
        # There may be thousands of idle groups: all empty collections share one object.
        self._messages: list[Message] | None = None
        #: Messages that may not leave before the term and vote are durable.
        self._resting: list[Message] | None = None
        self.snapshots: tuple[str, ...] = ()
        self.offer: Message | None = None
        #: True if no client of this node waits for commits; the driver sets this.
        self.patient = False
        #: True while committed entries wait to be applied, because the turn was too short for all of them.
        self.applies_later = False
        self.elapsed = 0
        self.attempt = 0
        self.timeout = 0
        self.restart_clock()

    # -- queries
    # ---------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.hard.term

    @property
    def vote(self) -> str:
        return "" if self.amnesiac else self.hard.vote

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def members(self) -> Members:
        return self._configs[-1][1]

    @property
    def members_index(self) -> int:
        """Index of the entry that set the present members."""
        return self._configs[-1][0]

    def members_at(self, index: int) -> Members:
        """Return the members in force at an entry of the log, or at the snapshot."""
        return next(members for since, members in reversed(self._configs) if since <= index)

    def caught_up(self, node: str) -> bool:
        """Return whether a member has all committed entries, as far as a leader knows."""
        peer = self.leadership.peers.get(node) if self.leadership is not None else None
        return peer is not None and not peer.amnesiac and peer.match >= self.commit

    @property
    def quiet(self) -> bool:
        """True if this group needs no tick until its next event."""
        if self.leadership is not None:
            return self.leadership.quiet
        return bool(self.leader) or not self.may_campaign()

    @property
    def has_holes(self) -> bool:
        """Return whether an entry that is not applied yet cannot be read."""
        return bool(self.log.lost) and self.log.lost[-1] > self._applied

    def may_campaign(self) -> bool:
        # A leader must be able to send and apply all its entries, and know the last members in its log.
        return not self.amnesiac and not self.has_holes and self._may_be_needed()

    def _may_be_needed(self) -> bool:
        """Whether this member is a voter, or was one before a change that may not be committed: then a
        majority of the voters left may need its log, which has that change (thesis 4.2.2).
        """
        if self.node in self.members.voters:
            return True
        return self.members_index > self.commit and self.node in self.members_at(self.commit).voters

    def _electors(self) -> tuple[str, ...]:
        """The voters, and this member if it may campaign without being one."""
        voters = self.members.voters
        return voters if self.node in voters else (*voters, self.node)

    # -- time and contact ------------------------------------------------------------------------------------

    def tick(self, connected: Collection[str]) -> None:
        """A tick has passed; `connected` are the nodes with which this node has a session."""
        if self.leadership is not None:
            self.leadership.tick(connected)
        elif self.leader and self.leader in connected:
            self.elapsed = 0
        elif self.may_campaign():
            self.elapsed += 1
            # A node whose disk doesn't answer can't lead, and can't vote in a new term.
            if self.elapsed > self.timeout and self.durable_hard == self.hard:
                election.start_pre_vote(self)

    def lost_contact(self, node: str) -> None:
        """The session of the link to this node has ended, or the node is silent."""
        if self.leadership is not None:
            self.leadership.lost_contact(node)
        elif node == self.leader:
            self.lose_leader()

    def in_contact(self, node: str) -> None:
        """A session with this node has begun."""
        if self.leadership is not None:
            self.leadership.in_contact(node)

    def unsent(self, node: str) -> None:
        """An append to this node was not sent, because too much waits for the link."""
        peer = self.leadership.peers.get(node) if self.leadership is not None else None
        if peer is not None:
            peer.unsent()

    def lose_leader(self) -> None:
        lost, self.leader = self.leader, ""
        self.elapsed = 0
        if self.may_campaign():
            voters = self._electors()
            self.timeout = lost_timeout(self.options, self.node, voters, lost, self.group, self.term)

    def restart_clock(self) -> None:
        self.elapsed = 0
        if self.may_campaign():
            voters = self._electors()
            self.timeout = election_timeout(
                self.options, self.node, voters, self.group, self.term, self.attempt
            )

    # -- proposals -------------------------------------------------------------------------------------------

    def _leading(self) -> Leadership:
        if self.leadership is None:
            raise NotLeader(self.leader)
        return self.leadership

    def propose(self, data: bytes) -> int:
        """Return the index of the entry. Raises NotLeader."""
        return self._leading().propose(NORMAL, data)

    def propose_members(self, members: Members) -> int:
        """Return the index of the entry. Raises NotLeader, MembershipRefused."""
        return self._leading().propose_members(members)

    def transfer(self, to: str) -> None:
        """Hand leadership over to a voter. Raises NotLeader, MembershipRefused."""
        self._leading().transfer(to)

    def campaign(self) -> None:
        """Campaign at once. For the member that is to lead a new group."""
        if self.leadership is None and self.may_campaign():
            election.start_pre_vote(self)

    def reform(self) -> tuple[str, ...]:
        """For an operator: let the group continue without the voters that have no memory.

        Return the known ones, if the others are no majority.

        Until a leader has filled them, they prevent a majority. No other member can lead meanwhile, so this
        is safe, except for entries that only they had and have forgotten. All other voters have to agree. See
        quorum_queue.raft.readmission.
        """
        leadership, needed = self.leadership, self.waits_for_forgetful()
        forgetful = leadership.forgetful() if leadership is not None else self.forgetful
        if leadership is not None and needed and not leadership.transferring:
            leadership.leave_out(forgetful)
        elif leadership is None and not self.leader and self.may_campaign():
            # They answer that they have no memory. If the others are a majority, the election works as
            # always.
            election.start_pre_vote(self, reforming=True)
        return forgetful if needed else ()

    def waits_for_forgetful(self) -> bool:
        """Return whether voters without a memory keep a majority from forming."""
        forgetful = self.leadership.forgetful() if self.leadership is not None else self.forgetful
        return 2 * (len(self.members.voters) - len(forgetful)) <= len(self.members.voters)

    def hurry(self) -> None:
        """Campaign at the tick after next: no leader is known, and this node has just reached a majority.

        Only for the preferred leader; if it hears of a leader meanwhile, it stays a follower.
        """
        if self.role in (FOLLOWER, PRE_CANDIDATE) and not self.leader and self.may_campaign():
            self.elapsed = max(self.elapsed, self.timeout - 1)

    def step_down(self) -> None:
        """Stop leading, and let other members campaign first."""
        if self.leadership is not None:
            self.end_leadership()
            self.become_follower(self.term, "")
            self.elapsed = -self.options.election_ticks

    # -- snapshots -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """This member is no longer used. Break its cycle with the leadership, so that both are freed."""
        self.leadership = None

    def compact(self, index: int) -> None:
        """A durable snapshot at this index or later exists: remove the entries up to it from the log."""
        if not self.log.snapshot_index <= index <= self._applied:
            raise ValueError(f"entry {index} is not applied, or gone already")
        while len(self._configs) > 1 and self._configs[1][0] <= index:
            del self._configs[0]
        self.log.compact(index)

    def snapshot_offer(self, to: str, index: int) -> Message:
        """Return the message that precedes the snapshot at this index, which is not below the log's start."""
        return self._leading().snapshot_offer(to, index)

    def snapshot_done(self, to: str, index: int, ok: bool) -> None:
        """The driver has sent all of a Ready's snapshot, or has given up."""
        if self.leadership is not None:
            self.leadership.snapshot_done(to, index, ok)

    def installing(self, index: int, term: int) -> bool:
        """The offered snapshot has arrived completely. Return whether to write it.

        Until `restore` nothing else changes the log. A log that has got the snapshot's
        entry meanwhile must not be replaced: later entries may have been acknowledged.
        """
        if self.leadership is not None or index <= self.commit or self.log.has(index, term):
            return False
        self.installing_index = index
        return True

    def restore(self, index: int, term: int, members: Members) -> None:
        """The snapshot at this index is durable and replaces state and log."""
        if index <= self.commit:
            raise ValueError(f"a snapshot at {index} was installed over entry {self.commit}")
        self.installing_index = 0
        self.log.reset(index, term)
        self.verified = index
        self._configs = [(index, members)]
        self.commit = self._applied = index
        if self.leader:
            following.acknowledge(self, kind=SNAPSHOT_ANSWER)

    # -- the disk --------------------------------------------------------------------------------------------

    def written(self, index: int, term: int) -> None:
        """The entries of a Ready, of which this is the last, are durable."""
        if not self.log.written(index, term):
            return
        if self.leadership is not None:
            self.leadership.advance_commit()
        elif self.leader and following.durable_and_verified(self) > self.acked:
            following.acknowledge(self)

    def hard_written(self, hard: HardState) -> None:
        """The hard state of a Ready is durable."""
        self.durable_hard = hard
        if hard == self.hard and self.role == CANDIDATE:
            election.count(self, self.node, True)

    def came(self, low: int, high: int) -> None:
        """These entries of the log can be read without a wait now."""
        self.log.came(low, high)
        if self.leadership is not None:
            self.leadership.due = True

    def found(self, entry: Entry) -> None:
        """An entry that was reported lost is on disk again."""
        index = entry.index
        self.log.found(index, entry.term)
        if entry.kind == MEMBERS and index > self._configs[0][0]:
            self._configs = [config for config in self._configs if config[0] != index]
            self._configs.append((index, Members.decode(entry.data)))
            self._configs.sort(key=lambda config: config[0])
        if self.leadership is not None:
            self.leadership.due = True
        elif not self.has_holes:
            self.restart_clock()

    def cut(self, index: int) -> None:
        """Cut the log: from here on the leader has other entries or none. The caller truncates the stored
        log.
        """
        if index <= self.commit:
            raise LogDiverged(f"{self.leader} has no entry {index}, which is committed here")
        while len(self._configs) > 1 and self._configs[-1][0] >= index:
            self._configs.pop()
        self.log.truncate(index)
        self.verified = min(self.verified, index - 1)
        self.acked = min(self.acked, index - 1)

    def forget(self, amnesiac: int) -> None:
        """Forget the log after the last applied entry: the next entry is lost here, and the others no longer
        keep it, so the later entries are useless.

        They may have been acknowledged, so this counts as a lost disk; for the number see the constructor.
        The caller truncates the stored log.
        """
        if self.leadership is not None:
            self.step_down()
        first = self._applied + 1
        while len(self._configs) > 1 and self._configs[-1][0] >= first:
            self._configs.pop()
        self.log.truncate(first)
        self.commit = self._applied
        self.verified = min(self.verified, self._applied)
        self.amnesiac = amnesiac
        self.set_hard(self.term, "")
        if self.leader:
            following.acknowledge(self)

    # -- messages --------------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Take a message from another member. Raises LogDiverged."""
        if message.to == self.node and message.sender != self.node:
            dispatch.step(self, message)

    def send(self, message: Message) -> None:
        if self._messages is None:
            self._messages = [message]
        else:
            self._messages.append(message)

    def rest(self, message: Message) -> None:
        """Send the message as soon as term and vote are durable: a restart must not contradict it."""
        if self._resting is None:
            self._resting = [message]
        else:
            self._resting.append(message)

    # -- roles -----------------------------------------------------------------------------------------------

    def become_leader(self) -> None:
        self.role = LEADER
        self.leader = self.node
        self.granted = None
        self.attempt = 0
        self.leadership = Leadership(self)
        self.leadership.open_term()
        if self.reforming:
            self.leadership.leave_out(self.forgetful)
        self.reforming, self.forgetful = False, ()

    def follow(self, leader: str) -> None:
        """Follow the leader of this term, after a message from it."""
        if self.leadership is not None:
            raise LogDiverged(f"{leader} leads in term {self.term} as well")
        if self.leader != leader or self.role != FOLLOWER:
            self.become_follower(self.term, leader)
        self.elapsed = 0

    def become_follower(self, term: int, leader: str) -> None:
        if term > self.term:
            self.set_hard(term, "")
        self.role = FOLLOWER
        self.leader = leader
        self.verified = self.acked = 0
        self.granted = None
        self.reforming = False
        if leader:
            self.forgetful = ()
        self.restart_clock()

    def end_leadership(self, besides: str = "") -> None:
        if self.leadership is not None:
            self.leadership.resign(besides)
            self.leadership = None
            self.snapshots = ()

    def set_hard(self, term: int, vote: str) -> None:
        hard = HardState(term, f"{_AMNESIAC}{self.amnesiac:x}" if self.amnesiac else vote)
        # If an equal hard state is being written or durable, keep that one.
        if hard != self.hard:
            self.hard = hard

    def remember(self) -> None:
        """End the amnesia. Whatever vote was forgotten, it is safe to assume that this term's leader has got
        it.
        """
        self.amnesiac = 0
        self.set_hard(self.term, self.leader)
        following.acknowledge(self)

    # -- the log ---------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Append to the log, replacing its end if they overlap. New members count from their entry on."""
        first = entries[0].index
        while len(self._configs) > 1 and self._configs[-1][0] >= first:
            self._configs.pop()
        self.log.append(entries)
        for entry in entries:
            if entry.kind == MEMBERS:
                self._configs.append((entry.index, Members.decode(entry.data)))

    def commit_to(self, index: int) -> None:
        if index > self.commit:
            assert index <= self.log.last_index
            before, self.commit = self.commit, index
            if self.leadership is not None:
                self.leadership.committed(before)

    # -- the work to do
    # --------------------------------------------------------------------------------------------

    @property
    def has_ready(self) -> bool:
        return bool(
            self._messages
            or self.log.unwritten
            or self.hard != self._handed_hard
            or (
                self._applied < self.commit
                and not self.applies_later
                and self._applied + 1 not in self.log.lost
                and not self.log.waits(self._applied + 1)
            )
            or (self.leadership is not None and self.leadership.due)
            or (self._resting and self.durable_hard == self.hard)
            or self.snapshots
            or self.offer is not None
            or self.log.newly_lost
            or self.log.newly_asked
            or self.role != self._told_role
            or self.leader != self._told_leader
        )

    def ready(self) -> Ready:
        """Return the work to do; each piece is returned once."""
        if self.leadership is not None:
            self.leadership.send()
        log = self.log
        hard = self.hard if self.hard != self._handed_hard else None
        self._handed_hard = self.hard
        messages = tuple(self._messages or ())
        self._messages = None
        after_sync: tuple[Message, ...] = ()
        if self._resting is not None:
            if self.durable_hard == self.hard:
                messages += tuple(self._resting)
                self._resting = None
            elif hard is not None:
                after_sync = tuple(self._resting)
                self._resting = None
        entries = log.take()
        committed: tuple[Entry, ...] = ()
        if self._applied < self.commit and not self.applies_later:
            last = min(self.commit, self._applied + self.options.apply_entries_max)
            committed = log.read(self._applied + 1, last, self.options.apply_bytes_max)
            self._applied += len(committed)
        self._trim()
        ready = Ready(
            hard, entries, messages, after_sync, committed, self.snapshots, self.offer, log.newly_lost, log.newly_asked,
            self.role != self._told_role, self.leader != self._told_leader,
        )  # fmt: skip
        self._told_role, self._told_leader = self.role, self.leader
        self.snapshots = ()
        self.offer = None
        log.newly_lost = ()
        log.newly_asked = ()
        return ready

    def _trim(self) -> None:
        """Keep entries in memory only as long as they will be needed soon."""
        needed_after = self._applied
        if self.leadership is not None:
            for peer in self.leadership.peers.values():
                if peer.contact:
                    needed_after = min(needed_after, peer.next - 1)
        self.log.trim(needed_after, self.options.cache_bytes_max, self._applied)
