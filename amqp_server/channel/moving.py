"""Moves messages from one queue to another for an operator, without changing them.

They keep exchange, routing key, user id and CC of their first publish, and go only to the given queue. With
basic.publish, a message with a CC would go to the CC's queues again, and a message with another user's id
would be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.channel.publish import expiration_ms, publish
from amqp_server.wire import content, frames
from amqp_server.wire.frames import short_string
from amqp_server.wire.intake import SMALL_FRAME, PublishRoute, Segment
from quorum_queue.machine.attributes import priority_of

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel


def publish_unchanged(
    channel: Channel,
    queue: Queue,
    exchange: str,
    routing_key: str,
    properties: content.Properties,
    body: bytes,
) -> bool:
    """Give the queue a message. Return True if the queue exists; then the channel's confirms show whether the
    queue took the message.
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
        mandatory=False,
        targets=connection.incoming.targets((queue,)),
        counted=channel.vhost.router.get(""),
    )
    segment = Segment(route, attributes)
    segment.contents.append(content.build(payload, body, channel.number, connection.limits.frame_max))
    return bool(publish(segment))
