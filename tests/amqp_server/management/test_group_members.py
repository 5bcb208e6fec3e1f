"""The members of all groups: a node asks each other node once, however many groups there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from amqp_server.management.resources import groups
from tests.amqp_server.management.test_everywhere import Others, Two

pytestmark = pytest.mark.trio
GROUPS = 50
START = 7
Key = tuple[Any, ...]


class FakeGroup(SimpleNamespace):
    """A group as a node sees it; it has a member at each node."""

    node: str
    number: int
    name: str


def keeps(group: FakeGroup) -> bool:
    """The first node has no copy of the last ten groups."""
    return group.node != "n1" or group.number < GROUPS - 10


def leads(group: FakeGroup) -> bool:
    return group.node == "n2"


def members_of(_: object, group: FakeGroup) -> dict[Key, dict[str, Any]]:
    rows: dict[Key, dict[str, Any]] = {}
    for node in ("n1", "n2", "n3") if keeps(group) else ():
        here = f"client of {node}" if node == group.node else f"on node {node}"
        row = {"group": group.name, "vhost": "/", "consumer_tag": "t", "connection": here}
        rows[node, START, 1, 1, "t", 0] = row
    return rows


def connections_of(_: object, group: FakeGroup) -> dict[Key, str]:
    return {(group.node, START, 1, 1, "t", 0): f"client of {group.node}"}


class Counted(Others):
    def __init__(self, others: Others, asked: Counter[str]) -> None:
        super().__init__(others.nodes)
        self._asked = asked

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        self._asked[node] += 1
        return await super().ask(node, question)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Two, Counter[str]]:
    for replaced in (keeps, leads, members_of, connections_of):
        monkeypatch.setattr(groups, replaced.__name__, replaced)
    two, asked = Two(tmp_path), Counter[str]()
    for name, node in two.nodes.items():
        vhost = node.broker.vhost("/")
        for number in range(GROUPS):
            group = FakeGroup(node=name, number=number, name=f"g{number}", vhost=vhost)
            vhost.groups[group.name] = cast(Any, group)
        node.others = Counted(cast(Others, node.others), asked)
    return two, asked


async def get(two: Two, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(two.apis["n1"].app(requests_max=8), client=("127.0.0.1", 12345))
    login = httpx.BasicAuth("admin", "admin")
    async with httpx.AsyncClient(transport=transport, base_url="http://b/api/", auth=login) as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("path", "count_of_groups"),
    [("group-members", GROUPS), ("group-members/%2F", GROUPS), ("groups/%2F/g3/members", 1)],
)
async def test_each_other_node_is_asked_once(
    asked: tuple[Two, Counter[str]], path: str, count_of_groups: int
) -> None:
    two, count = asked
    answer = await get(two, path)
    assert count == {"n2": 1, "n3": 1}
    assert answer.headers["x-missing-nodes"] == "n3"
    rows = answer.json()
    assert Counter(row["connection"] for row in rows) == {
        "client of n1": count_of_groups,
        "client of n2": count_of_groups,
        # This node does not answer.
        "on node n3": count_of_groups,
    }
    assert len({(row["group"], row["connection"]) for row in rows}) == 3 * count_of_groups
    assert all("key" not in row for row in rows)


async def test_a_vhost_without_groups_has_no_members(asked: tuple[Two, Counter[str]]) -> None:
    two, _ = asked
    assert (await get(two, "group-members/other")).json() == []
    assert (await get(two, "groups/other/g3/members")).status_code == 404
