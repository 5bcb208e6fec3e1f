"""The node's budget for message bodies in memory.

A queue counts what it holds; when all together hold more than the budget, the newest bodies of the largest queues are
dropped from memory, which are the last to be delivered. They are in the journal already, or go to the spill first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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

    #: Fraction of the budget down to which one relief goes, so that relief is rare.
    LOW = 0.9

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used = 0
        #: Bodies that have left memory, since the start.
        self.paged_out_bytes = 0
        self._queues: dict[Pageable, None] = {}

    def register(self, queue: Pageable) -> None:
        self._queues[queue] = None

    def forget(self, queue: Pageable) -> None:
        self._queues.pop(queue, None)

    def relieve(self) -> None:
        """Page out until the budget holds again, as far as it can be done now."""
        wanted = self.used - int(self.budget_bytes * self.LOW)
        for queue in sorted(self._queues, key=lambda queue: -queue.resident_bytes):
            if wanted <= 0 or queue.resident_bytes == 0:
                return
            released = queue.page_out(wanted)
            self.paged_out_bytes += released
            wanted -= released
