"""Raft groups in the commit task: one transaction for all, a full disk, and the changes that may go ahead of
it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.commits.stepped import SteppedCommit
from persistence.environment import Environment
from persistence.errors import EntryLost, StorageFull
from persistence.journal import Journal
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import StoredEntry
from tests.stores.memory import Faults, MemoryEnvironment


@pytest.fixture(params=["lmdb", "memory"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store: Any = (
        Environment.open(tmp_path, map_bytes=1 << 30) if request.param == "lmdb" else MemoryEnvironment()
    )
    yield store
    store.close()


def entry(index: int, data: bytes = b"x", term: int = 1) -> StoredEntry:
    return StoredEntry(index, term, 0, data)


async def test_groups_journal_and_metadata_are_one_transaction(environment: Any) -> None:
    groups, journal, commit = Groups(environment), Journal(environment), Commit(environment)
    transactions: list[int] = []
    transaction = environment.transaction

    def counted(layer: Any) -> Any:
        transactions.append(1)
        return transaction(layer)

    environment.transaction = counted
    async with trio.open_nursery() as nursery:
        for number in range(200):
            groups.append(number, [entry(1), entry(2)])
            groups.hard(number, 1, "n1")
        journal.append(1, 0, 1, b"x")
        environment.put("queues", "q", b"v")
        waiting = groups.pending_bytes
        assert waiting > 401
        durable = trio.Event()
        commit.request(durable.set)
        nursery.start_soon(commit.run)
        await durable.wait()
        commit.stop()
    assert len(transactions) == 1
    assert groups.pending_bytes == 0
    found = list(groups.recover())
    assert [(group.group, group.last_index, group.vote) for group in found] == [
        (number, 2, "n1") for number in range(200)
    ]


def test_only_what_lies_below_the_durable_snapshot_is_erased_ahead(environment: Any) -> None:
    groups, pending = Groups(environment), environment.pending
    for number in (1, 2, 3):
        groups.append(number, [entry(index) for index in range(1, 21)])
        groups.snapshot(number, 5, 1, b"durable")
        groups.hard(number, 1, "n1")
    environment.flush()
    # The oldest layer does not fit: a later snapshot, and a group whose number is used again.
    groups.snapshot(1, 15, 1, b"waits")
    groups.drop(3)
    groups.append(3, [entry(index) for index in range(1, 11)])
    groups.snapshot(3, 10, 1, b"new")
    pending.close_layer()
    groups.drop_entries(1, [range(1, 4), range(8, 16)])
    groups.drop(2)
    groups.drop_entries(3, [range(1, 11)])
    erasing = pending.erasures(pending.behind(), environment.groups.snapshot_index)
    transaction = environment.transaction(erasing)
    for _ in transaction.apply():
        pass
    transaction.commit()
    transaction.finish()
    found = {group.group: group for group in groups.recover()}
    assert found[1].stored == [range(4, 21)]
    assert found[2].stored == [range(6, 21)]
    assert found[3].stored == [range(1, 21)]
    assert all((group.vote, group.snapshot, group.lost) == ("n1", (5, 1), []) for group in found.values())
    environment.flush()
    found = {group.group: group for group in groups.recover()}
    assert sorted(found) == [1, 3]
    assert (found[1].stored, found[1].snapshot) == ([range(4, 8), range(16, 21)], (15, 1))
    assert (found[3].stored, found[3].snapshot, found[3].vote) == ([], (10, 1), "")


def test_a_dropped_group_is_gone_at_once(environment: Any) -> None:
    groups = Groups(environment)
    groups.append(1, [entry(1), entry(2)])
    groups.snapshot(1, 1, 1, b"state")
    environment.flush()
    groups.drop(1)
    assert (groups.last_index(1), groups.read_state(1)) == (0, None)
    with pytest.raises(EntryLost):
        groups.read_one(1, 1)
    groups.append(1, [entry(1, b"new")])
    assert groups.read_one(1, 1) == entry(1, b"new")
    with pytest.raises(EntryLost):
        groups.read_one(1, 2)


async def test_a_full_map_is_drained_by_dropping_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    environment = Environment.open(tmp_path, map_bytes=2 << 20)
    alarms: list[bool] = []
    groups, commit = Groups(environment), Commit(environment, on_full=alarms.append)
    body = b"z" * 50_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        index = 0
        while not alarms:
            assert index < 100
            index += 1
            groups.append(1, [entry(index, body)])
            # Applied entries are below a snapshot at once; their messages are not settled.
            groups.snapshot(1, index, 1, b"state")
            with trio.move_on_after(0.2):
                await commit.barrier()
        groups.append(2, [entry(1, body)])
        durable = trio.Event()
        commit.request(durable.set)
        with trio.move_on_after(0.05):
            await durable.wait()
        assert not durable.is_set()
        for gone in range(1, index + 1):
            groups.drop_entries(1, [range(gone, gone + 1)])
            commit.request()
        with trio.fail_after(PATIENCE_S):
            await durable.wait()
            await commit.barrier()
        commit.stop()
    assert alarms == [True, False]
    found = {group.group: group for group in groups.recover()}
    assert (found[1].stored, found[1].snapshot) == ([], (index, 1))
    assert groups.read_one(2, 1) == entry(1, body)
    environment.close()
    # A start needs a little room, too, for its incarnation.
    environment = Environment.open(tmp_path, map_bytes=1 << 16)
    assert environment.incarnation == 2
    environment.close()


def test_a_full_disk_of_a_simulation_is_tried_again() -> None:
    environment = MemoryEnvironment(Faults(full=1))
    groups, disk = Groups(environment), SteppedCommit(environment)
    done: list[int] = []
    groups.append(1, [entry(1)])
    disk.request(partial(done.append, 1))
    assert disk.begin()
    with pytest.raises(StorageFull):
        disk.end()
    assert not disk.running and done == [] and list(groups.recover()) == []
    assert disk.begin()
    # First come transactions of what can go ahead.
    while disk.running:
        disk.end()
    assert done == [1]
    assert [group.last_index for group in groups.recover()] == [1]


def test_the_incarnation_rises_and_what_is_noted_stays(tmp_path: Path) -> None:
    for start in range(1, 4):
        environment = Environment.open(tmp_path)
        assert environment.incarnation == start
        if start == 1:
            assert environment.about("cluster") is None
            environment.set_about("cluster", b"n1 n2 n3")
            environment.flush()
        assert environment.about("cluster") == b"n1 n2 n3"
        environment.close()
