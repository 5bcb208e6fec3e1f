"""Parts of transactions in a consumer group: deliveries whose ack, return or rejection is not decided. Pure.

A part holds them as a member would, and nobody can settle them elsewhere: so their partition stays with the
channel that has it, and how far the group is does not change before the decision. quorum_queue.machine.parts
says what a part is.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.machine.parts import INCOMPLETE, LATE, READY, TransactionId


class GroupPart:
    """What one transaction does to the group."""

    __slots__ = ("came", "held", "late", "participants", "prepared", "transaction")

    def __init__(self, transaction: TransactionId) -> None:
        self.transaction = transaction
        #: Number of commands that have come.
        self.came = 0
        #: True if deliveries were not with their member any more.
        self.late = False
        self.prepared = False
        #: Queues of the transaction, by their ids.
        self.participants: list[int] = []
        #: (settle, return or discard; a member that stands for the part, with the deliveries)
        self.held: list[tuple[str, Member]] = []


class GroupParts:
    """The parts that one group keeps."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.by_id: dict[TransactionId, GroupPart] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def all(self) -> Iterable[GroupPart]:
        return self.by_id.values()

    def of_starts(self, node: str, incarnation: int) -> list[GroupPart]:
        """Return the parts of this node that are not prepared, up to this start of it."""
        return [
            part
            for part in self.by_id.values()
            if not part.prepared and part.transaction[0] == node and part.transaction[1] <= incarnation
        ]

    def pend(
        self, transaction: TransactionId, verb: str, key: tuple[object, ...], low: int, high: int
    ) -> None:
        """Take the deliveries out of the hands of a member."""
        part = self.by_id.get(transaction)
        if part is None:
            part = self.by_id[transaction] = GroupPart(transaction)
        part.came += 1
        member = self._group.find(key)
        portions = [] if member is None else member.take(low, high)
        part.late = part.late or sum([len(each.offsets) for each in portions]) != high - low + 1
        # A key of the member's channel, for as long as it holds any the partition stays with that.
        channel = ("", 0, 0, 0) if member is None else member.channel
        name = "/".join(map(str, (*transaction, len(part.held))))
        holder = Member((*channel, name, False), channel=channel)
        for portion in portions:
            holder.add(portion)
        part.held.append((verb, holder))
        self._group.parked[holder.key] = holder
        self._group.has_room(member)

    def prepare(self, transaction: TransactionId, count: int, queues: list[int]) -> int:
        """Answer whether the group takes a part that has so many commands; if it is the only part of its
        transaction, let it take effect.
        """
        part = self.by_id.get(transaction)
        if part is None or part.came != count or part.late:
            outcome = LATE if part is not None and part.late else INCOMPLETE
            self.resolve(transaction, committed=False)
            return outcome
        if queues:
            part.prepared, part.participants = True, queues
        else:
            self.resolve(transaction, committed=True)
        return READY

    def resolve(self, transaction: TransactionId, *, committed: bool) -> None:
        """Do what the part says, or give everything back."""
        part = self.by_id.pop(transaction, None)
        for verb, holder in () if part is None else part.held:
            self._group.parked.pop(holder.key, None)
            self._group.settle_all(holder, verb if committed else "return")


__all__ = ["GroupPart", "GroupParts"]
