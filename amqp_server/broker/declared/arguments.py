"""Arguments of declares: their checks, and the comparison of two declares.

The checks come in RabbitMQ's order, so that a declare with several mistakes gets the same error. A node
parses the arguments of stored queues again at each start, so arguments that were accepted once must stay
acceptable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from amqp_server.broker.declared.queue_types import CLASSIC, QUEUE_TYPES, QueueType
from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed
from amqp_server.streams.layout.consumer_start import NEXT, Start, parse_start
from amqp_server.streams.layout.keys import HEADER, ROUTING_KEY
from amqp_server.wire.frames import SHORT_STRING_MAX
from exchanges.field import erlang_term, token, type_name
from persistence.streams.compression import CODECS

NO_TYPES: Mapping[str, str] = {}

# Ten years, RabbitMQ's limit for times.
TIME_MS_MAX = 315_360_000_000
PRIORITY_MAX = 255
# Maximum number of ids that one queue can remember: about 250 MB.
DEDUPLICATION_COUNT_MAX = 1_000_000

EXCHANGE_CHARACTERS_MAX = 255
# RabbitMQ's largest segment of a stream, and its bounds of a filter's size.
SEGMENT_BYTES_MAX = 3_000_000_000
FILTER_BYTES = range(16, 256)

#: Maximum number of sets of arguments that are shared between queues.
SHARED_MAX = 1024


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
    # None if it was not given; a window or a count means yes.
    deduplication: bool | None = None
    deduplication_window_ms: int | None = None
    deduplication_count: int | None = None
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
    # Groups.
    stream: str = ""
    start: Start = NEXT
    consumer_timeout_ms: int | None = None

    @property
    def type(self) -> QueueType:
        return QUEUE_TYPES[self.queue_type]


class _Invalid(Exception):
    """The reason, as RabbitMQ prints it after the colon."""


def _integer(value: object, type: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or type == "timestamp":
        raise _Invalid(f'"expected integer, got {type}"')
    return value


def _natural(value: object, type: str) -> int:
    number = _integer(value, type)
    if number < 0:
        raise _Invalid(f"{{value_negative,{number}}}")
    return number


def _time_ms(value: object, type: str) -> int:
    number = _natural(value, type)
    if number > TIME_MS_MAX:
        raise _Invalid(f"{{value_too_large,{number}}}")
    return number


def _lease_ms(value: object, type: str) -> int:
    return _above_zero(_time_ms(value, type))


def _group_size(value: object, type: str) -> int:
    return _above_zero(_natural(value, type))


def _above_zero(number: int) -> int:
    if not number:
        raise _Invalid("{value_zero,0}")
    return number


def _priority(value: object, type: str) -> int:
    number = _natural(value, type)
    if number > PRIORITY_MAX:
        raise _Invalid(f"{{max_value_exceeded,{number}}}")
    return number


def _deduplication_count(value: object, type: str) -> int:
    number = _above_zero(_natural(value, type))
    if number > DEDUPLICATION_COUNT_MAX:
        raise _Invalid(f"{{value_too_large,{number}}}")
    return number


def _version(value: object, type: str) -> int:
    number = _natural(value, type)
    if number not in (1, 2):
        raise _Invalid(f"\"unsupported queue version '{number}'\"")
    return number


def _boolean(value: object, type: str) -> bool:
    if not isinstance(value, bool):
        raise _Invalid(f"{{unacceptable_type,{type}}}")
    return value


def _text(value: object, type: str) -> str:
    if not isinstance(value, str):
        raise _Invalid(f"{{unacceptable_type,{type}}}")
    return value


def _max_age_ms(value: object, type: str) -> int:
    """A whole number above zero, and one of Y, M, D, h, m, s."""
    try:
        return age_ms(_text(value, type))
    except ValueError:
        raise _Invalid("invalid_max_age") from None


def _tombstone_age_ms(value: object, type: str) -> int:
    try:
        return age_ms(_text(value, type))
    except ValueError:
        raise _Invalid("invalid_tombstone_age") from None


def _compaction(value: object, type: str) -> str:
    """The source of the key for compaction: `key`, or `header:NAME`."""
    text = _text(value, type)
    name = text.removeprefix(HEADER) if text.startswith(HEADER) else ""
    if text != ROUTING_KEY and not 0 < len(name.encode()) <= SHORT_STRING_MAX:
        raise _Invalid(f"\"expected key or header:NAME, got '{text[:300]}'\"")
    return text


def _segment_bytes(value: object, type: str) -> int:
    size = _above_zero(_natural(value, type))
    if size > SEGMENT_BYTES_MAX:
        # RabbitMQ's text, which differs from its others.
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    return size


def _stream(value: object, type: str) -> str:
    name = _text(value, type)
    if not 0 < len(name.encode()) <= SHORT_STRING_MAX:
        raise _Invalid(f"\"expected the name of a stream, got '{name[:100]}'\"")
    return name


def _filter_bytes(value: object, type: str) -> int:
    size = _natural(value, type)
    if size not in FILTER_BYTES:
        raise _Invalid(f"{{value_out_of_range,{size},{FILTER_BYTES.start},{FILTER_BYTES.stop - 1}}}")
    return size


def _one_of(*choices: str, otherwise: str) -> Callable[[object, str], str]:
    def check(value: object, type: str) -> str:
        text = _text(value, type)
        if text not in choices:
            raise _Invalid(otherwise.format(text))
        return text

    return check


# Argument, field, check, in RabbitMQ's order.
_CHECKS: tuple[tuple[str, str, Callable[[object, str], object]], ...] = (
    ("x-expires", "expires_ms", _lease_ms),
    ("x-message-ttl", "message_ttl_ms", _time_ms),
    ("x-dead-letter-routing-key", "dead_letter_routing_key", _text),
    (
        "x-dead-letter-strategy",
        "dead_letter_strategy",
        _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
    ),
    ("x-max-length", "max_length", _natural),
    ("x-max-length-bytes", "max_length_bytes", _natural),
    ("x-max-in-memory-length", "max_in_memory_length", _natural),
    ("x-max-in-memory-bytes", "max_in_memory_bytes", _natural),
    ("x-max-priority", "max_priority", _priority),
    (
        "x-overflow",
        "overflow",
        _one_of("drop-head", "reject-publish", "reject-publish-dlx", otherwise="invalid_overflow"),
    ),
    (
        "x-queue-mode",
        "queue_mode",
        _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
    ),
    ("x-queue-version", "queue_version", _version),
    ("x-single-active-consumer", "single_active_consumer", _boolean),
    ("x-quorum-initial-group-size", "initial_group_size", _group_size),
    ("x-quorum-target-group-size", "target_group_size", _group_size),
    (
        "x-queue-leader-locator",
        "leader_locator",
        _one_of("client-local", "balanced", "random", "least-leaders", otherwise="invalid_queue_locator_arg"),
    ),
    ("x-max-age", "max_age_ms", _max_age_ms),
    ("x-stream-max-segment-size-bytes", "segment_bytes", _segment_bytes),
    ("x-stream-filter-size-bytes", "filter_bytes", _filter_bytes),
    (
        "x-stream-compression",
        "compression",
        _one_of(*CODECS, otherwise="\"unsupported compression '{}'\""),
    ),
    ("x-stream-compaction", "compaction", _compaction),
    ("x-stream-tombstone-age", "tombstone_age_ms", _tombstone_age_ms),
    ("x-initial-cluster-size", "initial_group_size", _group_size),
    # RabbitMQ 3.10 takes any value here, and ignores one that is no integer.
    ("x-delivery-limit", "delivery_limit", _integer),
    # Arguments that RabbitMQ does not have.
    ("x-stream", "stream", _stream),
    ("x-consumer-timeout", "consumer_timeout_ms", _lease_ms),
    ("x-deduplication", "deduplication", _boolean),
    ("x-deduplication-window-ms", "deduplication_window_ms", _lease_ms),
    ("x-deduplication-count", "deduplication_count", _deduplication_count),
)
#: Checks that differ for streams.
_STREAM_CHECKS: dict[str, Callable[[object, str], object]] = {
    # A stream with a limit of 0 would keep nothing.
    "x-max-length-bytes": lambda value, type: _above_zero(_natural(value, type)),
}
#: Arguments of streams. Other types accept and ignore them, like any unknown argument.
_STREAMS_ONLY = frozenset(
    {"x-stream-filter-size-bytes", "x-stream-compression", "x-stream-compaction", "x-stream-tombstone-age"}
)
#: Arguments of groups, which other types ignore.
_GROUPS_ONLY = frozenset({"x-stream", "x-consumer-timeout"})
_queue_type = _one_of(*QUEUE_TYPES, otherwise="\"unsupported queue type '{}'\"")


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
) -> QueueArguments:
    """Parse the arguments of a declare. Raises PreconditionFailed with RabbitMQ's texts. `types` has the AMQP
    types of the arguments, if known.

    `default_type` is the queue's type if the arguments do not name one.
    """
    if not arguments and default_type == CLASSIC.name:
        return _shared(QueueArguments())
    place = f"queue '{name}' in vhost '{vhost}'"

    def checked(argument: str, check: Callable[[object, str], object]) -> object:
        value = arguments[argument]
        try:
            return check(value, types.get(argument) or type_name(value))
        except _Invalid as invalid:
            raise PreconditionFailed(f"invalid arg '{argument}' for {place}: {invalid}") from None

    values: dict[str, Any] = {}
    if "x-dead-letter-exchange" in arguments:
        values["dead_letter_exchange"] = _dead_letter_exchange(arguments, types, place)
    if "x-queue-type" in arguments:
        values["queue_type"] = checked("x-queue-type", _queue_type)
    queue_type = QUEUE_TYPES[values.setdefault("queue_type", default_type)]
    unsupported = queue_type.unsupported
    for argument, attribute, check in _CHECKS:
        if argument not in arguments or argument in unsupported:
            continue
        if queue_type.is_stream:
            check = _STREAM_CHECKS.get(argument, check)
        elif argument in _STREAMS_ONLY:
            continue
        if argument in _GROUPS_ONLY and not queue_type.is_group:
            continue
        values[attribute] = checked(argument, check)
        if attribute == "tombstone_age_ms" and "compaction" not in values:
            raise PreconditionFailed(f"invalid arg '{argument}' for {place}: tombstone_age_but_no_compaction")
        if attribute == "dead_letter_routing_key" and "dead_letter_exchange" not in values:
            raise PreconditionFailed(f"invalid arg '{argument}' for {place}: routing_key_but_no_dlx_defined")
    for argument in arguments:  # in the client's order, as RabbitMQ does
        if argument in unsupported:
            raise PreconditionFailed(
                f"invalid arg '{argument}' for {place} of queue type rabbit_{queue_type.name}_queue"
            )
    if queue_type.is_group:
        if "stream" not in values:
            raise PreconditionFailed(f"invalid arg 'x-stream' for {place}: a group needs a stream")
        values["start"] = parse_start(arguments, types, place)
    if queue_type.always_durable:
        _check_durable(place, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    return _shared(QueueArguments(**values))


@lru_cache(maxsize=SHARED_MAX)
def _shared(parsed: QueueArguments) -> QueueArguments:
    """Return the same object for all queues with equal arguments: thousands may have the same arguments."""
    return parsed


def _dead_letter_exchange(arguments: Mapping[str, object], types: Mapping[str, str], place: str) -> str:
    argument = "x-dead-letter-exchange"
    value = arguments[argument]
    if not isinstance(value, str):
        type = types.get(argument) or type_name(value)
        raise PreconditionFailed(f"invalid type '{type}' for arg '{argument}' in {place}")
    # No exchange has a longer name, and parsed arguments are kept for other queues (see _shared).
    return value[: EXCHANGE_CHARACTERS_MAX + 1]


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
        compared = QUEUE_TYPES.get(str(told), CLASSIC).compared
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
