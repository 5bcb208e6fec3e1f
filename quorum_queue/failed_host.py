"""Stands in for a queue that has failed on this node and that no other node serves: it refuses everything."""

from __future__ import annotations

from collections.abc import Callable

from quorum_queue.host import QueueHost, answer_publishes
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Hosted, Refused, Turn


class FailedHost(QueueHost):
    """See quorum_queue.ports.Host. The stored data is kept until the queue is restarted or deleted."""

    __slots__ = ("_drop", "_settings", "_why")

    takes_parts = True
    ready_count = 0
    ready_bytes = 0
    unacked_count = 0
    unacked_bytes = 0
    consumer_count = 0
    resident_bytes = 0

    def __init__(
        self, queue: Hosted, turn: Turn, settings: Settings, why: str, drop: Callable[[], None]
    ) -> None:
        """`why` is the text for clients; `drop` deletes the stored data of the queue."""
        super().__init__(queue, turn)
        self.ended = "failed"
        self._settings = settings
        self._why = why
        self._drop = drop

    @property
    def settings(self) -> Settings:
        return self._settings

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    def consumers(self) -> list[ConsumerState]:
        return []

    @property
    def ended_text(self) -> str:
        return self._why

    def apply_pending(self) -> None:
        pending, self.pending = self.pending, []
        answer_publishes(pending, gone=self.ended == "deleted")

    def barrier(self, done: Callable[..., None]) -> None:
        if self.ended == "deleted":
            done()
        else:
            done(Refused(self._why))

    def touch(self) -> None: ...

    def wake(self) -> None: ...

    def failed(self, error: Exception) -> None:
        """This host cannot fail."""
        raise error

    def close(self) -> None:
        self.ended = "deleted"
        self._drop()
        self.apply_pending()
