"""Versions: what a node of the version before must be able to read, and when the cluster begins to use the
new version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pamqp import commands

from amqp_server.broker.declared import operations
from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.topology.topology_snapshot import LATER_FIELDS
from amqp_server.cluster.topology_group import GROUP, Catalog, Change, RaiseVersion
from amqp_server.cluster.wiring import FEATURES
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from quorum_queue.boundary import Fatal
from quorum_queue.links.handshake import Hello
from quorum_queue.machine import versions
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

#: A node of mqd 0.1 announces no features.
OLD: tuple[str, ...] = ()
#: Fields of a queue's row that mqd 0.1 knows.
OLD_FIELDS = 13
#: The same of a virtual host.
OLD_VHOST_FIELDS = 4


def old_scene() -> Scene:
    """A cluster in which all nodes have the version before."""

    class Old(Scene):
        def mend(self) -> None:
            for node in self.nodes.values():
                if not hasattr(node, "upgraded"):
                    node.features = OLD
            super().mend()

    return Old()


def upgrade(scene: Scene, name: str) -> None:
    node: Any = scene.nodes[name]
    scene.crash(node)
    node.upgraded = True
    node.features = FEATURES
    scene.doubt_all()
    scene.start(node)
    scene.connect_all()
    scene.settle()


def roster_versions(scene: Scene) -> list[int]:
    return [node.cluster.roster.version for node in scene.running]


def test_the_version_is_raised_when_the_last_node_knows_it() -> None:
    scene = old_scene()
    client = scene.client("a")
    queue_id = scene.declare(client, "quorum/q")
    for name in "ab":
        upgrade(scene, name)
        assert set(roster_versions(scene)) == {versions.FIRST}
    group_versions = [node.cluster.hosts.grouped[queue_id].replica.machine.version for node in scene.running]
    assert set(group_versions) == {versions.FIRST}
    upgrade(scene, "c")
    scene.ticks(60)
    assert set(roster_versions(scene)) == {versions.NEWEST}
    group_versions = [node.cluster.hosts.grouped[queue_id].replica.machine.version for node in scene.running]
    assert set(group_versions) == {versions.NEWEST}
    # A snapshot of the topology carries it.
    node = scene.nodes["a"]
    assert node.cluster.refusal(Hello("x", 1, "id", features=OLD))
    assert not node.cluster.refusal(Hello("x", 1, "id", features=FEATURES))
    scene.finish()


def test_it_is_not_raised_while_a_node_is_away() -> None:
    scene = old_scene()
    for name in "ab":
        upgrade(scene, name)
    node: Any = scene.nodes["c"]
    scene.crash(node)
    scene.ticks(100)
    assert set(roster_versions(scene)) == {versions.FIRST}
    node.upgraded, node.features = True, FEATURES
    scene.start(node)
    scene.connect_all()
    scene.settle()
    scene.ticks(60)
    assert set(roster_versions(scene)) == {versions.NEWEST}
    scene.finish()


def test_rows_of_the_topology_are_as_the_version_before_reads_them() -> None:
    assert len(QueueRecord.__struct_fields__) - len(LATER_FIELDS[QueueRecord]) == OLD_FIELDS
    scene = old_scene()
    members = ("a", "b", "c")
    record = QueueRecord(
        "/", "q", 0, False, encoded({"x-queue-type": "quorum"}), type="quorum", members=members, leader="a",
        deduplication_producers=7,
    )  # fmt: skip
    scene.propose("a", operations.DeclareQueue(record))
    for node in scene.running:
        (queue,) = node.broker.all_queues()
        # Such a node would always remember the default number.
        assert queue.record.deduplication_producers == 100_000
        state = msgspec.msgpack.decode(node.topology.snapshot()[1:])
        (rows,) = [part for part in state if isinstance(part, list) and part and part[0][1] == "q"]
        assert [len(row) for row in rows] == [OLD_FIELDS]
    for name in "abc":
        upgrade(scene, name)
    scene.ticks(60)
    scene.propose("a", operations.DeclareQueue(msgspec.structs.replace(record, name="r")))
    for node in scene.running:
        assert node.broker.vhost("/").queues["r"].record.deduplication_producers == 7
        other = msgspec.msgpack.decode(node.topology.snapshot()[1:])
        assert any(
            isinstance(part, list) and len(part) == 2 and len(part[1]) == OLD_FIELDS + 1 for part in other
        )


def test_rows_of_virtual_hosts_are_as_the_version_before_reads_them() -> None:
    assert len(VhostRecord.__struct_fields__) - len(LATER_FIELDS[VhostRecord]) == OLD_VHOST_FIELDS
    scene = Scene()
    node = scene.nodes["a"]
    for protected in (False, True):
        scene.propose("a", operations.PutVhost(VhostRecord("/", "text", protected_from_deletion=protected)))
        _, vhosts, *_ = msgspec.msgpack.decode(node.topology.snapshot()[1:])
        assert [len(row) for row in vhosts] == [OLD_VHOST_FIELDS + protected]


def test_what_is_paused_and_protected_comes_with_a_snapshot_of_the_topology() -> None:
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.declare(client, "quorum/q")
    scene.settle()
    node = scene.nodes["c"]
    scene.crash(node)
    for each in scene.running:
        # No log entries are kept for members that lag.
        replicas = each.cluster.replicas
        replicas.options = replace(replicas.options, log_bytes_max=1)
    scene.propose("a", operations.PauseQueue("/", "quorum/q", queue_id, True, True))
    scene.propose("a", operations.PauseQueue("/", "quorum/q", queue_id, publishes=False))
    scene.propose("a", operations.ProtectQueue("/", "quorum/q", queue_id, True))
    for _ in range(10):
        scene.declare(client, "classic")
        client.delete("classic")
        scene.wait_for(client)
    scene.ticks(20)
    scene.start(node)
    scene.connect_all()
    restored = node.restored
    scene.wait(lambda: node.restored > restored)
    record = node.broker.vhost("/").queues["quorum/q"].record
    assert (record.deliveries_paused, record.publishes_paused) == (True, False)
    assert record.protected_from_deletion and node.broker.counts.paused_queues == 1
    scene.settle()
    for each in scene.nodes.values():
        assert each.cluster.hosts.grouped[queue_id].settings.deliveries_paused
    scene.propose("b", operations.PauseQueue("/", "quorum/q", queue_id, False))
    scene.settle()
    for each in scene.nodes.values():
        assert not each.cluster.hosts.grouped[queue_id].settings.deliveries_paused
    scene.finish()


def test_a_version_that_this_mqd_does_not_know_ends_the_process() -> None:
    scene = Scene()
    replication = scene.nodes["a"].cluster.replication
    with pytest.raises(Fatal, match="start the version of mqd that the other nodes run"):
        replication.submit(RaiseVersion(versions.NEWEST + 1))
        scene.ticks(20)
    assert GROUP in scene.nodes["a"].cluster.replicas.groups


class Later(msgspec.Struct, frozen=True, array_like=True, tag=199):
    what: str


class Batch(msgspec.Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    number: int
    proposal: Later | Change


@pytest.mark.parametrize(
    "proposal",
    [Later("?"), Change(b"\x01" + msgspec.msgpack.encode(Later("?")))],
    ids=["proposal", "operation"],
)
def test_what_this_mqd_does_not_know_in_the_topologys_log_ends_the_process(proposal: Later | Change) -> None:
    """Instead of skipping the entry, the node stops: the other nodes apply it."""
    catalog = Scene().nodes["a"].cluster.catalog
    entry = catalog.encode([msgspec.msgpack.encode(Batch("z", 1, 1, proposal))])
    with pytest.raises(Fatal, match=r"entry 1000 .* can't be read by this version of mqd"):
        Catalog.apply(catalog, 1000, entry)


def declared(scene: Scene, name: str, **arguments: str) -> list[str]:
    """Have a client declare a queue; return the error that refuses it."""
    client = scene.client("a")
    table: dict[str, Any] = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.ask("declare", name, commands.Queue.Declare(queue=name, durable=True, arguments=table))
    scene.wait(lambda: client.asked is None)
    return client.refusals


def test_exchanges_that_let_messages_wait_need_the_last_node() -> None:
    """A node of an earlier version could not read the declaration."""
    scene = old_scene()
    for name in "ab":
        upgrade(scene, name)
    delayed = commands.Exchange.Declare(
        exchange="x", exchange_type="x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    for last in (False, True):
        client = scene.client("a")
        client.ask("declare exchange", "x", delayed)
        scene.wait(lambda asking=client: asking.asked is None)  # type: ignore[misc]
        if last:
            assert not client.refusals
            break
        (refused,) = client.refusals
        assert "needs a cluster whose nodes all run this version of mqd" in refused
        assert not any(node.broker.vhost("/").router.get("x") for node in scene.running)
        upgrade(scene, "c")
        scene.ticks(60)


def test_consumer_groups_wait_for_the_last_node() -> None:
    scene = old_scene()
    for name in "ab":
        upgrade(scene, name)
    group = {"x_queue_type": "stream-group", "x_stream": "s"}
    (refused,) = declared(scene, "g", **group)
    assert "needs a cluster whose nodes all run this version of mqd" in refused
    upgrade(scene, "c")
    scene.ticks(60)
    assert not declared(scene, "s", x_queue_type="stream")
    assert not declared(scene, "g", **group)
    scene.settle()
    queue_id = scene.nodes["a"].broker.vhost("/").queues["g"].queue_id
    hosts = [node.cluster.hosts.grouped[queue_id] for node in scene.running]
    assert [type(host) for host in hosts] == [ConsumerGroupMemberHost] * 3
    assert len({host.replica.digest() for host in hosts}) == 1
