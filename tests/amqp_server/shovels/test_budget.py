"""The memory that all shovels share: who is read while it is used up, and who has to give way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from amqp_server.shovels.budget import LITTLE_BYTES, Budget, Flow
from amqp_server.shovels.errors import ShovelError
from amqp_server.shovels.transfer import NO_ACK, ON_CONFIRM, Transfer

MIB = 1 << 20
TIMEOUT_S = 10.0


@dataclass
class Moves:
    """What the budget wants to know of a transfer."""

    waiting_bytes: int = 0
    unfinished_bytes: int = 0
    taken_bytes: int = 0
    ack_mode: str = ON_CONFIRM

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.unfinished_bytes


class Shovel:
    def __init__(self, budget: Budget, **moves: object) -> None:
        self.moves = Moves(**moves)  # type: ignore[arg-type]
        self.flow = Flow(budget, cast(Transfer, self.moves), 0.0)
        self.looks = 0
        self.flow.look = self._look

    def _look(self) -> None:
        self.looks += 1

    def holds(self, waiting: int, unfinished: int = 0) -> None:
        self.moves.waiting_bytes, self.moves.unfinished_bytes = waiting, unfinished
        self.flow.update()


def test_sources_wait_while_too_much_is_held() -> None:
    budget = Budget(10 * MIB, TIMEOUT_S)
    many = [Shovel(budget) for _ in range(5)]
    for each in many:
        assert each.flow.may_read()
        each.holds(3 * MIB)
    assert budget.full and budget.bytes == 15 * MIB
    # One of them goes on, always the same one; and each that holds nothing.
    reading = [each for each in many if each.flow.may_read()]
    assert len(reading) == 1
    assert [each for each in many if each.flow.may_read()] == reading
    healthy = Shovel(budget)
    assert healthy.flow.may_read()
    healthy.holds(0, 100)
    assert not healthy.flow.may_read()
    healthy.holds(0)
    assert healthy.flow.may_read()
    # There is room again: those that wait are told.
    looks = [each.looks for each in many]
    many[-1].holds(0)
    many[-2].holds(0)
    assert not budget.full
    assert all(each.looks > before for each, before in zip(many, looks, strict=True))
    assert all(each.flow.may_read() for each in many)
    for each in (*many, healthy):
        each.flow.end()
    assert budget.bytes == 0


def test_the_one_that_is_read_passes_that_on() -> None:
    """Messages that are half here become whole, one shovel after the other."""
    budget = Budget(MIB, TIMEOUT_S)
    halves = [Shovel(budget) for _ in range(3)]
    for each in halves:
        each.holds(0, MIB)
    done = []
    while halves:
        (first,) = [each for each in halves if each.flow.may_read()]
        first.holds(2 * MIB)
        assert [each for each in halves if each.flow.may_read()] == [first]
        first.moves.taken_bytes += 2 * MIB
        first.holds(0)
        halves.remove(first)
        done.append(first)
        if len(done) == 2:
            # The last one is alone within the budget.
            assert not budget.full
            break
    assert len(done) == 2


def test_the_one_whose_destination_takes_nothing_ends() -> None:
    budget = Budget(MIB, TIMEOUT_S)
    stuck, slow, little, lossy = (
        Shovel(budget),
        Shovel(budget),
        Shovel(budget),
        Shovel(budget, ack_mode=NO_ACK),
    )
    stuck.holds(MIB)
    stuck.flow.check(0.0)
    # Within the budget anybody may wait for ever.
    stuck.flow.check(100.0)
    slow.holds(MIB)
    little.holds(LITTLE_BYTES)
    lossy.holds(MIB)
    assert stuck.flow.may_read() and not slow.flow.may_read()
    for second in range(100, 110):
        slow.moves.taken_bytes += 1
        for each in (stuck, slow, little, lossy):
            each.flow.check(float(second))
    slow.moves.taken_bytes += 1
    for each in (slow, little, lossy):
        each.flow.check(110.0)
    with pytest.raises(ShovelError, match=r"taken nothing of 1048576 bytes for 10 s"):
        stuck.flow.check(110.0)
    stuck.flow.end()
    # Another one is read now.
    assert [each for each in (slow, little, lossy) if each.flow.may_read()]


def test_without_a_time_none_has_to_give_way() -> None:
    budget = Budget(MIB, 0.0)
    stuck, other = Shovel(budget), Shovel(budget)
    stuck.holds(MIB)
    other.holds(MIB)
    for second in range(1_000):
        stuck.flow.check(float(second))
    assert budget.full
