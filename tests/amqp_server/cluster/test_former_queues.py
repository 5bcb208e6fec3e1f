"""A node that starts again never serves the transient and exclusive queues of its earlier starts: not to its
own clients, not to those of other nodes, and not to what routes there.
"""

from __future__ import annotations

import pytest
from pamqp import commands

from amqp_server.cluster.maintenance import Maintenance
from quorum_queue.cluster.queues.remote_host import RemoteHost
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

FORMER = "transient", "own"


def _scene(bound: str = "") -> Scene:
    """Return a cluster in which node c has just started again. It had a transient and an exclusive queue."""
    scene = Scene()
    client = scene.client("c")
    for name in FORMER:
        scene.declare(client, name)
    if bound:
        client.ask("bind", "", commands.Queue.Bind(queue=bound, exchange="amq.fanout", routing_key=""))
        scene.wait_for(client)
    scene.settle()
    scene.crash(scene.nodes["c"], written=True)
    scene.ticks(2)
    scene.start(scene.nodes["c"])
    return scene


def _link(scene: Scene, one: str, two: str) -> None:
    """Let the link come up and nothing else arrive."""
    scene.connect(one, two)
    node = scene.nodes[one]
    for _ in range(100):
        if two in node.mesh.connected():
            return
        for place in scene.network.places():
            scene.network.go_on(*place, 1)
    raise AssertionError("there is no link")


def _refused(scene: Scene, client: Client, name: str) -> str:
    """Return the error of a passive declare."""
    client.ask("declare", name, commands.Queue.Declare(queue=name, passive=True))
    scene.wait(lambda: bool(client.refusals))
    return client.refusals.pop()


def test_when_the_node_serves_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _scene()
    node = scene.nodes["c"]
    scene.connect_all()
    # The topology's leader looks after the nodes only now and then.
    monkeypatch.setattr(Maintenance, "look", lambda self: None)
    for _ in range(200):
        for each in scene.running:
            scene.tick(each)
            for _ in range(20):
                if node.serving:
                    break
                scene.step_disk(each)
                for place in scene.network.places():
                    if place in scene.network.places() and not node.serving:
                        scene.network.go_on(*place, 1)
            if node.serving:
                assert not set(FORMER) & set(node.broker.vhost("/").queues)
                client = scene.client("c")
                for name in FORMER:
                    assert _refused(scene, client, name) == f"NOT_FOUND - no queue '{name}' in vhost '/'"
                monkeypatch.undo()
                scene.finish()
                return
    raise AssertionError("the node does not serve")


@pytest.mark.parametrize("name", FORMER)
def test_until_the_topology_knows_they_are_not_served_to_other_nodes(name: str) -> None:
    scene = _scene()
    client = scene.client("b")
    _link(scene, "b", "c")
    assert name in scene.nodes["b"].broker.vhost("/").queues
    client.ask("declare", name, commands.Queue.Declare(queue=name, passive=True))
    scene.nodes["b"].end_turn()
    client.collect()
    # At once, because another start of its node than this one had it.
    assert [text for text in client.refusals if text.startswith("NOT_FOUND")], client.refusals
    scene.finish()


def test_what_is_routed_to_them_is_refused_while_they_are_in_the_topology() -> None:
    scene = _scene(bound="transient")
    client = scene.client("b")
    _link(scene, "b", "c")
    client.publish("transient")
    sent = list(client.unconfirmed)
    scene.wait(lambda: not client.unconfirmed)
    assert sent
    assert len(client.nacked) == len(sent), "it was confirmed, and is lost"
    scene.finish()


def test_the_node_itself_has_no_place_for_them() -> None:
    """Dead letters of its durable queues are not taken, and then lost with the queue."""
    scene = _scene()
    queue = scene.nodes["c"].broker.vhost("/").queues["transient"]
    assert isinstance(queue.host, RemoteHost)
    assert scene.nodes["c"].broker.hosts.absent_home(queue) == "c"
    assert scene.nodes["c"].cluster.hosts.host_of(queue.queue_id) is None
    scene.finish()
