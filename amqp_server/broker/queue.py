"""A queue as the topology knows it: its name, what it was declared to be, and the host that runs its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amqp_server.broker.arguments import QueueArguments
from quorum_queue.local import LocalHost
from quorum_queue.machine.settings import Settings

if TYPE_CHECKING:
    from amqp_server.broker.vhost import VHost

#: Deliveries of one message that a quorum queue allows unless it was declared otherwise (RabbitMQ 4.0).
QUORUM_DELIVERY_LIMIT = 20


class Queue:
    """One declared queue."""

    host: LocalHost

    def __init__(
        self,
        vhost: VHost,
        name: str,
        queue_id: int,
        parsed: QueueArguments,
        arguments: Mapping[str, object],
        *,
        durable: bool,
        auto_delete: bool,
        owner: Any = None,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.queue_id = queue_id
        self.parsed = parsed
        self.arguments = arguments
        self.durable = durable
        self.auto_delete = auto_delete
        #: The session that an exclusive queue belongs to.
        self.owner = owner
        self.exclusive = owner is not None
        self.type: str = parsed.queue_type
        #: Marks' slots of a durable queue, one for each priority level.
        self.marks: list[int] = []
        self.deleted = False
        #: Subscriptions by their keys, in order of arrival.
        self.subscriptions: dict[Any, Any] = {}
        self.had_consumer = False
        self.last_used_ms = 0

    @property
    def exclusive_consumer(self) -> bool:
        return any(subscription.exclusive for subscription in self.subscriptions.values())

    def used(self, now_ms: int) -> None:
        """Start the lease of an expiring queue anew."""
        self.last_used_ms = now_ms
        expires_ms = self.parsed.expires_ms
        if expires_ms is not None:
            self.vhost.broker.timers.wake(self, now_ms + expires_ms)

    def wake(self) -> None:
        """Delete the queue if it has not been used for the time it was declared with (x-expires)."""
        expires_ms = self.parsed.expires_ms
        if self.deleted or expires_ms is None or self.subscriptions:
            return
        if self.vhost.broker.clock() - self.last_used_ms >= expires_ms:
            self.vhost.delete_queue(self)


def settings_of(parsed: QueueArguments) -> Settings:
    """Return what the machine must know of a queue's arguments."""
    limit = parsed.delivery_limit
    if parsed.queue_type == "quorum" and limit is None:
        limit = QUORUM_DELIVERY_LIMIT
    if limit is not None and limit < 0:
        limit = None  # as declared: no limit
    return Settings(
        message_ttl_ms=parsed.message_ttl_ms,
        expires_ms=parsed.expires_ms,
        max_length=parsed.max_length,
        max_length_bytes=parsed.max_length_bytes,
        overflow=parsed.overflow,
        dead_letter=parsed.dead_letter_exchange is not None,
        dead_letter_at_least_once=parsed.queue_type == "quorum"
        and parsed.dead_letter_exchange is not None
        and parsed.dead_letter_strategy == "at-least-once",
        priority_max=parsed.max_priority or 0,
        single_active_consumer=parsed.single_active_consumer,
        keeps_all=parsed.queue_type == "quorum",
        delivery_limit=limit if parsed.queue_type == "quorum" else None,
    )
