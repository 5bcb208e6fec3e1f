"""The brokers under test, each a process of ours on free loopback ports with its own empty directory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import processes
from .client import HOST, Connection, Refused
from .installation import HERE, SERVER, Installation

START_MAX_S = 180.0
STOP_MAX_S = 30.0


class BrokerFailed(Exception):
    """The broker did not start, or has ended."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Broker(ABC):
    """One node or several; `port` is that of the first."""

    name: str
    port = 0

    @abstractmethod
    def start(self) -> float:
        """Start without data; return the time until clients were served."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def pids(self) -> list[int]: ...

    def restart(self) -> float:
        """Start again without data; return the time of the start."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End for good, with everything that outlives a restart."""
        self.stop()

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pids())

    def rss_bytes(self) -> int:
        return processes.rss_bytes(self.pids())

    def settle(self, limit_s: float = 5.0) -> None:
        """Wait until the broker is idle, so that no run pays for the one before."""
        deadline = time.perf_counter() + limit_s
        while time.perf_counter() < deadline:
            before = self.cpu_seconds()
            time.sleep(0.2)
            if self.cpu_seconds() - before < 0.025:
                return


class OneNode(Broker):
    def __init__(self) -> None:
        self.directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: list[int] = []

    def _new_directory(self, prefix: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=prefix))

    @abstractmethod
    def _command(self) -> tuple[list[str], dict[str, str]]:
        """The command to run, and additions to our environment. Called with a new directory and port."""

    def start(self) -> float:
        """Return the seconds from exec until a client had opened a connection and a channel."""
        self.directory = self._new_directory(f"bench-{self.name}-")
        self.port = free_port()
        command, environment = self._command()
        with (self.directory / "output").open("wb") as output:
            began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory,
            )
        connection = self._first_connection(began + START_MAX_S)
        took = time.perf_counter() - began
        connection.close()
        self._pids = self.found()
        return took

    def found(self) -> list[int]:
        """Return the processes of the broker that run now."""
        return [] if self._process is None else processes.members(self._process.pid)

    def _connect(self) -> Connection | socket.socket:
        """Raises OSError, Refused."""
        return Connection(self.port, 5)

    def _first_connection(self, deadline: float) -> Connection | socket.socket:
        while time.perf_counter() < deadline:
            try:
                return self._connect()
            except (OSError, Refused):
                self.check_alive()
                time.sleep(0.002)
        raise BrokerFailed(f"{self.name} took no connection for {START_MAX_S:.0f} s: {self._last_words()}")

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise BrokerFailed(f"{self.name} has ended: {self._last_words()}")

    def _last_words(self) -> str:
        output = self.directory / "output"
        return output.read_text(errors="replace")[-2_000:] if output.exists() else ""

    def stop(self) -> None:
        if self._process is not None:
            self._end(self._process)
            self._process = None
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            print(
                f"{self.name} did not stop within {STOP_MAX_S:.0f} s of SIGTERM and is killed",
                file=sys.stderr,
            )
        for pid in processes.members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def pids(self) -> list[int]:
        return self._pids


class Mqd(OneNode):
    name = "mqd"
    #: Directory of the program.
    programs = Path(sys.executable).parent

    @classmethod
    def path(cls) -> Path:
        """Raises BrokerFailed."""
        path = cls.programs / "mqd"
        if not path.exists():
            raise BrokerFailed(f"{path} is missing: pip install . first")
        return path

    def _command(self) -> tuple[list[str], dict[str, str]]:
        data = str(self.directory / "data")
        amqp, http = f"{HOST}:{self.port}", f"{HOST}:0"
        return [str(self.path()), "--data-dir", data, "--amqp", amqp, "--http", http], {}


class Before(Mqd):
    """Another build of mqd, to compare this one with."""

    name = "mqd-before"


class RabbitMQ(OneNode):
    """Debian's rabbitmq-server with its defaults, except for directories and ports: it uses nothing outside
    the temporary directory and the loopback interface, not even the machine's epmd.
    """

    name = "rabbitmq"

    def __init__(self, installation: Installation = HERE) -> None:
        super().__init__()
        self.installation = installation
        self.name = name_of(installation)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_port = 0

    def _new_directory(self, prefix: str) -> Path:
        return self.installation.new_directory(prefix)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        if not self.installation.exists:
            raise BrokerFailed(f"{self.installation.lack}, or --brokers mqd")
        self._start_epmd()
        (self.directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{self.port}\n")
        (self.directory / "rabbitmq-env.conf").write_text("")
        (self.directory / "enabled_plugins").write_text("[].\n")
        here = self.installation.seen(self.directory)
        return self.installation.command(SERVER), {
            "HOME": here,
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "rabbit_bench@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": f"{here}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{here}/mnesia",
            "RABBITMQ_LOG_BASE": f"{here}/log",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _start_epmd(self) -> None:
        """Started in advance and kept, so that neither epmd nor the name that it holds affects a timed start
        of a broker.
        """
        if self._epmd is None:
            self._epmd_port = free_port()
            self._epmd = subprocess.Popen(
                self.installation.command("epmd", "-address", HOST, "-port", str(self._epmd_port)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()
            self._epmd = None


def name_of(installation: Installation) -> str:
    """A second RabbitMQ has its version in its name."""
    return RabbitMQ.name if installation == HERE else f"{RabbitMQ.name}-{installation.version}"


BROKERS: dict[str, Callable[[], Broker]] = {one.name: one for one in (Mqd, Before, RabbitMQ)}
