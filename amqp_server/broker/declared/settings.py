"""Settings of a queue's machine, derived in one place from the declaration and the policies that apply."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from amqp_server.broker.declared.arguments import SHARED_MAX, QueueArguments
from amqp_server.broker.declared.records import DEDUPLICATION_PRODUCERS, QueueRecord
from quorum_queue.machine.settings import Settings

#: Defaults for how long a queue remembers ids of messages, and how many.
DEDUPLICATION_WINDOW_MS = 600_000
DEDUPLICATION_COUNT = 100_000
#: Defaults for how long a queue's record has a message, and how many it has.
MESSAGE_STATUS_WINDOW_MS = 3_600_000
MESSAGE_STATUS_COUNT = 100_000


@lru_cache(maxsize=SHARED_MAX)
def effective_settings(
    parsed: QueueArguments,
    producers: int = DEDUPLICATION_PRODUCERS,
    record_window_ms: int = 0,
    record_count: int = MESSAGE_STATUS_COUNT,
) -> Settings:
    """Return the machine's settings, with the number of producers that the queue's record has. `parsed` are
    the declared arguments, or those joined with the queue's policies (see policy.joined). `record_window_ms`
    and `record_count`: of the record of messages, for queues that say nothing of it; 0 for none.

    A new host gets these settings. A group's machine takes its settings from snapshot and log: if those
    differ, as after a change of version, the leader submits `configure`.
    """
    dead_letter = parsed.dead_letter_exchange is not None
    window_ms = _record_window_ms(parsed, record_window_ms)
    records = window_ms is not None
    return Settings(
        message_ttl_ms=parsed.message_ttl_ms,
        expires_ms=parsed.expires_ms,
        max_length=parsed.max_length,
        max_length_bytes=parsed.max_length_bytes,
        overflow=parsed.overflow or "drop-head",
        dead_letter=dead_letter,
        dead_letter_at_least_once=dead_letter
        and parsed.type.at_least_once
        and parsed.dead_letter_strategy == "at-least-once",
        priority_max=parsed.max_priority or 0,
        single_active_consumer=parsed.single_active_consumer,
        strict=parsed.type.strict,
        keeps_all=parsed.type.always_durable,
        delivery_limit=_delivery_limit(parsed),
        retry_type=(parsed.retry_type or "disabled") if parsed.retry_min_ms else "disabled",
        retry_min_ms=parsed.retry_min_ms or 0,
        retry_max_ms=parsed.retry_max_ms or parsed.retry_min_ms or 0,
        retry_doubles=parsed.retry_backoff == "exponential",
        deduplication_window_ms=_deduplication_window_ms(parsed),
        deduplication_count=parsed.deduplication_count or DEDUPLICATION_COUNT,
        deduplication_producers=producers,
        message_status_window_ms=window_ms,
        message_status_count=(parsed.message_status_count or record_count)
        if records
        else MESSAGE_STATUS_COUNT,
        message_status_events=records and parsed.message_status_events is True,
        dead_letter_to=parsed.dead_letter_exchange if records else None,
        dead_letter_key=(parsed.dead_letter_routing_key or "") if records else "",
        group_header=parsed.group_header,
    )


def machine_settings(
    parsed: QueueArguments, record: QueueRecord, record_window_ms: int, record_count: int
) -> Settings:
    """Return the settings of a queue's machine: those above, and what operators have paused."""
    settings = effective_settings(parsed, record.deduplication_producers, record_window_ms, record_count)
    if not record.is_paused:
        return settings
    return replace(
        settings, deliveries_paused=record.deliveries_paused, publishes_paused=record.publishes_paused
    )


def _delivery_limit(parsed: QueueArguments) -> int | None:
    """Return how often a message may come back; None means no limit; a declared limit below 0 also means
    none.
    """
    default, declared = parsed.type.delivery_limit, parsed.delivery_limit
    if default is None or (declared is not None and declared < 0):
        return None
    return default if declared is None else declared


def _deduplication_window_ms(parsed: QueueArguments) -> int | None:
    """Return how long the queue remembers messages; None if it does not deduplicate."""
    asked = parsed.deduplication
    if asked is None:
        asked = parsed.deduplication_window_ms is not None or parsed.deduplication_count is not None
    return (parsed.deduplication_window_ms or DEDUPLICATION_WINDOW_MS) if asked else None


def _record_window_ms(parsed: QueueArguments, default_ms: int) -> int | None:
    """Return how long the queue's record has a message; None if it keeps none."""
    if not parsed.type.keeps_record:
        return None
    asked = parsed.message_status
    if asked is None:
        own = (parsed.message_status_window_ms, parsed.message_status_count, parsed.message_status_events)
        if own.count(None) == len(own):
            return default_ms or None
        asked = any(own)
    return (parsed.message_status_window_ms or default_ms or MESSAGE_STATUS_WINDOW_MS) if asked else None
