"""The data directory of a node: its lock, its layout version, its identity, its metadata, and the two stores.

lock        held by the running process
main/       LMDB: journal and metadata, synced at each commit; beside it the ballast
spill/      LMDB: transient bodies that did not fit in memory, never synced, wiped at start
"""

import fcntl
import logging
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import lmdb

from persistence.datafile import check_length
from persistence.errors import CorruptRecord, DataDirectoryInUse, DataDirectoryUnusable, SchemaMismatch
from persistence.flush import flush
from persistence.metadata import Metadata, unpack_entry
from persistence.record import seal, unseal
from persistence.store import DATA_FILE, LmdbStore

logger = logging.getLogger("mqd.persistence")

SCHEMA_VERSION = 2
RESIDENT_BYTES_MAX = 64 * 1024 * 1024
#: Beside the stores: see persistence/marks.py.
MARKS_FILE = "marks"


class Environment(Metadata, LmdbStore):
    """Made by `open`. All methods on the loop's thread."""

    directory: Path
    node_id: str
    incarnation: int  # one more at each start
    spill: LmdbStore
    _lock: int

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        map_bytes: int = 1 << 40,
        schema_version: int = SCHEMA_VERSION,
        resident_bytes_max: int = RESIDENT_BYTES_MAX,
    ) -> Self:
        directory = Path(path)
        lock = _lock(directory)
        try:
            _close_to_others(directory)
            for name in ("main", "spill"):
                if name == "spill":
                    shutil.rmtree(directory / name, ignore_errors=True)
                (directory / name).mkdir(mode=0o700, exist_ok=True)
                _close_to_others(directory / name)
            # The marks are made after the first transaction.
            check_length(directory / "main" / DATA_FILE, was_used=(directory / MARKS_FILE).exists())
            self = cls(
                directory / "main", map_bytes=map_bytes, sync=True, resident_bytes_max=resident_bytes_max
            )
            self.directory = directory
            self._lock = lock
            try:
                self._identify(schema_version)
                self.spill = LmdbStore(
                    directory / "spill",
                    map_bytes=map_bytes,
                    sync=False,
                    resident_bytes_max=resident_bytes_max,
                )
            except BaseException:
                LmdbStore.close(self)
                raise
            for made in (directory / "main", directory, directory.parent):
                _sync_directory(made)
        except (OSError, lmdb.Error) as error:
            os.close(lock)
            raise DataDirectoryUnusable(
                f"the data directory {directory} can't be opened: {error}. "
                f"Check its owner, its free space and its disk, or choose another with --data-dir."
            ) from error
        except BaseException:
            os.close(lock)
            raise
        return self

    def close(self) -> None:
        """What was not committed is gone."""
        self.spill.close()
        super().close()
        os.close(self._lock)

    def flush(self) -> None:
        """Commit at once and wait for it. Only while no commit task runs."""
        flush(self)

    def _identify(self, schema_version: int) -> None:
        try:
            with self.guard:
                self._read_identity(schema_version)
        except (CorruptRecord, UnicodeDecodeError) as error:
            raise self.guard.damaged(error) from error

    def _read_identity(self, schema_version: int) -> None:
        about = self.tables.about
        found = self.snapshot().get(b"schema_version", db=about)
        if found is None:
            self.node_id = str(uuid.uuid4())
            self.incarnation = 1
            self._note(
                schema_version=b"%d" % schema_version,
                node_id=self.node_id.encode(),
                incarnation=seal(b"incarnation", b"1"),
            )
            return
        if bytes(found) != b"%d" % schema_version:
            raise SchemaMismatch(
                f"the data directory {self.directory} has layout {bytes(found).decode(errors='replace')}, "
                f"this program reads layout {schema_version}. Start the version that wrote it, "
                f"or choose an empty directory with --data-dir."
            )
        node_id = self.snapshot().get(b"node_id", db=about)
        self.node_id = bytes(node_id or b"").decode()
        incarnation = self.snapshot().get(b"incarnation", db=about)
        before = (
            b"0" if incarnation is None else unseal(b"incarnation", incarnation, lambda: "the incarnation")
        )
        self.incarnation = int(before) + 1
        self._note(incarnation=seal(b"incarnation", b"%d" % self.incarnation))

    def _note(self, **values: bytes) -> None:
        """Durable at once. A full map gets a little larger for it: a node must start to be drained."""
        while True:
            txn = self.begin_write()
            try:
                for name, value in values.items():
                    txn.put(name.encode(), value, db=self.tables.about)
                txn.commit()
            except lmdb.MapFullError:
                txn.abort()
                self.end_write()
                if not self.enlarge():
                    raise
            else:
                self.end_write()
                return

    def _fetch(self, stored: bytes) -> bytes | None:
        with self.guard:
            entry = self.snapshot().get(stored, db=self.tables.metadata)
        return None if entry is None else self._unpack_entry(stored, entry)[1]

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, tuple[str, bytes]]]:
        with self.guard, self.snapshot().cursor(db=self.tables.metadata) as cursor:
            more = cursor.set_range(prefix)
            while more:
                stored = bytes(cursor.key())
                if not stored.startswith(prefix):
                    return
                yield stored, self._unpack_entry(stored, cursor.value())
                more = cursor.next()

    def _unpack_entry(self, stored: bytes, entry: memoryview) -> tuple[str, bytes]:
        """Without the record of a queue its messages would be dropped, without that of a user it would be made anew."""
        try:
            return unpack_entry(stored, entry)
        except CorruptRecord as error:
            raise self.guard.damaged(error) from error


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("lock", MARKS_FILE):
            # What such a link names would be overwritten.
            if (directory / name).is_symlink():
                raise DataDirectoryUnusable(
                    f"the data directory {directory} can't be used: {name} in it is a symbolic link. "
                    f"Find out who made it, and remove it."
                )
        lock = os.open(
            directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
    except OSError as error:
        raise DataDirectoryUnusable(
            f"the data directory {directory} can't be used: {error.strerror}. "
            f"Make it writable for this user or choose another with --data-dir."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise DataDirectoryInUse(
            f"the data directory {directory} is in use by process {owner or 'unknown'}. "
            f"Stop that process or choose another directory with --data-dir."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _close_to_others(directory: Path) -> None:
    """Take the right to write from others. Raises DataDirectoryUnusable where that is not ours to do."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & stat.S_IWOTH:
        return
    advice = f"Give the node a directory of its own (--data-dir), or chmod o= {directory}"
    if mode & stat.S_ISVTX:
        raise DataDirectoryUnusable(
            f"the data directory {directory} is shared with others (mode {mode:04o}). {advice}."
        )
    strangers = [
        entry.name
        for entry in os.scandir(directory)
        if entry.stat(follow_symlinks=False).st_uid != os.geteuid()
    ]
    if strangers:
        raise DataDirectoryUnusable(
            f"others may write to the data directory {directory} (mode {mode:04o}), and did: {strangers[0]} in it "
            f"is another user's. {advice} when you have looked at it."
        )
    try:
        directory.chmod(mode & ~stat.S_IRWXO)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"others may write to the data directory {directory} (mode {mode:04o}): {error.strerror}. {advice}."
        ) from error
    logger.warning(
        "others could write to the data directory %s (mode %04o); it has mode %04o now",
        directory,
        mode,
        mode & ~stat.S_IRWXO,
    )


def _sync_directory(directory: Path) -> None:
    """New files survive a power failure only if their directory entry is synced, too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
