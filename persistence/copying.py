"""A copy of a data directory, whether the node runs or not.

LMDB's file is consistent at each moment, as after kill -9, but not over a period: its writer reuses pages
that the newest state no longer needs, and does not know of a program that reads the file from its beginning
to its end. So the process is frozen while its files are copied. That is short if the file system can share
blocks between files (XFS, btrfs), and bounded otherwise.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import lmdb

from persistence.environment import LOG_FILE, MARKS_FILE, STREAMS, WORKERS
from persistence.errors import PersistenceError, StoreCorrupt
from persistence.metadata import table_prefix
from persistence.pages.damage_guard import WRITE_ERRORS
from persistence.pages.datafile import check_length
from persistence.store import DATA_FILE, TABLES_MAX

#: ioctl of Linux: share the blocks of another file.
FICLONE = 0x40049409
#: Interval between two checks whether a process stands still, s.
LOOK_S = 0.001
MAIN = "main"
SEGMENT = ".segment"


class CannotCopy(PersistenceError):
    """The text says why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Copied:
    #: Time that the process stood still; None if none ran on the directory.
    pid: int | None
    frozen_s: float
    copied_bytes: int
    #: Records of each of LMDB's tables.
    entries: dict[str, int]
    #: True for the directory of a node of a cluster.
    clustered: bool


def copy_directory(source: Path, target: Path, *, freeze_s_max: float, cluster_table: str) -> Copied:
    """Raises CannotCopy, and leaves nothing behind then."""
    if target.exists():
        raise CannotCopy(f"{target} exists already: give the name of a new directory")
    if not (source / MAIN / DATA_FILE).exists():
        raise CannotCopy(f"{source} is not a data directory of mqd: it has no {MAIN}/{DATA_FILE}")
    if (source / WORKERS).is_dir():
        raise CannotCopy(
            f"{source} is the data directory of a node with several workers (--workers), of which no copy can be made "
            "while it runs: stop the node, and copy the whole directory, for example with cp -a"
        )
    target.mkdir(mode=0o700, parents=True)
    try:
        (target / MAIN).mkdir(mode=0o700)
        # Most of a stream never changes again, so it is copied before; while the node stands still, only its
        # new part is copied.
        _copy_streams(source, target)
        with _held(source) as pid:
            began = time.monotonic()
            if pid is None:
                _copy_files(source, target)
            else:
                with _frozen(pid, freeze_s_max):
                    _copy_files(source, target)
            frozen_s = time.monotonic() - began if pid is not None else 0.0
        _sync(target)
        entries, clustered = _read_through(target, cluster_table)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return Copied(pid, frozen_s, size, entries, clustered)


@contextmanager
def _held(directory: Path) -> Iterator[int | None]:
    """The process that runs on the directory. If it is None, no process can
    start on the directory meanwhile.
    """
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _owner(directory, os.pread(lock, 32, 0).decode("ascii", "replace").strip())
        else:
            yield None
    finally:
        os.close(lock)


def _owner(directory: Path, said: str) -> int:
    """The process that has the lock file open. Its number in the file may be that of another process here:
    containers count for themselves.
    """
    lock = (directory / "lock").stat()
    others = (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())
    for number in sorted(others, key=lambda name: name != said):
        if _has_open(number, lock):
            return int(number)
    raise CannotCopy(
        f"a process that is not visible here uses {directory} (it calls itself {said}): run this as "
        "the same user or as root, on the same machine"
    )


def _has_open(number: str, file: os.stat_result) -> bool:
    with suppress(PermissionError, FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{number}/fd"):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{number}/fd/{name}"), file):
                    return True
    return False


