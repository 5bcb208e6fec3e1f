"""The settings of a queue from its declaration. Plain data, the same on every replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """Settings of one queue; None means no limit."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] = "drop-head"
    #: True if discarded messages go to the dead-letter exchange; otherwise they are dropped.
    dead_letter: bool = False
    #: True if a dead letter is held until its targets have it; otherwise it is sent once and forgotten.
    dead_letter_at_least_once: bool = False
    priority_max: int = 0
    single_active_consumer: bool = False
    #: True for quorum queues: priorities 0 to 31, whatever `priority_max` is; returned messages come first,
    #: in the order of their return; failed deliveries are counted, and returns.
    strict: bool = False
    #: True if every message goes to the log, whatever its delivery mode (quorum queues).
    keeps_all: bool = False
    #: Returns allowed for one message before it is dropped; None is unlimited.
    delivery_limit: int | None = None
    #: Which returned messages wait before they are delivered again: all, those whose delivery failed, or the
    #: others; how long at first, and how long at most.
    retry_type: Literal["disabled", "all", "failed", "returned"] = "disabled"
    retry_min_ms: int = 0
    retry_max_ms: int = 0
    #: True if the wait doubles with each failure; otherwise it grows by `retry_min_ms`.
    retry_doubles: bool = False
    #: How long ids of messages are remembered for deduplication; None turns it off.
    deduplication_window_ms: int | None = None
    #: How many ids are remembered at most.
    deduplication_count: int = 100_000
    #: How many producers with a sequence are remembered at most.
    deduplication_producers: int = 100_000

    #: How long the record of messages remembers one; None: the queue keeps no record (see machine.record).
    message_status_window_ms: int | None = None
    #: How many messages the record has at most.
    message_status_count: int = 100_000
    #: True if what becomes of messages is published as events.
    message_status_events: bool = False
    #: For the record: exchange and routing key of dead letters. None: the queue has none, or no record; no
    #: key: their own.
    dead_letter_to: str | None = None
    dead_letter_key: str = ""

    #: The header that names a message's group; empty: the queue has no message groups.
    group_header: str = ""

    #: True if an operator has paused the queue: it hands out nothing, or takes no messages from clients.
    deliveries_paused: bool = False
    publishes_paused: bool = False

    @property
    def may_refuse(self) -> bool:
        """True if the queue refuses publishes now, or when it is full."""
        limited = self.max_length is not None or self.max_length_bytes is not None
        return self.publishes_paused or (limited and self.overflow != "drop-head")

    @property
    def records(self) -> bool:
        return self.message_status_window_ms is not None

    @property
    def deduplicates(self) -> bool:
        return self.deduplication_window_ms is not None
