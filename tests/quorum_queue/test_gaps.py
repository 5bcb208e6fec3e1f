"""Runs whose messages are no neighbours: those of one priority, and those that waited for the same time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quorum_queue.machine import versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import DUE_MAX, Machine, Meta
from quorum_queue.machine.positions import Positions
from quorum_queue.machine.ready import Ready
from quorum_queue.machine.run import RUN_LENGTH_MAX, Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.node import QueueNode, Receiver
from tests.quorum_queue.test_message_memory import bytes_each, content
from tests.quorum_queue.test_run import check, plain, runs, without_frame

STRICT = Settings(strict=True, keeps_all=True)
#: A waiting message with its content of 159 bytes, which takes 192 as an object.
WAITING_BYTES = 260


@given(runs(), st.integers(2, 4), st.randoms(use_true_random=False))
def test_what_was_dealt_out_is_joined_in_order(run: Run, turns: int, random: Random) -> None:
    before = plain(run)
    hands = [run.every(index, turns) for index in range(min(turns, len(run)))]
    random.shuffle(hands)
    # Those of one queue have one priority.
    priorities = {hand.attributes.priority for hand in hands}
    found = list(hands[0].join_all(hands[1:]))
    if len(priorities) == 1:
        assert len(found) == 1
    for joined in found:
        check(joined)
        assert list(joined.seqs) == sorted(joined.seqs)
    messages = sorted((each for joined in found for each in plain(joined)), key=lambda message: message[0])
    assert list(map(without_frame, messages)) == list(map(without_frame, before))


@pytest.mark.parametrize("level_of", [Ready(4).level_of, Ready(strict=True).level_of])
@given(run=runs())
def test_each_part_is_of_one_level(level_of: Callable[[int], int], run: Run) -> None:
    before = plain(run)
    parts = list(run.by_level(level_of))
    levels = []
    for part in parts:
        check(part)
        (level,) = {level_of(part.attributes_of(index).priority) for index in range(len(part))}
        assert level_of(part.attributes.priority) == level
        levels.append(level)
    assert len(set(levels)) == len(levels)
    messages = sorted((each for part in parts for each in plain(part)), key=lambda message: message[0])
    assert list(map(without_frame, messages)) == list(map(without_frame, before))


def waiting(machine: Machine, count: int, spread_ms: int) -> None:
    """Publish messages one by one that are all due at other times than those before them."""
    for number in range(count):
        run = Run(range(1), [content(number)], b"\x00\x01q", Attributes(True))
        run.waits_until = 1_000 + number * 7_919 % spread_ms
        machine.apply(Meta(0), [("enqueue", run, None, 0)], Effects())


@pytest.mark.parametrize("settings", [Settings(), STRICT])
def test_messages_that_wait_cost_little(settings: Settings) -> None:
    machine, count = Machine(settings), 40_000
    waiting(machine, count, 500)
    assert machine.delayed.count == count
    assert bytes_each(machine, count) <= WAITING_BYTES


@pytest.mark.parametrize("settings", [Settings(), STRICT])
def test_those_that_are_due_together_come_in_order(settings: Settings) -> None:
    machine, count = Machine(settings), 3 * DUE_MAX
    waiting(machine, count, 100)
    machine.apply(Meta(0), [("attach", Consumer("c", no_ack=True))], Effects())
    batches: list[list[int]] = []
    while machine.delayed.count:
        effects = Effects()
        machine.apply(Meta(2_000), [("tick",)], effects)
        batches.append([seq for _, run, _ in effects.deliveries for seq in run.seqs])
        assert effects.more is (machine.delayed.count > 0 or len(batches) == 3)
        assert len(effects.deliveries) <= 1 + DUE_MAX // RUN_LENGTH_MAX
    assert [len(batch) for batch in batches] == [DUE_MAX] * 3
    assert all(batch == sorted(batch) for batch in batches)
    assert sorted(seq for batch in batches for seq in batch) == list(range(1, count + 1))


def test_what_becomes_ready_behind_others_goes_to_its_place() -> None:
    machine = Machine(STRICT)
    waiting(machine, 30, 3)
    for now_ms in (1_001, 1_000, 1_002):
        machine.apply(Meta(now_ms), [("tick",)], Effects())
    assert [seq for run in machine.ready.runs() for seq in run.seqs] == list(range(1, 31))


def test_a_snapshot_has_runs_with_gaps_from_their_version_on() -> None:
    for version in (versions.KINDS - 1, versions.KINDS):
        machine = Machine(STRICT, version=version)
        waiting(machine, 60, 5)
        found = [run for _, run in machine.delayed.items()]
        assert any(isinstance(run.seqs, Positions) for run in found) is (version >= versions.KINDS)
        restored = snapshot.decode(snapshot.encode(machine))
        assert snapshot.digest(restored) == snapshot.digest(machine)
        assert [list(run.seqs) for _, run in restored.delayed.items()] == [list(run.seqs) for run in found]


def test_bodies_far_from_one_another_are_read_without_those_between() -> None:
    node, count, times = QueueNode(0), 4_000, 4
    host = node.host(Settings(), journalled=True)
    for number in range(count):
        # Ten neighbours wait for one time, in a block of a thousand.
        run = Run(range(1), [b"%d" % number], b"head", Attributes(True))
        run.waits_until = 100 * (1 + number // 10 % times) if number % 1_000 < 10 * times else 1_000_000
        host.submit(("enqueue", run, None, 0))
    node.commit()
    node.services.memory.relieve()
    assert not any(run.in_memory for run in host.machine.delayed.runs())
    read: list[int] = []
    journal = node.services.journal
    reads = journal.read

    def counted(queue_id: int, first_seq: int, last_seq: int) -> list[Any]:
        found = list(reads(queue_id, first_seq, last_seq))
        read.append(sum(record.count for record in found))
        return found

    journal.read = counted  # type: ignore[method-assign]
    receiver = Receiver()
    host.submit(("attach", Consumer("c", no_ack=True, sink=receiver)))
    for _ in range(times):
        node.clock.now_ms += 100
        host.wake()
    expected = [
        block + 10 * time + each
        for time in range(times)
        for block in range(0, count, 1_000)
        for each in range(10)
    ]
    assert receiver.contents == [b"%d" % number for number in expected]
    assert sum(read) <= 2 * len(expected)
