"""Nodes make snapshots of the topology in parts: other work has its turns in between, and later changes are
not in the snapshot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest

from amqp_server.broker.access.users import User
from amqp_server.broker.declared import operations
from amqp_server.broker.topology import restoring, topology_snapshot
from amqp_server.cluster.topology_group import GROUP
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.snapshots import compaction
from quorum_queue.steps import Steps
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")


def with_short_turns(scene: Scene, name: str) -> tuple[SimulatedNode, Group]:
    """Start a node anew, with short turns: a turn may ask three times whether it is overdue before the answer
    is yes.
    """
    node = scene.nodes[name]
    scene.crash(node, written=True)
    node.turn_lasts = 3.0
    scene.start(node)
    scene.mend()
    scene.settle()
    return node, node.cluster.replicas.groups[GROUP]


def change(scene: Scene, node: SimulatedNode, user: str) -> None:
    """Have a change applied at a node, and no more: a cluster that is left to itself longer would take
    snapshots.
    """
    scene.propose("a", operations.PutUser(User(user, "hash")))
    scene.wait(lambda: node.broker.access.users.get(user) is not None)


def test_one_turn_makes_a_part_of_a_snapshot_only() -> None:
    scene = Scene()
    node, group = with_short_turns(scene, "b")
    change(scene, node, "ann")
    made: list[bytes] = []
    node.turn.run(group.snapshot, made.append)
    assert node.turn.behind and not made
    turns = 0
    while not made:
        assert node.turn.behind
        node.end_turn()
        turns += 1
    assert turns > 3 and made == [node.cluster.catalog.snapshot()]
    scene.finish()


def test_what_is_applied_while_a_snapshot_is_made_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.declare(scene.client("a"), "classic")
    node, group = with_short_turns(scene, "b")
    change(scene, node, "ann")
    held: list[Steps] = []
    monkeypatch.setattr(Steps, "begin", lambda self: held.append(self))
    index, expected = group.applied, node.cluster.catalog.snapshot()
    stored: list[bytes] = []
    node.turn.run(group.snapshot, stored.append)
    node.turn.run(compaction.take_snapshot, group)
    since = group.since_bytes
    assert group.snapshotting and len(held) == 2 and not stored
    change(scene, node, "bob")
    assert group.applied > index
    monkeypatch.undo()
    for each in held:
        node.turn.run(each.begin)
    scene.wait(lambda: not group.snapshotting)
    assert stored == [expected]
    # Only later changes count for the next snapshot.
    assert group.snapshot_index == index < group.applied and 0 < group.since_bytes <= since
    # The disk has the state of that time, and the log has the rest.
    scene.crash(node, written=True)
    scene.start(node)
    scene.mend()
    scene.settle()
    assert node.broker.access.users.get("bob") is not None
    scene.finish()


def test_a_snapshot_of_another_node_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.declare(scene.client("a"), "classic")
    node, _ = with_short_turns(scene, "b")
    change(scene, node, "ann")
    state = node.cluster.catalog.snapshot()
    read: list[object] = []
    make = topology_snapshot._record

    def counted(kind: Any, row: Any) -> Any:
        read.append(kind)
        return make(kind, row)

    monkeypatch.setattr(topology_snapshot, "_record", counted)
    done: list[bool] = []
    node.turn.run(node.cluster.catalog.fill, state, "a", lambda: True, lambda: done.append(True))
    assert node.turn.behind and not done
    while not done:
        assert node.turn.behind
        node.end_turn()
    # The step that takes the snapshot over has nothing left to read.
    whole = len(read)
    node.turn.run(node.topology.restore, msgspec.msgpack.decode(state)[0])
    assert whole == len(read) > 2
    # A snapshot other than the one that was read ahead is read when it is taken over.
    node.turn.run(node.cluster.catalog.fill, state, "a", lambda: True, lambda: None)
    change(scene, node, "bob")
    other = scene.nodes["a"].topology.snapshot()
    before = len(read)
    node.turn.run(node.topology.restore, other)
    assert len(read) > before + whole and node.topology.snapshot() == other
    scene.finish()


def test_a_snapshot_that_is_not_wanted_any_more_is_read_no_further() -> None:
    scene = Scene()
    node, _ = with_short_turns(scene, "b")
    wanted = [True]
    done: list[bool] = []
    state = node.cluster.catalog.snapshot()
    node.turn.run(node.cluster.catalog.fill, state, "a", lambda: bool(wanted), lambda: done.append(True))
    wanted.clear()
    while node.turn.behind:
        node.end_turn()
    assert not done
    scene.finish()


def test_a_snapshot_that_another_nodes_overtakes_is_thrown_away() -> None:
    scene = Scene()
    scene.declare(scene.client("a"), "classic")
    node, group = with_short_turns(scene, "b")
    change(scene, node, "ann")
    before = group.snapshot_index
    node.turn.run(compaction.take_snapshot, group)
    assert group.snapshotting

    class Storing:
        storing = True

    group.receiving = cast(Any, Storing())
    while node.turn.behind:
        node.end_turn()
    group.receiving = None
    assert not group.snapshotting and group.snapshot_index == before
    scene.finish()


#: Queues that are declared while a node is away.
AWAY = 16
STAYS, GOES = "classic/stays", "classic/goes"


def a_snapshot_is_restored(scene: Scene, after_each_turn: Callable[[SimulatedNode], bool]) -> SimulatedNode:
    """Let a node with short turns get a snapshot with queues that it does not know. Call `after_each_turn`
    from the moment in which it begins to take the snapshot over, until that returns False.
    """
    node, client = scene.nodes["c"], scene.client("a")
    scene.declare(client, STAYS)
    scene.declare(client, GOES)
    scene.settle()
    scene.crash(node, written=True)
    for each in scene.running:
        # No log entries are kept for members that lag.
        replicas = each.cluster.replicas
        replicas.options = dataclasses.replace(replicas.options, log_bytes_max=1)
    client.delete(GOES)
    scene.wait_for(client)
    for number in range(AWAY):
        scene.declare(client, f"classic/{number}")
    for _ in range(10):
        scene.declare(client, "classic/passing")
        client.delete("classic/passing")
        scene.wait_for(client)
    scene.ticks(20)
    node.turn_lasts = 3.0
    scene.start(node)
    scene.connect_all()
    for _ in range(20_000):
        group = node.cluster.replicas.groups.get(GROUP)
        if group is not None and group.foreseeing:
            break
        for place in scene.network.places():
            if place in scene.network.places():
                scene.network.go_on(*place, 1)
        for each in scene.running:
            scene.step_disk(each)
        scene.tick(scene.random.choice(scene.running))
    else:
        raise AssertionError("it gets no snapshot")
    while after_each_turn(node):
        node.turn.run(node.turn.catch_up)
    return node


def queues_of(node: SimulatedNode) -> set[str]:
    return set(node.broker.vhosts["/"].queues)


def test_a_snapshot_is_restored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is applied meanwhile, and what is gone stays until what is new is there."""
    monkeypatch.setattr(restoring, "CHANGED_MAX", 1)
    scene = Scene()
    seen: list[set[str]] = []

    def goes_on(node: SimulatedNode) -> bool:
        group = node.cluster.replicas.groups[GROUP]
        seen.append(queues_of(node))
        if not group.foreseeing:
            return False
        assert group.applied < scene.nodes["a"].topology.applied and group.core.applies_later
        # Its own snapshot would be of an unknown moment.
        compaction.take_snapshot(group)
        assert not group.snapshotting
        return True

    node = a_snapshot_is_restored(scene, goes_on)
    news = [len(queues - {STAYS, GOES}) for queues in seen]
    assert all(after - before <= 4 for before, after in pairwise(news)) and news[-1] >= AWAY
    assert all(STAYS in queues for queues in seen)
    assert all(GOES in queues for queues, count in zip(seen, news, strict=True) if count < AWAY)
    assert GOES not in seen[-1]
    scene.finish()
    assert node.topology.snapshot() == scene.nodes["a"].topology.snapshot()


@pytest.mark.parametrize("written", [False, True])
def test_a_node_that_ends_while_it_restores_a_snapshot_restores_it_later(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "CHANGED_MAX", 1)
    scene = Scene()

    def goes_on(node: SimulatedNode) -> bool:
        return len(queues_of(node)) < 2 + AWAY // 2

    node = a_snapshot_is_restored(scene, goes_on)
    assert node.cluster.replicas.groups[GROUP].foreseeing and len(queues_of(node)) < 2 + AWAY
    scene.crash(node, written=written)
    scene.finish()
    assert node.topology.snapshot() == scene.nodes["a"].topology.snapshot()
    assert len(queues_of(node)) >= 1 + AWAY and GOES not in queues_of(node)
