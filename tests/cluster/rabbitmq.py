"""RabbitMQ instead of mqd: the same tests judge both, so that they test a cluster and not our idea of one."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.brokers import BrokerFailed
from benchmarks.rabbitmq_cluster import CALL_MAX_MS, RabbitNode, RabbitNodes
from tests.cluster.links import FilteredLinks
from tests.cluster.nodes import Cluster, Member

_STATUS = re.compile(
    r"<<\"Node Name\">>,'(?P<node>[^@']+)@[^']*'\},\{<<\"Raft State\">>,(?P<state>\w+)"
    r".*?<<\"Commit Index\">>,(?P<commit>\d+)"
)
_DEPTH = re.compile(r"\{messages_ready,(\d+)\},\{messages_unacknowledged,(\d+)\}")


class RabbitMQCluster(Cluster):
    broker = "rabbitmq"
    answers_vouch = False

    def __init__(self, names: Sequence[str] = ("n1", "n2", "n3")) -> None:
        super().__init__(names)
        self._nodes = RabbitNodes(names)
        self.links = self._filtered = FilteredLinks({node.name: node.address for node in self._nodes.nodes})
        self._frozen: set[str] = set()

    @property
    def tainted(self) -> bool:
        """After a partition Mnesia stays split until nodes are restarted."""
        return self._filtered.used

    def start(self) -> None:
        self._nodes.start()

    def close(self) -> None:
        self.links.close()
        for node in self._nodes.nodes:
            node.kill()
        self.unmount()
        self._nodes.close()

    def _node(self, name: str) -> RabbitNode:
        return self._nodes.nodes[self.names.index(name)]

    def launch(self, name: str) -> None:
        self._node(name).launch()

    def ready(self, name: str) -> None:
        self._node(name).ready()

    def kill(self, name: str) -> None:
        self._node(name).kill()
        self._frozen.discard(name)

    def stop(self, name: str) -> None:
        self._node(name).stop()

    def freeze(self, name: str) -> None:
        self._frozen.add(name)
        self._node(name).signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._node(name).signal(signal.SIGCONT)
        self._frozen.discard(name)

    def port(self, name: str) -> int:
        return self._node(name).port

    def data(self, name: str) -> Path:
        return self._node(name).data

    def log(self, name: str) -> str:
        logs = sorted((self._node(name).directory / "log").glob("*.log"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def preload(self, library: Path, environment: Callable[[str], dict[str, str]]) -> None:
        for node in self._nodes.nodes:
            node.environment = {"LD_PRELOAD": str(library)} | environment(node.name)

    def members(self, queue: str) -> list[Member]:
        """As reported by the node that knows most of them."""
        best: list[Member] = []
        for node in self._asked():
            with suppress(BrokerFailed):
                said = self._nodes.call(node, "rabbit_quorum_queue", "status", f'[<<"/">>,<<"{queue}">>]')
                found = [
                    Member(match["node"], match["state"] == "leader", True, int(match["commit"]), None)
                    for match in _STATUS.finditer(said)
                ]
                if any(member.leads for member in found) and len(found) > len(best):
                    best = found
        return best

    def depth(self, queue: str) -> tuple[int, int]:
        for node in self._asked():
            name = f'{{resource,<<"/">>,queue,<<"{queue}">>}}'
            ask = f"rpc:call('{node.erlang_name}', rabbit_amqqueue, "
            with suppress(BrokerFailed):
                said = self._nodes.ask(
                    f"{{ok, Q}} = {ask} lookup, [{name}], {CALL_MAX_MS}), "
                    f"{ask} info, [Q, [messages_ready, messages_unacknowledged]], {CALL_MAX_MS})."
                )
                if match := _DEPTH.search(said):
                    return int(match[1]), int(match[2])
        return -1, -1

    def _asked(self) -> list[RabbitNode]:
        return [node for node in self._nodes.nodes if node.running and node.name not in self._frozen]
