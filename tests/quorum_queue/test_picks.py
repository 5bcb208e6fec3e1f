"""Messages are taken out of the middle of a queue, and come back to their places."""

from __future__ import annotations

from random import Random

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.order import due_times
from quorum_queue.machine.peeking import Look, peek
from quorum_queue.machine.ready import Place
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings

PICKER = ("n1", 1, "p")


def machine_with(count: int, **settings: object) -> Machine:
    machine = Machine(Settings(**settings))  # type: ignore[arg-type]
    for number in range(1, count + 1):
        run = Run(range(1), [b"%d" % number], b"q", Attributes(persistent=True, priority=number % 2))
        apply(machine, ("enqueue", run, None, number))
    return machine


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> Effects:
    effects = Effects()
    machine.apply(Meta(now_ms), commands, effects)
    return effects


def pick(position: int, *, no_ack: bool = False, first_id: int = 0) -> Command:
    consumer = Consumer(PICKER, no_ack=no_ack, position=position)
    consumer.attached, consumer.next_id = False, first_id
    return "get", consumer


def order(machine: Machine) -> list[tuple[int, bool]]:
    return [(seq, run.redelivered) for run in machine.ready.runs() for seq in run.seqs]


@pytest.mark.parametrize("settings", [{}, {"priority_max": 3}, {"strict": True, "delivery_limit": 0}])
@pytest.mark.parametrize("end", ["return", "fail", "detach", "node_down"])
def test_what_was_picked_comes_back_as_it_was(settings: dict[str, object], end: str) -> None:
    machine = machine_with(9, **settings)
    before = order(machine)
    effects = apply(machine, pick(5), pick(2), pick(9))
    assert [seq for _, run, _ in effects.deliveries for seq in run.seqs] == [5, 2, 9]
    assert (machine.ready.count, machine.unacked_count) == (6, 3)
    command: Command = {"detach": ("detach", PICKER, True), "node_down": ("node_down", "n1", 1)}.get(
        end, (end, PICKER, 0, 99)
    )
    effects = apply(machine, command)
    assert order(machine) == before
    assert (machine.ready.count, machine.unacked_count) == (9, 0)
    assert not effects.returned and not effects.dead_letters
    assert PICKER not in machine.consumers.by_key


def test_what_was_picked_and_settled_is_gone() -> None:
    machine = machine_with(5)
    apply(machine, pick(2), pick(4))
    effects = apply(machine, ("settle", PICKER, 0, 1))
    assert [seq for run in effects.settled for seq in run.seqs] == [2, 4]
    assert order(machine) == [(1, False), (3, False), (5, False)]


def test_what_is_not_ready_is_not_picked() -> None:
    machine = machine_with(3, message_ttl_ms=100)
    taker = Consumer(("n1", 1, "c"), prefetch=1)
    apply(machine, ("attach", taker))
    assert apply(machine, pick(1), pick(77)).got_nothing == [PICKER, PICKER]
    effects = apply(machine, pick(3), now_ms=99)
    assert [list(run.seqs) for _, run, _ in effects.deliveries] == [[3]]
    # Its time is up, though it expires when it comes to the head.
    late = Run(range(1), [b"4"], b"q", Attributes(persistent=True, ttl_ms=1))
    apply(machine, ("enqueue", late, None, 4))
    assert apply(machine, pick(4), now_ms=50).got_nothing == [PICKER]


def test_messages_that_came_back_are_picked_out_of_the_order_of_their_return() -> None:
    machine = machine_with(4, strict=True)
    consumer = Consumer(("n1", 1, "c"))
    apply(machine, ("attach", consumer))
    for delivery in (3, 0, 2, 1):
        apply(machine, ("pause", consumer.key, True), ("return", consumer.key, delivery, delivery))
    came_back = [seq for seq, _ in order(machine)]
    effects = apply(machine, pick(came_back[2]))
    assert [seq for _, run, _ in effects.deliveries for seq in run.seqs] == [came_back[2]]
    assert [seq for seq, _ in order(machine)] == came_back[:2] + came_back[3:]


def test_members_of_earlier_versions_pick_nothing() -> None:
    machine = Machine(Settings(), version=versions.PICKS - 1)
    apply(machine, ("enqueue", Run(range(3), [b"a", b"b", b"c"], b"q"), None, 1))
    assert apply(machine, pick(2)).got_nothing == [PICKER]
    assert machine.ready.count == 3


def waiting_pick(due_ms: int, position: int) -> Command:
    command = pick(position)
    command[1].due_ms = due_ms
    return command


def waits(machine: Machine) -> list[tuple[int, int, bool]]:
    return [(due_ms, seq, run.redelivered) for due_ms, run in machine.delayed.items() for seq in run.seqs]


def delayed(number: int, wait_ms: int, count: int = 1) -> Command:
    run = Run(range(count), [b"m"] * count, b"q", Attributes(persistent=True))
    run.waits_until = wait_ms
    return "enqueue", run, None, number


