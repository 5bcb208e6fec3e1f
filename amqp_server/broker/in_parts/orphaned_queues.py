"""Deletes the queues of owners that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.replication import Done, Result
from amqp_server.turn import Turn
from quorum_queue.ports import Refused
from quorum_queue.steps import Steps


class OrphanedQueues:
    """Some queues are deleted in each turn, because one owner may have many."""

    def __init__(self, turn: Turn, propose: Callable[[Operation, Done | None], None]) -> None:
        self._turn = turn
        self._propose = propose
        #: The queues of each owner, the next one last, with the function to call. Plain tuples: to make
        #: thousands of objects takes long.
        self._owners: deque[tuple[list[Queue], Callable[[Queue, Result | Refused], None] | None]] = deque()
        self._deleting = Steps(turn, self._delete_each, "queues could not be deleted")

    def add(
        self, queues: Iterable[Queue], gone: Callable[[Queue, Result | Refused], None] | None = None
    ) -> None:
        left = list(queues)
        left.reverse()
        self._owners.append((left, gone))
        if self._turn.overdue():
            self._deleting.begin_later()
        else:
            self._deleting.go_on()

    def _delete_each(self) -> Iterator[None]:
        owners = self._owners
        while owners:
            queues, gone = owners[0]
            while queues:
                queue = queues.pop()
                self._propose(queue.deletion, None if gone is None else partial(gone, queue))
                yield
            owners.popleft()
