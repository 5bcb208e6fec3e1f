"""Sums over all queues, made in slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amqp_server.management.request.call import Call
from amqp_server.management.resources.queues import home_of, queues_of


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
    counts, parts = Counts(), call.parts
    for vhost in vhosts:
        for queue in queues_of(parts.broker, [vhost]):
            await call.slices.rest()
            if own and home_of(parts, queue) != parts.config.node:
                continue
            counts.queues += 1
            counts.consumers += queue.host.consumer_count
            counts.messages_ready += queue.host.ready_count
            counts.messages_unacknowledged += queue.host.unacked_count
    return counts
