"""The commit task over both stores."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
import trio.lowlevel

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.environment import Environment
from persistence.errors import CommitFailed
from persistence.journal import Journal
from persistence.record import Record
from tests.stores.memory import Faults, MemoryEnvironment

pytestmark = pytest.mark.trio


@pytest.fixture(params=["lmdb", "memory"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store: Any = (
        Environment.open(tmp_path, map_bytes=1 << 30) if request.param == "lmdb" else MemoryEnvironment()
    )
    yield store
    store.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Environment]:
    store = Environment.open(tmp_path, map_bytes=2 << 20)
    yield store
    store.close()


def contents(journal: Journal) -> dict[int, dict[int, bytes]]:
    return {
        queue.queue_id: {record.first_seq: bytes(record.payload) for record in queue.records}
        for queue in journal.recover()
    }


async def running(
    commit: Commit, body: Callable[[], Any], in_turn: Callable[..., None] | None = None
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run, in_turn)
        await body()
        commit.stop()


async def test_done_comes_in_order_and_after_the_sync(environment: Any) -> None:
    journal, commit = Journal(environment), Commit(environment)
    order: list[int] = []

    async def body() -> None:
        for turn in range(50):
            journal.append(1, turn, 1, b"x")
            commit.request(lambda turn=turn: order.append(turn))  # type: ignore[misc]
            assert turn not in order
            if turn % 7 == 0:
                await trio.lowlevel.checkpoint()
        await commit.barrier()
        assert order == list(range(50))

    await running(commit, body)
    assert journal.pending_bytes == 0
    assert len(contents(journal)[1]) == 50


async def test_all_that_waited_is_called_in_one_turn(environment: Any) -> None:
    journal, commit = Journal(environment), Commit(environment)
    order: list[str] = []

    def in_turn(call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)
        order.append("end of turn")

    async def body() -> None:
        journal.append(1, 0, 1, b"x")
        commit.request(lambda: order.append("first"))
        commit.request(lambda: order.append("second"))
        await commit.barrier()
        journal.append(1, 1, 1, b"x")
        await commit.barrier()

    await running(commit, body, in_turn)
    assert order == ["first", "second", "end of turn", "end of turn"]


async def test_barrier_without_changes_returns(environment: Any) -> None:
    commit = Commit(environment)
    with trio.fail_after(PATIENCE_S):
        await running(commit, commit.barrier)


async def test_stop_commits_what_waits(environment: Any) -> None:
    journal, commit = Journal(environment), Commit(environment)
    done: list[int] = []

    async def body() -> None:
        journal.append(1, 0, 1, b"last")
        commit.request(lambda: done.append(1))

    await running(commit, body)
    assert done == [1]
    assert contents(journal) == {1: {0: b"last"}}


async def test_settled_before_written_is_never_written(environment: Any) -> None:
    journal, commit = Journal(environment), Commit(environment)

    async def body() -> None:
        journal.append(1, 0, 10, b"gone")
        journal.append(1, 10, 10, b"kept")
        journal.settle(1, range(15))
        await commit.barrier()

    await running(commit, body)
    assert contents(journal) == {1: {10: b"kept"}}
    if isinstance(environment, Environment):
        assert environment.snapshot().stat(environment.tables.records)["entries"] == 1


async def test_other_failures_stop_the_node(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, commit = Journal(environment), Commit(environment)
    if isinstance(environment, MemoryEnvironment):
        environment.faults.fails = True
    else:

        class Broken:
            def __init__(self, txn: Any) -> None:
                self.txn = txn

            def __getattr__(self, name: str) -> Any:
                return getattr(self.txn, name)

            def commit(self) -> None:
                self.txn.abort()
                raise lmdb.Error("mdb_txn_commit: Input/output error")

        begin = environment.begin_write
        monkeypatch.setattr(environment, "begin_write", lambda: Broken(begin()))
    journal.append(1, 0, 1, b"x")
    commit.request(lambda: pytest.fail("called durable"), to_store=True)
    with pytest.raises(CommitFailed), trio.fail_after(PATIENCE_S):
        await commit.run()


async def test_full_in_memory_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    environment = MemoryEnvironment(Faults(full=3))
    alarms: list[bool] = []
    alarm = trio.Event()

    def on_full(full: bool) -> None:
        alarms.append(full)
        alarm.set()

    journal, commit = Journal(environment), Commit(environment, on_full=on_full)

    async def body() -> None:
        journal.append(1, 0, 2, b"a")
        commit.request()
        await alarm.wait()
        journal.append(1, 2, 2, b"b")
        journal.settle(1, range(1))
        await commit.barrier()

    with trio.fail_after(PATIENCE_S):
        await running(commit, body)
    assert alarms == [True, False]
    assert environment.faults.full == 0
    assert contents(journal) == {1: {0: b"a", 2: b"b"}}


async def test_full_map_alarms_and_recovers_by_settling(
    small: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    alarms: list[bool] = []
    journal, commit = Journal(small), Commit(small, on_full=alarms.append)
    body = b"z" * 50_000

    async def fill_and_drain() -> None:
        seq = 0
        with trio.fail_after(PATIENCE_S):
            while not alarms:
                # More than the map can hold; after that the disk has to find out.
                if seq < 100:
                    journal.append(1, seq, 1, body)
                    seq += 1
                    commit.request()
                await trio.sleep(0.005)
        # Publishers of another queue wait in the full layer; consumers drain the first queue.
        journal.append(2, 0, 1, body)
        durable = trio.Event()
        commit.request(durable.set)
        await trio.sleep(0.05)
        assert not durable.is_set()
        assert [len(record.payload) for record in journal.read(2, 0, 0)] == [50_000]
        for gone in range(seq):
            journal.settle(1, range(gone, gone + 1))
            commit.request()
            await trio.lowlevel.checkpoint()
        with trio.fail_after(PATIENCE_S):
            await durable.wait()
            await commit.barrier()
        assert alarms == [True, False]

    await running(commit, fill_and_drain)
    assert contents(journal) == {2: {0: body}}
    assert small.used_bytes() <= (2 << 20) + (16 << 20)


async def test_reads_while_commits_run(environment: Any) -> None:
    """During the sync, reads on the loop's thread see everything appended, and every byte is right."""
    journal, commit = Journal(environment), Commit(environment)

    def payload(seq: int) -> bytes:
        return seq.to_bytes(8, "big") * (seq % 4000 + 1)

    async def body() -> None:
        seq = settled = checked = 0
        for turn in range(400):
            for _ in range(5):
                journal.append(1, seq, 1, payload(seq))
                seq += 1
            if turn % 3 == 0 and seq - settled > 300:
                journal.settle(1, range(settled, settled + 40))
                settled += 40
            commit.request()
            await trio.lowlevel.checkpoint()
            for at in range(settled + turn % 11, seq, 37):
                (record,) = journal.read(1, at, at)
                assert record == Record(at, 1, payload(at))
                checked += 1
        assert checked > 2000
        await commit.barrier()
        assert sorted(contents(journal)[1]) == list(range(settled, seq))

    await running(commit, body)


