"""Counts the queues that each node should lead, and is a member of: the placement of new queues depends on
these counts.
"""

from __future__ import annotations

from amqp_server.broker.declared.records import QueueRecord
from amqp_server.broker.topology.queue import Queue


class Placed:
    """Updated with each change: counting ten thousand queues for each new one would take longer than its
    declaration.
    """

    def __init__(self) -> None:
        self.leaders: dict[str, int] = {}
        self.members: dict[str, int] = {}
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

    def _count(self, record: QueueRecord, by: int) -> None:
        self.leaders[record.leader] = self.leaders.get(record.leader, 0) + by
        for node in record.members:
            self.members[node] = self.members.get(node, 0) + by
