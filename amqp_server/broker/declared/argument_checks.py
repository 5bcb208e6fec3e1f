"""Checks of an argument's value. Each returns the setting that the value means, or raises Invalid.

`type` is the value's AMQP type, by RabbitMQ's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed
from amqp_server.startup.stream_remotes import NAME
from amqp_server.streams.layout.keys import HEADER, ROUTING_KEY
from amqp_server.wire.frames import SHORT_STRING_MAX

Check = Callable[[object, str], object]

#: Ten years, RabbitMQ's limit for times.
TIME_MS_MAX: Final = 315_360_000_000
PRIORITY_MAX: Final = 255
#: Maximum number of ids that one queue can remember: about 250 MB.
DEDUPLICATION_COUNT_MAX: Final = 1_000_000
#: Maximum number of messages in the record of one queue: about 70 MB, and their ids.
MESSAGE_STATUS_COUNT_MAX: Final = 1_000_000
EXCHANGE_CHARACTERS_MAX: Final = 255
#: RabbitMQ's largest segment of a stream, and its bounds of a filter's size.
SEGMENT_BYTES_MAX: Final = 3_000_000_000
FILTER_BYTES: Final = range(16, 256)


class Invalid(Exception):
    """The reason, as RabbitMQ prints it after the colon."""


class InvalidType(Exception):
    """A value of a type for which RabbitMQ has another text."""


def integer(value: object, type: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or type == "timestamp":
        raise Invalid(f'"expected integer, got {type}"')
    return value


def natural(value: object, type: str) -> int:
    number = integer(value, type)
    if number < 0:
        raise Invalid(f"{{value_negative,{number}}}")
    return number


def positive(value: object, type: str) -> int:
    number = natural(value, type)
    if not number:
        raise Invalid("{value_zero,0}")
    return number


def time_ms(value: object, type: str) -> int:
    number = natural(value, type)
    if number > TIME_MS_MAX:
        raise Invalid(f"{{value_too_large,{number}}}")
    return number


def lease_ms(value: object, type: str) -> int:
    return positive(time_ms(value, type), type)


def priority(value: object, type: str) -> int:
    number = natural(value, type)
    if number > PRIORITY_MAX:
        raise Invalid(f"{{max_value_exceeded,{number}}}")
    return number


def deduplication_count(value: object, type: str) -> int:
    number = positive(value, type)
    if number > DEDUPLICATION_COUNT_MAX:
        raise Invalid(f"{{value_too_large,{number}}}")
    return number


def message_status_count(value: object, type: str) -> int:
    number = positive(value, type)
    if number > MESSAGE_STATUS_COUNT_MAX:
        raise Invalid(f"{{value_too_large,{number}}}")
    return number


def queue_version(value: object, type: str) -> int:
    number = natural(value, type)
    if number not in (1, 2):
        raise Invalid(f"\"unsupported queue version '{number}'\"")
    return number


def boolean(value: object, type: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"{{unacceptable_type,{type}}}")
    return value


def text(value: object, type: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{{unacceptable_type,{type}}}")
    return value


def short_text(value: object, type: str) -> str:
    """A name in a policy."""
    found = text(value, type)
    if len(found.encode()) > SHORT_STRING_MAX:
        raise Invalid("too_long")
    return found


def header(value: object, type: str) -> str:
    """The name of a header."""
    found = short_text(value, type)
    if not found:
        raise Invalid("a header has a name")
    return found


def exchange(value: object, type: str) -> str:
    if not isinstance(value, str):
        raise InvalidType
    # No exchange has a longer name, and parsed arguments are kept for other queues.
    return value[: EXCHANGE_CHARACTERS_MAX + 1]


def age(reason: str) -> Check:
    """A whole number above zero, and one of Y, M, D, h, m, s."""

    def check(value: object, type: str) -> int:
        found = text(value, type)
        try:
            return age_ms(found)
        except ValueError:
            raise Invalid(reason) from None

    return check


def compaction(value: object, type: str) -> str:
    """The source of the key for compaction: `key`, or `header:NAME`."""
    found = text(value, type)
    name = found.removeprefix(HEADER) if found.startswith(HEADER) else ""
    if found != ROUTING_KEY and not 0 < len(name.encode()) <= SHORT_STRING_MAX:
        raise Invalid(f"\"expected key or header:NAME, got '{found[:300]}'\"")
    return found


def remote(value: object, type: str) -> str:
    """The name of an object store in the configuration."""
    found = text(value, type)
    if not NAME.fullmatch(found):
        raise Invalid(f"\"expected the name of a remote, got '{found[:100]}'\"")
    return found


def segment_bytes(value: object, type: str) -> int:
    size = positive(value, type)
    if size > SEGMENT_BYTES_MAX:
        # RabbitMQ's text, which differs from its others.
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    return size


def segment_bytes_of_policy(value: object, type: str) -> int | None:
    """RabbitMQ accepts 0 in a policy, and then uses its default."""
    size = natural(value, type)
    if size > SEGMENT_BYTES_MAX:
        raise Invalid(f"{{value_too_large,{size}}}")
    return size or None


def stream_name(value: object, type: str) -> str:
    name = text(value, type)
    if not 0 < len(name.encode()) <= SHORT_STRING_MAX:
        raise Invalid(f"\"expected the name of a stream, got '{name[:100]}'\"")
    return name


def filter_bytes(value: object, type: str) -> int:
    size = natural(value, type)
    if size not in FILTER_BYTES:
        raise Invalid(f"{{value_out_of_range,{size},{FILTER_BYTES.start},{FILTER_BYTES.stop - 1}}}")
    return size


def one_of(*choices: str, otherwise: str) -> Check:
    def check(value: object, type: str) -> str:
        found = text(value, type)
        if found not in choices:
            raise Invalid(otherwise.format(found))
        return found

    return check


queue_type: Final = one_of(*QUEUE_TYPES, otherwise="\"unsupported queue type '{}'\"")
