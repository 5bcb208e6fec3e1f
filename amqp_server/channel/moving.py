"""Moves messages from one queue to another for an operator, without changing them, and takes single ones out.

They keep exchange, routing key, user id and CC of their first publish, and go only to the given queue. With
basic.publish, a message with a CC would go to the CC's queues again, and a message with another user's id
would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqp_server.channel.publish import expiration_ms, publish
from amqp_server.channel.queue_methods import find
from amqp_server.channel.subscription import Getter
from amqp_server.errors import NotFound
from amqp_server.wire import content, frames
from amqp_server.wire.frames import short_string
from amqp_server.wire.intake import SMALL_FRAME, PublishRoute, Segment
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import priority_of
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.ready import Place
from quorum_queue.ports import Got, Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel


class Picked(NamedTuple):
    """A message that was taken out of a queue."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    #: Its frames.
    item: bytes
    #: Where it was.
    place: Place


def put_back(channel: Channel) -> None:
    """Give all deliveries of the channel back to their queues: at once, however these delay retries, and not
    as failures.
    """
    pieces = channel.unacked.take_all()
    waits = channel.broker.replication.version >= versions.RETRY_WAITS
    for holder, low, high, _ in pieces:
        if waits and holder.queue.type.knows_failures:
            holder.queue.host.submit(("retry", holder.key, low, high, 0, False))
        else:
            holder.queue.host.submit(("return", holder.key, low, high))
    channel.settled("return", pieces)


def pick(
    channel: Channel,
    queue: Queue,
    places: Sequence[Place],
    done: Callable[[Picked | Refused | None], None],
) -> None:
    """Take the messages at these places out of a queue, those that wait too. `done` gets each one, and
    None for each that is not there any more. Those that are not acked return to their places as they were.

    Raises NotFound, also if the queue was deleted and declared again; ResourceLocked.
    """
    if find(channel, queue.name) is not queue:
        raise NotFound(f"queue '{queue.name}' in vhost '{channel.vhost.name}' was deleted meanwhile")
    queue.used()
    getter = channel.getters.get((queue, False, True))
    if getter is None:
        # What it gives back was not delivered: it is another one than that of basic.get.
        getter = channel.getters[queue, False, True] = Getter(channel, queue, no_ack=False, picks=True)
    for place in places:
        taken = partial(_taken, getter, place, done)
        due_ms = max(-place.level, 0)
        consumer = Consumer(getter.key, sink=getter, position=place.position, due_ms=due_ms)
        consumer.next_id = channel.next_tag
        queue.host.get(consumer, taken)


def _taken(
    getter: Getter,
    place: Place,
    done: Callable[[Picked | Refused | None], None],
    got: Got | Refused | None,
) -> None:
    if got is None or isinstance(got, Refused):
        done(got)
        return
    run = got.run
    assert run.contents is not None
    # Without the counts that a consumer gets as headers.
    item, tag = run.contents[0], getter.take(got)
    head = run.head_of(0)
    split = 1 + head[0]
    exchange, routing_key = head[1:split], head[split + 1 : split + 1 + head[split]]
    done(
        Picked(
            tag,
            run.redelivered,
            exchange.decode(errors="replace"),
            routing_key.decode(errors="replace"),
            item,
            place,
        )
    )


def publish_unchanged(
    channel: Channel,
    queue: Queue,
    exchange: str,
    routing_key: str,
    properties: content.Properties,
    body: bytes,
    wait_ms: int = 0,
) -> bool:
    """Give the queue a message, which waits there for so long. Return True if the queue exists; then the
    channel's confirms show whether the queue took the message.
    """
    connection = channel.connection
    payload = properties.encode(len(body))
    large = len(body) > SMALL_FRAME - frames.OVERHEAD or len(payload) > SMALL_FRAME - 512
    attributes = connection.incoming.publisher.attributes(
        properties.persistent,
        priority_of(properties.octet("priority")),
        expiration_ms(properties.text("expiration")),
        channel.number,
        large,
    )
    route = PublishRoute(
        key=b"",
        channel=channel.number,
        publisher=channel,
        exchange=exchange,
        routing_key=routing_key,
        head=short_string(exchange) + short_string(routing_key),
        # It is not to be lost with a queue that is deleted before it has it.
        mandatory=True,
        targets=connection.incoming.targets((queue,)),
        counted=channel.vhost.router.get(""),
        waits=wait_ms > 0,
        unchanged=True,
    )
    segment = Segment(route, attributes)
    if wait_ms > 0:
        segment.waits = [channel.broker.services.queue_time.now_ms() + wait_ms]
    segment.contents.append(content.build(payload, body, channel.number, connection.limits.frame_max))
    return bool(publish(segment))
