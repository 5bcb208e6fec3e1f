"""The node's budget for message bodies in memory.

A queue counts its bodies in memory. When all queues together exceed the budget, the newest bodies of the
largest queues leave memory: they are delivered last. They are in the journal already, or go to the spill
first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum_queue.unsent_bytes import Unsent


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How many bytes of bodies on disk each queue reads ahead."""

    #: Bodies brought back ahead of the head of the queue.
    memory_bytes: int = 512 * 1024
    #: Further bodies that the disk reads meanwhile.
    disk_bytes: int = 4 * 1024 * 1024


class Pageable(Protocol):
    resident_bytes: int

    def page_out(self, bytes_wanted: int) -> int: ...


class MemoryBudget:
    """Counts body bytes over all queues of the node."""

    #: No relief frees memory below this fraction of the budget.
    LOW = 0.9
    #: One relief frees memory down to this far below the budget, so that relief is rare. It frees no more,
    #: because bodies may have to be written to the spill while others wait.
    STEP_BYTES = 2 << 20
    #: Most queues that one relief looks at.
    LOOKS_MAX = 256

    def __init__(self, budget_bytes: int, unsent: Unsent | None = None) -> None:
        self.budget_bytes = budget_bytes
        #: Bytes that have left the queues and are still in memory.
        self.unsent = unsent or Unsent()
        self.used = 0
        #: Number of bodies that have left memory since the start.
        self.paged_out_bytes = 0
        self._queues: dict[Pageable, None] = {}
        #: Queues with bodies in memory when the list was made, the largest last; relieved queues are removed.
        self._largest: dict[Pageable, None] = {}

    def register(self, queue: Pageable) -> None:
        self._queues[queue] = None

    def forget(self, queue: Pageable) -> None:
        self._queues.pop(queue, None)
        self._largest.pop(queue, None)

    def relieve(self) -> None:
        """Page out until memory is within the budget again, as far as possible now."""
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
                # The queue may have been deleted meanwhile.
                self._largest.pop(queue, None)


def _resident_bytes(queue: Pageable) -> int:
    return queue.resident_bytes
