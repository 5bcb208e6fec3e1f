"""The content of a checkpoint about a queue.

A queue has no positions, so an offset counts: `count` messages have been handed to Spark since the query
began. From that alone a restarted query would not know which messages those were; therefore an offset also
holds the digest of the last micro-batch. A replay takes as many messages as the batch had and compares the
digests: the messages are the same, or it fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


class BadCheckpoint(ValueError):
    """The checkpoint is not from this source, or is about another queue."""


@dataclass(frozen=True, slots=True)
class Position:
    queue: str
    #: Messages handed to Spark since the query began.
    count: int = 0
    #: Number of messages in the last micro-batch.
    batch: int = 0
    #: Digest of these messages: see `deliveries.digest`.
    digest: str = ""
    #: Fingerprint of the first one: see `deliveries.fingerprint`.
    first: str = ""
    #: Whether each of them has a message_id, so that no other messages can be mistaken for them.
    identified: bool = False

    def json(self) -> dict[str, Any]:
        return asdict(self)


def position(offset: Mapping[str, Any], queue: str) -> Position:
    """Read an offset. Raises BadCheckpoint."""
    try:
        found = Position(
            str(offset["queue"]),
            int(offset["count"]),
            int(offset["batch"]),
            str(offset["digest"]),
            str(offset["first"]),
            bool(offset["identified"]),
        )
    except (KeyError, TypeError, ValueError):
        raise BadCheckpoint(
            f"the checkpoint was written by another source: {offset!r} is not an offset of format amqp"
        ) from None
    if found.queue != queue:
        raise BadCheckpoint(
            f"the checkpoint belongs to queue '{found.queue}', and option 'queue' says '{queue}': "
            "use a new checkpointLocation for another queue"
        )
    return found