@contextmanager
def _frozen(pid: int, seconds: float) -> Iterator[None]:
    """SIGSTOP, and SIGCONT in any case: a child sends it if this process is gone or takes too long."""
    if pid == 1:
        raise CannotCopy(
            "the node is the first process of its container, so no process in the container can pause it: "
            "run this outside of the container, or start the container with an init (docker run --init)"
        )
    deadline = time.monotonic() + seconds
    waker = subprocess.Popen(
        ["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pid}"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        os.kill(pid, signal.SIGSTOP)
        while not _stands_still(pid):
            if time.monotonic() > deadline:
                raise CannotCopy(f"process {pid} did not pause within {seconds} s")
            time.sleep(LOOK_S)
        yield
        # The child sends its signal a moment before it ends, so only the process itself says whether it
        # stood still to the end.
        stood_still = _end(waker) != 0 and _stands_still(pid)
        if not stood_still and time.monotonic() < deadline:
            raise CannotCopy(f"another program resumed process {pid} while its files were copied: try again")
        if not stood_still:
            raise CannotCopy(
                f"copying takes longer than {seconds} s, the limit for a pause of the node. Take a snapshot of "
                "the file system instead, or stop the node and copy its directory then"
            )
    finally:
        os.kill(pid, signal.SIGCONT)
        _end(waker)


def _end(waker: subprocess.Popen[bytes]) -> int:
    """Its status: 0 if its time was over before this call."""
    if waker.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(waker.pid, signal.SIGKILL)
    return waker.wait()


def _stands_still(pid: int) -> bool:
    """True if all its threads stand still, that of the commit, too."""
    states = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return all(state == "T" for state in states)


def _copy_files(source: Path, target: Path) -> None:
    """Copy all files that last: not the lock, the ballast, and files that are wiped at each start."""
    _copy_streams(source, target)
    _copy(source / MAIN / DATA_FILE, target / MAIN / DATA_FILE)
    for name in (Path(MAIN) / LOG_FILE, Path(MARKS_FILE)):
        if (source / name).exists():
            _copy(source / name, target / name)


def _copy_streams(source: Path, target: Path) -> None:
    """Copy the parts that the target lacks. Segments only grow; files that no longer exist were deleted."""
    before = {path.relative_to(target) for path in (target / STREAMS).glob("*/*")}
    for path in sorted((source / STREAMS).glob("*/*")):
        copy = target / path.relative_to(source)
        before.discard(path.relative_to(source))
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            have = copy.stat().st_size if copy.exists() and path.suffix == SEGMENT else 0
            if not copy.exists() or have != size:
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _copy_from(path, copy, have if have < size else 0)
    for gone in before:
        (target / gone).unlink()


def _copy_from(source: Path, target: Path, offset: int) -> None:
    with source.open("rb") as from_file, target.open("r+b" if target.exists() else "xb") as to_file:
        os.fchmod(to_file.fileno(), 0o600)
        size = os.fstat(from_file.fileno()).st_size
        to_file.truncate(offset)
        to_file.seek(offset)
        while offset < size:
            sent = os.sendfile(to_file.fileno(), from_file.fileno(), offset, size - offset)
            if not sent:
                break
            offset += sent


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as from_file, target.open("xb") as to_file:
        os.fchmod(to_file.fileno(), 0o600)
        try:
            fcntl.ioctl(to_file.fileno(), FICLONE, from_file.fileno())
        except OSError:
            offset, size = 0, os.fstat(from_file.fileno()).st_size
            while offset < size:
                offset += os.sendfile(to_file.fileno(), from_file.fileno(), offset, size - offset)


def _sync(target: Path) -> None:
    for path in (*target.rglob("*"), target, target.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_through(target: Path, cluster_table: str) -> tuple[dict[str, int], bool]:
    """Every key of every table. Records have checksums of their own, which a node looks at when it reads
    them.
    """
    counts: dict[str, int] = {}
    try:
        check_length(target / MAIN / DATA_FILE, was_used=True)
        with lmdb.open(
            str(target / MAIN), readonly=True, lock=False, max_dbs=TABLES_MAX, readahead=False
        ) as env:
            with env.begin() as txn:
                names = [bytes(name) for name in txn.cursor().iternext(values=False)]
            for name in names:
                table = env.open_db(name, create=False)
                with env.begin(db=table) as txn, txn.cursor() as cursor:
                    counts[name.decode()] = sum(1 for _ in cursor.iternext(values=False))
            table = env.open_db(b"metadata", create=False)
            prefix = table_prefix(cluster_table)
            with env.begin(db=table) as txn, txn.cursor() as cursor:
                clustered = bool(cursor.set_range(prefix)) and bytes(cursor.key()).startswith(prefix)
    except (StoreCorrupt, *WRITE_ERRORS) as error:
        raise CannotCopy(f"the copy cannot be read: {error}") from error
    return counts, clustered
