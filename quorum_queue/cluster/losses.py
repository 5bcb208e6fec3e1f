"""Entries that this node's disk has lost: they are fetched from other members, or it turns out that nobody has them.

An entry of the log that a follower acknowledged and cannot read any more may be cut off everywhere else. It is then
as if the disk was lost: the member forgets what follows, and the others fill it (see quorum_queue.raft.readmission).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum_queue.cluster import compaction, frames, transfer

if TYPE_CHECKING:
    from quorum_queue.cluster.group import Group
    from quorum_queue.cluster.replicas import Replicas

logger = logging.getLogger("mqd.replication")

#: What nobody has sent yet is asked for again after so long, of another node, ms.
RETRY_MS = 1_000


class _Loss:
    """One entry that cannot be read."""

    __slots__ = ("told", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        #: It was logged, and the other members are asked for it.
        self.told = False


class Losses:
    """Of all groups of the node."""

    __slots__ = ("_asked_ms", "_replicas", "_rounds", "_waiting", "found_count")

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        #: By group and index.
        self._waiting: dict[tuple[int, int], _Loss] = {}
        self._asked_ms = 0
        self._rounds = 0
        #: How many entries were found lost since this node started.
        self.found_count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def entries(self) -> list[tuple[int, int]]:
        return list(self._waiting)

    def add(self, group: Group, index: int, then: Callable[[], None] | None = None) -> None:
        """An entry cannot be read: get it again, and call `then` when it is here or is given up.

        An entry below the snapshot is deleted as soon as its last message is settled, but the snapshot that a start
        reads still names it. Only when the log was applied again it is known whether the entry is lost or was deleted.
        """
        loss = self._waiting.get((group.id, index))
        if loss is None:
            loss = self._waiting[group.id, index] = _Loss()
            if index > group.snapshot_index or group.informed:
                self._tell(group, index, loss)
        if then is not None:
            loss.waiting.append(then)

    def _tell(self, group: Group, index: int, loss: _Loss) -> None:
        logger.error("group %d: entry %d cannot be read, fetching it from a peer", group.id, index)
        loss.told = True
        self.found_count += 1
        self._ask(group, [index])

    def _ask(self, group: Group, indexes: list[int]) -> None:
        """Ask one of the other members, each in its turn."""
        replicas = self._replicas
        linked = [
            peer for peer in group.core.members.everyone() if peer != replicas.node and replicas.linked(peer)
        ]
        if linked:
            part = indexes[: transfer.FETCH_ENTRIES_MAX]
            replicas.send(linked[self._rounds % len(linked)], frames.fetch(group.id, part))

    def tick(self) -> None:
        if not self._waiting:
            return
        for (group_id, index), loss in list(self._waiting.items()):
            if not loss.told:
                self._look_again(group_id, index, loss)
        if self._waiting and self._replicas.clock.monotonic_ms() - self._asked_ms >= RETRY_MS:
            self.ask_again()

    def _look_again(self, group_id: int, index: int, loss: _Loss) -> None:
        """Find out whether an entry that the snapshot names was lost, or was deleted since."""
        group = self._replicas.groups.get(group_id)
        if group is None:
            del self._waiting[group_id, index]
        elif not group.machine.wanted(index):
            self._end(group_id, index)
        elif group.informed:
            self._tell(group, index, loss)

    def ask_again(self) -> None:
        """Ask for what nobody has sent, and give up what is of no use any more."""
        self._asked_ms = self._replicas.clock.monotonic_ms()
        self._rounds += 1
        wanted: dict[Group, list[int]] = {}
        for (group_id, index), loss in list(self._waiting.items()):
            group = self._replicas.groups.get(group_id)
            if group is None:
                self._waiting.pop((group_id, index), None)
            elif not group.machine.wanted(index):
                self._end(group_id, index)
            elif loss.told:
                self._without(group, index)
                wanted.setdefault(group, []).append(index)
        for group, indexes in wanted.items():
            self._ask(group, indexes)

    def _end(self, group_id: int, index: int) -> None:
        """Nobody needs this entry any more."""
        loss = self._waiting.pop((group_id, index), None)
        for then in loss.waiting if loss is not None else ():
            then()

    def _without(self, group: Group, index: int) -> None:
        """See to it that the group can go on if nobody has this entry."""
        leadership = group.core.leadership
        if group.snapshot_index < index <= group.applied:
            # Once a snapshot stands for it, nobody needs it any more.
            compaction.take_snapshot(group)
        elif leadership is not None and leadership.has_quorum() and index > group.core.commit:
            # If a majority had it, it would be committed by now, and nobody can be sent what follows on it.
            self._forget(group)
        elif leadership is not None and index == group.applied + 1:
            # Who cannot apply what is committed cannot lead, and the others may have cut it off.
            if all(peer.contact for peer in leadership.peers.values()):
                self._forget(group)
            else:
                group.core.step_down()
                self._replicas.touch(group)

    def gone_at_leader(self, group: Group, index: int) -> None:
        """The leader has an entry no more. If it is the next one to be applied here, only a snapshot helps."""
        core = group.core
        if index == group.applied + 1 and index in core.log.lost and index <= core.commit:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        if group.receiving is not None:
            return
        first = group.applied + 1
        logger.error("group %d: the log is forgotten from entry %d on", group.id, first)
        for place in [place for place in self._waiting if place[0] == group.id and place[1] >= first]:
            del self._waiting[place]
        group.core.forget(self._replicas.new_memory(group.id))
        self._replicas.store.truncate(group.id, first)
        self._replicas.touch(group)

    def found(self, group: Group, entry: frames.StoredEntry) -> None:
        """An entry came from a peer, perhaps one that was lost here."""
        if (group.id, entry.index) not in self._waiting:
            return
        self._replicas.store.keep(group.id, [entry])
        group.core.found(entry.index)
        self._replicas.touch(group)
        self._end(group.id, entry.index)
