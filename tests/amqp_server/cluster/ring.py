"""Three real nodes on this machine, with what an operator and a client of each can do."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pika
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.mqctl.client import Failure
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS
from conformance_tests.patience import PATIENCE_S, patient
from conformance_tests.ports import free_ports as free_ports
from tests.reliability.node import Node, wait_until

HOST = "127.0.0.1"
NAMES = ("n1", "n2", "n3")
_LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()

# The import of each module adds its commands to `mqctl`.
assert COMMANDS


class Ring:
    """Nodes by name, each with a directory of its own below `directory`."""

    def __init__(self, directory: Path, *options: str, names: Sequence[str] = NAMES) -> None:
        self.directory = directory
        self.names = list(names)
        self.options = options
        self.links = dict(zip(names, free_ports(len(names)), strict=True))
        self.secret = directory / "secret"
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.place(name)

    def place(self, name: str, *options: str, secret: Path | None = None, peers: str = "") -> Node:
        """Lay out a node, which is not started."""
        home = self.directory / name
        home.mkdir(exist_ok=True)
        node = self.nodes[name] = Node(
            home,
            *("--node", name, "--peers", peers or self.peers()),
            *("--cluster-secret-file", str(secret or self.secret), "--disk-free-min-bytes", "1MiB"),
            *self.options,
            *options,
        )
        return node

    def peers(self) -> str:
        return ",".join(f"{name}={HOST}:{port}" for name, port in self.links.items())

    def __enter__(self) -> Self:
        try:
            self.start(*self.names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()

    # -- nodes -----------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            self.nodes[name].launch()
        for name in names:
            self.nodes[name].ready()
        self.formed()

    def formed(self) -> None:
        """Wait until all running nodes see each other."""
        wait_until("all nodes see each other", self._formed, state=self.state)

    def _formed(self) -> bool:
        running = self.running()
        return all(
            told["majority"] and {node["name"] for node in told["nodes"] if node["running"]} >= {*running}
            for told in map(self.status, running)
        )

    def heal(self) -> None:
        """Start all nodes again that an earlier test has left down."""
        down = [name for name in self.names if not self.nodes[name].running]
        for name in down:
            self.nodes[name].kill()
        self.start(*down)

    def status(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = self.get(name, "/api/cluster")
        return told

    def state(self) -> str:
        return "; ".join(
            f"{name}: {self.status(name) if self.nodes[name].running else 'down'}" for name in self.names
        )

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{node.log()[-3000:]}" for name, node in self.nodes.items())

    # -- management ------------------------------------------------------------------------------------------

    def ask(self, method: str, name: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the body of the answer."""
        headers = {"Authorization": _LOGIN, "Content-Type": "application/json"}
        with closing(
            http.client.HTTPConnection(HOST, self.nodes[name].http, timeout=PATIENCE_S)
        ) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if text else None

    def get(self, name: str, path: str) -> Any:
        status, told = self.ask("GET", name, path)
        assert status == 200, (status, told)
        return told

    def mqctl(self, name: str, *arguments: str) -> str:
        """Run a command against a node; return what it prints. Raises mqctl's Failure."""
        url = f"http://{HOST}:{self.nodes[name].http}"
        done = CliRunner().invoke(mqctl, ["--url", url, *arguments], prog_name="mqctl")
        if isinstance(done.exception, Failure):
            raise done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    def queue(self, name: str, queue: str, vhost: str = "/") -> dict[str, Any]:
        """Return what a node knows of the group of a quorum queue."""
        told: dict[str, Any] = self.get(
            name, f"/api/cluster/queues/{quote(vhost, safe='')}/{queue}?digest=true"
        )
        return told

    def expendable(self, name: str, queue: str) -> None:
        """Wait until a queue and the topology have a majority without a node. Other tests' queues may have
        none: one with two members of which one was wiped waits for an operator.
        """
        groups = {"the topology", f"queue '{queue}' in vhost '/'"}

        def critical() -> Any:
            return self.ask("GET", name, "/api/health/checks/node-is-quorum-critical")[1]

        wait_until(
            f"{name} is not needed by {queue}",
            lambda: not groups & {*critical().get("queues", ())},
            state=lambda: str(critical()),
        )

    def leader(self, queue: str) -> str:
        """Wait for a leader that all of its members that run know."""
        leaders: set[str] = set()

        def agreed() -> bool:
            leaders.clear()
            leaders.update(self.queue(name, queue)["leader"] for name in self.running())
            return len(leaders) == 1 and "" not in leaders

        wait_until(f"{queue} has a leader", agreed, state=lambda: str(leaders))
        return leaders.pop()

    def running(self) -> list[str]:
        return [name for name in self.names if self.nodes[name].running]

    def equal(self, queue: str, *names: str) -> None:
        """Wait until the replicas on these nodes are voters and have the same state."""

        def same() -> bool:
            told = [self.queue(name, queue) for name in names]
            leading = [one for one in told if one["leader"] == one["node"]]
            return (
                len({(one.get("applied"), one.get("digest")) for one in told}) == 1
                and len(leading) == 1
                and {member["node"] for member in leading[0]["members"] if member["voter"]} >= {*names}
            )

        wait_until(
            f"{queue} is the same on {names}",
            same,
            state=lambda: str([self.queue(name, queue) for name in names]),
        )

    # -- clients ---------------------------------------------------------------------------------------------

    def connect(self, name: str, **parameters: Any) -> pika.BlockingConnection:
        where = pika.ConnectionParameters(HOST, self.nodes[name].port, heartbeat=0, **parameters)
        return pika.BlockingConnection(patient(where))

    @contextmanager
    def connection(self, name: str, **parameters: Any) -> Iterator[pika.BlockingConnection]:
        connection = self.connect(name, **parameters)
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()

    @contextmanager
    def channel(self, name: str, *, confirm: bool = True) -> Iterator[BlockingChannel]:
        with self.connection(name) as connection:
            channel = connection.channel()
            if confirm:
                channel.confirm_delivery()
            yield channel


PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUORUM = {"x-queue-type": "quorum"}


def publish(channel: BlockingChannel, queue: str, *bodies: bytes) -> None:
    """Publish to a queue, each confirmed."""
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


def take(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Get exactly this many messages, which must be there, and ack them."""
    bodies: list[bytes] = []
    for _ in range(count):
        method, _, body = channel.basic_get(queue)
        assert method is not None, f"{queue} has {len(bodies)} messages, not {count}"
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
    return bodies
