"""The times of messages are known closely, in little memory."""

from __future__ import annotations

import random

import pytest

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.record.arrivals import INTERVAL_MS, NOTED_MAX, SHARE, Arrivals
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot


@pytest.mark.parametrize(
    "steps", [[0, 0, 1, 100, 2_000, 5_000], [0], [1_000], [10, 60_000], [1, 900_000_000]]
)
def test_times_are_right_up_to_a_share_of_the_age(steps: list[int]) -> None:
    chance, arrivals, now_ms = random.Random(1), Arrivals(), 0
    came: dict[int, int] = {}
    for position in range(1, 40_000):
        now_ms += chance.choice(steps)
        if now_ms >= arrivals.next_ms:
            arrivals.note(position, now_ms)
        came[position] = now_ms
        assert len(arrivals.times) <= NOTED_MAX
        if position % 5_000 == 0:
            for earlier, time_ms in came.items():
                found = arrivals.time_of(earlier)
                assert found is not None and found <= time_ms
                assert time_ms - found <= INTERVAL_MS + (now_ms - found) // SHARE
    assert arrivals.time_of(0) is None


def apply(machine: Machine, now_ms: int, *commands: Command) -> None:
    machine.apply(Meta(now_ms), commands, Effects())


def one(now_ms: int, machine: Machine, priority: int = 0) -> None:
    run = Run(range(1), [b"x"], b"q", Attributes(persistent=True, priority=priority))
    apply(machine, now_ms, ("enqueue", run, None, 1))


@pytest.mark.parametrize("settings", [Settings(), Settings(priority_max=5), Settings(strict=True)])
def test_the_oldest_ready_message_has_its_time(settings: Settings) -> None:
    machine = Machine(settings)
    assert machine.oldest_age_ms(30_000) is None
    one(5_000, machine, priority=1)
    one(8_000, machine, priority=3)
    one(20_000, machine, priority=2)
    assert machine.oldest_age_ms(30_000) == 25_000
    consumer = Consumer(("n", 1, "c"))
    apply(machine, 30_000, ("attach", consumer), ("detach", consumer.key, True))
    # What came back is as old as before.
    assert machine.oldest_age_ms(30_000) == 25_000
    restored = snapshot.decode(snapshot.encode(machine))
    assert restored.oldest_age_ms(30_000) == 25_000
    apply(machine, 40_000, ("purge", 1))
    assert machine.oldest_age_ms(30_000) is None


def test_messages_of_before_have_the_time_of_the_start() -> None:
    arrivals = Arrivals.restored([], [], 70_000)
    assert arrivals.time_of(1) == arrivals.time_of(500) == 70_000
    arrivals.note(501, 80_000)
    assert (arrivals.time_of(500), arrivals.time_of(501)) == (70_000, 80_000)
    with pytest.raises(ValueError, match="as many"):
        Arrivals.restored([1], [], 0)


def test_messages_that_were_there_already_may_have_come_before() -> None:
    arrivals = Arrivals.restored([], [], 9_000)
    arrivals.note(7, 12_000)
    assert (arrivals.time_of(6), arrivals.surely_came(6)) == (9_000, None)
    assert (arrivals.time_of(8), arrivals.surely_came(8)) == (12_000, 12_000)
    assert Arrivals().surely_came(1) is None
