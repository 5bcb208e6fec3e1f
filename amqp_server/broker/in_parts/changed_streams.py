"""Tells consumer groups that their streams, or the permissions for these, have changed: some in each turn, as
one stream may have thousands of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.broker.group_members import check_members
from quorum_queue.boundary import Fatal
from quorum_queue.host import QueueHost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_server.broker.topology.queue import Queue
    from amqp_server.turn import Turn


class ChangedStreams:
    """The node has one."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: Groups that have not been told yet, in order.
        self._untold: dict[Queue, None] = {}

    def tell(self, groups: Iterable[Queue]) -> None:
        """Let these groups look for their partitions, now or soon."""
        waiting = bool(self._untold)
        self._untold.update(dict.fromkeys(groups))
        if not waiting:
            self._go_on()

    def _go_on(self) -> None:
        untold, turn = self._untold, self._turn
        while untold:
            group = next(iter(untold))
            del untold[group]
            check_members(group)
            host = group.host
            if isinstance(host, QueueHost):
                host.partitions_changed()
            if untold and turn.is_full():
                turn.later(self, self._go_on)
                return

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""
        raise Fatal(f"groups could not be told that their streams have changed: {error!r}") from error


__all__ = ["ChangedStreams"]
