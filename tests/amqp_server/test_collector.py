"""Python's collector makes no long pause."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from functools import partial

import pytest

from amqp_server.app import GC_THRESHOLDS, YOUNG
from amqp_server.turn import TIDY_TURNS, NoPeers, Turn
from tests.amqp_server.connection.node import Commits
from tests.stores.memory import MemoryEnvironment

#: Objects that come in each turn, and go.
EACH_TURN = 300


class Thing:
    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of = self.__class__


@pytest.fixture(autouse=True)
def as_in_a_node() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_young_objects_do_not_pile_up_while_as_many_old_ones_die() -> None:
    """They do not start a collection by themselves, and when it starts at last it looks at all of them."""
    turn = Turn(Commits(MemoryEnvironment()), NoPeers(), lambda: None, tidy=partial(gc.collect, YOUNG))
    things = deque(Thing() for _ in range(60_000))
    gc.collect(YOUNG)
    looked_at: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation=each)) for each in generations))

    def replace() -> None:
        for _ in range(EACH_TURN):
            things.popleft()
            things.append(Thing())

    gc.callbacks.append(look)
    try:
        for _ in range(150):
            turn.run(replace)
        more = [Thing() for _ in range(5_000)]
    finally:
        gc.callbacks.remove(look)
    assert len(things) == 60_000 and len(more) == 5_000
    assert max(looked_at) < 1.5 * TIDY_TURNS * EACH_TURN


def test_a_turn_that_left_work_is_followed_by_a_look() -> None:
    looks: list[int] = []
    turn = Turn(Commits(MemoryEnvironment()), NoPeers(), lambda: None, tidy=lambda: looks.append(1))
    turn.run(lambda: None)
    assert looks == []
    turn.run(lambda: turn.later(turn, lambda: None))  # type: ignore[arg-type]
    assert looks == [1]
