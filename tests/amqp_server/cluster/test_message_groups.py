"""Message groups on three nodes: whoever is asked, and whoever dies."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_server.cluster.ring import NAMES, Ring

Got = list[tuple[str, int, int]]


def declare(ring: Ring, at: str, queue: str, kind: str) -> None:
    with ring.channel(at) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, "x-message-groups": True})


def send(channel: BlockingChannel, queue: str, groups: str, first: int = 0) -> None:
    channel.confirm_delivery()
    for number, group in enumerate(groups, first):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-group-id": group})
        channel.basic_publish("", queue, b"%d" % number, properties, mandatory=True)


def consume(channel: BlockingChannel, queue: str, prefetch: int) -> Got:
    found: Got = []

    def on_message(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        assert properties.headers is not None
        found.append((properties.headers["x-group-id"], int(body), method.delivery_tag))

    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(queue, on_message)
    return found


def pump(channels: list[BlockingChannel], found: list[Got], count: int) -> None:
    """Handle what arrives until so many messages are there."""
    for _ in range(600):
        for channel in channels:
            channel.connection.process_data_events(0.05)
        if sum(map(len, found)) >= count:
            return
    raise AssertionError(found)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_consumers_of_all_nodes_share_the_groups(ring: Ring, kind: str) -> None:
    declare(ring, "n1", f"grouped {kind}", kind)
    with ring.channel("n1") as one, ring.channel("n2") as two, ring.channel("n3") as three:
        channels = [one, two, three]
        found = [consume(channel, f"grouped {kind}", 2) for channel in channels]
        send(two, f"grouped {kind}", "abcdef" * 10)
        last: dict[str, int] = {}
        done = 0
        while done < 60:
            pump(channels, found, 1)
            held = [{group for group, _, _ in got} for got in found]
            assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]
            for channel, got in zip(channels, found, strict=True):
                for group, number, tag in got:
                    assert number > last.get(group, -1)
                    last[group] = number
                    channel.basic_ack(tag)
                    done += 1
                got.clear()


def test_another_leader_knows_who_has_which_group(ring: Ring) -> None:
    declare(ring, "n1", "led-by-groups", "quorum")
    leader = ring.leader("led-by-groups")
    left, right = (name for name in NAMES if name != leader)
    with ring.channel(left) as one, ring.channel(right) as two:
        send(one, "led-by-groups", "aabb")
        found = [consume(one, "led-by-groups", 1), consume(two, "led-by-groups", 1)]
        pump([one, two], found, 2)
        ring.nodes[leader].kill()
        try:
            groups = [got[0][0] for got in found]
            assert sorted(groups) == ["a", "b"]
            for channel, got in zip((one, two), found, strict=True):
                ((_, _, tag),) = got
                got.clear()
                channel.basic_ack(tag)
            # Who has a group gets the next message of it, which is all that is left.
            pump([one, two], found, 2)
            assert sorted(number for got in found for _, number, _ in got) == [1, 3]
        finally:
            ring.nodes[leader].start()
            ring.formed()
    ring.equal("led-by-groups", *NAMES)
    with ring.channel(leader) as channel:
        # Both clients are gone, and what they held is back, in order.
        got = consume(channel, "led-by-groups", 10)
        pump([channel], [got], 2)
        assert sorted(number for _, number, _ in got) == [1, 3]
