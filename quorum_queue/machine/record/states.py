"""States of messages in the record, and the reasons for them. Their numbers are part of snapshots."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: States of a message. 0 is that of a position whose message has no id.
QUEUED: Final = 1
DELIVERED: Final = 2
ACKNOWLEDGED: Final = 3
DEAD_LETTERED: Final = 4
EXPIRED: Final = 5
DROPPED: Final = 6
DUPLICATE: Final = 7
#: Part of a transaction that came to nothing.
ABORTED: Final = 8
#: Part of a transaction that is not decided.
PENDING: Final = 9
STATES: Final = (
    "unknown",
    "queued",
    "delivered",
    "acknowledged",
    "dead-lettered",
    "expired",
    "dropped",
    "duplicate",
    "aborted",
    "pending",
)

#: Reasons of a state; 0 is none.
REJECTED: Final = 1
TTL: Final = 2
MAX_LENGTH: Final = 3
MAX_LENGTH_BYTES: Final = 4
DELIVERY_LIMIT: Final = 5
PURGED: Final = 6
LOST: Final = 7
RESTARTED: Final = 8
#: A full queue has refused the message: its publisher got a nack.
REFUSED_LENGTH: Final = 9
REFUSED_BYTES: Final = 10
#: The same, because publishes to the queue are paused.
REFUSED_PAUSED: Final = 11
REASONS: Final = (
    "",
    "rejected",
    "expired",
    "max-length",
    "max-length-bytes",
    "delivery-limit",
    "purged",
    "body lost on all disks",
    "lost when the node restarted",
    "refused: max-length",
    "refused: max-length-bytes",
    "refused: paused",
)
#: Reasons by those of dead letters. A limit of length is told by its own reason.
OF_DEATH: Final = {
    "rejected": REJECTED,
    "expired": TTL,
    "maxlen": MAX_LENGTH,
    "delivery_limit": DELIVERY_LIMIT,
}

#: A consumer's key, or exchange and routing key of dead letters.
Key = tuple[Any, ...]


class Copy(NamedTuple):
    """What a queue knows of one message."""

    position: int
    state: int
    reason: int
    queued_ms: int
    changed_ms: int
    deliveries: int
    #: Key of the consumer that had it last.
    consumer: Key | None
    #: Exchange and routing key of a dead letter; an empty key is the message's own.
    letter_to: Key | None


class Note(NamedTuple):
    """What became of messages that the queue did not take."""

    state: int
    reason: int
    last_ms: int
    times: int


class Found(NamedTuple):
    """All that a queue knows of one message-id."""

    #: Everything that was taken after this time is in the record.
    since_ms: int
    #: Oldest first.
    copies: list[Copy]
    note: Note | None
