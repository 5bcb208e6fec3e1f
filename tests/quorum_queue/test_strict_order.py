"""Queues with strict priorities: the version from which they have them, snapshots, and waits."""

from __future__ import annotations

from functools import partial

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.attributes import PRIORITY_ZERO
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.order import delayed
from quorum_queue.machine.peeking import Look, peek
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot

STRICT = Settings(strict=True, keeps_all=True, delivery_limit=20)


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> Effects:
    effects = Effects()
    machine.apply(Meta(now_ms), commands, effects)
    return effects


def filled(machine: Machine, *priorities: int) -> Machine:
    for priority in priorities:
        run = Run(range(1), [b"m"], b"head", Attributes(priority=priority))
        apply(machine, ("enqueue", run, None, 0))
    return machine


def order(machine: Machine) -> list[int]:
    return [seq for run in machine.ready.runs() for seq in run.seqs]


def give_back(machine: Machine, verb: str, now_ms: int = 0) -> None:
    """Hand out the next message, and take it back."""
    consumer = Consumer("c", prefetch=1)
    delivered = apply(machine, ("attach", consumer), now_ms=now_ms).deliveries
    assert [len(run.seqs) for _, run, _ in delivered] == [1]
    apply(machine, ("pause", "c", True), (verb, "c", 0, 0), ("detach", "c", True), now_ms=now_ms)


def test_a_log_of_an_earlier_version_gives_the_old_order() -> None:
    """Messages that wait when the queue learns of priorities are ordered by them then."""
    before = filled(Machine(STRICT, version=versions.PRIORITIES - 1), 0, 9, 0, 1, 31)
    assert order(before) == [1, 2, 3, 4, 5]
    give_back(before, "return")
    assert order(before) == [1, 2, 3, 4, 5]
    restored = snapshot.decode(snapshot.encode(before))
    for machine in (before, restored):
        apply(machine, ("version", versions.PRIORITIES))
        assert order(machine) == [1, 5, 2, 3, 4]
        filled(machine, PRIORITY_ZERO, 40)
        assert order(machine) == [1, 5, 7, 2, 3, 4, 6]
        assert machine.ready.by_rank == {0: 1, 1: 1, 4: 1, 9: 1, 31: 2}
    assert snapshot.digest(before) == snapshot.digest(restored)


def test_a_queue_from_before_is_ordered_once_it_is_configured() -> None:
    """The settings of an earlier snapshot say nothing of it."""
    machine = filled(Machine(Settings(keeps_all=True, delivery_limit=20)), 0, 9)
    assert order(machine) == [1, 2]
    apply(machine, ("configure", STRICT))
    assert order(machine) == [2, 1]


def test_a_snapshot_keeps_the_order_of_returns() -> None:
    machine = filled(Machine(STRICT), 1, 9, 4)
    for _ in range(2):
        give_back(machine, "return")
    consumer = Consumer("c", prefetch=2)
    apply(machine, ("attach", consumer))
    # Returned the other way round.
    apply(machine, ("pause", "c", True), ("return", "c", 1, 1), ("return", "c", 0, 0))
    expected = order(machine)
    restored = snapshot.decode(snapshot.encode(machine))
    assert order(restored) == expected
    assert snapshot.digest(restored) == snapshot.digest(machine)
    for each in (machine, restored):
        filled(each, 31)
        assert order(each)[1] == expected[1]


def test_only_failures_count_from_their_version_on() -> None:
    for version, counts in ((versions.FAILURES - 1, (2, 0)), (versions.FAILURES, (1, 2))):
        machine = filled(Machine(STRICT, version=version), 0)
        give_back(machine, "return")
        give_back(machine, "fail")
        (run,) = machine.ready.runs()
        assert (run.attempts, run.acquired) == counts


def test_a_node_that_is_down_is_no_failure() -> None:
    machine = filled(Machine(STRICT), 0, 0)
    apply(machine, ("attach", Consumer(("n1", 1, "c"), prefetch=1)))
    apply(machine, ("node_down", "n1", 1))
    assert [(run.attempts, run.acquired) for run in machine.ready.runs()] == [(0, 1), (0, 0)]
    apply(machine, ("attach", Consumer(("n1", 2, "c"), prefetch=1)))
    apply(machine, ("detach", ("n1", 2, "c"), True))
    assert [(run.attempts, run.acquired) for run in machine.ready.runs()] == [(1, 2), (0, 0)]


