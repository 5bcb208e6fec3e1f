"""Tells consumer groups that their streams, or the permissions for these, have changed: some in each turn, as
one stream may have thousands of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_server.broker.group_members import check_members
from quorum_queue.host import QueueHost
from quorum_queue.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqp_server.broker.topology.queue import Queue
    from amqp_server.turn import Turn


#: Partitions that a group looks through in the time in which a queue applies its commands.
PARTITIONS: Final = 16


class ChangedStreams:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        #: Groups that have not been told yet, in order.
        self._untold: dict[Queue, None] = {}
        self._turn = turn
        #: Of the group that was told last.
        self._partitions = 0
        self._telling = Steps(
            turn,
            self._tell_each,
            "groups could not be told that their streams have changed",
            enough=self._is_enough,
        )

    def tell(self, groups: Iterable[Queue]) -> None:
        """Let these groups look for their partitions, now or soon."""
        self._untold.update(dict.fromkeys(groups))
        self._telling.go_on()

    def _is_enough(self) -> bool:
        return self._turn.is_full(1 + self._partitions // PARTITIONS)

    def _tell_each(self) -> Iterator[None]:
        untold = self._untold
        while untold:
            group = next(iter(untold))
            del untold[group]
            check_members(group)
            host = group.host
            self._partitions = 0
            if isinstance(host, QueueHost):
                self._partitions = host.partition_count
                host.partitions_changed()
            yield


__all__ = ["ChangedStreams"]
