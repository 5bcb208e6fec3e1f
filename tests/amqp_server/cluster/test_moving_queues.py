"""A queue moves between the publish and the hand-over: a commit, or a confirm, still says that it has the
messages.

The client is at b; node b joins the queue, leaves it, or the queue moves from one node to another one.
"""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, header

from amqp_server.broker.declared.operations import SetMembers
from amqp_server.channel import publish
from amqp_server.connection.incoming import Incoming
from amqp_server.wire import frames
from quorum_queue.cluster.queues.remote_host import RemoteHost
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.planting import plants_of
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

COUNT = 10
QUEUE = "quorum"
#: The nodes that keep the queue before and after.
MOVES = {
    "grows to b": ("a", "ab"),
    "moves to b": ("a", "b"),
    "leaves b": ("ab", "a"),
    "leaves b that led": ("ba", "a"),
    "moves away from b": ("b", "a"),
    "moves elsewhere": ("a", "c"),
}
#: The steps of the move after which the messages are handed over: some commands take until the move is done.
MOMENTS = (0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60)
#: Ticks until it is done.
MOVED_TICKS = 40


def steps(scene: Scene, count: int) -> None:
    """Take this many steps. In each, every disk goes on by a commit's beginning or end, and every link by one
    frame.
    """
    for number in range(count):
        for node in scene.running:
            scene.step_disk(node)
        for place in scene.network.places():
            if place in scene.network.places():
                scene.network.go_on(*place, 1)
        if number % 4 == 3:
            for node in scene.running:
                scene.tick(node)


class Move:
    """A publisher at b with messages that have been routed and not handed over, because of a transaction or
    an alarm.

    Without either, messages are handed over when they are published.
    """

    def __init__(self, how: str, move: str) -> None:
        self.how = how
        self.scene = scene = Scene()
        before, self.after = MOVES[move]
        self.node = scene.nodes["b"]
        self.reader = scene.client("c")
        self.queue_id = scene.place(self.reader, QUEUE, before)
        self.client: Client = scene.new_client(self.node, transactional=how == "tx")
        scene.settle()
        self.bodies: list[bytes] = []

    def publish(self) -> None:
        if self.how == "alarm":
            self.node.set_alarm(True)
        known = len(self.scene.messages.by_body)
        self.client.publish(QUEUE, COUNT)
        self.bodies = list(self.scene.messages.by_body)[known:]

    def begin(self) -> None:
        """Let the queue move."""
        node = self.scene.nodes["a"]
        node.broker.propose(SetMembers("/", QUEUE, self.queue_id, tuple(self.after), self.after[0]))
        node.end_turn()

    def steps(self, count: int) -> None:
        steps(self.scene, count)

    def hand_over(self) -> None:
        if self.how == "tx":
            self.client.commit()
        elif self.how == "alarm":
            self.node.set_alarm(False)
        else:
            self.publish()
        self.node.end_turn()

    def finish(self) -> int:
        """Return how many were confirmed. Check that each confirmed message is in the queue, and that all
        messages there come once and in order.
        """
        scene, client = self.scene, self.client
        scene.settle()
        assert [queue.members for queue in self.node.broker.all_queues()] == [tuple(self.after)]
        reader, known = scene.client("c"), scene.messages.by_body
        while True:
            reader.get(QUEUE)
            scene.wait_for(reader)
            if not reader.unacked:
                break
            reader.ack_all()
        there = reader.received
        assert there == [body for body in self.bodies if body in there], "not in order, or not once"
        confirmed = [body for body in self.bodies if known[body].confirmed]
        assert [body for body in confirmed if body not in there] == []
        assert client.refusals or len(confirmed) + len(client.nacked) == COUNT
        scene.finish()
        return len(confirmed)


@pytest.mark.parametrize("how", ["tx", "confirm", "alarm"])
@pytest.mark.parametrize("move", MOVES)
def test_handed_over_before_or_after_the_move(how: str, move: str) -> None:
    first = Move(how, move)
    first.publish()
    if how != "confirm":
        first.hand_over()
    first.scene.settle()
    first.begin()
    assert first.finish() == COUNT
    second = Move(how, move)
    if how != "confirm":
        second.publish()
    second.begin()
    # The cluster would not come to rest before the messages that the alarm holds back are answered.
    second.scene.ticks(MOVED_TICKS)
    second.hand_over()
    assert second.finish() == COUNT


@pytest.mark.parametrize("how", ["tx", "confirm", "alarm"])
@pytest.mark.parametrize("move", MOVES)
def test_handed_over_during_the_move(how: str, move: str) -> None:
    found: list[int] = []
    for moment in MOMENTS:
        world = Move(how, move)
        if how != "confirm":
            world.publish()
        world.begin()
        world.steps(moment)
        world.hand_over()
        found.append(world.finish())
    # A member that leaves refuses the messages that are under way when the others let it go: it does not
    # learn whether the leader took them.
    before, after = MOVES[move]
    if how == "tx":
        # A queue that moves while it gets its part refuses the whole transaction.
        assert {0, COUNT} >= {*found}
    else:
        assert min(found) == COUNT or ("b" in before and "b" not in after)
    assert found[0] == COUNT


