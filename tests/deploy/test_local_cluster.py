"""`make cluster`: three nodes from one command, gone with it, their data kept."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pika
import pytest

ROOT = Path(__file__).parents[2]
READY_S = 60.0
STOP_S = 60.0


def free_run(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for first in range(20_000 + os.getpid() % 10_000, 65_000, count):
        probes: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                probe = socket.socket()
                probes.append(probe)
                probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no ports")


class LocalCluster:
    def __init__(self, directory: Path, first: int) -> None:
        self._arguments = ["--data-dir", str(directory)]
        for number, kind in enumerate(("amqp", "http", "link")):
            self._arguments += [f"--{kind}", str(first + 3 * number)]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.local_cluster", *self._arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def until(self, pattern: str, count: int) -> list[re.Match[str]]:
        deadline = time.monotonic() + READY_S
        while True:
            found = [match for line in list(self.lines) if (match := re.search(pattern, line))]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline and self.process.poll() is None, self.lines
            time.sleep(0.05)

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert code == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("ends", [(signal.SIGINT, signal.SIGTERM)])
def test_starts_stops_and_keeps(tmp_path: Path, ends: tuple[signal.Signals, ...]) -> None:
    first = free_run(9)
    pids: list[int] = []
    for turn, end in enumerate(ends):
        running = LocalCluster(tmp_path / "cluster", first)
        try:
            running.until(rf"^all ready \([\d.]+ s\): connect to any of 127\.0\.0\.1:{first} ", 1)
            up = running.until(r" (n\d) up, pid (\d+), .*, majority, leads \d of \d quorum queues$", 3)
            pids = list({int(match[2]) for match in up})
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", first + turn))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
            if turn:
                assert channel.basic_get("kept", auto_ack=True)[2] == b"kept"
            channel.basic_publish("", "kept", b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
            connection.close()
            # A line for whatever changes.
            os.kill(next(int(match[2]) for match in up if match[1] == "n3"), signal.SIGKILL)
            running.until(r" n3 down \(killed by signal 9\): .*mqd\.log$", 1)
            running.until(r" n1 up, .* sees n2, majority", 1)
        finally:
            running.end(end)
        assert [line.split()[1:] for line in running.lines if line.endswith(" stopping")] == [
            [name, "stopping"] for name in ("n1", "n2", "n3")
        ]
        assert running.lines[-1].startswith("all stopped; the data stays in ")
        assert len(pids) == 3 and not any(map(alive, pids))
    secret = tmp_path / "cluster" / "cluster.secret"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_says_why_a_node_does_not_start(tmp_path: Path) -> None:
    first = free_run(9)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 6))
        taken.listen()
        running = LocalCluster(tmp_path / "cluster", first)
        try:
            running.until(rf" n1 down \(exit code 1\): mqd: .*127\.0\.0\.1:{first + 6}.*; log in ", 1)
        finally:
            running.end(signal.SIGTERM)
