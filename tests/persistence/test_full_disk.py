"""Deletions always succeed, on a disk that this node or another program has filled."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import lmdb
import pytest
import trio

from conformance_tests.patience import PATIENCE_S
from persistence import reserved_space
from persistence.commits.commit import Commit
from persistence.commits.wal import BLOCK_BYTES, WriteAheadLog
from persistence.environment import Environment
from persistence.errors import CommitFailed, StorageFull
from persistence.journal import Journal

MEGABYTE = 1 << 20
DISK_BYTES = 24 * MEGABYTE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    done = subprocess.run(mounting, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a file system can't be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.01)


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path) -> None:
    """Let another program take all room that is left."""
    with (disk / "foreign").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


class Traffic:
    """Appends messages, and settles the oldest ones."""

    def __init__(self, journal: Journal, commit: Commit, seed: int) -> None:
        self._journal = journal
        self._commit = commit
        self._random = Random(seed)
        self.appended = self.settled = 0

    def append(self) -> None:
        for _ in range(self._random.randint(1, 30)):
            body = b"x" * self._random.choice([200, 3_000, 8_000])
            self._journal.append(1, self.appended, 1, [b"head", body], head_parts=1)
            self.appended += 1
        self._commit.request()

    def settle(self) -> None:
        stop = min(self.appended, self.settled + self._random.randint(1, 50))
        self._journal.settle(1, range(self.settled, stop))
        self.settled = stop
        self._commit.request()


async def until(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            act()
            await trio.sleep(0.002)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_a_full_disk_is_drained(disk: Path, foreign: bool, seed: int) -> None:
    environment = Environment.open(disk / "data")
    alarms: list[bool] = []
    journal, commit = Journal(environment), Commit(environment, on_full=alarms.append)
    traffic = Traffic(journal, commit, seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        if foreign:
            for _ in range(20):
                traffic.append()
            await commit.barrier()
            fill(disk)
            assert free_bytes(disk) == 0
        for episode in range(3):
            await until(lambda: alarms[-1:] == [True], traffic.append)
            assert len(alarms) == 2 * episode + 1
            await until(lambda: alarms[-1] is False, traffic.settle)
        with trio.fail_after(PATIENCE_S):
            await commit.barrier()
        commit.stop()
    left = {record.first_seq for queue in journal.recover() for record in queue.records}
    assert left == set(range(traffic.settled, traffic.appended))
    environment.close()


async def test_a_full_disk_ends_when_all_that_waited_is_settled(disk: Path) -> None:
    """More waits than the disk would have room for: settled before it was written, it needs none."""
    environment = Environment.open(disk / "data")
    alarms: list[bool] = []
    journal, commit = Journal(environment), Commit(environment, on_full=alarms.append)
    traffic = Traffic(journal, commit, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await commit.barrier()
        fill(disk)
        await until(lambda: alarms[-1:] == [True], traffic.append)
        while commit.pending.bytes < DISK_BYTES:
            traffic.append()
        await until(lambda: alarms[-1] is False, traffic.settle)
        commit.stop()
    left = {record.first_seq for queue in journal.recover() for record in queue.records}
    assert left == set(range(traffic.settled, traffic.appended))
    environment.close()


async def test_appends_leave_room_for_deletions(disk: Path) -> None:
    environment = Environment.open(disk / "data")
    alarm = trio.Event()
    journal, commit = Journal(environment), Commit(environment, on_full=lambda full: alarm.set())
    traffic = Traffic(journal, commit, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        await until(alarm.is_set, traffic.append)
        assert 3 * MEGABYTE < free_bytes(disk) < 12 * MEGABYTE
        nursery.cancel_scope.cancel()
    environment.close()


def test_ballast_is_given_up_once_and_made_again(disk: Path) -> None:
    held = reserved_space.Ballast(disk / "ballast")
    full = free_bytes(disk)
    assert full == DISK_BYTES - reserved_space.BALLAST_BYTES
    fill(disk)
    assert held.give_up()
    assert not held.give_up()
    assert free_bytes(disk) == reserved_space.BALLAST_BYTES
    held.restore()
    assert free_bytes(disk) == reserved_space.BALLAST_BYTES, "made again while the disk is full"
    (disk / "foreign").unlink()
    held.restore()
    assert free_bytes(disk) == full


def test_a_node_starts_on_a_full_disk_and_is_drained(disk: Path) -> None:
    environment = Environment.open(disk / "data")
    journal = Journal(environment)
    for seq in range(100):
        journal.append(1, seq, 1, [b"head", b"x" * 8_000], head_parts=1)
    environment.flush()
    environment.close()
    fill(disk)
    environment = Environment.open(disk / "data")
    journal = Journal(environment)
    assert sum(1 for queue in journal.recover() for _ in queue.records) == 100
    journal.settle(1, range(100))
    environment.flush()
    assert list(journal.recover()) == []
    environment.close()


def test_a_log_with_holes_on_a_disk_with_room_for_a_part(disk: Path) -> None:
    """As after a copy that left out what was empty: the disk takes the beginning of a record."""
    path, content = disk / "log", b"x" * 4 * BLOCK_BYTES
    log = WriteAheadLog.open(path, MEGABYTE)
    size = path.stat().st_size
    os.truncate(path, BLOCK_BYTES)
    os.truncate(path, size)
    fill(disk)
    os.truncate(disk / "foreign", (disk / "foreign").stat().st_size - 2 * BLOCK_BYTES)
    place = log.reserve(len(content))
    assert place is not None
    with pytest.raises(StorageFull, match="No space left"):
        log.write(*place, content)
    assert free_bytes(disk) == 0
    (disk / "foreign").unlink()
    log.write(*place, content)
    log.close()
    again = WriteAheadLog.open(path, MEGABYTE)
    assert again.recover(0) == [content]
    again.close()


@pytest.mark.parametrize("full", [True, False])
def test_a_partial_write_under_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """LMDB says the same of it as of a disk that fails, and the file system may have room for others."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EDQUOT if full else errno.EIO, "for the test")

    with closing(Environment.open(tmp_path / "data")) as environment:
        monkeypatch.setattr("os.posix_fallocate", refuse)
        found = environment.failure(lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EIO)}"), MEGABYTE)
        assert type(found) is (StorageFull if full else CommitFailed)
