"""Slow, full and broken disks, and starts from what they have."""

from __future__ import annotations

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.snapshots import compaction
from tests.quorum_queue.cluster.node import TICK_MS
from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")


def test_deliveries_wait_in_order_for_a_body_that_the_disk_lost() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(3):
        scene.publish("a", publisher)
        scene.work()
    node = scene.nodes["b"]
    scene.crash(node)
    scene.start(node)
    scene.heal()
    scene.settle()
    pinned = scene.host("b").replica.locations.pinned()
    scene.host("b").replicas.bodies.drop_group(scene.group_id)
    node.environment.groups.flip(scene.group_id, pinned[1])
    holder = scene.consume("b")
    scene.publish("a", publisher)
    for _ in range(8):
        # The request for the body does not arrive yet.
        for sender in "abc":
            for to in "abc":
                if sender != to:
                    scene.deliver(sender, to, lambda frame: frame[0] != frames.SEEK)
            sync(scene.nodes[sender])
    assert scene.host("b").replica.machine.unacked_count == 4
    # Later messages do not overtake it.
    assert not holder.unacked
    assert node.replicas.lost_entries.entries() == [(scene.group_id, pinned[1])]
    scene.work()
    assert [body.split(b".")[1] for body in holder.unacked.values()] == [b"1", b"2", b"3", b"4"]
    assert not node.replicas.lost_entries.entries()
    scene.finish()


def test_what_was_settled_while_it_waited_for_its_body_holds_nobody_up() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    scene.publish("a", publisher)
    scene.settle()
    host = scene.host("b")
    index = host.replica.locations.pinned()[0]
    node = scene.nodes["b"]
    scene.crash(node)
    scene.start(node)
    scene.heal()
    scene.settle()
    host = scene.host("b")
    for name in "abc":
        scene.nodes[name].replicas.bodies.drop_group(scene.group_id)
    node.environment.groups.flip(scene.group_id, index)
    # Without acks the message is settled as soon as it is handed out, and no node keeps its body.
    holder = scene.consume("b", no_ack=True)
    scene.isolate("b")
    scene.heal()
    scene.work(2)
    scene.publish("a", publisher)
    scene.work(80)
    assert not node.replicas.lost_entries.entries()
    assert holder.next_id == 2
    scene.finish()


def test_a_log_keeps_what_lies_behind_a_hole() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(4):
        scene.publish("a", publisher)
        scene.work()
    node = scene.nodes["c"]
    scene.crash(node)
    last = scene.host("a").group.core.last_index
    node.environment.groups.flip(scene.group_id, last - 1)
    scene.start(node)
    group = scene.host("c").group
    assert not group.core.amnesiac
    assert group.core.last_index == last
    assert not group.core.may_campaign()
    scene.heal()
    scene.settle()
    assert group.applied == scene.host("a").group.applied
    assert not node.environment.groups.groups[scene.group_id].damaged
    scene.finish()


def test_a_follower_that_cannot_apply_what_all_others_have_cut_off_is_filled_again() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    holder = scene.consume("a")
    for _ in range(3):
        scene.publish("a", publisher)
        scene.work()
    scene.settle_all(holder)
    scene.work()
    last = scene.host("a").group.core.last_index
    assert scene.host("c").group.core.last_index == last
    # c has everything on its disk, and after its start does not know that these entries are committed.
    scene.crash(scene.nodes["c"])
    for name in "ab":
        compaction.take_snapshot(scene.host(name).group)
    scene.work()
    assert scene.host("a").group.core.log.snapshot_index == last
    scene.start(scene.nodes["c"])
    group = scene.host("c").group
    assert group.core.last_index == last > group.applied
    scene.nodes["c"].environment.groups.flip(scene.group_id, group.applied + 1)
    scene.heal()
    scene.settle()
    assert not group.core.amnesiac
    assert group.applied == scene.host("a").group.applied
    scene.finish()


def test_a_leader_that_cannot_read_what_only_it_has_gives_way() -> None:
    scene = Scene()
    scene.isolate("b")
    scene.isolate("c")
    publisher = scene.publisher("a")
    for _ in range(2):
        scene.publish("a", publisher)
        sync(scene.nodes["a"])
    committed = scene.host("a").group.applied
    for name in "abc":
        scene.crash(scene.nodes[name])
    for name in "abc":
        scene.start(scene.nodes[name])
    # Node a has the longest log: it leads, unless its disk fails.
    assert scene.host("a").group.core.last_index == committed + 2
    scene.nodes["a"].environment.groups.flip(scene.group_id, committed + 1)
    scene.network.blocked.clear()
    scene.network.connect("a", "b")
    for _ in range(60):
        scene.work(1)
        if scene.host("a").group.is_leader:
            break
    assert scene.host("a").group.is_leader
    scene.heal()
    scene.settle()
    assert not scene.host("a").group.core.amnesiac
    assert scene.host("a").group.applied == scene.host("b").group.applied
    scene.finish()


