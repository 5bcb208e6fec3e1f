"""Counts the queues that each node should lead, and is a member of: the placement of new queues depends on
these counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amqp_server.broker.declared.records import QueueRecord
from amqp_server.broker.topology.queue import Queue

#: A worker makes new queues for its clients itself, until it has this many more than another one, and half as
#: many again.
SPARE: Final = 16


class Placed:
    """Updated with each change: counting ten thousand queues for each new one would take longer than its
    declaration.
    """

    def __init__(self) -> None:
        self.leaders: dict[str, int] = {}
        self.members: dict[str, int] = {}
        #: Queues that are led by each node, or are only there.
        self.homes: dict[str, int] = {}
        #: The nodes of each queue as counted.
        self._records: dict[int, QueueRecord] = {}

    def put(self, queue: Queue) -> None:
        """Count a new queue, or one whose nodes have changed."""
        self.remove(queue.queue_id)
        self._records[queue.queue_id] = queue.record
        self._count(queue.record, 1)

    def remove(self, queue_id: int) -> None:
        record = self._records.pop(queue_id, None)
        if record is not None:
            self._count(record, -1)

    def emptier(self, own: str, others: Iterable[str]) -> str:
        """Return the node for a new queue of a client of `own`: itself, or one that has far fewer."""
        least = min(others, key=lambda name: (self.homes.get(name, 0), name), default=own)
        crowded = 2 * self.homes.get(own, 0) > 2 * SPARE + 3 * self.homes.get(least, 0)
        return least if crowded else own

    def _count(self, record: QueueRecord, by: int) -> None:
        home = record.leader or record.node
        self.homes[home] = self.homes.get(home, 0) + by
        self.leaders[record.leader] = self.leaders.get(record.leader, 0) + by
        for node in record.members:
            self.members[node] = self.members.get(node, 0) + by
