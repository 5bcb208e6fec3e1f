"""The disk faults of these tests really happen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from persistence.commits.layer import Layer
from persistence.store import LmdbStore
from tests.cluster.disks import SlowDisks, flip, in_store
from tests.cluster.links import Unsupported
from tests.reliability.bodies import body

SYNC_MS = 300
#: Syncs a file in three ways and prints how long each took, in milliseconds.
PROGRAM = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
data = mmap.mmap(fd, 4096)
for sync in (lambda: os.fsync(fd), lambda: os.fdatasync(fd), data.flush):
    began = time.monotonic()
    sync()
    print(int((time.monotonic() - began) * 1000))
"""


def synced_ms(disks: SlowDisks, place: Path) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place / "file")],
        env=os.environ | disks.environment("n1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


def test_syncs_are_slow_while_they_are_told_to(tmp_path: Path) -> None:
    try:
        disks = SlowDisks(tmp_path)
    except Unsupported as why:
        pytest.skip(str(why))
    disks.slow("n1", SYNC_MS)
    assert min(synced_ms(disks, tmp_path)) >= SYNC_MS
    disks.heal("n1")
    assert min(synced_ms(disks, tmp_path)) < SYNC_MS


def test_flips_one_bit_wherever_the_bytes_stand(tmp_path: Path) -> None:
    stored = body(7, 200)
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "data.mdb"
    file.write_bytes(bytes(1000) + stored + bytes(5000) + stored)
    (tmp_path / "empty").touch()
    assert flip(tmp_path, stored, 100) == 2
    changed = bytearray(stored)
    changed[100] ^= 0x10
    assert file.read_bytes() == bytes(1000) + changed + bytes(5000) + changed
    assert flip(tmp_path, stored, 100) == 0


def committed(directory: Path, value: bytes) -> None:
    store = LmdbStore(directory, map_bytes=1 << 24, lasts=True, sync=True, resident_bytes_max=1 << 24)
    layer = Layer()
    layer.metadata[b"key"] = "key", value
    transaction = store.transaction(layer)
    assert not any(transaction.apply())
    transaction.commit()
    transaction.finish()
    store.close()


def test_pages_that_no_commit_has_ended_are_not_in_the_store(tmp_path: Path) -> None:
    assert not in_store(tmp_path, b"a message")
    committed(tmp_path, b"with another one")
    with (tmp_path / "data.mdb").open("ab") as file:
        file.write(b"a message")
    assert not in_store(tmp_path, b"a message")
    committed(tmp_path, b"with a message")
    assert in_store(tmp_path, b"a message")
