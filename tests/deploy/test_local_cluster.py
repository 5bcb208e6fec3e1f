"""`make cluster`: one command runs three nodes, its end stops them, and their data stays."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pika
import pytest

from conformance_tests.patience import PATIENCE_S, open_connection
from conformance_tests.ports import free_run
from deploy.local_cluster import STOP_TIMEOUT_S
from tests.reliability.node import wait_until

ROOT = Path(__file__).parents[2]
NAMES = ("n1", "n2", "n3")
#: Each node may take its full time to stop.
STOP_S = len(NAMES) * STOP_TIMEOUT_S + PATIENCE_S
UP = re.compile(r" (n\d) up, pid (\d+), .*, majority, leads \d of \d quorum queues$")


class LocalCluster:
    def __init__(self, directory: Path, first: int) -> None:
        self._arguments = ["--data-dir", str(directory)]
        for number, kind in enumerate(("amqp", "http", "link")):
            self._arguments += [f"--{kind}", str(first + 3 * number)]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.local_cluster", *self._arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
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

    def says(self, pattern: str, since: int = 0) -> None:
        """Wait for a line, without counting the first lines."""

        def said() -> bool:
            assert self.process.poll() is None, self.lines
            return any(re.search(pattern, line) for line in self.lines[since:])

        wait_until(f"it says {pattern}", said, state=lambda: "\n".join(self.lines))

    def up(self) -> dict[str, int]:
        """Wait until each node has said that it sees a majority; return their processes. A node prints a line
        at each change of state, so one node may have more of them than another.
        """
        found: dict[str, int] = {}

        def all_up() -> bool:
            assert self.process.poll() is None, self.lines
            found.update((match[1], int(match[2])) for line in self.lines if (match := UP.search(line)))
            return found.keys() == {*NAMES}

        wait_until("all nodes are up", all_up, state=lambda: "\n".join(self.lines))
        return found

    def enter(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
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
    for turn, end in enumerate(ends):
        running = LocalCluster(tmp_path / "cluster", first)
        try:
            running.says(rf"^all ready \([\d.]+ s\): connect to any of 127\.0\.0\.1:{first} ")
            pids = running.up()
            connection = open_connection(f"amqp://guest:guest@127.0.0.1:{first + turn}/")
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
            if turn:
                assert channel.basic_get("kept", auto_ack=True)[2] == b"kept"
            channel.basic_publish("", "kept", b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
            connection.close()
            # A line comes with each change.
            known = len(running.lines)
            os.kill(pids["n3"], signal.SIGKILL)
            running.says(r" n3 down \(killed by signal 9\): .*mqd\.log$", known)
            running.says(r" n1 up, .* sees n2, majority", known)
            running.says(r"^Enter starts n3 again$", known)
            known = len(running.lines)
            running.enter()
            running.says(r" n3 up, .* sees n1 n2, majority", known)
            pids["n3 again"] = running.up()["n3"]
            assert pids["n3 again"] != pids["n3"]
        finally:
            running.end(end)
        assert [line.split()[1:] for line in running.lines if line.endswith(" stopping")] == [
            [name, "stopping"] for name in NAMES
        ]
        assert running.lines[-1].startswith("all stopped; the data stays in ")
        assert not any(map(alive, pids.values()))
    secret = tmp_path / "cluster" / "cluster.secret"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_says_why_a_node_does_not_start(tmp_path: Path) -> None:
    first = free_run(9)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 6))
        taken.listen()
        running = LocalCluster(tmp_path / "cluster", first)
        try:
            running.says(rf" n1 down \(exit code 1\): mqd: .*127\.0\.0\.1:{first + 6}.*; log in ")
        finally:
            running.end(signal.SIGTERM)
