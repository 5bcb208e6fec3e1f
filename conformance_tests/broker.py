"""The broker under test: any broker behind a URL, or an mqd that the suite starts, restarts and kills."""

import select
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import HOST, free_ports
from conformance_tests.wire import RawClient

CTL_S = 60.0
SYSTEM = Path("/")


class CtlError(Exception):
    """The control command failed; the text is its output."""


class Broker(Protocol):
    url: str
    #: URL of the management API with its login; empty if unknown.
    http_url: str
    product: str
    version: str
    is_mqd: bool
    #: Where other brokers of this kind come from, if it is a RabbitMQ.
    rabbitmq_root: Path

    @property
    def has_ctl(self) -> bool: ...

    def ctl(self, *args: str) -> str: ...
    def restart(self, kill: bool = False) -> None: ...
    def check_alive(self) -> None: ...
    def stop(self) -> None: ...


def recognise(url: str) -> tuple[str, str]:
    """Product and version, from the server-properties of connection.start."""
    client = RawClient(url)
    try:
        properties = client.read_start().server_properties
        return str(properties.get("product", "?")), str(properties.get("version", "?"))
    finally:
        client.abort()


def run_ctl(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CTL_S, check=False)
    if done.returncode:
        raise CtlError(f"{shlex.join(command)}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class ForeignBroker:
    """Any broker behind a URL, with rabbitmqctl or a similar command if `--ctl` was given."""

    def __init__(
        self, url: str, ctl: str | None, http_url: str | None = None, rabbitmq_root: Path = SYSTEM
    ) -> None:
        self.url = url
        self.rabbitmq_root = rabbitmq_root
        self.http_url = http_url or ""
        self.product, self.version = recognise(url)
        self.is_mqd = self.product == "mqd"
        self._ctl = shlex.split(ctl) if ctl else []
        if any(Path(word).name == "rabbitmqctl" for word in self._ctl):
            self._ctl.append("-q")

    @property
    def has_ctl(self) -> bool:
        return bool(self._ctl)

    def ctl(self, *args: str) -> str:
        if not self._ctl:
            pytest.skip("needs a control command (--ctl) for the broker behind --amqp-url")
        return run_ctl([*self._ctl, *args])

    def restart(self, kill: bool = False) -> None:
        if kill:
            pytest.skip("kill -9 only of a broker that the suite started itself")
        self.ctl("stop_app")
        self.ctl("start_app")

    def check_alive(self) -> None:
        pass

    def stop(self) -> None:
        pass


class OwnBroker:
    """The `mqd` of this environment, with its own data directory."""

    rabbitmq_root = SYSTEM

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = options
        self._bin = programs.directory()
        if not (self._bin / "mqd").exists():
            pytest.exit(f"no --amqp-url given, and no mqd in {self._bin}", returncode=3)
        self._home = tempfile.TemporaryDirectory(prefix="mqd-conformance-")
        self._log = Path(self._home.name) / "stderr.log"
        # A restart uses the same ports, as clients expect.
        self._amqp, self._http = (f"{HOST}:{port}" for port in free_ports(2))
        self._process: subprocess.Popen[str] | None = None
        self.start()
        self.url = f"amqp://guest:guest@{self._amqp}/"
        self.http_url = f"http://guest:guest@{self._http}"
        self.product, self.version = recognise(self.url)
        self.is_mqd = True

    @property
    def has_ctl(self) -> bool:
        return True

    def start(self) -> None:
        command = [str(self._bin / "mqd"), "--data-dir", f"{self._home.name}/data"]
        command += ["--amqp", self._amqp, "--http", self._http, *self._options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if not self._first_line().startswith("mqd ready "):
            self._process.kill()
            raise AssertionError(f"mqd did not say that it is ready:\n{self.log_tail()}")

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        return self._process.stdout.readline() if ready else ""

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def ctl(self, *args: str) -> str:
        return run_ctl([str(self._bin / "mqctl"), "--url", f"http://{self._http}", *args])

    def restart(self, kill: bool = False) -> None:
        assert self._process is not None
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def _end(self, with_signal: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(with_signal)
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"mqd did not stop within {PATIENCE_S} s:\n{self.log_tail()}") from None
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
        if with_signal == signal.SIGTERM:
            assert code == 0, f"mqd ended with {code}:\n{self.log_tail()}"

    def check_alive(self) -> None:
        """Fails, once, if the broker died under the last test; the next tests get a new one."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            tail = self.log_tail()
            self.start()
            raise AssertionError(f"mqd died with {code}:\n{tail}")

    def stop(self) -> None:
        try:
            if self._process is not None and self._process.poll() is None:
                self._end(signal.SIGTERM)
        finally:
            self._home.cleanup()
