"""A node hears of a queue later than another node whose clients use the queue already: their messages wait
until it does.
"""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from quorum_queue.cluster import frames
from quorum_queue.cluster.queues.guests import Guests
from quorum_queue.cluster.queues.undeclared import UndeclaredQueues
from quorum_queue.machine.entries import Batch, encode_batch
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

QUEUE = "classic"


def behind(scene: Scene) -> None:
    """c declares a queue of its own. The others learn of it, and c does not yet."""
    scene.lead("a")
    scene.network.blocked["a", "c"] = None
    scene.client("c").declare(QUEUE)
    scene.nodes["c"].end_turn()
    for _ in range(4):
        scene.work_off()
    assert QUEUE in scene.nodes["b"].broker.vhosts["/"].queues
    assert QUEUE not in scene.nodes["c"].broker.vhosts["/"].queues


def go_on(scene: Scene) -> None:
    scene.nodes["b"].end_turn()
    scene.work_off()
    assert QUEUE not in scene.nodes["c"].broker.vhosts["/"].queues
    scene.network.blocked.clear()
    scene.settle()


def taken(scene: Scene, client: Client) -> list[bytes]:
    client.get(QUEUE)
    scene.wait_for(client)
    return client.received


@pytest.mark.parametrize("transactional", [False, True])
def test_publishes_wait_for_the_declaration(transactional: bool) -> None:
    scene = Scene()
    client = scene.new_client(scene.nodes["b"], transactional=transactional)
    scene.settle()
    behind(scene)
    client.publish(QUEUE, 1)
    if transactional:
        client.commit()
    go_on(scene)
    assert (client.nacked, client.refusals) == ([], [])
    assert len(taken(scene, scene.client("a"))) == 1


def test_a_consumer_waits_for_the_declaration() -> None:
    scene = Scene()
    client = scene.client("b")
    scene.settle()
    behind(scene)
    client.consume(QUEUE)
    go_on(scene)
    assert client.refusals == [] and client.asked is None
    scene.publish(scene.client("a"), QUEUE)
    scene.settle()
    assert len(client.received) == 1


def test_they_are_refused_if_the_queue_is_deleted_before() -> None:
    scene = Scene()
    client = scene.client("b")
    scene.settle()
    behind(scene)
    client.publish(QUEUE, 1)
    client.node.end_turn()
    scene.work_off()
    scene.client("a").send(commands.Queue.Delete(queue=QUEUE, nowait=True))
    scene.nodes["a"].end_turn()
    scene.work_off()
    go_on(scene)
    assert not client.unconfirmed and client.refusals == []


def test_a_link_that_breaks_takes_them_with_it() -> None:
    """Their publisher has been told that they may be lost: they must not arrive afterwards."""
    scene = Scene()
    client = scene.client("b")
    scene.settle()
    behind(scene)
    client.publish(QUEUE, 1)
    client.node.end_turn()
    scene.work_off()
    scene.cut("b", "c")
    go_on(scene)
    assert len(client.nacked) == 1
    assert taken(scene, scene.client("a")) == []


def test_no_more_is_kept_than_may_be() -> None:
    """The batch that is refused takes along the earlier ones, whose publisher has not been told yet."""
    scene = Scene()
    client = scene.client("b")
    scene.settle()
    behind(scene)
    undeclared = scene.nodes["c"].cluster._guests._undeclared
    undeclared.bytes_max = 1
    client.publish(QUEUE, 1)
    client.node.end_turn()
    scene.work_off()
    assert undeclared.has(client.queue_id(QUEUE))
    client.publish(QUEUE, 1)
    client.node.end_turn()
    scene.work_off()
    assert not undeclared.has(client.queue_id(QUEUE))
    go_on(scene)
    assert len(client.nacked) == 2
    assert taken(scene, scene.client("a")) == []


def test_commands_of_one_queue_stay_in_order() -> None:
    """This also holds where the host is made later than its queue, in a turn that has nothing to do with the
    topology.
    """
    kept = UndeclaredQueues(lambda queue_id: True, 1_000)
    hosts: dict[int, Any] = {}
    taken: list[int] = []

    class Taking(Guests):
        def _take_batch(self, host: Any, guest: Any, batch: Batch, bodies: Any) -> None:
            taken.append(batch.number)

    class Turn:
        def contain(self, unit: Any, call: Any, *arguments: Any) -> None:
            call(*arguments)

    class Host:
        ended = ""

    nothing: Any = None
    turn: Any = Turn()
    guests = Taking(nothing, turn, hosts.get, kept)
    for number in (1, 2, 3):
        if number == 3:
            hosts[7] = Host()
        batch = b"".join(encode_batch("b", 1, number, [("settle", (1, 1, "c", 1), 0, 0)]))
        guests.received("b", memoryview(b"".join(frames.queue(7, [batch]))))
    assert taken == [1, 2, 3]
