"""Policies in a cluster: members of a queue change what they do at the same entry of its log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from amqp_server.broker.declared.operations import ClearParameter, PutParameter
from amqp_server.broker.declared.parameters import POLICY, ParameterRecord
from quorum_queue.cluster.queues.member_host import GroupHost
from tests.amqp_server.cluster.simulation.ledger import digest
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.amqp_server.cluster.test_versions import old_scene, upgrade

pytestmark = pytest.mark.usefixtures("hand")


def policy(**definition: Any) -> PutParameter:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    value = {"pattern": "", "apply-to": "all", "priority": 0, "definition": named}
    return PutParameter(ParameterRecord("/", POLICY, "p", msgspec.json.encode(value).decode()))


def lengths(scene: Scene, queue_id: int) -> dict[str, int]:
    return {node.name: node.cluster.hosts.grouped[queue_id].ready_count for node in scene.running}


def restart(scene: Scene, name: str) -> None:
    node = scene.nodes[name]
    scene.crash(node)
    scene.doubt_all()
    scene.start(node)
    scene.connect_all()
    scene.settle()


def test_a_member_that_starts_again_comes_to_the_same() -> None:
    """The queue took then what the policy refuses now."""
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.declare(client, "quorum")
    for _ in range(5):
        scene.publish(client, "quorum")
    scene.propose("b", policy(max_length=3, overflow="reject-publish"))
    scene.settle()
    before = lengths(scene, queue_id)
    assert before["a"] > 3
    scene.publish(client, "quorum")
    assert client.nacked
    restart(scene, "c")
    assert lengths(scene, queue_id) == before
    digests = {
        digest(node.cluster.hosts.grouped[queue_id].replica.snapshot()).hex() for node in scene.running
    }
    assert len(digests) == 1
    scene.finish()


@pytest.mark.pure
def test_a_log_begins_with_what_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds whatever the policies are when a member reads the log."""
    monkeypatch.setattr(GroupHost, "_configure", lambda self: None)
    scene = Scene()
    client = scene.client("b")
    scene.propose("b", policy(max_length=2))
    queue_id = scene.declare(client, "quorum")
    for node in scene.running:
        queue = node.broker.vhost("/").queues["quorum"]
        assert queue.settings.max_length == 2
        assert node.cluster.hosts.grouped[queue_id].settings == queue.declared_settings


def test_a_queue_that_is_declared_under_a_policy() -> None:
    scene = Scene()
    client = scene.client("b")
    scene.propose("b", policy(max_length=2, overflow="reject-publish"))
    queue_id = scene.declare(client, "quorum")
    for _ in range(4):
        scene.publish(client, "quorum")
    assert client.nacked
    restart(scene, "a")
    assert lengths(scene, queue_id) == dict.fromkeys("abc", 2)
    scene.finish()


def test_a_change_that_was_on_its_way_when_the_leader_went_is_put_right_by_the_next_one() -> None:
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.place(client, "quorum", "abc")
    scene.propose("a", policy(max_length=50))
    scene.settle()
    host = scene.nodes["a"].cluster.hosts.grouped[queue_id]
    wanted = host.settings
    # A command with settings that do not hold any more.
    host.submit(("configure", replace(wanted, max_length=90)))
    scene.settle()
    for node in scene.running:
        assert node.cluster.hosts.grouped[queue_id].settings == wanted
    scene.finish()


def test_settings_follow_the_newest_leader_and_the_last_policy() -> None:
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.place(client, "quorum", "abc")
    scene.propose("a", policy(max_length=50))
    scene.lead("b", queue_id)
    scene.propose("c", policy(max_length=60))
    scene.lead("c", queue_id)
    scene.propose("a", ClearParameter("/", POLICY, "p"))
    scene.propose("a", policy(max_length=70))
    scene.settle()
    assert {node.cluster.hosts.grouped[queue_id].settings.max_length for node in scene.running} == {70}
    scene.finish()


def test_no_parameter_before_all_nodes_know_them() -> None:
    scene = old_scene()
    for node in scene.running:
        assert not node.topology.takes_parameters
        # Nodes of that version write this format.
        assert len(msgspec.msgpack.decode(node.topology.snapshot()[1:])) == 7
    for name in "abc":
        upgrade(scene, name)
    scene.ticks(60)
    assert all(node.topology.takes_parameters for node in scene.running)
    scene.propose("a", policy(max_length=50))
    scene.settle()
    for node in scene.running:
        assert [record.name for record in node.broker.runtime.parameters] == ["p"]
    scene.finish()


def test_policies_come_with_a_snapshot_of_the_topology() -> None:
    scene = Scene()
    client = scene.client("a")
    scene.declare(client, "quorum")
    scene.propose("a", policy(max_length=50))
    snapshot = scene.nodes["a"].topology.snapshot()
    scene.propose("a", ClearParameter("/", POLICY, "p"))
    scene.settle()
    topology = scene.nodes["b"].topology
    topology.restore(snapshot)
    queue = scene.nodes["b"].broker.vhost("/").queues["quorum"]
    assert queue.settings.max_length == 50