@pytest.mark.parametrize("move", MOVES)
def test_a_queue_moves_while_a_wide_publish_is_handed_over(
    move: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish to many queues takes several turns; its messages for a queue go where the queue is at that
    turn.
    """
    world = Move("confirm", move)
    scene, client = world.scene, world.client
    other = scene.client("c")
    scene.declare(other, "classic")
    continued: Any = Incoming._hand_over
    begun: list[Incoming] = []

    def waits(self: Incoming, whole: bool) -> bool:
        """Hand over to the first queue now, and to the other one when the move is over."""
        if self not in begun:
            begun.append(self)
            assert self._wide is not None
            next(self._wide)
        return False

    monkeypatch.setattr(publish, "PART_QUEUES", 1)
    monkeypatch.setattr(Incoming, "_hand_over", waits)
    body = scene.messages.publish(world.queue_id, ("/", QUEUE), late=True)
    client.published += 1
    client.unconfirmed[client.published] = body, QUEUE
    world.bodies = [body]
    properties = commands.Basic.Properties(delivery_mode=2, headers={"CC": [QUEUE]})
    client.send(
        commands.Basic.Publish(routing_key="classic"),
        frames.raw_frame(2, client.channel, header.ContentHeader(0, len(body), properties).marshal()),
        frames.raw_frame(3, client.channel, body),
    )
    world.node.end_turn()
    assert begun
    world.begin()
    scene.ticks(MOVED_TICKS)
    monkeypatch.setattr(Incoming, "_hand_over", continued)
    scene.settle()
    assert client.nacked == [] and not client.unconfirmed
    reader = scene.client("c")
    reader.get(QUEUE)
    scene.wait_for(reader)
    assert reader.received == [body]


@pytest.mark.parametrize("members", ["a", "ba", "b"])
def test_a_commit_to_a_queue_that_is_deleted_meanwhile(members: str) -> None:
    """As in RabbitMQ, the messages go with the queue, and commit-ok comes."""
    for moment in (0, 1, 2, 3, 5, 8, 12):
        scene = Scene()
        reader = scene.client("c")
        scene.place(reader, QUEUE, members)
        client = scene.new_client(scene.nodes["b"], transactional=True)
        scene.settle()
        reader.send(commands.Queue.Delete(queue=QUEUE))
        reader.asked = "delete", (QUEUE, 0)
        scene.nodes["c"].end_turn()
        steps(scene, moment)
        if not client.queue_id(QUEUE):
            break
        client.publish(QUEUE, COUNT)
        client.commit()
        scene.nodes["b"].end_turn()
        scene.settle()
        assert client.refusals == []
        assert scene.ledger.count["commit answered"] == 1
        scene.finish()
    else:
        pytest.fail("the queue is never deleted")


def test_a_queue_that_failed_on_a_member_which_leaves_is_not_begun_there_again() -> None:
    """Messages that its clients publish go to the members. A defect once sent them to a new queue of the
    node's own.
    """
    scene = Scene()
    reader = scene.client("c")
    queue_id = scene.place(reader, QUEUE, "cab")
    node = scene.nodes["b"]
    plants_of(node.cluster.replicas).plant(queue_id, 1, after=False)
    scene.publish(reader, QUEUE)
    scene.wait(lambda: queue_id in node.cluster.hosts.stopped)
    scene.propose("a", SetMembers("/", QUEUE, queue_id, ("c", "a"), "c"))
    scene.ticks(MOVED_TICKS)
    assert queue_id not in node.cluster.hosts.stopped
    assert isinstance(node.cluster.hosts.queues[queue_id].host, RemoteHost)
    scene.publish(scene.client("b"), QUEUE)
    scene.finish()


def test_a_member_that_fails_while_it_leaves_is_let_go() -> None:
    scene = Scene()
    reader = scene.client("c")
    queue_id = scene.place(reader, QUEUE, "cab")
    node = scene.nodes["b"]
    scene.propose("a", SetMembers("/", QUEUE, queue_id, ("c", "a"), "c"))
    assert queue_id in node.cluster.hosts.leaving
    plants_of(node.cluster.replicas).plant(queue_id, 1, after=False)
    scene.publish(reader, QUEUE)
    scene.ticks(MOVED_TICKS)
    assert queue_id not in node.cluster.hosts.leaving
    scene.publish(scene.client("b"), QUEUE)
    scene.finish()


@pytest.mark.parametrize("how", ["tx", "confirm", "alarm"])
def test_a_member_comes_back_before_it_was_let_go(how: str) -> None:
    """Meanwhile its leader takes nothing from it."""
    found: list[int] = []
    for moment in MOMENTS:
        world = Move(how, "leaves b")
        if how != "confirm":
            world.publish()
        world.begin()
        world.steps(moment)
        world.hand_over()
        world.after = "ab"
        world.begin()
        found.append(world.finish())
    assert found[0] == COUNT


@pytest.mark.parametrize("sent", [False, True])
def test_a_question_goes_to_another_member_when_the_link_to_the_first_one_breaks(sent: bool) -> None:
    """The client's own node had no fault: its channel must not be closed."""
    scene = Scene()
    scene.place(scene.client("c"), QUEUE, "ac")
    client = scene.client("b")
    host = client.node.cluster.hosts.remote[client.queue_id(QUEUE)]
    scene.publish(client, QUEUE)
    assert isinstance(host, RemoteHost) and host._session == "a"
    client.declare(QUEUE)
    if sent:
        client.node.end_turn()
    client.node.turn.run(host.link_down, "a")
    scene.settle()
    assert client.refusals == [] and client.asked is None
    scene.finish()
