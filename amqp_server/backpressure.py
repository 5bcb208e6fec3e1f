"""Bounds what is published and not safe yet: above a mark, connections that publish are not read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from amqp_server.config import Config
from persistence.commit import Commit
from persistence.journal import Journal

#: This much may wait for the disk however small the memory budget is, or publishers would wait for each sync.
UNSYNCED_MIN_BYTES = 1 << 20
#: Between two looks at whether what was sent to other nodes has arrived, s.
FLIGHT_WAIT_S = 0.005


class Backpressure:
    """See connection.listener.Backpressure."""

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
        """`flight_bytes` returns what was published to replicated queues and is not applied here."""
        self._journal = journal
        self._commits = commits
        self._spill = spill
        self._spill_commits = spill_commits
        self._flight_bytes = flight_bytes
        self._sleep = sleep
        # What is on its way to the disk is in memory, too, whatever the budget says.
        room = max(config.body_budget_bytes // 4, UNSYNCED_MIN_BYTES)
        self.high_bytes = min(config.unsynced_high_bytes, room)

    @property
    def waiting_bytes(self) -> int:
        """What was published and is not safe yet."""
        return max(self._journal.pending_bytes, self._spill.pending_bytes, self._flight_bytes())

    @property
    def ahead(self) -> bool:
        return self.waiting_bytes > self.high_bytes

    def wait(self) -> Awaitable[None]:
        """Wait for what takes up most memory: on its way to the disk, or to other nodes."""
        if self._flight_bytes() > self.high_bytes:
            return self._sleep(FLIGHT_WAIT_S)
        if self._spill.pending_bytes > self._journal.pending_bytes:
            return self._spill_commits.barrier()
        return self._commits.barrier()
