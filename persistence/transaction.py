"""One LMDB transaction: a layer of changes written to the tables.

`apply` runs on the loop's thread, a little at a time; py-lmdb gives up the interpreter lock in every call,
so that a thread doing many small puts would fight with a busy loop for it. Only `commit`, the write and the
sync, runs in a worker thread.

No index of the records is kept in memory. A settled range is looked up with a cursor: records that lie wholly
in it are deleted, those at its edges get a mask of their settled messages beside them. Bodies are deleted by
their keys: a cursor would read them. Even so LMDB reads a page of each large one, so one transaction deletes
a limited number. The rest of the range is noted as an erasure, as durable as a deletion, and the following
transactions continue it.
"""

import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from persistence import settled
from persistence.commits.layer import Layer, QueueChanges
from persistence.errors import CorruptRecord
from persistence.metadata import pack_entry
from persistence.own_process import PAGE_BYTES
from persistence.pages.damage_guard import WRITE_ERRORS
from persistence.pages.page_reader import AHEAD_BYTES
from persistence.pages.page_release import FAULT_BYTES
from persistence.pages.pages import KeyRange
from persistence.ports import Job
from persistence.record import (
    BODY_KEY,
    CHUNKS_MAX,
    KEY,
    POSITION,
    QUEUE,
    SEQ_MAX,
    body_keys,
    pack,
    seal,
    span_key,
    span_of,
    unseal,
)
from persistence.replica_logs.writer import GroupWriter

if TYPE_CHECKING:
    import lmdb

    from persistence.store import LmdbStore

log = logging.getLogger("mqd.persistence")

ERASE_KEYS_MAX: Final = 8192
#: A narrower range is of messages that were delivered, so its keys have been read.
NARROW: Final = 1024
#: Beside the tables: the last record of the write-ahead log that they have.
LOGGED: Final = b"logged"
# Work between two pauses for the loop: about half a millisecond.
STEP_WORK: Final = 256 * 1024
CALL_WORK: Final = 512

Erasures = dict[int, dict[int, int]]  # queue → start → stop


