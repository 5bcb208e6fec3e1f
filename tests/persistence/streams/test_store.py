"""Threads that write and read logs, and what stops on a full or failing disk."""

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from outcome import Error, Outcome, Value
from trio.testing import wait_all_tasks_blocked

from conformance_tests.patience import PATIENCE_S
from persistence.errors import CommitFailed
from persistence.streams import store as streams
from persistence.streams.store import StreamStore
from tests.persistence.streams.test_log import read_all, stored


def in_turn(call: Callable[..., object], *arguments: Any) -> None:
    call(*arguments)


async def test_jobs_are_done_in_threads_and_told_on_the_loop(tmp_path: Path) -> None:
    store = StreamStore(tmp_path)
    told: list[tuple[str, object]] = []
    done = trio.Event()

    def wrote(result: int) -> None:
        told.append((threading.current_thread().name, result))
        store.read(lambda: threading.current_thread().name, read)

    def read(outcome: Outcome[str]) -> None:
        told.append((threading.current_thread().name, outcome.unwrap()))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        store.write(lambda: 7, wrote)
        with trio.fail_after(5):
            await done.wait()
        nursery.cancel_scope.cancel()
    main = threading.main_thread().name
    assert told in ([(main, 7), (main, f"stream-reader-{number}")] for number in range(2))


async def test_a_reader_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    store = StreamStore(tmp_path)
    hang, done = threading.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        store.read(lambda: hang.wait(5), lambda outcome: None)
        store.read(lambda: 1, lambda outcome: done.set())
        with trio.fail_after(2):
            await done.wait()
        hang.set()
        nursery.cancel_scope.cancel()


async def test_no_read_waits_behind_one_that_hangs_while_another_thread_is_free(tmp_path: Path) -> None:
    store = StreamStore(tmp_path, readers=2)
    hangs = [threading.Event(), threading.Event()]
    hanging = threading.Semaphore(0)
    done = trio.Event()

    def hang(number: int) -> None:
        hanging.release()
        hangs[number].wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        try:
            for number in range(2):
                store.read(partial(hang, number), lambda outcome: None)
            for _ in hangs:
                await trio.to_thread.run_sync(hanging.acquire)
            # Both threads are busy when these come.
            told: list[int] = []

            def has_read(outcome: Outcome[int]) -> None:
                told.append(outcome.unwrap())
                if len(told) == 4:
                    done.set()

            for number in range(4):
                store.read(partial(int, number), has_read)
            hangs[1].set()
            with trio.fail_after(30):
                await done.wait()
        finally:
            for each in hangs:
                each.set()
        nursery.cancel_scope.cancel()


