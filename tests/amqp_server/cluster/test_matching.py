"""At any node, messages are moved and purged out of the middle of any queue, while clients go on."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from amqp_server.mqctl.client import Failure
from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring
from tests.reliability.node import Node, wait_until

TYPES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": QUORUM,
    "one-member": {**QUORUM, "x-quorum-initial-group-size": 1},
}
COUNT = 600
PERSISTENT = 2


def fill(channel: Any, queue: str, count: int = COUNT) -> None:
    for number in range(count):
        properties = pika.BasicProperties(
            delivery_mode=PERSISTENT, headers={"third": number % 3}, message_id=str(number)
        )
        channel.basic_publish("", queue, b"%d" % number, properties)


def drained(channel: Any, queue: str) -> list[tuple[int, bool]]:
    """Take all messages: their numbers, and whether they came as redelivered."""
    found: list[tuple[int, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((int(body), method.redelivered))


@pytest.mark.parametrize("kind", TYPES)
def test_messages_are_moved_and_purged_at_any_node(ring: Ring, kind: str) -> None:
    queue, other = f"from {kind}/é", f"to {kind}"
    with ring.channel("n2") as channel:
        for name in (queue, other):
            channel.queue_declare(name, durable=True, arguments=TYPES[kind])
        for node in NAMES:
            fill(channel, queue)
            out = ring.mqctl(node, "move", queue, other, "--header", "third=1")
            assert out == "200 messages were moved\n"
            out = ring.mqctl(node, "purge_queue", queue, "--header", "third=2", "--contains", "9")
            assert out == f"{len([n for n in range(2, COUNT, 3) if '9' in str(n)])} messages were purged\n"
            left = [n for n in range(COUNT) if n % 3 == 0 or (n % 3 == 2 and "9" not in str(n))]
            assert drained(channel, queue) == [(number, False) for number in left]
            assert drained(channel, other) == [(number, False) for number in range(1, COUNT, 3)]
        for name in (queue, other):
            channel.queue_delete(name)


def test_a_move_goes_on_beside_consumers(ring: Ring) -> None:
    """Each message is moved or consumed, once."""
    with ring.channel("n1") as channel, ring.channel("n3") as taking:
        for name in ("busy", "busy-to"):
            channel.queue_declare(name, durable=True, arguments=QUORUM)
        fill(channel, "busy", 1_500)
        consumed: list[tuple[int, bool]] = []

        def take() -> None:
            for method, _, body in taking.consume("busy", inactivity_timeout=2):
                if method is None:
                    return
                consumed.append((int(body), method.redelivered))
                taking.basic_ack(method.delivery_tag)

        taking.basic_qos(prefetch_count=5)
        consumer = threading.Thread(target=take)
        consumer.start()
        ring.mqctl("n2", "move", "busy", "busy-to", "--header", "third=0")
        consumer.join()
        moved = drained(channel, "busy-to")
        assert {flag for _, flag in (*consumed, *moved)} == {False}
        assert moved == sorted(moved) and all(number % 3 == 0 for number, _ in moved) and moved
        assert sorted(number for number, _ in (*consumed, *moved)) == list(range(1_500))
        for name in ("busy", "busy-to"):
            channel.queue_delete(name)


@pytest.mark.parametrize("killed", ["n1", "n3"])
def test_a_node_dies_in_the_middle_of_a_move(ring: Ring, killed: str) -> None:
    """`n1` is asked, `n3` leads: no message is lost, and what stays has its place."""
    with ring.channel("n3") as channel:
        for name in ("dying", "dying-to"):
            channel.queue_declare(
                name, durable=True, arguments=QUORUM | {"x-queue-leader-locator": "client-local"}
            )
        fill(channel, "dying", 3_000)
    moving = threading.Thread(target=_move, args=(ring,))
    moving.start()

    def begun() -> bool:
        return int(ring.get("n2", "/api/queues/%2F/dying-to")["messages_ready"]) > 50

    wait_until("some are moved", begun)
    ring.nodes[killed].kill()
    moving.join()
    ring.nodes[killed].start()
    ring.formed()
    with ring.channel("n2") as channel:
        # What was held by the node that died has come back.
        wait_until(
            "all are ready",
            lambda: ring.get("n2", "/api/queues/%2F/dying")["messages_unacknowledged"] == 0,
        )
        left, moved = drained(channel, "dying"), drained(channel, "dying-to")
        assert {flag for _, flag in left} == {False}
        numbers = [number for number, _ in left]
        assert numbers == sorted(numbers)
        assert {*numbers, *(number for number, _ in moved)} == set(range(3_000))
        # At most what was under way is in both.
        assert len(left) + len(moved) <= 3_000 + 100
        assert all(number % 3 == 0 for number, _ in moved)
        for name in ("dying", "dying-to"):
            channel.queue_delete(name)


def _move(ring: Ring) -> None:
    with suppress(Failure, OSError):
        ring.mqctl("n1", "move", "dying", "dying-to", "--header", "third=0")


@pytest.mark.parametrize("type_", ["classic", "quorum"])
def test_a_single_node_dies_in_the_middle_of_a_move(tmp_path: Path, type_: str) -> None:
    with Node(tmp_path) as node:
        parameters = pika.ConnectionParameters("127.0.0.1", node.port)
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("dying", "dying-to"):
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": type_})
            fill(channel, "dying", 2_000)
            for _ in range(3):
                channel.basic_get("dying")
        api = f"http://127.0.0.1:{node.http}/api/queues/%2F/dying"
        with suppress(httpx.HTTPError), httpx.Client(auth=("guest", "guest")) as client:
            # The request is under way when the node dies.
            asked = {"destination": "dying-to", "header": "third=0"}
            first = client.post(f"{api}/move", json=asked).json()
            with node.killed_after(0.02):
                client.post(f"{api}/move", json=asked | {"after": first["next"]})
        node.start()
        parameters = pika.ConnectionParameters("127.0.0.1", node.port)
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            left, moved = drained(channel, "dying"), drained(channel, "dying-to")
    assert {number for number, _ in (*left, *moved)} == set(range(2_000))
    assert len(left) + len(moved) <= 2_000 + 100
    assert len(moved) >= first["moved"] == 334
    # Only those that came back from the client were delivered once.
    assert [number for number, redelivered in left if redelivered] == [1, 2]
    assert [number for number, _ in left] == sorted(number for number, _ in left)


def test_a_message_keeps_its_age_when_its_leader_dies(ring: Ring) -> None:
    with ring.channel("n3") as channel:
        arguments = QUORUM | {"x-queue-leader-locator": "client-local"}
        channel.queue_declare("aged", durable=True, arguments=arguments)
        began = time.monotonic()
        fill(channel, "aged", 1)

    def age() -> int:
        return int(ring.get("n1", "/api/queues/%2F/aged")["oldest_message_age_ms"] or -1)

    wait_until("it has an age", lambda: age() > 1_000)
    ring.nodes["n3"].kill()
    wait_until("another node leads", lambda: ring.get("n1", "/api/queues/%2F/aged")["leader"] in ("n1", "n2"))
    elapsed_ms = 1000 * (time.monotonic() - began)
    assert 1_000 < age() <= 1000 * (time.monotonic() - began)
    assert elapsed_ms > 1_000
    ring.nodes["n3"].start()
    ring.formed()
    out = ring.mqctl("n2", "-q", "list_queues", "name", "oldest_message_age_ms")
    aged = dict(line.split("\t") for line in out.splitlines())["aged"]
    assert elapsed_ms <= int(aged) <= 1000 * (time.monotonic() - began) + 1_000
    with ring.channel("n1") as channel:
        channel.queue_delete("aged")
