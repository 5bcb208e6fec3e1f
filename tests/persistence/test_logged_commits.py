"""Small commits go to the write-ahead log first, and are as durable there as in LMDB."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from conformance_tests.patience import PATIENCE_S
from persistence.commits.commit import Commit
from persistence.commits.committing import Committing
from persistence.commits.stepped import SteppedCommit
from persistence.commits.wal import BLOCK_BYTES
from persistence.copying import copy_directory
from persistence.environment import LOG_FILE, Environment
from persistence.errors import DataDirectoryUnusable, SchemaMismatch, StorageFull
from persistence.journal import Journal
from persistence.replica_logs.logs import Groups
from tests.persistence.turns import OwnTurns

pytestmark = pytest.mark.trio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_at(path: Path, **options: Any) -> Environment:
    return Environment.open(path, map_bytes=1 << 30, **options)


class Turns(OwnTurns):
    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.journal, self.commit = Journal(environment), Commit(environment)

    async def turn(self, call: Callable[..., object], *arguments: Any, to_store: bool = False) -> None:
        """Run a turn; return when its changes are durable."""
        durable = trio.Event()

        def submit() -> None:
            call(*arguments)
            self.commit.request(durable.set, to_store=to_store)

        self.run(submit)
        with trio.fail_after(PATIENCE_S):
            await durable.wait()

    async def append(self, *seqs: int, size: int = 10, to_store: bool = False) -> None:
        def submit() -> None:
            for seq in seqs:
                self.journal.append(1, seq, 1, [b"%d" % seq, bytes(size)], 1)

        await self.turn(submit, to_store=to_store)

    async def settle(self, *seqs: int) -> None:
        def submit() -> None:
            for seq in seqs:
                self.journal.settle(1, range(seq, seq + 1))

        await self.turn(submit)

    def stored(self) -> list[int]:
        """Return the messages that LMDB has."""
        return [record.first_seq for record in self.environment.records(1, 0, 1 << 40)]

    def read(self) -> list[int]:
        return [record.first_seq for record in self.journal.read(1, 0, 1 << 40)]


@asynccontextmanager
async def running(environment: Environment) -> AsyncIterator[Turns]:
    turns = Turns(environment)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run, turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield turns
        # As with kill -9: no last commit.
        nursery.cancel_scope.cancel()
    environment.close()


def recovered(path: Path) -> dict[int, bytes]:
    environment = open_at(path)
    try:
        return {
            record.first_seq: record.payload
            for queue in Journal(environment).recover()
            for record in queue.records
        }
    finally:
        environment.close()


@pytest.fixture(autouse=True)
def _keep_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.STORE_SECONDS", 3600.0)


async def test_a_small_commit_is_durable_before_lmdb_has_it(path: Path) -> None:
    async with running(open_at(path)) as turns:
        before = turns.environment.written
        await turns.append(0, 1)
        await turns.append(2)
        assert turns.stored() == [] and turns.read() == [0, 1, 2]
        assert turns.journal.pending_bytes == 0 and not turns.commit.unsynced
        assert turns.environment.written == before + 2
    assert recovered(path) == {seq: b"%d" % seq + bytes(10) for seq in range(3)}
    # The second start reads it from LMDB.
    assert list(recovered(path)) == [0, 1, 2]


async def test_what_only_the_log_has_is_in_the_store_when_that_was_asked_for(path: Path) -> None:
    """A queue that is restarted reads only the store; it has submitted nothing since its last confirm."""

    def nothing() -> None: ...

    async with running(open_at(path)) as turns:
        groups = Groups(turns.environment)
        await turns.append(0)
        await turns.turn(nothing, to_store=True)
        assert turns.stored() == [0]
        await turns.append(1)
        await turns.turn(groups.append, 7, [(1, 2, 0, b"x")])
        await turns.turn(groups.hard, 7, 2, "b")
        turns.commit.request(to_store=True)
        await turns.turn(nothing, to_store=True)
        queue, group = turns.journal.recover_queue(1), groups.recover_one(7)
        assert queue is not None and [record.first_seq for record in queue.records] == [0, 1]
        assert group is not None and (group.term, group.vote, group.last_index) == (2, "b", 1)
        # Nothing is left: it is answered at once.
        before = turns.environment.written
        await turns.turn(nothing, to_store=True)
        assert turns.environment.written == before


@pytest.mark.pure
@pytest.mark.parametrize("planted", [False, True])
async def test_a_simulation_decides_alike(path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    """With a planted bug, the restart of a group does not find its vote, and says so."""

    def only_what_is_new(commits: Committing) -> bool:
        return bool(commits.pending.oldest)

    if planted:
        monkeypatch.setattr(Committing, "_has_oldest", only_what_is_new)
    environment = open_at(path)
    groups, disk = Groups(environment), SteppedCommit(environment, logs=True)
    groups.hard(7, 2, "b")
    disk.request()
    assert disk.begin(to_store=False)
    disk.end()
    assert environment.pending.logged is not None
    stored: list[bool] = []
    disk.request(lambda: stored.append(True), to_store=True)
    while not stored:
        assert disk.begin(to_store=False)
        disk.end()
    if planted:
        with pytest.raises(RuntimeError, match="the store lacks changes of group 7"):
            groups.recover_one(7)
    else:
        group = groups.recover_one(7)
        assert group is not None and (group.term, group.vote) == (2, "b")
    environment.close()


async def test_what_was_acked_meanwhile_never_comes_to_lmdb(path: Path) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(0, 1, 2)
        await turns.settle(0, 2)
        await turns.append(3, to_store=True)
        assert turns.stored() == [1, 3]
    assert list(recovered(path)) == [1, 3]


async def test_what_was_settled_is_let_go_of_while_only_the_log_has_it(path: Path) -> None:
    def settle(low: int, stop: int) -> None:
        turns.journal.settle(1, range(low, stop))

    async with running(open_at(path)) as turns:
        await turns.append(*range(10), to_store=True)
        await turns.append(*range(20, 40))
        await turns.append(*range(45, 80))
        # Some of these messages are in LMDB, and some are nowhere.
        await turns.turn(settle, 5, 60)
        await turns.turn(settle, 62, 79)
        logged = turns.environment.pending.logged
        assert logged is not None
        left = [60, 61, 79]
        assert [first for first, *_ in logged.queues[1].appends] == left
        assert turns.read() == [*range(10), *left]
        # Like a crash at this point.
        shutil.copytree(path, path.parent / "crashed")
        await turns.append(80, to_store=True)
        assert turns.stored() == [*range(5), *left, 80]
    assert list(recovered(path.parent / "crashed")) == [*range(5), *left]
    assert list(recovered(path)) == [*range(5), *left, 80]


async def test_a_record_that_is_settled_in_part_is_kept(path: Path) -> None:
    async with running(open_at(path)) as turns:

        def append() -> None:
            for first in range(0, 80, 4):
                turns.journal.append(1, first, 4, [b"%d" % first, bytes(9)], 1)

        def settle() -> None:
            turns.journal.settle(1, range(2, 75))

        await turns.turn(append)
        await turns.turn(settle)
        await turns.append(80, to_store=True)
        assert turns.stored() == [0, 72, 76, 80]
    environment = open_at(path)
    (queue,) = Journal(environment).recover()
    found = {record.first_seq: record.settled for record in queue.records}
    environment.close()
    assert found == {0: [range(2, 4)], 72: [range(72, 75)], 76: [], 80: []}


async def test_a_large_commit_takes_along_what_the_log_has(path: Path) -> None:
    async with running(open_at(path, log_commit_bytes_max=5000)) as turns:
        await turns.append(0)
        await turns.append(1, size=6000)
        assert turns.stored() == [0, 1]
        await turns.append(2)
        assert turns.stored() == [0, 1]
        assert turns.read() == [0, 1, 2]
    assert list(recovered(path)) == [0, 1, 2]


async def test_many_small_parts_are_a_large_commit(path: Path) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(*range(0, 2000, 2))
        assert len(turns.stored()) == 1000
        await turns.settle(*range(0, 2000, 2))
        assert turns.stored() == []
    assert recovered(path) == {}


async def test_a_log_that_fills_up_is_emptied_into_lmdb(path: Path) -> None:
    async with running(open_at(path, log_bytes=9 * BLOCK_BYTES)) as turns:
        for seq in range(100):
            await turns.append(seq)
        assert 80 < len(turns.stored()) < 100
        assert turns.read() == list(range(100))
    assert list(recovered(path)) == list(range(100))


async def test_lmdb_has_it_after_a_while_without_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.STORE_SECONDS", 0.0)
    monkeypatch.setattr("persistence.commits.commit_task.TEND_SECONDS", 0.01)
    async with running(open_at(path)) as turns:
        await turns.append(0)
        with trio.fail_after(PATIENCE_S):
            while turns.stored() != [0]:
                await trio.sleep(0.005)
        assert turns.environment.pending.logged is None


async def test_groups_and_metadata(path: Path) -> None:
    async with running(open_at(path)) as turns:
        groups, environment = Groups(turns.environment), turns.environment
        environment.put("vhosts", "gone", b"1")
        await turns.turn(groups.append, 1, [(1, 1, 0, b"a"), (2, 1, 0, b"b"), (3, 1, 7, b"c")])
        await turns.turn(groups.hard, 1, 5, "n2")
        await turns.turn(groups.append, 1, [(3, 2, 0, b"C")])
        await turns.turn(groups.snapshot, 1, 1, 1, [b"sta", b"te"])
        await turns.turn(groups.drop_entries, 1, [range(1, 2)])
        await turns.turn(environment.put, "vhosts", "\udc80/é", b"2")
        await turns.turn(environment.delete, "vhosts", "gone")
        await turns.turn(turns.journal.annotate, 4, 9, b"note")
        await turns.turn(turns.journal.annotate_all, 4, range(10, 12), b"notes")
        await turns.turn(turns.journal.state, 4, b"state")
    environment = open_at(path)
    groups = Groups(environment)
    [group] = groups.recover()
    assert (group.term, group.vote, group.snapshot, group.last_index) == (5, "n2", (1, 1), 3)
    assert [entry.data for entry in groups.read(1, 2, 3, 1 << 20)] == [b"b", b"C"]
    assert groups.read_state(1) == (1, 1, b"state")
    assert dict(environment.items("vhosts")) == {"\udc80/é": b"2"}
    [queue] = Journal(environment).recover()
    assert (queue.queue_id, queue.state, queue.annotations) == (
        4,
        b"state",
        {9: b"note", 10: b"notes", 11: b"notes"},
    )
    environment.close()


async def test_a_queue_that_is_dropped_and_its_number_used_again(path: Path) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(0, 1, to_store=True)
        await turns.turn(turns.journal.drop, 1)
        await turns.append(1)
    assert list(recovered(path)) == [1]


async def test_a_stopped_node_leaves_nothing_in_the_log(path: Path) -> None:
    environment = open_at(path)
    turns = Turns(environment)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.commit.run, turns.run)
        await trio.testing.wait_all_tasks_blocked()
        await turns.append(0)
        assert turns.stored() == []
        turns.commit.stop()
    environment.close()
    again = open_at(path, log_bytes=0)
    about = again.snapshot().get(b"schema_version", db=again.tables.about)
    assert about is not None and bytes(about) == b"2"
    again.close()
    # So a program that does not know the log can read the directory.
    (path / "main" / LOG_FILE).unlink()
    assert list(recovered(path)) == [0]


async def test_a_program_without_the_log_is_refused_while_the_log_is_needed(path: Path) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(0)
        about = turns.environment.snapshot().get(b"schema_version", db=turns.environment.tables.about)
        assert about is not None and bytes(about) == b"3"
    with pytest.raises(SchemaMismatch, match="has layout 3, this program reads layout 7"):
        open_at(path, schema_version=7)


async def test_a_log_that_is_gone_is_missed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(0, to_store=True)
        await turns.append(1)
    log = path / "main" / LOG_FILE
    log.unlink()
    with pytest.raises(DataDirectoryUnusable, match=f"lacks the file {log}"):
        open_at(path)
    # With this the operator accepts the loss.
    log.touch()
    with caplog.at_level(logging.CRITICAL):
        assert list(recovered(path)) == [0]
    assert "messages that were confirmed just before the node ended are lost" in caplog.text
    assert list(recovered(path)) == [0]


async def test_a_damaged_log_is_told(path: Path) -> None:
    async with running(open_at(path)) as turns:
        for seq in range(3):
            await turns.append(seq)
    log = path / "main" / LOG_FILE
    raw = bytearray(log.read_bytes())
    raw[2 * BLOCK_BYTES + 60] ^= 1
    log.write_bytes(raw)
    with pytest.raises(DataDirectoryUnusable, match="record 2 is missing, but record 3 exists"):
        open_at(path)


@pytest.mark.parametrize("log_bytes", [0, 4 * BLOCK_BYTES, 64 * BLOCK_BYTES])
async def test_a_log_of_another_size(path: Path, log_bytes: int) -> None:
    async with running(open_at(path, log_bytes=16 * BLOCK_BYTES)) as turns:
        for seq in range(6):
            await turns.append(seq)
    async with running(open_at(path, log_bytes=log_bytes)) as turns:
        assert turns.stored() == list(range(6))
        await turns.append(6)
        assert turns.stored() == list(range(6 if log_bytes else 7))
        log = path / "main" / LOG_FILE
        assert (log.stat().st_size if log_bytes else log.exists()) == log_bytes
    assert list(recovered(path)) == list(range(7))


async def test_a_copy_has_the_log(path: Path, tmp_path: Path) -> None:
    async with running(open_at(path)) as turns:
        await turns.append(0)
    copy_directory(path, tmp_path / "copy", freeze_s_max=1, cluster_table="cluster")
    assert list(recovered(tmp_path / "copy")) == list(recovered(path)) == [0]


async def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes in the log are durable, and come into LMDB when there is room."""
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)
    environment = open_at(path)
    async with running(environment) as turns:
        await turns.append(0)
        room = environment.check_room

        def full(layer: object) -> None:
            raise StorageFull("for the test")

        monkeypatch.setattr(environment, "check_room", full)
        with trio.move_on_after(0.1):
            await turns.append(1)
        assert turns.read() == [0, 1] and turns.stored() == []
        monkeypatch.setattr(environment, "check_room", room)
        await turns.append(2, to_store=True)
        assert turns.stored() == [0, 1, 2]
    assert list(recovered(path)) == [0, 1, 2]


@pytest.mark.parametrize("while_the_task_waits", [False, True])
async def test_a_log_that_cannot_be_written_for_want_of_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, while_the_task_waits: bool
) -> None:
    """As on a file system that writes to other blocks than the file's own."""
    async with running(open_at(path)) as turns:
        await turns.append(0)
        write = os.pwrite

        def full(*arguments: Any) -> int:
            if while_the_task_waits:
                trio.from_thread.run_sync(turns.commit.request, trio_token=token)
            raise OSError(errno.ENOSPC, "for the test")

        token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(os, "pwrite", full)
        await turns.append(1)
        assert turns.stored() == [0, 1]
        monkeypatch.setattr(os, "pwrite", write)
        await turns.append(2)
        assert turns.stored() == [0, 1] and turns.read() == [0, 1, 2]
    assert list(recovered(path)) == [0, 1, 2]


async def test_records_without_anything_in_them_count_as_well(path: Path) -> None:
    """The next record has the next number, though a start had nothing to put into LMDB."""
    for number in range(2):
        environment = open_at(path)
        layer = environment.pending.take()
        layer.changes(1)
        write = environment.log_record(layer)
        assert write is not None, number
        write()
        environment.close()
    assert recovered(path) == {}
