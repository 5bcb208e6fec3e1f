"""What became of messages, asked at every node of a cluster, before and after their leader is killed."""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties

from conformance_tests.expect import eventually
from conformance_tests.patience import open_connection
from conformance_tests.status_client import Asker
from tests.cluster.nodes import Cluster

pytestmark = pytest.mark.usefixtures("cluster")
ON: dict[str, Any] = {"x-message-status": True}
COUNT = 40


def url(cluster: Cluster, name: str) -> str:
    return f"amqp://guest:guest@127.0.0.1:{cluster.port(name)}/%2F"


def states(cluster: Cluster, name: str, queue: str) -> dict[str, str]:
    """Return what a node answers about each message."""
    with open_connection(url(cluster, name)) as connection:
        asker = Asker(connection.channel())
        return {f"m{number}": asker.state(f"m{number}", queue)[0] for number in range(COUNT)}


def work(cluster: Cluster, publisher: str, consumer: str, queue: str) -> dict[str, str]:
    """Publish through one node and settle through another; return what became of the messages."""
    expected: dict[str, str] = {}
    with open_connection(url(cluster, publisher)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(COUNT):
            channel.basic_publish("", queue, b"", BasicProperties(message_id=f"m{number}", delivery_mode=2))
            expected[f"m{number}"] = "queued"
            if number % 5 == 0:
                # At every node as soon as it is confirmed.
                with open_connection(url(cluster, consumer)) as other:
                    assert Asker(other.channel()).state(f"m{number}", queue) == ("queued", "")
    with open_connection(url(cluster, consumer)) as connection:
        channel = connection.channel()
        # A transaction's answer says that the acks are taken.
        channel.tx_select()
        for number in range(COUNT // 2):
            method, properties, _ = channel.basic_get(queue)
            assert method is not None
            if number % 3 == 0:
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)
            expected[properties.message_id] = "dropped" if number % 3 == 0 else "acknowledged"
        channel.tx_commit()
    return expected


def test_every_node_gives_the_same_answer_also_after_a_failover(cluster: Cluster) -> None:
    one, two, three = cluster.names
    with open_connection(url(cluster, one)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", **ON})
    expected = work(cluster, two, three, "q")
    for name in cluster.names:
        assert states(cluster, name, "q") == expected
    leader = cluster.leader("q")
    cluster.kill(leader)
    alive = [name for name in cluster.names if name != leader]
    for name in alive:
        assert states(cluster, name, "q") == expected
    cluster.launch(leader)
    cluster.ready(leader)
    assert states(cluster, leader, "q") == expected

    def equal() -> bool:
        members = cluster.members("q")
        known = [each for each in members if each.digest is not None]
        return len(known) == 3 and len({(each.applied, each.digest) for each in known}) == 1

    eventually(equal)


def test_a_node_that_stood_still_and_one_without_a_majority(cluster: Cluster) -> None:
    one, two, three = cluster.names
    with open_connection(url(cluster, one)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", **ON})
        channel.confirm_delivery()
        with open_connection(url(cluster, three)) as behind:
            asker = Asker(behind.channel())
            assert asker.state("m", "q") == ("unknown", "")
            cluster.freeze(three)
            try:
                channel.basic_publish("", "q", b"", BasicProperties(message_id="m", delivery_mode=2))
            finally:
                cluster.thaw(three)
            assert asker.state("m", "q") == ("queued", "")
    for name in (one, two):
        cluster.kill(name)
    with open_connection(url(cluster, three)) as connection:
        answer = Asker(connection.channel()).ask("m", "q")
        # It does not know, and says so.
        assert answer["queues"] == [] and "majority" in answer["failed"][0]["reason"]
    for name in (one, two):
        cluster.launch(name)
    for name in (one, two):
        cluster.ready(name)
    assert states(cluster, three, "q")["m0"] == "unknown"


def test_a_classic_queue_is_asked_at_its_home(cluster: Cluster) -> None:
    one, two, three = cluster.names
    with open_connection(url(cluster, one)) as connection:
        connection.channel().queue_declare("q", durable=True, arguments=ON)
    expected = work(cluster, two, three, "q")
    for name in cluster.names:
        assert states(cluster, name, "q") == expected
    cluster.kill(one)
    with open_connection(url(cluster, two)) as connection:
        answer = Asker(connection.channel()).ask("m1", "q")
        assert answer["queues"] == [] and answer["failed"][0]["queue"] == "q"
    cluster.launch(one)
    cluster.ready(one)
    for name in cluster.names:
        assert states(cluster, name, "q") == expected
