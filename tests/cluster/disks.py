"""Faults of a node's disk: syncs that take long, no room, a flipped bit."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from pathlib import Path

import lmdb

from persistence.store import TABLES_MAX, Tables
from tests.cluster.links import Unsupported
from tests.cluster.nodes import Cluster

SOURCE = Path(__file__).with_name("slow_sync.c")
COMPILE_MAX_S = 60
BALLAST = "ballast"
BALLAST_BLOCK = bytes(1 << 16)


class SlowDisks:
    """A switch for each node's syncs. It must exist before the nodes are launched."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Unsupported("without a C compiler syncs can't be made slow")
        self._directory = directory
        library = directory / "slow_sync.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_MAX_S)
        if done.returncode != 0:
            raise Unsupported(f"syncs can't be made slow: {done.stderr.strip()[-500:]}")
        self.library = library

    def _switch(self, name: str) -> Path:
        return self._directory / f"slow-{name}"

    def install(self, cluster: Cluster) -> None:
        cluster.preload(self.library, lambda name: {"SLOW_SYNC_SWITCH": str(self._switch(name))})

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment for a process that is not a node of a cluster."""
        return {"LD_PRELOAD": str(self.library), "SLOW_SYNC_SWITCH": str(self._switch(name))}

    def slow(self, name: str, ms: int) -> None:
        self._say(name, str(ms))

    def hold(self, name: str) -> Path:
        """From now on no sync ends before `heal`, while writes that sync themselves do. Return the file that
        appears as soon as one waits, with the name of its function.
        """
        self._say(name, "hold")
        return Path(f"{self._switch(name)}.held")

    def _say(self, name: str, what: str) -> None:
        whole = self._switch(name).with_suffix(".new")
        whole.write_text(what)
        whole.rename(self._switch(name))

    def heal(self, name: str) -> None:
        self._switch(name).unlink(missing_ok=True)


def fill(place: Path) -> None:
    """Take the room that is left on a file system."""
    with (place / BALLAST).open("ab", buffering=0) as ballast:
        block = BALLAST_BLOCK
        while block:
            try:
                ballast.write(block)
            except OSError:
                block = block[: len(block) // 2]


def empty(place: Path) -> None:
    (place / BALLAST).unlink(missing_ok=True)


def used_bytes(place: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())


def in_store(place: Path, stored: bytes) -> bool:
    """Return whether a committed state of a store below has these bytes. Before that, only the write-ahead
    log may have them.

    The check does not search the raw file: the pages of a transaction are there before they count.
    """
    return any(_in_environment(path.parent, stored) for path in place.rglob("data.mdb"))


def _in_environment(directory: Path, stored: bytes) -> bool:
    try:
        with lmdb.open(str(directory), readonly=True, lock=False, max_dbs=TABLES_MAX) as env:
            tables = [env.open_db(name.encode(), create=False) for name in Tables.__slots__]
            with env.begin(buffers=True) as txn:
                return any(
                    stored in bytes(value)
                    for table in tables
                    for value in txn.cursor(db=table).iternext(keys=False, values=True)
                )
    except lmdb.Error:
        # The file is not there yet, or its node has committed twice meanwhile.
        return False


def flip(place: Path, stored: bytes, at: int, *, name: str = "*") -> int:
    """Flip one bit, `at` bytes into each place of these files where these bytes are stored; return how many
    places there were.
    """
    found = 0
    for path in place.rglob(name):
        if not path.is_file() or not path.stat().st_size:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            start = data.find(stored)
            while start >= 0:
                data[start + at] ^= 0x10
                found += 1
                start = data.find(stored, start + at)
            data.flush()
    return found
