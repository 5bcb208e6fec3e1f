"""Requests of clients of every node while a fault lasts: they declare queues, and probes ask whether the node
is ready.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

from pamqp import commands

from tests.cluster.load import BROKEN, Judge
from tests.cluster.nodes import Cluster
from tests.reliability.client import ChannelClosed, Client

DECLARE_EVERY_S = 0.2
PROBE_EVERY_S = 0.05
JOIN_MAX_S = 30.0
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


class Questions:
    """A client that declares and deletes queues at each node, and a probe for all nodes."""

    def __init__(self, cluster: Cluster, judge: Judge, name: str) -> None:
        self._cluster = cluster
        self._judge = judge
        self._name = name
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._declare, node), daemon=True)
            for node in cluster.names
        ]
        self._threads.append(threading.Thread(target=self._guarded, args=(self._probe,), daemon=True))
        #: The time that each declare took, by node.
        self.declares: dict[str, list[float]] = {node: [] for node in cluster.names}
        #: The longest time in which some nodes said that they were ready, and others that they were not.
        self.differed_s = 0.0
        #: The last answers of the nodes.
        self.ready: dict[str, bool | None] = {}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(JOIN_MAX_S)
            if thread.is_alive():
                self._judge.fail(f"a declare, or a probe, was not answered within {JOIN_MAX_S:g} s")

    @property
    def longest_declare_s(self) -> float:
        return max((max(found, default=float("inf")) for found in self.declares.values()), default=0.0)

    def _guarded(self, ask: Any, *arguments: str) -> None:
        try:
            ask(*arguments)
        except BaseException as error:  # noqa: BLE001  it is told where the run is judged
            self._judge.fail(f"{ask.__name__} {arguments}: {type(error).__name__}: {error}")

    def _declare(self, node: str) -> None:
        count = 0
        while not self._stopping.is_set():
            try:
                with contextlib.closing(Client(self._cluster.port(node))) as client:
                    while not self._stopping.wait(DECLARE_EVERY_S):
                        count += 1
                        queue = f"{self._name}-{node}-{count}"
                        began = time.monotonic()
                        client.declare(queue, **QUORUM)
                        self.declares[node].append(time.monotonic() - began)
                        client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
            except (*BROKEN, ChannelClosed) as error:
                self._judge.fail(f"a declare at {node} failed: {error}")

    def _probe(self) -> None:
        differs_since: float | None = None
        while not self._stopping.wait(PROBE_EVERY_S):
            self.ready = {node: self._cluster.is_ready(node) for node in self._cluster.names}
            now = time.monotonic()
            if len(set(self.ready.values())) == 1:
                differs_since = None
                continue
            differs_since = differs_since or now
            self.differed_s = max(self.differed_s, now - differs_since)