def test_an_entry_that_is_not_applied_yet_is_not_given_to_others() -> None:
    scene = Scene()
    group = scene.host("b").group
    scene.nodes["b"].received(
        "c", [b"".join(frames.fetch(scene.group_id, [group.applied + 1, group.applied]))]
    )
    answer = [frame for frame in scene.nodes["b"].sessions["c"].streams["c"] if frame[0] == frames.ENTRIES]
    _, found = frames.parse_entries(memoryview(answer[0]))
    assert [(entry.index, entry.kind == frames.GONE) for entry in found] == [
        (group.applied + 1, True),
        (group.applied, False),
    ]
    scene.finish()


def test_a_restart_keeps_what_lies_below_the_snapshot_and_is_wanted() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(30):
        scene.publish("a", publisher, size=200)
        scene.work()
    holder = scene.consume("a", prefetch=0)
    scene.work()
    for number in list(holder.unacked)[1:]:
        del holder.unacked[number]
        scene.ledger.said["settle", holder.owner, number] = None
        holder.queue.host.submit(("settle", holder.key, number, number))
    node = scene.nodes["a"]
    node.end_turn()
    scene.settle()
    first = scene.host("a").replica.locations.pinned()
    assert len(first) == 1
    for name in "abc":
        group = scene.host(name).group
        compaction.take_snapshot(group)
    # The snapshots reach the disks, and the entries that they replace are not yet deleted everywhere.
    scene.nodes["b"].disk.begin()
    scene.nodes["b"].disk.end()
    scene.crash(scene.nodes["b"])
    scene.start(scene.nodes["b"])
    stored = scene.nodes["b"].environment.groups.groups[scene.group_id]
    sync(scene.nodes["b"])
    assert [index for index in stored.entries if index <= scene.host("b").group.snapshot_index] == first
    scene.finish()


def test_a_snapshot_that_names_what_was_deleted_since_raises_no_alarm() -> None:
    """Bodies are deleted as soon as their messages are settled, long before the next snapshot is due."""
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(4):
        scene.publish("a", publisher)
        scene.work()
    scene.settle()
    for name in "abc":
        compaction.take_snapshot(scene.host(name).group)
    scene.work()
    named = scene.host("b").replica.locations.pinned()
    holder = scene.consume("a")
    scene.work()
    scene.settle_all(holder)
    scene.settle()
    for name in "abc":
        compaction.compact(scene.host(name).group)
    scene.work()
    stored = scene.nodes["b"].environment.groups.groups[scene.group_id]
    assert named and not any(index in stored.entries for index in named)
    # All nodes begin with the snapshot, and none knows yet which later entries are committed.
    for name in "abc":
        scene.crash(scene.nodes[name])
    for name in "abc":
        scene.start(scene.nodes[name])
    assert scene.host("b").replica.locations.pinned() == named
    scene.nodes["b"].tick()
    scene.heal()
    scene.settle()
    assert [scene.nodes[name].replicas.lost_entries.found_count for name in "abc"] == [0, 0, 0]
    scene.finish()


def test_what_a_snapshot_names_and_the_disk_has_lost_is_fetched_once_that_is_certain() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(3):
        scene.publish("a", publisher)
        scene.work()
    scene.settle()
    for name in "abc":
        compaction.take_snapshot(scene.host(name).group)
    scene.work()
    node = scene.nodes["b"]
    lost = scene.host("b").replica.locations.pinned()[1]
    scene.crash(node)
    node.environment.groups.flip(scene.group_id, lost)
    scene.start(node)
    assert (node.replicas.lost_entries.found_count, len(node.replicas.lost_entries)) == (0, 1)
    scene.heal()
    scene.settle()
    assert (node.replicas.lost_entries.found_count, len(node.replicas.lost_entries)) == (1, 0)
    assert not node.environment.groups.groups[scene.group_id].damaged
    scene.finish()


def test_what_no_peer_has_answered_is_asked_for_again() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(3):
        scene.publish("a", publisher)
        scene.work()
    node = scene.nodes["b"]
    lost = scene.host("b").replica.locations.pinned()[1]
    scene.host("b").replicas.bodies.drop_group(scene.group_id)
    node.environment.groups.flip(scene.group_id, lost)
    scene.consume("b")
    for _ in range(8):
        for sender in "abc":
            for to in "abc":
                if sender != to:
                    scene.deliver(sender, to, lambda frame: frame[0] != frames.SEEK)
            sync(scene.nodes[sender])
    # The request is lost, and the link stays up.
    for peer in "ac":
        stream = node.sessions[peer].streams[peer]
        while stream:
            stream.pop()
    scene.work(2 * ReplicationOptions().lost_entry_retry_ms // TICK_MS)
    assert not node.replicas.lost_entries.entries()
    scene.finish()
