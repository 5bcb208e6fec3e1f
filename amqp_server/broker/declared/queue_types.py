"""The types of queues, with their rules and hosts. To add a type, add an object here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quorum_queue.machine import versions


@dataclass(frozen=True, kw_only=True)
class QueueType:
    """One type of queue."""

    name: str
    #: Arguments that other types know and this one does not. An argument that no type knows is accepted and
    #: ignored.
    unsupported: frozenset[str]
    #: Arguments that a second declare must repeat, in the order in which RabbitMQ compares them.
    compared: tuple[str, ...]
    #: True if queues of this type are durable, neither exclusive nor auto-delete, and keep messages of every
    #: delivery mode.
    always_durable: bool
    #: True if a cluster keeps them on several nodes, by Raft.
    replicated: bool
    #: Default limit of deliveries of one message (RabbitMQ 4.0: 20), which are counted in x-delivery-count;
    #: None: deliveries are not counted.
    delivery_limit: int | None
    #: True if dead letters may be held until their targets have them (x-dead-letter-strategy).
    at_least_once: bool
    #: True if a passive declare renews the lease of an expiring queue.
    leased_by_passive_declare: bool
    #: True for a log: messages stay after they were read, and every consumer has its own offset.
    is_stream: bool = False
    #: True for a consumer group: its messages are those of a stream, and clients cannot publish to it.
    is_group: bool = False

    @property
    def counts_deliveries(self) -> bool:
        return self.delivery_limit is not None


CLASSIC = QueueType(
    name="classic",
    always_durable=False,
    replicated=False,
    delivery_limit=None,
    at_least_once=False,
    leased_by_passive_declare=True,
    unsupported=frozenset(
        {
            "x-dead-letter-strategy",
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
            "x-quorum-initial-group-size",
            "x-quorum-target-group-size",
            "x-delivery-limit",
            "x-max-age",
            "x-stream-max-segment-size-bytes",
            "x-initial-cluster-size",
            "x-queue-leader-locator",
        }
    ),
    compared=(
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-deduplication",
        "x-deduplication-window-ms",
        "x-deduplication-count",
    ),
)
QUORUM = QueueType(
    name="quorum",
    always_durable=True,
    replicated=True,
    delivery_limit=20,
    at_least_once=True,
    # RabbitMQ does not ask the members of a quorum queue for a passive declare, so its lease runs on.
    leased_by_passive_declare=False,
    unsupported=frozenset(
        {
            "x-max-priority",
            "x-queue-mode",
            "x-queue-version",
            "x-max-age",
            "x-stream-max-segment-size-bytes",
            "x-initial-cluster-size",
        }
    ),
    compared=(
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
        "x-queue-leader-locator",
        "x-deduplication",
        "x-deduplication-window-ms",
        "x-deduplication-count",
    ),
)

STREAM = QueueType(
    name="stream",
    always_durable=True,
    replicated=True,
    delivery_limit=None,
    at_least_once=False,
    leased_by_passive_declare=False,
    is_stream=True,
    unsupported=frozenset(
        {
            "x-message-ttl",
            "x-expires",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-dead-letter-strategy",
            "x-max-length",
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
            "x-max-priority",
            "x-overflow",
            "x-queue-mode",
            "x-queue-version",
            "x-single-active-consumer",
            "x-delivery-limit",
            "x-quorum-initial-group-size",
            "x-quorum-target-group-size",
        }
    ),
    compared=(
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-stream-filter-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
        "x-stream-compression",
        "x-stream-compaction",
        "x-stream-tombstone-age",
        "x-deduplication",
        "x-deduplication-window-ms",
        "x-deduplication-count",
    ),
)

GROUP = QueueType(
    name="stream-group",
    always_durable=True,
    replicated=True,
    # No limit by default: a message that is given up is still in the stream, but clients would not look for
    # it there.
    delivery_limit=None,
    at_least_once=False,
    leased_by_passive_declare=False,
    is_group=True,
    unsupported=(CLASSIC.unsupported | QUORUM.unsupported | STREAM.unsupported)
    - {"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-delivery-limit"}
    | {
        "x-max-length-bytes",
        "x-deduplication",
        "x-deduplication-window-ms",
        "x-deduplication-count",
        "x-stream-filter-size-bytes",
        "x-stream-compression",
        "x-stream-compaction",
        "x-stream-tombstone-age",
    },
    compared=(
        "x-queue-type",
        "x-stream",
        "x-stream-offset",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-delivery-limit",
        "x-consumer-timeout",
    ),
)

#: Prefixes of arguments that change how a stream keeps messages.
_STREAM_ARGUMENTS = ("x-stream-", "x-deduplication")
#: Arguments that streams in a cluster support, with the first version of the cluster that does.
_REPLICATED_SINCE = {
    "x-stream-max-segment-size-bytes": versions.STREAMS,
    "x-stream-filter-size-bytes": versions.STREAMS,
    "x-stream-compression": versions.SUPER_STREAMS,
    "x-stream-compaction": versions.SUPER_STREAMS,
    "x-stream-tombstone-age": versions.SUPER_STREAMS,
    "x-deduplication": versions.SUPER_STREAMS,
    "x-deduplication-window-ms": versions.SUPER_STREAMS,
    "x-deduplication-count": versions.SUPER_STREAMS,
}


def not_replicated(arguments: Iterable[str], version: int) -> str | None:
    """Return the first of a stream's arguments that a cluster of this version does not support."""
    for name in sorted(arguments):
        if name.startswith(_STREAM_ARGUMENTS) and _REPLICATED_SINCE.get(name, version + 1) > version:
            return name
    return None


#: Queue types by name, as in x-queue-type.
QUEUE_TYPES: dict[str, QueueType] = {each.name: each for each in (CLASSIC, QUORUM, STREAM, GROUP)}
#: Types that may be a default: a group cannot, because it needs a stream.
DEFAULT_TYPES: tuple[str, ...] = tuple(each.name for each in QUEUE_TYPES.values() if not each.is_group)
