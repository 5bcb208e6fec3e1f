"""Tells consumers that their queue is deleted or has lost them: some in each turn, because one queue may have
tens of thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from quorum_queue.boundary import Fatal

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.turn import Turn

#: Consumers that are told before the turn may end.
TOLD_MAX = 24


class Told(Protocol):
    key: Any

    def queue_gone(self) -> None: ...


class LostConsumers:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: Subscriptions of each queue that have not been told yet, the next one last.
        self._queues: deque[tuple[Queue, list[Told]]] = deque()
        #: Called when all subscriptions of a queue are told.
        self._waiting: dict[Queue, list[Callable[[], None]]] = {}

    def tell(self, queue: Queue, subscriptions: list[Told]) -> None:
        """Tell these subscriptions that the queue is deleted, now or soon; not those that end before."""
        subscriptions.reverse()
        self._queues.append((queue, subscriptions))
        if len(self._queues) == 1:
            self._go_on()

    def when_told(self, queue: Queue, done: Callable[[], None]) -> None:
        """Call `done` when all consumers of the queue are told."""
        if any(each is queue for each, _ in self._queues):
            self._waiting.setdefault(queue, []).append(done)
        else:
            done()

    def _go_on(self) -> None:
        queues, turn = self._queues, self._turn
        while queues:
            queue, left = queues[0]
            count = 0
            while left:
                subscription = left.pop()
                known: Told | None = queue.subscriptions.get(subscription.key)
                if known is subscription:
                    del queue.subscriptions[subscription.key]
                    subscription.queue_gone()
                count += 1
                if count >= TOLD_MAX and left:
                    count = 0
                    # Consumer groups are queues themselves, and this gives them work.
                    if turn.is_full():
                        turn.later(self, self._go_on)
                        return
            queues.popleft()
            for done in self._waiting.pop(queue, ()):
                done()

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        raise Fatal(f"consumers could not be told that their queue is gone: {error!r}") from error


__all__ = ["LostConsumers"]
