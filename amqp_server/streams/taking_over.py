"""Moves consumers of a stream to another host of it, where they continue at the same offsets or at those of
their names.
"""

from __future__ import annotations

from amqp_server.streams.layout.consumer_start import NEXT, Start
from amqp_server.streams.local_host import StreamHost
from amqp_server.streams.members.entries import NO_OFFSET
from quorum_queue.host import Key


def begin_named(host: StreamHost, key: Key, offset: int) -> None:
    """Begin a consumer that has got its name at the name's offset."""
    consumer = host._consumers.get(key)
    if consumer is not None and consumer.next_offset < 0:
        otherwise = consumer.sink.start.otherwise or NEXT
        host._begin(consumer, otherwise if offset == NO_OFFSET else Start(offset=offset))
    else:
        host._attached(key, None)


def take_over(before: StreamHost, after: StreamHost) -> None:
    """Move all consumers to another host, where they continue at the same offsets."""
    if before.shares_names and after.shares_names:
        after._progress.update(before._progress)
        before._progress.clear()
        after._node_names.adopt(before._node_names)
        for key in before._consumers:
            # It waits for its name, or for the offset at which it begins.
            attached = before.asking.attaching.pop(key, None)
            if attached is not None:
                after.begin_asking().attaching[key] = attached
    for key, consumer in list(before._consumers.items()):
        start = consumer.sink.start if consumer.next_offset < 0 else None
        del before._consumers[key]
        consumer.let_go()
        consumer.reading = False
        after._consumers[key] = consumer
        if start is not None and start.group:
            after._begin_named(consumer, start)
        elif start is not None:
            after._begin(consumer, start)
        else:
            after._to_serve[consumer] = None


def refuse(host: StreamHost, key: Key, why: str) -> None:
    """Refuse a consumer: the stream has no place for its name, or it is not known where it begins."""
    host._progress.pop(key, None)
    host._detach(key)
    if not host._attached(key, why):
        # It was attached once, and began again on another host.
        host.queue.consumer_lost(key)


def lose_name(host: StreamHost, key: Key) -> None:
    """End a consumer whose name another one has taken."""
    host._progress.pop(key, None)
    host._detach(key)
    # It may still wait for the offset at which it begins.
    host._attached(key, None)
    host.queue.consumer_lost(key)


__all__ = ["begin_named", "lose_name", "refuse", "take_over"]
