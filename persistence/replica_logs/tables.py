"""The Raft groups in LMDB: their durable state, and recovery.

`entries` and `entry_chunks` hold the entries of all groups, `snapshots` and `snapshot_chunks` at most one
snapshot for each, `hard` term and vote, and `entry_erasures` unfinished deletions: the entries in these
ranges are still on disk, but count as deleted.
"""

import logging
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from persistence import settled
from persistence.errors import CorruptRecord, CorruptSnapshot, EntryLost
from persistence.pages.page_release import FAULT_BYTES
from persistence.pages.pages import KeyRange
from persistence.record import CHUNKS_MAX, POSITION, QUEUE, find_fault, join, unseal
from persistence.replica_logs.record import (
    CHUNK_KEY,
    INDEX_MAX,
    EntryHead,
    RecoveredGroup,
    SnapshotHead,
    StoredEntry,
    chunk_keys,
    read_term_and_kind,
    unpack_entry_head,
    unpack_snapshot_head,
)
from persistence.replica_logs.survey import Survey

if TYPE_CHECKING:
    import lmdb

    from persistence.store import LmdbStore

log = logging.getLogger("mqd.persistence")

Erasures = dict[int, dict[int, int]]  # group → start → stop
GROUP_END = b"\xff" * 32  # after all keys of a group


