"""A node's counts of queues per node are right, whichever queues came, moved and went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.amqp_server.cluster.simulation.cluster import Cluster, by_hand
from tests.amqp_server.cluster.simulation.node import SimulatedNode


@pytest.fixture(autouse=True)
def hand() -> Iterator[None]:
    with by_hand():
        yield


def counted(node: SimulatedNode) -> tuple[dict[str, int], dict[str, int]]:
    placed = node.cluster.hosts._placed
    leaders, members = (
        {name: count for name, count in told.items() if count} for told in (placed.leaders, placed.members)
    )
    return leaders, members


def there(node: SimulatedNode) -> tuple[dict[str, int], dict[str, int]]:
    queues = list(node.broker.vhost("/").queues.values())
    return (
        dict(Counter(queue.record.leader for queue in queues)),
        dict(Counter(member for queue in queues for member in queue.members)),
    )


def test_counts_follow_what_comes_moves_and_goes() -> None:
    cluster = Cluster("abcd", "abcd")
    cluster.mend()
    cluster.settle()
    client = cluster.new_client(cluster.nodes["a"])
    for name in ("quorum/1", "quorum/2", "quorum/3", "two", "wide"):
        client.declare(name)
        cluster.wait_for(client)
    cluster.settle()
    for node in cluster.nodes.values():
        assert counted(node) == there(node)
    before = there(cluster.nodes["a"])
    client.delete("quorum/2")
    cluster.wait_for(client)
    queue = cluster.nodes["a"].broker.vhost("/").queues["quorum/1"]
    # The same call as in a move.
    moved = tuple(name for name in "abcd" if name != queue.members[0])
    for node in cluster.nodes.values():
        vhost = node.broker.vhost("/")
        vhost.set_members(vhost.queues["quorum/1"], moved, moved[0], queue.record.founders)
    for node in cluster.nodes.values():
        assert counted(node) == there(node) != before
