"""What an alarm of one node does to publishers on the others: they wait before they publish to queues that
need that node, and notice nothing else.
"""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.amqp_server.cluster.simulation.at_rest import check_at_rest
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")


def published(scene: Scene, client: Client, name: str) -> bool:
    """Publish, and return whether the message is confirmed soon."""
    client.publish(name, count=1)
    scene.work_off()
    scene.ticks(3)
    return not client.unconfirmed


def blocked(client: Client) -> bool:
    return client.session.incoming.blocked


@pytest.mark.parametrize("name", ["classic", "transient", "auto"])
def test_a_publisher_waits_for_the_home_of_a_classic_queue(name: str) -> None:
    scene = Scene()
    at_a, at_b, other = scene.client("a"), scene.client("b"), scene.client("b")
    queue_id = scene.declare(at_a, name)
    scene.declare(other, "default")
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    assert not published(scene, at_b, name)
    assert blocked(at_b)
    host = scene.nodes["a"].cluster.hosts.host_of(queue_id)
    assert host is not None and host.ready_count == 0, "the message is kept by the client's own node"
    # Who publishes elsewhere notices nothing.
    assert published(scene, other, "default")
    assert not blocked(other)
    scene.nodes["a"].set_alarm(False)
    scene.wait(lambda: not at_b.unconfirmed)
    assert not blocked(at_b)
    assert host.ready_count == 1
    scene.settle()
    check_at_rest(scene)


def test_a_publisher_goes_on_while_a_majority_of_the_members_has_no_alarm() -> None:
    scene = Scene()
    at_a, at_c = scene.client("a"), scene.client("c")
    scene.place(at_a, "quorum/q", "abc")
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    assert published(scene, at_c, "quorum/q")
    scene.nodes["b"].set_alarm(True)
    scene.work_off()
    assert not published(scene, at_c, "quorum/q")
    assert blocked(at_c)
    scene.nodes["a"].set_alarm(False)
    scene.wait(lambda: not at_c.unconfirmed)
    assert not blocked(at_c)
    scene.nodes["b"].set_alarm(False)
    scene.settle()
    check_at_rest(scene)


def test_a_transaction_waits_too_and_is_then_done() -> None:
    scene = Scene()
    at_a = scene.client("a")
    queue_id = scene.declare(at_a, "classic")
    at_b = scene.new_client(scene.nodes["b"], transactional=True)
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    at_b.publish("classic", count=2)
    at_b.commit()
    scene.ticks(3)
    assert blocked(at_b)
    assert at_b.asked is not None
    scene.nodes["a"].set_alarm(False)
    scene.wait_for(at_b)
    host = scene.nodes["a"].cluster.hosts.host_of(queue_id)
    assert host is not None and host.ready_count == 2
    scene.settle()
    check_at_rest(scene)


def test_an_alarm_ends_for_others_when_its_node_is_down() -> None:
    """Its classic queues then refuse messages, as they do without an alarm."""
    scene = Scene()
    at_a, at_b = scene.client("a"), scene.client("b")
    scene.declare(at_a, "classic")
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    assert not published(scene, at_b, "classic")
    scene.crash(scene.nodes["a"])
    scene.wait(lambda: not at_b.unconfirmed)
    assert at_b.nacked
    assert not blocked(at_b)
    assert not scene.nodes["b"].broker.alarms.elsewhere
    scene.finish()


def test_a_node_with_a_new_link_learns_of_an_alarm() -> None:
    scene = Scene()
    at_a, at_b = scene.client("a"), scene.client("b")
    scene.declare(at_a, "classic")
    scene.cut("a", "b")
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    scene.network.blocked.clear()
    scene.connect("a", "b")
    scene.settle()
    assert scene.nodes["b"].broker.alarms.elsewhere == {"a": "low on memory"}
    assert not published(scene, at_b, "classic")
    scene.nodes["a"].set_alarm(False)
    scene.wait(lambda: not at_b.unconfirmed)
    scene.finish()


def test_a_consumer_of_the_home_is_served_during_its_alarm() -> None:
    """Consuming ends most alarms."""
    scene = Scene()
    at_a, at_b = scene.client("a"), scene.client("b")
    scene.declare(at_a, "classic")
    scene.publish(at_a, "classic")
    scene.nodes["a"].set_alarm(True)
    scene.work_off()
    at_b.consume("classic")
    scene.wait_for(at_b)
    scene.wait(lambda: bool(at_b.received))
    at_b.send(commands.Basic.Ack(delivery_tag=0, multiple=True))
    at_b.unacked.clear()
    assert not blocked(at_b)
    scene.nodes["a"].set_alarm(False)
    scene.settle()