@pytest.mark.parametrize("end", ["return", "detach", "node_down"])
@pytest.mark.parametrize("strict", [False, True])
def test_what_was_picked_while_it_waited_goes_on_waiting(end: str, strict: bool) -> None:
    machine = Machine(
        Settings(strict=strict, retry_type="all", retry_min_ms=30, retry_max_ms=30, delivery_limit=0)
    )
    apply(machine, delayed(1, 10, 4), delayed(5, 20))
    consumer = Consumer(("n1", 1, "c"), prefetch=1)
    apply(machine, ("enqueue", Run(range(1), [b"6"], b"q"), None, 6), ("attach", consumer))
    apply(machine, ("detach", consumer.key, False), ("return", consumer.key, 0, 0))
    before = waits(machine)
    assert before == [*((10, seq, False) for seq in (1, 2, 3, 4)), (20, 5, False), (30, 6, True)]
    picked = apply(machine, *(waiting_pick(due, seq) for due, seq, _ in before))
    assert [list(run.seqs) for _, run, _ in picked.deliveries] == [[seq] for _, seq, _ in before]
    assert (machine.delayed.count, machine.delayed.bytes, machine.due_ms) == (0, 0, None)
    command: Command = {"detach": ("detach", PICKER, True), "node_down": ("node_down", "n1", 1)}.get(
        end, (end, PICKER, 0, 99)
    )
    effects = apply(machine, command)
    assert waits(machine) == before and machine.delayed.next_ms == 10
    assert not effects.returned and not effects.delayed
    # A message that came back counts as such, and the others are new, when their time has come.
    apply(machine, ("tick",), now_ms=30)
    assert sorted(order(machine)) == [*((seq, False) for seq in (1, 2, 3, 4, 5)), (6, True)]


def test_a_queue_wakes_for_the_next_wait_although_it_drops_messages() -> None:
    machine = Machine(Settings(max_length=3, overflow="drop-head", message_ttl_ms=100))
    apply(machine, delayed(1, 10, 3), delayed(4, 20))
    effects = apply(machine, ("tick",), now_ms=10)
    # Those that are left expire later.
    assert (machine.ready.count, machine.delayed.count, effects.wake_at) == (2, 1, 20)


def test_what_waited_is_ready_if_it_comes_back_after_its_time() -> None:
    machine = Machine(Settings())
    apply(machine, delayed(1, 10), delayed(2, 10), delayed(3, 10))
    apply(machine, waiting_pick(10, 2))
    apply(machine, ("return", PICKER, 0, 0), now_ms=50)
    assert order(machine) == [(1, False), (2, False), (3, False)] and not machine.delayed.count


def test_only_a_message_that_waits_until_then_is_picked() -> None:
    machine = Machine(Settings())
    apply(machine, delayed(1, 10, 3), ("enqueue", Run(range(1), [b"4"], b"q"), None, 4))
    nothing = apply(machine, waiting_pick(9, 1), waiting_pick(10, 4), waiting_pick(10, 77), pick(1))
    assert nothing.got_nothing == [PICKER] * 4
    assert apply(machine, waiting_pick(10, 1), now_ms=10).got_nothing == [PICKER]
    assert order(machine) == [(1, False), (2, False), (3, False), (4, False)]


def test_times_of_picked_messages_are_forgotten() -> None:
    machine = Machine(Settings())
    for number in range(1, 1001):
        apply(machine, delayed(number, number))
    for number in range(1, 1001):
        if number % 10:
            apply(machine, waiting_pick(number, number), ("settle", PICKER, 0, 9999))
        assert machine.delayed.next_ms == min(due for due, *_ in waits(machine))
    assert len(list(machine.delayed._times)) == 100
    apply(machine, delayed(1001, 15), delayed(1002, 15))
    seen = [(due_ms, seq) for due_ms, run, _ in machine.delayed.behind(0, 0) for seq in run.seqs]
    assert seen == [(due_ms, seq) for due_ms, seq, _ in waits(machine)] and len(seen) == 102
    apply(machine, ("tick",), now_ms=1000)
    assert machine.ready.count == 102


@pytest.mark.parametrize("size", [1, 4, 12])
def test_a_look_goes_on_where_it_was_though_its_last_message_was_picked(size: int) -> None:
    machine = Machine(Settings())
    for number in range(1, 13):
        apply(machine, delayed(number, 10 + number // 9 * 10))
    seen: list[int] = []
    place = Place(-1, 0)
    while found := peek(machine, Look(place, size, 1 << 20, waiting=True)):
        places = [Place(each.level, seq) for each in found for seq in each.run.seqs]
        seen += [each.position for each in places]
        place = places[-1]
        apply(machine, waiting_pick(-place.level, place.position), ("settle", PICKER, 0, 9999))
    assert seen == list(range(1, 13))


def test_members_before_cancels_pick_nothing_that_waits() -> None:
    machine = Machine(Settings(), version=versions.CANCELS - 1)
    apply(machine, delayed(1, 10), ("enqueue", Run(range(1), [b"2"], b"q"), None, 2))
    assert apply(machine, waiting_pick(10, 1), waiting_pick(10, 2)).got_nothing == [PICKER] * 2
    assert (machine.ready.count, machine.delayed.count) == (1, 1)


def test_very_many_times_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_times, "LENGTH_MAX", 8)
    chance, times = Random(1), due_times.DueTimes()
    there: set[int] = set()
    for _ in range(5_000):
        time_ms = chance.randrange(400)
        if time_ms in there and chance.random() < 0.8:
            times.remove(time_ms)
            there.remove(time_ms)
        elif time_ms not in there:
            times.add(time_ms)
            there.add(time_ms)
        expected = sorted(there)
        assert list(times) == expected and bool(times) is bool(there)
        assert (times.first, times.last) == ((expected[0], expected[-1]) if expected else (None, None))
        assert list(times.since(200)) == [each for each in expected if each >= 200]
    for time_ms in sorted(there):
        times.remove(time_ms)
    assert not times and list(times.since(0)) == []
