"""The arguments of a stream's consumer: where it begins, and which messages it wants. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from amqp_server.config import age_ms
from amqp_server.errors import PreconditionFailed
from exchanges.field import erlang_term, type_name
from persistence.streams.batch import FILTER_BYTES_MAX
from persistence.streams.log import Wanted

#: Maximum number of filter values of one consumer.
FILTERS_MAX = 1024
#: Later times are reduced to this one: nodes send each other times in 64 bits.
TIME_MS_MAX = (1 << 63) - 1


class Start(NamedTuple):
    """Where a consumer begins; one of the fields is set."""

    #: `first`, `last` or `next`.
    name: str = ""
    offset: int | None = None
    #: Wall time.
    time_ms: int | None = None
    #: Time before now.
    ago_ms: int | None = None
    #: Begin where this name last acked; the first time, begin at `otherwise`.
    group: str = ""
    otherwise: Start | None = None


NEXT = Start("next")
_NAMES = {"first": Start("first"), "last": Start("last"), "next": NEXT}


#: Whether each message gets its time in a header; see group_headers.
TIMESTAMPS: Final = "x-stream-timestamps"
#: Whether the consumer gets batches as they are stored; see stored_delivery.
BATCHES: Final = "x-stream-batches"
#: Value instead of an offset: begin where a name last acked.
COMMITTED = "committed"
GROUP_BYTES_MAX = 255
#: Why a consumer is not attached: its name is new, and the stream has as many names as it may keep.
NAMES_FULL: Final = "names full"


def parse_consumer_start(arguments: Mapping[str, object], types: Mapping[str, str], place: str) -> Start:
    """Return where a consumer begins that may have a name. Raises PreconditionFailed."""
    value = arguments.get("x-stream-offset")
    if value != COMMITTED:
        for argument in ("x-group", "x-stream-offset-default"):
            if argument in arguments:
                raise PreconditionFailed(
                    f"invalid arg '{argument}' for {place}: it needs 'x-stream-offset' '{COMMITTED}'"
                )
        return parse_start(arguments, types, place)
    group = arguments.get("x-group")
    if not isinstance(group, str) or not 0 < len(group.encode()) <= GROUP_BYTES_MAX:
        raise PreconditionFailed(
            f"invalid arg 'x-group' for {place}: 'x-stream-offset' '{COMMITTED}' needs a name of 1 to "
            f"{GROUP_BYTES_MAX} bytes"
        )
    otherwise = parse_start(arguments, types, place, "x-stream-offset-default")
    return Start(COMMITTED, group=group, otherwise=otherwise)


def parse_start(
    arguments: Mapping[str, object], types: Mapping[str, str], place: str, name: str = "x-stream-offset"
) -> Start:
    """Return where a consumer begins. Raises PreconditionFailed, with RabbitMQ's text where it has one."""
    if name not in arguments:
        return NEXT
    value = arguments[name]
    kind = types.get(name) or type_name(value)
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode(errors="replace")
    if isinstance(value, str):
        found = _NAMES.get(value)
        if found is not None:
            return found
        try:
            return Start(ago_ms=age_ms(value))
        except ValueError:
            raise _refused(name, value, kind, place) from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Start(time_ms=int(aware.timestamp() * 1000))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        if kind == "timestamp":
            return Start(time_ms=min(value * 1000, TIME_MS_MAX))
        return Start(offset=value)
    raise _refused(name, value, kind, place)


def parse_wanted(arguments: Mapping[str, object], types: Mapping[str, str], place: str) -> Wanted | None:
    """Return what the consumer filters by; None if it wants everything. Raises PreconditionFailed."""
    unfiltered = parse_flag(arguments, types, place, "x-stream-match-unfiltered")
    if "x-stream-filter" not in arguments:
        return None
    given = arguments["x-stream-filter"]
    values = given if isinstance(given, list) else [given]
    wanted: list[bytes] = []
    for value in values:
        encoded = value.encode() if isinstance(value, str) else value
        if not isinstance(encoded, bytes) or len(encoded) > FILTER_BYTES_MAX:
            raise _refused("x-stream-filter", given, types.get("x-stream-filter") or type_name(given), place)
        wanted.append(encoded)
    if not 0 < len(wanted) <= FILTERS_MAX:
        raise _refused("x-stream-filter", given, "array", place)
    return Wanted(frozenset(wanted), unfiltered)


def parse_flag(arguments: Mapping[str, object], types: Mapping[str, str], place: str, name: str) -> bool:
    """Return an argument that is true or false, and false if it is not given. Raises PreconditionFailed."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise _refused(name, value, types.get(name) or type_name(value), place)
    return value


def parse_batches(arguments: Mapping[str, object], types: Mapping[str, str], place: str) -> bool:
    """Return whether the consumer wants batches as they are stored. Raises PreconditionFailed."""
    batches = parse_flag(arguments, types, place, BATCHES)
    for argument in ("x-stream-filter", TIMESTAMPS) if batches else ():
        if argument in arguments:
            raise PreconditionFailed(
                f"invalid arg '{argument}' for {place}: it does not go together with '{BATCHES}'"
            )
    return batches


def parse_moment(arguments: Mapping[str, object], types: Mapping[str, str], place: str, name: str) -> int:
    """Return an argument that is a timestamp, or a number of ms since 1970, in ms. Raises
    PreconditionFailed.
    """
    value = arguments.get(name)
    kind = types.get(name) or type_name(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value * 1000 if kind == "timestamp" else value, TIME_MS_MAX)
    raise _refused(name, value, kind, place)


def _refused(argument: str, value: object, kind: str, place: str) -> PreconditionFailed:
    what = argument.removeprefix("x-").replace("-", "_")
    return PreconditionFailed(
        f"invalid arg '{argument}' for {place}: {{invalid_{what}_arg,{{{kind},{erlang_term(value)}}}}}"
    )