class GroupTables:
    """Implements ports.GroupStore."""

    def __init__(self, store: "LmdbStore") -> None:
        self._store = store
        self._tables = store.tables
        self.erasures: Erasures = {}
        #: Entries that a recovery has read.
        self._walked = 0
        self._erased: dict[int, tuple[list[int], list[int]]] = {}  # the same, sorted and joined
        with store.snapshot().cursor(db=self._tables.entry_erasures) as cursor:
            for key, value in cursor:
                group, start = POSITION.unpack(key)
                self.erasures.setdefault(group, {})[start] = store.unpack_erasure(bytes(key), value)

    def set_erasures(self, erasures: Erasures) -> None:
        """Set them after a commit."""
        self.erasures = erasures
        self._erased.clear()

    def entries(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        with self._store.guard:
            return self._entries(group, low, high, max_bytes)

    def warm(self, group: int, spans: list[tuple[int, int]], done: Callable[[], None]) -> bool:
        ranges = []
        for first, last in spans:
            low, high = POSITION.pack(group, first), POSITION.pack(group, last)
            ranges.append(KeyRange("entries", low, high))
            low, high = CHUNK_KEY.pack(group, first, 0, 0), CHUNK_KEY.pack(group, last, INDEX_MAX, CHUNKS_MAX)
            ranges.append(KeyRange("entry_chunks", low, high))
        return self._store.reader.warm(ranges, done)

    def warm_group(self, group: int, done: Callable[[], None]) -> bool:
        low, high = QUEUE.pack(group), QUEUE.pack(group + 1)
        tables = ("entries", "snapshots", "snapshot_chunks", "hard")
        return self._store.reader.warm([KeyRange(table, low, high) for table in tables], done)

    def _entries(self, group: int, low: int, high: int, max_bytes: int) -> list[StoredEntry]:
        txn = self._store.snapshot()
        found: list[StoredEntry] = []
        size = 0
        for index in range(low, high + 1):
            if found and size >= max_bytes:
                break
            head = self._head(txn, group, index)
            size += head.size
            if found and size > max_bytes:
                break
            data = head.inline
            if head.chunks:
                keys = chunk_keys(group, index, head.term, head.chunks)
                data, fault = self._body(txn, self._tables.entry_chunks, keys)
                if fault is not None:
                    raise EntryLost(group, index, fault)
            found.append(StoredEntry(index, head.term, head.kind, data))
        self._store.touched(size + FAULT_BYTES)
        return found

    def _head(self, txn: "lmdb.Transaction[memoryview]", group: int, index: int) -> EntryHead:
        position = POSITION.pack(group, index)
        value = txn.get(position, db=self._tables.entries)
        if value is None or self._erasure(group, index):
            raise EntryLost(group, index)
        try:
            return unpack_entry_head(position, value)
        except CorruptRecord as error:
            raise EntryLost(group, index, f"is damaged: {error}") from error

    def _body(
        self, txn: "lmdb.Transaction[memoryview]", table: "lmdb._Database", keys: list[bytes]
    ) -> tuple[bytes, str | None]:
        """The data of these chunks, and its damage if any."""
        chunks: list[memoryview] = []
        for at, key in enumerate(keys):
            chunk = txn.get(key, db=table)
            if chunk is None:
                return b"", f"lacks its chunk {at}"
            chunks.append(chunk)
        fault = find_fault(keys.__getitem__, keys, chunks)
        return (join(chunks), None) if fault is None else (b"", fault)

    def bounds(self, group: int) -> tuple[int, int]:
        snapshot = self.snapshot_index(group)
        survey = Survey(snapshot, 0)
        with self._store.guard, self._store.snapshot().cursor(db=self._tables.entries) as cursor:
            # Go back to the last sound entry: later entries existed, and are lost.
            damaged: list[int] = []
            end = QUEUE.pack(group) + GROUP_END
            found = cursor.prev() if cursor.set_range(end) else cursor.last()
            while found:
                key = bytes(cursor.key())
                owner, index = POSITION.unpack(key)
                if owner != group:
                    break
                if erasure := self._erasure(group, index):
                    position = POSITION.pack(group, erasure[0])
                    found = cursor.prev() if cursor.set_range(position) else cursor.last()
                    continue
                head = read_term_and_kind(key, cursor.value())
                if head is not None:
                    survey.sound(index, *head)
                    break
                damaged.append(index)
                found = cursor.prev()
        for index in reversed(damaged):
            survey.damaged(index)
        return snapshot, survey.last_index()

    def snapshot_index(self, group: int) -> int:
        with self._store.guard:
            head, _ = self._snapshot_head(self._store.snapshot(), group)
        return 0 if head is None else head.index

    def state(self, group: int) -> tuple[int, int, bytes] | None:
        with self._store.guard:
            return self._state(group)

    def _state(self, group: int) -> tuple[int, int, bytes] | None:
        txn = self._store.snapshot()
        head, lost = self._snapshot_head(txn, group)
        if lost:
            raise CorruptSnapshot(group, "has a damaged head")
        if head is None:
            return None
        keys = chunk_keys(group, *head)
        state, fault = self._body(txn, self._tables.snapshot_chunks, keys)
        if fault is not None:
            raise CorruptSnapshot(group, fault)
        self._store.touched(len(state) + FAULT_BYTES)
        return head.index, head.term, state

    def _erasure(self, group: int, index: int) -> tuple[int, int] | None:
        """The interval of the entry, if it is on disk only because its deletion is not finished."""
        if group not in self.erasures:
            return None
        intervals = self._erased.get(group)
        if intervals is None:
            spans = self.erasures[group]
            intervals = self._erased[group] = settled.merge(list(spans), list(spans.values()))
        starts, stops = intervals
        at = bisect_right(starts, index) - 1
        return (starts[at], stops[at]) if at >= 0 and index < stops[at] else None

    def _snapshot_head(
        self, txn: "lmdb.Transaction[memoryview]", group: int
    ) -> tuple[SnapshotHead | None, bool]:
        """The head, and whether it is lost."""
        key = QUEUE.pack(group)
        value = txn.get(key, db=self._tables.snapshots)
        if value is None:
            return None, False
        try:
            return unpack_snapshot_head(key, value), False
        except CorruptRecord:
            return None, True

    # --- recovery

    def recover(self) -> Iterator[RecoveredGroup]:
        found: set[int] = set()
        tables = self._tables
        with self._store.guard:
            for table in (tables.hard, tables.snapshots, tables.entries):
                of_table = owners(self._store.snapshot(), table)
                found |= of_table
                if table is not tables.entries:
                    self._check_count(table, len(of_table))
        self._walked = 0
        for number in sorted(found):
            with self._store.guard:
                group = self._recover(self._store.snapshot(), number)
            if group is not None:
                yield group
        with self._store.guard:
            self._check_count(tables.entries, self._walked)

    def _check_count(self, table: "lmdb._Database", walked: int) -> None:
        """Only this reveals a page that has lost keys, and a member must not forget its votes and
        acknowledgements.
        """
        expected = self._store.snapshot().stat(table)["entries"]
        if walked != expected:
            raise self._store.guard.damaged(f"a table has {walked} of its {expected} keys")

    def recover_one(self, group: int) -> RecoveredGroup | None:
        with self._store.guard:
            return self._recover(self._store.snapshot(), group)

    def _recover(self, txn: "lmdb.Transaction[memoryview]", group: int) -> RecoveredGroup | None:
        snapshot_head, snapshot_lost = self._snapshot_head(txn, group)
        snapshot = None if snapshot_head is None else (snapshot_head.index, snapshot_head.term)
        survey = Survey(*(snapshot or (0, 0)))
        self._survey(txn, group, survey)
        hard = txn.get(QUEUE.pack(group), db=self._tables.hard)
        if hard is None and snapshot is None and not (snapshot_lost or survey.stored):
            if not survey.is_empty():
                # The group's number may be damaged, so that there is no such group.
                log.error("damaged entries of an unknown Raft group, perhaps %d, are ignored", group)
            return None
        term, vote, hard_lost = _unpack_hard(group, hard)
        return survey.recovered(group, term, vote, snapshot, hard_lost, snapshot_lost)

    def _survey(self, txn: "lmdb.Transaction[memoryview]", group: int, survey: Survey) -> None:
        touched = 0
        erasing = group in self.erasures
        with txn.cursor(db=self._tables.entries) as cursor:
            if not cursor.set_range(QUEUE.pack(group)):
                return
            for view, value in cursor:
                key = bytes(view)
                owner, index = POSITION.unpack(key)
                if owner != group:
                    break
                self._walked += 1
                if erasing and self._erasure(group, index):
                    continue
                head = read_term_and_kind(key, value)
                if head is None:
                    survey.damaged(index)
                else:
                    survey.sound(index, *head)
                touched += len(value)
        self._store.touched(touched)


def _unpack_hard(group: int, value: "memoryview | bytes | None") -> tuple[int, str, bool]:
    """Term, vote, and whether they are lost."""
    if value is None:
        return 0, "", False
    try:
        content = unseal(QUEUE.pack(group), value, lambda: f"the term of Raft group {group}")
    except CorruptRecord as error:
        log.error("%s", error)
        return 0, "", True
    # Thousands of groups share the names of a few nodes.
    return QUEUE.unpack_from(content)[0], sys.intern(content[QUEUE.size :].decode()), False


def owners(txn: "lmdb.Transaction[memoryview]", table: "lmdb._Database") -> set[int]:
    """The queues or groups that have keys in the table: one seek each."""
    found = set()
    last = b""
    with txn.cursor(db=table) as cursor:
        more = cursor.first()
        while more:
            key = bytes(cursor.key()[: QUEUE.size])
            if key <= last:
                raise struct.error("keys of a table are out of order")
            last = key
            found.add(QUEUE.unpack(key)[0])
            more = cursor.set_range(key + GROUP_END)
    return found
