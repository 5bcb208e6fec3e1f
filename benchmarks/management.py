"""What it costs to look at a broker: `python -m benchmarks.management`.

1,000 queues with messages and 1,000 connections with a channel and a consumer each. How long do the overview,
a page of queues and a scrape take, and how much later does a bystander, who publishes and gets, hear of the
broker meanwhile?
"""

from __future__ import annotations

import argparse
import base64
import http.client
import select
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

from pamqp import commands

from conformance_tests import programs
from conformance_tests.ports import free_ports
from conformance_tests.wire import RawClient

LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()
REQUESTS = {
    "overview": ("/api/overview", 50),
    "a page of queues": ("/api/queues?page=1&page_size=100&sort=name", 100),
    "a page of queues by rate": (
        "/api/queues?page=1&page_size=100&sort=message_stats.publish_details.rate&sort_reverse=true",
        100,
    ),
    "all connections": ("/api/connections", 0),
    "scrape": ("/metrics", 200),
    "scrape, per object": ("/metrics/per-object", 200),
}


class Mqd:
    def __init__(self, *options: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mqd-management-")
        self.amqp, self.http, self.metrics = free_ports(3)
        command = [str(programs.directory() / "mqd"), "--data-dir", f"{self._home.name}/data"]
        for name in ("amqp", "http", "metrics"):
            command += [f"--{name}", f"127.0.0.1:{getattr(self, name)}"]
        command += options
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        select.select([self.process.stdout], [], [], 30)
        print(self.process.stdout.readline().strip())

    def client(self) -> RawClient:
        made = RawClient(f"amqp://guest:guest@127.0.0.1:{self.amqp}/")
        made.handshake()
        made.open_channel(1)
        return made

    def ask(self, path: str) -> tuple[float, int]:
        """Return the time of an answer in milliseconds, and its bytes."""
        return ask(self.metrics if path.startswith("/metrics") else self.http, path)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self._home.cleanup()


def ask(port: int, path: str) -> tuple[float, int]:
    """See Mqd.ask."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request("GET", path, headers={"authorization": LOGIN})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    took = (time.perf_counter() - began) * 1000
    connection.close()
    return took, len(body)


class Bystander:
    """Publishes and gets, and notes how long each takes, in ms."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        client.call(commands.Queue.Declare(queue="bystander"), commands.Queue.DeclareOk)

    def watch(self, ends: Callable[[], bool]) -> list[float]:
        found: list[float] = []
        while not ends():
            began = time.perf_counter()
            self._client.call(
                commands.Queue.Declare(queue="bystander", passive=True), commands.Queue.DeclareOk
            )
            found.append((time.perf_counter() - began) * 1000)
        return found


def elapsed(until: float) -> bool:
    return time.perf_counter() > until


def ended(thread: threading.Thread) -> bool:
    return not thread.is_alive()


def ask_often(mqd: Mqd, path: str, times: int) -> None:
    for _ in range(times):
        mqd.ask(path)


def measure(mqd: Mqd, times: int) -> None:
    bystander = Bystander(mqd.client())
    print(
        f"{'':28}{'median':>9}{'worst':>9}{'wanted':>9}{'KiB':>8}   bystander: median, 99 %, worst (at rest)"
    )
    for name, (path, wanted) in REQUESTS.items():
        mqd.ask(path)
        began = time.perf_counter()
        rest = bystander.watch(partial(elapsed, began + 1.0))
        asking = threading.Thread(target=ask_often, args=(mqd, path, times))
        asking.start()
        waits = bystander.watch(partial(ended, asking))
        asking.join()
        alone = [mqd.ask(path) for _ in range(times)]
        times_ms = [each for each, _ in alone]
        waits.sort()
        print(
            f"{name:28}{statistics.median(times_ms):9.1f}{max(times_ms):9.1f}{wanted or '':>9}{alone[0][1] // 1024:8}   "
            f"{statistics.median(waits):.2f}, {waits[len(waits) * 99 // 100]:.2f}, {waits[-1]:.2f} "
            f"({statistics.median(rest):.2f}, {max(rest):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000)
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    mqd = Mqd()
    try:
        clients = []
        for number in range(options.objects):
            client = mqd.client()
            client.call(commands.Queue.Declare(queue=f"queue-{number:05}"), commands.Queue.DeclareOk)
            for _ in range(3):
                client.publish(b"body", routing_key=f"queue-{number:05}")
            client.call(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
            client.call(commands.Basic.Consume(queue=f"queue-{number:05}"), commands.Basic.ConsumeOk)
            clients.append(client)
        # So that there are samples.
        time.sleep(11)
        measure(mqd, options.times)
    finally:
        mqd.stop()


if __name__ == "__main__":
    main()
