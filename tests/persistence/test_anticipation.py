"""Commits that wait a moment for acks that make them unnecessary."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from conformance_tests.patience import PATIENCE_S
from persistence.commits.ack_wait import SKIPS_MAX, Anticipation
from persistence.commits.commit import Commit
from persistence.journal import Journal
from tests.persistence.turns import OwnTurns
from tests.stores.memory import MemoryEnvironment

WAIT_S = 0.0003


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Node(OwnTurns):
    """A commit whose disk is memory, and a task that looks for acks after each turn."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryEnvironment(), Clock()
        self.journal = Journal(self.store)
        self.commit = Commit(self.store, ack_wait_s=WAIT_S, now=self.clock)
        self.commit.may_wait = True
        self.done: list[int] = []

    def publish(self, seq: int, queue_id: int = 1, *, alone: bool = True) -> None:
        """Take one message in a turn."""

        self.run(self._append, queue_id, seq, alone)

    def _append(self, queue_id: int, seq: int, alone: bool) -> None:
        self.journal.append(queue_id, seq, 1, [b"head", b"body"], 1)
        self.commit.request(partial(self.done.append, seq), alone=(queue_id, seq) if alone else None)

    def ack(self, seq: int, queue_id: int = 1) -> None:
        """Take its ack in a turn."""
        self.run(self._settle, queue_id, seq)

    def _settle(self, queue_id: int, seq: int) -> None:
        if not self.journal.withdraw(queue_id, seq):
            self.journal.settle(queue_id, range(seq, seq + 1))
            self.commit.request()

    def wait_in_vain(self) -> None:
        assert self.commit.put_off
        self.clock.now_s += WAIT_S
        assert self.commit.put_off_s() <= 0
        self.commit.begin_put_off()

    async def until(self, *seqs: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while not {*seqs} <= {*self.done}:
                await trio.lowlevel.checkpoint()

    @property
    def commits(self) -> int:
        return self.commit.syncs.count


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.commit.run, node.run)
        await trio.testing.wait_all_tasks_blocked()
        yield node
        node.commit.stop()


async def test_what_is_acked_in_time_is_never_written() -> None:
    async with running() as node:
        for seq in range(5):
            node.publish(seq)
            assert node.commit.put_off
            assert 0 < node.commit.put_off_s() <= WAIT_S + 1e-9
            node.ack(seq)
            assert node.commit.put_off_s() == 0
            node.commit.begin_put_off()
            assert not node.commit.unsynced
        assert (node.commits, node.store.pending.bytes, node.store.pending.open.appended) == (0, 0, 0)
    assert (node.done, node.store.queues) == ([], {})


async def test_what_is_not_acked_in_time_is_written_then() -> None:
    async with running() as node:
        node.publish(0)
        assert node.commits == 0
        node.wait_in_vain()
        await node.until(0)
        # Too late to take it back.
        node.ack(0)
        assert node.commit.unsynced
    assert node.commits >= 2
    assert list(node.journal.recover()) == []


async def test_what_waits_for_the_disk_takes_the_others_along() -> None:
    async with running() as node:
        node.publish(0, queue_id=1)
        node.publish(1, queue_id=2, alone=False)
        await node.until(0, 1)
        assert not node.commit.unsynced


async def test_nobody_looks() -> None:
    """A turn begins without sockets."""
    async with running() as node:
        node.commit.may_wait = False
        node.publish(0)
        await node.until(0)


async def test_some_are_acked_and_the_others_written() -> None:
    async with running() as node:
        for seq in range(4):
            node.publish(seq, queue_id=seq + 1)
        for seq in (0, 2):
            node.ack(seq, queue_id=seq + 1)
        node.wait_in_vain()
        await node.until(1, 3)
        assert node.done == [1, 3]
        assert {queue for queue, each in node.store.queues.items() if each.records} == {2, 4}


async def test_only_the_last_message_of_a_queue_is_taken_back() -> None:
    """Its other notes stay with it."""
    async with running() as node:
        node.publish(0)
        node.publish(1)
        assert not node.journal.withdraw(1, 0)
        node.journal.annotate(1, 1, b"attempts")
        assert not node.journal.withdraw(1, 1)
        node.wait_in_vain()
        await node.until(0, 1)
    assert {*node.store.queues[1].records} == {0, 1}


async def test_the_last_commit_takes_what_was_put_off() -> None:
    async with running() as node:
        node.publish(0)
    assert node.done == [0]
    assert {*node.store.queues[1].records} == {0}


def test_waits_in_vain_become_rare() -> None:
    clock = Clock()
    anticipation = Anticipation(WAIT_S, clock)

    def skipped() -> int:
        """Return how many commits begin at once before the next wait."""
        count = 0
        while not anticipation.worth_it():
            count += 1
        return count

    found = []
    for _ in range(12):
        found.append(skipped())
        anticipation.over(in_vain=True)
    assert found == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, SKIPS_MAX]
    # And waits are soon worth it again where acks come.
    assert skipped() == SKIPS_MAX
    for _ in range(11):
        anticipation.over(in_vain=False)
        assert skipped() == 0
    anticipation.over(in_vain=True)
    assert skipped() == 1


def test_a_wait_goes_on_and_ends() -> None:
    clock = Clock()
    anticipation = Anticipation(WAIT_S, clock)
    assert anticipation.worth_it()
    clock.now_s += WAIT_S / 2
    assert anticipation.worth_it()
    assert anticipation.left_s() == pytest.approx(WAIT_S / 2)
    clock.now_s += WAIT_S
    assert not anticipation.worth_it()
    assert not Anticipation(0, clock).worth_it()
