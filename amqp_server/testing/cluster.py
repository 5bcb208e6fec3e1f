"""A cluster for tests, with failures of its nodes and of the network between them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from amqp_server.testing.api import ApiError
from amqp_server.testing.broker import Broker, Vhost
from amqp_server.testing.process import HOST, StartFailed, held_port, port_of
from amqp_server.testing.relays import Relays

#: Time for the nodes to see each other, and for a queue to have a leader, s.
FORMED_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.02

#: A node, or its name.
Node = Broker | str


class Cluster:
    """Nodes n1, n2 and so on. Methods that change something wait until the change has happened."""

    def __init__(self, size: int = 3, **options: object) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="mqd-testing-"))
        secret = self._directory / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self._relays = Relays()
        names = [f"n{number + 1}" for number in range(size)]
        self._holders = {name: held_port() for name in names}
        self._paused: set[str] = set()
        #: Pairs of nodes that cannot reach each other.
        self._apart: set[tuple[str, str]] = set()
        self.nodes: list[Broker] = [
            Broker(
                self._directory / name,
                self._directory,
                name,
                **{"peers": self._peers(name), "cluster_secret_file": secret, **options},
            )
            for name in names
        ]
        #: The virtual host in `url`.
        self.vhost_name = "/"

    def _peers(self, dialler: str) -> list[str]:
        """The addresses at which one node dials all nodes: its own address directly, and the others through
        the proxy.
        """
        ports = {name: port_of(holder) for name, holder in self._holders.items()}
        return [
            f"{name}={HOST}:{port if name == dialler else self._relays.open(dialler, name, port)}"
            for name, port in ports.items()
        ]

    # -- which node, and where it is -------------------------------------------------------------------------

    def __getitem__(self, node: Node) -> Broker:
        """Return a node by its name."""
        if isinstance(node, Broker):
            return node
        for each in self.nodes:
            if each.name == node:
                return each
        raise KeyError(node)

    def __iter__(self) -> Iterator[Broker]:
        return iter(self.nodes)

    def url(self, node: Node = "n1") -> str:
        """The AMQP address of a node; in the fixture, with this test's virtual host."""
        return self[node].url(self.vhost_name)

    @property
    def urls(self) -> list[str]:
        return [self.url(node) for node in self.nodes]

    # -- nodes -----------------------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """End a node with SIGKILL, as in a crash."""
        broker = self[node]
        broker.kill()
        self._paused.discard(broker.name)

    def stop(self, node: Node) -> None:
        """Stop a node as an operator would: it hands over the groups that it leads."""
        broker = self[node]
        broker.stop()
        self._paused.discard(broker.name)

    def start(self, node: Node) -> None:
        """Start a node after `kill` or `stop`. Raises StartFailed."""
        self[node].start()

    def restart(self, node: Node) -> None:
        self.stop(node)
        self.start(node)

    def pause(self, node: Node) -> None:
        """Freeze a node (SIGSTOP): its connections stay open, but it does not answer."""
        broker = self[node]
        broker.pause()
        self._paused.add(broker.name)

    def resume(self, node: Node) -> None:
        broker = self[node]
        broker.resume()
        self._paused.discard(broker.name)

    # -- the network between them ----------------------------------------------------------------------------

    def partition(self, *nodes: Node, reset: bool = False) -> None:
        """Separate these nodes from all others, in both directions; clients still reach all nodes.

        The network is silent: nothing arrives and no side gets an error, as when packets are dropped. With
        `reset`, connections break at once.
        """
        names = {self[node].name for node in nodes}
        for one, two in combinations([node.name for node in self.nodes], 2):
            if (one in names) != (two in names):
                self._apart.add((one, two))
                self._set(one, two, **{"cut" if reset else "hold": True})

    def heal_network(self) -> None:
        """End all partitions."""
        for one, two in sorted(self._apart):
            self._set(one, two)
        self._apart.clear()

    def _set(self, one: str, two: str, **conditions: object) -> None:
        self._relays.set(one, two, **conditions)
        self._relays.set(two, one, **conditions)

    def heal(self) -> None:
        """Repair the cluster: no partition, and all nodes run and see each other. Raises StartFailed."""
        self.heal_network()
        for name in list(self._paused):
            self.resume(name)
        down = [node for node in self.nodes if not node.running]
        for node in down:
            node.launch()
        for node in down:
            node.ready()
        self.wait_until_formed()

    # -- what the nodes know ---------------------------------------------------------------------------------

    def wait_until_formed(self) -> None:
        """Wait until all running nodes see each other. Raises TimeoutError."""
        self._wait("the nodes do not see each other", self._formed)

    def _formed(self) -> bool:
        running = [node for node in self.nodes if node.running]
        names = {node.name for node in running}
        for node in running:
            told = node.api("GET", "/api/cluster")
            if (
                not told["majority"]
                or not {each["name"] for each in told["nodes"] if each["running"]} >= names
            ):
                return False
        return True

    def leader(self, queue: str, vhost: str | None = None) -> Broker:
        """Return the leader of a quorum queue, as soon as one of the reachable nodes says that it is the
        leader.

        Raises TimeoutError.
        """
        found: list[Broker] = []
        path = f"/api/cluster/queues/{quote(vhost or self.vhost_name, safe='')}/{quote(queue, safe='')}"

        def leads() -> bool:
            for node in self.nodes:
                if node.running and node.name not in self._paused:
                    told = {}
                    with suppress(ApiError, OSError):
                        told = node.api("GET", path)
                    if told.get("leader") == node.name:
                        found.append(node)
                        return True
            return False

        self._wait(f"nobody leads {queue}", leads)
        return found[0]

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + FORMED_TIMEOUT_S
        last: Exception | None = None
        while time.monotonic() < deadline:
            try:
                if holds():
                    return
            except (ApiError, OSError) as error:
                last = error
            time.sleep(LOOK_INTERVAL_S)
        raise TimeoutError(f"{what} within {FORMED_TIMEOUT_S:g} s{f': {last}' if last else ''}\n{self.log()}")

    @contextmanager
    def vhost(self, name: str = "test") -> Iterator[Vhost]:
        """A virtual host for the duration of a `with`, used by `url`. The cluster is repaired before and
        after it.
        """
        self.heal()
        vhost = self.nodes[0].make_vhost(name)
        self._wait("a virtual host is not on all nodes", lambda: self._is_everywhere(vhost))
        self.vhost_name = vhost.name
        try:
            yield vhost
        finally:
            self.vhost_name = "/"
            with suppress(StartFailed, TimeoutError):
                self.heal()
                self.nodes[0].delete_vhost(vhost)

    def _is_everywhere(self, vhost: Vhost) -> bool:
        path = f"/api/vhosts/{quote(vhost.name, safe='')}/permissions"
        return all(node.api("GET", path) for node in self.nodes)

    def log(self) -> str:
        """Return the logs of the nodes."""
        return "\n".join(f"--- {node.name}\n{node.log()}" for node in self.nodes)

    # -- beginning and end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all nodes; delete their data and release their ports."""
        for node in self.nodes:
            # Stopped in order, each node would hand over its groups to the next one. That is not needed any
            # more.
            node.kill()
        for node in self.nodes:
            node.close()
        for holder in self._holders.values():
            holder.close()
        self._relays.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_cluster(size: int = 3, **options: Any) -> Cluster:
    """Start nodes that form a cluster; `close`, or the end of our process, removes them and their data.

    `options` are those of mqd by the names in its TOML file, for each node. Raises StartFailed, TimeoutError.
    """
    cluster = Cluster(size, **options)
    try:
        cluster.heal()
    except BaseException:
        cluster.close()
        raise
    return cluster


__all__ = ["Cluster", "Node", "start_cluster"]
