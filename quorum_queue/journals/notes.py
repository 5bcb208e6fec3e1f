"""What the journal notes of messages of a queue on one node: how often they came back, until when they wait,
and which mark says that they were delivered.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from quorum_queue.machine.attributes import RANK_PLAIN, rank_of
from quorum_queue.machine.run import Run

#: attempts, acquired, due_ms (0: it does not wait)
_NOTE: Final = struct.Struct(">IIQ")
#: Only attempts: mqd 0.2 and before.
_OLD: Final = struct.Struct(">I")


class Note(NamedTuple):
    """See quorum_queue.machine.run."""

    attempts: int = 0
    acquired: int = 0
    due_ms: int = 0


def encode_note(run: Run, due_ms: int) -> bytes:
    return _NOTE.pack(run.attempts, run.acquired, due_ms)


def decode_note(data: bytes | None) -> Note:
    if data is None:
        return Note()
    if len(data) == _OLD.size:
        return Note(*_OLD.unpack(data))
    return Note(*_NOTE.unpack(data))


def mark_of(priority: int, marks: int, *, strict: bool) -> int:
    """Return which of so many marks counts for messages with this priority, -1 for none.

    A queue with strict priorities has one mark as long as no message has another rank than those without a
    priority: so that rank has the first mark, and rank 0 its place.
    """
    if strict:
        rank = rank_of(priority)
        place = 0 if rank == RANK_PLAIN else RANK_PLAIN if rank == 0 else rank
    else:
        place = max(priority, 0)
    return min(place, marks - 1)


__all__ = ["Note", "decode_note", "encode_note", "mark_of"]
