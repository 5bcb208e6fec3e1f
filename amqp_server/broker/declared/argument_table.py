"""The arguments of queues, a row for each. To add an argument, add a row, and a field of QueueArguments.

From the rows follow what a declare is checked for, which types of queues take an argument, how two declares
are compared, the keys of policies with their checks, and the page of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass

from amqp_server.broker.declared import argument_checks as checks
from amqp_server.broker.declared.argument_checks import Check
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from persistence.streams.compression import CODECS
from persistence.streams.remote.table import PARQUET
from quorum_queue.machine import versions


@dataclass(frozen=True, kw_only=True)
class PolicyKey:
    """The key with which policies set what an argument sets."""

    #: RabbitMQ's word for its value.
    title: str
    #: Empty: the argument's name without `x-`.
    name: str = ""
    #: None: the argument's own check.
    check: Check | None = None
    #: Which of two values counts if operator policies may have it, too: `smaller`, `larger` or `theirs`.
    #: Empty: they may not. Where the smaller one counts, so it does of argument and policy.
    operators: str = ""
    #: The smaller one of argument and policy counts, even so.
    smaller: bool = False
    #: Types of queues that have this setting: to others no policy with this key applies. None: the types that
    #: take the argument.
    types: frozenset[str] | None = None
    #: Types whose queues follow the policy and not their argument.
    overrules: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Argument:
    name: str
    #: The field of QueueArguments.
    field: str
    #: None: checked together with other arguments, by `parse_queue_arguments`.
    check: Check | None
    #: The types of queues that take it, each with the place at which RabbitMQ compares the argument with that
    #: of a second declare, from 1 on; 0: it is not compared.
    types: Mapping[str, int]
    _: KW_ONLY
    #: The types that ignore it, like an unknown argument. The remaining types refuse it.
    ignored: frozenset[str] = frozenset()
    #: The check for streams, if it is another one.
    stream_check: Check | None = None
    #: An argument that has to be declared with it, and RabbitMQ's word for the error.
    needs: str = ""
    needs_reason: str = ""
    #: First version of a cluster whose streams have it; 0: not an argument of how streams keep messages.
    since: int = 0
    policy: PolicyKey | None = None
    #: Types whose queues of earlier versions may have any value, without effect.
    new_for: frozenset[str] = frozenset()
    #: True if RabbitMQ has no such argument.
    own: bool = False
    #: For the reference and for forms: the values, as a text or as the choices that there are; what it does,
    #: in Markdown; and a value that is not the default.
    values: str | tuple[str, ...]
    text: str
    example: object = None

    @property
    def kind(self) -> str:
        """What a form asks for: `boolean`, `number`, `choice` or `text`."""
        if isinstance(self.values, tuple):
            return "choice"
        if self.check is checks.boolean:
            return "boolean"
        return "number" if isinstance(self.example, int) else "text"

    @property
    def policy_key(self) -> str:
        assert self.policy is not None
        return self.policy.name or self.name.removeprefix("x-")


_OTHERS_THAN_STREAMS = frozenset({"classic", "quorum"})
_OTHERS_THAN_GROUPS = frozenset({"classic", "quorum", "stream"})

_NUMBER, _BYTES = "0 and more", "bytes, 0 and more"
_TIME, _LEASE = f"ms, 0 to {checks.TIME_MS_MAX:,}", f"ms, 1 to {checks.TIME_MS_MAX:,}"
_COUNT = "1 and more"
_AGE = "a number and `Y`, `M`, `D`, `h`, `m` or `s`"
_BOOLEAN = "true, false"


_OVERFLOW = ("drop-head", "reject-publish", "reject-publish-dlx")
_STRATEGY = ("at-most-once", "at-least-once")
_LOCATOR = ("client-local", "balanced", "random", "least-leaders")
_MODE = ("default", "lazy")
_RETRY_TYPE = ("disabled", "all", "failed", "returned")
_RETRY_BACKOFF = ("linear", "exponential")

ROWS: tuple[Argument, ...] = (
    Argument(
        "x-queue-type",
        "queue_type",
        checks.queue_type,
        {"classic": 12, "quorum": 11, "stream": 2, "stream-group": 1},
        values=tuple(QUEUE_TYPES),
        text="[type](../queues.md) of the queue",
    ),
    Argument(
        "x-message-ttl",
        "message_ttl_ms",
        checks.time_ms,
        {"classic": 2, "quorum": 14},
        policy=PolicyKey(title="message TTL", operators="smaller"),
        values=_TIME,
        text="time after which a waiting message is discarded",
        example=1000,
    ),
    Argument(
        "x-expires",
        "expires_ms",
        checks.lease_ms,
        {"classic": 1, "quorum": 4},
        policy=PolicyKey(title="queue expiry", operators="smaller", overrules=frozenset({"quorum"})),
        values=_LEASE,
        text="time without a consumer, declare or get after which the queue is deleted",
        example=1000,
    ),
    Argument(
        "x-max-length",
        "max_length",
        checks.natural,
        {"classic": 5, "quorum": 5},
        policy=PolicyKey(title="maximum length", operators="smaller"),
        values=_NUMBER,
        text="limit of waiting messages",
        example=10,
    ),
    Argument(
        "x-max-length-bytes",
        "max_length_bytes",
        checks.natural,
        {"classic": 6, "quorum": 6, "stream": 1},
        # A stream with a limit of 0 would keep nothing.
        stream_check=checks.positive,
        policy=PolicyKey(
            title="maximum length in bytes", operators="smaller", overrules=frozenset({"stream"})
        ),
        values=_BYTES,
        text="limit of the bytes of their bodies; for a stream, of its size (above 0)",
        example=1000,
    ),
    Argument(
        "x-overflow",
        "overflow",
        checks.one_of(*_OVERFLOW, otherwise="invalid_overflow"),
        {"classic": 8, "quorum": 9},
        policy=PolicyKey(title="overflow value", operators="theirs", overrules=frozenset({"quorum"})),
        values=_OVERFLOW,
        text="what happens at the limit: drop the oldest message, or refuse the newest (and dead-letter it)",
        example="reject-publish",
    ),
    Argument(
        "x-dead-letter-exchange",
        "dead_letter_exchange",
        checks.exchange,
        {"classic": 3, "quorum": 1, "stream-group": 4},
        policy=PolicyKey(title="dead letter exchange name", check=checks.short_text),
        values="name",
        text="exchange for discarded messages",
        example="dead",
    ),
    Argument(
        "x-dead-letter-routing-key",
        "dead_letter_routing_key",
        checks.text,
        {"classic": 4, "quorum": 2, "stream-group": 5},
        needs="x-dead-letter-exchange",
        needs_reason="routing_key_but_no_dlx_defined",
        policy=PolicyKey(title="dead letter routing key", check=checks.short_text),
        values="text",
        text="routing key of dead letters, instead of their own",
        example="key",
    ),
    Argument(
        "x-dead-letter-strategy",
        "dead_letter_strategy",
        checks.one_of(*_STRATEGY, otherwise="invalid_dlx_strategy"),
        {"quorum": 3},
        policy=PolicyKey(title="dead letter strategy"),
        values=_STRATEGY,
        text="`at-least-once`: the queue keeps a dead letter until its target has it",
        example="at-least-once",
    ),
    Argument(
        "x-max-priority",
        "max_priority",
        checks.priority,
        {"classic": 7},
        values=f"0 to {checks.PRIORITY_MAX}",
        text="highest priority: messages with a higher property `priority` come first",
        example=5,
    ),
    Argument(
        "x-single-active-consumer",
        "single_active_consumer",
        checks.boolean,
        {"classic": 11, "quorum": 10},
        values=_BOOLEAN,
        text="only one consumer at a time gets messages",
        example=True,
    ),
    Argument(
        "x-delivery-limit",
        "delivery_limit",
        # RabbitMQ 3.10 takes any value here, and ignores one that is no integer.
        checks.integer,
        {"quorum": 13, "stream-group": 6},
        policy=PolicyKey(title="delivery limit", operators="smaller"),
        values="integer; below 0: none",
        text="how often the delivery of a message may fail before it is discarded",
        example=5,
    ),
    Argument(
        "x-delayed-retry-type",
        "retry_type",
        checks.one_of(*_RETRY_TYPE, otherwise="invalid_delayed_retry_type"),
        {"classic": 16, "quorum": 19},
        policy=PolicyKey(
            title="delayed retry type. Must be one of: all, failed, returned, disabled",
            operators="theirs",
            overrules=frozenset({"classic", "quorum"}),
        ),
        new_for=_OTHERS_THAN_STREAMS,
        values=_RETRY_TYPE,
        text="which returned messages [wait](../delays.md#delayed-retry) before they are delivered again",
        example="all",
    ),
    Argument(
        "x-delayed-retry-min",
        "retry_min_ms",
        checks.lease_ms,
        {"classic": 17, "quorum": 20},
        policy=PolicyKey(
            title="delayed retry minimum delay. Must be a positive integer", operators="larger", smaller=True
        ),
        new_for=_OTHERS_THAN_STREAMS,
        values=_LEASE,
        text="how long a message waits after its first failure; without it, no message waits",
        example=1000,
    ),
    Argument(
        "x-delayed-retry-max",
        "retry_max_ms",
        checks.lease_ms,
        {"classic": 18, "quorum": 21},
        policy=PolicyKey(
            title="delayed retry maximum delay. Must be a positive integer", operators="smaller"
        ),
        new_for=_OTHERS_THAN_STREAMS,
        values=_LEASE,
        text="how long a message waits at most; `x-delayed-retry-min`, unless given",
        example=60000,
    ),
    Argument(
        "x-delayed-retry-backoff",
        "retry_backoff",
        checks.one_of(*_RETRY_BACKOFF, otherwise="invalid_delayed_retry_backoff"),
        {"classic": 19, "quorum": 22},
        policy=PolicyKey(title="delayed retry backoff. Must be linear or exponential"),
        own=True,
        new_for=_OTHERS_THAN_STREAMS,
        values=_RETRY_BACKOFF,
        text="how the wait grows with the number of failures: times that number, or doubled by each",
        example="exponential",
    ),
    Argument(
        "x-delayed",
        "delayed",
        checks.boolean,
        {"classic": 25, "quorum": 28},
        new_for=_OTHERS_THAN_STREAMS,
        own=True,
        values=_BOOLEAN,
        text="messages may say [how long they wait](../delays.md#delayed-messages) before they are delivered first",
        example=True,
    ),
    Argument(
        "x-message-groups",
        "message_groups",
        checks.boolean,
        {"classic": 26, "quorum": 29},
        since=versions.MESSAGE_GROUPS,
        new_for=_OTHERS_THAN_STREAMS,
        own=True,
        values=_BOOLEAN,
        text="messages of one [group](../message-groups.md) go to one consumer at a time, in order",
        example=True,
    ),
    Argument(
        "x-message-group-header",
        "message_group_header",
        checks.header,
        {"classic": 27, "quorum": 30},
        since=versions.MESSAGE_GROUPS,
        new_for=_OTHERS_THAN_STREAMS,
        own=True,
        values="text",
        text="the header that names a message's group; `x-group-id`, unless given",
        example="customer",
    ),
    Argument(
        "x-deduplication",
        "deduplication",
        checks.boolean,
        {"classic": 13, "quorum": 16, "stream": 11},
        since=versions.SUPER_STREAMS,
        policy=PolicyKey(title="deduplication value", types=_OTHERS_THAN_STREAMS),
        own=True,
        values=_BOOLEAN,
        text="[refuses to store a message twice](../confirms.md#deduplication)",
        example=True,
    ),
    Argument(
        "x-deduplication-window-ms",
        "deduplication_window_ms",
        checks.lease_ms,
        {"classic": 14, "quorum": 17, "stream": 12},
        since=versions.SUPER_STREAMS,
        policy=PolicyKey(title="deduplication window in ms", types=_OTHERS_THAN_STREAMS),
        own=True,
        values=_LEASE,
        text="how long an id is remembered",
        example=1000,
    ),
    Argument(
        "x-deduplication-count",
        "deduplication_count",
        checks.deduplication_count,
        {"classic": 15, "quorum": 18, "stream": 13},
        since=versions.SUPER_STREAMS,
        policy=PolicyKey(title="deduplication count", types=_OTHERS_THAN_STREAMS),
        own=True,
        values=f"1 to {checks.DEDUPLICATION_COUNT_MAX:,}",
        text="how many ids are remembered",
        example=10,
    ),
    Argument(
        "x-message-status",
        "message_status",
        checks.boolean,
        {"classic": 21, "quorum": 24},
        policy=PolicyKey(title="message status value"),
        own=True,
        values=_BOOLEAN,
        text="[records what becomes of each message](../message-status.md)",
        example=True,
    ),
    Argument(
        "x-message-status-window-ms",
        "message_status_window_ms",
        checks.lease_ms,
        {"classic": 22, "quorum": 25},
        policy=PolicyKey(title="message status window in ms"),
        own=True,
        values=_LEASE,
        text="how long a message stays in the record",
        example=1000,
    ),
    Argument(
        "x-message-status-count",
        "message_status_count",
        checks.message_status_count,
        {"classic": 23, "quorum": 26},
        policy=PolicyKey(title="message status count"),
        own=True,
        values=f"1 to {checks.MESSAGE_STATUS_COUNT_MAX:,}",
        text="how many messages the record has",
        example=10,
    ),
    Argument(
        "x-message-status-events",
        "message_status_events",
        checks.boolean,
        {"classic": 24, "quorum": 27},
        policy=PolicyKey(title="message status events value"),
        own=True,
        values=_BOOLEAN,
        text="publishes what becomes of each message as [events](../message-status.md#events)",
        example=True,
    ),
    Argument(
        "x-quorum-initial-group-size",
        "initial_group_size",
        checks.positive,
        {"quorum": 12},
        values=_COUNT,
        text="number of members (nodes) from the start",
        example=3,
    ),
    Argument(
        "x-quorum-target-group-size",
        "target_group_size",
        checks.positive,
        {"quorum": 0},
        policy=PolicyKey(title="target group size", name="target-group-size", operators="larger"),
        values=_COUNT,
        text="number of members up to which the queue grows by itself",
        example=3,
    ),
    Argument(
        "x-queue-leader-locator",
        "leader_locator",
        checks.one_of(*_LOCATOR, otherwise="invalid_queue_locator_arg"),
        {"quorum": 15, "stream": 7},
        policy=PolicyKey(title="queue leader locator value"),
        values=_LOCATOR,
        text="node of the leader: that of the client, or the one with the fewest leaders (all other values)",
        example="client-local",
    ),
    Argument(
        "x-queue-mode",
        "queue_mode",
        checks.one_of(*_MODE, otherwise="\"unsupported queue mode '{}'\""),
        {"classic": 9},
        policy=PolicyKey(title="queue-mode value"),
        values=_MODE,
        text="no effect",
        example="lazy",
    ),
    Argument(
        "x-queue-version",
        "queue_version",
        checks.queue_version,
        {"classic": 10},
        policy=PolicyKey(title="queue-version value", operators="theirs", types=_OTHERS_THAN_GROUPS),
        values="1, 2",
        text="no effect",
        example=2,
    ),
    Argument(
        "x-max-in-memory-length",
        "max_in_memory_length",
        checks.natural,
        {"quorum": 7},
        # RabbitMQ's words for it.
        policy=PolicyKey(title="maximum memory in bytes", operators="smaller", types=_OTHERS_THAN_STREAMS),
        values=_NUMBER,
        text="no effect",
        example=10,
    ),
    Argument(
        "x-max-in-memory-bytes",
        "max_in_memory_bytes",
        checks.natural,
        {"quorum": 8},
        policy=PolicyKey(title="maximum memory in bytes", operators="smaller", types=_OTHERS_THAN_STREAMS),
        values=_BYTES,
        text="no effect",
        example=10,
    ),
    Argument(
        "x-max-age",
        "max_age_ms",
        checks.age("invalid_max_age"),
        {"stream": 3},
        policy=PolicyKey(title="max age", overrules=frozenset({"stream"})),
        values=_AGE,
        text="age at which [segments](../streams.md#declaring) are deleted",
        example="7D",
    ),
    Argument(
        "x-stream-max-segment-size-bytes",
        "segment_bytes",
        checks.segment_bytes,
        {"stream": 4},
        since=versions.STREAMS,
        policy=PolicyKey(
            title="segment size", check=checks.segment_bytes_of_policy, overrules=frozenset({"stream"})
        ),
        values=f"bytes, 1 to {checks.SEGMENT_BYTES_MAX:,}",
        text="size at which the next segment begins",
        example=1_000_000,
    ),
    Argument(
        "x-stream-filter-size-bytes",
        "filter_bytes",
        checks.filter_bytes,
        {"stream": 5},
        ignored=_OTHERS_THAN_STREAMS,
        since=versions.STREAMS,
        policy=PolicyKey(title="filter size. Valid range is 16-255"),
        values=f"{checks.FILTER_BYTES.start} to {checks.FILTER_BYTES.stop - 1}",
        text="no effect: filters are exact",
        example=32,
    ),
    Argument(
        "x-stream-compression",
        "compression",
        checks.one_of(*CODECS, otherwise="\"unsupported compression '{}'\""),
        {"stream": 8},
        ignored=_OTHERS_THAN_STREAMS,
        since=versions.SUPER_STREAMS,
        own=True,
        values=tuple(CODECS),
        text="[compression](../streams.md#compression)",
        example="zstd",
    ),
    Argument(
        "x-stream-compaction",
        "compaction",
        checks.compaction,
        {"stream": 9},
        ignored=_OTHERS_THAN_STREAMS,
        since=versions.SUPER_STREAMS,
        own=True,
        values="`key`, `header:NAME`",
        text="key for [compaction](../streams.md#compaction): the routing key, or a header",
        example="key",
    ),
    Argument(
        "x-stream-tombstone-age",
        "tombstone_age_ms",
        checks.age("invalid_tombstone_age"),
        {"stream": 10},
        ignored=_OTHERS_THAN_STREAMS,
        needs="x-stream-compaction",
        needs_reason="tombstone_age_but_no_compaction",
        since=versions.SUPER_STREAMS,
        own=True,
        values=_AGE,
        text="time for which tombstones stay after the messages that they delete",
        example="2D",
    ),
    Argument(
        "x-stream-remote",
        "remote",
        checks.remote,
        {"stream": 14},
        ignored=_OTHERS_THAN_STREAMS,
        since=versions.STREAM_REMOTES,
        policy=PolicyKey(title="stream remote"),
        own=True,
        values="name",
        text="[object store](../tiered-storage.md) for old segments (`stream_remotes`)",
        example="archive",
    ),
    Argument(
        "x-stream-local-max-age",
        "local_max_age_ms",
        checks.age("invalid_local_max_age"),
        {"stream": 15},
        ignored=_OTHERS_THAN_STREAMS,
        needs="x-stream-remote",
        needs_reason="local_max_age_but_no_remote",
        since=versions.STREAM_REMOTES,
        policy=PolicyKey(title="stream local max age", overrules=frozenset({"stream"})),
        own=True,
        values=_AGE,
        text="age at which segments that the object store has leave the disk",
        example="2D",
    ),
    Argument(
        "x-stream-local-max-length-bytes",
        "local_max_bytes",
        checks.positive,
        {"stream": 16},
        ignored=_OTHERS_THAN_STREAMS,
        needs="x-stream-remote",
        needs_reason="local_max_length_bytes_but_no_remote",
        since=versions.STREAM_REMOTES,
        policy=PolicyKey(title="stream local maximum length in bytes", overrules=frozenset({"stream"})),
        own=True,
        values="bytes, 1 and more",
        text="size above which segments that the object store has leave the disk",
        example=1_000_000,
    ),
    Argument(
        "x-stream-table",
        "table",
        checks.one_of(PARQUET, otherwise="\"unsupported format '{}' of a table, use 'parquet'\""),
        {"stream": 17},
        ignored=_OTHERS_THAN_STREAMS,
        needs="x-stream-remote",
        needs_reason="table_but_no_remote",
        since=versions.STREAM_TABLES,
        policy=PolicyKey(title="stream table"),
        own=True,
        values=f"`{PARQUET}`",
        text="files beside the segments in the object store that show the stream as a [table](../tables.md)",
        example=PARQUET,
    ),
    Argument(
        "x-initial-cluster-size",
        "initial_group_size",
        checks.positive,
        {"stream": 6},
        policy=PolicyKey(title="cluster size", check=checks.natural),
        values=_COUNT,
        text="number of members (nodes) of the stream",
        example=3,
    ),
    Argument(
        "x-stream",
        "stream",
        checks.stream_name,
        {"stream-group": 2},
        ignored=_OTHERS_THAN_GROUPS,
        own=True,
        values="name",
        text="stream of the [consumer group](../streams.md#consumer-groups)",
        example="other",
    ),
    Argument(
        "x-stream-offset",
        "start",
        None,
        {"stream-group": 3},
        ignored=_OTHERS_THAN_GROUPS,
        own=True,
        values="as for consumers, but not `committed`",
        text="place where the consumer group begins",
        example="first",
    ),
    Argument(
        "x-consumer-timeout",
        "consumer_timeout_ms",
        checks.lease_ms,
        {"classic": 20, "quorum": 23, "stream-group": 7},
        ignored=frozenset({"stream"}),
        policy=PolicyKey(title="consumer timeout", types=_OTHERS_THAN_STREAMS),
        new_for=_OTHERS_THAN_STREAMS,
        values=_LEASE,
        text="how long a consumer may hold a message [without an ack](../confirms.md#consumer-timeout)",
        example=1000,
    ),
    Argument(
        "x-consumer-disconnected-timeout",
        "disconnected_timeout_ms",
        checks.lease_ms,
        {"quorum": 31},
        ignored=frozenset({"classic", "stream", "stream-group"}),
        policy=PolicyKey(title="consumer disconnected timeout"),
        new_for=frozenset({"quorum"}),
        values=_LEASE,
        text="how long at least messages stay with a consumer "
        "[whose node is unreachable](../confirms.md#consumers-of-unreachable-nodes)",
        example=60_000,
    ),
)

ARGUMENTS: Mapping[str, Argument] = {each.name: each for each in ROWS}

#: RabbitMQ checks these arguments first, and in this order; a declare with several mistakes gets the same
#: error. Other arguments are checked after them, in the order of the rows.
CHECK_ORDER: tuple[str, ...] = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
    "x-queue-leader-locator",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
    "x-delivery-limit",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-consumer-timeout",
    "x-consumer-disconnected-timeout",
)
#: Checked before all others: the type decides what the rest is checked for.
CHECKED_FIRST: tuple[str, ...] = ("x-dead-letter-exchange", "x-queue-type")


def _taken(queue_type: str) -> tuple[Argument, ...]:
    names = dict.fromkeys((*CHECK_ORDER, *ARGUMENTS))
    return tuple(
        row
        for name in names
        for row in [ARGUMENTS[name]]
        if queue_type in row.types and row.check is not None and name not in CHECKED_FIRST
    )


def _compared(queue_type: str) -> tuple[str, ...]:
    places = {row.types[queue_type]: row.name for row in ROWS if row.types.get(queue_type)}
    return tuple(places[place] for place in sorted(places))


#: By type of queue: the arguments that it takes, in the order in which they are checked; those that it
#: refuses; and those that a second declare must repeat, in RabbitMQ's order.
TAKEN: Mapping[str, tuple[Argument, ...]] = {each: _taken(each) for each in QUEUE_TYPES}
REFUSED: Mapping[str, frozenset[str]] = {
    each: frozenset(row.name for row in ROWS if each not in row.types and each not in row.ignored)
    for each in QUEUE_TYPES
}
COMPARED: Mapping[str, tuple[str, ...]] = {each: _compared(each) for each in QUEUE_TYPES}

#: Prefixes of arguments that change how a stream keeps messages.
_STREAM_ARGUMENTS = ("x-stream-", "x-deduplication")


def not_replicated(arguments: Iterable[str], version: int) -> str | None:
    """Return the first of a stream's arguments that a cluster of this version does not support."""
    for name in sorted(arguments):
        if not name.startswith(_STREAM_ARGUMENTS):
            continue
        row = ARGUMENTS.get(name)
        if row is None or not 0 < row.since <= version:
            return name
    return None
