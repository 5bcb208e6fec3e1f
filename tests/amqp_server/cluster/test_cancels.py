"""Messages that wait are cancelled at any node, on any queue, and stay away when the leader dies."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.amqp_server.cluster.ring import NAMES, Ring
from tests.amqp_server.cluster.test_delays import wait
from tests.reliability.node import Node

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "one-member": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1},
}
#: More than one look takes.
COUNT = 2_300


def fill(channel: BlockingChannel, queue: str, delay_ms: int, count: int = COUNT) -> None:
    for number in range(count):
        properties = pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": delay_ms + number % 7}, message_id=str(number)
        )
        channel.basic_publish("", queue, b"%d" % number, properties)


def cancel(channel: BlockingChannel, queue: str, message_id: str) -> bool:
    try:
        channel.basic_publish(
            "", "amq.mqd.cancel", json.dumps({"queue": queue, "message_id": message_id}).encode()
        )
    except NackError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_cancelled_at_any_node(ring: Ring, kind: str) -> None:
    queue = f"cancels {kind}/é"
    with ring.channel("n2") as channel:
        channel.queue_declare(queue, durable=True, arguments=KINDS[kind] | {"x-delayed": True})
        fill(channel, queue, 600_000)
    for number, node in enumerate(NAMES):
        with ring.channel(node) as channel:
            assert cancel(channel, queue, str(COUNT - 1 - number))
            assert not cancel(channel, queue, str(COUNT - 1 - number))
        assert ring.mqctl(node, "cancel_messages", queue, str(number)) == "1 messages were cancelled\n"
        out = ring.mqctl(
            node, "purge_queue", queue, "--waiting", "--message-id", str(100 + number), "--since", "1h"
        )
        assert out == "1 messages were purged\n"
        out = ring.mqctl(node, "-q", "search", queue, "--waiting", "--message-id", str(number))
        assert out == f"{COUNT - 3 * number - 3} messages were looked at\n"
    assert ring.get("n1", f"/api/queues/%2F/{quote(queue, safe='')}")["messages"] == COUNT - 9
    with ring.channel("n3") as channel:
        channel.queue_delete(queue)


def test_what_was_cancelled_stays_away_after_the_leader_died(ring: Ring) -> None:
    with ring.channel("n3") as channel:
        channel.queue_declare(
            "led",
            durable=True,
            arguments={"x-queue-type": "quorum", "x-delayed": True, "x-queue-leader-locator": "client-local"},
        )
        fill(channel, "led", 8_000, 6)
    with ring.channel("n1") as channel:
        assert cancel(channel, "led", "3") and cancel(channel, "led", "5")
        ring.nodes["n3"].kill()
        try:
            assert not cancel(channel, "led", "3")
            assert cancel(channel, "led", "0")
            assert sorted(wait(channel, "led", 3)) == [(b"1", False), (b"2", False), (b"4", False)]
        finally:
            ring.nodes["n3"].start()
            ring.formed()
    ring.equal("led", *NAMES)
    assert ring.get("n2", "/api/queues/%2F/led")["messages"] == 0
    with ring.channel("n1") as channel:
        channel.queue_delete("led")


@pytest.mark.parametrize("type_", ["classic", "quorum"])
def test_a_node_dies_in_the_middle_of_a_move_of_waiting_messages(tmp_path: Path, type_: str) -> None:
    """All of them still wait, and at most those that were under way do so in both queues."""
    arguments = {"x-queue-type": type_, "x-delayed": True}
    with Node(tmp_path) as node:
        parameters = pika.ConnectionParameters("127.0.0.1", node.port)
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("from", "to"):
                channel.queue_declare(name, durable=True, arguments=arguments)
            fill(channel, "from", 3_600_000, 2_000)
        api = f"http://127.0.0.1:{node.http}/api/queues/%2F"
        asked = {"destination": "to", "waiting": True}
        with suppress(httpx.HTTPError), httpx.Client(auth=("guest", "guest")) as client:
            first = client.post(f"{api}/from/move", json=asked).json()
            # The next request is under way when the node dies.
            with node.killed_after(0.05):
                client.post(f"{api}/from/move", json=asked | {"after": first["next"]})
        node.start()
        api = f"http://127.0.0.1:{node.http}/api/queues/%2F"
        with httpx.Client(auth=("guest", "guest"), base_url=api) as client:
            left, moved = (waiting(client, name) for name in ("from", "to"))
    assert first["moved"] == 1_000
    assert {*left, *moved} == {str(number) for number in range(2_000)}
    assert len(left) + len(moved) <= 2_000 + 100 and len(moved) >= 1_000


def waiting(client: httpx.Client, queue: str) -> list[str]:
    """Return the bodies of all messages that wait; none may be ready."""
    found: list[str] = []
    after = ""
    while after is not None:
        page = client.get(
            f"/{queue}/peek", params={"waiting": "true", "count": "1000", "after": after}
        ).json()
        assert all("due" in row and not row["redelivered"] for row in page["messages"])
        found += [row["payload"] for row in page["messages"]]
        after = page["next"]
    return found
