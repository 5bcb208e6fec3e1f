"""Deletes the queues of owners that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.replication import Done, Result
from amqp_server.turn import Turn
from quorum_queue.boundary import Fatal
from quorum_queue.ports import Refused


class Deletions:
    """Some queues are deleted in each turn, because one owner may have many."""

    def __init__(self, turn: Turn, propose: Callable[[Operation, Done | None], None]) -> None:
        self._turn = turn
        self._propose = propose
        #: The queues of each owner, the next one last, with the function to call. Plain tuples: to make
        #: thousands of objects takes long.
        self._owners: deque[tuple[list[Queue], Callable[[Queue, Result | Refused], None] | None]] = deque()

    def add(
        self, queues: Iterable[Queue], gone: Callable[[Queue, Result | Refused], None] | None = None
    ) -> None:
        left = list(queues)
        left.reverse()
        self._owners.append((left, gone))
        self._go_on()

    def _go_on(self) -> None:
        owners = self._owners
        while owners:
            queues, gone = owners[0]
            if not queues:
                owners.popleft()
                continue
            if self._turn.overdue():
                self._turn.later(self, self._go_on)
                return
            queue = queues.pop()
            self._propose(queue.deletion, None if gone is None else partial(gone, queue))

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        raise Fatal(f"queues could not be deleted: {error!r}") from error
