"""The brokers that get the requests: one, or three of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.node import Node, command

#: A random shovel connects to nothing; wrong logins are made on purpose, and no request must wait for that.
OPTIONS = (
    *("--disk-free-min-bytes", "0", "--log-level", "warning", "--shovel-hosts", "127.0.0.1"),
    *("--login-failures-free", "1000000"),
)


class Nodes(Protocol):
    def each(self) -> Sequence[Node]: ...

    def node(self, name: str) -> Node: ...

    def formed(self) -> None:
        """Wait until all nodes run and see each other. Raises AssertionError."""

    def kill(self, name: str) -> None: ...

    def freeze(self, name: str) -> None: ...

    def thaw(self, name: str) -> None: ...


class One:
    """A node that stands alone; this part of the run causes no faults."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def each(self) -> Sequence[Node]:
        return [self._node]

    def node(self, name: str) -> Node:
        return self._node

    def formed(self) -> None:
        assert self._node.running, "the node has ended"

    def kill(self, name: str) -> None:
        raise NotImplementedError

    freeze = thaw = kill


class Three(MqdCluster):
    def __init__(self) -> None:
        super().__init__(("n1", "n2", "n3"), *OPTIONS, program=[command("mqd")])

    def each(self) -> Sequence[Node]:
        return list(self._nodes.values())

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def formed(self) -> None:
        for name in self.names:
            if not self.node(name).running:
                self.restart(name)
        wait_for("all nodes see each other", self._formed, state=lambda: str(self._told()))


@contextmanager
def running(count: int, directory: Path) -> Iterator[Nodes]:
    if count == 1:
        with Node(directory, *OPTIONS) as node:
            yield One(node)
        return
    with Three() as cluster:
        yield cluster
