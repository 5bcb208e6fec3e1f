"""A consumer group of a real node: members join, disconnect and leave, the node is killed, and no message is
lost or overtaken.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pika.exceptions
import pytest

from conformance_tests.patience import PATIENCE_S, open_connection
from tests.reliability.node import Node, wait_until

PARTITIONS = 4
GROUP = {"x-queue-type": "stream-group", "x-stream": "orders", "x-stream-offset": "first"}
OPTIONS = ("--stream-flush-ms", "50", "--stream-flush-bytes", "65536", "--stream-segment-bytes", "262144")
KILLS = 2
#: Messages between two of these events.
EACH = 200


class Seen(NamedTuple):
    partition: str
    offset: int
    again: bool


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


class Ledger:
    """The messages that all members have seen, in the order in which they saw them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[Seen] = []
        #: Messages whose acks are on the disk.
        self.done: set[tuple[str, int]] = set()
        self.errors: list[str] = []

    def note(self, seen: Seen) -> None:
        with self.lock:
            message = seen[:2]
            if message in self.done:
                self.errors.append(f"{message} was acked and came again")
            self.seen.append(seen)


class Worker(threading.Thread):
    """A member: it acks most messages, refuses some, and disconnects now and then without closing."""

    def __init__(self, port: int, ledger: Ledger, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ledger = ledger
        self._random = random.Random(seed)
        self.end = threading.Event()

    def run(self) -> None:
        while not self.end.is_set():
            with suppress(pika.exceptions.AMQPError, OSError):
                self._work()
            time.sleep(0.01)

    def _work(self) -> None:
        chance = self._random
        connection = open_connection(url(self._port))
        channel: Any = connection.channel()
        channel.basic_qos(prefetch_count=chance.choice([5, 50]))
        acked: list[tuple[str, int]] = []
        for method, properties, _ in channel.consume("billing", inactivity_timeout=0.05):
            if self.end.is_set():
                break
            if method is None:
                continue
            headers = properties.headers
            partition, offset = headers["x-stream"], headers["x-stream-offset"]
            self._ledger.note(Seen(partition, offset, method.redelivered))
            if chance.random() < 0.02:
                channel.basic_nack(method.delivery_tag)
                continue
            channel.basic_ack(method.delivery_tag)
            acked.append((partition, offset))
            if chance.random() < 0.02:
                # The answer comes when everything before it is on the disk.
                channel.queue_declare("billing", passive=True)
                with self._ledger.lock:
                    self._ledger.done.update(acked)
                acked.clear()
            if chance.random() < 0.002:
                hang_up(connection)
        connection.close()


def hang_up(connection: Any) -> None:
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


def lag(node: Node) -> int:
    connection = open_connection(url(node.port))
    count: int = connection.channel().queue_declare("billing", passive=True).method.message_count
    connection.close()
    return count


def publish(node: Node, first: int, count: int) -> None:
    connection = open_connection(url(node.port))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(first, first + count):
        channel.basic_publish("orders", str(number), b"%d " % number + bytes(500), mandatory=True)
    connection.close()


@pytest.mark.parametrize("seed", [1])
def test_members_and_the_node_may_die(tmp_path: Path, seed: int) -> None:
    ledger = Ledger()
    published = 0
    with Node(tmp_path, *OPTIONS) as node:
        connection = open_connection(url(node.port))
        channel = connection.channel()
        channel.exchange_declare(
            "orders", "x-super-stream", durable=True, arguments={"x-partitions": PARTITIONS}
        )
        channel.queue_declare("billing", durable=True, arguments=GROUP)
        connection.close()
        for kill in range(KILLS + 1):
            workers = [Worker(node.port, ledger, seed * 100 + kill * 10 + each) for each in range(3)]
            for worker in workers:
                worker.start()
            publish(node, published, EACH)
            published += EACH
            if kill < KILLS:
                node.kill()
            else:
                wait_until("the group has read all", lambda: lag(node) == 0)
            for worker in workers:
                worker.end.set()
            for worker in workers:
                worker.join(PATIENCE_S)
            if kill < KILLS:
                node.start()
    assert not ledger.errors
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for each in ledger.seen:
        message = each[:2]
        assert each.again or not seen[message], f"{message} came again without the flag"
        seen[message] += 1
    assert len(seen) == published
    assert {partition for partition, _ in seen} == {f"orders-{number}" for number in range(PARTITIONS)}
