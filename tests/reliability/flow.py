"""A stream of numbered messages through one queue: one publisher, one consumer, each in a thread of its own.

Sizes are mixed, every message is checked by its order and to its last byte, and none may come twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from zlib import crc32

from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery
from tests.reliability.node import MemoryWatch, Node

BLOCK_BYTES = 256 * 1024
UNCONFIRMED_BYTES_MAX = 8 << 20
PREFETCH = 500
ACK_EVERY = 50
#: A stall is a failure: no message moved for this long.
STALL_S = 60.0
LARGE, SMALL = 16_384, 1_024


def sizes() -> Iterator[int]:
    """Large and small sizes in turns, and sometimes several equal ones, so that no batch looks like the one
    before.
    """
    turn = 0
    while True:
        for _ in range(1 + turn % 4):
            yield LARGE
        for _ in range(1 + turn % 7):
            yield SMALL
        turn += 1


class Flow:
    def __init__(self, port: int, queue: str, total_bytes: int, *, persistent: bool) -> None:
        self._port = port
        self._queue = queue
        self._total_bytes = total_bytes
        self._address = Address("", queue, persistent=persistent)
        self.sent = self.sent_bytes = 0
        self.confirmed = 0
        self.received = self.received_bytes = 0
        self.sent_sum = self.received_sum = 0
        self.errors: list[BaseException] = []
        self.published = threading.Event()
        self.failed = threading.Event()
        self._threads: list[threading.Thread] = []

    def publish(self) -> None:
        self._start(self._publish)

    def consume(self) -> None:
        self._start(self._consume)

    def _start(self, work: object) -> None:
        def guarded() -> None:
            assert callable(work)
            try:
                work()
            except BaseException as error:  # noqa: BLE001  it is raised where the test waits
                self.errors.append(error)
                self.failed.set()

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _publish(self) -> None:
        client = Client(self._port, timeout_s=STALL_S)
        client.confirms()
        mix = sizes()
        unconfirmed: list[int] = []
        block: list[bytes] = []
        while self.sent_bytes < self._total_bytes and not self.failed.is_set():
            block.clear()
            room = BLOCK_BYTES
            while room > 0 and self.sent_bytes < self._total_bytes:
                message = body(self.sent, next(mix))
                self.sent_sum = crc32(message, self.sent_sum)
                block.append(self._address.message(message))
                self.sent += 1
                self.sent_bytes += len(message)
                room -= len(message)
            client.send(b"".join(block))
            unconfirmed.append(self.sent)
            while len(unconfirmed) * BLOCK_BYTES > UNCONFIRMED_BYTES_MAX:
                self._confirm(client)
                unconfirmed = [last for last in unconfirmed if last > self.confirmed]
        while self.confirmed < self.sent and not self.failed.is_set():
            self._confirm(client)
        self.published.set()
        client.close()

    def _confirm(self, client: Client) -> None:
        """One publisher and one queue: confirms come in order."""
        for event in client.receive():
            assert isinstance(event, Confirm) and not event.nack, event
            assert event.multiple or event.tag == self.confirmed + 1, event
            self.confirmed = max(self.confirmed, event.tag)

    def _consume(self) -> None:
        client = Client(self._port, timeout_s=STALL_S)
        client.consume(self._queue, PREFETCH)
        unacked = 0
        while not (self.published.is_set() and self.received == self.sent) and not self.failed.is_set():
            for event in client.receive(0.2):
                assert isinstance(event, Delivery), event
                assert not event.redelivered
                assert number(event.body) == self.received, "out of order"
                self.received_sum = crc32(event.body, self.received_sum)
                self.received += 1
                self.received_bytes += len(event.body)
                unacked += 1
                if unacked == ACK_EVERY:
                    client.ack(event.tag, multiple=True)
                    unacked = 0
        client.ack(0, multiple=True)
        client.sync(PREFETCH)
        assert not client.events, "more came than was published"
        client.close()

    def wait(self, ready: object = None) -> None:
        """Wait until `ready` holds, or until everything is done."""
        moved, before = time.monotonic(), (0, 0)
        while not (callable(ready) and ready()):
            if self.errors:
                raise self.errors[0]
            if not any(thread.is_alive() for thread in self._threads):
                break
            if (now := (self.sent, self.received)) != before:
                moved, before = time.monotonic(), now
            assert time.monotonic() - moved < STALL_S, (
                f"nothing moved: sent {self.sent}, received {self.received}"
            )
            time.sleep(0.02)

    def finish(self) -> None:
        self.wait()
        assert self.received == self.sent and self.received_bytes == self.sent_bytes
        assert self.received_sum == self.sent_sum


class Row:
    """The cost of one flow."""

    def __init__(self, name: str, flow: Flow, seconds: float, watch: MemoryWatch, disk: int) -> None:
        self.name = name
        self.text = (
            f"{name:<28} {flow.sent:>9,} {flow.sent_bytes >> 20:>7,} {seconds:>7.1f} "
            f"{watch.peak.resident >> 20:>9} {watch.peak.anonymous >> 20:>9} {disk >> 20:>8,}"
        )

    HEADING = f"{'':<28} {'messages':>9} {'MiB':>7} {'s':>7} {'VmHWM MiB':>9} {'anon MiB':>9} {'disk MiB':>8}"


def through(
    node: Node, name: str, total_bytes: int, *, persistent: bool, watch: MemoryWatch, backlog_share: float
) -> Row:
    """Build a backlog, then publish and consume at the same time, then drain."""
    began = time.monotonic()
    with contextlib.closing(Client(node.port)) as client:
        client.declare("flow", durable=persistent)
    flow = Flow(node.port, "flow", total_bytes, persistent=persistent)
    flow.publish()
    flow.wait(lambda: flow.sent_bytes >= total_bytes * backlog_share)
    flow.consume()
    flow.finish()
    with contextlib.closing(Client(node.port)) as client:
        assert client.count("flow") == 0
    return Row(name, flow, time.monotonic() - began, watch, node.disk_bytes())


@contextlib.contextmanager
def limited(directory: Path, *options: str) -> Iterator[tuple[Node, MemoryWatch]]:
    """A node with limits, and the record of its memory."""
    with Node(directory, *options) as node:
        watching: AbstractContextManager[MemoryWatch] = MemoryWatch(node.pid)
        with watching as watch:
            yield node, watch
