"""A queue as the topology knows it: its name, what it was declared to be, and the host that runs its machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from amqp_server.broker.arguments import SHARED_MAX, QueueArguments
from amqp_server.broker.operations import DeleteQueue
from amqp_server.broker.records import QueueRecord
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Host

if TYPE_CHECKING:
    from amqp_server.broker.vhost import VHost

#: Deliveries of one message that a quorum queue allows unless it was declared otherwise (RabbitMQ 4.0).
QUORUM_DELIVERY_LIMIT = 20
#: What a queue remembers of the messages it took, unless it was declared otherwise.
DEDUPLICATION_WINDOW_MS = 600_000
DEDUPLICATION_COUNT = 100_000


class Queue:
    """One declared queue."""

    __slots__ = (
        "arguments",
        "auto_delete",
        "deleted",
        "durable",
        "exclusive",
        "host",
        "last_used_ms",
        "marks",
        "name",
        "parsed",
        "queue_id",
        "record",
        "subscriptions",
        "type",
        "vhost",
    )

    host: Host

    def __init__(
        self, vhost: VHost, record: QueueRecord, parsed: QueueArguments, arguments: Mapping[str, object]
    ) -> None:
        self.vhost = vhost
        self.record = record
        self.name = record.name
        self.queue_id = record.queue_id
        self.parsed = parsed
        self.arguments = arguments
        self.durable = record.durable
        self.auto_delete = record.auto_delete
        self.exclusive = record.exclusive
        self.type: str = parsed.queue_type
        #: Marks' slots of a durable queue that lives here, one for each priority level.
        self.marks: list[int] = []
        self.deleted = False
        #: This node's subscriptions by their keys, in order of arrival.
        self.subscriptions: dict[Any, Any] = {}
        self.last_used_ms = 0

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes of a replicated queue."""
        return self.record.members

    @property
    def node(self) -> str:
        """Where a queue that is not replicated lives."""
        return self.record.node

    def owned_by(self, session: Any) -> bool:
        """Is this an exclusive queue of the session's?"""
        record, broker = self.record, self.vhost.broker
        return (
            record.exclusive
            and record.owner == session.number
            and record.node == broker.replication.node
            and record.incarnation == broker.replication.incarnation
        )

    def used(self) -> None:
        """Start the lease of an expiring queue anew."""
        if self.parsed.expires_ms is not None:
            self.host.touch()

    def renew(self) -> None:
        """The same, told by the host at the queue's home. See quorum_queue.ports.Hosted."""
        expires_ms = self.parsed.expires_ms
        if expires_ms is not None:
            broker = self.vhost.broker
            self.last_used_ms = broker.clock()
            broker.timers.wake(self, self.last_used_ms + expires_ms)

    def consumers_lost(self) -> None:
        """The way to the queue's home broke: its consumers here are cancelled, as if it had been deleted."""
        for subscription in list(self.subscriptions.values()):
            subscription.queue_gone()
        self.subscriptions.clear()

    def consumer_lost(self, key: Any) -> None:
        """A consumer here lost its place in the queue and did not get it back."""
        subscription = self.subscriptions.pop(key, None)
        if subscription is not None:
            subscription.queue_gone()

    def consumer_gone(self, left: int) -> None:
        """A consumer went, of whatever node. An auto-delete queue goes with its last one."""
        self.renew()
        if self.auto_delete and not left:
            self.delete()

    def wake(self) -> None:
        """Delete the queue if it has not been used for the time it was declared with (x-expires)."""
        expires_ms = self.parsed.expires_ms
        if self.deleted or expires_ms is None or self.host.consumer_count:
            return
        broker = self.vhost.broker
        if self.members and broker.hosts.leader(self) != broker.replication.node:
            # Only the leader knows of all that use it; this node was the leader once.
            return
        if broker.clock() - self.last_used_ms >= expires_ms:
            self.delete()

    def delete(self) -> None:
        """Have it deleted; nobody waits for it."""
        if not self.deleted:
            self.vhost.broker.propose(self.deletion)

    @property
    def deletion(self) -> DeleteQueue:
        return DeleteQueue(self.vhost.name, self.name, self.queue_id)


@lru_cache(maxsize=SHARED_MAX)
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
        deduplication_window_ms=_deduplication_window_ms(parsed),
        deduplication_count=parsed.deduplication_count or DEDUPLICATION_COUNT,
    )


def _deduplication_window_ms(parsed: QueueArguments) -> int | None:
    """How long the queue remembers what it took; None where it was not asked to."""
    asked = parsed.deduplication
    if asked is None:
        asked = parsed.deduplication_window_ms is not None or parsed.deduplication_count is not None
    return (parsed.deduplication_window_ms or DEDUPLICATION_WINDOW_MS) if asked else None
