"""Entries that this node's disk has lost: fetch them from other members, or find out that no member has them.

*A lost entry is a hole in the log.* The entries after it stay, and the member keeps its vote: it acknowledged
that entry, and may be one of the majority that committed it. It follows and votes, applies nothing from the
hole on, and does not stand for election (see quorum_queue.raft.core.Raft.may_campaign): a leader has to send
and apply its entries, and the last change of members may be in the hole.

*Which entry it was* is mostly known: index and term identify one entry, on any member and whether it is
committed or not. The term is known if the readable entries around the hole have the same one. If not, the
hole is the entry before the next readable one (`Question.anchor`): logs that agree there agree on all earlier
entries. For a hole at the end of the log only the present leader can say which entry belongs there. Until
then, the log counts in elections as one that ends with the highest term that the node had seen: this may
refuse a candidate that has everything, but never elects one that lacks something.

*A leader has deleted the entry*, because all members in contact had it: then the leader fills this member
with a snapshot, like one that lost its disk (quorum_queue.raft.readmission). The member has no vote
meanwhile, so the leader lets one member at a time do that.

*All other members say that they cannot read it either*: then it is lost. The node logs that now and then and
shows it to operators, and the group waits until an operator gives up the entry (`pass_over`). Then an empty
entry of the same index and term takes the place of the lost one, so that the log is the same on all members,
no matter which member begins. If the entry was applied long ago, a command in the log removes its messages
from the queue.

*The end of a log is lost, and another member can read an entry there*: it may be the same one. If most logs
end like this, no member is elected: these members refuse the one that can read its log, because they may have
committed an entry that it lacks. When an operator says so, they yield: their logs count as ending with the
entries that another member can still read there. So the best of the readable logs wins, and the others take
over its entries. Holes after that, which no member can read, are removed from the log. If no member can read
anything in the whole end of the log, empty entries replace it, but the log keeps its rank in elections: the
entries before were acknowledged no later than those.

*Most members have no memory*, so that no majority can form, and nothing can be given up by a command in the
log: then the group continues without their votes (see quorum_queue.raft.core.Raft.reform), and fills them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import Question, SoughtEntry, StoredEntry
from quorum_queue.cluster.snapshots import compaction, transfer
from quorum_queue.raft.errors import LogDiverged
from quorum_queue.raft.messages import EMPTY, PASSED_OVER, Entry

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group
    from quorum_queue.cluster.replicas import Replicas

logger = logging.getLogger("mqd.replication")

#: Entries named in a line of the log.
NAMED_MAX = 10


class GivenUp(NamedTuple):
    """The entries and votes that a member gives up because an operator says so."""

    #: Entries that no member can read, or that may be others than those that a member can read.
    entries: int
    #: Members without memory, which lose their votes until they are filled.
    members: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.entries or self.members)


class _Loss:
    """One entry that cannot be read."""

    __slots__ = ("perhaps", "said", "told", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        #: True if the loss was logged, and the other members were asked for the entry.
        self.told = False
        #: The answers of the other members about it in the present sessions.
        self.said: dict[str, int] = {}
        #: Terms of the entries that members have there, which may be this one.
        self.perhaps: dict[str, int] = {}


class LostEntries:
    """The lost entries of all groups of the node."""

    __slots__ = (
        "_asked_ms",
        "_filled",
        "_replicas",
        "_rounds",
        "_said_ms",
        "_waiting",
        "found_count",
    )

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        #: Losses by group and index.
        self._waiting: dict[tuple[int, int], _Loss] = {}
        self._asked_ms = 0
        self._rounds = 0
        #: How many entries were found lost since this node started.
        self.found_count = 0
        #: When the loss of entries on all members was last logged, by group.
        self._said_ms: dict[int, int] = {}
        #: For groups led here: the member that may forget its log, and until when no other one may.
        self._filled: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def entries(self) -> list[tuple[int, int]]:
        return list(self._waiting)

    def add(self, group: Group, index: int, then: Callable[[], None] | None = None) -> None:
        """An entry cannot be read: fetch it, and call `then` when it has arrived or is given up.

        An entry below the snapshot is deleted as soon as its last message is settled, but the snapshot that a
        start reads still names it. The node knows only after it has applied the log again whether the entry
        is lost or was deleted.
        """
        loss = self._waiting.get((group.id, index))
        if loss is None:
            loss = self._waiting[group.id, index] = _Loss()
            if index > group.snapshot_index or group.informed:
                self._tell(group, index, loss)
        if then is not None:
            loss.waiting.append(then)

    def _tell(self, group: Group, index: int, loss: _Loss) -> None:
        logger.error(
            "%s: entry %d of its log cannot be read, fetching it from a peer", group.machine.title, index
        )
        loss.told = True
        self.found_count += 1
        self._ask(group, [index])

    # -- asking ----------------------------------------------------------------------------------------------

    def _ask(self, group: Group, indexes: list[int]) -> None:
        """Ask one of the other members, in turn."""
        linked = [peer for peer in self._others(group) if self._replicas.linked(peer)]
        if linked:
            turn, to = divmod(self._rounds, len(linked))
            # If not all fit into one question, ask about others each time.
            start = turn * transfer.FETCH_ENTRIES_MAX % len(indexes)
            self._ask_of(linked[to], group, indexes[start:] + indexes[:start])

    def _ask_of(self, peer: str, group: Group, indexes: list[int]) -> None:
        part = indexes[: transfer.FETCH_ENTRIES_MAX]
        if self.asks(peer):
            questions = [self._question(group, index) for index in part]
            self._replicas.send(peer, frames.seek(group.id, questions))
        else:
            self._replicas.send(peer, frames.fetch(group.id, part))

    def asks(self, peer: str) -> bool:
        """Return whether a connected peer understands these questions. It may run the previous version."""
        return frames.LOSSES_FEATURE in self._replicas.links.features_of(peer)

    def _others(self, group: Group) -> list[str]:
        return [peer for peer in group.core.members.everyone() if peer != self._replicas.node]

    def _question(self, group: Group, index: int) -> Question:
        log = group.core.log
        if index <= group.applied:
            return Question(index, 0, 0, 0)
        if index not in log.vague:
            return Question(index, log.term_at(index), 0, 0)
        anchor = log.anchor(index)
        if index <= group.core.commit:
            return Question(index, 0, anchor, frames.COMMITTED)
        return Question(index, 0, anchor, max(log.term_at(anchor), 0))

    def tick(self) -> None:
        if not self._waiting:
            return
        for (group_id, index), loss in list(self._waiting.items()):
            if not loss.told:
                self._look_again(group_id, index, loss)
        waited_ms = self._replicas.clock.monotonic_ms() - self._asked_ms
        if self._waiting and waited_ms >= self._replicas.options.lost_entry_retry_ms:
            self.ask_again()
            self._say()

    def _look_again(self, group_id: int, index: int, loss: _Loss) -> None:
        """Find out whether an entry that the snapshot names was lost, or was deleted since."""
        group = self._replicas.groups.get(group_id)
        if group is None:
            del self._waiting[group_id, index]
        elif not group.needs(index):
            self._end(group_id, index)
        elif group.informed:
            self._tell(group, index, loss)

    def ask_again(self) -> None:
        """Ask again for entries that have not come, and give up those that are no longer needed."""
        self._asked_ms = self._replicas.clock.monotonic_ms()
        self._rounds += 1
        wanted: dict[Group, list[int]] = {}
        for (group_id, index), loss in list(self._waiting.items()):
            group = self._replicas.groups.get(group_id)
            if group is None:
                self._waiting.pop((group_id, index), None)
            elif not group.needs(index) or self._was_replaced(group, index):
                self._end(group_id, index)
            elif loss.told:
                self._without(group, index)
                wanted.setdefault(group, []).append(index)
        for group, indexes in wanted.items():
            self._ask(group, indexes)

    def _was_replaced(self, group: Group, index: int) -> bool:
        """The log was cut off before this entry, or has another one there since."""
        return index > group.applied and index not in group.core.log.lost

    def _end(self, group_id: int, index: int) -> None:
        """Stop looking for this entry."""
        loss = self._waiting.pop((group_id, index), None)
        for then in loss.waiting if loss is not None else ():
            then()

    def _without(self, group: Group, index: int) -> None:
        """Make sure that the group can continue if no member has this entry."""
        if group.snapshot_index < index <= group.applied:
            # Once a snapshot covers it, it is no longer needed.
            compaction.take_snapshot(group)
        elif group.is_leader and index > group.applied:
            # A leader that cannot send and apply its entries must step down. Either another member has the
            # entry, or no member has it.
            group.core.step_down()
            self._replicas.touch(group)

    def link_down(self, peer: str) -> None:
        """Forget the peer's answers: they may no longer hold when it comes back."""
        for loss in self._waiting.values():
            loss.said.pop(peer, None)
            loss.perhaps.pop(peer, None)

    # -- answering -------------------------------------------------------------------------------------------

    def answer(self, peer: str, group: Group, questions: list[Question], *, warm: bool = False) -> None:
        """Send entries that a peer has lost, as many as fit in one answer; the rest it asks for again."""
        again = partial(self.answer, peer, group, questions, warm=True)
        if not warm and transfer.waits_for_disk(group, [question.index for question in questions], again):
            return
        answers: list[SoughtEntry] = []
        size = 0
        for question in questions:
            looked = self._look_for(group, question)
            if looked is None:
                continue
            what, entry = looked
            of_log = bool(question.term or question.anchor) and question.index <= group.applied
            if what == frames.APPLIED_HERE and of_log and not self._may_fill(group, peer):
                continue
            term, kind, data = (entry.term, entry.kind, entry.data) if entry is not None else (0, 0, b"")
            answers.append(SoughtEntry(question.index, what, question.anchor, term, kind, data))
            size += len(data)
            if size >= self._replicas.options.piece_bytes:
                break
        leader_term = group.core.term if group.is_leader else 0
        if answers:
            self._replicas.send(peer, frames.sought(group.id, leader_term, answers))

    def _look_for(self, group: Group, question: Question) -> tuple[int, StoredEntry | None] | None:
        """Return the answer about an entry that a peer has lost, if this node can give one."""
        core, log, index = group.core, group.core.log, question.index
        if not question.term and not question.anchor:
            return self._look_for_body(group, index)
        if index <= group.applied:
            entry = transfer.read_entry(self._replicas, group, index)
        elif index <= log.last_index:
            found = log.read_now(index, index, 1)
            if not found:
                self._replicas.touch(group)
                return frames.LOST_HERE, None
            entry = StoredEntry._make(found[0])
        else:
            return frames.NOT_HERE, None
        if entry is None:
            term = log.term_at(index)
            return frames.APPLIED_HERE, _perhaps(index, term if term >= 0 else log.last_term)
        if question.term:
            same = entry.term == question.term
        elif question.anchor_term == frames.COMMITTED:
            same = index <= group.applied
        else:
            anchor = question.anchor
            if anchor < log.snapshot_index:
                # The asker will soon know that it is committed.
                return None
            same = log.term_at(anchor) == question.anchor_term and anchor not in log.vague
        if same:
            return frames.FOUND, entry
        if not question.term and core.leadership is not None:
            return frames.LEADERS, entry
        if question.term and index > group.applied:
            return frames.NOT_HERE, None
        # It may be the same entry. The asker must not treat it as lost.
        return frames.APPLIED_HERE, _perhaps(index, entry.term)

    def _look_for_body(self, group: Group, index: int) -> tuple[int, StoredEntry | None]:
        """The asker has applied this entry."""
        if index > group.applied:
            log, empty = group.core.log, group.core.amnesiac or group.receiving is not None
            # A readable entry in this log may be that entry; this node knows it when it applies the entry. A
            # member that the leader has to fill has nothing there, and is not filled without this entry.
            perhaps = log.snapshot_index < index <= log.last_index and index not in log.lost
            return (frames.APPLIED_HERE if perhaps and not empty else frames.NOT_HERE), None
        entry = transfer.read_entry(self._replicas, group, index)
        if entry is not None:
            return frames.FOUND, entry
        if not group.needs(index) or not group.informed:
            return frames.APPLIED_HERE, None
        # Another member may have sent it by the time the peer asks again.
        self.add(group, index)
        return frames.LOST_HERE, None

    def _may_fill(self, group: Group, peer: str) -> bool:
        """Return whether a member may forget its log and be filled by this leader; the others must be a
        majority.
        """
        core, now = group.core, self._replicas.clock.monotonic_ms()
        leadership = core.leadership
        if leadership is None:
            return True
        name, until_ms = self._filled.get(group.id, (peer, 0))
        if (name != peer and now < until_ms) or not leadership.could_commit(core.members.demoted(peer)):
            return False
        self._filled[group.id] = (peer, now + self._replicas.options.lost_entry_refill_ms)
        return True

    # -- answers ---------------------------------------------------------------------------------------------

    def answered(self, peer: str, group: Group, leader_term: int, answers: list[SoughtEntry]) -> None:
        by_leader = peer == group.core.leader and leader_term == group.core.term
        count = len(self._waiting)
        for answer in answers:
            loss = self._waiting.get((group.id, answer.index))
            if loss is not None and (by_leader or not leader_term):
                self._note_answer(group, peer, loss, answer)
            if loss is not None:
                self._take(group, answer, by_leader=by_leader)
        left = [at for owner, at in self._waiting if owner == group.id and self._waiting[owner, at].told]
        if left and len(self._waiting) < count:
            # The peer had some of them, so it may have more.
            self._ask_of(peer, group, left)

    def _note_answer(self, group: Group, peer: str, loss: _Loss, answer: SoughtEntry) -> None:
        loss.said[peer], index = answer.what, answer.index
        loss.perhaps.pop(peer, None)
        if answer.what != frames.APPLIED_HERE or not answer.term or index not in group.core.log.vague:
            return
        if answer.term < group.core.log.term_at(index):
            # Terms never fall within a log, so it is an earlier leader's entry.
            loss.said[peer] = frames.NOT_HERE
        else:
            loss.perhaps[peer] = answer.term

    def _take(self, group: Group, answer: SoughtEntry, *, by_leader: bool) -> None:
        index, log = answer.index, group.core.log
        vague = index in log.vague
        if vague and answer.anchor != log.anchor(index):
            # The answer is about an entry that is no longer missing.
            return
        if answer.what == frames.FOUND:
            self._put(group, StoredEntry(index, answer.term, answer.kind, answer.data))
        elif not by_leader or index not in log.lost or index <= group.applied:
            return
        elif answer.what == frames.APPLIED_HERE and index == min(at for at in log.lost if at > group.applied):
            self._forget(group)
        elif answer.what == frames.LEADERS and vague:
            if answer.anchor > log.last_index or self._cut(group, answer.anchor):
                self._put(group, StoredEntry(index, answer.term, answer.kind, answer.data))
        elif answer.what == frames.NOT_HERE and vague:
            self._cut(group, index)

    def _cut(self, group: Group, index: int) -> bool:
        """The leader has none of this log's entries from here on."""
        try:
            group.core.cut(index)
        except LogDiverged as error:
            group.failed(error)
            return False
        self._drop_from(group, index)
        self._replicas.store.truncate(group.id, index)
        self._replicas.touch(group)
        return True

    def gone_at_leader(self, group: Group, index: int) -> None:
        """A leader of the previous version no longer has an entry.

        If it is the next one to be applied here, only a snapshot helps.
        """
        core = group.core
        if index == group.applied + 1 and index in core.log.lost and index <= core.commit:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        if group.receiving is not None:
            return
        first = group.applied + 1
        logger.error(
            "%s: the other members have deleted the missing entry, so this node drops its log from entry "
            "%d on and gives up its vote, and the leader fills it",
            *(group.machine.title, first),
        )
        self._drop_from(group, first)
        group.core.forget(self._replicas.new_memory(group.id))
        self._replicas.store.truncate(group.id, first)
        self._replicas.touch(group)

    def _drop_from(self, group: Group, index: int) -> None:
        for place in [place for place in self._waiting if place[0] == group.id and place[1] >= index]:
            del self._waiting[place]

    def found(self, group: Group, entry: StoredEntry) -> None:
        """A peer sent an entry that it has applied; it may be one that was lost here."""
        if (group.id, entry.index) not in self._waiting:
            return
        if entry.index in group.core.log.vague and entry.index > group.core.commit:
            return
        self._put(group, entry)

    def _put(self, group: Group, entry: StoredEntry) -> None:
        """Put an entry back in its place."""
        log, index = group.core.log, entry.index
        if index > group.applied and index not in log.lost:
            # The log was cut off before this entry since.
            return
        if index > log.snapshot_index and index not in log.vague and log.term_at(index) != entry.term:
            return
        if not group.needs(index):
            # Its last message was settled since the entry was requested: no code would delete the entry any
            # more.
            self._end(group.id, index)
            return
        self._replicas.store.keep(group.id, [entry])
        self._replicas.commits.request()
        group.core.found(Entry._make(entry))
        self._replicas.touch(group)
        self._end(group.id, index)

    # -- what is lost on all members -------------------------------------------------------------------------

    def lost_on_all(self, group_id: int) -> list[int]:
        """Return the entries of a group that, by their own answers, no member can read."""
        group = self._replicas.groups.get(group_id)
        if group is None:
            return []
        lost = [
            index
            for (owner, index), loss in self._waiting.items()
            if owner == group_id
            and self._is_lost(group, loss)
            and (not group.leader or index <= max(group.applied, group.core.commit))
        ]
        end = group.core.log.unreadable_end()
        if end and not all(index in lost for index in end):
            lost = [index for index in lost if index not in end]
        return lost

    def _is_lost(self, group: Group, loss: _Loss) -> bool:
        said = [loss.said.get(peer) for peer in self._others(group)]
        return loss.told and all(what in (frames.LOST_HERE, frames.NOT_HERE) for what in said)

    def in_doubt(self, group_id: int) -> list[int]:
        """Return the unreadable end of a group's log if another member has entries there which may be the
        same ones, and no leader can tell, though all members have answered.
        """
        group = self._replicas.groups.get(group_id)
        if group is None or group.leader:
            return []
        end = group.core.log.unreadable_end()
        losses = [self._waiting.get((group_id, index)) for index in end]
        known = [loss for loss in losses if loss is not None and self._is_answered(group, loss)]
        return list(end) if len(known) == len(end) and any(loss.perhaps for loss in known) else []

    def _is_answered(self, group: Group, loss: _Loss) -> bool:
        """Return whether all other members have said that they cannot read the entry, or the term of what
        they have.
        """
        return loss.told and all(
            peer in loss.perhaps or loss.said.get(peer) in (frames.LOST_HERE, frames.NOT_HERE)
            for peer in self._others(group)
        )

    def waiting_for_operator(self, group_id: int) -> list[int]:
        """Return the entries of a group that an operator has to give up before the group can continue."""
        return self.lost_on_all(group_id) + self.in_doubt(group_id)

    def groups_with_losses(self) -> list[int]:
        """Return the groups that have entries which an operator has to give up."""
        return [
            group_id
            for group_id in dict.fromkeys(owner for owner, _ in self._waiting)
            if self.waiting_for_operator(group_id)
        ]

    def gone(self, group_id: int) -> None:
        """The group was deleted."""
        self._said_ms.pop(group_id, None)
        self._filled.pop(group_id, None)

    def _say(self) -> None:
        now = self._replicas.clock.monotonic_ms()
        for group_id in self.groups_with_losses():
            said_ms = self._said_ms.get(group_id)
            if said_ms is not None and now - said_ms < self._replicas.options.lost_entry_report_ms:
                continue
            self._said_ms[group_id] = now
            group, lost = self._replicas.groups[group_id], self.lost_on_all(group_id)
            doubt = self.in_doubt(group_id)
            if doubt:
                logger.critical(
                    "%s: this node cannot read the end of the log from entry %d on, other members may have "
                    "different entries there, and no leader is elected. Bring back a disk that has the end of the "
                    "log, or accept the best log of the other members (%s)",
                    *(group.machine.title, doubt[0], _command(group_id, doubt[0])),
                )
            if not lost:
                continue
            named = ", ".join(map(str, sorted(lost)[:NAMED_MAX]))
            logger.critical(
                "%s: %d entries of its log can be read by none of its members %s (%s%s). These entries, and "
                "perhaps later ones, wait. Bring back a disk that has them, or give them up (%s)",
                *(group.machine.title, len(lost), ", ".join(group.core.members.everyone()), named),
                *(", …" if len(lost) > NAMED_MAX else "", _command(group_id, min(lost))),
            )

    def accept(self, group_id: int) -> GivenUp:
        """An operator gives up the losses that keep the group from continuing; return those that this node
        knows.
        """
        group = self._replicas.groups.get(group_id)
        if group is None:
            return GivenUp(0, ())
        for peer in self._others(group):
            if self.asks(peer):
                self._replicas.send(peer, frames.pass_over(group_id))
        return self.pass_over(group_id)

    def pass_over(self, group_id: int) -> GivenUp:
        """Give an entry up on this member."""
        lost, doubt = self.lost_on_all(group_id), self.in_doubt(group_id)
        group = self._replicas.groups[group_id]
        if doubt:
            self._yield(group, doubt)
        log = group.core.log
        if log.last_index in lost:
            log.bounded_index = log.last_index
        given_up = [index for index in lost if index <= group.applied]
        for index in lost:
            if index > group.applied:
                self._put(group, StoredEntry(index, log.term_at(index), EMPTY, PASSED_OVER))
        members = group.core.reform() if lost or doubt or group.core.waits_for_forgetful() else ()
        if members:
            logger.error("%s: continues without the votes of %s", group.machine.title, ", ".join(members))
            self._replicas.touch(group)
        if given_up:
            group.machine.keeps.lose_bodies(given_up)
        return GivenUp(len(lost) + len(doubt), members)

    def _yield(self, group: Group, end: list[int]) -> None:
        """Let the log count as one that ends with the entries that another member can read there."""
        log = group.core.log
        last = max(index for index in end if self._waiting[group.id, index].perhaps)
        term = max(self._waiting[group.id, last].perhaps.values())
        logger.error(
            "%s: the log of this node is replaced from entry %d on by that of other members",
            group.machine.title,
            end[0],
        )
        if last < log.last_index and not self._cut(group, last + 1):
            return
        log.term_bound = min(log.term_bound, max(term, log.term_at(last)))


def _command(group_id: int, first: int) -> str:
    """Return how an operator gives up entries of a group."""
    if group_id:
        return "mqctl cluster accept-loss"
    # A starting node answers no command before it has read this log.
    return f"mqctl cluster accept-loss --topology, or start a node with --accept-topology-loss {first}"


def _perhaps(index: int, term: int) -> StoredEntry:
    """Return only the term of an entry: it may differ from the asker's."""
    return StoredEntry(index, term, 0, b"")
