"""Work that waits until clients take their output: it goes on in turns, and only while there is room."""

from __future__ import annotations

from functools import partial

from quorum_queue.unsent_bytes import Unsent


class Waiting:
    """Each unit that goes on sends this many bytes."""

    def __init__(self, size: int, bytes_max: int = 100) -> None:
        self.unsent = Unsent(bytes_max)
        self.size = size
        self.gone: list[str] = []
        self.unsent.add(bytes_max + 1)
        assert self.unsent.full

    def add(self, unit: str, group: str | None = None) -> None:
        self.unsent.wait(unit, partial(self._go_on, unit), group)

    def _go_on(self, unit: str) -> None:
        self.gone.append(unit)
        self.unsent.add(self.size)


def test_it_is_told_once_when_it_has_become_too_much() -> None:
    unsent, told = Unsent(100), list[int]()
    unsent.filled = lambda: told.append(unsent.bytes)
    unsent.add(100)
    assert not told and not unsent.full
    unsent.add(1)
    unsent.add(50)
    assert told == [101] and unsent.full
    unsent.take(60)
    assert unsent.full, "a little less is not enough"
    unsent.take(1)
    assert not unsent.full
    unsent.add(11)
    assert told == [101, 101]


def test_groups_take_turns_and_in_each_who_has_waited_longest() -> None:
    waiting = Waiting(0)
    for unit, group in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c", None), ("b2", "b")):
        waiting.add(unit, group)
    # A unit that waits already does not wait twice.
    waiting.add("a1", "a")
    waiting.unsent.take(50)
    assert waiting.gone == ["a1", "b1", "c", "a2", "b2", "a3"]


def test_no_more_go_on_than_there_is_room_for() -> None:
    waiting = Waiting(60)
    for unit in "abcd":
        waiting.add(unit)
    waiting.unsent.take(51)
    assert waiting.gone == ["a"] and waiting.unsent.full
    waiting.unsent.take(110)
    assert waiting.gone == ["a", "b", "c"] and waiting.unsent.full


def test_who_has_ended_waits_no_more() -> None:
    waiting = Waiting(0)
    for unit, group in (("a", None), ("b1", "b"), ("b2", "b"), ("c1", "c")):
        waiting.add(unit, group)
    waiting.unsent.forget("a")
    waiting.unsent.forget("b1", "b")
    waiting.unsent.forget("c1", "c")
    waiting.unsent.forget("unknown", "c")
    waiting.unsent.take(101)
    assert waiting.gone == ["b2"] and waiting.unsent.bytes == 0