class LmdbTransaction:
    def __init__(self, store: "LmdbStore", layer: Layer) -> None:
        self._store = store
        self._layer = layer
        self._tables = store.tables
        self._txn = store.begin_write()
        #: Created when it is needed: most transactions only append.
        self._cursor: lmdb.Cursor[memoryview] | None = None
        self._masked: bool | None = None
        #: There may be many, so the values are the store's own: whoever changes one makes a copy.
        self._erasures: Erasures = dict(store.erasures)
        self._erase_left = ERASE_KEYS_MAX
        self._work = 0
        self._group_erasures = store.groups.erasures

    @property
    def _records(self) -> "lmdb.Cursor[memoryview]":
        if self._cursor is None:
            with self._store.guard:
                self._cursor = self._txn.cursor(db=self._tables.records)
        return self._cursor

    @property
    def _has_masks(self) -> bool:
        """False if no record has a mask, as when each message is a record of its own: then there is no need
        to look for masks.
        """
        if self._masked is None:
            self._masked = self._txn.stat(self._tables.settled)["entries"] > 0
        return self._masked

    def apply(self) -> Iterator[Job | None]:
        try:
            # Not kept: it refers back to this object, and in a cycle the layer would stay in memory until a
            # garbage collection.
            groups = GroupWriter(self._store, self._txn, self._called)
            for key, (name, value) in self._layer.metadata.items():
                if value is None:
                    self._txn.delete(key, db=self._tables.metadata)
                else:
                    self._txn.put(key, pack_entry(key, name, value), db=self._tables.metadata)
                if self._worked(CALL_WORK):
                    yield None
            for queue_id, changes in self._layer.queues.items():
                yield from self._apply_queue(queue_id, changes)
            for group, group_changes in self._layer.groups.items():
                yield from groups.apply(group, group_changes)
            if self._erasures:
                yield from self._continue_erasures()
            if groups.erasures:
                yield from groups.continue_erasures()
            self._group_erasures = groups.erasures
            if self._layer.sequence:
                self._txn.put(LOGGED, seal(LOGGED, b"%d" % self._layer.sequence), db=self._tables.about)
            elif not self._layer:
                # LMDB reuses freed pages in the transaction after the next, and counts only transactions that
                # changed something.
                self._txn.put(b"turn", b"%d" % self._txn.id(), db=self._tables.about)
        except WRITE_ERRORS as error:
            raise self._store.failure(error, self._layer.bytes) from error

    def commit(self) -> None:
        try:
            self._txn.commit()
        except WRITE_ERRORS as error:
            raise self._store.failure(error, self._layer.bytes) from error

    def finish(self) -> None:
        self._store.erasures = self._erasures
        self._store.groups.set_erasures(self._group_erasures)
        self._store.end_write()
        self._store.touched(self._layer.bytes)
        if self._layer.sequence:
            self._store.log_stored(self._layer.sequence)

    def abort(self) -> None:
        self._txn.abort()
        self._store.end_write()

    def _worked(self, amount: int) -> bool:
        self._work += amount
        if self._work < STEP_WORK:
            return False
        self._work = 0
        return True

    def _called(self, size: int) -> bool:
        return self._worked(CALL_WORK + size)

    def _apply_queue(self, queue_id: int, changes: QueueChanges) -> Iterator[Job | None]:
        txn, tables = self._txn, self._tables
        if changes.dropped:
            yield from self._drop(queue_id)
        starts, stops = changes.starts, changes.stops
        if starts:
            starts, stops = settled.merge(starts, stops)
        appends = changes.in_order()
        if appends and queue_id in self._erasures:
            yield from self._erase_before_reuse(queue_id, appends[-1][0] + appends[-1][1], appends[0][0])
        for first_seq, count, payload, head_parts in appends:
            bits = settled.mask_of(first_seq, count, starts, stops) if starts else 0
            if bits:
                if bits == settled.whole(count):
                    continue
                self._put_mask(queue_id, first_seq, count, bits)
            key, head, chunks = pack(queue_id, first_seq, count, payload, head_parts)
            txn.put(key, head, db=tables.records)
            if self._worked(CALL_WORK + len(head)):
                yield None
            for chunk_key, value in chunks:
                txn.put(chunk_key, value, db=tables.bodies)
                if self._worked(CALL_WORK + len(value)):
                    yield None
        if starts:
            spans = [(first_seq, first_seq + count) for first_seq, count, _, _ in appends]
            if changes.forgotten:
                # The store has nothing of these records.
                spans = sorted([*spans, *changes.forgotten])
            done = 0
            for start, stop in settled.outside(starts, stops, spans):
                if stop > done:
                    done = yield from self._settle(queue_id, max(start, done), stop, starts, stops)
            if queue_id in self._store.spanned:
                for start, stop in zip(starts, stops, strict=True):
                    yield from self._cut_notes(queue_id, start, stop)
            elif queue_id in self._store.annotated:
                for start, stop in zip(starts, stops, strict=True):
                    yield from self._clear(tables.annotations, queue_id, start, stop)
        for start, stop, note in changes.span_notes:
            for low, high in settled.between(start, stop, starts, stops):
                if queue_id in self._store.annotated:
                    yield from self._cut_notes(queue_id, low, high)
                self._store.spanned.add(queue_id)
                self._put_note(queue_id, low, high, note)
                if self._worked(CALL_WORK):
                    yield None
        for seq, note in changes.annotations.items():
            if not settled.contains(starts, stops, seq):
                if queue_id in self._store.spanned:
                    yield from self._cut_notes(queue_id, seq, seq + 1)
                self._put_note(queue_id, seq, seq + 1, note)
                if self._worked(CALL_WORK):
                    yield None
        if changes.state is not None:
            name = QUEUE.pack(queue_id)
            txn.put(name, seal(name, changes.state), db=tables.states)
            if self._worked(CALL_WORK):
                yield None

    def _drop(self, queue_id: int) -> Iterator[Job | None]:
        self._txn.delete(QUEUE.pack(queue_id), db=self._tables.states)
        yield from self._clear(self._tables.annotations, queue_id, 0, SEQ_MAX)
        self._store.annotated.discard(queue_id)
        self._store.spanned.discard(queue_id)
        yield from self._erase_or_note(queue_id, 0, SEQ_MAX)

    def _settle(
        self, queue_id: int, start: int, stop: int, starts: list[int], stops: list[int]
    ) -> Generator[Job | None, None, int]:
        """Settle [start, stop), and what these merged intervals have of the record at `start`; return up to
        where all is settled that they have.
        """
        records = self._records
        found = records.prev() if records.set_range(KEY.pack(queue_id, start, 0, 0)) else records.last()
        if found:
            owner, first_seq, count, _ = KEY.unpack(records.key())
            end: int = first_seq + count
            if owner == queue_id and end > start:
                self._settle_bits(
                    queue_id, first_seq, count, settled.mask_of(first_seq, count, starts, stops)
                )
                if end >= stop:
                    if self._worked(3 * CALL_WORK):
                        yield None
                    return end
        yield from self._erase_or_note(queue_id, start, stop)
        return stop

    def _erase_or_note(self, queue_id: int, start: int, stop: int) -> Iterator[Job | None]:
        reached = yield from self._erase(queue_id, start, stop)
        if reached < stop:
            self._settle_last(queue_id, reached, stop)
            spans = self._erasures.get(queue_id, {})
            stop = max(stop, spans.get(reached, 0))
            self._erasures[queue_id] = spans | {reached: stop}
            position = POSITION.pack(queue_id, reached)
            self._txn.put(position, seal(position, QUEUE.pack(stop)), db=self._tables.erasures)

    def _erase(self, queue_id: int, start: int, stop: int) -> Generator[Job | None, None, int]:
        """Delete the records that are wholly in [start, stop), and mask the one at the end.

        Returns how far it came.
        """
        records = self._records
        at_hand = stop
        if stop - start > NARROW:
            at_hand = yield from self._have_read(queue_id, start, stop)
        records.set_range(KEY.pack(queue_id, start, 0, 0))
        reached = stop
        erased_to = start
        partly: tuple[int, int] | None = None
        while key := records.key():
            owner, first_seq, count, chunks = KEY.unpack(key)
            if owner != queue_id or first_seq >= stop:
                break
            if first_seq >= at_hand:
                at_hand = yield from self._have_read(queue_id, first_seq, stop)
            if first_seq + count > stop:
                partly = first_seq, count
                break
            if self._erase_left <= 0:
                reached = first_seq
                break
            self._delete_record()
            self._erase_left -= 1 + chunks
            erased_to = first_seq + count
            if self._worked((1 + chunks) * CALL_WORK):
                yield None
        if partly is not None:
            self._settle_part(queue_id, *partly, start, stop)
        if erased_to > start and self._has_masks:
            yield from self._clear(self._tables.settled, queue_id, start, erased_to)
        return reached

    def _have_read(self, queue_id: int, start: int, stop: int) -> Generator[Job | None, None, int]:
        """Have a thread read the next keys from the disk, if they are not in memory. Returns how far they are
        now.
        """
        keys = KeyRange("records", KEY.pack(queue_id, start, 0, 0), KEY.pack(queue_id, stop, 0, 0))

        def bodies(last: bytes) -> KeyRange:
            last_seq = KEY.unpack(last)[1]
            return KeyRange(
                "bodies", BODY_KEY.pack(queue_id, start, 0), BODY_KEY.pack(queue_id, last_seq, CHUNKS_MAX)
            )

        if self._worked(AHEAD_BYTES):
            yield None
        ahead = self._store.reader.ahead(keys, bodies)
        if ahead.job is not None:
            yield ahead.job
        # The walk stops at the last one, because the step after it goes to the next page.
        return stop if ahead.last is None else max(KEY.unpack(ahead.last)[1], start + 1)

    def _settle_last(self, queue_id: int, start: int, stop: int) -> None:
        """Mask the record that begins in [start, stop) and ends after it."""
        records = self._records
        found = records.prev() if records.set_range(KEY.pack(queue_id, stop, 0, 0)) else records.last()
        if found:
            owner, first_seq, count, _ = KEY.unpack(records.key())
            if owner == queue_id and start <= first_seq and first_seq + count > stop:
                self._settle_part(queue_id, first_seq, count, start, stop)

    def _settle_part(self, queue_id: int, first_seq: int, count: int, start: int, stop: int) -> None:
        self._settle_bits(queue_id, first_seq, count, settled.mask(first_seq, count, start, stop))

    def _settle_bits(self, queue_id: int, first_seq: int, count: int, bits: int) -> None:
        position = POSITION.pack(queue_id, first_seq)
        if count > 1 and self._has_masks:
            bits |= self._store.mask(self._txn, queue_id, first_seq, count)
        if bits != settled.whole(count):
            self._put_mask(queue_id, first_seq, count, bits)
            return
        if self._has_masks:
            self._txn.delete(position, db=self._tables.settled)
        records = self._records
        records.set_range(KEY.pack(queue_id, first_seq, 0, 0))
        self._delete_record()

    def _delete_record(self) -> None:
        """Delete the record at the cursor, which goes to the next one."""
        keys = body_keys(bytes(self._records.key()))
        for key in keys:
            self._txn.delete(key, db=self._tables.bodies)
        self._records.delete()
        self._store.touched(PAGE_BYTES + FAULT_BYTES * len(keys))

    def _put_mask(self, queue_id: int, first_seq: int, count: int, bits: int) -> None:
        position = POSITION.pack(queue_id, first_seq)
        mask = bits.to_bytes((count + 7) // 8, "big")
        self._masked = True
        self._txn.put(position, seal(position, mask), db=self._tables.settled)

    def _put_note(self, queue_id: int, start: int, stop: int, note: bytes) -> None:
        self._store.annotated.add(queue_id)
        key = span_key(queue_id, start, stop)
        self._txn.put(key, seal(key, note), db=self._tables.annotations)

    def _cut_notes(self, queue_id: int, start: int, stop: int) -> Iterator[Job | None]:
        """Delete the notes about the messages in [start, stop). No two notes are about one message: what is
        left of one that is about others, too, stays.
        """
        begin, end = POSITION.pack(queue_id, start), POSITION.pack(queue_id, stop)
        with self._txn.cursor(db=self._tables.annotations) as cursor:
            # The one before them may reach into them.
            if cursor.prev() if cursor.set_range(begin) else cursor.last():
                owner, first, after = span_of(cursor.key())
                if owner == queue_id and after > start:
                    self._cut_note(cursor, queue_id, (first, start), (stop, after))
            cursor.set_range(begin)
            while (key := cursor.key()) and bytes(key) < end:
                _, _, after = span_of(key)
                if after > stop:
                    self._cut_note(cursor, queue_id, (stop, after))
                    return
                cursor.delete()
                if self._worked(CALL_WORK):
                    yield None

    def _cut_note(self, cursor: "lmdb.Cursor[memoryview]", queue_id: int, *left: tuple[int, int]) -> None:
        """Let the note at the cursor be about these messages only."""
        key = bytes(cursor.key())
        try:
            note = unseal(key, cursor.value(), lambda: f"an annotation of queue {queue_id}")
        except CorruptRecord as error:
            log.error("%s: its messages are used without it", error)
            left = ()
        cursor.delete()
        for start, stop in left:
            if start < stop:
                self._put_note(queue_id, start, stop, note)
                self._worked(CALL_WORK)

    def _clear(self, table: "lmdb._Database", queue_id: int, start: int, stop: int) -> Iterator[Job | None]:
        with self._txn.cursor(db=table) as cursor:
            cursor.set_range(POSITION.pack(queue_id, start))
            end = POSITION.pack(queue_id, stop)
            while (key := cursor.key()) and bytes(key) < end:
                cursor.delete()
                if self._worked(CALL_WORK):
                    yield None

    def _erase_before_reuse(self, queue_id: int, stop: int, start: int) -> Iterator[Job | None]:
        """A dropped queue's number is reused while old records are still being erased: finish the erasure
        first.
        """
        if any(low < stop and high > start for low, high in self._erasures[queue_id].items()):
            self._erase_left += SEQ_MAX
            yield from self._continue_erasure(queue_id)
            self._erase_left -= SEQ_MAX

    def _continue_erasures(self) -> Iterator[Job | None]:
        for queue_id in list(self._erasures):
            if self._erase_left <= 0:
                break
            yield from self._continue_erasure(queue_id)

    def _continue_erasure(self, queue_id: int) -> Iterator[Job | None]:
        for start, stop in self._erasures.pop(queue_id).items():
            self._txn.delete(POSITION.pack(queue_id, start), db=self._tables.erasures)
            yield from self._erase_or_note(queue_id, start, stop)


def unpack_mask(position: bytes, value: bytes | memoryview | None, count: int) -> int:
    """The settled messages of a record.

    A damaged mask counts as empty: better deliver twice than not at all.
    """
    if value is None:
        return 0
    try:
        return int.from_bytes(unseal(position, value, lambda: "a settled mask"), "big") & settled.whole(count)
    except CorruptRecord as error:
        queue_id, first_seq = POSITION.unpack(position)
        log.error("%s: messages of queue %d from %d on may be delivered again", error, queue_id, first_seq)
        return 0
