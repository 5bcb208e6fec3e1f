"""Commits that the end of a turn begins without the commit task, and the commits that it leaves to that
task.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.commits.layer import Layer
from persistence.errors import CommitFailed
from persistence.journal import Journal
from tests.persistence.turns import OwnTurns
from tests.stores.memory import Faults, MemoryEnvironment, MemoryTransaction

pytestmark = pytest.mark.trio


class SlowTransaction(MemoryTransaction):
    def __init__(self, store: Slow, layer: Layer) -> None:
        super().__init__(store, layer)
        self._slow = store

    def commit(self) -> None:
        assert self._slow.may_end.wait(PATIENCE_S)
        super().commit()


class Slow(MemoryEnvironment):
    """A store whose commits take until they may end."""

    def __init__(self, faults: Faults | None = None) -> None:
        super().__init__(faults)
        self.may_end = threading.Event()
        self.may_end.set()
        self.begun = 0

    def transaction(self, layer: Layer) -> SlowTransaction:
        self.begun += 1
        return SlowTransaction(self, layer)

    def messages(self, queue_id: int = 1) -> set[int]:
        queue = self.queues.get(queue_id)
        return set() if queue is None else set(queue.records)


class Turns(OwnTurns):
    def __init__(self, store: Slow) -> None:
        self.store = store
        self.alarms: list[bool] = []
        self.journal, self.commit = Journal(store), Commit(store, on_full=self.alarms.append)
        self.done: list[int] = []
        self._changed = trio.Event()

    def end(self, *seqs: int) -> None:
        """End a turn that appends these messages."""
        self.run(self.append, *seqs)

    def append(self, *seqs: int) -> None:
        for seq in seqs:
            self.journal.append(1, seq, 1, b"x")
            self.commit.request(lambda seq=seq: self._done(seq))  # type: ignore[misc]

    def _done(self, seq: int) -> None:
        self.done.append(seq)
        self._changed.set()

    async def until(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while len(self.done) < count:
                self._changed = trio.Event()
                await self._changed.wait()


@asynccontextmanager
async def running(store: Slow) -> AsyncIterator[Turns]:
    turns = Turns(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run, turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield turns
        turns.commit.stop()


async def test_the_end_of_a_turn_begins_a_commit_and_its_end_the_next() -> None:
    store = Slow()
    async with running(store) as turns:
        store.may_end.clear()
        turns.end(0, 1)
        assert store.begun == 1
        turns.end(2)
        turns.end(3)
        assert (store.begun, turns.done) == (1, [])
        store.may_end.set()
        await turns.until(4)
        assert turns.done == [0, 1, 2, 3]
        # Messages that came while the first commit was under way went together.
        assert store.begun == 2
    assert store.messages() == {0, 1, 2, 3}


async def test_submissions_of_several_turns_go_in_one_transaction() -> None:
    store = Slow()
    async with running(store) as turns:
        granted: list[str] = []
        turns.run(turns.commit.hold, lambda: granted.append("first"))
        turns.run(turns.commit.hold, lambda: granted.append("second"))
        turns.end(0)
        await trio.testing.wait_all_tasks_blocked()
        turns.end(1)
        # A commit requested outside of turns, too.
        turns.append(2)
        await trio.testing.wait_all_tasks_blocked()
        assert (store.begun, turns.done, granted) == (0, [], ["first"])
        turns.run(turns.commit.release)
        await turns.until(3)
        await trio.testing.wait_all_tasks_blocked()
        assert (store.begun, granted) == (1, ["first", "second"])
        turns.end(3)
        await trio.testing.wait_all_tasks_blocked()
        assert store.begun == 1
        turns.run(turns.commit.release)
        await turns.until(4)
    assert store.messages() == {0, 1, 2, 3}


async def test_the_last_commit_waits_for_submissions_of_several_turns() -> None:
    store = Slow()
    async with running(store) as turns:
        turns.run(turns.commit.hold, lambda: None)
        turns.end(0)
        turns.commit.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert store.messages() == set()
        turns.end(1)
        turns.run(turns.commit.release)
    assert store.messages() == {0, 1}


async def test_what_a_commit_leads_to_is_committed_with_no_other_turn() -> None:
    store = Slow()
    async with running(store) as turns:

        def go_on() -> None:
            seq = len(turns.done)
            turns._done(seq)
            if seq < 4:
                turns.journal.append(1, seq + 1, 1, b"x")
                turns.commit.request(go_on)

        turns.journal.append(1, 0, 1, b"x")
        turns.run(turns.commit.request, go_on)
        await turns.until(5)
    assert store.messages() == {0, 1, 2, 3, 4}


async def test_a_request_outside_a_turn_goes_after_the_commit_that_is_under_way() -> None:
    store = Slow()
    async with running(store) as turns:
        store.may_end.clear()
        turns.end(0)
        turns.journal.append(1, 1, 1, b"x")
        durable = trio.Event()
        turns.commit.request(durable.set)
        await trio.testing.wait_all_tasks_blocked()
        assert not durable.is_set() and turns.done == []
        # The task waits for the commit that the turn began; meanwhile turns leave everything to the task.
        turns.end(2)
        assert store.begun == 1
        store.may_end.set()
        await turns.until(2)
        assert durable.is_set()
    assert store.messages() == {0, 1, 2}


async def test_a_turn_before_the_task_runs_loses_nothing() -> None:
    store = Slow()
    turns = Turns(store)
    turns.end(0)
    assert store.begun == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run)
        await turns.until(1)
        turns.commit.stop()
    assert store.messages() == {0}


@pytest.mark.parametrize("full", [1, 4])
async def test_a_full_disk_at_the_end_of_a_turn(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    store = Slow()
    async with running(store) as turns:
        turns.end(0)
        await turns.until(1)
        store.faults.full = full
        turns.end(1)
        turns.end(2)
        await turns.until(3)
        assert turns.alarms == [True, False]
        turns.end(3)
        await turns.until(4)
    assert turns.done == [0, 1, 2, 3]
    assert store.messages() == {0, 1, 2, 3}


async def test_a_broken_disk_at_the_end_of_a_turn_ends_the_task() -> None:
    store = Slow()
    turns = Turns(store)

    async def turn() -> None:
        await trio.testing.wait_all_tasks_blocked()
        store.faults.fails = True
        turns.end(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        with pytest.raises(CommitFailed), trio.fail_after(PATIENCE_S):
            await turns.commit.run()
    assert turns.done == []


async def test_what_a_done_raises_ends_the_task() -> None:
    class Broken(Exception):
        pass

    def broken() -> None:
        raise Broken

    turns = Turns(Slow())

    async def turn() -> None:
        await trio.testing.wait_all_tasks_blocked()
        turns.journal.append(1, 0, 1, b"x")
        turns.run(turns.commit.request, broken)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        with pytest.raises(Broken), trio.fail_after(PATIENCE_S):
            await turns.commit.run()


async def test_a_commit_that_is_under_way_is_seen_through_when_the_task_is_cancelled() -> None:
    store = Slow()
    turns = Turns(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run)
        await trio.testing.wait_all_tasks_blocked()
        store.may_end.clear()
        turns.end(0)
        nursery.cancel_scope.cancel()
        # The loop ends this task's wait only after the worker, which waits for another thread.
        threading.Timer(0.05, store.may_end.set).start()
    assert store.messages() == {0}
    assert not store.writing
