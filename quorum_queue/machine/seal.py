"""The decision to delete a queue, taken at a place in its log.

A delete with a condition (if-empty, if-unused, a lease that has ended) seals the queue first. Where the
command ("seal", token, condition) stands in the log, all members find the same: the condition holds or not.
If it holds, the queue is sealed from there on: it takes no message and no consumer any more, and its leader
deletes it from the topology. A seal is never undone, so nothing can come between the decision and the
deletion; whoever leads the queue next finds the seal in the state and deletes the queue.

Publishers of messages behind the seal, and consumers that attach there, are answered when the queue is gone:
as if they had come to a deleted queue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Conditions; their sum is one, too.
#: No consumer is attached.
UNUSED: Final = 1
#: No message is ready, or will be, or is on its way to another queue: picked, or a dead letter whose targets
#: have not taken it.
EMPTY: Final = 2
#: No client has used the queue for the time of its lease. Includes UNUSED.
EXPIRED: Final = 4
CONDITIONS_MAX: Final = UNUSED | EMPTY | EXPIRED

# Outcomes.
SEALED: Final = 0
IN_USE: Final = 1
NOT_EMPTY: Final = 2


class Sealed(NamedTuple):
    """The outcome of a seal, and the number of ready messages then."""

    outcome: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs


def outcome(condition: int, *, consumers: int, ready: int, expired: bool = True) -> int:
    """Return whether a queue with so many consumers and ready messages meets the condition."""
    if condition & (UNUSED | EXPIRED) and consumers:
        return IN_USE
    if condition & EXPIRED and not expired:
        return IN_USE
    if condition & EMPTY and ready:
        return NOT_EMPTY
    return SEALED


__all__ = [
    "CONDITIONS_MAX",
    "EMPTY",
    "EXPIRED",
    "IN_USE",
    "NOT_EMPTY",
    "SEALED",
    "UNUSED",
    "Sealed",
    "outcome",
]
