"""The options of a consumer group, and limits for all groups."""

from __future__ import annotations

from amqp_server.streams.layout.consumer_start import Start

#: Time until a stream that could not be read is tried again, ms.
RETRY_MS = 1_000
#: Maximum number of dead letters of a group in progress.
LETTERS_MAX = 16


class GroupOptions:
    """The declared options of a group."""

    __slots__ = (
        "commit_ms",
        "consumer_timeout_ms",
        "dead_letters",
        "delivery_limit",
        "spans_max",
        "start",
        "stream",
    )

    def __init__(
        self,
        stream: str,
        start: Start,
        *,
        delivery_limit: int | None,
        dead_letters: bool,
        consumer_timeout_ms: int,
        spans_max: int,
        commit_ms: int,
    ) -> None:
        #: Name of the stream or super stream.
        self.stream = stream
        self.start = start
        self.delivery_limit = delivery_limit
        self.dead_letters = dead_letters
        self.consumer_timeout_ms = consumer_timeout_ms
        #: Maximum number of gaps that are kept for a partition, and how long commits may wait for others; see
        #: amqp_server.config.
        self.spans_max = spans_max
        self.commit_ms = commit_ms


__all__ = ["LETTERS_MAX", "RETRY_MS", "GroupOptions"]
