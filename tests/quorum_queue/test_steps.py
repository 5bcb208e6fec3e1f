"""A loop over all objects takes as many turns as it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorum_queue.boundary import Boundary, Fatal
from quorum_queue.steps import Steps


class Turn:
    """A turn that is overdue after so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = self._left = steps
        self.calls: list[tuple[Any, Callable[[], object]]] = []

    def overdue(self) -> bool:
        self._left -= 1
        return self._left <= 0

    def later(self, unit: Any, call: Callable[[], object]) -> None:
        self.calls.append((unit, call))

    def run(self) -> int:
        """Run turns until nothing is left; return how many there were."""
        count = 0
        while self.calls:
            self._left = self._steps
            unit, call = self.calls.pop(0)
            Boundary().contain(unit, call)
            count += 1
        return count


def made(turn: Any, make: Callable[[], Iterator[object]], done: Callable[[], object] | None = None) -> Steps:
    return Steps(turn, make, "the loop failed", done)


def test_as_many_steps_as_the_turn_has_time_for() -> None:
    turn, seen, done = Turn(3), list[int](), list[str]()

    def make() -> Iterator[None]:
        for number in range(10):
            seen.append(number)
            yield

    steps = made(turn, make, lambda: done.append("done"))
    steps.begin()
    assert seen == [0, 1, 2] and steps.under_way and not done
    assert turn.run() == 3
    assert seen == list(range(10)) and done == ["done"] and not steps.under_way
    steps.begin()
    turn.run()
    assert len(seen) == 20 and done == ["done"] * 2


def test_what_begins_while_it_is_under_way_is_done_once_more() -> None:
    turn, seen, objects = Turn(2), list[str](), ["a", "b", "c"]

    def make() -> Iterator[None]:
        for name in list(objects):
            seen.append(name)
            yield

    steps = made(turn, make)
    steps.begin()
    objects.append("d")
    steps.begin()
    steps.begin()
    turn.run()
    assert seen == ["a", "b", "c", "a", "b", "c", "d"]


def test_a_stopped_loop_takes_no_further_step() -> None:
    turn, seen = Turn(2), list[int]()

    def make() -> Iterator[None]:
        for number in range(5):
            seen.append(number)
            if number == 3:
                steps.stop()
            yield

    steps = made(turn, make)
    steps.begin()
    turn.run()
    assert seen == [0, 1, 2, 3]
    steps.begin()
    steps.stop()
    turn.run()
    assert seen == [0, 1, 2, 3, 0, 1]


def test_a_step_that_raises_ends_the_node() -> None:
    turn = Turn(1)

    def make() -> Iterator[None]:
        yield
        raise ValueError("planted")

    made(turn, make).begin()
    with pytest.raises(Fatal, match="the loop failed: ValueError"):
        turn.run()