async def test_what_is_read_waits_for_the_loop_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that was read stays in memory until the loop takes it, so threads must not run far ahead of a busy
    loop.
    """
    monkeypatch.setattr(streams, "UNTOLD_MAX", 1)
    store = StreamStore(tmp_path, readers=1)
    seen: list[str] = []
    done = trio.Event()

    def told(outcome: Outcome[int]) -> None:
        number = outcome.unwrap()
        seen.append(f"told of {number}")
        if number == 19:
            done.set()

    def read(number: int) -> int:
        seen.append(f"read {number}")
        return number

    def late(call: Callable[..., object], outcome: Outcome[int]) -> None:
        call(outcome)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, late)
        await wait_all_tasks_blocked()
        for number in range(20):
            store.read(partial(read, number), told)
        with trio.fail_after(20):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert [each for each in seen if each.startswith("told")] == [f"told of {number}" for number in range(20)]
    assert all(seen.index(f"told of {number}") < seen.index(f"read {number + 2}") for number in range(18))


async def test_what_a_full_disk_refuses_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RETRY_SECONDS", 0.01)
    full: list[bool] = []
    done = trio.Event()
    tries = 0

    def call() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.ENOSPC, "no space left")

    store = StreamStore(tmp_path, on_full=full.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        store.write(call, lambda result: done.set())
        with trio.fail_after(5):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert (tries, full) == (3, [True, False])


async def test_a_disk_that_fails_ends_the_node(tmp_path: Path) -> None:
    def call() -> None:
        raise OSError(errno.EIO, "input/output error")

    store = StreamStore(tmp_path)
    with pytest.raises(ExceptionGroup) as raised:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run, in_turn)
            await wait_all_tasks_blocked()
            store.write(call, lambda result: None)
            await trio.sleep(5)
    assert raised.group_contains(CommitFailed)


async def test_a_read_that_fails_is_told(tmp_path: Path) -> None:
    store = StreamStore(tmp_path)
    told: list[Outcome[int]] = []
    done = trio.Event()

    def read(outcome: Outcome[int]) -> None:
        told.append(outcome)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        store.read(lambda: 1 // 0, read)
        with trio.fail_after(5):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert isinstance(told[0], Error)


def test_only_logs_of_known_queues_are_kept(tmp_path: Path) -> None:
    store = StreamStore(tmp_path)
    kept, gone = store.log(3, 400), store.log(4, 400)
    for log in (kept, gone):
        log.open(0)
        store.write(lambda log=log: log.append([stored(0, 3)]), lambda result: None)  # type: ignore[misc]
    store.keep([3, 5])
    assert sorted(path.name for path in (tmp_path / "streams").iterdir()) == ["3"]
    outcome: list[Outcome[Any]] = []
    store.read(lambda: read_all(kept), outcome.append)
    assert outcome == [Value(([0, 1, 2], []))]


def test_a_log_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    log = StreamStore(tmp_path).log(3, 400)
    log.open(0)
    log.append([stored(0, 3)])
    log.delete()
    log.append([stored(3, 3)])
    log.trim(1)
    assert list((tmp_path / "streams").iterdir()) == []


async def test_others_have_their_turns_while_many_reads_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each step takes too long.
    monkeypatch.setattr(streams, "STEP_S", -1.0)
    store = StreamStore(tmp_path)
    told: list[str] = []
    done = trio.Event()

    async def other() -> None:
        while not done.is_set():
            told.append("other")
            await trio.lowlevel.checkpoint()

    def read(outcome: Outcome[int]) -> None:
        told.append("read")
        if outcome.unwrap() == 9:
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        for number in range(10):
            job: Any = streams._Job(int, read, writes=False)
            job.outcome = Value(number)
            store._report(Value(job))
        nursery.start_soon(other)
        with trio.fail_after(5):
            await done.wait()
        nursery.cancel_scope.cancel()
    # Trio runs ready tasks in either order: (other, read) and then (read, other) has two reads side by side,
    # never three.
    assert max(len(reads) for reads in "".join("r" if it == "read" else "." for it in told).split(".")) <= 2
    assert told.count("other") >= 9


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_without_a_descriptor_jobs_are_tried_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may open no file now has no broken disk: writes, reads and compaction come later."""
    monkeypatch.setattr(streams, "RETRY_SECONDS", 0.01)
    full: list[bool] = []
    store = StreamStore(tmp_path, on_full=full.append)
    tries = {"write": 0, "read": 0, "compact": 0}
    told: dict[str, object] = {}
    over = trio.Event()

    def call(kind: str, *_: object) -> str:
        tries[kind] += 1
        if tries[kind] < 3:
            raise OSError(number, "planted")
        return kind

    def done(kind: str, result: object) -> None:
        told[kind] = result.unwrap() if isinstance(result, (Value, Error)) else result
        if len(told) == len(tries):
            over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, in_turn)
        await wait_all_tasks_blocked()
        store.write(partial(call, "write"), partial(done, "write"))
        store.read(partial(call, "read"), partial(done, "read"))
        store.compact(partial(call, "compact"), partial(done, "compact"))
        with trio.fail_after(PATIENCE_S):
            await over.wait()
        nursery.cancel_scope.cancel()
    assert told == {kind: kind for kind in tries}
    assert tries == dict.fromkeys(tries, 3) and full == []
