"""The channel-wide prefetch of `basic.qos global=true`, shared by all consumers of the channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from quorum_queue.machine.consumers import UNLIMITED

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.connection import Connection
    from quorum_queue.ports import Host

#: Consumers that get the new limit before the turn may end.
TOLD_MAX = 256


class Windowed(Protocol):
    """A consumer of the channel."""

    queue: Queue
    key: Any


class ChannelWindow:
    """Room for unacked deliveries; 0 means no limit.

    Free room is offered to all queues of the channel's consumers, each time to another queue first. Otherwise
    the queue whose deliveries were acked would always be first, and the others would starve. So room is
    offered after the acking queues were applied (see amqp_server.turn.Widened), and does not exist before.
    """

    __slots__ = (
        "_connection",
        "_consumed",
        "_closed",
        "_offers",
        "_settling",
        "_subscriptions",
        "_told",
        "_untold",
        "limit",
        "used",
    )

    def __init__(
        self,
        connection: Connection,
        subscriptions: Mapping[str, Windowed],
        consumed: Mapping[Queue, int],
    ) -> None:
        """`subscriptions` are the channel's current subscriptions (a live mapping), and `consumed` their
        queues.
        """
        self._connection = connection
        self._subscriptions = subscriptions
        self._consumed = consumed
        self.limit = 0
        self.used = 0
        #: Number of times that room was offered.
        self._offers = 0
        self._settling = False
        #: True while the channel's consumers get no messages.
        self._closed = False
        #: The last limit sent to queues that cannot look at the window.
        self._told = 0
        #: Consumers that have not got the new limit yet.
        self._untold: list[Windowed] = []

    def room(self) -> int:
        if self._closed:
            return 0
        if not self.limit:
            return UNLIMITED
        return 0 if self._settling else self.limit - self.used

    def use(self, count: int) -> None:
        self.used += count

    def close(self) -> None:
        """Until `open` there is no room for queues that can look at the window."""
        self._closed = True

    def open(self) -> None:
        """There is room again."""
        if self._closed:
            self._closed = False
            self._connection.broker.turn.widened(self)

    def offer(self) -> None:
        """Room becomes free in this turn: offer it when the acks were applied."""
        if not self.limit:
            return
        self._settling = True
        self._connection.broker.turn.widened(self)

    def change(self, limit: int) -> None:
        """Change the prefetch that all consumers of the channel share."""
        if limit != self.limit:
            self.limit = limit
            self._connection.broker.turn.widened(self)

    def offer_room(self) -> None:
        """Offer room to the queues once in a turn, for any number of changes, and only to queues that can use
        it.
        """
        self._settling = False
        if self.limit != self._told:
            self._told = self.limit
            # A queue on several nodes cannot share the window: its consumers get the limit each.
            apart = {queue: None for queue in self._consumed if not queue.host.shares_windows}
            self._untold = (
                [each for each in self._subscriptions.values() if each.queue in apart] if apart else []
            )
        if self._untold and not self._tell():
            return
        if self.room() <= 0:
            return
        hosts: dict[Host, None] = dict.fromkeys(
            queue.host for queue in self._consumed if queue.host.shares_windows
        )
        waiting = [host for host in hosts if host.ready_count]
        if waiting:
            self._offers += 1
            first = self._offers % len(waiting)
            for host in waiting[first:] + waiting[:first]:
                host.submit(("tick",))

    def _tell(self) -> bool:
        """Send the limit to queues; return False if the turn is over before all have it."""
        turn = self._connection.broker.turn
        while self._untold:
            some, self._untold = self._untold[:TOLD_MAX], self._untold[TOLD_MAX:]
            for each in some:
                each.queue.host.submit(("window", each.key, self), ("tick",))
            if self._untold and turn.overdue():
                turn.later(self, self.offer_room)
                return False
        return True

    def failed(self, error: Exception) -> None:
        self._connection.failed(error)
