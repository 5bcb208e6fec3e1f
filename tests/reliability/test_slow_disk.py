"""A disk that is slow to read a queue's next messages delays the deliveries of that queue only."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path

from conformance_tests.patience import PATIENCE_S
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery
from tests.reliability.node import Node
from tests.reliability.slow_disk import VARIABLE

#: Longer than anything else takes, even on a busy machine.
READ_S = 4.0
COUNT = 20


def test_a_slow_read_stops_nobody_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node:
        with contextlib.closing(Client(node.port)) as client:
            client.declare("deep")
            client.declare("other")
            _publish(client, "deep", range(COUNT))
        node.kill()
        # Messages from before the start are not in memory.
        node.program = [sys.executable, "-m", "tests.reliability.slow_disk"]
        node.environment = {VARIABLE: str(READ_S)}
        node.start()
        consumer, same, other = Client(node.port), Client(node.port), Client(node.port)
        received: list[int] = []
        began, first_s = time.monotonic(), 0.0

        def consume() -> None:
            nonlocal first_s
            consumer.consume("deep", 0)
            while not published.is_set() or len(received) < COUNT + len(extra):
                for event in consumer.receive(0.2):
                    assert isinstance(event, Delivery)
                    if not received:
                        first_s = time.monotonic() - began
                    received.append(number(event.body))

        extra: list[int] = []
        published = threading.Event()
        waits = {"deep": 0.0, "other": 0.0}
        consuming = threading.Thread(target=consume)
        consuming.start()
        while not received and time.monotonic() - began < PATIENCE_S:
            for client, queue in ((other, "other"), (same, "deep")):
                if queue == "deep":
                    extra.append(COUNT + len(extra))
                asked = time.monotonic()
                _publish(client, queue, range(extra[-1], extra[-1] + 1) if queue == "deep" else range(1))
                waits[queue] = max(waits[queue], time.monotonic() - asked)
            time.sleep(0.01)
        published.set()
        consuming.join(PATIENCE_S)
        # The deliveries waited for the disk, and all other clients were served meanwhile.
        assert first_s >= READ_S
        assert max(waits.values()) < READ_S / 2, waits
        assert received == list(range(COUNT + len(extra)))
        assert len(extra) > 10
        for client in (consumer, same, other):
            client.close()


def _publish(client: Client, queue: str, numbers: range) -> None:
    """Each is confirmed before the next one is sent."""
    client.confirms()
    for each in numbers:
        client.send(Address("", queue).message(body(each, 20_000)))
        while not any(isinstance(event, Confirm) for event in client.receive(PATIENCE_S)):
            pass
