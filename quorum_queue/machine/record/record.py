"""The record of messages: what became of each message that a queue has taken, by its message-id.

A row stands for one position of the queue. Rows lie in blocks, in columns: a change of many messages is a few
assignments of slices, and a row takes about 35 bytes beside its id. A block finds its ids by their checksums.
The oldest rows are forgotten first: those that were taken before the queue's window of time, and those
beyond its count.

Messages that are no new positions (duplicates, and messages that the queue has refused) are notes: an id,
what happened last and how often. Only the last ones are remembered (`NOTES_MAX`).

The state is part of the machine's: replicated, in the snapshot and in the digest. Nothing here looks at a
clock; `now_ms` is that of the batch that is applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from quorum_queue.machine.arrays import packed
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.positions import Positions, Seqs
from quorum_queue.machine.record import blocks
from quorum_queue.machine.record.blocks import Block, as_key, block_of
from quorum_queue.machine.record.states import (
    DEAD_LETTERED,
    DELIVERED,
    DROPPED,
    QUEUED,
    RESTARTED,
    Copy,
    Found,
    Key,
    Note,
)
from quorum_queue.machine.settings import Settings

#: Positions without an id that a block may have between two with one.
GAP_MAX: Final = 32
#: Notes of one queue.
NOTES_MAX = 10_000
#: Messages of one id that an answer has; the newest.
COPIES_MAX: Final = 20

_encode: Final = msgspec.msgpack.Encoder().encode
#: A change, as a journal has it: ("taken", now, first, ids), ("changed", now, start, stop, step, state,
#: reason, key), ("noted", now, ids, state, reason), ("since", now, since).
Change = tuple[Any, ...]


class View:
    """The record at the moment when a snapshot is begun."""

    __slots__ = ("_blocks", "_fields", "_notes")

    def __init__(self, blocks: list[Block], fields: list[int], notes: dict[bytes, Note]) -> None:
        self._blocks = blocks
        self._fields = fields
        self._notes = notes

    def parts(self) -> Iterator[list[Any]]:
        """Yield the record as plain data, in parts; the first one has what is left of the oldest block."""
        yield self._fields
        for block in self._blocks:
            yield block.stored()
        notes = [(key, *note) for key, note in self._notes.items()]
        for at in range(0, len(notes), blocks.BLOCK_ROWS):
            yield [notes[at : at + blocks.BLOCK_ROWS]]


class MessageRecord:
    """The record of one queue."""

    __slots__ = (
        "_at",
        "_blocks",
        "_count",
        "_firsts",
        "_head",
        "_ids",
        "_letter_to",
        "_notes",
        "_numbered_from",
        "_window_ms",
        "changes",
        "count",
        "journal",
        "now_ms",
        "since_ms",
        "stored",
        "told",
    )

    def __init__(self, settings: Settings, now_ms: int, since_ms: int) -> None:
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        #: Rows of the first block that are forgotten.
        self._head = 0
        #: Number of ids that are remembered.
        self.count = 0
        self._notes: dict[bytes, Note] = {}
        self.now_ms = now_ms
        #: Everything that was taken after this time is remembered, unless it is too old.
        self.since_ms = since_ms
        #: The ids of the messages of the command that is applied, and the number of its first message. None:
        #: it comes from a node that does not know of the record.
        self._ids: list[bytes] | None = None
        self._numbered_from = 0
        #: The block that was changed last.
        self._at = 0
        #: For a host that has a journal: the changes since it has looked.
        self.changes: list[Change] | None = None
        #: For a host that has a journal: what that has of the record; see message_status.journal.
        self.stored: Any = None
        self.journal: Any = None
        #: For a host that publishes events: (state, reason, position, id) since it has looked.
        self.told: list[tuple[int, int, int, bytes]] | None = None
        self._window_ms = self._count = 0
        self._letter_to: Key | None = None
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take new limits. The next message removes what exceeds them."""
        self._window_ms = settings.message_status_window_ms or 0
        self._count = settings.message_status_count
        if not settings.message_status_events:
            self.told = None
        elif self.told is None:
            self.told = []
        to = settings.dead_letter_to
        self._letter_to = None if to is None else (to, settings.dead_letter_key)

    # -- messages come ---------------------------------------------------------------------------------------

    def begin(self, ids: list[bytes], number: int) -> None:
        """The next command brings messages with these ids, none if no message has one; the first has this
        number before it is taken.
        """
        self._ids, self._numbered_from = ids, number

    def end(self) -> None:
        self._ids = None

    def taken(self, first: int, count: int, number: int) -> None:
        """These positions have been given to messages of the command, the first of which has this number."""
        if self._ids is None:
            # They may have had ids.
            self.since_ms = self.now_ms
        elif self._ids:
            start = number - self._numbered_from
            ids = self._ids[start : start + count]
            self._take(first, ids)

    def _take(self, first: int, ids: list[bytes]) -> None:
        if not any(ids):
            return
        if self.changes is not None:
            self.changes.append(("taken", self.now_ms, first, ids))
        if self.told is not None:
            self.told += [(QUEUED, 0, first + at, each) for at, each in enumerate(ids) if each]
        self.count += len(ids) - ids.count(b"")
        at = 0
        while at < len(ids):
            block = self._open(first + at)
            part = ids[at : at + blocks.BLOCK_ROWS - len(block)]
            block.add(part, self.now_ms)
            at += len(part)
        self.forget()

    def _open(self, first: int) -> Block:
        """Return the block that gets the row of this position next, with room."""
        if self._blocks:
            block = self._own(len(self._blocks) - 1)
            gap = first - block.first - len(block)
            if block.ids is not None and len(block) + gap < blocks.BLOCK_ROWS and 0 <= gap <= GAP_MAX:
                if gap:
                    block.add([b""] * gap, self.now_ms)
                return block
            block.close()
        block = Block(first)
        self._blocks.append(block)
        self._firsts.append(first)
        return block

    def noted(self, numbers: Seqs, state: int, reason: int) -> None:
        """These messages of the command were not taken."""
        if not self._ids:
            return
        start = numbers.start - self._numbered_from
        self._note(self._ids[start : start + len(numbers)], state, reason)

    def _note(self, ids: list[bytes], state: int, reason: int) -> None:
        if not any(ids):
            return
        if self.changes is not None:
            self.changes.append(("noted", self.now_ms, ids, state, reason))
        if self.told is not None:
            self.told += [(state, reason, 0, each) for each in ids if each]
        notes = self._notes
        for each in ids:
            if not each:
                continue
            before = notes.pop(each, None)
            times = 1 if before is None or before.state != state else before.times + 1
            notes[each] = Note(state, reason, self.now_ms, times)
        while len(notes) > min(NOTES_MAX, self._count):
            del notes[next(iter(notes))]

    def forget(self) -> None:
        """Forget the rows that are too old or too many."""
        oldest = self.now_ms - self._window_ms
        while self._blocks:
            block, head = self._blocks[0], self._head
            rows = len(block)
            low = rows if block.queued[rows - 1] <= oldest else bisect_right(block.queued, oldest, head)
            excess = self.count - self._count
            if excess > 0 and not block.blanks:
                low = max(low, min(rows, head + excess))
            elif excess > 0:
                at = head
                while at < rows and (excess > 0 or at < low):
                    excess -= 1 if block.states[at] else 0
                    at += 1
                low = max(low, at)
            if low <= head:
                break
            self.since_ms = max(self.since_ms, block.queued[low - 1])
            self.count -= low - head - (block.states[head:low].count(0) if block.blanks else 0)
            self._head = low
            if low < rows:
                break
            del self._blocks[0], self._firsts[0]
            self._head = self._at = 0

    # -- messages change -------------------------------------------------------------------------------------

    def changed(self, seqs: Seqs, state: int, reason: int = 0, key: Key | None = None) -> None:
        """The messages at these positions have a new state. `key`: the consumer that they are handed to."""
        if isinstance(seqs, Positions):
            for span in seqs.spans():
                self.changed(span, state, reason, key)
            return
        firsts = self._firsts
        if not firsts or seqs[-1] < firsts[0]:
            return
        if state == DEAD_LETTERED:
            key = self._letter_to
        if self.changes is not None:
            self.changes.append(
                ("changed", self.now_ms, seqs.start, seqs.stop, seqs.step, state, reason, key)
            )
        at = self._at
        if at >= len(firsts) or not firsts[at] <= seqs.start < firsts[at] + len(self._blocks[at]):
            at = max(0, bisect_right(firsts, seqs.start) - 1)
        step = seqs.step
        while at < len(firsts):
            first = firsts[at]
            stop = first + len(self._blocks[at])
            low = seqs.start if seqs.start >= first else seqs.start + -((seqs.start - first) // step) * step
            high = min(stop, seqs.stop)
            if low < high:
                self._at = at
                block = self._own(at)
                block.change(low - first, high - first, step, state, reason, key, self.now_ms)
                if self.told is not None:
                    self._tell(block, range(low - first, high - first, step), state, reason)
            if seqs.stop <= stop:
                break
            at += 1

    def _own(self, at: int) -> Block:
        """Return the block to change it: a copy, if a snapshot has it."""
        block = self._blocks[at]
        if block.shared:
            block = self._blocks[at] = block.copy()
        return block

    def _tell(self, block: Block, rows: range, state: int, reason: int) -> None:
        assert self.told is not None
        for row in rows:
            if block.states[row]:
                self.told.append((state, reason, block.first + row, block.id_of(row)))

    # -- questions -------------------------------------------------------------------------------------------

    def find(self, message_id: bytes, now_ms: int) -> Found:
        """Return what is known of an id at this time."""
        oldest = now_ms - self._window_ms
        copies: list[Copy] = []
        may_index = True
        for number in range(len(self._blocks) - 1, -1, -1) if message_id else ():
            block = self._blocks[number]
            if may_index and block.wants_index:
                # One for each question, so that none takes long.
                block.make_index()
                may_index = False
            for row in reversed(block.rows_of(message_id, 0 if number else self._head)):
                if block.queued[row] > oldest and len(copies) < COPIES_MAX:
                    copies.append(block.at(row))
            if len(copies) >= COPIES_MAX:
                break
        copies.reverse()
        note = self._notes.get(message_id)
        if note is not None and note.last_ms <= oldest:
            note = None
        return Found(max(self.since_ms, oldest), copies, note)

    # -- journal and snapshot --------------------------------------------------------------------------------

    def redo(self, change: Change) -> int:
        """Make a change that a journal has; return the highest position that it brought, or -1. Raises
        CodecError.
        """
        try:
            kind, self.now_ms = change[0], change[1]
            if kind == "taken":
                _, _, first, ids = change
                self._take(first, ids)
                return int(first) + len(ids) - 1
            if kind == "changed":
                _, _, start, stop, step, state, reason, key = change
                name = None if key is None else as_key(key)
                self.changed_as(range(start, stop, step), state, reason, name)
                return -1
            if kind == "noted":
                _, _, ids, state, reason = change
                self._note(ids, state, reason)
                return -1
            if kind == "since":
                self.since_ms = max(self.since_ms, int(change[2]))
                return -1
        except (TypeError, ValueError, IndexError) as error:
            raise CodecError(f"no change of a record: {error}") from error
        raise CodecError(f"a record has no change {kind!r}")

    def changed_as(self, seqs: range, state: int, reason: int, key: Key | None) -> None:
        """As `changed`, but dead letters went there."""
        present, self._letter_to = self._letter_to, key
        self.changed(seqs, state, reason, key)
        self._letter_to = present

    def first_position(self) -> int:
        """Return the first position that is remembered."""
        return self._firsts[0] + self._head if self._firsts else 1 << 62

    def recovered(self, present: Iterable[tuple[Seqs, bool]], now_ms: int) -> None:
        """The node has restarted: the queue has the messages at these positions, and those that were
        delivered once are marked. Other open ones are lost.
        """
        self.now_ms = max(self.now_ms, now_ms)
        there = [bytearray(len(block)) for block in self._blocks]
        for seqs, redelivered in present:
            for at, mask in enumerate(there):
                first = self._firsts[at]
                low, high = max(seqs.start, first), min(seqs.stop, first + len(mask))
                if low < high:
                    mask[low - first : high - first] = bytes((1,)) * (high - low)
                    if redelivered:
                        self._blocks[at].were_delivered(low - first, high - first)
        for at, mask in enumerate(there):
            states, first = self._blocks[at].states, self._firsts[at]
            start, wanted = 0, 0
            for row, is_there in enumerate(list(mask)):
                state = states[row]
                becomes = 0
                if is_there and state == DELIVERED:
                    becomes = QUEUED
                elif not is_there and state in (QUEUED, DELIVERED):
                    becomes = DROPPED
                if becomes != wanted:
                    self._reopened(range(first + start, first + row), wanted)
                    start, wanted = row, becomes
            self._reopened(range(first + start, first + len(mask)), wanted)

    def _reopened(self, seqs: range, state: int) -> None:
        if state and seqs:
            self.changed(seqs, state, RESTARTED if state == DROPPED else 0)

    def _fields(self) -> list[int]:
        return [self._head, self.since_ms]

    def view(self) -> View:
        for block in self._blocks:
            block.shared = True
        return View(self._blocks[:], self._fields(), dict(self._notes))

    def restored(self, part: list[Any]) -> None:
        """Put back a part that a view has yielded. Raises CodecError, ValueError, OverflowError,
        TypeError.
        """
        if len(part) == 2:
            self._head, self.since_ms = part
        elif len(part) == 1:
            for key, state, reason, last_ms, count in part[0]:
                self._notes[bytes(key)] = Note(state, reason, last_ms, count)
        else:
            block = block_of(part)
            self._blocks.append(block)
            self._firsts.append(block.first)
            head = self._head if len(self._blocks) == 1 else 0
            if head > len(block) or (len(self._blocks) > 1 and self._firsts[-2] >= block.first):
                raise CodecError("the blocks of a record do not fit together")
            self.count += len(block) - head - (block.states[head:].count(0) if block.blanks else 0)

    def digest(self, update: Callable[[bytes], None]) -> None:
        update(repr(self._fields()).encode())
        for block in self._blocks:
            update(repr((block.first, block.names)).encode())
            update(b"\0".join(block.all_ids()))
            for flat in (block.states, block.reasons, block.deliveries):
                update(bytes(flat))
            for numbers in (block.queued, block.changed, block.holders):
                update(packed(numbers))
        update(_encode([(key, *note) for key, note in self._notes.items()]))
