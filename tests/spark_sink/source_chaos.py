"""The source's longer proofs: `python -m tests.spark_sink.source_chaos`.

A streaming query moves messages from a queue to another, amqp to amqp, while processes are killed: the driver
three times; the broker's node twice; of three nodes the one that leads the target and the one that leads the
source, both quorum queues; an executor of a standalone cluster that got the connector by --py-files. For all
ways of delivery nothing is lost and nothing stays unacked; with exactly-once no message comes twice, with
confirm only with the id of an earlier one. Prints what it saw.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pika.exceptions

from conformance_tests.ports import free_port
from spark_sink.client.login import parse_url
from tests.cluster.mqd import MqdCluster
from tests.reliability.node import Node
from tests.spark_sink import session
from tests.spark_sink.chaos import KILLS, STEP_MAX_S, VARIANTS, Driver, Step, main, reach, until
from tests.spark_sink.peer import Peer
from tests.spark_sink.standalone import Standalone

ROWS = 3_000
SOURCE, SINK = "chaos-in", "chaos-out"
FIRST_GOAL, GOAL_STEP = 300, 700


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
        """Wait for this many messages. It is a failure if the driver ends before that."""

        def reached() -> bool:
            if self.process.poll() is not None and peer.count(SINK) < goal:
                self.finish()
                raise AssertionError(f"the driver ended before {goal} messages were there")
            return peer.count(SINK) >= goal

        until(f"{goal} messages", reached)


class Bare(Standalone):
    """A cluster whose Python workers find nothing of this tree by themselves."""

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


def fill(peer: Peer, kind: str, sink_arguments: Mapping[str, bool]) -> None:
    declare = peer.channel.queue_declare
    declare(SOURCE, durable=True, arguments={"x-queue-type": kind})
    declare(SINK, durable=True, arguments={"x-queue-type": kind, **sink_arguments})
    for number in range(ROWS):
        # With ids a source can tell messages apart: not even a batch that was committed and not acked is read
        # twice.
        peer.publish(SOURCE, [str(number).encode()], delivery_mode=2, message_id=f"in-{number}")
    reach(peer, SOURCE, ROWS)


def judge(peer: Peer, variant: str, what: str) -> None:
    """Raises AssertionError."""
    delivery, _ = VARIANTS[variant]
    until("nothing left in the source", lambda: peer.count(SOURCE) == 0)
    seen: Counter[bytes] = Counter()
    ids: set[str] = set()
    for _, properties, body in peer.drain(SINK, ROWS):
        seen[body] += 1
        ids.add(str(properties.message_id))
    total = sum(seen.values())
    lost = {str(number).encode() for number in range(ROWS)} - seen.keys()
    print(
        f"{what}, {variant}: {ROWS} rows, {total} messages, {len(lost)} lost, {total - len(seen)} twice",
        flush=True,
    )
    assert not lost, f"lost: {sorted(lost)[:10]}"
    assert len(ids) == ROWS, f"{len(ids)} ids"
    if delivery == "exactly-once":
        assert total == ROWS, "duplicates"
    # A consumer that still held messages would have given them back by now: its process is gone.
    assert peer.take(SOURCE) == []


def driver_kills(directory: Path, variant: str) -> None:
    delivery, arguments = VARIANTS[variant]
    with Node(directory) as node:
        url = url_of(node.port)
        with Peer(url) as peer:
            fill(peer, "classic", arguments)
            for kill in range(KILLS):
                with SourceDriver(directory, url, delivery) as driver:
                    driver.reach(peer, min(ROWS - 1, FIRST_GOAL + kill * GOAL_STEP))
                    driver.kill()
            with SourceDriver(directory, url, delivery) as driver:
                driver.finish()
            judge(peer, variant, f"driver kill -9 x{KILLS}")


def url_of(*ports: int) -> str:
    return "amqp://guest:guest@" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/"


def kills_under_way(
    directory: Path, url: str, variant: str, kind: str, kills: Sequence[Callable[[], None]], what: str
) -> None:
    """Kill a process again and again while one query runs."""
    delivery, arguments = VARIANTS[variant]
    with peer_of(url) as peer:
        fill(peer, kind, arguments)
    stop = directory / "stop"
    with SourceDriver(directory, url, delivery, str(stop)) as driver:
        for number, kill in enumerate(kills):
            with peer_of(url) as peer:
                driver.reach(peer, FIRST_GOAL + number * GOAL_STEP)
            kill()
        with peer_of(url) as peer:
            driver.reach(peer, ROWS)
        stop.touch()
        driver.finish()
    with peer_of(url) as peer:
        judge(peer, variant, what)


def node_kills(directory: Path, variant: str) -> None:
    """One node, started again on the same port."""
    port = free_port()
    with Node(directory, "--amqp", f"127.0.0.1:{port}") as node:

        def kill() -> None:
            node.kill()
            node.start()

        kills_under_way(
            directory, url_of(port), variant, "classic", [kill, kill], "broker kill -9 x2, one node"
        )


class ThreeNodes(MqdCluster):
    """Each node has the same port after a restart, so a url stays valid."""

    def __init__(self) -> None:
        self._ports = {name: free_port() for name in ("n1", "n2", "n3")}
        super().__init__(tuple(self._ports))

    def _make(self, name: str, peers: Sequence[str]) -> Node:
        self._options = ("--amqp", f"127.0.0.1:{self._ports[name]}")
        return super()._make(name, peers)

    @property
    def url(self) -> str:
        return url_of(*self._ports.values())

    def kill_leader(self, queue: str) -> None:
        """The node stays down until another one has taken over."""
        name = self.leader(queue)
        self.kill(name)
        until(f"{queue} has another leader", lambda: self.leader(queue) != name)
        self.restart(name)


def cluster_kills(directory: Path, variant: str) -> None:
    with ThreeNodes() as nodes:
        kills = [lambda: nodes.kill_leader(SINK), lambda: nodes.kill_leader(SOURCE)]
        kills_under_way(
            directory, nodes.url, variant, "quorum", kills, "leader kill -9 x2, three nodes, quorum queues"
        )


def executor_kill(directory: Path, variant: str) -> None:
    delivery, arguments = VARIANTS[variant]
    with Node(directory) as node, Peer(url_of(node.port)) as peer, Bare(directory) as cluster:
        fill(peer, "classic", arguments)
        stop = directory / "stop"
        archive = packed(directory / "spark_sink.zip")
        job = cluster.submit(
            "tests.spark_sink.source_driver",
            *(str(directory), url_of(node.port), SOURCE, SINK, delivery, str(stop)),
            options=("--py-files", str(archive)),
        )
        until("a beginning", lambda: job.poll() is not None or peer.count(SINK) >= FIRST_GOAL)
        assert job.poll() is None, cluster.log()
        os.kill(cluster.executors()[0], signal.SIGKILL)
        until("all rows", lambda: job.poll() is not None or peer.count(SINK) >= ROWS)
        stop.touch()
        assert job.wait(STEP_MAX_S) == 0, cluster.log()
        judge(peer, variant, "executor kill -9 on a standalone cluster, --py-files")


def packed(archive: Path) -> Path:
    """The connector in the form that spark-submit takes."""
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted((session.ROOT / "spark_sink").rglob("*.py")):
            made.write(path, path.relative_to(session.ROOT))
        made.write(session.ROOT / "pyspark_amqp.py", "pyspark_amqp.py")
    return archive


STEPS: dict[str, Step] = {
    "driver": driver_kills,
    "node": node_kills,
    "cluster": cluster_kills,
    "executor": executor_kill,
}


if __name__ == "__main__":
    sys.exit(main(STEPS, __doc__))
