"""The groups' part of a transaction.

Deletions in one transaction are bounded, as in the journal: the rest of a range is noted, as durable as a
deletion, and the following transactions continue it. A truncation is not bounded: it removes only entries
that were never committed, and their place is needed at once.
"""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

from persistence.errors import CorruptRecord
from persistence.pages.page_reader import AHEAD_BYTES
from persistence.pages.page_release import FAULT_BYTES
from persistence.pages.pages import KeyRange
from persistence.ports import Job
from persistence.record import CHUNKS_MAX, POSITION, QUEUE, seal
from persistence.replica_logs.changes import GroupChanges
from persistence.replica_logs.record import (
    CHUNK_KEY,
    INDEX_MAX,
    chunk_keys,
    pack_entry_chunks,
    pack_entry_head,
    pack_snapshot,
    unpack_entry_head,
    unpack_snapshot_head,
)
from persistence.replica_logs.tables import Erasures

if TYPE_CHECKING:
    import lmdb

    from persistence.store import LmdbStore

ERASE_KEYS_MAX: Final = 8192
#: A narrower range has entries that were written a moment ago.
NARROW: Final = 1024
# Each further call to LMDB counts as this many bytes.
CALL_BYTES: Final = 512


class GroupWriter:
    """Calling it returns whether to pause after a call to LMDB with so many bytes."""

    def __init__(
        self, store: "LmdbStore", txn: "lmdb.Transaction[memoryview]", called: Callable[[int], bool]
    ) -> None:
        #: As those of the journal: whoever changes a value makes a copy.
        self.erasures: Erasures = dict(store.groups.erasures)
        self._store = store
        self._tables = store.tables
        self._txn = txn
        #: Made when it is needed: most transactions only append.
        self._cursor: lmdb.Cursor[memoryview] | None = None
        self._called = called
        self._erase_left = ERASE_KEYS_MAX

    @property
    def _entries(self) -> "lmdb.Cursor[memoryview]":
        if self._cursor is None:
            self._cursor = self._txn.cursor(db=self._tables.entries)
        return self._cursor

    def apply(self, group: int, changes: GroupChanges) -> Iterator[Job | None]:
        if changes.dropped:
            yield from self._drop(group)
        if changes.cut is not None:
            yield from self._cut(group, changes.cut)
        if changes.starts:
            for start, stop in zip(*changes.erased(), strict=True):
                yield from self._erase_or_note(group, start, stop)
        if changes.entries:
            yield from self._put(group, changes)
        if changes.hard is not None:
            term, vote = changes.hard
            name = QUEUE.pack(group)
            self._txn.put(name, seal(name, QUEUE.pack(term) + vote.encode()), db=self._tables.hard)
            if self._called(0):
                yield None
        if changes.snapshot is not None:
            yield from self._delete_snapshot(group)
            name, head, chunks = pack_snapshot(group, *changes.snapshot)
            self._txn.put(name, head, db=self._tables.snapshots)
            for key, value in chunks:
                self._txn.put(key, value, db=self._tables.snapshot_chunks)
                if self._called(len(value)):
                    yield None

    def continue_erasures(self) -> Iterator[Job | None]:
        for group in list(self.erasures):
            if self._erase_left <= 0:
                break
            yield from self._continue_erasure(group)

    def _put(self, group: int, changes: GroupChanges) -> Iterator[Job | None]:
        txn, tables = self._txn, self._tables
        if group in self.erasures:
            yield from self._erase_before_reuse(group, min(changes.entries), max(changes.entries))
        for entry in changes.entries.values():
            key = POSITION.pack(group, entry[0])
            head, chunks = pack_entry_head(key, entry)
            # The replaced entries may have other chunks.
            if changes.kept and self._entries.set_key(key):
                self._delete_entry()
            txn.put(key, head, db=tables.entries)
            if self._called(len(head)):
                yield None
            if chunks:
                for chunk_key, value in pack_entry_chunks(group, entry):
                    txn.put(chunk_key, value, db=tables.entry_chunks)
                    if self._called(len(value)):
                        yield None

    def _cut(self, group: int, index: int) -> Iterator[Job | None]:
        entries = self._entries
        entries.set_range(POSITION.pack(group, index))
        while (key := entries.key()) and POSITION.unpack(key)[0] == group:
            if self._called(self._delete_entry() * CALL_BYTES):
                yield None

    def _delete_entry(self) -> int:
        """Delete the entry at the cursor, which goes to the next one. Returns how many keys it had.

        Its chunks are deleted by their keys: a cursor would read them.
        """
        position = bytes(self._entries.key())
        try:
            head = unpack_entry_head(position, self._entries.value())
        except CorruptRecord:
            chunks = self._delete_prefix(self._tables.entry_chunks, position)
        else:
            chunks = head.chunks
            if chunks:
                group, index = POSITION.unpack(position)
                keys = chunk_keys(group, index, head.term, chunks)
                self._delete_chunks(self._tables.entry_chunks, keys)
        self._entries.delete()
        return 1 + chunks

    def _delete_chunks(self, table: "lmdb._Database", keys: list[bytes]) -> None:
        for key in keys:
            self._txn.delete(key, db=table)
        # LMDB reads the first page of each value.
        self._store.touched(FAULT_BYTES * len(keys))

    def _delete_prefix(self, table: "lmdb._Database", prefix: bytes) -> int:
        """Delete all chunks whose head can't be read. Returns how many."""
        deleted = 0
        with self._txn.cursor(db=table) as cursor:
            cursor.set_range(prefix)
            while (key := cursor.key()) and key[: len(prefix)] == prefix:
                cursor.delete()
                deleted += 1
        return deleted

    def _drop(self, group: int) -> Iterator[Job | None]:
        self._txn.delete(QUEUE.pack(group), db=self._tables.hard)
        yield from self._delete_snapshot(group)
        yield from self._erase_or_note(group, 0, INDEX_MAX + 1)

    def _delete_snapshot(self, group: int) -> Iterator[Job | None]:
        name = QUEUE.pack(group)
        value = self._txn.get(name, db=self._tables.snapshots)
        if value is None:
            return
        try:
            head = unpack_snapshot_head(name, value)
        except CorruptRecord:
            self._delete_prefix(self._tables.snapshot_chunks, name)
        else:
            self._delete_chunks(self._tables.snapshot_chunks, chunk_keys(group, *head))
        self._txn.delete(name, db=self._tables.snapshots)
        if self._called(0):
            yield None

    def _erase_or_note(self, group: int, start: int, stop: int) -> Iterator[Job | None]:
        reached = yield from self._erase(group, start, stop)
        if reached < stop:
            spans = self.erasures.get(group, {})
            stop = max(stop, spans.get(reached, 0))
            self.erasures[group] = spans | {reached: stop}
            position = POSITION.pack(group, reached)
            self._txn.put(position, seal(position, QUEUE.pack(stop)), db=self._tables.entry_erasures)
            if self._called(0):
                yield None

    def _erase(self, group: int, start: int, stop: int) -> Generator[Job | None, None, int]:
        """Delete the entries from start on. Returns how far it came."""
        entries = self._entries
        at_hand = stop
        if stop - start > NARROW:
            at_hand = yield from self._have_read(group, start, stop)
        entries.set_range(POSITION.pack(group, start))
        while key := entries.key():
            owner, index = POSITION.unpack(key)
            if owner != group or index >= stop:
                break
            if index >= at_hand:
                at_hand = yield from self._have_read(group, int(index), stop)
            if self._erase_left <= 0:
                return int(index)
            keys = self._delete_entry()
            self._erase_left -= keys
            if self._called(keys * CALL_BYTES):
                yield None
        return stop

    def _have_read(self, group: int, start: int, stop: int) -> Generator[Job | None, None, int]:
        """As in the journal: returns how far the next keys are in memory."""
        keys = KeyRange("entries", POSITION.pack(group, start), POSITION.pack(group, stop))

        def chunks(last: bytes) -> KeyRange:
            last_index = POSITION.unpack(last)[1]
            low, high = (
                CHUNK_KEY.pack(group, start, 0, 0),
                CHUNK_KEY.pack(group, last_index, INDEX_MAX, CHUNKS_MAX),
            )
            return KeyRange("entry_chunks", low, high)

        if self._called(AHEAD_BYTES):
            yield None
        ahead = self._store.reader.ahead(keys, chunks)
        if ahead.job is not None:
            yield ahead.job
        return stop if ahead.last is None else max(POSITION.unpack(ahead.last)[1], start + 1)

    def _erase_before_reuse(self, group: int, low: int, high: int) -> Iterator[Job | None]:
        """New entries replace old ones that are still being erased: finish the erasure first."""
        if any(start <= high and stop > low for start, stop in self.erasures[group].items()):
            self._erase_left += INDEX_MAX
            yield from self._continue_erasure(group)
            self._erase_left -= INDEX_MAX

    def _continue_erasure(self, group: int) -> Iterator[Job | None]:
        for start, stop in self.erasures.pop(group).items():
            if self._erase_left <= 0:
                left = self.erasures.get(group, {})
                self.erasures[group] = left | {start: max(stop, left.get(start, 0))}
                continue
            self._txn.delete(POSITION.pack(group, start), db=self._tables.entry_erasures)
            yield from self._erase_or_note(group, start, stop)
