"""A replicated queue that is deleted, or leaves a node, is freed there at once."""

from __future__ import annotations

import pytest

from amqp_server.broker.declared import operations
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.cluster.replica_group import Group
from quorum_queue.machine.run import Run
from quorum_queue.raft.core import Raft
from tests.amqp_server.cluster.test_group_scenes import GroupScene
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.garbage import alive, garbage
from tests.turns import Planted

pytestmark = pytest.mark.usefixtures("hand")


def filled(scene: Scene) -> int:
    """Declare a queue on three of four nodes, and publish to it from the node that has no copy."""
    client = scene.client("d")
    queue_id = scene.place(client, "quorum", "abc")
    for _ in range(3):
        scene.publish(client, "quorum")
    scene.settle()
    return queue_id


def groups() -> list[int]:
    return [len(alive(kind)) for kind in (GroupHost, Group, Raft)]


def test_a_deleted_queue() -> None:
    scene = Scene("abcd")
    with garbage() as left:
        none = groups()
        queue_id = filled(scene)
        assert groups() == [count + 3 for count in none]
        assert alive(RemoteHost) and alive(Run)
        scene.propose("a", operations.DeleteQueue("/", "quorum", queue_id))
        scene.settle()
        assert groups() == none
        assert not alive(RemoteHost) and not alive(Run)
    assert not left.found, str(left)


def test_a_queue_that_leaves_a_node() -> None:
    scene = Scene("abcd")
    with garbage() as left:
        none = groups()
        queue_id = filled(scene)
        scene.propose("a", operations.SetMembers("/", "quorum", queue_id, ("a", "b", "d"), "a"))
        scene.settle()
        assert groups() == [count + 3 for count in none]
    assert not left.found, str(left)


def test_a_queue_that_fails_on_a_node() -> None:
    scene = Scene("abcd")
    with garbage() as left:
        queue_id = filled(scene)
        node = scene.nodes["b"]
        before = node.broker.hosts.grouped[queue_id]  # type: ignore[attr-defined]
        node.broker.turn.run(node.broker.turn.failed, before, Planted())
        del before
        scene.settle()
        assert len(alive(GroupHost)) == 3
    assert not left.found, str(left)


def test_a_deleted_consumer_group() -> None:
    scene = GroupScene()
    scene.append(3)
    with garbage() as left:
        none = len(alive(ConsumerGroupMemberHost))
        over = {"x-queue-type": "stream-group", "x-stream": "s", "x-stream-offset": "first"}
        scene.declare_as("h", **over)
        assert len(alive(ConsumerGroupMemberHost)) == none + 3
        queue_id = scene.host("a", "h").queue_id
        scene.propose("a", operations.DeleteQueue("/", "h", queue_id))
        scene.settle()
        assert len(alive(ConsumerGroupMemberHost)) == none
    assert not left.found, str(left)
