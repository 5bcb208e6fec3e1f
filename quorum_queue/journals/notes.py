"""What the journal notes of messages of a queue on one node: how often they came back, until when they wait,
why they are dead letters that wait for their targets, and which mark says that they were delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from quorum_queue.machine.attributes import RANK_PLAIN, rank_of
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.run import Run

#: attempts, acquired, due_ms (0: it does not wait)
_NOTE: Final = struct.Struct(">IIQ")
#: Only attempts: mqd 0.2 and before.
_OLD: Final = struct.Struct(">I")
#: A dead letter that the queue holds: attempts, acquired, and the reason's place in _REASONS.
_DEAD: Final = struct.Struct(">IIB")
_REASONS: Final[tuple[Reason, ...]] = ("rejected", "expired", "maxlen", "delivery_limit")


class Note(NamedTuple):
    """See quorum_queue.machine.run."""

    attempts: int = 0
    acquired: int = 0
    due_ms: int = 0
    #: Why the message is a dead letter; None if it is none.
    dead: Reason | None = None


def encode_note(run: Run, due_ms: int) -> bytes:
    return _NOTE.pack(run.attempts, run.acquired, due_ms)


def encode_death(run: Run, reason: Reason) -> bytes:
    return _DEAD.pack(run.attempts, run.acquired, _REASONS.index(reason))


def decode_note(data: bytes | None) -> Note:
    if data is None:
        return Note()
    if len(data) == _OLD.size:
        return Note(*_OLD.unpack(data))
    if len(data) == _DEAD.size:
        attempts, acquired, reason = _DEAD.unpack(data)
        return Note(attempts, acquired, dead=_REASONS[reason])
    return Note(*_NOTE.unpack(data))


def deaths_in(notes: Mapping[int, bytes]) -> dict[int, Note]:
    """Return the notes of dead letters among these, by position."""
    return {seq: decode_note(note) for seq, note in notes.items() if len(note) == _DEAD.size}


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


__all__ = ["Note", "deaths_in", "decode_note", "encode_death", "encode_note", "mark_of"]
