"""A queue raises on one node: that queue stops there, and nothing else; the
others serve, and it comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp_server.broker.declared.operations import SetMembers
from amqp_server.broker.recovery import failures
from amqp_server.cluster.topology_group import GROUP, Catalog
from quorum_queue.boundary import Fatal
from quorum_queue.cluster.replica_group import Group
from quorum_queue.errors import Unreadable
from quorum_queue.machine import versions
from quorum_queue.raft.leading import SHOWN_ENTRIES
from tests import turns
from tests.amqp_server.cluster.simulation.clients import EXPIRES_MS, Client
from tests.amqp_server.cluster.simulation.node import TICK_MS, SimulatedNode
from tests.amqp_server.cluster.simulation.planting import plants_of
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.turns import Planted

pytestmark = pytest.mark.usefixtures("hand")

FOR_EVER = 1_000
#: Time until a queue that failed this often is set aside.
ALL_PAUSES_TICKS = failures.PAUSE_MS * (1 + failures.PAUSE_FACTOR + failures.PAUSE_FACTOR**2) // TICK_MS + 20


class World(Scene):
    """Three nodes, and two quorum queues on all of them, led by a."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = {name: self.client(name) for name in "abc"}
        self.queue_id = self.place(self.clients["a"], "quorum/bad", "abc")
        self.other_id = self.place(self.clients["a"], "quorum/good", "abc")
        self.lead("a", self.queue_id)
        self.lead("a", self.other_id)

    def plant(self, name: str, count: int, *, after: bool = False) -> None:
        plants_of(self.nodes[name].cluster.replicas).plant(self.queue_id, count, after=after)

    def stopped(self, name: str) -> list[dict[str, Any]]:
        return [failures.describe(failure) for failure in self.nodes[name].broker.failures.stopped()]

    def group(self, name: str) -> Group | None:
        return self.nodes[name].cluster.replicas.groups.get(self.queue_id)

    def kept(self, name: str) -> bool:
        """Return whether a node has stored data of the queue."""
        return self.nodes[name].parts.store.recovered().get(self.queue_id) is not None

    def get(self, client: Client, name: str) -> None:
        client.get(name)
        self.wait_for(client)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "half done"])
