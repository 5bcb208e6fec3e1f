"""Real data files whose bits flip or whose end is cut off: the store returns the written data, or says that
it is missing.
"""

import os
import shutil
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import lmdb
import pytest

from persistence.commits.commit import Commit
from persistence.environment import Environment
from persistence.errors import CorruptSnapshot, EntryLost, PersistenceError, StoreCorrupt
from persistence.journal import Journal
from persistence.pages.damage_guard import Guard
from persistence.pages.datafile import _DataFile, check_length
from persistence.record import Record
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import StoredEntry

pytestmark = pytest.mark.usefixtures("quiet")

MAP_BYTES = 1 << 28
PAGE_BYTES = 4096
HEADER_BYTES = 16
MESSAGES = 240
ENTRIES = 60
TRIALS = 60


def body(seq: int) -> bytes:
    return Random(seq).randbytes((40, 700, 3000)[seq % 3])


def entry(index: int) -> StoredEntry:
    return StoredEntry(
        index, 1 + index // 20, index % 2, Random(-index).randbytes(300 if index % 5 else 5000)
    )


def make(path: Path) -> Path:
    """Make a directory with data of all kinds; return its data file."""
    environment = Environment.open(path, map_bytes=MAP_BYTES)
    journal, groups = Journal(environment), Groups(environment)
    for seq in range(MESSAGES):
        journal.append(1, seq, 1, [b"head", body(seq)], 1)
        environment.put("table", f"key {seq}", body(seq))
        if seq % 4 == 0:
            journal.annotate(1, seq, b"note")
            groups.append(2, [entry(seq // 4 + 1)])
            environment.flush()
    groups.hard(2, 4, "n1")
    groups.snapshot(2, 20, 2, body(2))
    environment.flush()
    environment.close()
    return path / "main" / "data.mdb"


def read_everything(path: Path) -> None:
    """Raises AssertionError if anything differs from the written data. Missing data counts as missing."""
    environment = Environment.open(path, map_bytes=MAP_BYTES)
    journal, groups = Journal(environment), Groups(environment)
    for key, value in environment.items("table"):
        assert value == body(int(key.split()[1]))
    for queue in journal.recover():
        for record in queue.records:
            assert record.head_corrupt or bytes(record.head).startswith(b"head")
    found = {group.group: group for group in groups.recover()}
    # A damaged key may put an entry into an unknown group. The group itself is there, with its full length.
    assert found[2].hard_lost or (found[2].term, found[2].vote) == (4, "n1")
    assert found[2].last_index == ENTRIES
    for seq in range(MESSAGES):
        for read in journal.read(1, seq, seq):
            assert read.fault or read == Record(seq, 1, b"head" + body(seq))
    for index in range(1, ENTRIES + 1):
        with suppress(EntryLost):
            assert groups.read_one(2, index) == entry(index)
    with suppress(CorruptSnapshot):
        assert groups.read_state(2) == (20, 2, body(2))
    journal.append(1, MESSAGES, 1, b"more")
    journal.settle(1, range(MESSAGES))
    environment.put("table", "more", b"")
    environment.flush()
    environment.close()


def outcome(path: Path) -> str:
    """Return the outcome of `read_everything` in a process of its own: a broken page may kill it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "read"
        # The test does not need LMDB's message about an assertion.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            read_everything(path)
        except (StoreCorrupt, PersistenceError):
            said = "refused"
        except BaseException:  # noqa: BLE001 - it is told
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read().decode()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


def struck(path: Path, where: Callable[[Random, int], int]) -> dict[str, int]:
    """Flip one bit after the other, each in a copy; return how often each outcome was."""
    data_file = make(path / "whole")
    whole = data_file.read_bytes()
    count: dict[str, int] = {}
    for seed in range(TRIALS):
        random = Random(seed)
        at = where(random, len(whole))
        shutil.rmtree(path / "struck", ignore_errors=True)
        shutil.copytree(path / "whole", path / "struck")
        with (path / "struck" / "main" / "data.mdb").open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ 1 << random.randrange(8)]))
        found = outcome(path / "struck")
        count[found] = count.get(found, 0) + 1
    return count


def test_a_bit_that_flips_anywhere_is_never_served(tmp_path: Path) -> None:
    count = struck(tmp_path, lambda random, size: random.randrange(size))
    assert count.pop("read") > TRIALS // 2
    crashes = sum(count.pop(said) for said in list(count) if said.startswith("signal"))
    assert crashes < TRIALS // 20
    count.pop("refused", None)
    assert count == {}, next(iter(count))


def test_a_bit_that_flips_in_the_head_of_a_page_ends_in_a_refusal(tmp_path: Path) -> None:
    """LMDB itself crashes on some of these bits. No other outcome is permitted: above all the node must not
    go on.
    """

    def head(random: Random, size: int) -> int:
        return random.randrange(size // PAGE_BYTES) * PAGE_BYTES + random.randrange(HEADER_BYTES)

    count = struck(tmp_path, head)
    assert count.pop("refused") > 5
    count.pop("read", None)
    for said in list(count):
        if said.startswith("signal"):
            count.pop(said)
    assert count == {}, next(iter(count))


# -- a file that is too short


def churned(path: Path, seed: int) -> Iterator[Path]:
    """Make a data file by transactions that put much and delete much of it again."""
    random = Random(seed)
    path.mkdir()
    environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=2, lock=False, sync=False)
    table = environment.open_db(b"table")
    keys: list[bytes] = []
    for _ in range(6):
        with environment.begin(write=True) as txn:
            for _ in range(random.randint(1, 500)):
                if random.random() < 0.5 or not keys:
                    keys.append(random.randbytes(8))
                    txn.put(keys[-1], bytes(random.choice([10, 500, 1900, 5000, 30_000])), db=table)
                else:
                    txn.delete(keys.pop(random.randrange(len(keys))), db=table)
            if random.random() < 0.3:
                while keys:
                    txn.delete(keys.pop(), db=table)
        yield path / "data.mdb"
    environment.close()


def last_page(data_file: Path) -> int:
    """Return the last page according to the newest meta page."""
    raw = data_file.read_bytes()
    metas = [struct.unpack_from("=QQ", raw, page * PAGE_BYTES + 136) for page in (0, 1)]
    return int(max((transaction, last) for last, transaction in metas)[1])


def test_a_file_without_pages_that_were_never_written_is_whole(tmp_path: Path) -> None:
    short = 0
    for seed in range(40):
        for data_file in churned(tmp_path / str(seed), seed):
            check_length(data_file, was_used=True)
            short += data_file.stat().st_size < (last_page(data_file) + 1) * PAGE_BYTES
    assert short > 5, "no file was shorter than its last page"


def test_a_file_without_pages_that_are_used_is_refused(tmp_path: Path) -> None:
    data_file = make(tmp_path / "data")
    whole = data_file.read_bytes()
    cut = tmp_path / "cut"
    for size in [0, 1, 200, PAGE_BYTES, PAGE_BYTES + 200, *range(2 * PAGE_BYTES, len(whole) // 2, 50_001)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(StoreCorrupt, match=f"cut is damaged: it was cut off, it has {size} bytes"):
            check_length(cut, was_used=True)
    # A file that was never used is made again.
    cut.write_bytes(b"")
    check_length(cut, was_used=False)
    check_length(tmp_path / "none", was_used=True)
    # Nothing maps a file that is not LMDB's, or has another format.
    for start in (b"no LMDB " * 64, whole[:20] + struct.pack("=I", 9) + whole[24:PAGE_BYTES]):
        cut.write_bytes(start.ljust(PAGE_BYTES) + whole[PAGE_BYTES:])
        with pytest.raises(StoreCorrupt, match="page 0 is not the first one of an LMDB file of format 1"):
            check_length(cut, was_used=True)


def test_a_file_without_its_last_used_page_is_refused_though_the_list_of_free_pages_is_there(
    tmp_path: Path,
) -> None:
    refused = 0
    for seed in range(10):
        for data_file in churned(tmp_path / str(seed), seed):
            with data_file.open("rb") as file:
                pages = _DataFile(file.fileno(), data_file)
                last, root = max(pages._metas())[1:]
                free = set(pages._free_pages(root))
            used = max(set(range(last + 1)) - free)
            cut = shutil.copyfile(data_file, tmp_path / "cut")
            os.truncate(cut, (used + 1) * PAGE_BYTES)
            check_length(cut, was_used=True)
            os.truncate(cut, used * PAGE_BYTES)
            with pytest.raises(StoreCorrupt, match=f"cut off, it has {used * PAGE_BYTES} bytes"):
                check_length(cut, was_used=True)
            refused += root < used
    assert refused > 5, "the list itself was cut off in nearly all of them"


def test_a_file_that_is_none_of_lmdb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "data.mdb").write_bytes(b"no LMDB " * PAGE_BYTES)
    with pytest.raises(StoreCorrupt, match="main/data.mdb is damaged: page 0 is not"):
        Environment.open(tmp_path)


# -- whoever catches it


def test_what_was_found_once_is_found_again() -> None:
    guard = Guard(Path("data.mdb"), lasts=True)
    with pytest.raises(StoreCorrupt, match=r"data\.mdb is damaged: here"), guard:
        raise lmdb.CorruptedError("here")
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="here"), guard:
            pytest.fail("the file is used again")
    with pytest.raises(ValueError), Guard(Path("data.mdb"), lasts=True):
        raise ValueError


@pytest.mark.trio
async def test_the_commit_task_ends_when_a_damaged_file_was_met_by_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.TEND_SECONDS", 0.01)
    environment = Environment.open(tmp_path, map_bytes=MAP_BYTES)
    environment.guard.damaged("by a reader")
    with pytest.raises(StoreCorrupt, match="by a reader"):
        await Commit(environment).run()
    environment.close()


@pytest.mark.parametrize("of", ["the incarnation", "the note of a deletion", "the metadata entry"])
def test_small_values_without_which_nobody_can_go_on(tmp_path: Path, of: str) -> None:
    environment = Environment.open(tmp_path, map_bytes=MAP_BYTES)
    tables = environment.tables
    table, key = {
        "the incarnation": (tables.about, b"incarnation"),
        "the note of a deletion": (tables.erasures, struct.pack(">QQ", 1, 2)),
        "the metadata entry": (tables.metadata, b"table\0key"),
    }[of]
    txn = environment.begin_write()
    txn.put(key, b"\1\0\0\0\0damaged", db=table)
    txn.commit()
    environment.end_write()
    if of == "the metadata entry":
        with pytest.raises(StoreCorrupt, match=of):
            list(environment.items("table"))
    environment.close()
    if of != "the metadata entry":
        with pytest.raises(StoreCorrupt, match=of):
            Environment.open(tmp_path, map_bytes=MAP_BYTES)


def test_a_note_of_a_message_is_not_worth_a_refusal(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, map_bytes=MAP_BYTES)
    journal = Journal(environment)
    journal.append(1, 0, 2, b"x")
    journal.annotate(1, 0, b"noted")
    journal.annotate(1, 1, b"damaged")
    environment.flush()
    txn = environment.begin_write()
    txn.put(struct.pack(">QQ", 1, 1), b"\1\0\0\0\0damaged", db=environment.tables.annotations)
    txn.commit()
    environment.end_write()
    (queue,) = journal.recover()
    assert queue.annotations == {0: b"noted"}
    environment.close()


def test_it_passes_by_those_who_catch_exceptions() -> None:
    assert not issubclass(StoreCorrupt, Exception)
    assert sys.exc_info() == (None, None, None)
