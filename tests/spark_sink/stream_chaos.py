"""The stream source's longer proofs: `python -m tests.spark_sink.stream_chaos`.

A streaming query reads a stream, or a super stream, into files, while processes are killed: the driver three
times, the broker twice, an executor of a standalone cluster; of three nodes the one that leads the stream,
twice, while others go on publishing. Each row is in the files once. Prints what it saw.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

import pika
import pika.exceptions

from conformance_tests.ports import free_port
from tests.reliability.node import Node
from tests.spark_sink.chaos import KILLS, STEP_MAX_S, Step, every, until
from tests.spark_sink.peer import Peer
from tests.spark_sink.source_chaos import ThreeNodes, peer_of
from tests.spark_sink.standalone import Standalone
from tests.spark_sink.stream_driver import StreamDriver
from tests.spark_sink.test_worker_kill import readers

ROWS, TRIGGER = 3_000, 200
STREAM = "chaos"
#: A task reads its part of these rows, a few at a time, for long enough to be disturbed.
MANY_ROWS = 40_000
PREFETCH = "10"
COMMIT = 10_000
#: Rows of one transaction while a query runs, and the time between two transactions.
PART, PAUSE_S = 20, 0.1
KINDS = ("stream", "super-stream")


def fill(url: str, kind: str, rows: int = ROWS, **arguments: bool) -> None:
    with peer_of(url) as peer:
        if kind == "stream":
            peer.channel.queue_declare(
                STREAM, durable=True, arguments={"x-queue-type": "stream", **arguments}
            )
        else:
            peer.channel.exchange_declare(
                STREAM, "x-super-stream", durable=True, arguments={"x-partitions": 2, **arguments}
            )
        peer.channel.tx_select()
        for number in range(rows):
            address = ("", STREAM) if kind == "stream" else (STREAM, f"k{number % 50}")
            peer.channel.basic_publish(*address, str(number).encode())
            if number % COMMIT == COMMIT - 1:
                peer.channel.tx_commit()
        peer.channel.tx_commit()


def judge(directory: Path, what: str, rows: int = ROWS) -> None:
    """Read the files that Spark's log of the sink names. Raises AssertionError."""
    seen: Counter[int] = Counter()
    places: set[tuple[int, int]] = set()
    for path in committed(directory / "out" / "_spark_metadata"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            seen[int(row["value"])] += 1
            places.add((row["partition"], row["offset"]))
    lost, twice = set(range(rows)) - seen.keys(), seen.total() - len(seen)
    print(f"{what}: {rows} rows, {seen.total()} in files, {len(lost)} lost, {twice} twice", flush=True)
    assert not lost and not twice
    assert len(seen) == rows == len(places), f"{len(seen)} rows at {len(places)} places"


def committed(log: Path) -> set[Path]:
    """Return the committed files. A compact file of the log contains all entries before it."""
    found: set[Path] = set()
    for entry in log.iterdir():
        if entry.name.startswith("."):
            continue
        for line in entry.read_text().splitlines()[1:]:
            found.add(Path(unquote(urlparse(json.loads(line)["path"]).path)))
    return found


def driver_kills(directory: Path, kind: str) -> None:
    with Node(directory) as node:
        url = f"amqp://guest:guest@127.0.0.1:{node.port}/"
        fill(url, kind)
        for kill in range(KILLS):
            with StreamDriver(directory, url, STREAM, TRIGGER) as driver:
                driver.reach(1 + 4 * kill)
                driver.kill()
        with StreamDriver(directory, url, STREAM, TRIGGER) as driver:
            driver.finish()
    judge(directory, f"{kind}, driver kill -9 x{KILLS}")


def broker_kills(directory: Path, kind: str) -> None:
    port = free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    with Node(directory, "--amqp", f"127.0.0.1:{port}") as node:
        fill(url, kind)
        with StreamDriver(directory, url, STREAM, TRIGGER) as driver:
            for batch in (2, 7):
                driver.reach(batch)
                node.kill()
                node.start()
            driver.finish()
    judge(directory, f"{kind}, broker kill -9 x2")


class Publisher(threading.Thread):
    """Publishes more rows, one transaction after the other, until the test stops it. It sends a transaction
    again that failed in the middle.

    A commit without an answer may have taken place, so the rows carry numbers by which the broker recognises
    them.
    """

    def __init__(self, url: str, kind: str, rows: int) -> None:
        """`rows` are published already."""
        super().__init__(daemon=True)
        self.ends = threading.Event()
        self.rows = rows
        self._url = url
        self._kind = kind

    def run(self) -> None:
        while True:
            # It ends only when it knows that the last rows are there.
            with suppress(pika.exceptions.AMQPError, OSError), peer_of(self._url) as peer:
                self._publish(peer)
                return

    def _publish(self, peer: Peer) -> None:
        while True:
            peer.channel.tx_select()
            for number in range(self.rows, self.rows + PART):
                address = ("", STREAM) if self._kind == "stream" else (STREAM, f"k{number % 50}")
                name = pika.BasicProperties(headers={"x-deduplication-id": str(number)}, delivery_mode=2)
                peer.channel.basic_publish(*address, str(number).encode(), name)
            peer.channel.tx_commit()
            self.rows += PART
            if self.ends.wait(PAUSE_S):
                return


def kill_while_read(nodes: ThreeNodes, driver: StreamDriver, partitions: list[str]) -> None:
    """Kill the node that leads all partitions while a task is connected to it, and start it again."""
    leader = nodes.names[0]
    for partition in partitions:
        nodes.transfer(partition, leader)

    def is_read() -> bool:
        assert driver.process.poll() is None, "the driver ended before it was disturbed"
        return bool(readers(nodes.port(leader)))

    until("a task reads", is_read)
    nodes.kill_leader(partitions[0])


def leader_kills(directory: Path, kind: str) -> None:
    """Of three nodes, kill the one that leads the stream, and that tasks ask first, while others publish."""
    partitions = [STREAM] if kind == "stream" else [f"{STREAM}-{number}" for number in range(2)]
    with ThreeNodes() as nodes:
        fill(nodes.url, kind, MANY_ROWS, **{"x-deduplication": True})
        publisher = Publisher(nodes.url, kind, MANY_ROWS)
        publisher.start()
        with StreamDriver(directory, nodes.url, STREAM, MANY_ROWS // 10, prefetch=PREFETCH) as driver:
            for batch in (0, 4):
                driver.reach(batch)
                kill_while_read(nodes, driver, partitions)
            driver.finish()
        publisher.ends.set()
        publisher.join(STEP_MAX_S)
        assert publisher.rows > MANY_ROWS, "nothing was published in the kills"
        # Read the rows that came after the query had found its end.
        with StreamDriver(directory, nodes.url, STREAM, MANY_ROWS // 10) as driver:
            driver.finish()
        judge(directory, f"{kind}, leader kill -9 x2, three nodes", publisher.rows)


def executor_kill(directory: Path, kind: str) -> None:
    with Node(directory) as node, Standalone(directory) as cluster:
        url = f"amqp://guest:guest@127.0.0.1:{node.port}/"
        fill(url, kind)
        job = cluster.submit("tests.spark_sink.stream_driver", str(directory), url, STREAM, str(TRIGGER))
        third = directory / "checkpoint" / "commits" / "3"
        until("a beginning", lambda: job.poll() is not None or third.exists())
        assert job.poll() is None, cluster.log()
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert job.wait(300) == 0, cluster.log()
    judge(directory, f"{kind}, executor kill -9 on a standalone cluster")


STEPS: dict[str, Step] = {
    "driver": driver_kills,
    "broker": broker_kills,
    "executor": executor_kill,
    "leader": leader_kills,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if every(STEPS, options.only, options.kinds) else 1


if __name__ == "__main__":
    sys.exit(main())
