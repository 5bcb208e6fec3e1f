"""The memory of a deleted queue is freed in parts: of many messages, and of large ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from quorum_queue.freeing import FREED_BYTES_MAX, FREED_RUNS_MAX, Leftover
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.order.delayed import Delayed
from quorum_queue.machine.run import Run
from quorum_queue.ports import Turn


class ShortTurn:
    """A turn that is over after each part."""

    def __init__(self) -> None:
        self.left: list[Callable[[], None]] = []

    def overdue(self) -> bool:
        return True

    def later(self, unit: Any, go_on: Callable[[], None]) -> None:
        self.left.append(go_on)


class Consumers:
    def drop_all(self) -> list[Any]:
        return []


class Ready:
    def __init__(self, runs: list[deque[Run]]) -> None:
        self.drop_all = lambda: runs


class Holding:
    """Stands for a machine that holds these runs."""

    def __init__(self, runs: deque[Run]) -> None:
        self.consumers = Consumers()
        self.ready = Ready([runs])
        self.delayed = Delayed()


def freed(runs: deque[Run]) -> list[int]:
    """Free the runs; return how many are left after each part."""
    turn = ShortTurn()
    Leftover(cast(Machine, Holding(runs)), cast(Turn, turn)).free()
    left = [len(runs)]
    while turn.left:
        turn.left.pop()()
        left.append(len(runs))
    return left


def run_of(size: int, *, paged_out: bool = False) -> Run:
    run = Run(range(1), [b""], b"", size=size)
    if paged_out:
        run.page_out()
        run.size = size
    return run


def test_large_messages_are_freed_some_in_each_turn() -> None:
    left = freed(deque(run_of(FREED_BYTES_MAX // 4) for _ in range(10)))
    assert left[:3] == [6, 2, 0]


def test_bodies_that_are_not_in_memory_do_not_count() -> None:
    left = freed(deque(run_of(FREED_BYTES_MAX, paged_out=True) for _ in range(FREED_RUNS_MAX + 1)))
    assert left[:2] == [1, 0]
