"""Messages that wait before they are delivered first, on three nodes: whoever is asked, and whoever dies."""

from __future__ import annotations

import time
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_server.cluster.ring import NAMES, Ring

WAIT_S = 6.0


def declare(ring: Ring, at: str, queue: str, kind: str) -> None:
    with ring.channel(at) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, "x-delayed": True})


def send(channel: BlockingChannel, queue: str, body: bytes, delay_ms: int = 0, exchange: str = "") -> None:
    headers: dict[str, Any] = {"x-delay": delay_ms} if delay_ms else {}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    channel.basic_publish(exchange, queue, body, properties, mandatory=True)


def wait(channel: BlockingChannel, queue: str, count: int, seconds: float = 60) -> list[tuple[bytes, bool]]:
    found: list[tuple[bytes, bool]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=seconds):
        assert method is not None, found
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_through_any_node(ring: Ring) -> None:
    """Queues with a home, and with a leader, elsewhere."""
    for kind in ("classic", "quorum"):
        declare(ring, "n1", f"any {kind}", kind)
        for at in NAMES:
            with ring.channel(at) as channel:
                send(channel, f"any {kind}", at.encode(), 700)
                send(channel, f"any {kind}", b"at once")
                begun = time.monotonic()
                # Later messages overtake it, as do those of an exchange that lets none wait.
                assert wait(channel, f"any {kind}", 1) == [(b"at once", False)]
                assert wait(channel, f"any {kind}", 1) == [(at.encode(), False)]
                assert time.monotonic() - begun >= 0.5


def test_an_exchange_is_known_everywhere(ring: Ring) -> None:
    with ring.channel("n2") as channel:
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        for kind in ("classic", "quorum"):
            channel.queue_declare(f"bound {kind}", durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(f"bound {kind}", "later")
    with ring.channel("n3") as channel:
        send(channel, "", b"m", 1_500, exchange="later")
        assert [channel.basic_get(f"bound {kind}")[0] for kind in ("classic", "quorum")] == [None, None]
        for kind in ("classic", "quorum"):
            assert wait(channel, f"bound {kind}", 1) == [(b"m", False)]


def test_it_waits_for_another_leader(ring: Ring) -> None:
    """With messages that overtook it, on all members of the next leader's group."""
    declare(ring, "n1", "led", "quorum")
    leader = ring.leader("led")
    other = next(name for name in NAMES if name != leader)
    with ring.channel(other) as channel:
        begun = time.time()
        for number in range(3):
            send(channel, "led", b"late %d" % number, int(WAIT_S * 1000))
            send(channel, "led", b"now %d" % number)
        assert wait(channel, "led", 3) == [(b"now %d" % number, False) for number in range(3)]
    ring.nodes[leader].kill()
    try:
        with ring.channel(other) as channel:
            late = wait(channel, "led", 3)
            assert late == [(b"late %d" % number, False) for number in range(3)]
            assert time.time() - begun >= WAIT_S - 0.5
    finally:
        ring.nodes[leader].start()
        ring.formed()
    ring.equal("led", *NAMES)


def test_it_waits_from_the_publish_of_a_transaction(ring: Ring) -> None:
    for kind in ("classic", "quorum"):
        queue = f"of a transaction, {kind}"
        declare(ring, "n1", queue, kind)
        with ring.channel("n3") as confirming, ring.channel("n2") as reader:
            channel = confirming.connection.channel()
            channel.tx_select()
            begun = time.monotonic()
            send(channel, queue, b"later", 1_200)
            send(channel, queue, b"at once")
            channel.tx_commit()
            assert wait(reader, queue, 1) == [(b"at once", False)]
            assert reader.basic_get(queue)[0] is None
            assert wait(reader, queue, 1) == [(b"later", False)]
            assert time.monotonic() - begun >= 1.0