async def test_spill_needs_no_sync_and_frees(environment: Any) -> None:
    journal, commit = Journal(environment.spill), Commit(environment.spill)

    async def body() -> None:
        journal.append(7, 100, 2, b"later")
        journal.append(7, 5, 1, [b"ear", b"lier"])
        await commit.barrier()
        assert journal.read(7, 0, 1000) == [Record(5, 1, b"earlier"), Record(100, 2, b"later")]
        journal.settle(7, range(5, 6))
        await commit.barrier()
        assert journal.read(7, 0, 1000) == [Record(100, 2, b"later")]
        journal.drop(7)
        assert journal.read(7, 0, 1000) == []
        await commit.barrier()

    await running(commit, body)
    assert contents(journal) == {}


class Slow(MemoryEnvironment):
    """A store whose housekeeping has to wait for the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.tended = trio.Event()

    def tend(self) -> Callable[[], None] | None:
        self.threads.append(threading.get_ident())
        return self._wait

    def _wait(self) -> None:
        self.threads.append(threading.get_ident())
        trio.from_thread.run_sync(self.tended.set)


async def test_housekeeping_that_waits_for_the_disk_does_not_stop_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.TEND_SECONDS", 0.0)
    environment = Slow()
    commit = Commit(environment)

    async def body() -> None:
        await commit.barrier()
        await environment.tended.wait()

    with trio.fail_after(PATIENCE_S):
        await running(commit, body)
    loop = threading.get_ident()
    assert [thread == loop for thread in environment.threads[:2]] == [True, False]
