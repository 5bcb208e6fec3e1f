"""What very many open transactions cost: memory of the node, and latency of a client that has none of them.

python -m tests.reliability.open_transactions --count 10000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pika
from pamqp import commands, header
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.wire import frames
from conformance_tests.patience import open_connection
from tests.reliability.client import Client
from tests.reliability.node import Node

#: Channels of one connection.
CHANNELS = 2_000
#: Publishes of each transaction, to two queues, and the bytes of a body.
PUBLISHES, BODY_BYTES = 2, 100
#: Messages of the bystander, one after the other, each with its confirm.
PROBES = 400


class Measured(NamedTuple):
    """Latencies in ms, of a confirm and of a commit: the median and the 99th percentile."""

    rss_bytes: int
    confirm: tuple[float, float]
    commit: tuple[float, float]


def rss_bytes(node: Node) -> int:
    fields = Path(f"/proc/{node.pid}/statm").read_text().split()
    return int(fields[1]) * 4096


def one(channel: int, queue: str) -> bytes:
    properties = commands.Basic.Properties(delivery_mode=2)
    head = header.ContentHeader(0, BODY_BYTES, properties).marshal()
    return (
        frames.method_frame(channel, commands.Basic.Publish(routing_key=queue))
        + frames.raw_frame(frames.HEADER, channel, head)
        + frames.raw_frame(frames.BODY, channel, bytes(BODY_BYTES))
    )


def begin(client: Client, channels: range) -> None:
    """Begin a transaction on each of these channels."""
    for channel in channels:
        data = b"" if channel == 1 else frames.method_frame(channel, commands.Channel.Open())
        data += frames.method_frame(channel, commands.Tx.Select())
        client.send(data + b"".join(one(channel, f"q{number}") for number in range(PUBLISHES)))


def probe(node: Node) -> Measured:
    times: list[tuple[float, float]] = []
    for transactional in (False, True):
        with open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/%2F") as connection:
            channel = connection.channel()
            channel.queue_declare("bystander", durable=True)
            took = _latencies(channel, transactional=transactional)
            times.append((median(took), quantiles(took, n=100)[98]))
    return Measured(rss_bytes(node), *times)


def _latencies(channel: BlockingChannel, *, transactional: bool) -> list[float]:
    channel.tx_select() if transactional else channel.confirm_delivery()
    found = []
    for _ in range(PROBES):
        begun = time.perf_counter()
        channel.basic_publish("", "bystander", b"x", pika.BasicProperties(delivery_mode=2))
        if transactional:
            channel.tx_commit()
        found.append((time.perf_counter() - begun) * 1000)
    return found


def measure(directory: Path, count: int) -> tuple[Measured, Measured]:
    """Return what is measured before so many transactions are open, and while they are."""
    with Node(directory) as node, ExitStack() as stack:
        clients = []
        for _ in range(0, count, CHANNELS):
            client = Client(node.port, channel_max=CHANNELS)
            stack.callback(client.close)
            clients.append(client)
        for number in range(PUBLISHES):
            clients[0].declare(f"q{number}", durable=True)
        # The first question makes the node load its management.
        node.mqctl("-q", "list_transactions", "id")
        probe(node)
        before = probe(node)
        for number, client in enumerate(clients):
            begin(client, range(1, 1 + min(CHANNELS, count - number * CHANNELS)))
        deadline = time.monotonic() + 60
        while (open_now := node.mqctl("-q", "list_transactions", "id").count("\n")) < count:
            assert time.monotonic() < deadline, f"{open_now} of {count} are open: {node.log()[-800:]}"
        # The answer of such a list is garbage by now.
        time.sleep(1)
        return before, probe(node)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as directory:
        before, after = measure(Path(directory), count)
    for name, measured in (("before", before), (f"with {count} open transactions", after)):
        print(
            f"{name}: RSS {measured.rss_bytes / 2**20:.1f} MiB; median and p99 in ms: "
            f"confirm {measured.confirm[0]:.2f} {measured.confirm[1]:.2f}, "
            f"commit {measured.commit[0]:.2f} {measured.commit[1]:.2f}"
        )
    print(f"{(after.rss_bytes - before.rss_bytes) / count / 1024:.2f} KiB for each")


if __name__ == "__main__":
    main()