def test_messages_wait_from_their_version_on() -> None:
    settings = Settings(strict=True, keeps_all=True, retry_type="all", retry_min_ms=5, retry_max_ms=9)
    for version, waiting in ((versions.RETRIES - 1, 0), (versions.RETRIES, 1)):
        machine = filled(Machine(settings, version=version), 0)
        give_back(machine, "return", now_ms=100)
        assert (machine.delayed.count, machine.ready.count) == (waiting, 1 - waiting)
    assert machine.due_ms == 105
    assert apply(machine, now_ms=104).wake_at == 105
    assert machine.ready.count == 0
    apply(machine, now_ms=105)
    assert (machine.delayed.count, machine.ready.count) == (0, 1)


@pytest.mark.parametrize(
    ("doubles", "waits"), [(False, [10, 10, 20, 30, 40, 45, 45]), (True, [10, 10, 20, 40, 45, 45, 45])]
)
def test_waits_grow_with_failures(doubles: bool, waits: list[int]) -> None:
    settings = Settings(retry_type="all", retry_min_ms=10, retry_max_ms=45, retry_doubles=doubles)
    assert [delayed.wait_ms(settings, attempts, failed=True) for attempts in range(7)] == waits
    longest = Settings(retry_type="all", retry_min_ms=1, retry_max_ms=1 << 40, retry_doubles=doubles)
    assert delayed.wait_ms(longest, 1 << 31, failed=True) <= 1 << 40


def test_very_many_waits_end_in_several_batches() -> None:
    settings = Settings(strict=True, keeps_all=True, retry_type="all", retry_min_ms=5, retry_max_ms=5)
    machine = Machine(settings)
    count = 5000
    run = Run(range(count), [b"m"] * count, b"head")
    apply(machine, ("enqueue", run, None, 0), ("attach", Consumer("c")))
    # The consumer has them in several batches.
    while machine.ready.count:
        apply(machine)
    apply(machine, ("pause", "c", True), *(("return", "c", at, at) for at in range(count - 1, -1, -1)))
    assert machine.delayed.count == count
    due = 0
    while machine.delayed.count:
        effects = apply(machine, now_ms=5)
        assert machine.delayed.count == 0 or effects.more or (effects.wake_at or 0) <= 5
        due += 1
    assert due > 1
    assert order(machine) == list(range(count, 0, -1))


def test_a_million_waiting_messages_cost_little() -> None:
    """Neighbours that came back at the same time wait as one."""
    settings = Settings(strict=True, keeps_all=True, retry_type="all", retry_min_ms=5, retry_max_ms=5)
    machine = Machine(settings)
    for _ in range(500):
        apply(machine, ("enqueue", Run(range(2000), [b"m"] * 2000, b"head"), None, 0))
    apply(machine, ("attach", Consumer("c")))
    while machine.ready.count:
        apply(machine)
    apply(machine, ("pause", "c", True), ("detach", "c", True))
    assert machine.delayed.count == 1_000_000
    assert sum(1 for _ in machine.delayed.runs()) <= 1000
    assert len(snapshot.encode(machine)) < 100_000


@pytest.mark.parametrize("settings", [Settings(), Settings(priority_max=2), STRICT])
def test_who_looks_page_by_page_sees_each_message_once(settings: Settings) -> None:
    """Also one that waited, and comes behind those that came back though its position is lower."""
    machine = Machine(settings)
    late = Run(range(1), [b"late"], b"")
    late.waits_until = 5
    apply = partial(machine.apply, Meta(0))
    apply([("attach", Consumer("c", prefetch=9)), ("enqueue", late, None, 1)], Effects())
    apply([("enqueue", Run(range(3), [b"x"] * 3, b""), None, 2)], Effects())
    apply([("pause", "c", True), ("return", "c", 0, 2)], Effects())
    machine.apply(Meta(5), [("tick",)], Effects())
    seen: list[int] = []
    place = HEAD
    while page := peek(machine, Look(place, 1, 1)):
        seen += page[0].run.seqs
        place = Place(page[0].level, page[0].run.seqs[-1])
    assert seen == [2, 3, 4, 1]
