"""The process that writes tables, as the broker sees it; and the names of files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import (
    NAME_BYTES_MAX,
    Find,
    TableName,
    identity_of_table,
    offsets_of_table,
    table_directory,
)
from persistence.streams.remote.table_process import Settings, TableProcess
from persistence.streams.remote.upload import Stopping

TABLE = TableName("archive", "/", "s", "identity")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TableProcess]:
    started = TableProcess(Settings((f"archive=file://{tmp_path}",), 1 << 20, 60.0, idle_s=0.2))
    yield started
    started.stop()


def put(directory: Path, low: int, stop: int) -> Path:
    path = directory / TABLE.key(low, stop)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_it_finds_how_far_a_table_is_and_deletes_what_was_left(process: TableProcess, tmp_path: Path) -> None:
    find = Find(TABLE, ((5, 9), (9, 12), (12, 20)))
    assert process.do(find) == -1
    old = put(tmp_path, 0, 5)
    other = tmp_path / TABLE._replace(identity="other").key(0, 5)
    other.write_bytes(b"x")
    for low, stop in ((5, 9), (9, 12)):
        put(tmp_path, low, stop)
    assert process.do(find) == 12
    assert not old.exists() and other.exists()


def test_it_ends_when_it_has_nothing_to_do_and_starts_again(process: TableProcess, tmp_path: Path) -> None:
    put(tmp_path, 0, 5)
    find = Find(TABLE, ((0, 5),))
    assert process.do(find) == 5
    first = process._process
    assert first is not None and first.wait(60) == 0
    assert process.do(find) == 5
    assert process._process is not first


def test_a_process_that_is_killed_starts_again(process: TableProcess, tmp_path: Path) -> None:
    put(tmp_path, 0, 5)
    find = Find(TABLE, ((0, 5),))
    assert process.do(find) == 5
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.do(find) == 5


def test_a_job_that_never_ends_is_killed(tmp_path: Path) -> None:
    process = TableProcess(Settings((f"archive=file://{tmp_path}",), 1 << 20, 60.0))
    assert process.do(Find(TABLE, ((0, 5),))) == -1
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    process._settings = process._settings._replace(timeout_s=0.1)
    with pytest.raises(Unavailable, match="stream_table_timeout_ms"):
        process.do(Find(TABLE, ((0, 5),)))
    process._settings = process._settings._replace(timeout_s=60.0)
    assert process.do(Find(TABLE, ((0, 5),))) == -1
    process.stop()


def test_a_stop_ends_a_job(tmp_path: Path) -> None:
    process = TableProcess(Settings((f"archive=file://{tmp_path}",), 1 << 20, 60.0))
    assert process.do(Find(TABLE, ((0, 5),))) == -1
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    timer = threading.Timer(0.2, process.stop)
    timer.start()
    with pytest.raises(Stopping):
        process.do(Find(TABLE, ((0, 5),)))
    timer.join()
    with pytest.raises(Stopping):
        process.do(Find(TABLE, ((0, 5),)))


def test_an_unknown_store_is_unavailable(process: TableProcess) -> None:
    with pytest.raises(Unavailable, match="no remote 'elsewhere'"):
        process.do(Find(TABLE._replace(remote="elsewhere"), ((0, 5),)))


def test_names_of_streams_become_different_parts_of_keys() -> None:
    names = [
        "s",
        "S",
        "_s",
        ".s",
        "@5fs",
        "a/b",
        "a@2fb",
        "",
        " ",
        "*?[]{}'\"\\",
        "ü",
        "x" * 255,
        "x" * 254 + "y",
        "..",
    ]
    found = [table_directory("/", name) for name in names]
    assert found[0] == "tables/@2f/s" and found[2] == "tables/@2f/@5fs" and found[5] == "tables/@2f/a@2fb"
    assert len(set(found)) == len(names)
    for directory in found:
        part = directory.rpartition("/")[2]
        assert directory.count("/") == 2 and len(part) <= NAME_BYTES_MAX + 18 and part[0] not in "._"


def test_a_key_says_its_offsets_and_its_stream() -> None:
    key = TABLE.key(7, 12)
    assert key == "tables/@2f/s/00000000000000000007-0000000005-identity.parquet"
    assert offsets_of_table(key) == (7, 12) and identity_of_table(key) == "identity"
    assert identity_of_table("identity/00000000000000000007-00000000000000000011-aa.segment") == ""
