"""The node's reaction when its memory runs out, and when it gives free heap back to the kernel."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from amqp_server import resources
from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config
from amqp_server.resources import INTERVAL_S, TRIM_STEP_BYTES, TRIM_WAIT_MAX_S, Heap, ResourceWatch
from tests.garbage import garbage

MIB = 1 << 20


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def old_garbage() -> weakref.ref[Cycle]:
    """An object that only a full collection frees."""
    cycle = Cycle()
    gc.collect()
    return weakref.ref(cycle)


def test_garbage_is_looked_for_before_memory_runs_out(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), Alarms(), tmp_path)
        first = old_garbage()
        gc.collect(1)
        watch.look()
        assert first() is not None
        watch.set_memory_limit(1)
        assert first() is None
        # While memory does not grow, the node does not collect each time: that takes long.
        second = old_garbage()
        watch.look()
        assert second() is not None
    finally:
        gc.enable()


async def test_memory_that_runs_out_is_noticed_at_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread gives the free heap back.
    autojump_clock.autojump_threshold = 0.02
    memory = 500 * MIB
    monkeypatch.setattr(resources, "private_memory_bytes", lambda: memory)
    alarms = Alarms()
    watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), alarms, tmp_path)
    raised: list[float] = []
    seen = trio.Event()

    def note() -> None:
        raised.append(trio.current_time())
        seen.set()

    alarms.subscribe(note)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.sleep(1.01)
        memory = 1_100 * MIB
        # Without a deadline, because the clock would jump to it if the thread takes long.
        await seen.wait()
        nursery.cancel_scope.cancel()
    assert raised[0] - 1.01 <= INTERVAL_S / 5


def test_alarms_are_logged_when_they_are_set_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = 500 * MIB
    monkeypatch.setattr(resources, "private_memory_bytes", lambda: memory)
    watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), Alarms(), tmp_path)
    assert not caplog.messages
    memory = 1_100 * MIB
    watch.look()
    # Only changes are logged.
    watch.look()
    memory = 400 * MIB
    watch.disk_free_min_bytes = 1 << 62
    watch.look()
    watch.disk_free_min_bytes = 0
    watch.look()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "memory resource limit alarm set on this node",
        "memory resource limit alarm cleared on this node",
        "disk resource limit alarm set on this node",
        "disk resource limit alarm cleared on this node",
    ]
    assert f"{1_100 * MIB} bytes used, limit 1000000000 (memory_limit)" in caplog.messages[0]
    assert "Publishers will be blocked" in caplog.messages[0]
    assert f"limit {1 << 62} (disk_free_min_bytes)" in caplog.messages[2]


def times(heap: Heap, memory: list[int], given_back: int) -> list[int]:
    """Return the looks at which a return is due, if this much is left each time."""
    found = []
    for look, bytes_ in enumerate(memory):
        if heap.due(bytes_, look * INTERVAL_S):
            found.append(look)
            heap.given_back(given_back, 0, look * INTERVAL_S)
    return found


def test_after_growth_it_is_given_back_once_and_soon() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    memory = [50 * MIB] * 10 + [200 * MIB, 300 * MIB, 300 * MIB] + [60 * MIB] * 100
    assert times(heap, memory, 60 * MIB) == [12]


def test_after_a_part_was_freed_the_rest_is_looked_for_once() -> None:
    """The last return was while all memory was in use, as under an alarm."""
    heap = Heap(50 * MIB, 5 * MIB)
    heap.given_back(600 * MIB, 0, 0.0)
    assert times(heap, [600 * MIB] * 20 + [400 * MIB] + [50 * MIB] * 100, 50 * MIB) == [20]


def test_what_is_in_use_is_not_looked_for_again() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    assert times(heap, [50 * MIB] * 10 + [300 * MIB] * 1_000, 300 * MIB) == [11]


def test_a_load_that_takes_it_again_is_left_alone_more_and_more() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    assert not heap.due(50 * MIB, 0.0)
    at, most = [], 0.0
    for look in range(1, 2_000):
        # Memory grows at one look and stays for the next one.
        if heap.due(200 * MIB + look % 2, look * INTERVAL_S):
            at.append(look * INTERVAL_S)
            heap.given_back(60 * MIB, 0, look * INTERVAL_S)
    most = max(later - earlier for earlier, later in zip(at, at[1:], strict=False))
    assert TRIM_WAIT_MAX_S - 1 <= most <= 2 * TRIM_WAIT_MAX_S
    assert len(at) < 30


def test_small_changes_are_not_worth_while() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    step = TRIM_STEP_BYTES // 2
    assert times(heap, [50 * MIB, 50 * MIB + step, 50 * MIB + step] * 100, 50 * MIB) == []


def test_what_is_freed_between_things_that_stay_is_given_back() -> None:
    """The last return was while all memory was in use. Objects freed since then leave holes, and the resident
    memory stays as it is.
    """
    heap = Heap(50 * MIB, 5 * MIB)
    heap.given_back(200 * MIB, 150 * MIB, 0.0)
    memory, at = 200 * MIB, []
    for second in range(100):
        assert not heap.due(memory, second)
        if heap.wants_a_look(memory, second):
            used = 150 * MIB if second < 30 else 20 * MIB
            if heap.looked(memory, used, 0.001, second):
                at.append(second)
                memory = 70 * MIB
                heap.given_back(memory, used, second)
    assert len(at) == 1 and 30 <= at[0] <= 36


def test_a_look_that_takes_long_is_seldom() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    looks = 0
    for second in range(1_000):
        if heap.wants_a_look(500 * MIB, second):
            looks += 1
            assert not heap.looked(500 * MIB, 430 * MIB, 0.05, second)
    assert looks == 20


def test_a_small_node_is_not_looked_at() -> None:
    heap = Heap(50 * MIB, 5 * MIB)
    assert not heap.looked(50 * MIB, 5 * MIB, 0.0, 0.0)
    assert not any(heap.wants_a_look(60 * MIB, second) for second in range(1_000))


async def test_holes_go_back_to_the_kernel(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge does not reduce the resident memory until the heap is given back."""
    autojump_clock.autojump_threshold = 0.02
    memory, used = 300 * MIB, 250 * MIB
    given = trio.Event()

    def give_back() -> None:
        nonlocal memory
        memory = used + 50 * MIB
        if used < 250 * MIB:
            trio.from_thread.run_sync(given.set)

    monkeypatch.setattr(resources, "private_memory_bytes", lambda: memory)
    monkeypatch.setattr(resources, "used_heap", lambda: (used, 0.0))
    monkeypatch.setattr(resources, "give_back", give_back)
    watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), Alarms(), tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.sleep(20.01)
        used = 10 * MIB
        # Without a deadline, as above.
        await given.wait()
        nursery.cancel_scope.cancel()
    assert watch.memory_bytes <= 300 * MIB


@pytest.mark.parametrize(
    "during", [True, False], ids=["while free heap is given back", "before the first look"]
)
async def test_what_is_freed_at_a_bad_moment_goes_back_as_well(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, during: bool
) -> None:
    autojump_clock.autojump_threshold = 0.02
    memory, used = 50 * MIB, 5 * MIB
    given = trio.Event()

    def give_back() -> None:
        nonlocal memory, used
        memory = used + 45 * MIB
        if used > 200 * MIB:
            used = 5 * MIB
        else:
            trio.from_thread.run_sync(given.set)

    monkeypatch.setattr(resources, "private_memory_bytes", lambda: memory)
    monkeypatch.setattr(resources, "used_heap", lambda: (used, 0.0))
    monkeypatch.setattr(resources, "give_back", give_back)
    watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), Alarms(), tmp_path)
    memory, used = 300 * MIB, 255 * MIB if during else 5 * MIB
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        # Without a deadline, as above.
        await given.wait()
        nursery.cancel_scope.cancel()
    assert memory == 50 * MIB


def test_a_look_at_the_heap_leaves_nothing_for_the_collector() -> None:
    with garbage() as left:
        resources.used_heap()
        resources.give_back()
    assert not left.found, str(left)
