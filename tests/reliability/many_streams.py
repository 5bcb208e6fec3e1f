"""The cost of many streams for one node: `python -m tests.reliability.many_streams`.

Memory and CPU of a thousand idle streams, compared with those of a thousand idle quorum queues; then the
syncs of a hundred streams with twenty messages a second each.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from conformance_tests.ports import free_port
from tests.reliability.client import Address, Client, Confirm
from tests.reliability.large_stream import MIB, anonymous_bytes, cpu_s
from tests.reliability.node import Node

IDLE = 1000
IDLE_S = 8.0
BUSY = 100
EVERY_S = 0.05
BUSY_S = 8.0


def declared(client: Client, kind: str, count: int) -> None:
    arguments: dict[str, Any] = {"x-queue-type": kind}
    for number in range(count):
        client.declare(f"q{number}", **arguments)


def idle(directory: Path, kind: str) -> None:
    with Node(directory) as node, contextlib.closing(Client(node.port)) as client:
        before = anonymous_bytes(node.pid)
        declared(client, kind, IDLE)
        time.sleep(IDLE_S / 2)
        began = cpu_s(node.pid)
        time.sleep(IDLE_S)
        took = cpu_s(node.pid) - began
        more = (anonymous_bytes(node.pid) - before) / MIB
        print(f"{IDLE} idle, {kind}: {more:.0f} MiB, CPU of {IDLE_S:.0f} s: {took:.2f} s", flush=True)


def syncs(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = next(line for line in lines if line.startswith("rabbitmq_io_sync_ops_total"))
    return int(float(found.split()[-1]))


def busy(directory: Path) -> None:
    port = free_port()
    with (
        Node(directory, "--metrics", f"127.0.0.1:{port}") as node,
        contextlib.closing(Client(node.port)) as client,
    ):
        declared(client, "stream", BUSY)
        client.confirms()
        messages = b"".join(Address("", f"q{number}").message(bytes(100)) for number in range(BUSY))
        sent = confirmed = 0
        before, began = syncs(port), time.monotonic()
        due = began
        while due < began + BUSY_S:
            client.send(messages)
            sent += BUSY
            due += EVERY_S
            while (left := due - time.monotonic()) > 0:
                confirmed = max([confirmed, *_tags(client, left)])
        while confirmed < sent:
            confirmed = max([confirmed, *_tags(client, None)])
        print(f"{sent:,} messages for {BUSY} streams: {syncs(port) - before} syncs", flush=True)


def _tags(client: Client, wait_s: float | None) -> list[int]:
    return [event.tag for event in client.receive(wait_s) if isinstance(event, Confirm)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mqd-many-") as directory:
        for kind in ("stream", "quorum"):
            (place := Path(directory) / kind).mkdir()
            idle(place, kind)
        (place := Path(directory) / "busy").mkdir()
        busy(place)


if __name__ == "__main__":
    main()
