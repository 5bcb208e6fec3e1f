"""Arguments of declares: their checks, and the comparison of two declares.

The checks come in RabbitMQ's order, so that a declare with several mistakes gets the same error. A node
parses the arguments of stored queues again at each start, so arguments that were accepted once must stay
acceptable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from amqp_server.broker.declared.argument_checks import Check, Invalid, InvalidType
from amqp_server.broker.declared.argument_table import (
    ARGUMENTS,
    CHECKED_FIRST,
    COMPARED,
    REFUSED,
    TAKEN,
)
from amqp_server.broker.declared.queue_types import CLASSIC, QUEUE_TYPES, QueueType
from amqp_server.errors import PreconditionFailed
from amqp_server.streams.layout.consumer_start import NEXT, Start, parse_start
from exchanges.field import erlang_term, token, type_name

NO_TYPES: Mapping[str, str] = {}

#: Maximum number of sets of arguments that are shared between queues.
SHARED_MAX = 1024


#: The header that names a message's group, unless the queue names another one.
GROUP_HEADER = "x-group-id"


@dataclass(frozen=True, slots=True)
class QueueArguments:
    queue_type: str = CLASSIC.name
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    # None means drop-head unless a policy says otherwise; likewise None means at-most-once below.
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: Literal["at-most-once", "at-least-once"] | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    # As declared. A value below zero means no limit, None the default of the queue type.
    delivery_limit: int | None = None
    retry_type: Literal["disabled", "all", "failed", "returned"] | None = None
    retry_min_ms: int | None = None
    retry_max_ms: int | None = None
    retry_backoff: Literal["linear", "exponential"] | None = None
    # True if messages may say how long they wait before they are delivered first.
    delayed: bool = False
    # None if it was not given; a header means yes.
    message_groups: bool | None = None
    message_group_header: str | None = None
    # None if it was not given; a window or a count means yes.
    deduplication: bool | None = None
    deduplication_window_ms: int | None = None
    deduplication_count: int | None = None
    # None if it was not given; a window, a count or events mean yes.
    message_status: bool | None = None
    message_status_window_ms: int | None = None
    message_status_count: int | None = None
    message_status_events: bool | None = None
    # Accepted; has no effect here.
    queue_mode: Literal["default", "lazy"] | None = None
    queue_version: int | None = None
    max_in_memory_length: int | None = None
    max_in_memory_bytes: int | None = None
    # Followed as far as possible when the nodes of a quorum queue are chosen.
    initial_group_size: int | None = None
    target_group_size: int | None = None
    leader_locator: str | None = None
    # Streams.
    max_age_ms: int | None = None
    segment_bytes: int | None = None
    # Accepted, without effect here: filters are exact.
    filter_bytes: int | None = None
    compression: str | None = None
    compaction: str | None = None
    tombstone_age_ms: int | None = None
    # An object store of the configuration, and what stays on the disk.
    remote: str | None = None
    local_max_age_ms: int | None = None
    local_max_bytes: int | None = None
    table: str | None = None
    # Groups.
    stream: str = ""
    start: Start = NEXT
    consumer_timeout_ms: int | None = None
    disconnected_timeout_ms: int | None = None

    @property
    def type(self) -> QueueType:
        return QUEUE_TYPES[self.queue_type]

    @property
    def group_header(self) -> str:
        """The header that names a message's group; empty if the queue has no message groups."""
        return (self.message_group_header or GROUP_HEADER) if self.message_groups else ""


