"""What members of replicated queues, streams and groups do about parts of transactions; see
quorum_queue.machine.parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from quorum_queue.ports import Refused, Undecided

#: Answer to a transaction whose part may be here or not: it is rolled back.
UNKNOWN_PART: Final = Refused("it is not known whether the queue took its part of the transaction; try again")

Prepared = Callable[[int | Refused], None]


def applied_parts(host: Any, applied: Any, undecided: Undecided) -> None:
    """Answer the transactions whose parts this entry completed, and note what it left or resolved."""
    for token, outcome in applied.prepared:
        host.answer_prepare(token, outcome)
    if len(host.parts):
        undecided.has_parts(host)
    if applied.resolved and host.group.is_leader:
        undecided.resolved(host.queue_id, applied.resolved)


def when_all_have_it(host: Any, done: Prepared) -> Prepared:
    """Return what calls `done` with the answer to a transaction when all members in reach have its part."""
    return partial(_wait_for_all, host, done)


def _wait_for_all(host: Any, done: Prepared, outcome: int | Refused) -> None:
    if isinstance(outcome, Refused) or host.ended:
        done(outcome)
    else:
        host.group.when_all(host.replica.applied, _Waiting(done, outcome), 1, 1)


class _Waiting:
    """Waits like a publisher."""

    def __init__(self, done: Prepared, outcome: int) -> None:
        self._done = done
        self._outcome = outcome

    def confirmed(self, first: int, last: int) -> None:
        self._done(self._outcome)

    def refused(self, first: int, last: int) -> None:
        self._done(UNKNOWN_PART)

    # Not `gone = refused`: in a compiled class that is an attribute, and no object can be made.
    def gone(self, first: int, last: int) -> None:
        self._done(UNKNOWN_PART)


__all__ = ["UNKNOWN_PART", "Prepared", "applied_parts", "when_all_have_it"]
