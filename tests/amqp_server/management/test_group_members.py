"""The members of all groups: a node asks each other node once, however many groups there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.amqp_server.management.test_everywhere import Others, Two

pytestmark = pytest.mark.trio
GROUPS = 50
START = 7
Key = tuple[Any, ...]


class Groups:
    """One of two nodes' view of this many groups, each with a member at both nodes. See
    managed_groups.ManagedGroups.
    """

    def __init__(self, node: str, kept: int = GROUPS) -> None:
        self._node = node
        self._kept = kept
        self._groups = [
            SimpleNamespace(name=f"g{number}", vhost=SimpleNamespace(name="/"), number=number)
            for number in range(GROUPS)
        ]

    def each(self, vhost: str) -> list[Any]:
        return self._groups if vhost == "/" else []

    def named(self, vhost: str, name: str) -> Any:
        return next((each for each in self.each(vhost) if each.name == name), None)

    def keeps(self, queue: Any) -> bool:
        return bool(queue.number < self._kept)

    def leads(self, queue: Any) -> bool:
        return self._node == "n2"

    def members(self, queue: Any) -> dict[Key, dict[str, Any]]:
        if not self.keeps(queue):
            return {}
        rows: dict[Key, dict[str, Any]] = {}
        for node in ("n1", "n2", "n3"):
            here = f"client of {node}" if node == self._node else f"on node {node}"
            row = {"group": queue.name, "vhost": "/", "consumer_tag": "t", "connection": here}
            rows[node, START, 1, 1, "t", 0] = row
        return rows

    def connections(self, queue: Any) -> dict[Key, str]:
        return {(self._node, START, 1, 1, "t", 0): f"client of {self._node}"}


class Counted(Others):
    def __init__(self, others: Others, asked: Counter[str]) -> None:
        super().__init__(others.nodes)
        self._asked = asked

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        self._asked[node] += 1
        return await super().ask(node, question)


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Two, Counter[str]]:
    two, asked = Two(tmp_path), Counter[str]()
    for name, broker in two.brokers.items():
        node = two.nodes[name]
        # The first node has no copy of the last ten groups.
        broker.groups = cast(Any, Groups(name, GROUPS - 10 if name == "n1" else GROUPS))
        node.others = Counted(cast(Others, node.others), asked)
    return two, asked


async def get(two: Two, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(two.apis["n1"].app(requests_max=8), client=("127.0.0.1", 12345))
    login = httpx.BasicAuth("admin", "admin")
    async with httpx.AsyncClient(transport=transport, base_url="http://b/api/", auth=login) as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("path", "groups"),
    [("group-members", GROUPS), ("group-members/%2F", GROUPS), ("groups/%2F/g3/members", 1)],
)
async def test_each_other_node_is_asked_once(asked: tuple[Two, Counter[str]], path: str, groups: int) -> None:
    two, count = asked
    answer = await get(two, path)
    assert count == {"n2": 1, "n3": 1}
    assert answer.headers["x-missing-nodes"] == "n3"
    rows = answer.json()
    assert Counter(row["connection"] for row in rows) == {
        "client of n1": groups,
        "client of n2": groups,
        # This node does not answer.
        "on node n3": groups,
    }
    assert len({(row["group"], row["connection"]) for row in rows}) == 3 * groups
    assert all("key" not in row for row in rows)


async def test_a_vhost_without_groups_has_no_members(asked: tuple[Two, Counter[str]]) -> None:
    two, _ = asked
    assert (await get(two, "group-members/other")).json() == []
    assert (await get(two, "groups/other/g3/members")).status_code == 404
