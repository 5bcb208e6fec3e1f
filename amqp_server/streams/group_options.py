"""What a consumer group is declared with, and limits of all of them."""

from __future__ import annotations

from amqp_server.streams.start import Start

#: A stream that could not be read is tried again after this time.
RETRY_MS = 1_000
#: Dead letters of a group that are on their way at once.
LETTERS_MAX = 16


class GroupOptions:
    """What a group was declared with."""

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
        #: Gaps that are remembered of a partition, and how long commits may wait for others; see
        #: amqp_server.config.
        self.spans_max = spans_max
        self.commit_ms = commit_ms


__all__ = ["LETTERS_MAX", "RETRY_MS", "GroupOptions"]
