"""Events about messages of a quorum queue (x-message-status-events) when its leader changes: none is missing,
and only those of the last changes come again.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pamqp import commands, header

from amqp_server.broker.topology.queue import Queue
from amqp_server.wire import frames
from quorum_queue.machine.record.states import ACKNOWLEDGED, QUEUED
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_moving_queues import steps
from tests.amqp_server.cluster.test_policies import policy
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("hand")]

#: State and position of a message.
Told = Counter[tuple[int, int]]
MOMENTS = (0, 2, 3, 5, 9, 14, 20, 31)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found: Told = Counter()

    def changed(queue: Queue, what: list[tuple[int, int, int, bytes]]) -> None:
        found.update((state, position) for state, _, position, _ in what)

    monkeypatch.setattr(Queue, "messages_changed", changed)
    return found


def publish(scene: Scene, client: Client, count: int) -> None:
    """Publish messages with ids, which the record needs, and have them confirmed."""
    for _ in range(count):
        body = scene.messages.publish(client.queue_id("quorum"), ("/", "quorum"))
        client.published += 1
        client.unconfirmed[client.published] = body, "quorum"
        properties = commands.Basic.Properties(delivery_mode=2, message_id=body.decode())
        client.send(
            commands.Basic.Publish(routing_key="quorum", mandatory=True),
            frames.raw_frame(2, client.channel, header.ContentHeader(0, len(body), properties).marshal()),
            frames.raw_frame(3, client.channel, body),
        )
    scene.wait(lambda: not client.unconfirmed)


def ack_one(scene: Scene, client: Client) -> None:
    client.get("quorum")
    scene.wait_for(client)
    client.ack_all()


def change_leader(scene: Scene, queue_id: int, how: str) -> None:
    if how == "the leader dies":
        scene.crash(scene.nodes["a"])
        scene.ticks(40)
    elif how == "all nodes die":
        for name in "abc":
            scene.crash(scene.nodes[name])
    elif how == "it hands over":
        leader = scene.leading(queue_id)
        assert leader is not None
        leader.replicas.touch(leader)
        leader.core.transfer("b")
        scene.nodes["a"].end_turn()
        scene.ticks(40)
    else:
        scene.cut("a", "b")
        scene.cut("a", "c")
        scene.ticks(40)
    for name in "abc":
        scene.start(scene.nodes[name])
    scene.network.blocked.clear()
    scene.doubt_all()
    scene.connect_all()
    scene.settle()


@pytest.mark.parametrize(
    "how", ["the leader dies", "all nodes die", "it hands over", "the leader is cut off"]
)
def test_events_when_the_leader_changes(how: str, told: Told) -> None:
    again = 0
    for moment in MOMENTS:
        told.clear()
        scene = Scene()
        client = scene.client("c")
        queue_id = scene.place(client, "quorum", "abc")
        scene.propose("a", policy(message_status_events=True))
        scene.settle()
        publish(scene, client, 3)
        ack_one(scene, client)
        scene.settle()
        # The leader tells each change, the others do not.
        assert set(told.values()) == {1} and told[ACKNOWLEDGED, 1] == 1
        before = dict(told)
        del before[QUEUED, 2]
        publish(scene, client, 2)
        ack_one(scene, client)
        scene.nodes["c"].end_turn()
        steps(scene, moment)
        change_leader(scene, queue_id, how)
        # What all knew does not come again, but a delivered message does when its client's node ends.
        requeued = told.pop((QUEUED, 2))
        assert {key: told[key] for key in before} == before
        assert max(told.values()) <= 2 and requeued <= 3
        again += sum(count == 2 for count in told.values())
        replica = scene.nodes["b"].cluster.hosts.grouped[queue_id].replica
        record = replica.machine.record
        assert record is not None and record.count == 5
        told[QUEUED, 2] = requeued
        for position in range(1, 6):
            (copy,) = record.find(_id_of(record, position), replica.now_ms).copies
            # Nothing is missing, neither that it came nor what became of it.
            assert told[QUEUED, position]
            assert told[copy.state, position]
    # Some come again: a new leader does not know what the one before it has published.
    assert again or how != "it hands over"


def _id_of(record: object, position: int) -> bytes:
    blocks = record._blocks  # type: ignore[attr-defined]
    block = next(each for each in blocks if each.first <= position < each.first + len(each))
    found: bytes = block.id_of(position - block.first)
    return found
