"""The source's longer proofs: `python -m tests.spark_sink.source_chaos`.

Messages go from a queue to another by a streaming query, amqp to amqp, while things are killed: the driver three times,
the broker's node twice, an executor of a standalone cluster that got the connector by --py-files. For both ways of
delivery: nothing is lost, nothing stays unacked; with exactly-once nothing comes twice, with confirm only under an id
that was there. Prints what it saw.

With `--url` the broker is not started here, and may be a cluster: `--node-pid`, as often as it has nodes, says whom
to kill (each stays dead until the next is to be killed, so whoever started them has to start them again).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import pika.exceptions
import psutil

from benchmarks.brokers import free_port
from spark_sink.client.login import parse_url
from tests.reliability.node import Node
from tests.spark_sink import session
from tests.spark_sink.chaos import DELIVERIES, KILLS, STEP_MAX_S, Driver, reach, until
from tests.spark_sink.peer import Peer
from tests.spark_sink.standalone import Standalone

ROWS = 6_000
SOURCE, SINK = "chaos-in", "chaos-out"
FIRST_GOAL, GOAL_STEP = 400, 1_100


class SourceDriver(Driver):
    """A process of tests.spark_sink.source_driver."""

    def __init__(self, directory: Path, url: str, delivery: str, stop: str = "") -> None:
        session.environment()
        self._output = directory / "driver.log"
        command = [sys.executable, "-m", "tests.spark_sink.source_driver", str(directory), url]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, SOURCE, SINK, delivery, stop],
                cwd=session.ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def reach(self, peer: Peer, goal: int) -> None:
        """Wait for so many messages. A driver that ends before that has failed."""

        def reached() -> bool:
            if self.process.poll() is not None and peer.count(SINK) < goal:
                self.finish()
                raise AssertionError(f"the driver ended before {goal} messages were there")
            return peer.count(SINK) >= goal

        until(f"{goal} messages", reached)


class Bare(Standalone):
    """Its Python workers find nothing of this tree by themselves."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        os.environ["PYTHONPATH"] = self._environment["PYTHONPATH"] = ""


def peer_of(url: str) -> Peer:
    """A stock client on the first host of the url that answers."""
    login = parse_url(url)
    deadline = time.monotonic() + STEP_MAX_S
    while True:
        for host in login.hosts:
            try:
                return Peer(f"amqp://{login.username}:{login.password}@{host}/{quote(login.vhost, safe='')}")
            except pika.exceptions.AMQPError:
                assert time.monotonic() < deadline, f"nobody answers at {login}"
        time.sleep(0.2)


def fill(peer: Peer, kind: str) -> None:
    for queue in (SOURCE, SINK):
        peer.channel.queue_delete(queue)
        peer.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    peer.channel.confirm_delivery()
    for number in range(ROWS):
        # What a source can tell apart: with ids, not even a batch that was committed and not acked is read twice.
        peer.publish(SOURCE, [str(number).encode()], delivery_mode=2, message_id=f"in-{number}")


def judge(peer: Peer, delivery: str, what: str) -> None:
    """Raises AssertionError."""
    until("nothing left in the source", lambda: peer.count(SOURCE) == 0)
    seen: Counter[bytes] = Counter()
    ids: set[str] = set()
    for _, properties, body in peer.take(SINK, ROWS):
        seen[body] += 1
        ids.add(str(properties.message_id))
    total = sum(seen.values())
    lost = {str(number).encode() for number in range(ROWS)} - seen.keys()
    print(
        f"{what}, {delivery}: {ROWS} rows, {total} messages, {len(lost)} lost, {total - len(seen)} twice",
        flush=True,
    )
    assert not lost, f"lost: {sorted(lost)[:10]}"
    assert len(ids) == ROWS, f"{len(ids)} ids"
    if delivery == "exactly-once":
        assert total == ROWS, "duplicates"
    # A consumer that still holds messages would give them back by now: its process is gone.
    assert peer.take(SOURCE) == []


