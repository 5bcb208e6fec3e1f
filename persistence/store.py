"""A store in LMDB: its tables, its one writer, its reads.

LMDB runs without its own lock file and reader table (`lock=False`): the data directory is locked as a whole,
and the mutex of the default mode would bind a write transaction to the thread that began it, while ours is
filled on the loop's thread and committed in a worker. This module replaces the guards that LMDB then lacks:

- There is one writer: `begin_write` refuses a second one.
- A writer reuses pages that no reader of the last two states can see, and does not know of older readers. So
  there is at most one read transaction, the snapshot. It is begun on the loop's thread before a write
  transaction begins, serves all reads while that one runs, and is given up before the next one. A reader
  never looks for the newest state while a commit is writing it.
- So a thread has no read transaction. It reads ahead for the loop directly from the file: see
  persistence/pages/page_reader.py.
- No caller keeps views of mapped pages: reads copy, and `recover` must be exhausted before the first write.
"""

import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lmdb

from persistence import settled
from persistence.commits.layer import Layer, Pending
from persistence.errors import CommitFailed, CorruptRecord, PersistenceError, StorageFull, StoreCorrupt
from persistence.own_process import PAGE_BYTES
from persistence.pages import page_release
from persistence.pages.damage_guard import DAMAGE, WRITE_ERRORS, Guard
from persistence.pages.page_reader import PageReader
from persistence.pages.page_release import FAULT_BYTES, FOLIO_BYTES
from persistence.pages.pages import KeyRange
from persistence.record import (
    BODY_KEY,
    CHUNKS_MAX,
    COUNT_MAX,
    KEY,
    POSITION,
    QUEUE,
    SEQ_MAX,
    Fetch,
    Record,
    RecoveredQueue,
    RecoveredRecord,
    span_of,
    unpack,
    unseal,
)
from persistence.replica_logs.tables import GroupTables, owners
from persistence.reserved_space import Ballast, has_room
from persistence.transaction import Erasures, LmdbTransaction, unpack_mask

log = logging.getLogger("mqd.persistence")

DATA_FILE = "data.mdb"
BALLAST_FILE = "ballast"
TABLES_MAX = 16
STAT_BLOCK_BYTES = 512  # the unit of stat, whatever the size of the file system's blocks
# Addresses may be few: by `ulimit -v`, or on a 64-bit ARM kernel with addresses of 39 bits.
MAP_BYTES, MAP_BYTES_MIN = 1 << 40, 1 << 30
ENLARGE_BYTES = 4 * 1024 * 1024
ENLARGE_BYTES_MAX = 64 * 1024 * 1024
DISK_SLACK_BYTES = 16 * 1024 * 1024
# Room on the disk that appends leave for deletions, which need pages before they free any: without it, a disk
# filled to its last page would stay full for ever.
RESERVE_BYTES = 4 * 1024 * 1024
# The free room is checked again after so many appended bytes, and once a second.
LOOK_BYTES = 16 * 1024 * 1024
# `info` and `stat` intern these names in each call unless they live here: the interpreter's table of interned
# strings would grow by a megabyte.
INFO_NAMES = ("map_addr", "map_size", "last_pgno", "last_txnid", "max_readers", "num_readers")
STAT_NAMES = ("psize", "depth", "branch_pages", "leaf_pages", "overflow_pages", "entries")


@dataclass(frozen=True, slots=True)
class Tables:
    about: "lmdb._Database"
    metadata: "lmdb._Database"
    records: "lmdb._Database"
    bodies: "lmdb._Database"
    settled: "lmdb._Database"
    erasures: "lmdb._Database"
    annotations: "lmdb._Database"
    states: "lmdb._Database"
    entries: "lmdb._Database"
    entry_chunks: "lmdb._Database"
    entry_erasures: "lmdb._Database"
    snapshots: "lmdb._Database"
    snapshot_chunks: "lmdb._Database"
    hard: "lmdb._Database"

    @classmethod
    def open(cls, env: lmdb.Environment) -> "Tables":
        # All in one transaction: a sync for each table would take most of the time of a first start.
        with env.begin(write=True) as txn:
            return cls(*(env.open_db(name.encode(), txn=txn) for name in cls.__slots__))


