"""Single columns of queues: to sort a list, one column is read of all queues, and whole rows are made only
for one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from amqp_server.management.statistics.stats import Read, Stats, at, put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.objects.managed_queues import ManagedQueues


def _messages(queue: Queue) -> int:
    host = queue.host
    return host.ready_count + host.unacked_count


def _message_bytes(queue: Queue) -> int:
    host = queue.host
    return host.ready_bytes + host.unacked_bytes


def _vhost(queue: Queue) -> str:
    return queue.vhost.name


def _policy(queue: Queue) -> str | None:
    policy = queue.policies.policy
    return None if policy is None else policy.name


#: Columns that are the same on each node of a cluster.
DECLARED: Mapping[str, Read] = {
    "name": attrgetter("name"),
    "vhost": _vhost,
    "type": attrgetter("type.name"),
    "durable": attrgetter("durable"),
    "auto_delete": attrgetter("auto_delete"),
    "exclusive": attrgetter("exclusive"),
}
#: Columns that only the node that reports the queue knows.
COUNTED: Mapping[str, Read] = {
    "policy": _policy,
    "consumers": attrgetter("host.consumer_count"),
    "messages": _messages,
    "messages_ready": attrgetter("host.ready_count"),
    "messages_unacknowledged": attrgetter("host.unacked_count"),
    "message_bytes": _message_bytes,
    "memory": attrgetter("host.resident_bytes"),
}


class QueueColumns:
    def __init__(self, queues: ManagedQueues, stats: Stats, whole: Callable[[Queue], dict[str, Any]]) -> None:
        """`whole` makes the row of a queue, for columns that are rarely asked for."""
        self._queues = queues
        self._stats = stats
        self._whole = whole

    def read(self, path: Sequence[str]) -> Read:
        """Return a function that reads a column, with the value that a whole row has there."""
        return self._alone(path) or (lambda queue: at(self._whole(queue), path))

    def rows(self, paths: Sequence[Sequence[str]]) -> Callable[[Queue], dict[str, Any]] | None:
        """Return a function that makes rows of these columns only, None if whole rows would not cost more."""
        reads = [(path, read) for path in paths if (read := self._alone(path)) is not None]
        if not paths or len(reads) < len(paths):
            return None

        def row(queue: Queue) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for path, read in reads:
                put(made, path, read(queue))
            return made

        return row

    def _alone(self, path: Sequence[str]) -> Read | None:
        """Return a function that reads a column without a whole row, None if there is none."""
        if len(path) == 1:
            known = DECLARED.get(path[0]) or COUNTED.get(path[0]) or self._told(path[0])
            if known is not None:
                return known
        return self._stats.queue_column(path)

    def _told(self, name: str) -> Read | None:
        return {"node": self._queues.home_of, "state": self._queues.state}.get(name)
