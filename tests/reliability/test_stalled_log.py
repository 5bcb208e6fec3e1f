"""Nothing reads stderr: the broker serves all the same, later logs how much is missing, and can be
stopped.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.reliability.client import Client
from tests.reliability.node import READY, command

CONNECTIONS = 200


@contextmanager
def stalled(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A broker whose stderr is a full pipe, and its port."""
    options = ("--log-queue-lines-max", "50", "--log-lines-max", "10000", "--http", "")
    process = subprocess.Popen(
        [command("mqd"), "--data-dir", str(directory), "--amqp", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        ready = READY.match(
            os.read(process.stdout.fileno(), 4096).decode().replace(" (", " http=127.0.0.1:0 (", 1)
        )
        assert ready is not None
        port = int(ready[1])
        for _ in range(CONNECTIONS):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                while sock.recv(100):
                    pass
        yield process, port
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def test_it_serves_and_says_what_is_missing(tmp_path: Path) -> None:
    with stalled(tmp_path) as (process, port):
        client = Client(port)
        client.declare("q")
        client.close()
        assert process.stderr is not None
        text, deadline = b"", time.monotonic() + PATIENCE_S
        while b"lines were not logged" not in text:
            assert time.monotonic() < deadline, text.decode()[-2_000:]
            if select.select([process.stderr], [], [], 0.1)[0]:
                text += os.read(process.stderr.fileno(), 65_536)
        lines = text.decode().splitlines()
        said = next(line for line in lines if "lines were not logged" in line)
        assert "WARNING mqd.log" in said
        left_out = int(said.partition("mqd.log: ")[2].split()[0])
        assert left_out > CONNECTIONS and len(lines) > 50
        # From now on no log line is left out.
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
        assert b"stopping" in rest


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_stopped(tmp_path: Path, how: signal.Signals) -> None:
    with stalled(tmp_path) as (process, _):
        process.send_signal(how)
        assert process.wait(PATIENCE_S) == 0
