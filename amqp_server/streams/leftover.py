"""What a stream had in memory when it was deleted, and what its consumers had read: freed some at a time, for
that may be very much, and there may be thousands of consumers.
"""

from __future__ import annotations

from typing import Final

from amqp_server.streams.encode import Encoded
from amqp_server.streams.stream_consumer import StreamConsumer
from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: Consumers whose batches are freed at once; then the turn may be over.
FREED_MAX: Final = 32
#: Bytes of batches, and their number, that are freed at once.
FREED_BYTES_MAX, FREED_BATCHES_MAX = 16 << 20, 512


class Leftover:
    """See amqp_server.turn.Unit."""

    __slots__ = ("_consumers", "_tail", "_turn")

    def __init__(self, consumers: list[StreamConsumer], tail: list[Encoded], turn: Turn) -> None:
        """Consumers get nothing any more from now on."""
        for consumer in consumers:
            consumer.detached = True
        self._consumers = consumers
        self._tail = tail
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
        """See amqp_server.turn.Unit."""
        raise Fatal(f"what a stream had in memory could not be freed: {error!r}") from error


__all__ = ["Leftover"]
