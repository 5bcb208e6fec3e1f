"""Confirms and deliveries go on while the store's transaction and the marks' flush wait for the disk."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.cluster.disks import SlowDisks
from tests.cluster.links import Unsupported
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery
from tests.reliability.node import Node

COUNT = 300


def test_the_log_waits_for_nothing(tmp_path: Path) -> None:
    try:
        disks = SlowDisks(tmp_path)
    except Unsupported as why:
        pytest.skip(str(why))
    # A block for each message: the log must not be full before both wait.
    node = Node(tmp_path, "--log-bytes", "256MiB")
    node.environment = disks.environment("n1")
    with node:
        publisher, consumer = Client(node.port), Client(node.port)
        with contextlib.closing(publisher), contextlib.closing(consumer):
            for queue in ("kept", "consumed"):
                publisher.declare(queue)
            publisher.confirms()
            consumer.consume("consumed", 0)
            publish(publisher, range(1))
            held = disks.hold("n1")
            sent, received = 1, 0
            waiting: set[str] = set()
            deadline = time.monotonic() + PATIENCE_S
            # LMDB calls fdatasync, and the marks fsync.
            while not {"fsync", "fdatasync"} <= waiting:
                assert time.monotonic() < deadline, waiting
                publish(publisher, range(sent, sent + 1))
                sent += 1
                waiting = set(held.read_text().split()) if held.exists() else set()
            stalled = sent
            publish(publisher, range(sent, sent + COUNT))
            sent += COUNT
            while received < sent:
                received += sum(isinstance(event, Delivery) for event in consumer.receive())
            node.kill()
        disks.heal("n1")
        node.start()
        with contextlib.closing(Client(node.port)) as client:
            found: list[int] = []
            client.consume("kept", 0)
            while len(found) < sent:
                found += [number(event.body) for event in client.receive() if isinstance(event, Delivery)]
        assert found == list(range(sent)) and stalled < sent
        assert node.stop() == 0


def publish(client: Client, seqs: range) -> None:
    """Publish each message to both queues, and wait for its confirms."""
    for seq in seqs:
        for queue in ("kept", "consumed"):
            client.send(Address("", queue).message(body(seq, 100)))
        # Its delivery tags: the channel's messages are counted from 1.
        open_tags = {2 * seq + 1, 2 * seq + 2}
        while open_tags:
            for event in client.receive():
                assert isinstance(event, Confirm) and not event.nack
                open_tags -= set(range(event.tag + 1)) if event.multiple else {event.tag}
