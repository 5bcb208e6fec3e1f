"""Which node leads after all nodes have started again, and how soon."""

from __future__ import annotations

import pytest

from amqp_server.broker.declared import operations
from tests.amqp_server.cluster.simulation.cluster import Cluster

pytestmark = pytest.mark.usefixtures("hand")

#: Fewer than the least election timeout of the simulated nodes.
SOON_TICKS = 3


def _queues(cluster: Cluster) -> dict[int, str]:
    """Declare some queues for each node to lead; return the nodes by queue."""
    client = cluster.new_client(cluster.nodes["a"])
    placed: dict[int, str] = {}
    for number in range(6):
        leader = "abc"[number % 3]
        name = f"quorum/{number}"
        client.declare(name)
        cluster.wait(lambda: client.asked is None)
        queue_id = client.queue_id(name)
        members = (leader, *(other for other in "abc" if other != leader))
        cluster.nodes["a"].cluster.replication.propose(
            operations.SetMembers("/", name, queue_id, members, leader)
        )
        placed[queue_id] = leader
    cluster.settle()
    return placed


def _leaders(cluster: Cluster, queues: dict[int, str]) -> dict[int, str]:
    found = {queue_id: cluster.leading(queue_id) for queue_id in queues}
    return {queue_id: group.replicas.node for queue_id, group in found.items() if group is not None}


def _ticks(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        for node in cluster.running:
            cluster.tick(node)
        cluster.work_off()


def _begun_again(names: str) -> tuple[Cluster, dict[int, str]]:
    """All nodes crash; then these start again and see each other."""
    cluster = Cluster("abc", "abc")
    cluster.mend()
    cluster.settle()
    queues = _queues(cluster)
    cluster.doubt_all()
    for node in cluster.nodes.values():
        cluster.crash(node, written=True)
    for name in names:
        cluster.start(cluster.nodes[name])
    cluster.connect_all()
    cluster.work_off()
    return cluster, queues


def test_leaders_are_where_they_were_before_an_election_timeout_is_over() -> None:
    cluster, queues = _begun_again("abc")
    _ticks(cluster, SOON_TICKS)
    assert _leaders(cluster, queues) == queues
    topology = cluster.leading()
    assert topology is not None and topology.replicas.node == "a"
    cluster.settle()
    assert _leaders(cluster, queues) == queues


def test_what_a_missing_node_led_is_led_by_others_after_an_election_timeout() -> None:
    cluster, queues = _begun_again("bc")
    _ticks(cluster, SOON_TICKS)
    there = {queue_id: name for queue_id, name in queues.items() if name != "a"}
    assert _leaders(cluster, queues) == there
    _ticks(cluster, 30)
    assert _leaders(cluster, queues).keys() == queues.keys()
    topology = cluster.leading()
    assert topology is not None and topology.replicas.node in "bc"
