"""The file of the write-ahead log is made, resized and left out, and a crash in between loses nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistence.commits.stepped import SteppedCommit
from persistence.commits.wal import BLOCK_BYTES
from persistence.environment import LOG_FILE, Environment
from persistence.errors import DataDirectoryUnusable
from persistence.journal import Journal


def open_at(path: Path, **options: Any) -> Environment:
    return Environment.open(path, map_bytes=1 << 30, **options)


def log(store: Environment, seq: int) -> None:
    """Append a message that only the log has then."""
    Journal(store).append(1, seq, 1, [b"head", b"%d" % seq], 1)
    disk = SteppedCommit(store, logs=True)
    assert disk.begin(to_store=False)
    disk.end()


def found(store: Environment) -> list[int]:
    return [record.first_seq for queue in Journal(store).recover() for record in queue.records]


def crashes(do: Callable[[], object], directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copies of the directory as a crash before each change of a file would leave it."""
    calls: list[tuple[Any, str]] = [
        (os, name) for name in ("open", "pwrite", "posix_fallocate", "fsync", "close")
    ]
    calls += [(Path, "unlink"), (Path, "rename"), (Environment, "_note")]
    copies: list[Path] = []

    def watched(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if not copying:
            copying.append(True)
            copy = directory.with_name(f"crash{len(copies)}")
            shutil.copytree(directory, copy)
            copies.append(copy)
            copying.clear()
        return call(*arguments, **options)

    copying: list[bool] = []
    with monkeypatch.context() as patched:
        for place, name in calls:
            call = getattr(place, name)
            if place is os:
                patched.setattr(os, name, partial(watched, call))
            else:
                patched.setattr(
                    place, name, lambda *arguments, call=call, **options: watched(call, *arguments, **options)
                )
        do()
    yield from copies


@pytest.mark.parametrize("before", [8, 16, 0])
@pytest.mark.parametrize("after", [8, 16, 0])
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_crash_while_the_log_is_made_or_resized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, how: str
) -> None:
    directory = tmp_path / "data"
    store = open_at(directory, log_bytes=before * BLOCK_BYTES)
    for seq in range(3):
        log(store, seq)
    if how == "closed":
        store.flush()
        store.close()
    else:
        shutil.copytree(directory, tmp_path / "killed")
        store.close()
        directory = tmp_path / "killed"
    number = 0
    opened: list[Environment] = []
    options = {"log_bytes": after * BLOCK_BYTES}
    for copy in crashes(lambda: opened.append(open_at(directory, **options)), directory, monkeypatch):
        again = open_at(copy, **options)
        assert found(again) == [0, 1, 2]
        log(again, 3)
        again.close()
        again = open_at(copy, **options)
        assert found(again) == [0, 1, 2, 3]
        again.close()
        number += 1
    assert number > 10
    opened[0].close()


def test_a_crash_in_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    opened: list[Environment] = []
    number = 0
    for copy in crashes(lambda: opened.append(open_at(directory)), directory, monkeypatch):
        again = open_at(copy)
        assert found(again) == []
        log(again, 0)
        again.close()
        assert not list(copy.glob("main/*.new"))
        number += 1
    assert number > 10
    opened[0].close()


def test_a_log_that_an_earlier_version_made_halfway(tmp_path: Path) -> None:
    """It died between the size and the header. LMDB says that nothing is missing."""
    directory = tmp_path / "data"
    open_at(directory).close()
    path = directory / "main" / LOG_FILE
    path.write_bytes(bytes(path.stat().st_size))
    store = open_at(directory)
    log(store, 0)
    store.close()
    # LMDB says that records may be missing.
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataDirectoryUnusable, match="is not a log of mqd, or its beginning is damaged"):
        open_at(directory)


def test_what_was_written_never_becomes_less(tmp_path: Path) -> None:
    """Other nodes would take the directory for an old copy."""
    directory, written = tmp_path / "data", 0
    for start, log_bytes in enumerate((1 << 20, 0, 1 << 20, 0, 0, 1 << 16)):
        store = open_at(directory, log_bytes=log_bytes)
        assert store.written > written, start
        assert store.written > store.found >= written
        for seq in range(20):
            before = store.written
            log(store, 100 * start + seq)
            assert store.written > before
        written = store.written
        if start % 2:
            store.flush()
        store.close()
