"""The channel-wide prefetch of `basic.qos global=true`, shared by all consumers of the channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.machine.consumers import UNLIMITED

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel
    from quorum_queue.ports import Host


class ChannelWindow:
    """Room for unacked deliveries; a limit of 0 is none.

    Room that comes free is offered to all queues of the channel's consumers, another one first each time. The queue
    whose deliveries were acked would always be the first otherwise, and the others would starve. So the window is
    applied like the host of a queue (see amqp_server.turn), after the hosts that made the room; until then it has none.
    """

    __slots__ = ("_channel", "_offers", "_settling", "limit", "used")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.limit = 0
        self.used = 0
        #: How often room was offered.
        self._offers = 0
        self._settling = False

    def room(self) -> int:
        if not self.limit:
            return UNLIMITED
        return 0 if self._settling else self.limit - self.used

    def use(self, count: int) -> None:
        self.used += count

    def offer(self) -> None:
        """Room comes free in this turn: offer it when all that makes it was applied."""
        if not self.limit:
            return
        self._settling = True
        scheduled = self._channel.broker.turn.scheduled
        # Behind the hosts that were scheduled since it was last put there.
        scheduled.pop(self, None)
        self._channel.broker.turn.schedule(self)

    def apply_pending(self) -> None:
        self._settling = False
        subscriptions = self._channel.subscriptions.values()
        hosts: dict[Host, None] = dict.fromkeys(each.queue.host for each in subscriptions)
        waiting = [host for host in hosts if host.ready_count]
        if waiting:
            self._offers += 1
            first = self._offers % len(waiting)
            for host in waiting[first:] + waiting[:first]:
                host.submit(("tick",))

    def failed(self, error: Exception) -> None:
        self._channel.connection.failed(error)