class LmdbStore:
    """Implements ports.Store. All methods on the loop's thread."""

    def __init__(
        self, directory: Path, *, map_bytes: int, lasts: bool, sync: bool, resident_bytes_max: int
    ) -> None:
        """`lasts`: the store must survive the end of the process. `sync`: also a crash of the machine."""
        self.pending = Pending()
        self.annotated: set[int] = set()  # queues that may have annotations on disk
        self.spanned: set[int] = set()  # those that may have some about several messages
        self.erasures: Erasures = {}
        self._data_file = directory / DATA_FILE
        #: Surrounds all reads of LMDB.
        self.guard = Guard(self._data_file, lasts=lasts)
        self._resident_bytes_max = resident_bytes_max
        self._enlarged_bytes = 0
        self._touched_bytes = 0
        # Deletions of a store that does not last need no room of their own.
        self._ballast = Ballast(directory / BALLAST_FILE) if lasts else None
        self._snapshot: lmdb.Transaction[memoryview] | None = None
        self._writing = False
        self._written: int | None = None
        #: Free bytes of the disk above the room for deletions at the last check, minus the bytes appended
        #: since.
        self._room_bytes = 0
        self._recovering = 0
        with self.guard:
            self._env, self._map_bytes = _mapped(directory, map_bytes, sync)
            #: Number of transactions that it had when it was opened: opening makes some.
            self._found = int(self._env.info()["last_txnid"])
            self.tables = Tables.open(self._env)
            self._load()
            self.groups = GroupTables(self)
        self.reader = PageReader(self._data_file)

    def close(self) -> None:
        self.reader.close()
        self._drop_snapshot()
        self._env.close()

    # --- the one writer

    def transaction(self, layer: Layer) -> LmdbTransaction:
        """Raises StorageFull, as the transaction may."""
        if layer.appended:
            self.check_room(layer)
        return LmdbTransaction(self, layer)

    def check_room(self, layer: Layer) -> None:
        """Raise StorageFull if this would use the room for deletions."""
        wanted = _room_for(layer.bytes, layer.appended)
        self._room_bytes -= wanted
        if self._room_bytes > 0:
            return
        free = self._disk_free()
        # Other programs write, too: with less than this to spare, check the disk each time.
        self._room_bytes = min(free - wanted - RESERVE_BYTES - DISK_SLACK_BYTES, LOOK_BYTES)
        if free >= wanted + RESERVE_BYTES:
            return
        # A layer that grew while it did not fit may have settled all that it appended.
        wanted = min(wanted, _room_for(*layer.lasting()))
        if wanted and free + self._unused_bytes() < wanted + RESERVE_BYTES:
            raise StorageFull(f"{self._data_file}: the remaining disk space is reserved for deletions")

    def _unused_bytes(self) -> int:
        """Bytes of the data file on the disk that no page uses; some free
        pages were perhaps never written.
        """
        allocated = os.stat(self._data_file).st_blocks * STAT_BLOCK_BYTES
        return max(0, allocated - self._pages_used() * int(self._env.stat()["psize"]))

    def begin_write(self) -> "lmdb.Transaction[memoryview]":
        if self._writing:
            raise RuntimeError("a write transaction runs already")
        if self._recovering:
            raise RuntimeError("a commit while recovered records are still being looked at")
        self._drop_snapshot()
        self.snapshot()
        try:
            txn = self._env.begin(write=True, buffers=True)
        except WRITE_ERRORS as error:
            raise self.failure(error, 0) from error
        self._writing = True
        return txn

    def end_write(self) -> None:
        self._writing = False
        self._written = None
        self._drop_snapshot()

    def log_record(self, layer: Layer) -> Callable[[], None] | None:
        return None

    @property
    def log_is_half_full(self) -> bool:
        return False

    def log_stored(self, sequence: int) -> None:
        """The transaction with all records of the write-ahead log up to this one is durable."""

    def has_erasures(self) -> bool:
        return bool(self.erasures or self.groups.erasures)

    def failure(self, error: Exception, wanted_bytes: int) -> PersistenceError | StoreCorrupt:
        """Return the exception to raise for a write that failed with one of WRITE_ERRORS."""
        if isinstance(error, DAMAGE):
            return self.guard.damaged(error)
        if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or _says(error, errno.EDQUOT):
            return StorageFull(f"{self._data_file}: {error}")
        # LMDB reports a partial write as EIO; how much a quota leaves only an attempt tells.
        needed = wanted_bytes + DISK_SLACK_BYTES
        if _says(error, errno.EIO) and (
            self._disk_free() < needed or not has_room(self._data_file.parent, needed)
        ):
            return StorageFull(f"{self._data_file}: {error}; the disk is nearly full")
        return CommitFailed(f"{self._data_file}: {error}")

    def enlarge(self) -> bool:
        if self._ballast is not None and self._ballast.give_up():
            return True
        if self._writing or self._enlarged_bytes >= ENLARGE_BYTES_MAX:
            return False
        self._drop_snapshot()
        self._enlarged_bytes += ENLARGE_BYTES
        self._env.set_mapsize(self._map_bytes + self._enlarged_bytes)
        self.reader.find_map()
        return True

    @property
    def written(self) -> int:
        """Number of transactions since the store was made. They are on the disk if the store is synced."""
        if self._written is None:
            self._written = int(self._env.info()["last_txnid"])
        return self._written

    @property
    def map_bytes(self) -> int:
        """How large the data file may become."""
        return self._map_bytes

    def used_bytes(self) -> int:
        """The size of the data file; pages within it that are free are used again."""
        info = self._env.info()
        return (info["last_pgno"] + 1) * self._env.stat()["psize"]

    def free_bytes(self) -> int:
        """Pages within the data file that are free: it never gets smaller, but
        they are used before it grows.
        """
        if self._snapshot is None and self._writing:
            return 0
        return max(0, self.used_bytes() - self._pages_used() * int(self._env.stat()["psize"]))

    def _pages_used(self) -> int:
        txn = self.snapshot()
        with self.guard:
            stats = [txn.stat(getattr(self.tables, name)) for name in Tables.__slots__]
        return sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)

    def tend(self) -> Callable[[], None] | None:
        self.guard.check()
        self._room_bytes = 0
        self._give_pages_back()
        if self._ballast is None or self._ballast.held:
            return None
        return self._ballast.restore

    def _give_pages_back(self) -> None:
        if page_release.resident_shared_bytes() > self._resident_bytes_max:
            page_release.drop_mapped_pages(self._data_file)

    def touched(self, size: int) -> None:
        """Count bytes read from the map: at full speed one second reads more than may stay resident."""
        self._touched_bytes += size
        if self._touched_bytes >= self._resident_bytes_max // 4:
            self._touched_bytes = 0
            self._give_pages_back()

    def _disk_free(self) -> int:
        disk = os.statvfs(self._data_file)
        return disk.f_bavail * disk.f_frsize

    # --- reads

    def snapshot(self) -> "lmdb.Transaction[memoryview]":
        if self._snapshot is None:
            if self._writing:
                raise RuntimeError("a read transaction can't begin while a commit runs")
            with self.guard:
                self._snapshot = self._env.begin(buffers=True)
        return self._snapshot

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abort()
            self._snapshot = None

    def records(self, queue_id: int, first_seq: int, last_seq: int) -> list[Record]:
        found = []
        txn = self.snapshot()
        fetch = partial(txn.get, db=self.tables.bodies)
        with self.guard, txn.cursor(db=self.tables.records) as cursor:
            _seek_overlapping(cursor, queue_id, first_seq)
            for key, value in _walk(cursor, queue_id, last_seq):
                _, first, count, _ = KEY.unpack(key)
                if not self._erased(queue_id, first, count):
                    found.append(_record(first, count, key, value, fetch))
        self.touched(sum(len(record.payload) + FAULT_BYTES for record in found))
        return found

    def warm(self, queue_id: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        ranges = []
        for first, last in spans:
            low, high = KEY.pack(queue_id, first, 0, 0), KEY.pack(queue_id, last, COUNT_MAX, CHUNKS_MAX)
            ranges.append(KeyRange("records", low, high))
            low, high = BODY_KEY.pack(queue_id, first, 0), BODY_KEY.pack(queue_id, last, CHUNKS_MAX)
            ranges.append(KeyRange("bodies", low, high))
        return self.reader.warm(ranges, done)

    def warm_queue(self, queue_id: int, bodies_from: int, done: Callable[[], None]) -> bool:
        low, high = QUEUE.pack(queue_id), QUEUE.pack(queue_id + 1)
        ranges = [KeyRange(table, low, high) for table in ("records", "settled", "annotations", "states")]
        ranges.append(KeyRange("bodies", BODY_KEY.pack(queue_id, bodies_from, 0), high))
        return self.reader.warm(ranges, done)

    def mask(self, txn: "lmdb.Transaction[memoryview]", queue_id: int, first_seq: int, count: int) -> int:
        """The settled messages of a record, one bit each."""
        position = POSITION.pack(queue_id, first_seq)
        return unpack_mask(position, txn.get(position, db=self.tables.settled), count)

    def _erased(self, queue_id: int, first_seq: int, count: int) -> bool:
        """Return whether the record is on disk only because its deletion is not finished."""
        spans = self.erasures.get(queue_id)
        return spans is not None and any(
            start <= first_seq and first_seq + count <= stop for start, stop in spans.items()
        )

    # --- recovery

    def recover(self) -> Iterator[RecoveredQueue]:
        self._recovering += 1
        try:
            txn = self.snapshot()
            tables = self.tables
            with self.guard:
                found = owners(txn, tables.states) | owners(txn, tables.annotations)
                found |= {owner for owner in owners(txn, tables.records) if self._has_records(txn, owner)}
            for queue_id in sorted(found):
                yield RecoveredQueue(
                    queue_id,
                    self._state(txn, queue_id),
                    self._annotations(txn, queue_id),
                    self._recover_records(txn, queue_id),
                )
        finally:
            self._recovering -= 1

    def recover_queue(self, queue_id: int) -> RecoveredQueue | None:
        """The stored state of one queue. Exhaust its records before the next write."""
        txn = self.snapshot()
        state, annotations = self._state(txn, queue_id), self._annotations(txn, queue_id)
        records = list(self._recover_records(txn, queue_id))
        if state is None and not annotations and not records:
            return None
        return RecoveredQueue(queue_id, state, annotations, iter(records))

    def _has_records(self, txn: "lmdb.Transaction[memoryview]", queue_id: int) -> bool:
        """Return whether the queue has any record besides those being erased."""
        if queue_id not in self.erasures:
            return True
        last = -1
        with txn.cursor(db=self.tables.records) as cursor:
            cursor.set_range(KEY.pack(queue_id, 0, 0, 0))
            while key := cursor.key():
                owner, first, count, _ = KEY.unpack(key)
                if owner != queue_id:
                    break
                if first <= last:
                    raise self.guard.damaged(f"the records of queue {queue_id} are out of order")
                last = first
                ends = [
                    end
                    for start, end in self.erasures[queue_id].items()
                    if start <= first and first + count <= end
                ]
                if not ends:
                    return True
                _seek_overlapping(cursor, queue_id, max(ends))
        return False

    def _state(self, txn: "lmdb.Transaction[memoryview]", queue_id: int) -> bytes | None:
        name = QUEUE.pack(queue_id)
        with self.guard:
            state = txn.get(name, db=self.tables.states)
        if state is None:
            return None
        try:
            return unseal(name, state, lambda: f"the state of queue {queue_id}")
        except CorruptRecord as error:
            raise self.guard.damaged(error) from error

    def _recover_records(
        self, txn: "lmdb.Transaction[memoryview]", queue_id: int
    ) -> Iterator[RecoveredRecord]:
        def fetch(key: bytes) -> memoryview | None:
            with self.guard:
                return txn.get(key, db=self.tables.bodies)

        with self.guard, txn.cursor(db=self.tables.records) as cursor:
            cursor.set_range(KEY.pack(queue_id, 0, 0, 0))
            for key, value in _walk(cursor, queue_id, SEQ_MAX):
                _, first, count, _ = KEY.unpack(key)
                if self._erased(queue_id, first, count):
                    continue
                # Heads share pages, but those are scattered among the bodies.
                self.touched((len(key) + len(value)) * (FOLIO_BYTES // PAGE_BYTES))
                bits = self.mask(txn, queue_id, first, count)
                yield RecoveredRecord(key, value, fetch, settled.ranges(first, bits))

    def _annotations(self, txn: "lmdb.Transaction[memoryview]", queue_id: int) -> dict[int, bytes]:
        found = {}
        with self.guard, txn.cursor(db=self.tables.annotations) as cursor:
            cursor.set_range(POSITION.pack(queue_id, 0))
            while key := bytes(cursor.key()):
                owner, first, stop = span_of(key)
                if owner != queue_id:
                    break
                try:
                    note = unseal(key, cursor.value(), lambda: f"an annotation of queue {queue_id}")
                except CorruptRecord as error:
                    log.error("%s: messages %d to %d are used without it", error, first, stop - 1)
                else:
                    found.update(dict.fromkeys(range(first, stop), note))
                cursor.next()
        return found

    def _load(self) -> None:
        txn = self.snapshot()
        self.annotated = owners(txn, self.tables.annotations)
        self.spanned = self.annotated.copy()
        with txn.cursor(db=self.tables.erasures) as cursor:
            for key, value in cursor:
                queue_id, start = POSITION.unpack(key)
                self.erasures.setdefault(queue_id, {})[start] = self.unpack_erasure(bytes(key), value)

    def unpack_erasure(self, key: bytes, value: memoryview) -> int:
        """Return where an erasure ends. Without it, erased records would reappear."""
        try:
            return int(QUEUE.unpack(unseal(key, value, lambda: "the note of a deletion"))[0])
        except CorruptRecord as error:
            raise self.guard.damaged(error) from error


def _record(first_seq: int, count: int, key: bytes, value: memoryview, fetch: Fetch) -> Record:
    try:
        return Record(first_seq, count, unpack(key, value, fetch))
    except CorruptRecord as error:
        return Record(first_seq, count, b"", str(error))


def _room_for(size: int, pieces: int) -> int:
    """The bytes of the disk that so many appended bytes take at most."""
    # Values of some size have pages of their own, leaves are half empty at worst.
    return size + size // 4 + min(pieces * PAGE_BYTES, size)


def _mapped(directory: Path, map_bytes: int, sync: bool) -> tuple["lmdb.Environment", int]:
    """Open the file with a map of this size, or of half the addresses that are left; return the size, too.
    Raises lmdb.Error.
    """
    while True:
        try:
            env = lmdb.open(
                str(directory),
                map_size=map_bytes,
                max_dbs=TABLES_MAX,
                lock=False,
                readahead=False,
                sync=sync,
                mode=0o600,
            )
        except lmdb.MemoryError:
            map_bytes //= 2
            while map_bytes >= MAP_BYTES_MIN and not _has_addresses(2 * map_bytes):
                map_bytes //= 2
            if map_bytes < MAP_BYTES_MIN:
                raise
        else:
            return env, map_bytes


def _has_addresses(size: int) -> bool:
    try:
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
    except (OSError, OverflowError):
        return False
    return True


def _says(error: Exception, number: int) -> bool:
    """Return whether the error has this errno. Errors without a class of their own can only be recognised by
    their text.
    """
    return os.strerror(number) in str(error)


def _seek_overlapping(cursor: "lmdb.Cursor[memoryview]", queue_id: int, seq: int) -> None:
    """Put the cursor on the first record that ends after seq."""
    start = KEY.pack(queue_id, seq, 0, 0)
    found = cursor.prev() if cursor.set_range(start) else cursor.last()
    if found:
        owner, first, count, _ = KEY.unpack(cursor.key())
        if owner == queue_id and first + count > seq:
            start = KEY.pack(queue_id, first, 0, 0)
    cursor.set_range(start)


def _walk(
    cursor: "lmdb.Cursor[memoryview]", queue_id: int, last_seq: int
) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and heads of the records from the cursor on. Heads are views."""
    more = bool(cursor.key())
    while more:
        key = bytes(cursor.key())
        owner, first, _, _ = KEY.unpack(key)
        if owner != queue_id or first > last_seq:
            break
        yield key, cursor.value()
        more = cursor.next()
