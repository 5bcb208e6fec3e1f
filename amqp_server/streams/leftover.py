"""What the consumers of a stream had read when it was deleted: freed some at a time, for there may be thousands."""

from __future__ import annotations

from typing import Final

from amqp_server.streams.stream_consumer import StreamConsumer
from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: Consumers whose batches are freed at once; then the turn may be over.
FREED_MAX: Final = 32


class Leftover:
    """See amqp_server.turn.Unit."""

    __slots__ = ("_consumers", "_turn")

    def __init__(self, consumers: list[StreamConsumer], turn: Turn) -> None:
        """They get nothing any more from now on."""
        for consumer in consumers:
            consumer.detached = True
        self._consumers = consumers
        self._turn = turn

    def free(self) -> None:
        """Free all of it, now or soon."""
        consumers = self._consumers
        while consumers:
            for _ in range(min(len(consumers), FREED_MAX)):
                consumers.pop().let_go()
            if consumers and self._turn.overdue():
                self._turn.later(self, self.free)
                return

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        raise Fatal(f"what the consumers of a stream had read could not be freed: {error!r}") from error


__all__ = ["Leftover"]
