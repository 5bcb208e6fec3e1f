"""A cluster of mqd.testing: faults of its nodes and links do what their names say, and heal."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from amqp_server.testing import Cluster, start_cluster
from conformance_tests.patience import patient
from tests.reliability.node import wait_until

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with start_cluster() as started:
        yield started


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    with nodes.vhost():
        yield nodes


def seen(cluster: Cluster, node: str) -> set[str]:
    """The nodes that this one reaches."""
    told = cluster[node].api("GET", "/api/cluster")
    return {each["name"] for each in told["nodes"] if each["running"]}


def channel(cluster: Cluster, node: str) -> pika.adapters.blocking_connection.BlockingChannel:
    connection = pika.BlockingConnection(patient(pika.URLParameters(cluster.url(node))))
    made = connection.channel()
    made.confirm_delivery()
    return made


def test_partitions(cluster: Cluster) -> None:
    cluster.partition("n3")
    wait_until("n3 is alone", lambda: seen(cluster, "n3") == {"n3"})
    wait_until("the others are two", lambda: seen(cluster, "n1") == seen(cluster, "n2") == {"n1", "n2"})
    cluster.heal_network()
    cluster.partition("n1", "n2", reset=True)
    wait_until("n3 is alone", lambda: seen(cluster, "n3") == {"n3"})
    cluster.heal()
    assert seen(cluster, "n3") == {"n1", "n2", "n3"}


def test_nodes(cluster: Cluster) -> None:
    before = channel(cluster, "n1")
    before.queue_declare("q", durable=True, arguments=QUORUM)
    before.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    urls = cluster.urls
    leader = cluster.leader("q")
    cluster.kill(leader)
    wait_until("another one leads", lambda: cluster.leader("q") is not leader)
    cluster.start(leader)
    cluster.wait_until_formed()
    assert cluster.urls == urls
    found = channel(cluster, leader.name).basic_get("q", auto_ack=True)
    assert found[2] == b"kept"


def test_the_next_test_finds_all_well(nodes: Cluster) -> None:
    with nodes.vhost():
        nodes.kill("n1")
        nodes.pause("n2")
        nodes.partition("n3")
    with nodes.vhost() as vhost:
        assert [seen(nodes, name) for name in ("n1", "n2", "n3")] == 3 * [{"n1", "n2", "n3"}]
        assert [each["name"] for each in nodes["n3"].api("GET", "/api/vhosts")] == ["/", vhost.name]
