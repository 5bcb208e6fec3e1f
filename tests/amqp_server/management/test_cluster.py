"""The routes of the cluster: which users may read and change what, and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from amqp_server.errors import NotFound, PreconditionFailed, Unavailable
from quorum_queue.cluster.snapshots.lost_entries import GivenUp

from .conftest import Connect, ManagedNode

pytestmark = pytest.mark.trio

CHANGES = [
    ("POST", "cluster/nodes", {"name": "n4", "address": "h:1"}),
    ("DELETE", "cluster/nodes/n3", None),
    ("POST", "cluster/nodes/n4/grow", {}),
    ("POST", "cluster/nodes/n4/shrink", {}),
    ("POST", "cluster/rebalance", {}),
    ("PUT", "cluster/queues/%2F/q/leader", {"node": "n2"}),
    ("POST", "cluster/queues/%2F/q/accept-loss", {}),
    ("POST", "cluster/topology/accept-loss", {}),
]


class FakeCluster:
    """Stands in for Administration; notes the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.refuses: Exception | None = None
        self.missed: list[str] = []

    def leaders(self) -> Iterator[str]:
        return iter(("n1", "n2"))

    def status(self, leaders: Iterable[str]) -> dict[str, Any]:
        assert list(leaders) == ["n1", "n2"]
        return {"node": "n1", "majority": not self.missed}

    def queues(self, vhosts: Iterable[str]) -> Iterator[dict[str, Any] | None]:
        for vhost in sorted(vhosts):
            yield {"vhost": vhost}
            yield None

    def queue(self, vhost: str, name: str, *, digest: bool = False) -> dict[str, Any]:
        if name != "q":
            raise NotFound(f"no quorum queue '{name}' in vhost '{vhost}'")
        return {"vhost": vhost, "name": name} | ({"digest": "ab"} if digest else {})

    def other_workers(self) -> list[str]:
        return []

    def workers_of(self, node: str) -> list[str]:
        return [node] if node == "n1" else []

    def other_workers_with(self, vhost: str, name: str) -> list[str]:
        return []

    def online(self, members: Iterable[str]) -> list[str]:
        return []

    def obstacle(self) -> str:
        return "no majority of the cluster's nodes is reachable" if self.missed else ""

    def critical(self) -> Iterator[str | None]:
        yield None
        yield from self.missed

    def _ask(self, *what: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append(what)

    async def join(self, name: str, address: str) -> None:
        self._ask("join", name, address)

    async def forget(self, name: str) -> None:
        self._ask("forget", name)

    async def grow(self, name: str, vhosts: Iterable[str]) -> int:
        self._ask("grow", name, *vhosts)
        return 3

    async def shrink(self, name: str) -> int:
        self._ask("shrink", name)
        return 2

    async def transfer_leader(self, vhost: str, name: str, to: str) -> None:
        self._ask("transfer", vhost, name, to)

    async def accept_loss(self, vhost: str, name: str) -> GivenUp:
        self._ask("accept loss", vhost, name)
        return GivenUp(4, ("n2",))

    async def accept_topology_loss(self) -> GivenUp:
        self._ask("accept topology loss")
        return GivenUp(1, ())

    async def rebalance(self) -> int:
        self._ask("rebalance")
        return 1


@pytest.fixture
def cluster(node: ManagedNode) -> FakeCluster:
    made = FakeCluster()
    node.administration = made
    return made


async def test_a_node_that_stands_alone_says_so(connect: Connect) -> None:
    client = connect("admin")
    for method, path, body in [("GET", "cluster", None), ("GET", "cluster/queues", None), *CHANGES]:
        answer = await client.request(method, path, json=body)
        assert answer.status_code == 404
        assert "stands alone" in answer.json()["reason"]
    assert (await client.get("health/checks/node-is-quorum-critical")).json() == {
        "status": "ok",
        "reason": "single node cluster",
    }


async def test_changes_are_for_administrators(connect: Connect, cluster: FakeCluster) -> None:
    watcher, admin = connect("watcher"), connect("admin")
    assert (await connect("manager").get("cluster")).status_code == 401
    assert (await watcher.get("cluster")).json() == {"node": "n1", "majority": True}
    # A digest goes over all messages in one step: only tests ask for it.
    assert (await watcher.get("cluster/queues/%2F/q")).json() == {"vhost": "/", "name": "q"}
    told = (await watcher.get("cluster/queues/%2F/q?digest=true")).json()
    assert told == {"vhost": "/", "name": "q", "digest": "ab"}
    assert (await watcher.get("cluster/queues/%2F/none")).status_code == 404
    for method, path, body in CHANGES:
        assert (await watcher.request(method, path, json=body)).status_code == 401
    assert cluster.asked == []
    answers = [await admin.request(method, path, json=body) for method, path, body in CHANGES]
    assert [answer.status_code for answer in answers] == [204, 204, 200, 200, 200, 204, 200, 200]
    assert answers[6].json() == {"entries": 4, "members": ["n2"]}
    assert answers[7].json() == {"entries": 1, "members": []}
    assert [answer.json() for answer in answers[2:5]] == [{"queues": 3}, {"queues": 2}, {"queues": 1}]
    assert cluster.asked == [
        ("join", "n4", "h:1"),
        ("forget", "n3"),
        ("grow", "n4", *cluster.asked[2][2:]),
        ("shrink", "n4"),
        ("rebalance",),
        ("transfer", "/", "q", "n2"),
        ("accept loss", "/", "q"),
        ("accept topology loss",),
    ]
    assert "/" in cluster.asked[2][2:]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(NotFound("no node"), 404), (PreconditionFailed("first this"), 400), (Unavailable("not now"), 503)],
)
async def test_what_is_refused(
    connect: Connect, cluster: FakeCluster, refusal: Exception, status: int
) -> None:
    cluster.refuses = refusal
    for method, path, body in CHANGES:
        answer = await connect("admin").request(method, path, json=body)
        assert answer.status_code == status
        assert str(refusal) in answer.json()["reason"]


async def test_what_is_not_asked_right(connect: Connect, cluster: FakeCluster) -> None:
    client = connect("admin")
    bodies: list[object] = [{}, {"name": "n4"}, {"name": 4, "address": "h:1"}, []]
    for body in bodies:
        assert (await client.post("cluster/nodes", json=body)).status_code == 400
    assert (await client.put("cluster/queues/%2F/q/leader", json={})).status_code == 400
    assert cluster.asked == []


async def test_who_would_be_missed(connect: Connect, cluster: FakeCluster) -> None:
    cluster.missed = ["queue 'q' in vhost '/'"]
    answer = await connect("manager").get("health/checks/node-is-quorum-critical")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "failed",
        "reason": "There would be queues without a majority if this node were stopped",
        "queues": ["queue 'q' in vhost '/'"],
    }
