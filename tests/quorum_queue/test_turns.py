"""The order in which consumers are served."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings


def apply(machine: Machine, *commands: Command) -> dict[str, list[int]]:
    """Apply a batch; return the positions that each consumer got."""
    effects = Effects()
    machine.apply(Meta(0), commands, effects)
    handed: dict[str, list[int]] = {}
    for consumer, run, _ in effects.deliveries:
        handed.setdefault(consumer.key, []).extend(run.seqs)
    return handed


def enqueue(count: int) -> Command:
    return "enqueue", Run(range(count), [b"x"] * count, b"head"), None, 1


def queue(consumers: Sequence[Consumer], single_active: bool = False) -> Machine:
    machine = Machine(Settings(single_active_consumer=single_active))
    apply(machine, *(("attach", consumer) for consumer in consumers))
    return machine


@given(st.lists(st.integers(1, 7), min_size=1, max_size=10), st.integers(2, 4))
def test_consumers_alternate_however_messages_come(lengths: list[int], count: int) -> None:
    machine = queue([Consumer(f"c{index}") for index in range(count)])
    handed: dict[int, str] = {}
    for length in lengths:
        for key, seqs in apply(machine, enqueue(length)).items():
            handed.update(dict.fromkeys(seqs, key))
    assert [handed[seq] for seq in sorted(handed)] == [f"c{index % count}" for index in range(sum(lengths))]


class Turns:
    """The rule, written the slow way: the first consumer in turn that has room gets the next message and goes
    to the end.
    """

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.order: list[str] = []
        self.limits: dict[str, int] = {}
        self.paused: set[str] = set()
        self.held: dict[str, list[int]] = {}

    def assign(self) -> dict[str, list[int]]:
        handed: dict[str, list[int]] = {}
        while self.waiting:
            taker = next(filter(self.has_room, self.order), None)
            if taker is None:
                break
            following = self.order.index(taker) + 1
            self.order = self.order[following:] + self.order[:following]
            seq = self.waiting.pop(0)
            self.held[taker].append(seq)
            handed.setdefault(taker, []).append(seq)
        return handed

    def has_room(self, key: str) -> bool:
        limit = self.limits[key]
        return key not in self.paused and not (limit and len(self.held[key]) >= limit)


@given(st.lists(st.tuples(st.sampled_from("aaeeeeessspld"), st.integers(0, 9)), max_size=80))
def test_turns_pass_as_the_rule_says(steps: list[tuple[str, int]]) -> None:
    """A full consumer is not looked at again until it has room, which changes no result."""
    machine, turns = queue([]), Turns()
    settled: dict[str, int] = {}
    attached = enqueued = 0
    for kind, number in steps:
        if kind == "a":
            key, limit = f"c{attached}", number % 3
            attached += 1
            turns.order.append(key)
            turns.limits[key], turns.held[key], settled[key] = limit, [], 0
            handed = apply(machine, ("attach", Consumer(key, prefetch=limit, channel=key)))
        elif kind == "e":
            enqueued += 1
            turns.waiting.append(enqueued)
            handed = apply(machine, enqueue(1))
        elif not turns.order:
            continue
        else:
            key = turns.order[number % len(turns.order)]
            if kind == "s" and turns.held[key]:
                turns.held[key].pop(0)
                handed = apply(machine, ("settle", key, settled[key], settled[key]))
                settled[key] += 1
            elif kind == "p":
                turns.paused ^= {key}
                handed = apply(machine, ("pause", key, key in turns.paused))
            elif kind == "l":
                turns.limits[key] = number % 4
                handed = apply(machine, ("prefetch", key, number % 4))
            elif kind == "d":
                turns.order.remove(key)
                handed = apply(machine, ("detach", key, False))
            else:
                continue
        assert handed == turns.assign()
        assert [consumer.key for consumer in machine.consumers.attached()] == turns.order


@pytest.mark.parametrize("busy", [True, False])
def test_of_many_consumers_few_are_looked_at(busy: bool) -> None:
    count, calls = 2_000, 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    machine = queue([Consumer(str(index), prefetch=int(busy), channel=index) for index in range(count)])
    if busy:
        apply(machine, enqueue(2 * count))
    sys.setprofile(called)
    try:
        handed = apply(machine, ("settle", "1500", 0, 0) if busy else enqueue(1))
    finally:
        sys.setprofile(None)
    assert handed == ({"1500": [count + 1]} if busy else {"0": [1]})
    assert calls < 500


def test_who_has_no_room_is_passed_over_and_not_owed_anything() -> None:
    machine = queue([Consumer("a", prefetch=1), Consumer("b")])
    assert apply(machine, enqueue(4)) == {"a": [1], "b": [2, 3, 4]}
    assert apply(machine, ("settle", "a", 0, 0), enqueue(4)) == {"a": [5], "b": [6, 7, 8]}


def test_higher_priority_is_served_while_it_has_room() -> None:
    machine = queue([Consumer("low"), Consumer("high", prefetch=2, priority=5)])
    assert apply(machine, enqueue(5)) == {"high": [1, 2], "low": [3, 4, 5]}
    assert apply(machine, ("settle", "high", 1, 1), enqueue(2)) == {"high": [6], "low": [7]}


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_single_active_consumer_stays_active_until_it_goes(prefetch: int) -> None:
    machine = queue([Consumer("first", prefetch=prefetch), Consumer("second")], single_active=True)
    assert apply(machine, enqueue(1)) == {"first": [1]}
    handed = apply(machine, ("settle", "first", 0, 0), enqueue(3))
    assert list(handed) == ["first"]
    assert apply(machine, ("pause", "first", True), enqueue(1)) == {}
    assert apply(machine, ("detach", "first", True))["second"][-1] == 5


def test_what_a_consumer_cancelled_under_its_key_still_holds_is_its_own() -> None:
    """A detached consumer is forgotten when it holds no more messages, not before."""
    machine = queue([Consumer("a", prefetch=2)])
    apply(machine, enqueue(2))
    apply(machine, ("detach", "a", False))
    assert machine.unacked_count == 2
    apply(machine, ("settle", "a", 0, 0))
    assert list(machine.consumers.by_key) == ["a"]
    apply(machine, ("return", "a", 1, 1))
    assert list(machine.consumers.by_key) == []
    assert machine.unacked_count == 0
    assert [seq for run in machine.ready.runs() for seq in run.seqs] == [2]
