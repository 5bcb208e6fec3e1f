"""Groups of this node as they begin: new, found on disk, or to be filled by others because the disk was lost."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from amqp_server.cluster.store import ASIDE, GroupLog, GroupStore
from persistence.errors import CorruptSnapshot
from persistence.group_record import RecoveredGroup
from quorum_queue.cluster.group import Group, StateMachine
from quorum_queue.cluster.group_host import GroupHost
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.cluster.state import unpack_state
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import MEMBERS

if TYPE_CHECKING:
    from amqp_server.broker.queue import Queue

logger = logging.getLogger("mqd.cluster")


#: Different memberships that are kept once for all groups that have them.
MEMBERS_SHARED = 1024


@lru_cache(maxsize=MEMBERS_SHARED)
def _members(voters: tuple[str, ...]) -> Members:
    return Members(voters)


class Loadable(StateMachine, Protocol):
    def load(self, state: bytes) -> None:
        """Start from a snapshot of this node's own."""


class Groups:
    """Opens the groups of this node."""

    def __init__(
        self, replicas: Replicas, store: GroupStore, recovered: Mapping[int, RecoveredGroup]
    ) -> None:
        self.replicas = replicas
        self._store = store
        self._recovered = dict(recovered)
        #: Groups up to this index of group 0 may have had this node as a member on a disk that it lost.
        self.lost_before = 0

    def found(self, recovered: Mapping[int, RecoveredGroup]) -> None:
        """These are on disk, whatever was there before."""
        self._recovered = dict(recovered)

    def is_kept(self, group_id: int) -> bool:
        """Return whether there is something on disk of a group that was not opened yet."""
        return group_id in self._recovered

    def read_again(self, group_id: int) -> None:
        """A group that stopped is to be opened with what is on disk. Nothing of it may be pending."""
        for number in (group_id, group_id | ASIDE):
            found = self._store.recover_one(number)
            if found is not None:
                self._recovered[number] = found

    def drop(self, group_id: int) -> None:
        """Delete what is stored of a group that is not open."""
        self._recovered.pop(group_id, None)
        self.replicas.drop(group_id)

    def others_go_on(self, group_id: int) -> bool:
        """True if a group that stopped here goes on elsewhere."""
        return self.replicas.others_go_on(group_id)

    def open(self, host: GroupHost, queue: Queue, *, late: bool = False) -> None:
        """Open the group of a queue that this node is a member of.

        `late`: the group was there before. This node may have been in it once, and forgotten what it promised then.
        """
        node = self.replicas.node
        known = queue.queue_id in self._recovered
        lost = (late or queue.queue_id <= self.lost_before) and not known
        host.group = self.start(host, queue.queue_id, _members(queue.members), lost=lost)
        fresh = not known and not lost
        if fresh and queue.record.leader == node:
            host.group.core.campaign()

    def start(self, machine: Loadable, group_id: int, members: Members, *, lost: bool) -> Group:
        """Open a group with what is on disk of it. `members` are those it began with, if nothing is."""
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
        last_index = min([at - 1 for at in found.lost if at > index], default=found.last_index)
        if last_index < found.last_index:
            self._store.truncate(group_id, last_index + 1)
        log = Log(
            GroupLog(self._store, group_id),
            snapshot_index=index,
            snapshot_term=term,
            last_index=last_index,
            terms=found.terms,
        )
        # Without its vote, or a part of its log, it might promise what it has promised otherwise. The others may
        # have cut off what is missing: the log ends before it, and grows again as that of one who has lost its disk.
        forgotten = found.hard_lost or last_index < found.last_index
        group = self.replicas.open(
            group_id,
            machine,
            members=members,
            hard=HardState(found.term, found.vote),
            log=log,
            applied=index,
            changes=self._changes(found, last_index),
            amnesiac=self.replicas.new_memory(group_id) if forgotten else 0,
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
        """What is left cannot be used: begin without it, and without a vote until the others have filled it."""
        self._store.drop(group_id)
        return self._new(machine, group_id, members, amnesiac=self.replicas.new_memory(group_id))

    def _changes(self, found: RecoveredGroup, last_index: int) -> list[tuple[int, Members]]:
        """Read the entries of the log that change the members."""
        return [
            (index, Members.decode(self._store.read_one(found.group, index).data))
            for index in found.kinds.get(MEMBERS, [])
            if index <= last_index
        ]

    def _sweep(self, group: Group, found: RecoveredGroup, snapshot_index: int) -> None:
        """Delete what lies below the snapshot and nobody wants; note what is wanted and is not there."""
        wanted = [index for index in group.machine.kept() if index <= snapshot_index]
        here = dict.fromkeys(wanted, False)
        aside = self._recovered.pop(group.id | ASIDE, None)
        for stored in (*found.stored, *(aside.stored if aside is not None else ())):
            at, stop = stored.start, min(stored.stop, snapshot_index + 1)
            spans: list[range] = []
            first = bisect_left(wanted, at)
            for index in wanted[first : bisect_left(wanted, stop)]:
                here[index] = True
                if index > at:
                    spans.append(range(at, index))
                at = index + 1
            if stop > at:
                spans.append(range(at, stop))
            if spans:
                self._store.drop_entries(group.id, spans)
        damaged = (*found.lost, *(aside.lost if aside is not None else ()))
        unwanted = [
            range(index, index + 1) for index in damaged if index <= snapshot_index and index not in here
        ]
        self._store.drop_entries(group.id, unwanted)
        for index, found_here in here.items():
            if not found_here:
                self.replicas.losses.add(group, index)

    def drop_unclaimed(self, applied: int) -> None:
        """Groups whose queue was deleted while this node was away."""
        for group_id in [group_id for group_id in self._recovered if group_id & ~ASIDE <= applied]:
            del self._recovered[group_id]
            self._store.drop(group_id)
