"""Consumer groups in the topology: queues over a stream or a super stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.topology.super_streams import partitions_of
from amqp_server.errors import NotFound, NotImplemented_, PreconditionFailed
from amqp_server.streams.consumer_groups.options import GroupOptions

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost


def streams_of(vhost: VHost, name: str) -> list[Queue]:
    """Return the streams that a group over this stream or super stream reads, in order."""
    queue = vhost.queues.get(name)
    if queue is not None:
        return [queue] if queue.type.is_stream else []
    exchange = vhost.router.get(name)
    names = partitions_of(vhost, exchange) if exchange is not None else None
    found = [vhost.queues[each] for each in names or () if each in vhost.queues]
    return [each for each in found if each.type.is_stream]


def check(vhost: VHost, name: str, parsed: QueueArguments) -> list[Queue]:
    """Return the streams of a new group. Raises NotFound, PreconditionFailed, NotImplemented_."""
    stream = parsed.stream
    place = f"consumer group '{name}' in vhost '{vhost.name}'"
    if not vhost.parts.replication.has_groups:
        raise NotImplemented_(f"{place} needs a cluster whose nodes all run this version of mqd")
    queue = vhost.queues.get(stream)
    if queue is not None and not queue.type.is_stream:
        raise PreconditionFailed(
            f"invalid arg 'x-stream' for {place}: queue '{stream}' is a {queue.type.name} queue, not a stream"
        )
    if queue is None:
        exchange = vhost.router.get(stream)
        if exchange is None:
            raise NotFound(f"no stream or super stream '{stream}' in vhost '{vhost.name}' for {place}")
        names = partitions_of(vhost, exchange)
        if names is None:
            raise PreconditionFailed(
                f"invalid arg 'x-stream' for {place}: exchange '{stream}' is not a super stream"
            )
        for each in names:
            if each not in vhost.queues or not vhost.queues[each].type.is_stream:
                raise PreconditionFailed(
                    f"invalid arg 'x-stream' for {place}: super stream '{stream}' contains '{each}', which is not "
                    "a stream"
                )
    found = streams_of(vhost, stream)
    if not found:
        raise PreconditionFailed(
            f"invalid arg 'x-stream' for {place}: super stream '{stream}' has no partitions"
        )
    return found


def feeds_groups(vhost: VHost, source: str, kind: str, destination: str) -> bool:
    """True if groups will read a stream because of this binding. Then the client that binds needs the
    permission to read the stream, too.
    """
    queue = vhost.queues.get(destination) if kind == "queue" else None
    return queue is not None and queue.type.is_stream and vhost.is_read_by_groups(source)


def options_of(queue: Queue) -> GroupOptions:
    """Return the declared options of a group."""
    parsed, config = queue.parsed, queue.vhost.parts.config
    limit = parsed.delivery_limit
    timeout_ms = parsed.consumer_timeout_ms
    return GroupOptions(
        parsed.stream,
        parsed.start,
        delivery_limit=None if limit is None or limit < 0 else limit,
        dead_letters=parsed.dead_letter_exchange is not None,
        consumer_timeout_ms=config.group_consumer_timeout_ms if timeout_ms is None else timeout_ms,
        spans_max=config.group_gaps_max,
        commit_ms=config.group_commit_ms,
    )


def refuse_publish(queue: Queue) -> PreconditionFailed:
    """Return the error for a publish to a group."""
    return PreconditionFailed(
        f"queue '{queue.name}' in vhost '{queue.vhost.name}' is a consumer group over "
        f"'{queue.parsed.stream}' and has no messages of its own: publish to '{queue.parsed.stream}'"
    )


__all__ = ["check", "feeds_groups", "options_of", "refuse_publish", "streams_of"]
