"""The data directory: lock, layout, identity, damage."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from persistence.commits.flush import flush
from persistence.commits.stepped import SteppedCommit
from persistence.environment import SCHEMA_VERSION, Environment
from persistence.errors import DataDirectoryInUse, DataDirectoryUnusable, SchemaMismatch
from persistence.journal import Journal
from persistence.pages.page_reader import AHEAD_BYTES
from persistence.record import CHUNK_BYTES, INLINE_BYTES, Record
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import StoredEntry
from persistence.settled import mask, merge, outside, ranges
from persistence.transaction import ERASE_KEYS_MAX, STEP_WORK

ROOT = Path(__file__).parents[2]


def open_environment(path: Path) -> Environment:
    return Environment.open(path / "data", map_bytes=1 << 32)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    with pytest.raises(DataDirectoryInUse, match=str(tmp_path / "data")):
        open_environment(tmp_path)
    code = (
        "import sys; from persistence.environment import Environment\n"
        "from persistence.errors import DataDirectoryInUse\n"
        "try: Environment.open(sys.argv[1])\n"
        "except DataDirectoryInUse: sys.exit(42)"
    )
    other = [sys.executable, "-c", code, str(tmp_path / "data")]
    assert subprocess.run(other, cwd=ROOT, check=False).returncode == 42
    environment.close()
    open_environment(tmp_path).close()


def test_a_new_directory_takes_two_transactions(tmp_path: Path) -> None:
    """One for all tables, and one for the node's identity: each is a sync, and syncs are most of the time of
    a first start.
    """
    environment = open_environment(tmp_path)
    assert environment.written == 2
    environment.close()


@pytest.mark.parametrize("log_bytes", [0, 1 << 20])
def test_a_copy_that_lacks_one_commit_is_found_out(tmp_path: Path, log_bytes: int) -> None:
    """Though opening it writes."""
    for number in range(3):
        environment = Environment.open(tmp_path / "data", map_bytes=1 << 32, log_bytes=log_bytes)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        environment.put("t", f"{number}", b"v")
        environment.flush()
        told = environment.written
        environment.close()
        copy = Environment.open(tmp_path / "copy", map_bytes=1 << 32, log_bytes=log_bytes)
        assert copy.found < told
        copy.close()
        again = Environment.open(tmp_path / "data", map_bytes=1 << 32, log_bytes=log_bytes)
        assert again.found >= told
        again.close()


def test_another_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_environment(tmp_path).close()
    with pytest.raises(SchemaMismatch, match=rf"layout {SCHEMA_VERSION}.*layout 99"):
        Environment.open(tmp_path / "data", schema_version=99)
    open_environment(tmp_path).close()


def test_an_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryUnusable, match="file"):
        Environment.open(tmp_path / "file")


def _to_file(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def _to_directory(place: Path, victim: Path) -> None:
    place.symlink_to(victim.parent)


def _to_nothing(place: Path, victim: Path) -> None:
    place.symlink_to(victim.parent / "nothing")


def _fifo(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path, victim: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(place.parent)
        try:
            # A path of a socket is short.
            listening.bind(place.name)
        finally:
            os.chdir(here)


FILES = ("lock", "marks", "main/data.mdb", "main/lock.mdb", "main/log", "main/ballast")
DIRECTORIES = ("main", "spill", "streams", "streams/7")


@pytest.mark.parametrize("made", [False, True], ids=["new", "made before"])
@pytest.mark.parametrize("what", [_to_file, _to_directory, _to_nothing, _fifo, _socket])
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_what_is_no_file_of_the_nodes_own_is_refused(
    tmp_path: Path, name: str, what: Callable[[Path, Path], None], made: bool
) -> None:
    """Otherwise a user who can make a link would choose a file for the node to overwrite, or a directory to
    delete; and the node would wait for the other end of a FIFO.
    """
    victim = tmp_path / "elsewhere" / "victim"
    victim.parent.mkdir()
    victim.write_text("precious")
    data = tmp_path / "data"
    if made:
        open_environment(tmp_path).close()
    (data / name).parent.mkdir(parents=True, exist_ok=True)
    if (data / name).is_dir():
        shutil.rmtree(data / name)
    else:
        (data / name).unlink(missing_ok=True)
    what(data / name, victim)
    before = sorted(victim.parent.iterdir())
    found = {"_fifo": "a FIFO", "_socket": "a socket"}.get(what.__name__, "a symbolic link")
    with pytest.raises(DataDirectoryUnusable, match=f"{name} in it is {found}, not a "):
        open_environment(tmp_path)
    assert victim.read_text() == "precious"
    assert sorted(victim.parent.iterdir()) == before


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES[:3]])
def test_a_directory_instead_of_a_file_and_a_file_instead_of_a_directory(tmp_path: Path, name: str) -> None:
    place = tmp_path / "data" / name
    place.parent.mkdir(parents=True)
    if name in FILES:
        place.mkdir()
    else:
        place.write_text("")
    with pytest.raises(DataDirectoryUnusable, match=f"{name} in it is a (directory, not a file|file, not a)"):
        open_environment(tmp_path)


def test_a_data_directory_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    open_environment(tmp_path).close()
    assert (tmp_path / "disk" / "main").is_dir()


def test_a_directory_that_others_can_write_to_is_closed_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_environment(tmp_path).close()
    data = tmp_path / "data"
    for place in (data, data / "main"):
        place.chmod(0o777)
        open_environment(tmp_path).close()
        assert place.stat().st_mode & 0o7777 == 0o770
        assert (
            f"others could write to the data directory {place} (mode 0777); its mode is 0770 now"
            in caplog.text
        )
    caplog.clear()
    data.chmod(0o755)
    open_environment(tmp_path).close()
    assert data.stat().st_mode & 0o7777 == 0o755 and not caplog.records


def test_a_shared_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o1777)
    with pytest.raises(DataDirectoryUnusable, match="shared with others \\(mode 1777\\).*--data-dir"):
        open_environment(tmp_path)
    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_directory_in_which_others_have_written_is_refused(tmp_path: Path) -> None:
    open_environment(tmp_path).close()
    (tmp_path / "data").chmod(0o777)
    planted = tmp_path / "data" / "planted"
    planted.touch()
    os.chown(planted, 65_534, 65_534)
    with pytest.raises(DataDirectoryUnusable, match="and did: planted in it is another user's"):
        open_environment(tmp_path)


def test_the_identity_stays(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    node_id = environment.node_id
    environment.close()
    environment = open_environment(tmp_path)
    assert environment.node_id == node_id
    environment.close()


def test_spill_is_wiped_at_start(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    spill = Journal(environment.spill)
    spill.append(1, 0, 1, b"spilled")
    flush(environment.spill)
    assert [queue.queue_id for queue in spill.recover()] == [1]
    environment.close()
    environment = open_environment(tmp_path)
    assert list(Journal(environment.spill).recover()) == []
    environment.close()


@pytest.mark.parametrize("head_bytes", [0, 10, 5000])
@pytest.mark.parametrize("size", [10, 600, 3000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])
def test_sizes(tmp_path: Path, size: int, head_bytes: int) -> None:
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    head, body = payload[:head_bytes], payload[head_bytes:]
    journal.append(1, 0, 3, [head, body], head_parts=1)
    environment.flush()
    assert journal.read(1, 2, 2) == [Record(0, 3, payload)]
    (queue,) = journal.recover()
    (record,) = queue.records
    assert record.payload == payload
    assert record.head == (payload if size <= INLINE_BYTES else head)
    assert not record.corrupt
    # Drop the references before the map goes.
    del record, queue
    environment.close()


@pytest.mark.parametrize("size", [40, 5000, 2 * CHUNK_BYTES])
def test_a_flipped_bit_is_never_served(tmp_path: Path, size: int) -> None:
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    payload = b"\xa5needle\x5a" + bytes(size)
    journal.append(1, 0, 2, b"before")
    journal.append(1, 2, 2, payload)
    journal.append(1, 4, 2, b"after")
    environment.flush()
    environment.close()
    data = tmp_path / "data" / "main" / "data.mdb"
    raw = bytearray(data.read_bytes())
    at = raw.index(b"\xa5needle\x5a")
    while at >= 0:
        raw[at + 3] ^= 0x10
        at = raw.find(b"\xa5needle\x5a", at + 1)
    data.write_bytes(raw)
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    before, damaged, after = journal.read(1, 0, 9)
    assert (before.payload, damaged.payload, after.payload) == (b"before", b"", b"after")
    assert "queue 1, messages 2 to 3, does not match its checksum" in damaged.fault
    assert [record.payload for record in journal.read(1, 4, 4)] == [b"after"]
    (queue,) = journal.recover()
    assert [(record.first_seq, record.corrupt) for record in queue.records] == [
        (0, False),
        (2, True),
        (4, False),
    ]
    environment.close()


def test_a_lost_chunk_is_found(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    journal.append(1, 0, 1, bytes(3 * CHUNK_BYTES))
    environment.flush()
    txn = environment.begin_write()
    with txn.cursor(db=environment.tables.bodies) as cursor:
        cursor.first()
        cursor.next()
        cursor.delete()
    txn.commit()
    environment.end_write()
    (damaged,) = journal.read(1, 0, 0)
    assert "lacks its chunk 1" in damaged.fault
    (queue,) = journal.recover()
    assert [(record.head_corrupt, record.corrupt) for record in queue.records] == [(False, True)]
    environment.close()


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("how", ["settle", "drop"])
def test_a_large_erasure_is_durable_at_once_and_carried_on(tmp_path: Path, how: str, reopen: bool) -> None:
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    many = 3 * ERASE_KEYS_MAX
    for seq in range(many):
        journal.append(1, seq, 1, b"x")
    journal.append(1, many, 10, b"tail")
    journal.append(2, 0, 1, b"other")
    environment.flush()
    if how == "settle":
        journal.settle(1, range(many + 3))
    else:
        journal.drop(1)
    layer = environment.pending.take_for_store(oldest=True)
    transaction = environment.transaction(layer)
    for _ in transaction.apply():
        pass
    transaction.commit()
    transaction.finish()
    environment.pending.remove(layer)
    assert environment.has_erasures()
    if reopen:
        environment.close()
        environment = open_environment(tmp_path)
        journal = Journal(environment)
    found = {
        queue.queue_id: [(record.first_seq, record.settled) for record in queue.records]
        for queue in journal.recover()
    }
    expected: dict[int, list[tuple[int, list[range]]]] = {2: [(0, [])]}
    if how == "settle":
        expected[1] = [(many, [range(many, many + 3)])]
    assert found == expected
    environment.flush()
    assert not environment.has_erasures()
    assert environment.snapshot().stat(environment.tables.records)["entries"] == len(expected)
    assert environment.snapshot().stat(environment.tables.erasures)["entries"] == 0
    environment.close()


def test_one_writer_and_no_commit_during_recovery(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    journal.append(1, 0, 1, b"x")
    journal.append(2, 0, 1, b"x")
    environment.flush()
    txn = environment.begin_write()
    with pytest.raises(RuntimeError, match="runs already"):
        environment.begin_write()
    txn.abort()
    environment.end_write()
    queues = journal.recover()
    next(queues)
    with pytest.raises(RuntimeError, match="recovered"):
        environment.begin_write()
    list(queues)
    environment.begin_write().abort()
    environment.end_write()
    environment.close()


def test_intervals() -> None:
    assert merge([5, 0, 2], [7, 2, 3]) == ([0, 5], [3, 7])
    assert merge([0, 1], [9, 2]) == ([0], [9])
    assert list(outside([0, 20], [10, 30], [(2, 4), (6, 8), (9, 25)])) == [(0, 2), (4, 6), (8, 9), (25, 30)]
    assert ranges(100, mask(100, 8, 102, 105) | mask(100, 8, 107, 300)) == [range(102, 105), range(107, 108)]
    assert ranges(0, 0) == []


@pytest.mark.parametrize("later", [range(10), range(40)])
def test_an_erasure_is_never_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: range) -> None:
    """A range that waits to be deleted is settled again from the same start on, which a full disk may
    cause.
    """
    monkeypatch.setattr("persistence.transaction.ERASE_KEYS_MAX", 0)
    environment = open_environment(tmp_path)
    journal = Journal(environment)
    for seq in range(40):
        journal.append(1, seq, 1, b"x")
    commit_once(environment)
    for seqs in (range(30), later):
        journal.settle(1, seqs)
        commit_once(environment)
    left = range(max(30, later.stop), 40)
    for _ in range(2):
        assert [r.first_seq for queue in journal.recover() for r in queue.records] == list(left)
        environment.close()
        environment = open_environment(tmp_path)
        journal = Journal(environment)
    monkeypatch.setattr("persistence.transaction.ERASE_KEYS_MAX", 7)
    environment.flush()
    assert environment.snapshot().stat(environment.tables.records)["entries"] == len(left)
    assert environment.snapshot().stat(environment.tables.erasures)["entries"] == 0
    environment.close()


def commit_once(environment: Environment) -> None:
    """Commit one transaction, as the commit task does; a flush would go on until all is erased."""
    steps = SteppedCommit(environment)
    assert steps.begin()
    steps.end()


@pytest.mark.parametrize("sync", [True, False])
def test_without_sync_nothing_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    environment = Environment.open(tmp_path, map_bytes=1 << 32, sync=sync)
    assert environment._log is not None
    flags = fcntl.fcntl(environment._log._file, fcntl.F_GETFL)
    assert (bool(synced), bool(flags & os.O_DSYNC), environment._env.flags()["sync"]) == (sync, sync, sync)
    environment.close()


REMAINS = ("main/log", "marks", "spill/data.mdb", "streams/7/00000000000000000000.segment")


@pytest.mark.parametrize("name", REMAINS)
def test_what_is_left_of_a_directory_without_its_store_is_no_new_directory(tmp_path: Path, name: str) -> None:
    """Everything else is in the store: a node that starts as a new one would say nothing of what is lost."""
    directory = tmp_path / "data"
    (directory / name).parent.mkdir(parents=True)
    (directory / name).write_bytes(b"of an earlier life")
    what = name.rpartition("/")[0] if name.startswith("streams") else name
    with pytest.raises(
        DataDirectoryUnusable, match=rf"has no main/data.mdb, but it has {what} .*move .* away"
    ):
        open_environment(tmp_path)
    assert (directory / name).read_bytes() == b"of an earlier life"
    assert not (directory / "main" / "data.mdb").exists()
    directory.rename(tmp_path / "old")
    open_environment(tmp_path).close()


@pytest.mark.parametrize("log_bytes", [0, 1 << 20])
def test_a_store_that_was_deleted_is_missed(tmp_path: Path, log_bytes: int) -> None:
    Environment.open(tmp_path / "data", map_bytes=1 << 30, log_bytes=log_bytes).close()
    (tmp_path / "data" / "main" / "data.mdb").unlink()
    with pytest.raises(DataDirectoryUnusable, match="has no main/data.mdb"):
        Environment.open(tmp_path / "data", map_bytes=1 << 30, log_bytes=log_bytes)


def test_empty_folders_are_a_new_directory(tmp_path: Path) -> None:
    for name in ("main", "spill", "streams/7"):
        (tmp_path / "data" / name).mkdir(parents=True)
    open_environment(tmp_path).close()


@pytest.mark.parametrize("records", [0, 1])
def test_many_deletions_are_many_steps(tmp_path: Path, records: int) -> None:
    """A virtual host with thousands of queues is deleted at once: looking for what each of them has on disk
    takes longer than the deletions.
    """
    count = 300
    with closing(open_environment(tmp_path)) as environment:
        journal, groups = Journal(environment), Groups(environment)
        for number in range(count):
            journal.state(number, b"state")
            if records:
                journal.append(number, 0, 1, [b"head", b"body"], head_parts=1)
                groups.append(number, [StoredEntry(1, 1, 0, b"entry")])
        environment.flush()
        for number in range(count):
            journal.drop(number)
            groups.drop(number)
        layer = environment.pending.take_for_store(oldest=True)
        transaction = environment.transaction(layer)
        assert len(list(transaction.apply())) >= count // (STEP_WORK // AHEAD_BYTES + 1)
        transaction.commit()
        transaction.finish()
        environment.pending.remove(layer)
        assert not list(journal.recover()) and not list(groups.recover())


FEW_ADDRESSES = """
import logging, resource, sys
from persistence.environment import Environment
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
environment = Environment.open(sys.argv[1])
print(environment.map_bytes, environment.spill.map_bytes)
environment.close()
"""


@pytest.mark.parametrize("limit", [20 << 30, 400 << 30])
def test_where_a_process_may_have_few_addresses(tmp_path: Path, limit: int) -> None:
    arguments = [sys.executable, "-c", FEW_ADDRESSES, str(tmp_path / "data"), str(limit)]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    main, spill = map(int, ran.stdout.split())
    assert limit // 4 < main <= limit // 2 and main + spill < 0.9 * limit
    assert f"main can become no larger than {main} bytes" in ran.stderr
