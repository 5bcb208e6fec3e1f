"""Three nodes on this machine, of either broker, behind one interface."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import processes
from .brokers import START_MAX_S, STOP_MAX_S, Before, Broker, BrokerFailed, Mqd, RabbitMQ, free_port, name_of
from .client import HOST, Connection, Refused
from .installation import HERE, Installation
from .rabbitmq_cluster import RabbitNode, RabbitNodes

NAMES = ("n1", "n2", "n3")
FORM_MAX_S = 60.0
#: The leader is the node through which the queue is declared.
QUORUM: dict[str, Any] = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}


class Cluster(Broker):
    """Nodes by their index: 0, 1, 2."""

    ports: list[int]

    @abstractmethod
    def node_pids(self, place: int) -> list[int]: ...

    @abstractmethod
    def kill(self, place: int) -> None: ...

    @abstractmethod
    def launch(self, place: int) -> None:
        """Start a node on the data that it has, and do not wait for it."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raises BrokerFailed if a launched node has ended."""

    def pids(self) -> list[int]:
        return [pid for place in range(len(NAMES)) for pid in self.node_pids(place)]

    def wait_serving(self, serves: Callable[[Connection], bool], within_s: float = START_MAX_S) -> None:
        """Wait until every node accepts a client and answers it as expected."""
        deadline = time.perf_counter() + within_s
        for port in self.ports:
            while not _serves(port, serves):
                self.check_alive()
                if time.perf_counter() > deadline:
                    raise BrokerFailed(f"{self.name}: a node does not serve within {within_s:.0f} s")
                time.sleep(0.005)

    def bounce(self, serves: Callable[[Connection], bool], within_s: float) -> float:
        """Kill all nodes and start them on their data; return the seconds until all serve."""
        for place in range(len(NAMES)):
            self.kill(place)
        began = time.perf_counter()
        for place in range(len(NAMES)):
            self.launch(place)
        self.wait_serving(serves, within_s)
        return time.perf_counter() - began


def _serves(port: int, serves: Callable[[Connection], bool]) -> bool:
    with suppress(OSError, Refused), Connection(port, 5) as connection:
        return serves(connection)
    return False


def takes_quorum_queues(connection: Connection) -> bool:
    connection.queue("bench-formed", durable=True, **QUORUM)
    connection.delete_queue("bench-formed")
    return True


class MqdCluster(Cluster):
    name = "mqd"
    #: The class of each node.
    node: type[Mqd] = Mqd

    def __init__(self) -> None:
        self.directory = Path()
        self.ports = []
        self.http_ports: list[int] = []
        self._peers = ""
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(NAMES)

    def start(self) -> float:
        self.directory = Path(tempfile.mkdtemp(prefix="bench-mqd-cluster-"))
        secret = self.directory / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self.ports = [free_port() for _ in NAMES]
        self.http_ports = [free_port() for _ in NAMES]
        self.port = self.ports[0]
        self._peers = ",".join(f"{name}={HOST}:{free_port()}" for name in NAMES)
        began = time.perf_counter()
        for place in range(len(NAMES)):
            self.launch(place)
        self.wait_serving(takes_quorum_queues, FORM_MAX_S)
        return time.perf_counter() - began

    def launch(self, place: int) -> None:
        name = NAMES[place]
        command = [str(self.node.path()), "--data-dir", str(self.directory / name)]
        command += ["--http", f"{HOST}:{self.http_ports[place]}"]
        command += ["--amqp", f"{HOST}:{self.ports[place]}", "--node", name, "--peers", self._peers]
        command += ["--cluster-secret-file", str(self.directory / "secret")]
        with (self.directory / f"{name}.output").open("ab") as output:
            self._processes[place] = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory,
            )

    def _environment(self) -> dict[str, str]:
        """With bytecode files, as pip leaves them, even if this process must not write any."""
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(self.directory / "modules")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment

    def check_alive(self) -> None:
        for name, process in zip(NAMES, self._processes, strict=True):
            if process is not None and process.poll() is not None:
                words = (self.directory / f"{name}.output").read_text(errors="replace")[-2_000:]
                raise BrokerFailed(f"{self.name} {name} has ended: {words}")

    def node_pids(self, place: int) -> list[int]:
        process = self._processes[place]
        return [] if process is None else [process.pid]

    def kill(self, place: int) -> None:
        self._end(place, signal.SIGKILL)

    def _end(self, place: int, how: signal.Signals) -> None:
        process = self._processes[place]
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(STOP_MAX_S)
            finally:
                process.kill()
                process.wait()
                self._processes[place] = None

    def stop(self) -> None:
        for place in range(len(NAMES)):
            self.kill(place)
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)


class BeforeCluster(MqdCluster):
    name = Before.name
    node = Before


class RabbitMQCluster(Cluster):
    def __init__(self, installation: Installation = HERE) -> None:
        self.name = name_of(installation)
        self._installation = installation
        self._nodes: RabbitNodes | None = None
        self.ports = []

    def start(self) -> float:
        self._nodes = RabbitNodes(NAMES, self._installation)
        self.ports = [node.port for node in self._nodes.nodes]
        self.port = self.ports[0]
        began = time.perf_counter()
        self._nodes.start()
        self.wait_serving(takes_quorum_queues, FORM_MAX_S)
        return time.perf_counter() - began

    def _node(self, place: int) -> RabbitNode:
        assert self._nodes is not None
        return self._nodes.nodes[place]

    def launch(self, place: int) -> None:
        self._node(place).launch()

    def check_alive(self) -> None:
        assert self._nodes is not None
        for node in self._nodes.nodes:
            if not node.running:
                raise BrokerFailed(f"{self.name} {node.name} has ended: {node.last_words()}")

    def node_pids(self, place: int) -> list[int]:
        session = 0 if self._nodes is None else self._node(place).session
        return processes.members(session) if session else []

    def kill(self, place: int) -> None:
        self._node(place).kill()

    def stop(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None


CLUSTERS: dict[str, Callable[[], Broker]] = {
    MqdCluster.name: MqdCluster,
    BeforeCluster.name: BeforeCluster,
    RabbitMQ.name: RabbitMQCluster,
}
