"""Alarms hold publishers back, and lose nothing: the memory alarm, and a full disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery
from tests.reliability.node import Node, wait_until

MIB = 1 << 20
LOW, HIGH = "0.0000001", "0.6"


class Publisher:
    """Publishes numbered messages with confirms, and counts the answers."""

    def __init__(self, port: int, queue: str, size: int, *, heartbeat_s: int = 0) -> None:
        self.client = Client(port, heartbeat_s=heartbeat_s)
        self.client.declare(queue)
        self.client.confirms()
        self._address = Address("", queue)
        self._size = size
        self.sent = 0
        self.confirmed = 0
        #: Bytes that the socket has not taken yet.
        self._unsent = b""

    def publish(self, count: int) -> None:
        first = self.sent + 1
        messages = [self._address.message(body(seq, self._size)) for seq in range(first, first + count)]
        self._unsent += b"".join(messages)
        self.sent += count

        def taken() -> bool:
            if self._push() and not self.client.blocked:
                self.look()
            return not self._unsent or bool(self.client.blocked)

        wait_until("the broker takes what is published, or says that it does not", taken)

    def beat(self) -> None:
        self._unsent += b"\x08\0\0\0\0\0\0\xce"
        self._push()

    def _push(self) -> bytes:
        self._unsent = self.client.send_some(self._unsent) if self._unsent else b""
        return self._unsent

    def look(self, wait_s: float = 0.05) -> None:
        """Take the confirms that have come, which one queue gives in order."""
        self._push()
        for event in self.client.receive(wait_s):
            assert isinstance(event, Confirm) and not event.nack, event
            assert event.multiple or event.tag == self.confirmed + 1
            self.confirmed = event.tag

    def saw(self, condition: object, wait_s: float = PATIENCE_S) -> None:
        def holds() -> bool:
            self.look()
            assert callable(condition)
            return bool(condition())

        wait_until("the publisher is told", holds, wait_s)


class Drain:
    """A consumer that checks the order and acks."""

    def __init__(self, port: int, queue: str, prefetch: int = 100) -> None:
        self.client = Client(port)
        self.client.consume(queue, prefetch)
        self.received = 0

    def take(self, wait_s: float = 0.2) -> int:
        before = self.received
        for event in self.client.receive(wait_s):
            assert isinstance(event, Delivery) and not event.redelivered
            self.received += 1
            assert number(event.body) == self.received, "out of order, lost or doubled"
            self.client.ack(event.tag)
        return self.received - before

    def take_up_to(self, last: int) -> None:
        wait_until(f"{last} messages received", lambda: bool(self.take()) and self.received >= last)
        assert self.received == last
        assert self.take(0.3) == 0


def test_memory_alarm_holds_publishes_and_lets_acks_and_heartbeats_pass(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        publisher = Publisher(node.port, "q", 500, heartbeat_s=2)
        publisher.publish(300)
        publisher.saw(lambda: publisher.confirmed == 300)
        drain = Drain(node.port, "q", prefetch=50)
        assert drain.client.deliveries(50)[-1].tag == 50

        node.mqctl("set_vm_memory_high_watermark", LOW)
        # Many more bytes than the broker and the sockets hold, so the broker must stop reading.
        held = 200
        publisher.publish(held)
        publisher.saw(lambda: bool(publisher.client.blocked))
        assert publisher.client.blocked == ["low on memory"]

        drain.client.ack(0, multiple=True)
        more = drain.client.deliveries(50)
        assert [number(delivery.body) for delivery in more] == list(range(51, 101)), (
            "acks are taken under the alarm"
        )
        heartbeats = publisher.client.heartbeats
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and publisher.client.heartbeats < heartbeats + 2:
            publisher.beat()
            publisher.look(0.5)
        assert publisher.client.heartbeats >= heartbeats + 2, "heartbeats stop under the alarm"
        assert publisher.confirmed == 300, "a publish went through under the alarm"
        assert drain.client.count("q") == 200

        node.mqctl("set_vm_memory_high_watermark", HIGH)
        publisher.saw(lambda: publisher.client.unblocked == 1 and publisher.confirmed == 300 + held)
        drain.client.ack(0, multiple=True)
        drain.received = 100
        drain.take_up_to(300 + held)


def test_publisher_blocked_in_the_middle_of_a_stream_continues_where_it_was(tmp_path: Path) -> None:
    """Several alarms, each with more messages under way than the node keeps while the publisher is
    blocked.
    """
    with Node(tmp_path) as node:
        publisher = Publisher(node.port, "q", 4_000)
        for _ in range(3):
            publisher.publish(100)
            node.mqctl("set_vm_memory_high_watermark", LOW)
            publisher.publish(300)
            publisher.saw(lambda: len(publisher.client.blocked) > publisher.client.unblocked)
            assert publisher.confirmed < publisher.sent
            node.mqctl("set_vm_memory_high_watermark", HIGH)
            publisher.saw(lambda: publisher.confirmed == publisher.sent)
        drain = Drain(node.port, "q")
        drain.take_up_to(publisher.sent)
        assert drain.client.count("q") == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    done = subprocess.run(mounting, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a file system can't be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("floor", [pytest.param(0, id="full"), pytest.param(16 * MIB, id="floor")])
def test_full_disk_blocks_publishers_until_there_is_room(small_disk: Path, floor: int) -> None:
    """Consumers go on, and so make room; every published message arrives once, in order."""
    with Node(small_disk, "--disk-free-min-bytes", str(floor), "--unsynced-high-bytes", str(2 * MIB)) as node:
        publisher = Publisher(node.port, "q", 8_000)
        drain = Drain(node.port, "q", prefetch=500)
        # No consumer acks until the disk is full.
        while not publisher.client.blocked:
            publisher.publish(20)
            publisher.look(0.005)
            assert publisher.sent * 8_000 < 80 * MIB, "more is taken than the disk holds"
        assert publisher.client.blocked[0].startswith("low on disk")
        assert node.running
        publisher.look(1.0)
        confirmed = publisher.confirmed
        assert confirmed > 100, "the alarm came before the disk was used"

        def settled() -> bool:
            drain.take()
            publisher.look()
            return publisher.client.unblocked > 0 and publisher.confirmed == publisher.sent

        wait_until(
            "unblocked, and all confirmed",
            settled,
            PATIENCE_S,
            lambda: (
                f"sent {publisher.sent}, confirmed {publisher.confirmed}, received {drain.received}, "
                f"blocked {publisher.client.blocked}, unblocked {publisher.client.unblocked} times, "
                f"{os.statvfs(small_disk).f_bavail} blocks free"
            ),
        )
        while drain.received < publisher.sent:
            assert drain.take(PATIENCE_S), f"{drain.received} of {publisher.sent} received"
        assert drain.take(0.3) == 0

        # And the node works as before.
        publisher.publish(500)
        publisher.saw(lambda: publisher.confirmed == publisher.sent)
        while drain.received < publisher.sent:
            assert drain.take(PATIENCE_S)


def test_kill_on_a_full_disk_keeps_what_was_confirmed(small_disk: Path) -> None:
    with Node(small_disk, "--disk-free-min-bytes", "0", "--unsynced-high-bytes", str(2 * MIB)) as node:
        publisher = Publisher(node.port, "q", 8_000)
        while not publisher.client.blocked:
            publisher.publish(20)
            publisher.look(0.005)
        publisher.look(1.0)
        node.kill()
        node.start()
        client = Client(node.port)
        waiting = client.count("q")
        assert waiting >= publisher.confirmed > 100
        client.consume("q", 0)
        assert [number(m.body) for m in client.deliveries(waiting)] == list(range(1, waiting + 1))
