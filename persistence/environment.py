"""The data directory of a node: its lock, its layout version, its identity, its metadata, and the two stores.

lock        held by the running process
main/       LMDB: journal and metadata, synced at each commit; beside it the ballast, and the write-ahead log,
            which small commits are written to first
spill/      LMDB: transient bodies that did not fit in memory, never synced, wiped at start
"""

import fcntl
import logging
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import lmdb
import msgspec

from persistence.commits import layer_codec
from persistence.commits.flush import flush
from persistence.commits.layer import Layer
from persistence.commits.wal import BLOCK_BYTES, LogDamaged, WriteAheadLog, sync_directory
from persistence.errors import (
    CorruptRecord,
    DataDirectoryInUse,
    DataDirectoryUnusable,
    SchemaMismatch,
    StorageFull,
    StoreCorrupt,
)
from persistence.metadata import Metadata, unpack_entry
from persistence.pages.datafile import check_length
from persistence.record import seal, unseal
from persistence.store import BALLAST_FILE, DATA_FILE, MAP_BYTES, LmdbStore
from persistence.transaction import LOGGED, LmdbTransaction

logger = logging.getLogger("mqd.persistence")

SCHEMA_VERSION = 2
LOG_FILE = "log"
LOG_BYTES = 4 * 1024 * 1024
LOG_BYTES_MIN = 4 * BLOCK_BYTES
LOG_COMMIT_BYTES_MAX = 64 * 1024
RESIDENT_BYTES_MAX = 64 * 1024 * 1024
#: Beside the stores: see persistence/delivered_marks.py.
MARKS_FILE = "marks"
STREAMS = "streams"
#: Directories of the other processes of a node, see amqp_server.workers.
WORKERS = "workers"
#: What the node opens in its directory; True: a directory.
_KINDS = (
    ("lock", False),
    (MARKS_FILE, False),
    ("main", True),
    (f"main/{DATA_FILE}", False),
    ("main/lock.mdb", False),
    (f"main/{LOG_FILE}", False),
    (f"main/{BALLAST_FILE}", False),
    ("spill", True),
    (STREAMS, True),
    (WORKERS, True),
)
#: What an empty file system, or a container's volume, may have; number of other files that a warning names.
_HARMLESS, _NAMED_MAX = {"lost+found", ".keep", ".gitkeep"}, 3
_FOUND = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISREG, "a file"),
)


