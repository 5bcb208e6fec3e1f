"""A broker for the programs: mqd on free ports, and a socket for restart requests."""

import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from conformance_tests import programs
from conformance_tests.ports import HOST, free_ports

START_SECONDS = 60
STOP_SECONDS = 60


class BrokerFailed(Exception):
    pass


def find_mqd() -> str | None:
    """The mqd of the interpreter's own environment before any other."""
    beside = programs.directory() / "mqd"
    return str(beside) if beside.exists() else shutil.which("mqd")


class MqdProcess:
    def __init__(self, executable: str, directory: Path, *, restart_signal: signal.Signals) -> None:
        self._executable = executable
        self._directory = directory
        self._restart_signal = restart_signal
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        # A restart must use the ports that the clients know.
        self.amqp, self.http = (f"{HOST}:{port}" for port in free_ports(2))

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.amqp}/%2F"

    @property
    def http_url(self) -> str:
        return f"http://guest:guest@{self.http}"

    def start(self) -> None:
        self._errors = (self._directory / "mqd.log").open("a")
        self._process = subprocess.Popen(
            [
                *(self._executable, "--data-dir", str(self._directory / "data")),
                *("--amqp", self.amqp, "--http", self.http),
            ],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        if not self._first_line(self._process).startswith("mqd ready "):
            self.stop(signal.SIGKILL)
            raise BrokerFailed(f"mqd did not start:\n{self.log_tail()}")

    def restart(self) -> None:
        self.stop(self._restart_signal)
        self.start()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"mqd did not stop within {STOP_SECONDS} s of {how.name}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
            if self._errors is not None:
                self._errors.close()
        if how is signal.SIGTERM and code != 0:
            raise BrokerFailed(f"mqd gave {code} after SIGTERM:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join((self._directory / "mqd.log").read_text(errors="replace").splitlines()[-20:])

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([process.stdout], [], [], left)
            if readable:
                return process.stdout.readline()
        return ""


class RestartDoor:
    """A Unix socket through which a client program can restart the broker.

    The broker stays the runner's child: so the runner sees its exit, and no process outlives the run.
    """

    def __init__(self, broker: MqdProcess, path: Path) -> None:
        self._broker = broker
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(START_SECONDS + STOP_SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                try:
                    self._broker.restart()
                    caller.sendall(b"ok")
                except (BrokerFailed, OSError) as error:
                    caller.sendall(str(error).encode())
