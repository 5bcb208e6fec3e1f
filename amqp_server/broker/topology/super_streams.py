"""Super streams: an exchange of the type x-super-stream together with its partitions, which are streams.

One operation makes everything or nothing, on one node and in a cluster. Each partition is bound with its
number as key and with the argument `x-stream-partition-order`, as RabbitMQ's tools do it. Without
`x-partitions` it is an ordinary exchange, to which clients bind queues themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from amqp_server.broker import declared_memory, room
from amqp_server.broker.declared import argument_table
from amqp_server.broker.declared.argument_table import not_replicated
from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.operations import DeclareSuperStream
from amqp_server.broker.declared.queue_types import STREAM
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded
from amqp_server.errors import NotFound, NotImplemented_, PreconditionFailed
from amqp_server.wire import tables
from amqp_server.wire.frames import SHORT_STRING_MAX
from exchanges.field import erlang_term, type_name
from exchanges.router import Exchange
from exchanges.super_stream import SUPER_STREAM
from quorum_queue.queue_ids import PLACES_MAX, partition_id

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost

PARTITIONS = "x-partitions"
ORDER = "x-stream-partition-order"
#: RabbitMQ's tools mark the direct exchange of a super stream with this argument.
MARK = "x-super-stream"
#: Arguments of the exchange itself, which its partitions do not get.
_OWN = (PARTITIONS, "alternate-exchange", MARK)
#: Arguments that a second declare must repeat.
COMPARED = (PARTITIONS, *argument_table.COMPARED[STREAM.name])


def has_partitions(exchange: Exchange | None) -> bool:
    """True if the exchange was declared with its partitions, which are deleted with it."""
    return exchange is not None and exchange.type == SUPER_STREAM and PARTITIONS in exchange.arguments


def partition_name(name: str, number: int) -> str:
    return f"{name}-{number}"


def partitions_of(vhost: VHost, exchange: Exchange) -> list[str] | None:
    """Return the partitions in order; None for an exchange that is no super stream."""
    if exchange.type == SUPER_STREAM:
        bindings = sorted(vhost.router.bindings(source=exchange.name), key=lambda each: int(each.routing_key))
    elif exchange.arguments.get(MARK) is True:
        bindings = vhost.router.bindings(source=exchange.name)
        bindings = [each for each in bindings if isinstance(each.arguments.get(ORDER), int)]
        bindings.sort(key=lambda each: each.arguments[ORDER])  # type: ignore[arg-type, return-value]
    else:
        return None
    return [each.destination for each in bindings]


def super_stream_of(vhost: VHost, queue: str) -> str | None:
    """Return the super stream that a queue belongs to, and with which it is deleted."""
    for binding in vhost.router.bindings(destination=queue, kind="queue"):
        if has_partitions(vhost.router.get(binding.source)):
            return binding.source
    return None


def binding_record(record: QueueRecord, name: str, number: int) -> BindingRecord:
    """Return the record of the binding of a partition."""
    return BindingRecord(record.vhost, name, record.name, "queue", str(number), encoded({ORDER: number}))


def place_of(vhost: VHost, name: str) -> str:
    return f"exchange '{name}' in vhost '{vhost.name}'"


def check_count(vhost: VHost, name: str, count: object, types: Mapping[str, str]) -> int:
    """Check and return x-partitions. Raises PreconditionFailed."""
    most = vhost.parts.config.super_stream_partitions_max
    kind = types.get(PARTITIONS) or type_name(count)
    place = place_of(vhost, name)
    if not isinstance(count, int) or isinstance(count, bool) or kind == "timestamp":
        raise PreconditionFailed(f"invalid arg '{PARTITIONS}' for {place}: \"expected integer, got {kind}\"")
    if not 0 < count <= most:
        raise PreconditionFailed(
            f"invalid arg '{PARTITIONS}' for {place}: {{value_out_of_range,{count},1,{most}}}"
        )
    return count


def check_known(vhost: VHost, name: str) -> None:
    """Raise NotImplemented_ in a cluster that may have nodes that do not know super streams."""
    if not vhost.parts.replication.has_super_streams:
        raise NotImplemented_(
            f"exchange '{name}' in vhost '{vhost.name}' is a super stream, which needs a cluster whose "
            "nodes all run this version of mqd"
        )


def declaration(
    vhost: VHost, exchange: ExchangeRecord, arguments: Mapping[str, object], types: Mapping[str, str]
) -> DeclareSuperStream:
    """Return the operation that makes a super stream. Raises PreconditionFailed, ResourceError,
    NotImplemented_.
    """
    place = place_of(vhost, exchange.name)
    count = check_count(vhost, exchange.name, arguments[PARTITIONS], types)
    for refused, holds in (("non-durable", not exchange.durable), ("auto-delete", exchange.auto_delete)):
        if holds:
            raise PreconditionFailed(f"invalid property '{refused}' for {place}")
    queue_type = arguments.get("x-queue-type", STREAM.name)
    if queue_type != STREAM.name:
        raise PreconditionFailed(
            f"invalid arg 'x-queue-type' for {place}: partitions are streams, not {erlang_term(queue_type)}"
        )
    return _operation(vhost, exchange, arguments, types, range(count))


def growth(vhost: VHost, name: str, more: int) -> DeclareSuperStream:
    """Return the operation that adds partitions to a super stream. Raises NotFound, PreconditionFailed,
    ResourceError.
    """
    exchange = vhost.router.get(name)
    if exchange is None:
        raise NotFound(f"no exchange '{name}' in vhost '{vhost.name}'")
    if not has_partitions(exchange):
        raise PreconditionFailed(
            f"exchange '{name}' in vhost '{vhost.name}' was not declared with '{PARTITIONS}'"
        )
    present = len(partitions_of(vhost, exchange) or ())
    if more < 1:
        raise PreconditionFailed(f"at least 1 partition must be added, not {more}")
    check_count(vhost, name, present + more, {})
    record = next(each for each in vhost.exchange_records() if each.name == name)
    return _operation(vhost, record, exchange.arguments, {}, range(present, present + more))


def _operation(
    vhost: VHost,
    exchange: ExchangeRecord,
    arguments: Mapping[str, object],
    types: Mapping[str, str],
    numbers: range,
) -> DeclareSuperStream:
    parts, name = vhost.parts, exchange.name
    check_known(vhost, name)
    if len(partition_name(name, numbers[-1]).encode()) > SHORT_STRING_MAX:
        raise PreconditionFailed(
            f"exchange '{name[:100]}…' in vhost '{vhost.name}': the names of its partitions would be too long"
        )
    told = {"x-queue-type": STREAM.name} | {key: value for key, value in arguments.items() if key not in _OWN}
    parsed: QueueArguments = vhost.check_arguments(
        partition_name(name, numbers[0]),
        told,
        durable=True,
        exclusive=False,
        auto_delete=False,
        types=types,
        default_type=STREAM.name,
    )
    unknown = not_replicated(told, parts.replication.version) if parts.replication.clustered else None
    if unknown is not None:
        raise NotImplemented_(f"streams in a cluster do not support '{unknown}': {place_of(vhost, name)}")
    taken = first_taken(vhost, name, numbers)
    if taken is not None:
        raise PreconditionFailed(taken)
    room.check(room.super_stream_refused(vhost, name, room.room_of(vhost), len(numbers)))
    parts.counts.check_declared(
        len(numbers) * (declared_memory.of_queue(told) + declared_memory.of_binding("", {ORDER: 0}))
    )
    table = tables.encode(told)
    placed = parts.hosts.place_all(parsed, len(numbers))
    records = tuple(
        QueueRecord(
            vhost.name,
            partition_name(name, number),
            0,
            False,
            table,
            type=parsed.queue_type,
            node="" if members else parts.replication.node,
            members=members,
            leader=members[0] if members else "",
            deduplication_producers=parts.config.deduplication_producers_max,
        )
        for number, members in zip(numbers, placed, strict=True)
    )
    return DeclareSuperStream(exchange, numbers.start, records, room.told_room(vhost))


def first_taken(vhost: VHost, name: str, numbers: range) -> str | None:
    """Return the error if a queue with the name of a partition exists."""
    for number in numbers:
        if partition_name(name, number) in vhost.queues:
            return (
                f"queue '{partition_name(name, number)}' in vhost '{vhost.name}' exists already: super stream "
                f"'{name}' cannot use it as a partition"
            )
    return None


__all__ = [
    "COMPARED",
    "MARK",
    "ORDER",
    "PARTITIONS",
    "PLACES_MAX",
    "binding_record",
    "check_count",
    "check_known",
    "declaration",
    "first_taken",
    "growth",
    "has_partitions",
    "partition_id",
    "partition_name",
    "partitions_of",
    "place_of",
    "super_stream_of",
]
