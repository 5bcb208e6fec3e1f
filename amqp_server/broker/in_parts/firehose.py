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

from quorum_queue.steps import Steps

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
        self._copying = Steps(turn, self._copy_in_turns, self._failed, enough=turn.is_full)

    def copy(self, connection: Copied, copies: Iterator[None]) -> None:
        """Make these copies, now or soon. No connection waits for the copies of another one."""
        before = self._waiting.get(connection)
        if before is not None:
            before.append(copies)
        elif not all(not self._turn.is_full() for _ in copies):
            self._waiting[connection] = deque((copies,))
            connection.copies_wait()
            self._copying.begin_later()

    def _copy_in_turns(self) -> Iterator[None]:
        """One copy for each connection, then the next one for each."""
        waiting = self._waiting
        while waiting:
            connection = next(iter(waiting))
            copies = waiting[connection]
            if next(copies[0], self) is self:
                copies.popleft()
            del waiting[connection]
            if copies:
                # Move this connection behind the others.
                waiting[connection] = copies
            else:
                connection.copied()
            yield

    def _failed(self, error: Exception) -> None:
        logger.error("copies for the firehose could not be made", exc_info=error)
        for connection in list(self._waiting):
            del self._waiting[connection]
            connection.copied()


__all__ = ["Firehose"]
