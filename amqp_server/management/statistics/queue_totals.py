"""Sums over all queues, made in slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amqp_server.management.request.call import Call


@dataclass
class Counts:
    queues: int = 0
    consumers: int = 0
    messages_ready: int = 0
    messages_unacknowledged: int = 0

    @property
    def messages(self) -> int:
        return self.messages_ready + self.messages_unacknowledged


async def count_messages(call: Call, vhosts: Iterable[str], *, own: bool = False) -> Counts:
    """Count queues and their messages and consumers; with `own`, only of queues that this node reports."""
    counts = Counts()
    for vhost in vhosts:
        for queue in call.broker.queues.hosts(vhost, own=own):
            await call.slices.rest()
            counts.queues += 1
            counts.consumers += queue.consumer_count
            counts.messages_ready += queue.ready_count
            counts.messages_unacknowledged += queue.unacked_count
    return counts