def parse_queue_arguments(
    name: str,
    vhost: str,
    arguments: Mapping[str, object],
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    types: Mapping[str, str] = NO_TYPES,
    default_type: str = CLASSIC.name,
    stored: bool = False,
) -> QueueArguments:
    """Parse the arguments of a declare. Raises PreconditionFailed with RabbitMQ's texts. `types` has the AMQP
    types of the arguments, if known. `stored`: the queue exists, and may be older than some arguments.

    `default_type` is the queue's type if the arguments do not name one.
    """
    if not arguments and default_type == CLASSIC.name:
        return _shared(QueueArguments())
    place = f"queue '{name}' in vhost '{vhost}'"

    def refused(argument: str, reason: object) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{argument}' for {place}: {reason}")

    def checked(argument: str, check: Check) -> object:
        value = arguments[argument]
        kind = types.get(argument) or type_name(value)
        try:
            return check(value, kind)
        except Invalid as invalid:
            raise refused(argument, invalid) from None
        except InvalidType:
            raise PreconditionFailed(f"invalid type '{kind}' for arg '{argument}' in {place}") from None

    values: dict[str, Any] = {}
    for name in CHECKED_FIRST:
        row = ARGUMENTS[name]
        if name in arguments and row.check is not None:
            values[row.field] = checked(name, row.check)
    queue_type = QUEUE_TYPES[values.setdefault("queue_type", default_type)]
    for row in TAKEN[queue_type.name]:
        check = (row.stream_check if queue_type.is_stream else None) or row.check
        if row.name not in arguments or check is None:
            continue
        try:
            values[row.field] = checked(row.name, check)
        except PreconditionFailed:
            if not stored or queue_type.name not in row.new_for:
                raise
        if row.needs and row.needs not in arguments:
            raise refused(row.name, row.needs_reason)
    for argument in arguments:  # in the client's order, as RabbitMQ does
        if argument in REFUSED[queue_type.name]:
            raise PreconditionFailed(
                f"invalid arg '{argument}' for {place} of queue type rabbit_{queue_type.name}_queue"
            )
    least_ms, most_ms = values.get("retry_min_ms"), values.get("retry_max_ms")
    if least_ms is not None and most_ms is not None and most_ms < least_ms and not stored:
        raise refused(
            "x-delayed-retry-max", f"{most_ms} is less than x-delayed-retry-min, which is {least_ms}"
        )
    if values.get("remote") and values.get("compaction"):
        raise refused("x-stream-remote", "a stream with x-stream-compaction stays on the disk")
    if values.get("message_group_header") or values.get("message_groups"):
        _check_groups(values, refused)
    if queue_type.is_group:
        if "stream" not in values:
            raise refused("x-stream", "a group needs a stream")
        values["start"] = parse_start(arguments, types, place)
    if queue_type.always_durable:
        _check_durable(place, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    return _shared(QueueArguments(**values))


def _check_groups(values: dict[str, Any], refused: Callable[[str, object], PreconditionFailed]) -> None:
    """Check what a queue with message groups can't have, too. A header means groups."""
    if values.get("message_groups") is False:
        raise refused("x-message-group-header", "x-message-groups is false")
    values["message_groups"] = True
    given = "x-message-group-header" if "message_group_header" in values else "x-message-groups"
    if values.get("max_priority"):
        raise refused(given, "a queue with x-max-priority has no message groups: order is by group there")
    if values.get("single_active_consumer"):
        raise refused(given, "with x-single-active-consumer one consumer has all messages")


@lru_cache(maxsize=SHARED_MAX)
def _shared(parsed: QueueArguments) -> QueueArguments:
    """Return the same object for all queues with equal arguments: thousands may have the same arguments."""
    return parsed


def _check_durable(place: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    refused = (("auto-delete", auto_delete), ("exclusive-owner", exclusive), ("non-durable", not durable))
    for prop, holds in refused:
        if holds:
            raise PreconditionFailed(f"invalid property '{prop}' for {place}")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments that a client asked for, or those of the queue that exists: both are compared."""

    durable: bool
    auto_delete: bool
    arguments: Mapping[str, object]
    types: Mapping[str, str] = field(default_factory=dict)
    # Exchanges only.
    type: str = ""
    internal: bool = False
    # Queues only: the type if the arguments do not name one.
    queue_type: str = CLASSIC.name


def equivalence_error(
    kind: Literal["queue", "exchange"],
    name: str,
    vhost: str,
    received: Declaration,
    current: Declaration,
    more: tuple[str, ...] = (),
) -> str | None:
    """RabbitMQ's text for the first difference that matters, None if there is none.

    `more` are arguments that an exchange compares besides its alternate exchange.

    A queue's `exclusive` is not compared here: that difference is 405 RESOURCE_LOCKED, and found earlier.
    """
    place = f"for {kind} '{name}' in vhost '{vhost}'"
    for prop in ("type", "durable", "auto_delete", "internal"):
        wanted, present = getattr(received, prop), getattr(current, prop)
        if wanted != present:
            shown = _atom if prop == "type" else _plain
            difference = f"received '{shown(wanted)}' but current is '{shown(present)}'"
            return f"inequivalent arg '{prop}' {place}: {difference}"
    compared: tuple[str, ...] = ("alternate-exchange", *more)
    if kind == "queue":
        told = current.arguments.get("x-queue-type", current.queue_type)
        compared = COMPARED.get(str(told), COMPARED["classic"])
    for argument in compared:
        found = _difference(argument, received, current)
        if found is not None:
            return f"inequivalent arg '{argument}' {place}: {found}"
    return None


def _difference(argument: str, received: Declaration, current: Declaration) -> str | None:
    in_received, in_current = argument in received.arguments, argument in current.arguments
    if in_received and in_current:
        wanted, present = received.arguments[argument], current.arguments[argument]
        if token(wanted) == token(present):
            return None
        return f"received '{_plain(wanted)}' but current is '{_plain(present)}'"
    if in_received == in_current:
        return None
    given, other = (received, current) if in_received else (current, received)
    if argument == "x-queue-type" and given.arguments[argument] == other.queue_type:
        return None  # counts as not given
    return f"received {_described(argument, received)} but current is {_described(argument, current)}"


def _described(argument: str, declaration: Declaration) -> str:
    if argument not in declaration.arguments:
        return "none"
    value = declaration.arguments[argument]
    type = declaration.types.get(argument) or type_name(value)
    return f"the value '{_plain(value)}' of type '{type}'"


def _atom(value: str) -> str:
    """Print an exchange type as Erlang prints an atom, which has quotes unless it is a plain word."""
    plain = value[:1].islower() and value.replace("_", "").replace("@", "").isalnum() and value.isascii()
    return value if plain else f"'{value}'"


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return erlang_term(value)
