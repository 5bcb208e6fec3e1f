"""Messages that go back with a delay of their own: ("retry", key, low, high, wait_ms, failed)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.snapshot import decode, digest, encode

STRICT = Settings(strict=True, keeps_all=True)
RETRYING = replace(STRICT, retry_type="all", retry_min_ms=50, retry_max_ms=50)


def filled(settings: Settings, count: int = 3, version: int = versions.NEWEST) -> Machine:
    machine = Machine(settings, version=version)
    run = Run(range(count), [b"%d" % at for at in range(count)], b"\x01e\x01k", Attributes(True))
    apply(machine, ("enqueue", run, None, 1), ("attach", Consumer("c")))
    return machine


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> Effects:
    effects = Effects()
    machine.apply(Meta(now_ms), commands, effects)
    return effects


def waiting(machine: Machine) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for due_ms, run in machine.delayed.items():
        found.setdefault(due_ms, []).extend(run.seqs)
    return found


@pytest.mark.parametrize("settings", [Settings(), STRICT, RETRYING])
def test_each_waits_for_its_own_time(settings: Settings) -> None:
    machine = filled(settings)
    apply(
        machine,
        ("retry", "c", 0, 0, 700, True),
        ("retry", "c", 1, 1, 20, False),
        ("retry", "c", 2, 2, 0, True),
        now_ms=5,
    )
    assert waiting(machine) == {705: [1], 25: [2]}
    # That for which no delay is asked goes to the consumer in the same batch.
    assert machine.unacked_count == 1
    assert [run.attempts for _, run in machine.delayed.items()] == [0, 1]
    back = apply(machine, ("tick",), now_ms=705)
    assert [list(run.seqs) for _, run, _ in back.deliveries] == (
        [[2], [1]] if settings.strict else [[1], [2]]
    )


def test_failures_count_for_the_limit() -> None:
    machine = filled(replace(STRICT, delivery_limit=0, dead_letter=True))
    effects = apply(machine, ("retry", "c", 0, 0, 9, False), ("retry", "c", 1, 1, 9, True))
    assert waiting(machine) == {9: [1]}
    assert [(list(run.seqs), reason) for run, reason in effects.dead_letters] == [([2], "delivery_limit")]


def test_a_queue_of_an_earlier_version_lets_it_wait_as_it_lets_others() -> None:
    """Until all members know the delay, none follows it."""
    for settings, expected in ((STRICT, {}), (RETRYING, {50: [1]})):
        machine = filled(settings, version=versions.RETRY_WAITS - 1)
        apply(machine, ("pause", "c", True), ("retry", "c", 0, 0, 700, True))
        assert waiting(machine) == expected


def test_a_snapshot_has_them() -> None:
    machine = filled(STRICT)
    apply(machine, ("retry", "c", 1, 2, 700, True))
    again = decode(encode(machine))
    assert digest(again) == digest(machine)
    assert waiting(again) == waiting(machine) == {700: [2, 3]}


def test_nothing_that_the_consumer_does_not_hold_waits() -> None:
    machine = filled(STRICT)
    apply(machine, ("settle", "c", 0, 1))
    before = digest(machine)
    apply(machine, ("retry", "c", 0, 1, 700, True), ("retry", "nobody", 0, 9, 700, True))
    assert digest(machine) == before
