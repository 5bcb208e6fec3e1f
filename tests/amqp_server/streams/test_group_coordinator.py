"""The proposals of a group's leader, without a log, streams or clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqp_server.streams.consumer_groups.coordinator import Coordinator
from quorum_queue.consumer_groups.entries import Command
from quorum_queue.consumer_groups.replica import GroupReplica
from tests.quorum_queue.consumer_groups.test_replica import applied, key, whole

STREAMS = {7: "s-0", 8: "s-1"}


class Watched:
    """A stream with this many messages."""

    def __init__(self, stop: int) -> None:
        self._stop = stop

    def attach(self) -> None: ...

    def offsets(self) -> range:
        return range(self._stop)


class Leader:
    """The coordinator of a group of two partitions with ten messages each, and its log."""

    def __init__(self, **prefetch: int) -> None:
        self.replica = GroupReplica(None, dead_letters=False)
        self.host = SimpleNamespace(
            replica=self.replica,
            group=SimpleNamespace(informed=True, is_leader=True),
            options=SimpleNamespace(spans_max=100, start=None),
            pending=[],
            retry=self.retry,
            retries=0,
        )
        streams: Any = [SimpleNamespace(queue_id=number, name=name) for number, name in STREAMS.items()]
        self.coordinator = Coordinator(self.host, lambda: streams, lambda stream_id: True)  # type: ignore[arg-type]
        self.coordinator._watching = {number: Watched(10) for number in STREAMS}  # type: ignore[misc]
        self.apply(("streams", [[number, name] for number, name in STREAMS.items()], []))
        self.apply(*(("begin", number, 0) for number in STREAMS))
        self.apply(*(("attach", key(name), count, 0) for name, count in prefetch.items()))

    def retry(self) -> None:
        self.host.retries += 1

    def apply(self, *commands: Command) -> None:
        applied(self.replica, *commands)

    def propose(self) -> list[Command]:
        """Return the proposals of one turn; they are under way from then on."""
        self.coordinator.coordinate()
        proposed: list[Command] = self.host.pending
        self.host.pending = []
        self.coordinator.sent(self.replica.order.number_of("n1", 1) + 1)
        return proposed

    def arrives(self, proposed: list[Command]) -> None:
        self.apply(*proposed)
        self.coordinator.applied(self.replica.order.number_of("n1", 1))


@pytest.mark.pure
def test_one_partition_has_the_room_that_a_member_has() -> None:
    leader = Leader(a=1)
    proposed = leader.propose()
    assert proposed == [("hand", 7, whole("a"), 0, 1)]
    assert leader.propose() == []
    leader.arrives(proposed)
    assert leader.propose() == []
    leader.apply(("settle", key("a"), 0, 0))
    # The other member was not served yet.
    assert leader.propose() == [("hand", 8, whole("a"), 0, 1)]


@pytest.mark.pure
def test_room_that_was_promised_in_vain_is_for_the_other_partitions() -> None:
    leader = Leader(a=1)
    proposed = leader.propose()
    assert proposed == [("hand", 7, whole("a"), 0, 1)]
    # The group goes to the end of that partition before the proposal is applied: the proposal has no effect.
    leader.apply(("move", 1, [[7, 10]]))
    leader.propose()
    leader.arrives(proposed)
    assert leader.replica.group.members[whole("a")].count == 0
    assert leader.propose() == [("hand", 8, whole("a"), 0, 1)]


@pytest.mark.pure
def test_a_member_without_a_limit_has_all_of_all_partitions() -> None:
    leader = Leader(a=0)
    assert leader.propose() == [("hand", 7, whole("a"), 0, 10), ("hand", 8, whole("a"), 0, 10)]


@pytest.mark.pure
def test_more_gaps_than_a_partition_may_have_are_handed_out_again() -> None:
    """Nobody can ack returned messages before they are delivered: the partition would stand still."""
    leader = Leader(a=0)
    leader.host.options.spans_max = 2
    leader.arrives(leader.propose())
    # Deliveries have ids: ten of one partition, then ten of the other.
    leader.apply(*(("settle", key("a"), number, number) for number in range(0, 20, 2)))
    group = leader.replica.group
    assert [len(each.held) for each in group.partitions.values()] == [5, 5]
    leader.coordinator._watching = {number: Watched(12) for number in STREAMS}  # type: ignore[misc]
    assert leader.propose() == []
    leader.apply(("return", key("a"), 0, 19))
    for first in range(1, 10, 2):
        proposed = leader.propose()
        assert proposed == [("hand", number, whole("a"), first, first + 1) for number in STREAMS]
        leader.arrives(proposed)
    assert leader.propose() == []


@pytest.mark.pure
def test_what_came_back_waits_for_a_stream_that_does_not_know_its_end() -> None:
    """The stream's copy has moved away from this node, which hears of the end later: nothing else tells."""
    leader = Leader(a=0)
    leader.arrives(leader.propose())
    leader.apply(("return", key("a"), 0, 3))
    watched = leader.coordinator._watching
    leader.coordinator._watching = {number: Watched(0) for number in STREAMS}  # type: ignore[misc]
    assert leader.propose() == [] and leader.host.retries == len(STREAMS)
    leader.coordinator._watching = watched
    assert leader.propose() == [("hand", 7, whole("a"), 0, 4)]
