"""All changes of one turn are durable or none, however large the layers are and however full the disk."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.commits.layer import LAYER_BYTES_MAX, Layer
from persistence.commits.stepped import SteppedCommit
from persistence.journal import Journal
from tests.stores.memory import Faults, MemoryEnvironment, MemoryTransaction

MESSAGES = range(120)
HERE, THERE = 1, 2


class WatchedTransaction(MemoryTransaction):
    def __init__(self, store: "Watched", layer: Layer) -> None:
        super().__init__(store, layer)
        self._watched = store

    def commit(self) -> None:
        assert self._watched.may_end.wait(PATIENCE_S)
        super().commit()

    def finish(self) -> None:
        super().finish()
        self._watched.durable += 1
        self._watched.on_state()


class Watched(MemoryEnvironment):
    """Calls `on_state` with each state that a crash could leave behind."""

    def __init__(self, faults: Faults | None = None) -> None:
        super().__init__(faults)
        self.on_state: Callable[[], None] = lambda: None
        self.durable = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def transaction(self, layer: Layer) -> WatchedTransaction:
        return WatchedTransaction(self, layer)

    def messages(self, queue_id: int) -> set[int]:
        queue = self.queues.get(queue_id)
        return set() if queue is None else set(queue.records)


@pytest.mark.parametrize("full_share", [0.0, 0.4])
@pytest.mark.parametrize("settle_first", [True, False])
async def test_a_message_that_moves_is_always_in_one_place(
    monkeypatch: pytest.MonkeyPatch, full_share: float, settle_first: bool
) -> None:
    monkeypatch.setattr("persistence.commits.layer.LAYER_APPENDS_MAX", 1)
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.001)
    store = Watched(Faults(seed=3))
    journal = Journal(store)
    for seq in MESSAGES:
        journal.append(HERE, seq, 1, b"x")
    store.flush()
    store.faults.full_share = full_share

    def whole() -> None:
        here, there = store.messages(HERE), store.messages(THERE)
        assert here | there == set(MESSAGES), "lost"
        assert not here & there, "doubled"

    store.on_state = whole
    commit = Commit(store)

    def leave(seq: int) -> None:
        journal.settle(HERE, range(seq, seq + 1))
        commit.request()

    def arrive(seq: int) -> None:
        journal.append(THERE, seq, 1, b"x")
        commit.request()

    async def move(seqs: range) -> None:
        for seq in seqs:
            for step in (leave, arrive) if settle_first else (arrive, leave):
                step(seq)
            await trio.sleep(0.0005 * (seq % 3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        async with trio.open_nursery() as movers:
            for first in range(4):
                movers.start_soon(move, MESSAGES[first::4])
        await commit.barrier()
        commit.stop()
    assert store.messages(THERE) == set(MESSAGES)
    assert store.durable > 10


async def test_a_large_turn_is_one_transaction_and_the_next_turns_are_others() -> None:
    store = Watched()
    journal, commit = Journal(store), Commit(store)
    part = b"y" * (1 << 20)
    parts = LAYER_BYTES_MAX // len(part) + 3
    states: list[list[int]] = []
    store.on_state = lambda: states.append([len(store.messages(turn)) for turn in range(3)])

    def turn(queue_id: int) -> None:
        for seq in range(parts):
            journal.append(queue_id, seq, 1, part)
            commit.request()

    async with trio.open_nursery() as nursery:
        # None of these turns waits for the disk: the layers are closed while the commit task does something
        # else.
        nursery.start_soon(commit.run)
        await trio.testing.wait_all_tasks_blocked()
        store.may_end.clear()
        for queue_id in range(3):
            turn(queue_id)
            await trio.testing.wait_all_tasks_blocked()
        assert len(store.pending.layers) == 4
        store.may_end.set()
        await commit.barrier()
        commit.stop()
    assert states == [[parts, 0, 0], [parts, parts, 0], [parts, parts, parts]]


def test_a_crash_between_the_layers() -> None:
    store = Watched()
    journal = Journal(store)
    steps = SteppedCommit(store)
    journal.append(HERE, 0, 1, b"x")
    assert steps.begin()
    journal.append(THERE, 0, 1, b"x" * LAYER_BYTES_MAX)
    journal.settle(HERE, range(1))
    steps.end()
    assert steps.begin()
    store.crash()
    assert (store.messages(HERE), store.messages(THERE)) == ({0}, set())