class Environment(Metadata, LmdbStore):
    """Made by `open`. All methods on the loop's thread."""

    directory: Path
    node_id: str
    incarnation: int  # one more at each start
    spill: LmdbStore
    _lock: int
    _log: WriteAheadLog | None = None
    _log_commit_bytes_max: int
    #: The last record of the log that LMDB had at the start.
    _logged: int = 0
    #: Number of the last record that the log or LMDB had at the start.
    _found_records: int = 0
    _schema_version: int
    _sync: bool

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        map_bytes: int = MAP_BYTES,
        schema_version: int = SCHEMA_VERSION,
        resident_bytes_max: int = RESIDENT_BYTES_MAX,
        log_bytes: int = LOG_BYTES,
        log_commit_bytes_max: int = LOG_COMMIT_BYTES_MAX,
        sync: bool = True,
    ) -> Self:
        """Commits of up to `log_commit_bytes_max` are first written to a log of `log_bytes`; 0 means no log.

        Without `sync` nothing waits for the disk: commits survive the end of the process, but not a crash of
        the machine.
        """
        directory = Path(path)
        lock = _lock(directory)
        try:
            _close_to_others(directory)
            remains = _remains(directory)
            if remains and not (directory / "main" / DATA_FILE).exists():
                raise DataDirectoryUnusable(
                    f"the data directory {directory} has no main/{DATA_FILE}, but it has {_named(remains)} of an earlier "
                    f"life: the file with all declarations and most messages is gone. Put it back, or restore a "
                    f"backup. If it is lost, move {directory} away, and the node starts as a new one; in a cluster "
                    f"the other nodes fill it, but the durable classic queues that only it had are lost."
                )
            for name in ("main", "spill"):
                if name == "spill":
                    shutil.rmtree(directory / name, ignore_errors=True)
                (directory / name).mkdir(mode=0o700, exist_ok=True)
                _close_to_others(directory / name)
            check_length(directory / "main" / DATA_FILE, was_used=bool(remains))
            self = cls(
                directory / "main",
                map_bytes=map_bytes,
                lasts=True,
                sync=sync,
                resident_bytes_max=resident_bytes_max,
            )
            self._sync = sync
            self.directory = directory
            self._lock = lock
            self._log_commit_bytes_max = log_commit_bytes_max
            self._schema_version = schema_version
            try:
                self._identify(log_bytes)
                if sync:
                    # From here on, other files say that there is a store.
                    sync_directory(directory / "main")
                self.spill = LmdbStore(
                    directory / "spill",
                    map_bytes=map_bytes,
                    lasts=False,
                    sync=False,
                    resident_bytes_max=resident_bytes_max,
                )
            except BaseException:
                LmdbStore.close(self)
                raise
            if self.map_bytes < map_bytes:
                logger.warning(
                    "%s can become no larger than %d bytes, because this process may have no more addresses (ulimit -v, or "
                    "a kernel with few address bits); then publishers wait as on a full disk",
                    directory / "main",
                    self.map_bytes,
                )
            if sync:
                for made in (directory / "main", directory, directory.parent):
                    sync_directory(made)
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
        """Uncommitted changes are lost."""
        self.spill.close()
        if self._log is not None:
            if not self._log.is_needed:
                with suppress(lmdb.Error, RuntimeError, StoreCorrupt):
                    self._note(schema_version=b"%d" % self._schema_version)
            self._log.close()
        super().close()
        os.close(self._lock)

    def flush(self) -> None:
        """Commit at once and wait for it. Only while no commit task runs."""
        flush(self)

    # --- the write-ahead log

    def log_record(self, layer: Layer) -> Callable[[], None] | None:
        log = self._log
        if log is None or not layer_codec.is_small(layer, self._log_commit_bytes_max):
            return None
        if layer.appended:
            try:
                self.check_room(layer)
            except StorageFull:
                return None
        content = layer_codec.encode(layer)
        if len(content) > 2 * self._log_commit_bytes_max:
            return None
        place = log.reserve(len(content))
        if place is None:
            return None
        layer.sequence, first = place
        return partial(log.write, layer.sequence, first, content)

    @property
    def log_is_half_full(self) -> bool:
        return self._log is not None and self._log.is_half_full

    def log_stored(self, sequence: int) -> None:
        if self._log is not None:
            self._log.stored(sequence)

    @property
    def written(self) -> int:
        """Number of transactions and of records of the log since the store was made. They are on the disk.

        It never falls, also when the node is started without a log: other nodes would take the directory for
        an old copy.
        """
        return super().written + (self._logged if self._log is None else self._log.synced)

    @property
    def found(self) -> int:
        """What `written` was before this process wrote anything: at least as much as it ever was, unless the
        directory is a copy that was made before.
        """
        return self._found + self._found_records

    def _open_log(self, size: int, logged: bool) -> None:
        """Open the log, and store records that only it has in LMDB. `logged`: LMDB's note says that there may
        be such records.
        """
        path = self.directory / "main" / LOG_FILE
        self._logged = self._found_records = self._logged_sequence()
        size = size and max(size - size % BLOCK_BYTES, LOG_BYTES_MIN)
        if logged and not path.exists():
            raise DataDirectoryUnusable(
                f"the data directory {self.directory} lacks the file {path}, which holds the last confirmed "
                f"messages. Restore it; if it is lost, create an empty file (: > {path}), which loses those "
                "messages."
            )
        if logged and not path.stat().st_size:
            logger.critical(
                "%s is empty: messages that were confirmed just before the node ended are lost", path
            )
        if not size and not logged:
            return
        log = WriteAheadLog.open(path, size or LOG_BYTES, sync=self._sync, needed=logged)
        try:
            self._replay(log, path)
            self._found_records = log.sequence
            self._logged = self._logged_sequence()
        except BaseException:
            log.close()
            raise
        if log.size != size:
            log.close()
            # From here on it may be gone.
            self._note(schema_version=b"%d" % self._schema_version)
            path.unlink()
            if not size:
                return
            log = WriteAheadLog.open(path, size, sync=self._sync)
            log.sequence = log.synced = self._logged
        self._log = log

    def _logged_sequence(self) -> int:
        """Number of the last record of the log that LMDB has."""
        found = self.snapshot().get(LOGGED, db=self.tables.about)
        return 0 if found is None else int(unseal(LOGGED, found, lambda: "the place in the log"))

    def _replay(self, log: WriteAheadLog, path: Path) -> None:
        layer = Layer()
        try:
            for content in log.recover(self._logged_sequence()):
                layer.absorb(layer_codec.decode(content))
        except LogDamaged as error:
            raise DataDirectoryUnusable(
                f"the log {path} is damaged: {error}. It holds the last confirmed messages. Restore the data "
                f"directory from a backup, or empty the log (: > {path}), which loses those messages."
            ) from error
        except (layer_codec.UnknownVersion, msgspec.DecodeError) as error:
            raise SchemaMismatch(
                f"the log {path} was written by a later version of the program ({error}). Start that version."
            ) from error
        if log.sequence == self._logged_sequence():
            return
        # Even if these records are empty, because the next record has the next number.
        layer.sequence = log.sequence
        while True:
            transaction = LmdbTransaction(self, layer)
            try:
                for _ in transaction.apply():
                    pass
                transaction.commit()
            except StorageFull as error:
                transaction.abort()
                if not self.enlarge():
                    raise DataDirectoryUnusable(
                        f"the data directory {self.directory} has no room for the contents of its log: {error}. Free "
                        f"{log.size} bytes of its disk."
                    ) from error
            else:
                transaction.finish()
                return

    # --- notes about the directory

    def _identify(self, log_bytes: int) -> None:
        try:
            with self.guard:
                self._read_identity(log_bytes)
        except (CorruptRecord, UnicodeDecodeError) as error:
            raise self.guard.damaged(error) from error

    def _read_identity(self, log_bytes: int) -> None:
        about = self.tables.about
        found = self.snapshot().get(b"schema_version", db=about)
        layout = None if found is None else bytes(found)
        usual = b"%d" % self._schema_version
        # Set while the log may have records that LMDB lacks: a version without a log would lose them.
        logged = b"%d" % (self._schema_version + 1)
        if layout not in (None, usual, logged):
            raise SchemaMismatch(
                f"the data directory {self.directory} has layout {bytes(found or b'').decode(errors='replace')}, "
                f"this program reads layout {self._schema_version}. Start the version that wrote it, "
                f"or choose an empty directory with --data-dir."
            )
        node_id = self.snapshot().get(b"node_id", db=about)
        before = self.snapshot().get(b"incarnation", db=about)
        self.node_id = str(uuid.uuid4()) if layout is None else bytes(node_id or b"").decode()
        self.incarnation = 1
        if before is not None:
            self.incarnation += int(unseal(b"incarnation", before, lambda: "the incarnation"))
        self._open_log(log_bytes, layout == logged)
        self._note(
            schema_version=usual if self._log is None else logged,
            node_id=self.node_id.encode(),
            incarnation=seal(b"incarnation", b"%d" % self.incarnation),
        )

    def _note(self, **values: bytes) -> None:
        """Durable at once. A full map becomes a little larger for this: a node must be able to start, so that
        consumers can empty it.
        """
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
        """Fatal: without its record a queue's messages would be dropped, and a default user would be created
        again.
        """
        try:
            return unpack_entry(stored, entry)
        except CorruptRecord as error:
            raise self.guard.damaged(error) from error


