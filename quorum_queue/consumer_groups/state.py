"""What a replica of a consumer group has, apart from how it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quorum_queue.batch_order import BatchOrder
from quorum_queue.consumer_groups.entries import Key
from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.consumer_groups.partition import Partition, Span
from quorum_queue.consumer_groups.parts import GroupParts
from quorum_queue.machine.effects import Reason

#: Messages that may be on their way to one member, which reports after each half of that. The same on all
#: nodes, because it affects the state.
AHEAD_MAX = 4096


class Death(NamedTuple):
    """Messages that have died and are on their way to the dead-letter targets.

    Deaths are numbered, and these have consecutive numbers from `first` on. So a target recognises a repeated
    letter, and a message that dies once more after a reset is a new letter.
    """

    partition: Partition
    span: Span
    reason: Reason
    first: int


class ReplicaState:
    """The state; see quorum_queue.consumer_groups.replica."""

    __slots__ = (
        "applied",
        "dead",
        "deaths",
        "getting",
        "group",
        "known",
        "now_ms",
        "order",
        "parts",
        "sealed",
    )

    def __init__(self, delivery_limit: int | None) -> None:
        self.group = Group(delivery_limit)
        #: Parts of transactions that are not decided.
        self.parts = GroupParts(self.group)
        #: Index of the last entry applied, and its time.
        self.applied = 0
        self.now_ms = 0
        #: True if it knows its streams: streams added later are read from their first message on.
        self.known = False
        #: Deaths that the targets have not got yet.
        self.dead: list[Death] = []
        #: The number of the next death.
        self.deaths = 0
        #: Getters of single messages: the next delivery id, and how many messages are wanted.
        self.getting: dict[Key, tuple[int, int]] = {}
        self.order = BatchOrder()
        #: True if the group will be deleted: it takes no member any more.
        self.sealed = False

    def let_go(self) -> Iterator[None]:
        """Forget everything, in steps, and break the reference cycles."""
        yield from self.group.let_go()
        yield


def new_member(key: Key, prefetch: int, next_id: int, sent: int, *, limited: bool = True) -> Member:
    # The last two fields of a key are the consumer's own.
    member = Member(key, prefetch=prefetch, channel=key[:-2], ahead_max=AHEAD_MAX if limited else 0)
    member.next_id, member.sent = next_id, sent
    return member


__all__ = ["AHEAD_MAX", "Death", "ReplicaState", "new_member"]
