"""The log takes records while a transaction of the store, or a flush of the marks, is under way."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
import trio
import trio.testing

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.commits.stepped import SteppedCommit
from persistence.commits.wal import BLOCK_BYTES
from persistence.delivered_marks import DeliveredMarks
from persistence.environment import LOG_FILE, Environment
from persistence.journal import Journal
from tests.persistence import disk_steps
from tests.persistence.turns import OwnTurns

QUEUE = 1
ALL = 1 << 40


class Transaction:
    """A transaction of LMDB whose commit waits."""

    def __init__(self, txn: Any, before: Callable[[], None]) -> None:
        self._txn = txn
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._before()
        self._txn.commit()


class Stalled:
    """Something that the disk does only when it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.waits = threading.Event()
        self.count = 0
        self.fails = False

    def __call__(self, *arguments: Any) -> None:
        self.count += 1
        self.waits.set()
        assert self.may_end.wait(PATIENCE_S)
        if self.fails:
            raise lmdb.MapFullError("for the test")

    def stall(self) -> None:
        self.waits.clear()
        self.may_end.clear()


class Turns(OwnTurns):
    def __init__(self, environment: Environment, marks: DeliveredMarks | None = None) -> None:
        self.environment = environment
        self.alarms: list[bool] = []
        self.journal = Journal(environment)
        self.commit = Commit(environment, marks, on_full=self.alarms.append)
        self.done: list[int] = []

    def begin(self, seq: int, *, size: int = 10, to_store: bool = False) -> trio.Event:
        """Run a turn that appends a message; return what is set when it is durable."""
        durable = trio.Event()

        def done() -> None:
            self.done.append(seq)
            durable.set()

        def submit() -> None:
            self.journal.append(QUEUE, seq, 1, [b"%d" % seq, bytes(size)], 1)
            self.commit.request(done, to_store=to_store)

        self.run(submit)
        return durable

    async def append(self, *seqs: int, size: int = 10, to_store: bool = False) -> None:
        for seq in seqs:
            with trio.fail_after(PATIENCE_S):
                await self.begin(seq, size=size, to_store=to_store).wait()

    def stored(self) -> list[int]:
        return [record.first_seq for record in self.environment.records(QUEUE, 0, ALL)]

    def read(self) -> list[int]:
        return [record.first_seq for record in self.journal.read(QUEUE, 0, ALL)]


def open_at(path: Path, **options: Any) -> Environment:
    return Environment.open(path, map_bytes=1 << 30, **options)


def recovered(path: Path) -> list[int]:
    """What a restart finds in a directory as it is now."""
    copy = path.with_name("crashed")
    shutil.copytree(path, copy)
    environment = open_at(copy)
    try:
        (queue,) = Journal(environment).recover()
        return [record.first_seq for record in queue.records]
    finally:
        environment.close()
        shutil.rmtree(copy)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Stalled:
    """The commits of LMDB."""
    stalled = Stalled()
    begin = Environment.begin_write

    def begin_write(store: Environment) -> Any:
        txn = begin(store)
        return Transaction(txn, stalled) if store.directory.name == "data" else txn

    monkeypatch.setattr(Environment, "begin_write", begin_write)
    return stalled


@pytest.fixture(autouse=True)
def _keep_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.STORE_SECONDS", 3600.0)


