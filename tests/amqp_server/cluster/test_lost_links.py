"""A link that breaks concerns many queues: some hear of it in each turn, and all before a new session."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.broker.declared.operations import DeclareQueue
from amqp_server.broker.declared.records import QueueRecord, encoded
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Attributes, Run
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.amqp_server.cluster.test_stream_beginnings import Origin

pytestmark = pytest.mark.usefixtures("hand")

COUNT = 60


class Holder:
    """A consumer at a queue of another node."""

    def __init__(self) -> None:
        self.bodies = self.ends = 0
        self.attached = True
        self.key = (1, 1, "c", 1)

    def deliver(self, consumer: Any, run: Run, first_id: int) -> None:
        self.bodies += len(run.seqs)

    def queue_gone(self) -> None:
        self.ends += 1


class Queues(Scene):
    """Classic queues of node a, with a consumer at b and one at c each."""

    def __init__(self) -> None:
        super().__init__()
        self.names_of = [f"q{number}" for number in range(COUNT)]
        for name in self.names_of:
            record = QueueRecord(
                *("/", name, 0, False, encoded({})), type="classic", members=("a",), leader="a"
            )
            self.propose("a", DeclareQueue(record))
        self.settle()
        self.holders = {node: [self.consume(node, name) for name in self.names_of] for node in "bc"}
        self.settle()

    def host(self, node: str, name: str) -> Any:
        return self.nodes[node].broker.vhost("/").queues[name].host

    def consume(self, node: str, name: str) -> Holder:
        holder, refusals = Holder(), list[str | None]()
        key = holder.key
        queue = self.nodes[node].broker.vhost("/").queues[name]
        queue.subscribe(key, holder)
        self.nodes[node].turn.run(queue.host.attach, Consumer(key, prefetch=10, sink=holder), refusals.append)
        self.wait(lambda: bool(refusals))
        assert refusals == [None]
        return holder

    def publish_at(self, node: str, name: str) -> Origin:
        origin = Origin()
        run = Run(range(1), [b"x"], b"head", Attributes(True, 0, None, 1, 4096))
        self.nodes[node].turn.run(self.host(node, name).submit, ("enqueue", run, origin, 0))
        return origin

    def told(self, node: str) -> int:
        """Count the queues that know at this node that their consumers are gone."""
        return sum(not list(self.host(node, name).consumers()) for name in self.names_of)


def short(scene: Queues, node: str) -> None:
    """Each turn of this node has time for a few steps only."""
    scene.nodes[node].turn._lasts_s = 3.0


def test_consumers_of_a_lost_node_end_in_parts() -> None:
    scene = Queues()
    assert isinstance(scene.host("b", "q0"), RemoteHost)
    short(scene, "b")
    scene.cut("a", "b")
    assert 0 < scene.told("b") < COUNT // 2
    before = scene.told("b")
    scene.nodes["b"].end_turn()
    assert before < scene.told("b") < COUNT
    scene.wait(lambda: scene.told("b") == COUNT)
    scene.wait(lambda: all(holder.ends == 1 for holder in scene.holders["b"]))


def test_a_queue_that_is_used_meanwhile_hears_of_the_end_first() -> None:
    scene = Queues()
    short(scene, "b")
    scene.cut("a", "b")
    last = scene.holders["b"][-1]
    assert list(scene.host("b", "q59").consumers())
    refused: list[str | None] = []
    consumer = Consumer((2, 1, "d", 1), sink=Holder())
    scene.nodes["b"].turn.run(scene.host("b", "q59").attach, consumer, refused.append)
    scene.wait(lambda: bool(refused))
    assert last.ends == 1 and refused[0]


def test_consumers_at_a_lost_nodes_queues_end_before_a_new_session() -> None:
    scene = Queues()
    short(scene, "a")
    short(scene, "b")
    scene.cut("a", "b")
    assert scene.told("b") < COUNT
    # The home has not told all its queues either.
    left = [scene.nodes[name].cluster._lost_links._left for name in "ab"]
    assert all(left)
    scene.unblock()
    scene.connect("a", "b")
    for place in scene.network.places():
        # The first frames arrive.
        scene.network.go_on(*place, 1)
    assert scene.told("b") == COUNT and not any(left)
    # The same keys again, which must not be in use.
    again = [scene.consume("b", name) for name in scene.names_of]
    scene.settle()
    assert [scene.host("a", name).consumer_count for name in scene.names_of] == [2] * COUNT
    for name in scene.names_of:
        origin = scene.publish_at("c", name)
        scene.wait(lambda: origin.count == 1)  # noqa: B023
    scene.settle()
    assert sum(holder.bodies for holder in (*again, *scene.holders["c"])) == COUNT
    assert all(holder.ends == 1 for holder in scene.holders["b"]) and scene.told("c") == 0
