"""Makes and closes the hosts of very many queues, a part in each turn.

One change of the topology makes or deletes the thousand partitions of a super stream, all or none. That step
adds or removes their records. Their hosts take longer, above all in a cluster, where each host has a group.
When the turn is overdue, the remaining hosts are made in later turns, or when they are first used. A node
that ends in between has the records: at its next start it starts all queues that they name, and deletes the
stored data of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.turn import Turn
    from quorum_queue.ports import Host


class ComingHost:
    """Stands in for a host that has not been made yet. Any use of it makes the host."""

    def __init__(self, queue: Queue, parts: HostParts) -> None:
        self._queue = queue
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts.begun(self._queue), name)

    def close(self) -> None:
        """The queue was deleted before it had a host."""
        self._parts.forget(self._queue)


class HostParts:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: The calls that make the remaining hosts, and hosts to be closed.
        self._coming: dict[Queue, Callable[[], object]] = {}
        self._closing: deque[tuple[Queue, Callable[[], object]]] = deque()
        self._steps = Steps(turn, self._make_and_close, "hosts of queues could not be made or closed")

    @property
    def left(self) -> int:
        """Number of hosts that are still to be made or closed."""
        return len(self._coming) + len(self._closing)

    def begin(self, queue: Queue, make: Callable[[], object]) -> None:
        """Make the host of a queue, now or soon."""
        if not self.left and not self._turn.overdue():
            self._turn.contain(queue, make)
            return
        queue.host = cast("Host", ComingHost(queue, self))
        self._coming[queue] = make
        self._steps.begin_later()

    def begun(self, queue: Queue) -> Host:
        """Return the host of a queue; make it now if it does not exist yet."""
        make = self._coming.pop(queue, None)
        if make is not None:
            self._turn.contain(queue, make)
        return queue.host

    def forget(self, queue: Queue) -> None:
        """The queue is deleted: it needs no host."""
        self._coming.pop(queue, None)

    def close(self, queue: Queue, close: Callable[[], object]) -> None:
        """Close the host of a deleted queue, now or soon."""
        if not self.left and not self._turn.overdue():
            self._turn.contain(queue, close)
            return
        self._closing.append((queue, close))
        self._steps.begin_later()

    def _make_and_close(self) -> Iterator[None]:
        while self._closing or self._coming:
            if self._closing:
                queue, close = self._closing.popleft()
                self._turn.contain(queue, close)
            else:
                self.begun(next(iter(self._coming)))
            if self.left:
                yield


__all__ = ["ComingHost", "HostParts"]
