"""Limits the bytes that were published and are not safe yet: above a mark, publishing connections are not
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from amqp_server.config import Config
from persistence.commits.commit import Commit
from persistence.journal import Journal

#: At least this much may wait for the disk, even with a tiny memory budget; otherwise publishers would wait
#: for each sync.
UNSYNCED_MIN_BYTES = 1 << 20
#: Interval of checks whether other nodes have received the data sent to them, s.
FLIGHT_WAIT_S = 0.005


class Backpressure:
    def __init__(
        self,
        config: Config,
        journal: Journal,
        commits: Commit,
        spill: Journal,
        spill_commits: Commit,
        flight_bytes: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`flight_bytes` returns the bytes that were published to replicated queues and are not applied here
        yet.
        """
        self._journal = journal
        self._commits = commits
        self._spill = spill
        self._spill_commits = spill_commits
        self._flight_bytes = flight_bytes
        self._sleep = sleep
        # Bytes on their way to the disk are in memory, too, independently of the budget.
        room = max(config.body_budget_bytes // 4, UNSYNCED_MIN_BYTES)
        self.high_bytes = min(config.unsynced_high_bytes, room)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were published and are not safe yet."""
        return max(self._journal.pending_bytes, self._spill.pending_bytes, self._flight_bytes())

    @property
    def ahead(self) -> bool:
        return self.waiting_bytes > self.high_bytes

    def wait(self) -> Awaitable[None]:
        """Wait for the disk or for other nodes, whichever has more bytes on the way."""
        if self._flight_bytes() > self.high_bytes:
            return self._sleep(FLIGHT_WAIT_S)
        if self._spill.pending_bytes > self._journal.pending_bytes:
            return self._spill_commits.barrier()
        return self._commits.barrier()