def is_in_use(directory: Path) -> bool:
    """Return whether a process runs on this data directory."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _lock(directory: Path) -> int:
    if os.path.lexists(directory) and not directory.is_dir():
        found = "a link that leads nowhere" if directory.is_symlink() and not directory.exists() else "a file"
        raise DataDirectoryUnusable(
            f"the data directory {directory} is {found}, not a directory. Give --data-dir the directory that the "
            "node's data goes to; it is made if it is missing."
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_kinds(directory)
        _warn_of_strangers(directory)
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


def _warn_of_strangers(directory: Path) -> None:
    """Warn of an operator's likely mistake: a new node in a directory that something else uses."""
    own = {name.partition("/")[0] for name, _ in _KINDS}
    found = sorted(entry.name for entry in os.scandir(directory) if entry.name not in own | _HARMLESS)
    if not found or (directory / "main").exists():
        return
    more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    logger.warning(
        "the data directory %s is new to mqd, but not empty: it has %s%s. Is it the right one (--data-dir)? They stay "
        "as they are",
        *(directory, ", ".join(map(repr, found[:_NAMED_MAX])), more),
    )


def _remains(directory: Path) -> list[str]:
    """Return the names of files that are made after the first transaction of the store."""
    found = [
        name for name in (f"main/{LOG_FILE}", MARKS_FILE, f"spill/{DATA_FILE}") if (directory / name).exists()
    ]
    streams = directory / STREAMS
    if streams.is_dir():
        found += sorted(f"{STREAMS}/{each.name}" for each in streams.iterdir() if any(each.glob("*")))
    return found


def _named(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _check_kinds(directory: Path) -> None:
    """Check that everything in the directory that the node opens is a file or a directory of its own: a link
    would be followed, and the files that it names overwritten or deleted; a FIFO would be waited for.
    """
    streams = directory / STREAMS
    kinds = [*_KINDS]
    if streams.is_dir() and not streams.is_symlink():
        with os.scandir(streams) as entries:
            others = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        kinds += [(f"{STREAMS}/{name}", True) for name in others if not (streams / name).is_file()]
        kinds += [(f"{STREAMS}/{name}", True) for name in others if (streams / name).is_symlink()]
    for name, is_directory in kinds:
        try:
            mode = os.lstat(directory / name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISDIR(mode) if is_directory else stat.S_ISREG(mode)):
            found = next((what for test, what in _FOUND if test(mode)), "something else")
            raise DataDirectoryUnusable(
                f"the data directory {directory} can't be used: {name} in it is {found}, not a "
                f"{'directory' if is_directory else 'file'}. Find out what created it, and remove it."
            )


def _close_to_others(directory: Path) -> None:
    """Remove other users' right to write. Raises DataDirectoryUnusable if this process may not do that."""
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
        "others could write to the data directory %s (mode %04o); its mode is %04o now",
        directory,
        mode,
        mode & ~stat.S_IRWXO,
    )
