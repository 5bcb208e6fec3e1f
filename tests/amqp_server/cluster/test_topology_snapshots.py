"""Nodes make snapshots of the topology in parts: other work has its turns in between, and later changes are
not in the snapshot.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from amqp_server.broker.access.users import User
from amqp_server.broker.declared import operations
from amqp_server.broker.topology import topology_snapshot
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
