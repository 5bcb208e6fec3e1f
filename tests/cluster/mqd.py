"""mqd on several nodes, each of which dials its peers through a proxy."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from amqp_server.cluster.membership.machines import machine_of, machines
from amqp_server.testing.relays import Relays
from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import free_port
from tests.cluster import planted, shifted_clock, troubled_mqd
from tests.cluster.links import Unsupported
from tests.cluster.nodes import Cluster, Member, wait_for
from tests.reliability.node import Node

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
#: The present version; tests can set its clock and have its queues fail.
# The tree comes last in the path: if mqd is installed compiled, that is the one to test.
_START = f"import sys; sys.path.append({str(ROOT)!r}); from {troubled_mqd.__name__} import main; raise SystemExit(main())"
TROUBLED = (programs.python(), "-P", "-c", _START)
#: The present interpreter, which is pure in `make test`: methods of a compiled class can't be replaced.
PURE = (sys.executable, "-P", "-c", _START)
#: Shorter than the time for which a node is frozen.
API_MAX_S = 3.0
#: Less than the default, because one of the faults is a small disk.
DISK_FLOOR_BYTES = 8 << 20
_LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()


class ApiFailed(Exception):
    """The management interface did not answer, or not as asked."""


class MqdCluster(Cluster):
    broker = "mqd"
    answers_vouch = True

    def __init__(
        self,
        names: Sequence[str] = ("n1", "n2", "n3"),
        *options: str,
        program: Sequence[str] = TROUBLED,
        workers: int | None = None,
    ) -> None:
        """`workers` of each node; unless it is given, as the environment says."""
        super().__init__(names)
        self._workers = workers or int(os.environ.get("MQD_WORKERS", "1"))
        self.has_guests = self._workers > 1
        self._program = list(program)
        self._options = options
        self._directory = Path(tempfile.mkdtemp(prefix="mqd-cluster-"))
        self._secret = self._directory / "secret"
        self._secret.write_text(secrets.token_hex(32))
        self._secret.chmod(0o600)
        self._proxies = self.links = Relays(PATIENCE_S)
        self._listen = {name: free_port() for name in names}
        self._frozen: set[str] = set()
        self._nodes = {name: self._make(name, names) for name in names}

    def _make(self, name: str, peers: Sequence[str]) -> Node:
        dialled = {
            peer: self._listen[peer] if peer == name else self._proxies.open(name, peer, self._listen[peer])
            for peer in peers
        }
        place = self._directory / name
        place.mkdir()
        shifted_clock.set_clock(place / "clock", 0)
        planted.plant(place / "plant", "", 0)
        node = Node(
            place,
            *("--node", name, "--cluster-secret-file", str(self._secret)),
            *("--disk-free-min-bytes", str(DISK_FLOOR_BYTES)),
            *("--peers", ",".join(f"{peer}={HOST}:{port}" for peer, port in dialled.items())),
            *self._options,
        )
        node.program = self._program
        node.environment = {
            shifted_clock.VARIABLE: str(place / "clock"),
            planted.VARIABLE: str(place / "plant"),
            "MQD_WORKERS": str(self._workers),
        }
        return node

    # -- processes -------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in self.names:
            self.launch(name)
        for name in self.names:
            self.ready(name)
        wait_for("all nodes see each other", self._formed, state=lambda: str(self._told()))

    def _formed(self) -> bool:
        return all(
            sum(bool(node.get("running")) for node in told.get("nodes", []))
            == len(self.names) * self._workers
            and told.get("majority")
            for told in self._told()
        )

    def _told(self) -> list[dict[str, Any]]:
        return [self._try("GET", name, "/api/cluster") or {} for name in self.names]

    def close(self) -> None:
        for name, node in self._nodes.items():
            self.thaw(name)
            node.kill()
        self.unmount()
        self._proxies.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def launch(self, name: str) -> None:
        self._nodes[name].launch()

    def ready(self, name: str) -> None:
        self._nodes[name].ready()

    def kill(self, name: str) -> None:
        self._nodes[name].kill()
        self._frozen.discard(name)

    def stop(self, name: str) -> None:
        code = self._nodes[name].stop()
        assert code == 0, f"{name} ended with {code} after SIGTERM:\n{self.log(name)[-2000:]}"

    def freeze(self, name: str) -> None:
        self._frozen.add(name)
        for pid in self._nodes[name].pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        if name in self._frozen:
            for pid in self._nodes[name].pids():
                os.kill(pid, signal.SIGCONT)
            self._frozen.discard(name)

    def port(self, name: str) -> int:
        return self._nodes[name].port

    def data(self, name: str) -> Path:
        return self._nodes[name].data

    def log(self, name: str) -> str:
        return self._nodes[name].log()

    def preload(self, library: Path, environment: Callable[[str], dict[str, str]]) -> None:
        for name, node in self._nodes.items():
            node.environment |= {"LD_PRELOAD": str(library)} | environment(name)

    def plant(self, name: str, queue: str, count: int) -> None:
        if ", compiled" in self.mqctl(name, "status"):
            raise Unsupported("nothing can be planted in a compiled mqd")
        planted.plant(self._directory / name / "plant", queue, count)

    def failed(self, name: str) -> dict[str, str]:
        rows = [row.split("\t") for row in self.mqctl(name, "-q", "list_failed").splitlines()]
        return {row[1]: row[3] for row in rows}

    def retry_failed(self, name: str, queue: str) -> None:
        self.mqctl(name, "retry_failed", queue)

    def run_as(self, name: str, program: Sequence[str]) -> None:
        self._nodes[name].program = list(program)

    def set_options(self, name: str, *options: str) -> None:
        """Start the node with these options besides those of all nodes, from its next start on."""
        self._nodes[name].set_more_options(*options)

    def set_clock(self, name: str, wrong_s: float) -> None:
        shifted_clock.set_clock(self._directory / name / "clock", wrong_s)

    # -- management ------------------------------------------------------------------------------------------

    def _api(self, method: str, name: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if not self._nodes[name].running or name in self._frozen:
            raise ApiFailed(f"{name} is not up")
        status, text = self.ask(method, name, path, body)
        if status >= 300:
            raise ApiFailed(f"{name}: {path}: {status} {text[:500]!r}")
        return json.loads(text) if text else None

    def ask(
        self, method: str, name: str, path: str, body: Any = None, max_s: float = API_MAX_S
    ) -> tuple[int, bytes]:
        """Return the status and the text of an answer. Raises ApiFailed if there is none."""
        connection = http.client.HTTPConnection(HOST, self._nodes[name].http, timeout=max_s)
        headers = {"Authorization": _LOGIN, "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiFailed(f"{name}: {path}: {error}") from error
        finally:
            connection.close()

    def is_ready(self, name: str) -> bool | None:
        try:
            self._api("GET", name, "/health/ready")
        except ApiFailed:
            return False
        return True

    def _try(self, method: str, name: str, path: str) -> Any:
        """Return None instead of a failure."""
        try:
            return self._api(method, name, path)
        except ApiFailed:
            return None

    def status(self, name: str) -> dict[str, Any]:
        """Return the cluster as a node sees it. Raises ApiFailed."""
        told: dict[str, Any] = self._api("GET", name, "/api/cluster")
        return told

    def queue(self, name: str, queue: str) -> dict[str, Any]:
        """Return a node's report on a quorum queue. Raises ApiFailed."""
        told: dict[str, Any] = self._api(
            "GET", name, f"/api/cluster/queues/%2F/{quote(queue, safe='')}?digest=true"
        )
        return told

    def row(self, name: str, queue: str) -> dict[str, Any]:
        """Return the row of one queue in the list of queues. Raises ApiFailed."""
        told: dict[str, Any] = self._api("GET", name, f"/api/queues/%2F/{quote(queue, safe='')}")
        return told

    def members(self, queue: str) -> list[Member]:
        """As each member reports it; the one with the highest term knows the leader best."""
        told = [(name, one) for name in self._nodes if (one := self._queue(name, queue))]
        if not told:
            return []
        _, latest = max(told, key=lambda pair: int(pair[1]["term"]))
        return [
            Member(name, machine_of(latest["leader"]) == name, True, int(one["applied"]), str(one["digest"]))
            for name, one in told
        ]

    def _queue(self, name: str, queue: str) -> Any:
        """Return a node's report on a queue that it is a member of."""
        told = self._try("GET", name, f"/api/cluster/queues/%2F/{quote(queue, safe='')}?digest=true")
        return told if told and "applied" in told else None

    def topology_leader(self) -> str | None:
        for name in self.names:
            told = self._try("GET", name, "/api/cluster")
            if told and told["topology"] and told["topology"]["leader"] == name:
                return name
        return None

    def depth(self, queue: str) -> tuple[int, int]:
        """As the leader reports it."""
        for name in self._nodes:
            told = self._queue(name, queue)
            if told and machine_of(told["leader"]) == name:
                return int(told["ready"]), int(told["unacked"])
        return -1, -1

    def transfer(self, queue: str, name: str) -> None:
        self.mqctl(name, "cluster", "transfer-leader", queue, name)
        wait_for(f"{name} leads {queue}", lambda: self.leader(queue) == name)

    # -- membership ------------------------------------------------------------------------------------------

    def grow(self) -> str:
        name = f"n{len(self._nodes) + 1}"
        while name in self._nodes:
            name += "x"
        self._listen[name] = free_port()
        self._nodes[name] = self._make(name, [*self.names, name])
        self.mqctl(self.names[0], "cluster", "join", name, f"{HOST}:{self._listen[name]}")
        self.restart(name)
        self.names = (*self.names, name)
        wait_for("the new node is seen", self._formed, state=lambda: str(self._told()))
        self.mqctl(self.names[0], "cluster", "grow", name)
        return name

    def join_again(self, name: str) -> None:
        """Start a node that has left, with an empty directory."""
        node = self._nodes[name]
        # It has ended by itself, and its pipes are still open.
        node.kill()
        shutil.rmtree(node.data)
        through = next(other for other in self.names if other != name)
        self.mqctl(through, "cluster", "join", name, f"{HOST}:{self._listen[name]}")
        self.restart(name)
        wait_for(f"{name} is seen", self._formed, state=lambda: str(self._told()))

    def shrink(self, name: str) -> None:
        through = self.names[0]
        self.mqctl(through, "cluster", "shrink", name)
        self.names = tuple(other for other in self.names if other != name)
        wait_for(f"{name} keeps no queue", lambda: not self._keeps(through, name))
        self.stop(name)
        wait_for(f"{name} is gone", lambda: not self._sees(through, name))
        self.mqctl(through, "cluster", "forget", name)
        del self._nodes[name]

    def leave_queues(self, name: str) -> None:
        self.mqctl(name, "cluster", "shrink", name)
        wait_for(f"{name} keeps no queue", lambda: not self._keeps(name, name))

    def join_queues(self, name: str) -> None:
        self.mqctl(name, "cluster", "grow", name)
        wait_for(f"{name} keeps queues", lambda: self._keeps(name, name))

    def set_alarm(self, name: str, *, raised: bool) -> None:
        limit = ("absolute", "1") if raised else ("0.6",)
        self.mqctl(name, "set_vm_memory_high_watermark", *limit)

    def _keeps(self, through: str, name: str) -> bool:
        queues = self._api("GET", through, "/api/cluster/queues")
        return any(name in machines(queue["members"]) for queue in queues)

    def _sees(self, through: str, name: str) -> bool:
        nodes = self._api("GET", through, "/api/cluster")["nodes"]
        return any(machine_of(node["name"]) == name and node["running"] for node in nodes)

    def mqctl(self, through: str, *arguments: str) -> str:
        return self._nodes[through].mqctl(*arguments)
