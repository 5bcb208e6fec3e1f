"""Stands in for the hosts of all deleted queues of a node.

Clients may refer to a deleted queue for long, by messages that they have not acked. That must not keep its
host alive, which has all messages that were ready.
"""

from __future__ import annotations

from collections.abc import Callable

from quorum_queue.host import QueueHost, answer_publishes
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Hosted, Turn


class _Nobody:
    """See quorum_queue.ports.Hosted."""

    name = ""
    disconnected_ms = 0

    @property
    def vhost(self) -> _Nobody:
        return self

    def host_failed(self, error: Exception) -> None:
        raise error

    def consumer_gone(self, left: int) -> None: ...

    def consumers_lost(self) -> None: ...

    def consumer_lost(self, key: object) -> None: ...

    def more_marks(self, count: int) -> list[int]:
        raise NotImplementedError

    def renew(self) -> None: ...

    def sealed(self) -> None: ...

    def messages_changed(self, told: list[tuple[int, int, int, bytes]]) -> None: ...


class DeletedHost(QueueHost):
    """See quorum_queue.ports.Host. The node has one."""

    takes_parts = True
    ready_count = 0
    ready_bytes = 0
    unacked_count = 0
    unacked_bytes = 0
    consumer_count = 0
    resident_bytes = 0

    def __init__(self, turn: Turn) -> None:
        nobody: Hosted = _Nobody()
        super().__init__(nobody, turn)
        self.ended = "deleted"
        self._settings = Settings()

    @property
    def settings(self) -> Settings:
        return self._settings

    def consumers(self) -> list[ConsumerState]:
        return []

    def apply_pending(self) -> None:
        pending, self.pending = self.pending, []
        answer_publishes(pending, gone=True)

    def barrier(self, done: Callable[..., None]) -> None:
        done()

    def touch(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...