def test_a_member_that_fails_stops_and_the_others_serve(name: str, after: bool) -> None:
    world = World()
    client = world.clients[name]
    world.plant(name, 1, after=after)
    for each in world.clients.values():
        world.publish(each, "quorum/bad")
    assert [each["name"] for each in world.stopped(name)] == ["quorum/bad"]
    assert not any(world.stopped(other) for other in "abc" if other != name)
    # The member neither votes nor leads, and it takes no commands; the other queue of this node goes on.
    assert world.group(name) is None
    leader = world.leading(world.queue_id)
    assert leader is not None
    assert leader.replicas.node != name
    good = world.nodes[name].cluster.replicas.groups[world.other_id]
    world.publish(client, "quorum/good")
    assert good.replicas.node == name
    # A client of this node uses the queue by way of the others.
    world.publish(client, "quorum/bad")
    for _ in range(4):
        world.get(client, "quorum/bad")
        assert client.unacked
        client.ack_all()
    world.ticks(failures.PAUSE_MS // TICK_MS + 20)
    assert world.stopped(name) == []
    assert world.group(name) is not None
    world.finish()


def test_what_a_node_asked_for_before_its_member_failed_keeps_no_message() -> None:
    """A get reaches the leader when the member is back: nobody on that node knows of the get any more."""
    world = World()
    client = world.clients["b"]
    world.publish(client, "quorum/bad")
    client.get("quorum/bad")
    group = world.group("b")
    assert group is not None
    client.node.turn.end()
    [flight] = list(group.flights)
    client.node.turn.run(group.failed, Planted("planted"))
    session = world.nodes["b"].sessions["a"]
    session.streams["a"].clear()
    world.wait_for(client)
    world.ticks(failures.PAUSE_MS // TICK_MS + 20)
    assert world.group("b") is not None
    # As if the command had been under way all the time.
    leader = world.group("a")
    assert leader is not None
    leader.take(flight.payload)
    world.nodes["a"].end_turn()
    world.settle()
    machine = world.nodes["c"].cluster.hosts.grouped[world.queue_id].replica.machine
    assert (machine.ready.count, machine.unacked_count) == (1, 0)
    world.finish()


def test_a_queue_that_fails_each_time_is_set_aside_until_it_is_tried_again() -> None:
    world = World()
    world.plant("b", FOR_EVER)
    world.publish(world.clients["a"], "quorum/bad")
    seen = 0
    for _ in range(ALL_PAUSES_TICKS):
        world.publish(world.clients["a"], "quorum/bad")
        world.ticks(1)
        (found,) = world.stopped("b") or [{"attempts": 0, "set_aside": False, "reason": ""}]
        seen = max(seen, found["attempts"])
        if found["set_aside"]:
            break
    assert found["set_aside"], seen
    assert found["attempts"] == world.nodes["b"].broker.config.queue_restart_tries_max
    assert "planted" in found["reason"]
    leader = world.group("a")
    assert leader is not None
    looks_ticks = world.nodes["a"].broker.config.rebalance_ms // TICK_MS + 1
    world.ticks(max(ALL_PAUSES_TICKS, SHOWN_ENTRIES * looks_ticks))
    assert world.stopped("b")[0]["set_aside"]
    # Nothing is written for its sake any more.
    last_index = leader.core.last_index
    world.ticks(3 * looks_ticks)
    assert leader.core.last_index == last_index
    # A start of the node tries the queue again: the queue fails, and the node starts all the same.
    node = world.nodes["b"]
    world.crash(node)
    world.ticks(5)
    world.start(node)
    world.plant("b", FOR_EVER)
    world.connect_all()
    world.wait(lambda: node.serving)
    world.publish(world.clients["a"], "quorum/bad")
    world.wait(lambda: bool(world.stopped("b")))
    client = world.client("b")
    world.publish(client, "quorum/good")
    # The operator has removed the cause.
    plants_of(node.cluster.replicas).left.clear()
    node.turn.run(node.broker.failures.retry, node.broker.failures.stopped()[0].queue)
    world.settle()
    assert world.stopped("b") == []
    world.finish()


def test_two_members_that_fail_at_once_lose_nothing() -> None:
    world = World()
    for name in "ab":
        world.plant(name, 1, after=True)
    client = world.clients["c"]
    client.publish("quorum/bad")
    world.ticks(40)
    world.settle()
    assert not any(map(world.stopped, "abc"))
    world.finish()


def test_a_failed_member_does_not_give_up_a_queue_that_others_use() -> None:
    """The member's node is the preferred leader, and last heard of a use of the queue when it led."""
    world = World()
    client = world.clients["c"]
    queue_id = world.place(client, "lease", "abc")
    world.lead("a", queue_id)
    plants_of(world.nodes["a"].cluster.replicas).plant(queue_id, FOR_EVER, after=False)
    world.publish(client, "lease")
    world.wait(lambda: bool(world.stopped("a")))
    for _ in range(EXPIRES_MS // TICK_MS):
        world.get(client, "lease")
        world.ticks(2)
    assert client.queue_id("lease") == queue_id
    plants_of(world.nodes["a"].cluster.replicas).left.clear()
    world.nodes["a"].turn.run(
        world.nodes["a"].broker.failures.retry, world.nodes["a"].broker.failures.stopped()[0].queue
    )
    world.settle()
    world.finish()


def test_a_queue_that_leaves_a_node_while_it_is_tried_again_there_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    node = world.nodes["b"]
    came: list[Callable[[], None]] = []

    def warm(group_id: int, done: Callable[[], None]) -> bool:
        came.append(done)
        return False

    monkeypatch.setattr(node.parts.groups, "warm", warm)
    world.plant("b", 1)
    world.publish(world.clients["a"], "quorum/bad")
    world.ticks(failures.PAUSE_MS // TICK_MS + 20)
    assert came and world.stopped("b")
    members = SetMembers("/", "quorum/bad", world.queue_id, ("a", "c"), "a")
    world.nodes["a"].turn.run(world.nodes["a"].broker.propose, members)
    world.ticks(60)
    # The disk has read what the member wrote, and the node is no longer a member.
    node.turn.run(came[0])
    world.settle()
    assert world.stopped("b") == []
    world.finish()


def test_a_stopped_member_keeps_its_data_until_the_others_have_removed_it() -> None:
    """Until then it is still a voter of the group, whatever the topology says: with a new memory its vote
    could not count.
    """
    world = World()
    world.plant("b", 1)
    world.publish(world.clients["a"], "quorum/bad")
    world.wait(lambda: bool(world.stopped("b")))
    for members in (("a", "c"), ("a", "b", "c")):
        change = SetMembers("/", "quorum/bad", world.queue_id, members, "a")
        world.nodes["a"].turn.run(world.nodes["a"].broker.propose, change)
    world.wait(lambda: world.group("b") is not None)
    group = world.group("b")
    assert group is not None and not group.core.amnesiac
    world.settle()
    assert world.stopped("b") == []
    world.finish()


def test_a_stopped_member_that_the_others_have_removed_drops_its_data() -> None:
    world = World()
    node = world.nodes["b"]
    world.plant("b", FOR_EVER)
    world.publish(world.clients["a"], "quorum/bad")
    world.ticks(ALL_PAUSES_TICKS)
    assert world.stopped("b")[0]["set_aside"]
    assert world.kept("b")
    change = SetMembers("/", "quorum/bad", world.queue_id, ("a", "c"), "a")
    world.nodes["a"].turn.run(world.nodes["a"].broker.propose, change)
    world.wait(lambda: not node.cluster.hosts.leaving and not node.cluster.hosts.stopped)
    assert not world.kept("b")
    assert world.stopped("b") == []
    world.settle()
    world.finish()


def test_a_stopped_member_is_not_emptied_if_the_other_voters_are_no_majority() -> None:
    """The topology has three members already; the group has two voters, and the third node is down."""
    world = World()
    client = world.clients["a"]
    queue_id = world.place(client, "quorum/two", "ab")
    world.lead("a", queue_id)
    world.crash(world.nodes["c"])
    change = SetMembers("/", "quorum/two", queue_id, ("a", "b", "c"), "a")
    world.nodes["a"].turn.run(world.nodes["a"].broker.propose, change)
    world.ticks(20)
    plants_of(world.nodes["b"].cluster.replicas).plant(queue_id, 2, after=False)
    world.publish(client, "quorum/two")
    world.wait(lambda: bool(world.stopped("b")))
    replicas = world.nodes["b"].cluster.replicas
    groups = replicas.groups
    client.publish("quorum/two")
    while plants_of(replicas).left[queue_id] or queue_id not in groups:
        # The leader tells how far it has come.
        world.ticks(1)
    assert not groups[queue_id].core.amnesiac
    leader = world.nodes["a"]
    world.crash(leader)
    for name in "ac":
        world.start(world.nodes[name])
    world.settle()
    world.finish()


def test_two_members_that_fail_again_and_again_are_not_both_emptied() -> None:
    world = World()
    client = world.clients["a"]
    for name in "bc":
        world.plant(name, 2)
    client.publish("quorum/bad")
    world.wait(lambda: bool(world.stopped("b") and world.stopped("c")))
    client.publish("quorum/bad")
    while any(plants_of(world.nodes[name].cluster.replicas).left[world.queue_id] for name in "bc"):
        world.ticks(1)
    world.wait(lambda: bool(world.group("b") and world.group("c")))
    world.crash(world.nodes["a"])
    world.start(world.nodes["a"])
    world.settle()
    world.finish()


def test_a_member_that_fails_again_is_emptied_and_filled_by_a_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody uses the queue meanwhile."""
    world = World()
    node = world.nodes["b"]
    emptied: list[int] = []
    drop = node.parts.groups.drop

    def dropped(group_id: int) -> None:
        emptied.append(group_id)
        drop(group_id)

    monkeypatch.setattr(node.parts.groups, "drop", dropped)
    world.plant("b", 2)
    world.publish(world.clients["a"], "quorum/bad")
    world.ticks(ALL_PAUSES_TICKS)
    world.settle()
    assert emptied == [world.queue_id]
    assert world.stopped("b") == []
    world.finish()


WAYS = ["step", "in_contact", "lost_contact", "tick", "written", "propose"]


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_the_core_stops_that_group_only(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data from peers, links, ticks and commits each reach a group on a way of their own."""
    world = World()
    node = world.nodes["a" if way in ("propose", "in_contact") else "b"]
    group = node.cluster.replicas.groups[world.queue_id]
    real = getattr(type(group.core), way)

    def planted(self: Any, *arguments: Any) -> Any:
        if self is group.core:
            raise Planted(way)
        return real(self, *arguments)

    monkeypatch.setattr(type(group.core), way, planted)
    if way in ("in_contact", "lost_contact"):
        for session in list(world.network.sessions):
            if "b" in session.ends and "a" in session.ends:
                world.network.close(session, "b")
        world.ticks(2)
        world.connect("a", "b")
        world.doubt_all()
    if way == "tick":
        node.cluster.replicas.active[group] = None
    client = world.clients["c"]
    client.publish("quorum/bad")
    world.ticks(20)
    world.wait(lambda: not client.unconfirmed)
    assert node.alive
    assert [failure.reason for failure in node.broker.failures.stopped()] in ([way], [])
    assert world.group(node.name) is not group, "nothing was planted on this way"
    monkeypatch.undo()
    world.ticks(failures.PAUSE_MS // TICK_MS + 20)
    world.finish()


def test_an_exception_in_the_topology_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    node = world.nodes["b"]
    real = Catalog.apply

    def planted(self: Catalog, index: int, data: bytes) -> None:
        if self is node.cluster.catalog:
            raise Planted("of the topology")
        real(self, index, data)

    monkeypatch.setattr(Catalog, "apply", planted)
    world.clients["a"].declare("classic/new")
    with pytest.raises(Fatal, match="topology"):
        world.ticks(20)
    assert node.cluster.replicas.groups[GROUP].machine is node.cluster.catalog


def test_a_failed_queue_that_is_deleted_leaves_nothing_behind() -> None:
    world = World()
    world.plant("b", FOR_EVER)
    world.publish(world.clients["a"], "quorum/bad")
    world.wait(lambda: bool(world.stopped("b")))
    client = world.clients["a"]
    client.delete("quorum/bad")
    world.wait_for(client)
    node: SimulatedNode = world.nodes["b"]
    world.wait(lambda: not world.stopped("b"))
    world.ticks(ALL_PAUSES_TICKS)
    assert world.queue_id not in node.cluster.replicas.groups
    assert not world.kept("b")
    world.finish()


def test_an_entry_that_cannot_be_read_stops_the_queue_with_a_clear_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version of mqd has written the entry. To try again does not help, so the queue is set aside at
    once.
    """
    monkeypatch.setattr(turns, "expected", (Unreadable,))
    world = World()
    host = world.nodes["a"].cluster.hosts.grouped[world.queue_id]
    host.submit(("version", versions.NEWEST + 1))
    world.ticks(60)
    stopped = [found for name in "abc" for found in world.stopped(name)]
    # Two of three have stopped, so nobody commits the entry for the last one.
    assert len(stopped) == 2
    for found in stopped:
        assert (found["name"], found["set_aside"], found["attempts"]) == ("quorum/bad", True, 0)
        assert "can't be read by this version of mqd" in found["reason"]
    world.publish(world.clients["b"], "quorum/good")
    for node in world.nodes.values():
        assert node.alive
        node.end_tasks()
