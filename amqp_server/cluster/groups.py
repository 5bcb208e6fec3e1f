"""Opens the groups of this node: new ones, those found on disk, and those
that others fill after a disk loss.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from amqp_server.cluster.store import ASIDE, GroupLog, GroupStore
from persistence.errors import CorruptSnapshot
from persistence.replica_logs.record import RecoveredGroup
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.replica_group import Group, StateMachine
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.cluster.snapshots.ranges import holds, joined, without
from quorum_queue.cluster.snapshots.state import unpack_state
from quorum_queue.queue_ids import index_of
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import EMPTY, MEMBERS, PASSED_OVER

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
    from amqp_server.streams.members.host import StreamMemberHost

logger = logging.getLogger("mqd.cluster")


#: Distinct memberships, each kept once for all groups that have it.
MEMBERS_SHARED = 1024


@lru_cache(maxsize=MEMBERS_SHARED)
def _members(voters: tuple[str, ...]) -> Members:
    return Members(voters)


class Loadable(StateMachine, Protocol):
    def load(self, state: bytes) -> None:
        """Start from this node's own snapshot."""


class Groups:
    """Opens the groups of this node."""

    def __init__(
        self,
        replicas: Replicas,
        store: GroupStore,
        recovered: Mapping[int, RecoveredGroup],
        *,
        lost_before: int = 0,
    ) -> None:
        """`lost_before`: this node may have been a member of groups declared up to this index of group 0, on
        a disk that it lost.
        """
        self.replicas = replicas
        self._store = store
        self._recovered = dict(recovered)
        self._lost_before = lost_before

    def found(self, recovered: Mapping[int, RecoveredGroup], lost_before: int) -> None:
        """Note the groups on disk, and the index of group 0 up to which the disk may lack groups."""
        self._recovered = dict(recovered)
        self._lost_before = lost_before

    def may_lack(self, lost_before: int) -> None:
        """The disk may lack groups declared up to this index of group 0."""
        self._lost_before = lost_before

    def has_all_after(self, index: int) -> int:
        """The disk lacks no group declared after this index of group 0; return the index up to which it may
        lack some.
        """
        self._lost_before = min(index, self._lost_before)
        return self._lost_before

    def is_kept(self, group_id: int) -> bool:
        """Return whether the disk has data of a group that was not opened yet."""
        return group_id in self._recovered

    def may_have_forgotten(self, group_id: int) -> bool:
        """Return whether this node may have been a member of this group, on a disk that it lost."""
        return index_of(group_id) <= self._lost_before and group_id not in self._recovered

    def warm(self, group_id: int, done: Callable[[], None]) -> bool:
        """True if a group can be read again and opened without waiting for the disk; else `done` is called
        when it can.
        """

        def then() -> None:
            if self._store.warm_group(group_id | ASIDE, done):
                done()

        return self._store.warm_group(group_id, then) and self._store.warm_group(group_id | ASIDE, done)

    def read_again(self, group_id: int) -> None:
        """Read a stopped group from disk, to open it again. Nothing of it may be pending."""
        for number in (group_id, group_id | ASIDE):
            found = self._store.recover_one(number)
            if found is not None:
                self._recovered[number] = found

    def drop(self, group_id: int) -> None:
        """Delete the stored data of a group that is not open."""
        self._recovered.pop(group_id, None)
        self.replicas.drop(group_id)

    def others_go_on(self, group_id: int) -> bool:
        """True if a group that stopped here continues on other nodes."""
        return self.replicas.others_go_on(group_id)

    def open(
        self,
        host: GroupHost | StreamMemberHost | ConsumerGroupMemberHost,
        queue: Queue,
        *,
        late: bool = False,
    ) -> None:
        """Open the group of a queue that this node is a member of.

        `late`: the group existed before. This node may have been a member before, and may have forgotten its
        votes.
        """
        node = self.replicas.node
        known = queue.queue_id in self._recovered
        lost = (late and not known) or self.may_have_forgotten(queue.queue_id)
        # All members without stored data must begin with the same list of members, or two majorities might
        # not overlap. A member that has lost its memory gets the list from the leader.
        began = queue.members if lost else queue.record.founders or queue.members
        host.group = self.start(host, queue.queue_id, _members(began), lost=lost)
        host.begin()
        fresh = not known and not lost
        if fresh and queue.record.leader == node:
            host.group.core.campaign()

    def start(self, machine: Loadable, group_id: int, members: Members, *, lost: bool) -> Group:
        """Open a group from disk. `members` are its first members, for a group without stored data."""
        found = self._recovered.pop(group_id, None)
        if found is None:
            amnesiac = self.replicas.new_memory(group_id) if lost else 0
            return self._new(machine, group_id, members, amnesiac=amnesiac)
        index = term = 0
        if found.snapshot_lost:
            return self._emptied(machine, group_id, members)
        try:
            stored = self._store.read_state(group_id)
        except CorruptSnapshot as error:
            logger.error("%s; it is fetched from another node", error)
            return self._emptied(machine, group_id, members)
        if stored is not None:
            index, term, state = stored
            members, state = unpack_state(state)
            machine.load(state)
        holes = [at for at in found.lost if at > index]
        last_index = found.last_index
        forgotten = found.hard_lost or found.vote.startswith("?")
        if forgotten and holes:
            # A member without a vote has acknowledged nothing: cut its log before the first hole; the leader
            # fills it.
            last_index, holes = holes[0] - 1, []
            self._store.truncate(group_id, last_index + 1)
        if found.hard_lost:
            logger.error(
                "%s: node %s cannot read its last vote, so it does not vote until the leader has filled it. "
                "No action is needed while a majority of the other members is up",
                *(machine.title, self.replicas.node),
            )
        log = Log(
            GroupLog(self._store, group_id),
            snapshot_index=index,
            snapshot_term=term,
            last_index=last_index,
            terms=found.terms,
            holes=holes,
            # Term and vote are durable no later than the entries of their term.
            term_bound=found.term,
        )
        if self._is_passed_over(found, last_index) and last_index > index:
            # The term of the replaced entry is still unknown.
            log.bounded_index = last_index
        group = self.replicas.open(
            group_id,
            machine,
            members=members,
            hard=HardState(found.term, found.vote),
            log=log,
            applied=index,
            changes=self._changes(found, last_index),
            # A member that has forgotten its vote might vote twice in a term.
            amnesiac=self.replicas.new_memory(group_id) if found.hard_lost else 0,
        )
        self._sweep(group, found, index)
        return group

    def _new(self, machine: StateMachine, group_id: int, members: Members, *, amnesiac: int) -> Group:
        self._store.hard(group_id, 0, f"?{amnesiac:x}" if amnesiac else "")
        return self.replicas.open(
            group_id,
            machine,
            members=members,
            hard=HardState(0, ""),
            log=Log(GroupLog(self._store, group_id)),
            applied=0,
            amnesiac=amnesiac,
        )

    def _emptied(self, machine: StateMachine, group_id: int, members: Members) -> Group:
        """The stored data cannot be used: begin empty, and without a vote until the others have filled the
        group.
        """
        self._store.drop(group_id)
        logger.error(
            "%s: node %s cannot read its snapshot: it starts empty and without a vote, and the leader "
            "fills it. No action is needed while a majority of the other members is up",
            *(machine.title, self.replicas.node),
        )
        return self._new(machine, group_id, members, amnesiac=self.replicas.new_memory(group_id))

    def _is_passed_over(self, found: RecoveredGroup, index: int) -> bool:
        is_empty = index in found.kinds.get(EMPTY, ()) and index not in found.lost
        return is_empty and self._store.read_one(found.group, index).data == PASSED_OVER

    def _changes(self, found: RecoveredGroup, last_index: int) -> list[tuple[int, Members]]:
        """Read the entries of the log that change the members."""
        return [
            (index, Members.decode(self._store.read_one(found.group, index).data))
            for index in found.kinds.get(MEMBERS, [])
            if index <= last_index
        ]

    def _sweep(self, group: Group, found: RecoveredGroup, snapshot_index: int) -> None:
        """Delete entries below the snapshot that are not needed; note needed ones that are missing."""
        below = range(1, snapshot_index + 1)
        wanted = [range(each.start, min(each.stop, below.stop)) for each in group.machine.keeps.kept(1)]
        wanted = [each for each in wanted if each]
        aside = self._recovered.pop(group.id | ASIDE, None)
        here = joined((*found.stored, *(aside.stored if aside is not None else ())))
        spans: list[range] = []
        for stored in here:
            first = bisect_right(wanted, stored.start, key=lambda each: each.start) - 1
            spans += without(range(stored.start, min(stored.stop, below.stop)), wanted[max(first, 0) :])
        if spans:
            self._store.drop_entries(group.id, spans)
        damaged = (*found.lost, *(aside.lost if aside is not None else ()))
        unwanted = [
            range(index, index + 1)
            for index in damaged
            if index <= snapshot_index and not holds(wanted, index)
        ]
        self._store.drop_entries(group.id, unwanted)
        for each in wanted:
            first = bisect_right(here, each.start, key=lambda stored: stored.start) - 1
            for missing in without(each, here[max(first, 0) :]):
                for index in missing:
                    self.replicas.lost_entries.add(group, index)

    def drop_unclaimed(self, applied: int) -> None:
        """Drop groups whose queue was deleted while this node was away."""
        gone = [group_id for group_id in self._recovered if index_of(group_id & ~ASIDE) <= applied]
        for group_id in gone:
            del self._recovered[group_id]
            self._store.drop(group_id)
