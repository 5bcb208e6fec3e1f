"""Messages that go back with a delay of their own: at any node, and when the leader dies."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_server.cluster.ring import NAMES, Ring
from tests.amqp_server.cluster.test_delays import wait

#: How far the clock of a queue may be from this one, ms.
NEAR_MS = 100
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "one-member": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1},
}


def fill(channel: BlockingChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def give_back(channel: BlockingChannel, queue: str, delay_ms: int) -> bytes:
    """Take the next message and give it back; return its body."""
    method, _, body = channel.basic_get(queue)
    assert method is not None and body is not None
    headers = {"x-delivery-tag": method.delivery_tag, "x-delay": delay_ms}
    channel.basic_publish("amq.mqd.retry", "", b"", pika.BasicProperties(headers=headers))
    return bytes(body)


@pytest.mark.parametrize("kind", KINDS)
def test_at_any_node(ring: Ring, kind: str) -> None:
    queue = f"retries {kind}"
    with ring.channel("n2") as channel:
        channel.queue_declare(queue, durable=True, arguments=KINDS[kind])
    for node in NAMES:
        with ring.channel(node) as channel:
            fill(channel, queue, 2)
            begun = time.monotonic()
            assert give_back(channel, queue, 900) == b"0"
            assert wait(channel, queue, 1) == [(b"1", False)]
            assert wait(channel, queue, 1) == [(b"0", True)]
            assert time.monotonic() - begun >= 0.9
    with ring.channel("n3") as channel:
        channel.queue_delete(queue)


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_says_until_when(ring: Ring, kind: str) -> None:
    queue = f"told {kind}"
    with ring.channel("n2") as channel:
        channel.queue_declare(queue, durable=True, arguments=KINDS[kind])
        fill(channel, queue, 2)
        # The queue's clock runs evenly from its start: it is near to this one.
        now_ms = time.time() * 1000 - NEAR_MS
        for delay_ms in (200_000, 100_000):
            give_back(channel, queue, delay_ms)
    for node in NAMES:
        row = ring.get(node, f"/api/queues/%2F/{quote(queue)}")
        assert 0 <= row["next_delayed_at"] - now_ms - 100_000 < 30_000
        assert 0 <= row["last_delayed_at"] - now_ms - 200_000 < 30_000
    with ring.channel("n3") as channel:
        channel.queue_delete(queue)


def test_they_wait_for_another_leader(ring: Ring) -> None:
    """And on a member that was down, and gets a snapshot or the log later."""
    with ring.channel("n3") as channel:
        arguments = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
        channel.queue_declare("led-back", durable=True, arguments=arguments)
        fill(channel, "led-back", 4)
    with ring.channel("n1") as channel:
        begun = time.monotonic()
        for delay_ms in (8_000, 6_000, 600_000):
            give_back(channel, "led-back", delay_ms)
        ring.nodes["n3"].kill()
        try:
            # The confirmed delays hold, and nothing else waits.
            assert wait(channel, "led-back", 1) == [(b"3", False)]
            assert wait(channel, "led-back", 2) == [(b"1", True), (b"0", True)]
            assert time.monotonic() - begun >= 7.5
        finally:
            ring.nodes["n3"].start()
            ring.formed()
    ring.equal("led-back", *NAMES)
    row = ring.get("n3", "/api/queues/%2F/led-back")
    assert (row["messages"], row["messages_delayed"]) == (1, 1)
    with ring.channel("n1") as channel:
        channel.queue_delete("led-back")