@asynccontextmanager
async def running(
    environment: Environment, marks: DeliveredMarks | None = None, *, stop: bool = False
) -> AsyncIterator[Turns]:
    turns = Turns(environment, marks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run, turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield turns
        if stop:
            turns.commit.stop()
        else:
            nursery.cancel_scope.cancel()
    environment.close()


async def begun(stalled: Stalled) -> None:
    with trio.fail_after(PATIENCE_S):
        await trio.to_thread.run_sync(stalled.waits.wait)


async def test_commits_go_on_while_the_store_waits_for_the_disk(tmp_path: Path, stalled: Stalled) -> None:
    path = tmp_path / "data"
    async with running(open_at(path)) as turns:
        await turns.append(0, 1)
        stalled.stall()
        turns.commit.proceed(to_store=True)
        await begun(stalled)
        await turns.append(2, 3)
        assert turns.stored() == [] and turns.read() == [0, 1, 2, 3]
        assert recovered(path) == [0, 1, 2, 3]
        # One that must not be only in the log waits for the next transaction, and others behind it.
        last = turns.begin(4, to_store=True)
        later = turns.begin(5)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.done == [0, 1, 2, 3]
        stalled.may_end.set()
        with trio.fail_after(PATIENCE_S):
            await last.wait()
        assert turns.stored()[:5] == [0, 1, 2, 3, 4]
        with trio.fail_after(PATIENCE_S):
            await later.wait()
        assert turns.done == [0, 1, 2, 3, 4, 5]
        assert recovered(path) == [0, 1, 2, 3, 4, 5]
        await turns.append(6)
    assert recovered(path) == list(range(7))


async def test_commits_go_on_while_a_large_deletion_is_carried_on(
    tmp_path: Path, stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.transaction.ERASE_KEYS_MAX", 20)
    async with running(open_at(tmp_path / "data")) as turns:
        for seq in range(100):
            turns.journal.append(2, seq, 1, [b"head", bytes(1000)], 1)
        await turns.append(0, to_store=True)
        turns.journal.settle(2, range(100))
        await turns.append(1)
        stalled.stall()
        turns.commit.proceed(to_store=True)
        await begun(stalled)
        seq = 2
        while turns.environment.has_erasures() or seq < 4:
            await turns.append(seq)
            seq += 1
            stalled.waits.clear()
            stalled.may_end.set()
            stalled.may_end.clear()
            await trio.lowlevel.checkpoint()
        stalled.may_end.set()
    assert turns.done == list(range(seq))


async def test_commits_go_on_while_the_marks_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.TEND_SECONDS", 0.01)
    flush = Stalled()
    marks = DeliveredMarks(tmp_path / "marks", sync=flush)
    slot = marks.allocate()
    environment = open_at(tmp_path / "data")
    async with running(environment, marks, stop=True) as turns:
        await turns.append(0)
        flush.stall()
        marks.mark(slot, 0)
        await begun(flush)
        before = flush.count
        await turns.append(1, 2)
        await turns.append(3, to_store=True)
        assert turns.stored() == [0, 1, 2, 3] and flush.count == before
        # What is marked meanwhile is flushed as well.
        marks.mark(slot, 3)
        flush.may_end.set()
        with trio.fail_after(PATIENCE_S):
            while marks.changed:
                await trio.sleep(0.005)
        assert flush.count == before + 1
    marks.close()


async def test_a_broken_flush_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.TEND_SECONDS", 0.01)

    def broken(file: int) -> None:
        raise OSError(5, "for the test")

    marks = DeliveredMarks(tmp_path / "marks", sync=broken)
    environment = open_at(tmp_path / "data")
    with pytest.raises(OSError, match="for the test"), trio.fail_after(PATIENCE_S):
        await Commit(environment, marks).run()
    environment.close()


async def test_a_log_that_fills_up_meanwhile_waits_for_the_store(tmp_path: Path, stalled: Stalled) -> None:
    path = tmp_path / "data"
    async with running(open_at(path, log_bytes=9 * BLOCK_BYTES)) as turns:
        await turns.append(0, 1, 2, 3)
        stalled.stall()
        # More than half of its blocks are used, so the store gets the first four.
        await turns.append(4)
        await begun(stalled)
        before = stalled.count
        await turns.append(5, 6, 7)
        assert stalled.count == before
        waits = [turns.begin(8), turns.begin(9)]
        await trio.testing.wait_all_tasks_blocked()
        assert turns.done == list(range(8))
        assert recovered(path) == list(range(8))
        stalled.may_end.set()
        with trio.fail_after(PATIENCE_S):
            for each in waits:
                await each.wait()
        assert recovered(path) == turns.done == list(range(10))


async def test_what_comes_behind_a_large_layer_is_not_there_without_it(
    tmp_path: Path, stalled: Stalled
) -> None:
    path = tmp_path / "data"
    async with running(open_at(path, log_commit_bytes_max=5000)) as turns:
        await turns.append(0)
        stalled.stall()
        large = turns.begin(1, size=6000)
        small = turns.begin(2)
        await begun(stalled)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.done == [0] and recovered(path) == [0]
        assert turns.commit.unsynced
        stalled.may_end.set()
        with trio.fail_after(PATIENCE_S):
            await large.wait()
            await small.wait()
        assert turns.done == [0, 1, 2]


async def test_the_disk_is_full_while_both_are_under_way(
    tmp_path: Path, stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    path = tmp_path / "data"
    writes = Stalled()
    write = os.pwrite

    def slow(file: int, data: bytes, at: int) -> int:
        if len(data) == BLOCK_BYTES:
            writes()
        return write(file, data, at)

    async with running(open_at(path)) as turns:
        await turns.append(0)
        stalled.stall()
        turns.commit.proceed(to_store=True)
        await begun(stalled)
        writes.stall()
        monkeypatch.setattr(os, "pwrite", slow)
        first, second = turns.begin(1), turns.begin(2)
        await begun(writes)
        stalled.fails = True
        stalled.may_end.set()
        with trio.fail_after(PATIENCE_S):
            while turns.alarms != [True]:
                await trio.sleep(0.005)
        # The record is still on its way: nothing is tried again before it is written.
        before = stalled.count
        await trio.sleep(0.1)
        assert stalled.count == before
        assert turns.done == [0] and turns.read() == [0, 1, 2] and turns.stored() == []
        writes.may_end.set()
        with trio.fail_after(PATIENCE_S):
            await first.wait()
            while stalled.count == before:
                await trio.sleep(0.005)
        # Later ones wait until there is room: they may be what makes room.
        assert not second.is_set() and turns.alarms == [True]
        assert recovered(path) == [0, 1]
        stalled.fails = False
        with trio.fail_after(PATIENCE_S):
            await second.wait()
        assert turns.alarms == [True, False]
        assert turns.stored() == turns.done == [0, 1, 2]
        await turns.append(3)
    assert recovered(path) == [0, 1, 2, 3]


async def test_the_log_cannot_be_written_while_the_store_is(
    tmp_path: Path, stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that writes to other blocks than the file's own."""
    path = tmp_path / "data"
    write = os.pwrite
    failed = threading.Event()

    def full(file: int, data: bytes, at: int) -> int:
        failed.set()
        raise OSError(errno.ENOSPC, "for the test")

    async with running(open_at(path)) as turns:
        await turns.append(0)
        stalled.stall()
        turns.commit.proceed(to_store=True)
        await begun(stalled)
        monkeypatch.setattr(os, "pwrite", full)
        first = turns.begin(1)
        with trio.fail_after(PATIENCE_S):
            await trio.to_thread.run_sync(failed.wait)
        monkeypatch.setattr(os, "pwrite", write)
        second = turns.begin(2)
        await trio.testing.wait_all_tasks_blocked()
        # The second record would be there without the first one.
        assert turns.done == [0] and recovered(path) == [0]
        stalled.may_end.set()
        with trio.fail_after(PATIENCE_S):
            await first.wait()
            await second.wait()
        assert turns.stored()[:2] == [0, 1] and turns.done == [0, 1, 2]
        assert recovered(path) == [0, 1, 2]


class History:
    """Turns by a seed on a disk in steps, and what a crash after each step leaves."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = Random(seed)
        self.environment = open_at(path, log_bytes=9 * BLOCK_BYTES, log_commit_bytes_max=3000, sync=False)
        self.journal = Journal(self.environment)
        self.commits = SteppedCommit(self.environment, logs=True)
        #: What there is after each turn, by queue.
        self.states: list[dict[int, set[int]]] = [{}]
        #: Turns that were called durable.
        self.told = 0
        self.next = 0
        self.seen = Counter[str]()

    def turn(self) -> None:
        random, now = self.random, {queue: set(seqs) for queue, seqs in self.states[-1].items()}
        for _ in range(random.choice((1, 1, 3))):
            queue = random.choice((1, 2))
            there = now.setdefault(queue, set())
            what = random.random()
            if what < 0.6 or not there:
                size = random.choice((10,) * 18 + (2000, 5000))
                self.journal.append(queue, self.next, 1, [b"%d" % self.next, bytes(size)], 1)
                there.add(self.next)
                self.next += 1
            elif what < 0.9:
                # A message that moves is in one of the queues.
                seq = random.choice(sorted(there))
                self.journal.settle(queue, range(seq, seq + 1))
                there.discard(seq)
                self.journal.append(3 - queue, self.next, 1, [b"%d" % self.next, b""], 1)
                now.setdefault(3 - queue, set()).add(self.next)
                self.next += 1
            else:
                self.journal.settle(queue, range(min(there), max(there) + 1))
                there.clear()
        number = len(self.states)
        self.states.append({queue: seqs for queue, seqs in now.items() if seqs})
        to_store = random.random() < 0.1
        self.commits.request(partial(self.durable, number, to_store), to_store=to_store)

    def durable(self, number: int, to_store: bool) -> None:
        assert number == self.told + 1
        self.told = number
        if to_store:
            # Later turns may have settled some, and be in the same transaction.
            kept = set.intersection(*(state.get(1, set()) for state in self.states[number:]))
            stored = {record.first_seq for record in self.environment.records(1, 0, ALL)}
            assert kept <= stored

    def check(self) -> None:
        """A crash now."""
        found: dict[int, set[int]] = {}
        copy = self.path.with_name("crashed")
        shutil.copytree(self.path, copy)
        try:
            environment = open_at(copy, log_bytes=9 * BLOCK_BYTES, sync=False)
            for queue in Journal(environment).recover():
                seqs = {record.first_seq for record in queue.records}
                if seqs:
                    found[queue.queue_id] = seqs
            environment.close()
        finally:
            shutil.rmtree(copy)
        assert found in self.states[self.told :], (self.told, len(self.states))

    def tear(self) -> None:
        """The record that is under way reaches the disk in part."""
        log = self.environment._log
        job = self.commits._log.job
        assert log is not None and job is not None
        sequence, first, _ = log._used[-1]
        before = (self.path / "main" / LOG_FILE).read_bytes()
        job()
        with (self.path / "main" / LOG_FILE).open("r+b") as file:
            file.seek(first * BLOCK_BYTES + 30)
            byte = file.read(1)
            file.seek(first * BLOCK_BYTES + 30)
            file.write(bytes([byte[0] ^ 1]))
        self.check()
        (self.path / "main" / LOG_FILE).write_bytes(before)
        self.seen["torn"] += 1

    def step(self) -> None:
        what = self.random.random()
        if what < 0.3:
            self.turn()
            return
        if self.commits._log.job is not None and self.random.random() < 0.3:
            self.tear()
        both = self.commits.running_both
        if self.commits._store.job is not None and self.random.random() < 0.7:
            # The store has it, and the loop does not know it yet.
            job = self.commits._store.job
            job()
            self.commits._store.job = lambda: None
            self.check()
            self.seen["stored, and nobody knows"] += 1
        disk_steps.step(self.commits, self.random)
        self.seen["both"] += both
        self.check()


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_each_step(tmp_path: Path, seed: int) -> None:
    """What was called durable is there, and of later turns, the first ones, each as a whole."""
    history = History(tmp_path / "data", seed)
    for _ in range(300):
        history.step()
    while history.commits.running or history.commits.waits():
        disk_steps.step(history.commits, history.random)
    assert history.told == len(history.states) - 1
    history.check()
    least = {"both": 3, "torn": 8, "stored, and nobody knows": 8}
    assert {name: history.seen[name] for name in least if history.seen[name] < least[name]} == {}
    history.environment.close()
