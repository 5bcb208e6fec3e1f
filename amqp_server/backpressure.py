"""Limits the bytes that were published and are not safe yet: above a mark, publishing connections are not
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from amqp_server.config import Config
from persistence.commits.commit import Commit

#: At least this much may wait for the disk, even with a tiny memory budget; otherwise publishers would wait
#: for each sync.
UNSYNCED_MIN_BYTES = 1 << 20
#: Interval of checks whether other nodes have received the data sent to them, s.
FLIGHT_WAIT_S = 0.005


class Backpressure:
    def __init__(
        self,
        config: Config,
        commits: Commit,
        spill_commits: Commit,
        flight_bytes: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`flight_bytes` returns the bytes that were published to replicated queues and are not applied here
        yet.
        """
        self._commits = commits
        self._waiting = commits.pending
        self._spill_commits = spill_commits
        self._spilling = spill_commits.pending
        self._flight_bytes = flight_bytes
        self._sleep = sleep
        # Bytes on their way to the disk are in memory, too, independently of the budget.
        room = max(config.body_budget_bytes // 4, UNSYNCED_MIN_BYTES)
        self.high_bytes = min(config.unsynced_high_bytes, room)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were published and are not safe yet."""
        return max(self._waiting.bytes, self._spilling.bytes, self._flight_bytes())

    @property
    def ahead(self) -> bool:
        # Each read of a publisher asks this.
        high = self.high_bytes
        return self._waiting.bytes > high or self._spilling.bytes > high or self._flight_bytes() > high

    def wait(self) -> Awaitable[None]:
        """Wait for the disk or for other nodes, whichever has more bytes on the way."""
        if self._flight_bytes() > self.high_bytes:
            return self._sleep(FLIGHT_WAIT_S)
        if self._spilling.bytes > self._waiting.bytes:
            return self._spill_commits.barrier()
        return self._commits.barrier()
