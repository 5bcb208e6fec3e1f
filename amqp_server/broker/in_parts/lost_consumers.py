"""Tells consumers that their queue is deleted or has lost them: some in each turn, because one queue may have
tens of thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.turn import Turn
    from quorum_queue.ports import Host

#: Consumers that are told before the turn may end.
TOLD_MAX = 24


class LostConsumer(Protocol):
    key: Any

    def queue_gone(self) -> None: ...


class LostConsumers:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        #: Deleted queues whose consumers still get messages.
        self._served: dict[Queue, None] = {}
        #: Subscriptions of each queue that have not been told yet, the next one last.
        self._queues: deque[tuple[Queue, list[LostConsumer]]] = deque()
        #: Called when all subscriptions of a queue are told.
        self._waiting: dict[Queue, list[Callable[[], None]]] = {}
        # Consumer groups are queues themselves, and this gives them work.
        self._telling = Steps(
            turn,
            self._tell_some,
            "consumers could not be told that their queue is gone",
            enough=turn.is_full,
        )

    def tell(self, queue: Queue, subscriptions: list[LostConsumer]) -> None:
        """Tell these subscriptions that the queue is gone, now or soon; not those that end before."""
        subscriptions.reverse()
        self._queues.append((queue, subscriptions))
        self._telling.go_on()

    def tell_last(self, queue: Queue, host: Host, subscriptions: list[LostConsumer]) -> None:
        """Tell them when the host of the deleted queue has handed them all that is theirs."""
        self._served[queue] = None
        host.when_over(partial(self._all_served, queue, subscriptions))

    def _all_served(self, queue: Queue, subscriptions: list[LostConsumer]) -> None:
        del self._served[queue]
        self.tell(queue, subscriptions)

    def when_told(self, queue: Queue, done: Callable[[], None]) -> None:
        """Call `done` when all consumers of the queue are told."""
        if queue in self._served or any(each is queue for each, _ in self._queues):
            self._waiting.setdefault(queue, []).append(done)
        else:
            done()

    def _tell_some(self) -> Iterator[None]:
        queues = self._queues
        while queues:
            queue, left = queues[0]
            count = 0
            while left:
                if count == TOLD_MAX:
                    count = 0
                    yield
                    continue
                count += 1
                subscription = left.pop()
                known: LostConsumer | None = queue.subscriptions.get(subscription.key)
                if known is subscription:
                    del queue.subscriptions[subscription.key]
                    subscription.queue_gone()
            queues.popleft()
            for done in self._waiting.pop(queue, ()):
                done()


__all__ = ["LostConsumers"]
