"""Makes the firehose's copies of deliveries, as many as the turn has time for.

A copy takes many times longer than a delivery. A connection whose copies are not made yet gets no further
deliveries. So the number of waiting copies is at most that of one delivery run. (Published messages are
copied before they are handed over, see channel.publish.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqp_server.turn import Turn

logger = logging.getLogger("mqd.broker")


class Copied(Protocol):
    """A connection whose deliveries are copied."""

    def copies_wait(self) -> None:
        """Deliver nothing to the connection for now."""

    def copied(self) -> None:
        """The connection may get deliveries again."""


class Firehose:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: The iterators that make copies, in order, for each waiting connection; the next connection first.
        self._waiting: dict[Copied, deque[Iterator[None]]] = {}

    def copy(self, connection: Copied, copies: Iterator[None]) -> None:
        """Make these copies, now or soon. No connection waits for the copies of another one."""
        before = self._waiting.get(connection)
        if before is not None:
            before.append(copies)
        elif not all(not self._turn.is_full() for _ in copies):
            self._waiting[connection] = deque((copies,))
            connection.copies_wait()
            self._turn.later(self, self._go_on)

    def _go_on(self) -> None:
        waiting, turn = self._waiting, self._turn
        while waiting:
            connection = next(iter(waiting))
            copies = waiting.pop(connection)
            if next(copies[0], self) is self:
                copies.popleft()
            if copies:
                # Move this connection behind the others.
                waiting[connection] = copies
            else:
                connection.copied()
            if waiting and turn.is_full():
                turn.later(self, self._go_on)
                return

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        logger.error("copies for the firehose could not be made", exc_info=error)
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.copied()


__all__ = ["Firehose"]
