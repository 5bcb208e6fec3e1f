"""In a cluster, a dead letter of a group with many targets leaves in parts, and the letters stay in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amqp_server.streams.consumer_groups.dead_letters import Letters
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from quorum_queue.consumer_groups.replica import Death
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.run import Run

#: Parts of each letter, and the parts that one turn has time for.
PARTS, PARTS_MAX = 10, 4


class Node:
    """Stands in for a turn, the dead-letter targets, and the group's host."""

    def __init__(self) -> None:
        self.left: dict[Any, Callable[[], None]] = {}
        #: The letter of each part, in this turn and in all turns.
        self.now: list[Any] = []
        self.sent: list[Any] = []
        services = SimpleNamespace(turn=self, dead_letters=self)
        host = SimpleNamespace(replica=SimpleNamespace(dead=[]), queue_id=1, queue=None)
        self.letters = Letters(cast(ConsumerGroupMemberHost, host), cast(NodeServices, services))

    def is_full(self, times: int = 1) -> bool:
        return len(self.now) >= PARTS_MAX

    def later(self, unit: Any, call: Callable[[], None]) -> None:
        self.left.setdefault(unit, call)

    def dead_letter(self, queue: Any, run: Any, reason: Any, done: Any, letter: Any) -> Iterator[None]:
        def parts() -> Iterator[None]:
            for _ in range(PARTS):
                self.now.append(run)
                self.sent.append(run)
                yield

        return parts()

    def send(self, number: int) -> None:
        self.letters.send(number, cast(Run, number), cast(Death, SimpleNamespace(reason="rejected")))

    def turns(self) -> list[int]:
        """Run turns until nothing is left; return how many parts each turn sent."""
        counts = [len(self.now)]
        while self.left:
            left, self.left = self.left, {}
            self.now = []
            for call in left.values():
                call()
            counts.append(len(self.now))
        return counts


@pytest.mark.pure
def test_a_turn_sends_as_many_parts_as_it_has_time_for() -> None:
    node = Node()
    for number in range(3):
        node.send(number)
    assert max(node.turns()) == PARTS_MAX
    assert node.sent == [number for number in range(3) for _ in range(PARTS)]


@pytest.mark.pure
def test_a_member_that_no_longer_leads_sends_no_more() -> None:
    node = Node()
    for number in range(3):
        node.send(number)
    node.letters.close()
    assert node.turns() == [PARTS_MAX, 0]
    assert not node.letters._unsent
