"""One mqd process at a time on one data directory: started, stopped, killed, paused."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HOST = "127.0.0.1"
#: The interpreter that runs the broker; it must be able to import mqd.
PYTHON = sys.executable
RUN = Path(__file__).with_name("run.py")
#: Time for a node to print its ready line, and to end after SIGTERM, s.
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: Bytes of a log's end, to show why a node did not start.
LAST_WORDS_BYTES = 4096
READY = re.compile(r"^mqd ready .*\bamqp=\S+:(\d+)(?: http=\S+:(\d+))?")
#: Variables that would change the behaviour of the broker, or measure it instead of the program under test.
NOT_PASSED_ON = re.compile(r"MQD_|PYTHONWARNINGS$|PYTHONDEVMODE$|PYTHONPROFILE|COV_CORE_|COVERAGE_PROCESS")


class StartFailed(Exception):
    """A broker does not start. The text ends with the end of its log."""


def held_port() -> socket.socket:
    """Return a socket that holds a free port: the kernel gives the port to no other program, and a broker can
    listen on it.

    Two sockets with SO_REUSEADDR may have one port while at most one of them listens (Linux). So a port stays
    the same from one process of the broker to the next, and no other program gets it in between.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((HOST, 0))
    return holder


def port_of(holder: socket.socket) -> int:
    return int(holder.getsockname()[1])


def arguments(options: Mapping[str, object]) -> list[str]:
    """Return options, given by their names in the TOML file, as arguments of mqd."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            found += [f"--{flag}", text]
    return found


class Process:
    """The mqd process on one data directory."""

    def __init__(self, home: Path, remove: Path, given: Sequence[str]) -> None:
        """`remove` is deleted if our own process ends without stopping this one."""
        self.log_file = home / "mqd.log"
        self._home = home
        self._command = [PYTHON, "-P", str(RUN), str(remove), *given]
        self._process: subprocess.Popen[str] | None = None
        self.port = self.http_port = 0

    def launch(self) -> None:
        """Start without waiting for the broker."""
        if self.running:
            raise RuntimeError("the broker runs already")
        self._reap()
        environment = {name: value for name, value in os.environ.items() if not NOT_PASSED_ON.match(name)}
        with self.log_file.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                # Ctrl-C must reach only the tests.
                start_new_session=True,
            )

    def ready(self) -> None:
        """Wait until the broker serves. Raises StartFailed."""
        process = self._process
        assert process is not None and process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
        found = READY.match(process.stdout.readline()) if readable else None
        if found is None:
            self.kill()
            raise StartFailed(f"mqd does not start:\n{self.log()[-LAST_WORDS_BYTES:]}")
        self.port, self.http_port = int(found[1]), int(found[2] or 0)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the broker does not run")
        self._process.send_signal(number)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not help. Do nothing if the process does not run."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL: connections are not closed in order, and nothing is flushed."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for end in (process.stdin, process.stdout):
            assert end is not None
            end.close()

    def log(self) -> str:
        """Return its log so far, over all of its starts."""
        try:
            return self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""
