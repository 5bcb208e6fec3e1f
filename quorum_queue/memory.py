"""The node's budget for message bodies in memory.

A queue counts what it holds; when all together hold more than the budget, the newest bodies of the largest queues are
dropped from memory, which are the last to be delivered. They are in the journal already, or go to the spill first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum_queue.unsent import Unsent


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How much of what left memory is read before it is wanted; for each queue."""

    #: Bodies brought back ahead of the head of the queue.
    memory_bytes: int = 512 * 1024
    #: Bodies beyond that which the disk is asked for, and reads while those are delivered.
    disk_bytes: int = 4 * 1024 * 1024


class Pageable(Protocol):
    resident_bytes: int

    def page_out(self, bytes_wanted: int) -> int: ...


class MemoryBudget:
    """Counts body bytes over all queues of the node."""

    #: Fraction of the budget below which no relief goes.
    LOW = 0.9
    #: One relief goes this far below the budget, so that relief is rare, and no further: bodies may have to be written
    #: to the spill, and others wait meanwhile.
    STEP_BYTES = 2 << 20
    #: Queues that one relief looks at.
    LOOKS_MAX = 256

    def __init__(self, budget_bytes: int, unsent: Unsent | None = None) -> None:
        self.budget_bytes = budget_bytes
        #: What has left the queues and is still in memory.
        self.unsent = unsent or Unsent()
        self.used = 0
        #: Bodies that have left memory, since the start.
        self.paged_out_bytes = 0
        self._queues: dict[Pageable, None] = {}
        #: Queues that had bodies in memory when this was made, the largest last; those that are done with are gone.
        self._largest: dict[Pageable, None] = {}

    def register(self, queue: Pageable) -> None:
        self._queues[queue] = None

    def forget(self, queue: Pageable) -> None:
        self._queues.pop(queue, None)
        self._largest.pop(queue, None)

    def relieve(self) -> None:
        """Page out until the budget holds again, as far as it can be done now."""
        low = max(int(self.budget_bytes * self.LOW), self.budget_bytes - self.STEP_BYTES)
        wanted = self.used - low
        found = False
        for _ in range(self.LOOKS_MAX):
            if wanted <= 0:
                return
            if not self._largest:
                if found:
                    return
                found = True
                resident = [queue for queue in self._queues if queue.resident_bytes]
                self._largest = dict.fromkeys(sorted(resident, key=_resident_bytes))
                if not resident:
                    return
            queue = next(reversed(self._largest))
            released = queue.page_out(wanted)
            self.paged_out_bytes += released
            wanted -= released
            if wanted > 0:
                # It may have gone meanwhile.
                self._largest.pop(queue, None)


def _resident_bytes(queue: Pageable) -> int:
    return queue.resident_bytes
