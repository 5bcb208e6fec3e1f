"""Messages of a megabyte and more, and the limit on them."""

from __future__ import annotations

import hashlib

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Name, Raw
from conformance_tests.inbox import Inbox, get, publish, wait_get

MIB = 1 << 20
#: The default of RabbitMQ 3.x.
LIMIT_MIB = 128
TOO_LARGE_MIB = 129


def body_of(size: int) -> bytes:
    block = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(1024))
    return (block * (size // len(block) + 1))[:size]


@pytest.mark.parametrize("size", [MIB, 8 * MIB + 1, 20_000_000])
@pytest.mark.parametrize("kind", ["transient", "durable", "quorum"])
def test_a_large_message_comes_back_whole(ch: BlockingChannel, name: Name, size: int, kind: str) -> None:
    queue, body = name("q"), body_of(size)
    ch.queue_declare(
        queue, durable=kind != "transient", arguments={"x-queue-type": "quorum"} if kind == "quorum" else None
    )
    ch.confirm_delivery()
    publish(ch, queue, body, delivery_mode=2)
    delivery = wait_get(ch, queue)
    assert delivery.body == body


def test_many_of_a_megabyte_in_order(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    ch.basic_qos(prefetch_count=2)
    inbox = Inbox(ch, queue)
    for number in range(12):
        publish(ch, queue, b"%d:" % number + body_of(MIB))
    for number in range(12):
        delivery = inbox.one()
        assert delivery.body == b"%d:" % number + body_of(MIB)
        ch.basic_ack(delivery.tag)


def test_frames_of_two_channels_may_be_mixed(raw: Raw, ch: BlockingChannel, name: Name) -> None:
    queues = name("q"), name("q")
    for queue in queues:
        ch.queue_declare(queue)
    client = raw()
    client.open_channel(2)
    body = body_of(MIB)
    large = client.publish_bytes(body, routing_key=queues[0])
    small = client.publish_bytes(b"small", routing_key=queues[1], channel=2)
    # The cut is after the second body frame of the large message.
    method_and_header = len(client.publish_bytes(b"", routing_key=queues[0]))
    cut = method_and_header + 2 * client.frame_max
    client.send(large[:cut] + small)
    assert wait_get(ch, queues[1]).body == b"small"
    assert get(ch, queues[0]) is None
    client.send(large[cut:])
    assert wait_get(ch, queues[0]).body == body


def test_a_message_over_the_limit_closes_the_channel(raw: Raw, ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    client = raw()
    client.publish(body_of(TOO_LARGE_MIB * MIB), routing_key=queue)
    client.expect_channel_close(
        406,
        f"PRECONDITION_FAILED - message size {TOO_LARGE_MIB * MIB} is larger than configured max size {LIMIT_MIB * MIB}",
        method_id=(60, 40),
    )
    client.open_channel()
    client.publish(b"after", routing_key=queue)
    assert wait_get(ch, queue).body == b"after"
    assert get(ch, queue) is None
