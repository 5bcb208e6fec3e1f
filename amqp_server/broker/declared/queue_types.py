"""The types of queues, with their rules. To add a type, add an object here, and say in the rows of
`argument_table` which arguments it takes; all others it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class QueueType:
    """One type of queue."""

    name: str
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
    def knows_failures(self) -> bool:
        """True if a rejected message is not the same as one that was given back."""
        return not self.is_stream and not self.is_group

    @property
    def strict(self) -> bool:
        """True for strict priorities; see quorum_queue.machine.settings."""
        return self.replicated and self.knows_failures

    @property
    def counts_deliveries(self) -> bool:
        return self.delivery_limit is not None

    @property
    def keeps_record(self) -> bool:
        """True if queues of this type can record what becomes of messages. In a stream a message stays, and
        its offset says all.
        """
        return not self.is_stream and not self.is_group


CLASSIC = QueueType(
    name="classic",
    always_durable=False,
    replicated=False,
    delivery_limit=None,
    at_least_once=False,
    leased_by_passive_declare=True,
)
QUORUM = QueueType(
    name="quorum",
    always_durable=True,
    replicated=True,
    delivery_limit=20,
    at_least_once=True,
    # RabbitMQ does not ask the members of a quorum queue for a passive declare, so its lease runs on.
    leased_by_passive_declare=False,
)

STREAM = QueueType(
    name="stream",
    always_durable=True,
    replicated=True,
    delivery_limit=None,
    at_least_once=False,
    leased_by_passive_declare=False,
    is_stream=True,
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
)

#: Queue types by name, as in x-queue-type.
QUEUE_TYPES: dict[str, QueueType] = {each.name: each for each in (CLASSIC, QUORUM, STREAM, GROUP)}
#: Types that may be a default: a group cannot, because it needs a stream.
DEFAULT_TYPES: tuple[str, ...] = tuple(each.name for each in QUEUE_TYPES.values() if not each.is_group)
