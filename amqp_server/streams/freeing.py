"""The messages that a stream had in memory when it was deleted, and those that its consumers had read ahead.
They are freed step by step: there may be very many of them, and thousands of consumers.
"""

from __future__ import annotations

from typing import Final

from amqp_server.streams.layout.encode import Encoded
from amqp_server.streams.stream_consumer import StreamConsumer
from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: Consumers whose batches are freed in one step; after it the turn may end.
FREED_MAX: Final = 32
#: Bytes and number of batches that are freed in one step.
FREED_BYTES_MAX, FREED_BATCHES_MAX = 16 << 20, 512


class Leftover:
    """See amqp_server.turn.Unit."""

    __slots__ = ("_consumers", "_tail", "_turn")

    def __init__(self, consumers: list[StreamConsumer], tail: list[Encoded], turn: Turn) -> None:
        """Consumers get no more messages from now on."""
        for consumer in consumers:
            consumer.detached = True
        self._consumers = consumers
        self._tail = tail
        self._turn = turn

    def free(self) -> None:
        """Free everything, now or soon."""
        consumers = self._consumers
        while consumers:
            for _ in range(min(len(consumers), FREED_MAX)):
                consumers.pop().let_go()
            if consumers and self._turn.overdue():
                self._turn.later(self, self.free)
                return
        tail = self._tail
        while tail:
            size = count = 0
            while tail and size < FREED_BYTES_MAX and count < FREED_BATCHES_MAX:
                size += tail.pop().batch.size
                count += 1
            if tail and self._turn.overdue():
                self._turn.later(self, self.free)
                return

    def failed(self, error: Exception) -> None:
        raise Fatal(f"what a stream had in memory could not be freed: {error!r}") from error


__all__ = ["Leftover"]