def driver_kills(directory: Path, url: str, delivery: str, kind: str) -> None:
    with peer_of(url) as peer:
        fill(peer, kind)
    for kill in range(KILLS):
        driver = SourceDriver(directory, url, delivery)
        with peer_of(url) as peer:
            driver.reach(peer, min(ROWS - 1, FIRST_GOAL + kill * GOAL_STEP))
        driver.kill()
    SourceDriver(directory, url, delivery).finish()
    with peer_of(url) as peer:
        judge(peer, delivery, f"driver kill -9 x{KILLS}, {kind}")


def node_kills(
    directory: Path, url: str, delivery: str, kind: str, kills: Sequence[Callable[[], None]]
) -> None:
    with peer_of(url) as peer:
        fill(peer, kind)
    stop = directory / "stop"
    driver = SourceDriver(directory, url, delivery, str(stop))
    for number, kill in enumerate(kills):
        with peer_of(url) as peer:
            driver.reach(peer, FIRST_GOAL + number * GOAL_STEP)
        kill()
    with peer_of(url) as peer:
        reach(peer, SINK, ROWS)
        # The last batch is acked when Spark asks for the next.
        until("the source is read", lambda: peer.count(SOURCE) == 0)
    stop.touch()
    driver.finish()
    with peer_of(url) as peer:
        judge(peer, delivery, f"broker kill -9 x{len(kills)}, {kind}")


def executor_kill(directory: Path, url: str, delivery: str, kind: str) -> None:
    with peer_of(url) as peer, Bare(directory) as cluster:
        fill(peer, kind)
        stop = directory / "stop"
        archive = packed(directory / "spark_sink.zip")
        job = cluster.submit(
            "tests.spark_sink.source_driver",
            *(str(directory), url, SOURCE, SINK, delivery, str(stop)),
            options=("--py-files", str(archive)),
        )
        reach(peer, SINK, FIRST_GOAL)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        reach(peer, SINK, ROWS)
        stop.touch()
        assert job.wait(STEP_MAX_S) == 0, cluster.log()
        judge(peer, delivery, f"executor kill -9 on a standalone cluster, --py-files, {kind}")


def packed(archive: Path) -> Path:
    """The connector as spark-submit takes it."""
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted((session.ROOT / "spark_sink").rglob("*.py")):
            made.write(path, path.relative_to(session.ROOT))
        made.write(session.ROOT / "pyspark_amqp.py", "pyspark_amqp.py")
    return archive


def one_node(directory: Path, step: str, delivery: str, kind: str) -> None:
    port = free_port()
    with Node(directory, "--amqp", f"127.0.0.1:{port}") as node:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"

        def kill() -> None:
            node.kill()
            node.start()

        if step == "node":
            node_kills(directory, url, delivery, kind, [kill, kill])
        else:
            STEPS[step](directory, url, delivery, kind)


def given_nodes(directory: Path, url: str, pids: Sequence[int], delivery: str, kind: str) -> None:
    def killer(pid: int) -> Callable[[], None]:
        return lambda: psutil.Process(pid).kill()

    node_kills(directory, url, delivery, kind, [killer(pid) for pid in pids])


STEPS: dict[str, Callable[[Path, str, str, str], None]] = {"driver": driver_kills, "executor": executor_kill}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("driver", "node", "executor")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    parser.add_argument("--delivery", nargs="+", choices=DELIVERIES, default=list(DELIVERIES))
    parser.add_argument("--queues", choices=("classic", "quorum"), default="classic")
    parser.add_argument("--url", help="a broker that runs, with all of its hosts; else one node is started")
    parser.add_argument("--node-pid", type=int, action="append", default=[], help="with --url: whom to kill")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for step in options.only:
        for delivery in options.delivery:
            with tempfile.TemporaryDirectory(prefix="spark-chaos-") as made:
                directory, began = Path(made), time.monotonic()
                if options.url is None:
                    one_node(directory, step, delivery, options.queues)
                elif step == "node":
                    given_nodes(directory, options.url, options.node_pid, delivery, options.queues)
                else:
                    STEPS[step](directory, options.url, delivery, options.queues)
                print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
