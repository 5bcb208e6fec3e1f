"""The brokers that programs run against: mqd on one node or on three, or any broker behind a URL."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import free_ports
from tests.cluster import planted as planted_entries
from tests.cluster import shifted_clock
from tests.cluster.mqd import TROUBLED, MqdCluster
from tests.model.spec.state import Broker
from tests.reliability.node import Node

PASSWORD = "secret"


class Refused(Exception):
    """The management API answered with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


def request(url: str, method: str, path: str, body: Any = None) -> Any:
    parts = urlsplit(url)
    login = base64.b64encode(f"{parts.username or 'guest'}:{parts.password or 'guest'}".encode()).decode()
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=PATIENCE_S)
    try:
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise Refused(answer.status, text.decode(errors="replace")[:300])
    return json.loads(text) if text and text.strip().startswith((b"{", b"[")) else None


class Operated(Protocol):
    """A broker as programs see it."""

    product: str
    names: Sequence[str]
    #: Faults that can be had here.
    faults: frozenset[str]

    def url(self, node: str) -> str: ...
    def api(self, method: str, path: str, body: Any = None) -> Any: ...
    def taken_for_granted(self) -> Broker: ...
    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None: ...
    def plant(self, queue: str, node: str) -> None: ...
    def heal(self) -> None: ...
    def alive(self) -> bool: ...
    def log_tail(self) -> str: ...
    def close(self) -> None: ...


def path(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


class MqdNode:
    """mqd alone, on one data directory."""

    product = "mqd"
    names: Sequence[str] = ("n1",)
    faults = frozenset({"kill", "restart", "freeze", "clock", "entry"})

    def __init__(
        self,
        program: Sequence[str] = TROUBLED,
        environment: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mqd-model-")
        place = Path(self._home.name)
        shifted_clock.set_clock(place / "clock", 0)
        planted_entries.plant(place / "plant", "", 0)
        self._amqp, self._http = free_ports(2)
        self._node = Node(
            place, "--amqp", f"127.0.0.1:{self._amqp}", "--http", f"127.0.0.1:{self._http}", *options
        )
        self._node.program = list(program)
        self._node.environment = {
            shifted_clock.VARIABLE: str(place / "clock"),
            planted_entries.VARIABLE: str(place / "plant"),
            **(environment or {}),
        }
        self._clock_s = 0.0
        self._node.start()

    def url(self, node: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._node.port}/"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return request(f"http://guest:guest@127.0.0.1:{self._node.http}", method, path, body)

    def taken_for_granted(self) -> Broker:
        return Broker()

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        if kind == "kill":
            self._node.kill()
            self._node.start()
        elif kind == "restart":
            code = self._node.stop()
            assert code == 0, f"mqd ended with {code}"
            self._node.start()
        elif kind == "freeze":
            os.kill(self._node.pid, signal.SIGSTOP)
            time.sleep(detail.get("seconds", 0.3))
            os.kill(self._node.pid, signal.SIGCONT)
        elif kind == "clock":
            self._clock_s = detail.get("by_s", 3600) if not self._clock_s else 0
            shifted_clock.set_clock(Path(self._home.name) / "clock", self._clock_s)

    def plant(self, queue: str, node: str) -> None:
        planted_entries.plant(Path(self._home.name) / "plant", queue, 1)

    def heal(self) -> None:
        if self._clock_s:
            self.fault("clock", "n1", {})

    def alive(self) -> bool:
        return self._node.running

    def log_tail(self) -> str:
        return self._node.log()[-3000:]

    def close(self) -> None:
        self._node.kill()
        self._home.cleanup()


class MqdNodes:
    """mqd on three nodes."""

    product = "mqd"
    faults = frozenset({"kill", "restart", "freeze", "cut", "isolate", "transfer", "clock", "entry"})

    def __init__(self, program: Sequence[str] = TROUBLED, environment: dict[str, str] | None = None) -> None:
        self.cluster = MqdCluster(program=program)
        for node in self.cluster._nodes.values():
            node.environment |= environment or {}
        self.names: Sequence[str] = self.cluster.names
        try:
            self.cluster.start()
        except BaseException:
            self.cluster.close()
            raise
        self._troubles: list[tuple[str, str]] = []

    def url(self, node: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.cluster.port(node)}/"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        hit = {node for _, node in self._troubles}
        node = next(name for name in self.names if name not in hit)
        return request(f"http://guest:guest@127.0.0.1:{self.cluster._nodes[node].http}", method, path, body)

    def taken_for_granted(self) -> Broker:
        return Broker(nodes=3, prompt=False, slack_s=1.0)

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        from tests.cluster.links import isolate, sever

        cluster = self.cluster
        if kind == "kill":
            cluster.kill(node)
        elif kind == "restart":
            cluster.stop(node)
        elif kind == "freeze":
            cluster.freeze(node)
        elif kind == "isolate":
            isolate(cluster.links, node, cluster.names, hold=True)
        elif kind == "cut":
            other = next(name for name in self.names if name != node)
            sever(cluster.links, node, other, hold=True)
        elif kind == "clock":
            cluster.set_clock(node, detail.get("by_s", 3600))
        if kind not in ("transfer", "entry"):
            self._troubles.append((kind, node))

    def transfer(self, vhost: str, queue: str, node: str) -> None:
        self.cluster.mqctl(node, "cluster", "transfer-leader", "--vhost", vhost, queue, node)

    def plant(self, queue: str, node: str) -> None:
        planted_entries.plant(self.cluster._directory / node / "plant", queue, 1)

    def heal(self) -> None:
        from tests.cluster.links import isolate, sever

        cluster = self.cluster
        troubles, self._troubles = self._troubles, []
        for kind, node in troubles:
            if kind in ("kill", "restart"):
                cluster.restart(node)
            elif kind == "freeze":
                cluster.thaw(node)
            elif kind == "isolate":
                isolate(cluster.links, node, cluster.names)
            elif kind == "cut":
                sever(cluster.links, node, next(name for name in self.names if name != node))
            elif kind == "clock":
                cluster.set_clock(node, 0)
        if troubles:
            from tests.cluster.nodes import wait_for

            wait_for("all nodes see each other", cluster._formed)

    def alive(self) -> bool:
        return all(node.running for node in self.cluster._nodes.values())

    def log_tail(self) -> str:
        return "\n".join(f"-- {name}\n{self.cluster.log(name)[-1500:]}" for name in self.names)

    def close(self) -> None:
        self.cluster.close()


class Foreign:
    """Any broker behind a URL; no faults."""

    names: Sequence[str] = ("n1",)
    faults: frozenset[str] = frozenset()

    def __init__(self, amqp_url: str, http_url: str) -> None:
        from conformance_tests.broker import recognise

        self._amqp, self._http = amqp_url, http_url
        product, version = recognise(amqp_url)
        self.product = f"{product}-{version}".lower()

    def url(self, node: str) -> str:
        return self._amqp

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return request(self._http, method, path, body)

    def taken_for_granted(self) -> Broker:
        limit = None if self.product.startswith("rabbitmq-3") else 20
        return Broker(prompt=False, exact_counts=False, slack_s=0.5, delivery_limit=limit)

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        raise AssertionError("no faults here")

    def plant(self, queue: str, node: str) -> None:
        raise AssertionError("nothing is planted here")

    def heal(self) -> None:
        pass

    def alive(self) -> bool:
        return True

    def log_tail(self) -> str:
        return ""

    def close(self) -> None:
        pass
