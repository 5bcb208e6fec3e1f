"""Any node shows the messages of any queue, and mqctl finds some of them."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest

from amqp_server.mqctl.client import Failure
from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring
from tests.reliability.node import wait_until

TYPES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": QUORUM,
    "one-member": {**QUORUM, "x-quorum-initial-group-size": 1},
    "stream": {"x-queue-type": "stream"},
}
COUNT = 2_500


def told(ring: Ring, node: str, *asked: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(ring.mqctl(node, "--formatter", "json", *asked))
    return rows


@pytest.mark.parametrize("kind", TYPES)
def test_messages_are_seen_at_any_node(ring: Ring, kind: str) -> None:
    queue = f"seen {kind}/é"
    with ring.channel("n2") as channel:
        channel.queue_declare(queue, durable=True, arguments=TYPES[kind])
        # Headers that all differ, as those of most programs do.
        for number in range(COUNT):
            properties = pika.BasicProperties(
                delivery_mode=2, message_id=str(number), headers={"number": number, "odd": number % 2 == 1}
            )
            channel.basic_publish("", queue, b"%d " % number + b"x" * 200, properties)
        for node in NAMES:
            # What was confirmed by one node is seen at all others at once.
            rows = told(ring, node, "peek", queue, "-n", "3")
            assert [row["payload"].split()[0] for row in rows] == ["0", "1", "2"]
            rows = told(ring, node, "peek", queue, "--from", rows[1]["place"])
            assert [row["payload"].split()[0] for row in rows] == [str(number) for number in range(2, 12)]
            found = told(ring, node, "search", queue, "--header", f"number={COUNT - 1}")
            assert [row["properties"]["message_id"] for row in found] == [str(COUNT - 1)]
            found = told(ring, node, "search", queue, "--header", "odd=true", "--contains", "77 x")
            assert [row["properties"]["message_id"] for row in found] == [
                str(number) for number in range(COUNT) if number % 100 == 77
            ]
        # A message that is larger than all that one request looks at.
        channel.basic_publish("", queue, b"y" * 3_000_000, pika.BasicProperties(delivery_mode=2))
        for node in NAMES:
            rows = told(ring, node, "peek", queue, "--from", found[-1]["place"], "-n", "1000")
            assert len(rows) == COUNT - 2_477 and rows[-1]["payload"] == "y" * 50_000
        if kind != "stream":
            method, _, _ = channel.basic_get(queue)
            assert method.redelivered is False and method.message_count == COUNT
            channel.basic_ack(method.delivery_tag)
        with pytest.raises(Failure, match="no queue 'nowhere'"):
            ring.mqctl("n1", "peek", "nowhere")
        channel.queue_delete(queue)


def test_messages_of_a_queue_whose_leader_died(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("seen", durable=True, arguments=QUORUM)
        for number in range(20):
            channel.basic_publish("", "seen", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    ring.nodes["n3"].kill()
    try:

        def seen() -> bool:
            try:
                rows = told(ring, "n1", "peek", "seen", "-n", "100")
            except Failure as failure:
                assert failure.status == 503, failure
                return False
            return [row["payload"] for row in rows] == [str(number) for number in range(20)]

        wait_until("n1 shows them", seen)
    finally:
        ring.nodes["n3"].start()
