"""Consumer groups on three nodes. RabbitMQ has none, so there are only figures of mqd."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from ..brokers import Broker, Mqd
from ..client import HOST, Connection, Unexpected
from ..clusters import Cluster, MqdCluster
from ..frames import message
from ..pump import Pace
from ..settled import Settled
from ..streams import properties
from .cluster import ClusterScenario
from .group import GROUP, Rebalance, rebalanced
from .scenario import Figure, Figures, Scenario, mqd_at_most
from .stream import BODY_BYTES, STREAM, append, hang_up

GROUPS, STREAMS = 1_000, 100
#: Messages of each stream, and those of them that a member holds.
MESSAGES, HELD = 10, 5
LISTS = 5
LIST_S = 60.0
LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()


class ClusterGroupScenario(ClusterScenario):
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return super().run(broker, pace) if isinstance(broker, MqdCluster) else {}


class ClusterRebalance(ClusterGroupScenario):
    name = "cluster-group-rebalance"
    title = "three nodes: " + Rebalance.title
    figures = Rebalance.figures

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        return rebalanced(cluster.ports)


class GroupsListed(ClusterGroupScenario):
    name = "groups-listed"
    title = "three nodes: 1,000 groups with a member each (mqd only), all of them and all of their members are listed"
    figures = (
        Figure("http_s", "s, two HTTP requests", mqd_at_most(1)),
        Figure("mqctl_s", "s, list_groups and list_group_members", mqd_at_most(1)),
    )
    fresh = True
    rounds = 1

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        if not isinstance(cluster, MqdCluster):
            raise TypeError(f"{self.name} is for mqd")
        groups = [f"{GROUP}-{number:04}" for number in range(max(int(GROUPS * pace.share), STREAMS))]
        streams = [f"{STREAM}-{number:04}" for number in range(STREAMS)]
        with ExitStack() as opened:
            declaring = [opened.enter_context(Connection(port)) for port in cluster.ports]
            for number, stream in enumerate(streams):
                declaring[number % len(declaring)].queue(stream, durable=True, **{"x-queue-type": "stream"})
            _fill(declaring[0], streams)
            members: list[Connection] = []
            for number, group in enumerate(groups):
                arguments = {
                    "x-queue-type": "stream-group",
                    "x-stream": streams[number % STREAMS],
                    "x-stream-offset": "first",
                }
                declaring[number % len(declaring)].queue(group, durable=True, **arguments)
                port = cluster.ports[(number + 1) % len(cluster.ports)]
                members.append(opened.enter_context(Connection(port)))
                members[-1].consume(group, HELD)
            for member in members:
                for _ in range(HELD):
                    member.delivery()
            http_s, mqctl_s = [], []
            for _ in range(LISTS):
                began = time.perf_counter()
                found = [_get(cluster.http_ports[0], path) for path in ("/api/groups", "/api/group-members")]
                http_s.append(time.perf_counter() - began)
                _check(groups, *found)
                began = time.perf_counter()
                lines = [
                    _mqctl(cluster.http_ports[0], name) for name in ("list_groups", "list_group_members")
                ]
                mqctl_s.append(time.perf_counter() - began)
                if [len(each) for each in lines] != [len(groups)] * 2:
                    raise Unexpected(f"mqctl tells {[len(each) for each in lines]} lines")
            for member in members:
                hang_up(member)
            for group in groups:
                declaring[0].delete_queue(group)
            for stream in streams:
                declaring[0].delete_queue(stream)
        return {"http_s": median(http_s), "mqctl_s": median(mqctl_s)}


def _fill(connection: Connection, streams: Sequence[str]) -> None:
    connection.confirms()
    settled = Settled(len(streams) * MESSAGES)
    for number, stream in enumerate(streams, 1):
        wire = message("", stream, b"b" * BODY_BYTES, properties(persistent=True))
        append(connection, settled, number * MESSAGES, [wire])


def _check(groups: Sequence[str], listed: list[dict[str, Any]], members: list[dict[str, Any]]) -> None:
    if {each["name"] for each in listed} != set(groups) or {each["group"] for each in members} != set(groups):
        raise Unexpected(f"{len(listed)} groups and {len(members)} members are listed")
    for each in listed:
        if (each["messages"], each["messages_unacknowledged"]) != (MESSAGES, HELD):
            raise Unexpected(f"a group is told as {each}")
    for each in members:
        if HOST not in each["connection"]:
            raise Unexpected(f"a member is told as {each}")


def _get(port: int, path: str) -> Any:
    asking = http.client.HTTPConnection(HOST, port, timeout=LIST_S)
    try:
        asking.request("GET", path, headers={"authorization": LOGIN})
        answer = asking.getresponse()
        text = answer.read()
    finally:
        asking.close()
    if answer.status != 200:
        raise Unexpected(f"{path} gives {answer.status}")
    return json.loads(text)


def _mqctl(port: int, command: str) -> list[str]:
    program = str(Mqd.path().parent / "mqctl")
    done = subprocess.run(
        [program, "--url", f"http://{HOST}:{port}", "-q", command],
        check=True,
        capture_output=True,
        text=True,
        timeout=LIST_S,
    )
    return done.stdout.splitlines()


CLUSTER_GROUP_SCENARIOS: tuple[Scenario, ...] = (ClusterRebalance(), GroupsListed())
