"""Parts of transactions in a replicated stream: messages that get their offsets when the transaction is
decided, so that offsets have no gaps and no reader waits behind an open transaction. Pure.

Until then the state of every member has them, as they came. quorum_queue.machine.parts says what a part is.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from amqp_server.streams.members.entries import (
    COMMIT,
    PEND,
    PREPARE,
    Append,
    PartStep,
    kept,
)
from quorum_queue.machine.parts import INCOMPLETE, READY, TransactionId


class StreamPart(msgspec.Struct, array_like=True):
    """What one transaction appends to this stream."""

    transaction: TransactionId
    #: Number of steps that have come.
    came: int = 0
    prepared: bool = False
    participants: list[int] = []
    appends: list[Append] = []


class StreamParts:
    """The parts that one stream keeps."""

    def __init__(self, parts: Iterable[StreamPart] = ()) -> None:
        self.by_id = {part.transaction: part for part in parts}

    def __len__(self) -> int:
        return len(self.by_id)

    def all(self) -> Iterable[StreamPart]:
        return self.by_id.values()

    def state(self) -> list[StreamPart] | None:
        """Return copies of the parts: steps that come later do not show in them."""
        return [msgspec.structs.replace(part, appends=part.appends[:]) for part in self.all()] or None

    def take(self, step: PartStep) -> tuple[int, list[Append]]:
        """Take a step; return the answer, if it is a PREPARE, and the messages that take effect by it."""
        part = self.by_id.get(step.transaction)
        if step.kind == PEND:
            if part is None:
                part = self.by_id[step.transaction] = StreamPart(step.transaction)
            part.came += 1
            part.appends = [*part.appends, *map(kept, step.appends)]
            return READY, []
        if step.kind == PREPARE:
            if part is None or part.came != step.count:
                self.by_id.pop(step.transaction, None)
                return INCOMPLETE, []
            if step.queues:
                part.prepared, part.participants = True, step.queues
                return READY, []
        if part is None:
            return READY, []
        del self.by_id[step.transaction]
        # A transaction over this stream alone takes effect as soon as it is complete.
        return READY, part.appends if step.kind in (COMMIT, PREPARE) else []


__all__ = ["StreamPart", "StreamParts"]
