"""The sink's longer proofs: `python -m tests.spark_sink.chaos`.

The driver of a streaming query killed with -9 three times and restarted from its checkpoint; the broker
killed while a query writes; the executors of a standalone cluster killed during a job. For both ways of
delivery nothing is lost; with exactly-once no duplicate is seen, with confirm only duplicates that have the
id of an earlier message. Prints what it saw.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from conformance_tests.ports import free_port
from tests.reliability.node import Node
from tests.spark_sink import session
from tests.spark_sink.peer import Peer
from tests.spark_sink.standalone import Standalone

FILES, LINES = 10, 300
ROWS = FILES * LINES
KILLS = 3
STEP_MAX_S = 300.0
DELIVERIES = ("confirm", "exactly-once")
#: Delivery, and the arguments of the queue: exactly-once has a ledger, or the queue's own deduplication.
VARIANTS: dict[str, tuple[str, dict[str, bool]]] = {
    "confirm": ("confirm", {}),
    "ledger": ("exactly-once", {}),
    "deduplication": ("exactly-once", {"x-deduplication": True}),
}


def lines(directory: Path) -> None:
    (directory / "in").mkdir(parents=True)
    for number in range(FILES):
        text = "\n".join(str(number * LINES + line) for line in range(LINES))
        (directory / "in" / f"{number:03}.txt").write_text(text)


class Driver:
    """A process of tests.spark_sink.driver, with all its children."""

    def __init__(self, directory: Path, url: str, queue: str, delivery: str) -> None:
        session.environment()
        self._output = directory / "driver.log"
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_sink.driver", str(directory), url, queue, delivery],
                cwd=session.ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM; the Python workers find out by themselves."""
        family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for each in family:
            # Python workers come and go by themselves.
            with suppress(psutil.NoSuchProcess):
                if isinstance(each, subprocess.Popen) or "java" in each.name():
                    os.kill(each.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        code = self.process.wait(STEP_MAX_S)
        assert code == 0, f"the driver ended with {code}:\n{self._output.read_text(errors='replace')[-3000:]}"


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_MAX_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {STEP_MAX_S:.0f} s: {what}"
        time.sleep(0.05)


def reach(peer: Peer, queue: str, goal: int) -> None:
    until(f"{goal} messages", lambda: peer.count(queue) >= goal)


def judge(peer: Peer, queue: str, delivery: str, rows: int, what: str) -> None:
    """Raises AssertionError."""
    seen: Counter[bytes] = Counter()
    ids: set[str] = set()
    for _, properties, body in peer.drain(queue, rows):
        seen[body] += 1
        ids.add(str(properties.message_id))
    total = sum(seen.values())
    lost = {str(number).encode() for number in range(rows)} - seen.keys()
    print(f"{what}: {rows} rows, {total} messages, {len(lost)} lost, {total - len(seen)} twice", flush=True)
    assert not lost, f"lost: {sorted(lost)[:10]}"
    assert len(ids) == rows, f"{len(ids)} ids"
    if delivery == "exactly-once":
        assert total == rows, "duplicates"


def driver_kills(directory: Path, variant: str) -> None:
    delivery, arguments = VARIANTS[variant]
    with Node(directory) as node:
        url = f"amqp://guest:guest@127.0.0.1:{node.port}/"
        lines(directory)
        with Peer(url) as peer:
            queue = peer.queue("out", **arguments)
            for kill in range(KILLS):
                with Driver(directory, url, queue, delivery) as driver:
                    # Within a micro-batch: each kill comes at another number of messages.
                    reach(peer, queue, min(ROWS - 1, peer.count(queue) + (kill + 1) * LINES + 150))
                    driver.kill()
            with Driver(directory, url, queue, delivery) as driver:
                driver.finish()
            judge(peer, queue, delivery, ROWS, f"driver kill -9 x{KILLS}, {variant}")


def broker_kill(directory: Path, variant: str) -> None:
    """One node, killed twice while a query writes, and started again on the same port."""
    delivery, arguments = VARIANTS[variant]
    port = free_port()
    with Node(directory, "--amqp", f"127.0.0.1:{port}") as node:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        lines(directory)
        with Peer(url) as peer:
            peer.channel.queue_declare("out", durable=True, arguments=arguments)
        with Driver(directory, url, "out", delivery) as driver:
            for goal in (2 * LINES + 150, 6 * LINES + 150):
                with Peer(url) as peer:
                    reach(peer, "out", goal)
                node.kill()
                node.start()
            driver.finish()
        with Peer(url) as peer:
            judge(peer, "out", delivery, ROWS, f"broker kill -9 x2, {variant}")


def connections(node: Node) -> int:
    open = psutil.Process(node.pid).net_connections("tcp4")
    return sum(each.laddr.port == node.port and each.status == psutil.CONN_ESTABLISHED for each in open)


def executor_kill(directory: Path, variant: str) -> None:
    """A job on a standalone cluster of two workers; its executors are killed while they write."""
    delivery, arguments = VARIANTS[variant]
    with Node(directory) as node, Standalone(directory) as cluster:
        url = f"amqp://guest:guest@127.0.0.1:{node.port}/"
        with Peer(url) as peer:
            queue = peer.queue("out", **arguments)
            job = cluster.submit("tests.spark_sink.job", url, queue, delivery, str(ROWS))
            # Nothing of a transaction is visible before its end, but its connection is, in addition to the
            # peer's own.
            until("a task that writes", lambda: job.poll() is not None or connections(node) >= 1 + 1)
            executors = cluster.executors()
            assert job.poll() is None and executors, cluster.log()
            for executor in executors:
                os.kill(executor, signal.SIGKILL)
            code = job.wait(STEP_MAX_S)
            assert code == 0, cluster.log()
            judge(peer, queue, delivery, ROWS, f"executor kill -9 x{len(executors)}, {variant}")


#: Takes a directory of its own, and the variant. Raises an error if it fails.
Step = Callable[[Path, str], None]
STEPS: dict[str, Step] = {"driver": driver_kills, "broker": broker_kill, "executor": executor_kill}


def every(steps: Mapping[str, Step], only: Iterable[str], variants: Iterable[str]) -> bool:
    """Take each step with each variant, one after the other; return whether all checks held."""
    held = True
    for name in only:
        for variant in variants:
            with tempfile.TemporaryDirectory(prefix="spark-chaos-") as directory:
                began = time.monotonic()
                try:
                    steps[name](Path(directory), variant)
                except Exception:  # noqa: BLE001 - a step may fail in any way
                    # The failure of one step is reported, and the others run all the same.
                    traceback.print_exc()
                    print(f"{name}, {variant}: FAILED", flush=True)
                    held = False
                print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return held


def main(steps: Mapping[str, Step] = STEPS, description: str | None = __doc__) -> int:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=steps, default=list(steps))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if every(steps, options.only, options.variants) else 1


if __name__ == "__main__":
    sys.exit(main())
