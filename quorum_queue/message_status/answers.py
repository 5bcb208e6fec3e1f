"""Answers to what became of a message, with times of the wall clock, as a host gives them and links carry
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.record.states import (
    REASONS,
    STATES,
    Copy,
    Found,
    Note,
)
from quorum_queue.ports import Refused

NO_RECORD: Final = Refused("the queue keeps no record of messages, or not yet")
NO_MAJORITY: Final = Refused("the queue has no majority in reach; try again")

Done = Callable[[Found | Refused], None]


def answer(machine: Machine, message_id: bytes, now_ms: int, wall_ms: int) -> Found | Refused:
    """Return what the queue's record knows at this time of the queue, which is that time of the wall
    clock.
    """
    record = machine.record
    if record is None:
        # A replicated queue begins its record with its first entry.
        empty = machine.settings.records and machine.next_seq == 1
        return Found(0, [], None) if empty else NO_RECORD
    found, by = record.find(message_id, now_ms), wall_ms - now_ms
    copies = [
        each._replace(queued_ms=each.queued_ms + by, changed_ms=each.changed_ms + by) for each in found.copies
    ]
    note = None if found.note is None else found.note._replace(last_ms=found.note.last_ms + by)
    # A queue knows everything since its declaration, which has no time.
    return Found(found.since_ms + by if found.since_ms > 0 else 0, copies, note)


def plain(found: Found | Refused) -> Any:
    """Return an answer as plain data."""
    if isinstance(found, Refused):
        return found.text
    note = None if found.note is None else list(found.note)
    return [found.since_ms, [list(each) for each in found.copies], note]


def of_plain(data: Any) -> Found | Refused:
    """Return the answer of plain data from another node. Raises CodecError."""
    if isinstance(data, str):
        return Refused(data)
    try:
        since_ms, copies, note = data
        found = Found(
            since_ms,
            [Copy(*map(_as_tuple, each)) for each in copies],
            None if note is None else Note(*note),
        )
        states = [(each.state, each.reason) for each in found.copies]
        if found.note is not None:
            states.append((found.note.state, found.note.reason))
        for state, reason in states:
            if not (0 <= state < len(STATES) and 0 <= reason < len(REASONS)):
                raise CodecError(f"no state of a message has the numbers {state} and {reason}")
    except (TypeError, ValueError) as error:
        raise CodecError(f"no answer about a message: {error}") from error
    return found


def _as_tuple(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field


__all__ = ["NO_MAJORITY", "NO_RECORD", "Done", "answer", "of_plain", "plain"]
