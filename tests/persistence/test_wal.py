"""The write-ahead log by itself: the records that a restart finds."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from persistence.commits.wal import BLOCK_BYTES, HEADER, RECORD, LogDamaged, WriteAheadLog
from persistence.errors import CommitFailed, DataDirectoryUnusable

BLOCKS = 9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> Iterator[WriteAheadLog]:
    log = WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)
    assert log.recover(0) == []
    yield log
    log.close()


def write(log: WriteAheadLog, content: bytes) -> int:
    place = log.reserve(len(content))
    assert place is not None
    log.write(*place, content)
    return place[1]


def found(path: Path, stored: int = 0) -> list[bytes]:
    log = WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)
    try:
        return log.recover(stored)
    finally:
        log.close()


def flip(path: Path, block: int, at: int = RECORD.size) -> None:
    raw = bytearray(path.read_bytes())
    raw[block * BLOCK_BYTES + at] ^= 1
    path.write_bytes(raw)


def test_what_lmdb_does_not_have_comes_back_in_order(log: WriteAheadLog, path: Path) -> None:
    for content in (b"a", b"b" * 5000, b"", b"d"):
        write(log, content)
    assert found(path) == [b"a", b"b" * 5000, b"", b"d"]
    assert found(path, 2) == [b"", b"d"]
    assert found(path, 4) == []
    assert path.stat().st_size == log.size == BLOCKS * BLOCK_BYTES


def test_numbers_go_on_after_a_restart(log: WriteAheadLog, path: Path) -> None:
    write(log, b"a")
    again = WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)
    assert again.recover(0) == [b"a"]
    again.stored(1)
    write(again, b"b")
    again.close()
    assert found(path, 1) == [b"b"]


def test_a_full_log_takes_nothing_until_lmdb_has_its_oldest(log: WriteAheadLog, path: Path) -> None:
    for _ in range(BLOCKS - 1):
        write(log, b"x")
    assert log.is_half_full and log.reserve(1) is None
    log.stored(1)
    assert log.reserve(BLOCK_BYTES) is None
    assert write(log, b"y") == 1
    assert log.reserve(1) is None
    assert found(path, 1) == [b"x"] * (BLOCKS - 2) + [b"y"]
    log.stored(BLOCKS)
    assert not log.is_needed and not log.is_half_full


def test_one_that_never_fits(log: WriteAheadLog) -> None:
    assert log.reserve(BLOCKS * BLOCK_BYTES) is None
    assert log.sequence == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_writes_crashes_and_stores(path: Path, seed: int) -> None:
    random = Random(seed)
    contents: dict[int, bytes] = {}
    stored = 0
    log = WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)
    log.recover(0)
    for step in range(300):
        what = random.random()
        if what < 0.6:
            content = random.randbytes(random.choice([3, 4000, 4095, 9000]))
            if (place := log.reserve(len(content))) is not None:
                log.write(*place, content)
                contents[place[0]] = content
        elif what < 0.8 and contents:
            stored = random.randint(stored, max(contents))
            log.stored(stored)
        elif what < 0.9:
            log.close()
            log = WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)
            assert log.recover(stored) == [contents[n] for n in sorted(contents) if n > stored], step
            # A start does the same: LMDB has these records now.
            stored = max([stored, *contents])
            log.stored(stored)
    assert stored > 20
    log.close()


@pytest.mark.parametrize("at", [0, 20, 25, 29, RECORD.size, 5000])
def test_a_torn_end_is_left_out(log: WriteAheadLog, path: Path, at: int) -> None:
    write(log, b"a")
    block = write(log, b"b" * 6000)
    flip(path, block, at)
    assert found(path) == [b"a"]


def test_one_that_is_damaged_before_others_is_told(log: WriteAheadLog, path: Path) -> None:
    write(log, b"a")
    block = write(log, b"b")
    write(log, b"c")
    flip(path, block)
    with pytest.raises(LogDamaged, match="record 2 is missing, but record 3 exists"):
        found(path)
    assert found(path, 2) == [b"c"]


def test_what_clients_publish_cannot_look_like_a_record(log: WriteAheadLog, path: Path) -> None:
    write(log, b"a")
    record = path.read_bytes()[BLOCK_BYTES : 2 * BLOCK_BYTES]
    # A forged record with everything right except the salt, which no client knows.
    forged = bytes(HEADER.size) + record[HEADER.size :]
    block = write(log, bytes(BLOCK_BYTES - RECORD.size) + forged)
    assert path.read_bytes()[(block + 1) * BLOCK_BYTES :].startswith(forged[:100])
    assert len(found(path)) == 2


@pytest.mark.parametrize("content", [b"x", b"x" * BLOCKS * BLOCK_BYTES])
def test_a_file_that_is_no_log(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataDirectoryUnusable, match="is not a log of mqd"):
        WriteAheadLog.open(path, BLOCKS * BLOCK_BYTES)


def test_a_log_takes_its_blocks_again(log: WriteAheadLog, path: Path) -> None:
    write(log, b"a")
    with path.open("r+b") as file:
        beginning = file.read(2 * BLOCK_BYTES)
        file.truncate(0)
        os.pwrite(file.fileno(), beginning, 0)
        os.truncate(file.fileno(), BLOCKS * BLOCK_BYTES)
    assert path.stat().st_blocks * 512 < BLOCKS * BLOCK_BYTES
    assert found(path) == [b"a"]
    assert path.stat().st_blocks * 512 >= BLOCKS * BLOCK_BYTES


def test_a_disk_that_takes_nothing(log: WriteAheadLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.pwrite", lambda *arguments: 0)
    place = log.reserve(5)
    assert place is not None
    with pytest.raises(CommitFailed, match=f"{path}: only 0 of {BLOCK_BYTES} bytes"):
        log.write(*place, b"12345")


def test_a_disk_that_takes_a_record_in_pieces(
    log: WriteAheadLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda file, data, at: whole(file, data[:1000], at))
    write(log, b"a" * 5000)
    assert found(path) == [b"a" * 5000]
