"""How long definitions take to be taken over: `python -m benchmarks.definitions`.

10,000 queues, each bound to an exchange, go to the management API of one node and of three: durable classic
queues, then quorum queues. Then the same definitions come once more, when all of it is there.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import re
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance_tests import programs
from conformance_tests.ports import free_ports

from .processes import cpu_seconds

HOST = "127.0.0.1"
LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()
READY = re.compile(r"^mqd ready .*\bhttp=127\.0\.0\.1:(\d+)")
START_MAX_S, ANSWER_MAX_S = 60, 300


def definitions(count: int, kind: str) -> bytes:
    queues = [f"{kind}-{number:05}" for number in range(count)]
    told = {
        "exchanges": [
            {
                "name": kind,
                "vhost": "/",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "arguments": {},
            }
        ],
        "queues": [
            {
                "name": name,
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": kind},
            }
            for name in queues
        ],
        "bindings": [
            {
                "source": kind,
                "vhost": "/",
                "destination": name,
                "destination_type": "queue",
                "routing_key": name,
                "arguments": {},
            }
            for name in queues
        ],
    }
    return json.dumps(told).encode()


@contextmanager
def running(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ports of the management listeners of so many nodes, and the nodes' processes."""
    with tempfile.TemporaryDirectory(prefix="mqd-definitions-") as home:
        secret = Path(home, "secret")
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        links = free_ports(count)
        peers = ",".join(f"n{place}={HOST}:{port}" for place, port in enumerate(links, 1))
        processes = []
        for place in range(1, count + 1):
            command = [str(programs.directory() / "mqd"), "--data-dir", f"{home}/n{place}"]
            command += ["--amqp", f"{HOST}:0", "--http", f"{HOST}:0", "--node", f"n{place}"]
            if count > 1:
                command += ["--peers", peers, "--cluster-secret-file", str(secret)]
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
        try:
            yield [_ready(process) for process in processes], [process.pid for process in processes]
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(60)


def _ready(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_MAX_S)
    found = READY.match(process.stdout.readline()) if readable else None
    assert found is not None, "mqd did not start"
    return int(found[1])


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_MAX_S)
    try:
        connection.request(method, path, body, {"authorization": LOGIN, "content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def take_over(port: int, body: bytes) -> float:
    """Return how long it takes, s."""
    began = time.perf_counter()
    status, text = ask(port, "POST", "/api/definitions", body)
    took = time.perf_counter() - began
    assert status == 204, text
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--kinds", nargs="+", default=["classic", "quorum"])
    options = parser.parse_args()
    for count in options.nodes:
        for kind in options.kinds:
            with running(count) as (ports, pids):
                body = definitions(options.queues, kind)
                before = cpu_seconds(pids)
                first = take_over(ports[-1], body)
                cpu = cpu_seconds(pids) - before
                again = take_over(ports[0], body)
                _, listed = ask(ports[-1], "GET", "/api/queues?page=1&page_size=1")
                assert json.loads(listed)["total_count"] == options.queues
            print(
                f"{count} nodes, {options.queues:,} {kind} queues: {first:.2f} s ({cpu:.2f} s of CPU), "
                f"again {again:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
