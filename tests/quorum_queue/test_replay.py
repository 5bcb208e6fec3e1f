"""The same log gives the same state: in every process, and from every snapshot on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from quorum_queue.machine import machine as machine_module
from quorum_queue.machine import versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from quorum_queue.machine.snapshots.snapshot import digest
from tests.quorum_queue.command_log import Reader, random_log, random_settings

ROOT = Path(__file__).parents[2]
LOGS = 12


def digests_of(hash_seed: str) -> str:
    """The digests of the same logs, from a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.quorum_queue.command_log", str(LOGS)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_two_processes_reach_the_same_state() -> None:
    first, second = digests_of("1"), digests_of("2")
    assert len(first.splitlines()) == LOGS
    assert len(set(first.split())) > LOGS
    assert first == second


def through_bytes(machine: Machine) -> Machine:
    """Return the machine after a snapshot and restore."""
    return snapshot.decode(snapshot.encode(machine))


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 1 << 32).map(Random), st.integers(1, 10))
def test_a_snapshot_at_every_split(random: Random, batches: int) -> None:
    declared = random_settings(random)
    log = random_log(random, batches)
    original = Reader(Machine(declared))
    told: list[tuple[dict[str, Any], bytes]] = []
    copies: list[Reader] = []
    for batch in log:
        effects = original.apply(batch)
        expected = digest(original.machine)
        for copy in copies:
            # Effects first: a digest cannot tell which consumer got which message.
            assert copy.apply(batch) == effects
            assert digest(copy.machine) == expected
            assert copy.machine.unacked_count == original.machine.unacked_count
            assert copy.machine.unacked_bytes == original.machine.unacked_bytes
            assert copy.machine.ready.count == original.machine.ready.count
            assert copy.machine.ready.bytes == original.machine.ready.bytes
        told.append((effects, expected))
        restored = through_bytes(original.machine)
        assert digest(restored) == expected
        copies.append(Reader(restored, original.number, original.getter_id))
    assert len(copies) == len(log)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 1 << 32).map(Random), st.integers(2, 10), st.sampled_from([6, versions.NEWEST]))
def test_a_snapshot_in_parts_is_of_its_moment(random: Random, batches: int, version: int) -> None:
    """Whatever is applied, and whatever other snapshots are made, before it is encoded."""
    reader = Reader(Machine(random_settings(random), version=version))
    views: list[tuple[snapshot.View, bytes]] = []
    with small_parts():
        for batch in random_log(random, batches):
            reader.apply(batch)
            views = [(view, expected) for view, expected in views if go_on(view, expected, random)]
            views.append((snapshot.View(reader.machine), snapshot.encode(reader.machine)))
            assert reader.machine.frozen.active
        for view, expected in views:
            while go_on(view, expected, random):
                pass
    assert not reader.machine.frozen.active


def go_on(view: snapshot.View, expected: bytes, random: Random) -> bool:
    for _ in range(random.randint(0, 2)):
        if not view.go_on():
            assert view.machine() == expected
            return False
    return True


@contextmanager
def small_parts() -> Iterator[None]:
    names = ("PART_MESSAGES", "PART_RUNS", "PART_BLOCKS", "PART_NAMES")
    before = {name: getattr(snapshot, name) for name in names}
    vars(snapshot).update(dict.fromkeys(names, 1))
    try:
        yield
    finally:
        vars(snapshot).update(before)


def test_holders_are_in_the_order_of_detaching_whatever_came_before() -> None:
    machine = Machine(Settings())
    getter = Consumer("getter")
    getter.attached = False
    consumers = [("attach", Consumer(name, prefetch=1)) for name in ("a", "b")]
    run = Run(range(3), [b"x"] * 3, b"head")
    machine.apply(Meta(0), [*consumers, ("enqueue", run, None, 0)], Effects())
    machine.apply(Meta(0), [("get", getter)], Effects())
    restored = through_bytes(machine)
    for batch in ([("detach", "b", False)], [("detach", "a", False)]):
        for replica in (machine, restored):
            replica.apply(Meta(0), batch, Effects())
        assert digest(restored) == digest(machine)
    assert [holder.key for holder in machine.consumers.in_turn()] == ["getter", "b", "a"]


def test_a_digest_sees_every_field() -> None:
    """Any error in a replica's state shows in its digest."""

    def machine() -> Machine:
        machine = Machine(Settings(priority_max=1, delivery_limit=3))
        for name in ("a", "b"):
            machine.apply(Meta(1), [("attach", Consumer(name, prefetch=1))], Effects())
        run = Run(range(4), [b"w", b"x", b"y", b"z"], b"head", Attributes(ttl_ms=50))
        machine.apply(Meta(1), [("enqueue", run, None, 0)], Effects())
        machine.apply(Meta(1), [("pause", "a", True), ("return", "a", 0, 0)], Effects())
        return machine

    def changes() -> Iterator[Machine]:
        changed = machine()
        changed.ready.levels[0].returned.first.attempts += 1
        yield changed
        changed = machine()
        changed.ready.levels[0].returned.first.redelivered = False
        yield changed
        changed = machine()
        changed.ready.levels[0].main.first.head = b"tail"
        yield changed
        changed = machine()
        changed.ready.levels[0].main.first.expires_at = 52
        yield changed
        changed = machine()
        changed.ready.levels[0].main.first.contents = [b"y", b"longer"]
        yield changed
        changed = machine()
        changed.apply(Meta(1), [("pause", "a", False)], Effects())
        yield changed
        changed = machine()
        changed.apply(Meta(1), [("settle", "b", 0, 0)], Effects())
        yield changed
        changed = machine()
        changed.next_seq += 1
        yield changed
        changed = machine()
        changed.consumers.by_key["b"].next_id += 1
        yield changed

    expected = digest(machine())
    assert digest(machine()) == expected
    digests = [digest(changed) for changed in changes()]
    assert expected not in digests
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("size", [1, 700])
def test_bursts_do_not_depend_on_how_runs_are_cut(
    monkeypatch: pytest.MonkeyPatch, consumers: int, size: int
) -> None:
    monkeypatch.setattr(machine_module, "BURST_MESSAGES", 100)
    monkeypatch.setattr(machine_module, "BURST_BYTES", 10_000)

    def burst(lengths: list[int]) -> list[tuple[str, list[int]]]:
        machine = Machine(Settings())
        for index, length in enumerate(lengths):
            run = Run(range(length), [bytes(size)] * length, b"", Attributes(priority=index % 2))
            machine.apply(Meta(0), [("enqueue", run, None, 0)], Effects())
        for index in range(consumers):
            machine.consumers.attach(Consumer(f"c{index}"))
        effects = Effects()
        machine.apply(Meta(0), [], effects)
        assert effects.more
        assert effects.burst_messages == (100 if size == 1 else 15)
        handed: dict[str, list[int]] = {}
        for consumer, run, _ in effects.deliveries:
            handed.setdefault(consumer.key, []).extend(run.seqs)
        return sorted(handed.items())

    assert burst([300]) == burst([7] * 40 + [20]) == burst([1, 99, 90, 110])
