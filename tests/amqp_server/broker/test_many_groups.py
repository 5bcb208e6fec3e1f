"""A stream with thousands of consumer groups over it comes or goes: each group is a queue that has some work
then, and no single turn does that for all of them.
"""

from __future__ import annotations

from typing import Any, Final, cast

import pytest

from amqp_server.broker.in_parts.changed_streams import ChangedStreams
from amqp_server.broker.in_parts.lost_consumers import TOLD_MAX, LostConsumers
from amqp_server.broker.topology.queue import Queue
from amqp_server.turn import SCHEDULED_MAX, Turn
from quorum_queue.host import QueueHost
from tests import turns

pytestmark = pytest.mark.pure
GROUPS = 1_000


class NoCommits:
    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None: ...


class GroupHost(QueueHost):
    """Counts its work."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(cast(Any, self), turn)
        self.applied = self.partitions = 0

    @property
    def partition_count(self) -> int:
        return self.partitions

    def partitions_changed(self) -> None:
        self._turn.schedule(self)

    def apply_pending(self) -> None:
        self.applied += 1


class Group:
    #: It has no members.
    subscriptions: Final[dict[Any, Any]] = {}

    def __init__(self, turn: Turn) -> None:
        self.host = GroupHost(turn)


class Reader:
    """The reader that a group has in the stream."""

    def __init__(self, group: Group, key: int) -> None:
        self._group = group
        self.key = key

    def queue_gone(self) -> None:
        self._group.host.partitions_changed()


class Stream:
    def __init__(self, readers: list[Reader]) -> None:
        self.subscriptions = {reader.key: reader for reader in readers}


def applied(groups: list[Group]) -> int:
    return sum(group.host.applied for group in groups)


def applied_in_each(turn: Turn, groups: list[Group]) -> list[int]:
    """Run turns until nothing is left; return how many groups did some work in each."""
    counts = [applied(groups)]
    while turn.behind:
        before = applied(groups)
        turn.run(turn.catch_up)
        counts.append(applied(groups) - before)
    return counts


def test_groups_whose_stream_is_gone_lose_it_some_in_each_turn() -> None:
    turn = turns.by_hand(NoCommits())
    groups = [Group(turn) for _ in range(GROUPS)]
    readers = [Reader(group, number) for number, group in enumerate(groups)]
    stream = cast(Queue, Stream(readers))
    lost = LostConsumers(turn)
    turn.run(lost.tell, stream, list(readers))
    counts = applied_in_each(turn, groups)
    assert [group.host.applied for group in groups] == [1] * GROUPS
    assert max(counts) <= SCHEDULED_MAX + TOLD_MAX


def test_groups_look_for_partitions_some_in_each_turn() -> None:
    turn = turns.by_hand(NoCommits())
    groups = [Group(turn) for _ in range(GROUPS)]
    changed = ChangedStreams(turn)
    turn.run(changed.tell, cast(Any, groups))
    # A second change comes while some groups are still to hear of the first: each group is told once.
    turn.run(changed.tell, cast(Any, groups[-10:]))
    counts = applied_in_each(turn, groups)
    assert [group.host.applied for group in groups] == [1] * GROUPS
    assert max(counts) <= SCHEDULED_MAX


@pytest.mark.parametrize(("partitions", "most"), [(15, SCHEDULED_MAX), (16, SCHEDULED_MAX // 2), (300, 4)])
def test_groups_with_many_partitions_look_for_them_few_in_each_turn(partitions: int, most: int) -> None:
    turn = turns.by_hand(NoCommits())
    groups = [Group(turn) for _ in range(100)]
    for group in groups:
        group.host.partitions = partitions
    turn.run(ChangedStreams(turn).tell, cast(Any, groups))
    counts = applied_in_each(turn, groups)
    assert [group.host.applied for group in groups] == [1] * 100
    assert max(counts) == most


def test_a_few_groups_know_at_once() -> None:
    turn = turns.by_hand(NoCommits())
    groups = [Group(turn) for _ in range(10)]
    turn.run(ChangedStreams(turn).tell, cast(Any, groups))
    assert applied(groups) == 10 and not turn.behind
