"""Queues that have failed: which users may see them and have the node try them again, and the health
check.
"""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.turns import Planted

from .conftest import Connect, ManagedNode

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("quiet")]

CHECK = "health/checks/failed-queues"


@pytest.fixture
def failed(node: ManagedNode) -> ManagedNode:
    """One queue of two has failed."""
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    for name in ("bad", "good"):
        peer.call(1, commands.Queue.Declare(queue=name, durable=True))
    queue = node.broker.vhost("/").queues["bad"]
    node.turn.run(queue.host_failed, Planted("a defect"))
    return node


async def test_it_is_listed_and_checked(connect: Connect, failed: ManagedNode) -> None:
    client = connect("watcher")
    for path in ("failed-queues", "failed-queues/%2F"):
        (row,) = (await client.get(path)).json()
        assert (row["vhost"], row["name"], row["reason"]) == ("/", "bad", "a defect")
    assert (await client.get("failed-queues/other")).json() == []
    answer = await client.get(CHECK)
    assert answer.status_code == 503
    assert answer.json()["queues"] == ["queue 'bad' in vhost '/': a defect"]


async def test_it_is_tried_again(connect: Connect, failed: ManagedNode) -> None:
    client = connect("admin")
    assert (await client.post("failed-queues/%2F/bad/retry", json={})).status_code == 204
    assert (await client.get("failed-queues")).json() == []
    assert (await client.get(CHECK)).json() == {"status": "ok"}
    for name in ("bad", "good", "none"):
        assert (await client.post(f"failed-queues/%2F/{name}/retry", json={})).status_code == 404


async def test_who_may(connect: Connect, failed: ManagedNode) -> None:
    assert (await connect("manager").get("failed-queues")).status_code == 401
    assert (await connect("watcher").post("failed-queues/%2F/bad/retry", json={})).status_code == 401
    assert [failure.queue.name for failure in failed.broker.failures.stopped()] == ["bad"]
