"""Stores the record of messages of a durable queue on one node, in its journal (see machine.record).

The changes of a batch lie in one record of the queue, behind its messages and the names of its deduplication:
position 3 << 61 and on. They are written in the transaction of their messages, so after a crash both exist or
neither does. A record is settled when the messages that it is about are forgotten.

    record  u8 version | changes, in MessagePack
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.record.record import Change, MessageRecord
from quorum_queue.ports import Journal

#: Positions from here on belong to the record of messages.
FIRST_POSITION: Final = 3 << 61
VERSION: Final = 1
#: Records of the journal that are settled together.
SETTLED_TOGETHER = 64

_decoder: Final = msgspec.msgpack.Decoder(list[list[Any]])
_encode: Final = msgspec.msgpack.Encoder().encode


class StatusJournal:
    """Writes the changes of one record."""

    __slots__ = ("_first", "_highest", "_journal", "_marks", "_next", "_queue_id", "_record", "_since_ms")

    def __init__(self, journal: Journal, queue_id: int, record: MessageRecord, stored: Stored | None) -> None:
        """`stored`: what the journal has of the record already."""
        self._journal = journal
        self._queue_id = queue_id
        self._record = record
        if stored is None:
            stored = Stored()
        #: Positions that are not settled.
        self._first, self._next = stored.first, stored.next
        #: (position behind some records, highest position of a message that they or earlier ones are about)
        self._marks: deque[tuple[int, int]] = stored.marks
        self._highest = stored.highest
        #: What the journal says.
        self._since_ms = -1
        record.changes = []

    def note(self) -> bool:
        """Write the changes since the last call; return whether there were any."""
        record = self._record
        changes = record.changes
        if not changes and record.since_ms == self._since_ms:
            return False
        assert changes is not None
        record.changes = []
        for change in changes:
            if change[0] == "taken":
                self._highest = max(self._highest, change[2] + len(change[3]) - 1)
        if record.since_ms != self._since_ms:
            self._since_ms = record.since_ms
            changes.append(("since", record.now_ms, record.since_ms))
        payload = [bytes((VERSION,)), _encode(changes)]
        self._journal.append(self._queue_id, self._next, 1, payload, head_parts=2)
        self._next += 1
        if self._next % SETTLED_TOGETHER == 0:
            self._marks.append((self._next, self._highest))
            self._settle()
        return True

    def _settle(self) -> None:
        """Delete the records that are about forgotten messages only."""
        first, marks, stop = self._record.first_position(), self._marks, self._first
        # The last record says since when everything is remembered.
        while marks and marks[0][1] < first and marks[0][0] < self._next:
            stop = marks.popleft()[0]
        if stop > self._first:
            self._journal.settle(self._queue_id, range(self._first, stop))
            self._first = stop

    def end(self) -> None:
        """The queue keeps no record any more."""
        if self._next > self._first:
            self._journal.settle(self._queue_id, range(self._first, self._next))
        self._first = self._next


class Stored:
    """What a journal has of the record of one queue."""

    __slots__ = ("first", "highest", "marks", "next")

    def __init__(self, first: int = FIRST_POSITION) -> None:
        self.first = self.next = first
        self.marks: deque[tuple[int, int]] = deque()
        self.highest = -1

    @property
    def is_empty(self) -> bool:
        return self.next == self.first

    def put(self, record: MessageRecord, position: int, payload: bytes | memoryview) -> None:
        """Make the changes of the record of the journal at this position; they come in order. Raises
        CodecError.
        """
        if self.is_empty:
            self.first = position
        self.next = position + 1
        if len(payload) < 2 or payload[0] != VERSION:
            raise CodecError(f"this mqd reads version {VERSION} of records of messages")
        try:
            changes = _decoder.decode(payload[1:])
        except msgspec.MsgspecError as error:
            raise CodecError(f"no changes of a record: {error}") from error
        for change in changes:
            redone: Change = tuple(change)
            self.highest = max(self.highest, record.redo(redone))
        if self.next % SETTLED_TOGETHER == 0:
            self.marks.append((self.next, self.highest))


__all__ = ["FIRST_POSITION", "StatusJournal", "Stored"]
