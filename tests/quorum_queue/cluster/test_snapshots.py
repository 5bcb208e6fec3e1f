"""Followers that are filled by a snapshot, and what may disturb that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amqp_server.turn import Turn
from quorum_queue.cluster import frames
from quorum_queue.cluster.snapshots import compaction, transfer
from quorum_queue.machine import locations, versions
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.cluster.network import OPEN
from tests.quorum_queue.cluster.node import TICK_MS
from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")


def lagging(scene: Scene, count: int = 30, size: int = 200) -> None:
    """Leave c so far behind that it needs a snapshot."""
    scene.isolate("c")
    scene.work(12)
    publisher = scene.publisher("a")
    for _ in range(count):
        scene.publish("a", publisher, size=size)
        scene.work()
    assert not publisher.waiting
    assert scene.host("a").group.core.log.snapshot_index > scene.host("c").group.core.last_index


def begun(scene: Scene) -> None:
    """Let the snapshot for c begin; nothing of it has arrived yet."""
    scene.network.blocked.clear()
    scene.network.connect("a", "c")
    for _ in range(60):
        for place in scene.network.places():
            if place[0].states[place[1]] == OPEN and scene.on_the_way("a", "c", frames.STATE):
                return
            scene.network.go_on(*place)
        for node in scene.running:
            sync(node)
            node.tick()
    raise AssertionError("no snapshot is sent")


def test_a_snapshot_brings_every_body() -> None:
    scene = Scene()
    lagging(scene)
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    pinned = scene.host("c").replica.locations.pinned()
    assert len(pinned) == 30
    for index in pinned:
        assert scene.nodes["c"].store.read_one(scene.group_id, index).data == scene.ledger.entries[index]
    scene.finish()


@pytest.mark.pure
@pytest.mark.parametrize("version", [versions.FIRST, versions.NEWEST])
def test_a_snapshot_is_made_and_read_in_parts(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns have time for one part, of one run, and the queue goes on meanwhile."""
    scene = Scene()
    if version == versions.NEWEST:
        scene.raise_version()
    assert scene.host("a").replica.machine.version == version
    for name in ("PART_MESSAGES", "PART_RUNS", "PART_BLOCKS"):
        monkeypatch.setattr(snapshot, name, 1)
    monkeypatch.setattr(locations, "BLOCK_SPANS", 4)
    lagging(scene)
    parts: Counter[str] = Counter()
    overdue = Turn.overdue
    monkeypatch.setattr(Turn, "overdue", lambda turn: bool(parts.pop("just made", 0)) or overdue(turn))
    for kind in (snapshot.View, snapshot.Reading):

        def counted(each: Any, go_on: Callable[[Any], bool] = kind.go_on) -> bool:
            parts[type(each).__name__] += 1
            parts["just made"] += 1
            return go_on(each)

        monkeypatch.setattr(kind, "go_on", counted)
    publisher = scene.publisher("a")
    scene.heal()
    for _ in range(60):
        scene.publish("a", publisher)
        scene.work(3)
        for node in scene.running:
            if node.turn.behind:
                node.turn.run(node.turn.catch_up)
    scene.settle()
    assert scene.nodes["c"].restored >= 1
    assert parts["View"] > 5 and parts["Reading"] > 5
    scene.finish()


def test_a_follower_counts_for_nothing_until_it_has_every_body() -> None:
    scene = Scene()
    lagging(scene)
    begun(scene)
    scene.isolate("b")
    publisher = scene.publisher("a")
    scene.publish("a", publisher)
    # State and bodies come, but c's disk does not write them.
    for _ in range(200):
        sync(scene.nodes["a"])
        for place in scene.network.places():
            scene.network.go_on(*place)
    leadership = scene.host("a").group.core.leadership
    assert leadership is not None
    assert leadership.peers["c"].match < scene.host("a").group.applied
    assert publisher.waiting
    scene.finish()


@pytest.mark.parametrize("frames_taken", [1, 3, 6, 12])
def test_a_snapshot_that_is_interrupted_begins_anew(frames_taken: int) -> None:
    scene = Scene()
    lagging(scene)
    begun(scene)
    for _ in range(frames_taken):
        for sender, to in (("a", "c"), ("c", "a")):
            session = scene.nodes[to].sessions[sender]
            if session.streams[to]:
                scene.network.go_on(session, to)
    for session in scene.sessions_of("c"):
        scene.end_session(session)
    assert scene.host("c").group.receiving is None
    assert not scene.host("a").group.sending
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    scene.finish()


def test_the_leader_changes_while_a_snapshot_is_sent() -> None:
    scene = Scene()
    lagging(scene)
    begun(scene)
    scene.deliver("a", "c", lambda frame: frame[0] != frames.STATE)
    scene.network.go_on(scene.nodes["c"].sessions["a"], "c")
    scene.isolate("a")
    scene.network.blocked.clear()
    scene.network.connect("b", "c")
    scene.work(40)
    assert scene.host("b").group.is_leader
    assert scene.nodes["c"].restored == 1
    scene.finish()


def test_a_leader_that_is_deposed_while_it_sends_a_snapshot_sends_no_more_of_it() -> None:
    """A piece would have the number of the new term, as if it came from the new leader, whose transfer would
    end.
    """
    scene = Scene()
    lagging(scene)
    begun(scene)
    group = scene.host("a").group
    assert group.sending is not None
    state = group.sending["c"].state
    assert state is not None
    # The link took none of it yet.
    group.sending["c"].offset = 0
    session = scene.nodes["c"].sessions["a"]
    session.streams["c"].clear()
    scene.nodes["a"].turn.run(group.core.step_down)
    scene.nodes["a"].turn.run(transfer.go_on, group)
    scene.nodes["a"].end_turn()
    assert not group.sending
    assert not scene.on_the_way("a", "c", frames.STATE)


def test_a_snapshot_that_was_dropped_begins_anew_though_its_receiver_asks_for_what_nobody_has() -> None:
    scene = Scene()
    lagging(scene)
    begun(scene)
    scene.deliver("a", "c", lambda frame: frame[0] != frames.STATE)
    scene.network.go_on(scene.nodes["c"].sessions["a"], "c")
    receiver = scene.host("c").group
    assert receiver.receiving is not None
    receiver.receiving = None
    gone = scene.host("a").replica.locations.pinned()[-1] + 1000
    timeout_ms = 1_000
    for node in scene.nodes.values():
        node.replicas.options = replace(node.replicas.options, transfer_timeout_ms=timeout_ms)
    for _ in range(timeout_ms // TICK_MS + 20):
        scene.nodes["a"].received("c", [b"".join(frames.fetch(scene.group_id, [gone]))])
        scene.work(1)
    assert scene.nodes["c"].restored == 1
    scene.finish()


def test_a_leader_that_has_just_started_fills_a_follower_without_what_was_settled_since_its_snapshot() -> (
    None
):
    """The leader cannot know yet which entries are committed: for that it needs the very follower that it
    fills.
    """
    scene = Scene()
    publisher = scene.publisher("a")
    for _ in range(4):
        scene.publish("a", publisher)
        scene.work()
    scene.settle()
    scene.isolate("c")
    scene.work(12)
    holder = scene.consume("a")
    for _ in range(30):
        scene.publish("a", publisher, size=200)
        scene.work()
    for name in "ab":
        compaction.take_snapshot(scene.host(name).group)
    scene.work()
    named = scene.host("b").replica.locations.pinned()
    scene.settle_all(holder)
    scene.work(4)
    for name in "ab":
        compaction.compact(scene.host(name).group)
    scene.work()
    stored = scene.nodes["b"].environment.groups.groups[scene.group_id]
    assert not any(index in stored.entries for index in named[:4])
    for name in "abc":
        scene.crash(scene.nodes[name])
    for name in "bc":
        scene.start(scene.nodes[name])
    scene.network.blocked.clear()
    scene.network.connect("b", "c")
    scene.work(60)
    assert scene.host("b").group.is_leader
    assert scene.nodes["c"].restored == 1
    assert scene.host("c").group.applied == scene.host("b").group.core.last_index
    scene.finish()


def test_late_bodies_of_one_snapshot_do_not_end_another() -> None:
    scene = Scene()
    lagging(scene)
    begun(scene)
    group = scene.host("c").group
    state = [frame for frame in scene.nodes["a"].sessions["c"].streams["c"] if frame[0] == frames.STATE]
    assert len(state) > 1
    while group.receiving is None:
        scene.network.go_on(scene.nodes["c"].sessions["a"], "c")
    index = scene.host("a").replica.locations.pinned()[0]
    entry = scene.nodes["a"].store.read_one(scene.group_id, index)
    late = frames.StoredEntry(entry.index, entry.term, entry.kind, entry.data)
    scene.nodes["c"].received("b", [b"".join(frames.entries(scene.group_id, [late]))])
    assert group.receiving is not None
    assert not group.receiving.storing
    scene.finish()


def test_a_snapshot_replaces_what_was_never_committed() -> None:
    scene = Scene()
    scene.isolate("a")
    # Entries that a wrote as leader, before it knew that it was alone, are in no other log.
    publisher = scene.publisher("a")
    for _ in range(3):
        scene.publish("a", publisher)
        sync(scene.nodes["a"])
    tail = scene.host("a").group.core.last_index
    scene.work(12)
    other = scene.publisher("b")
    for _ in range(40):
        scene.publish("b", other, size=200)
        scene.work()
    assert not other.waiting
    leader = scene.leading(scene.declared[0])
    assert leader is not None and leader.core.log.snapshot_index > tail
    scene.heal()
    scene.settle()
    assert scene.nodes["a"].restored == 1
    assert not publisher.waiting
    scene.finish()


def test_a_publisher_is_not_told_that_a_full_queue_took_it() -> None:
    """Only the others know what became of the batch; here a snapshot has replaced it."""
    scene = Scene("full")
    filler = scene.publisher("a")
    scene.publish("a", filler, 5)
    scene.work()
    publisher = scene.publisher("c")
    scene.publish("c", publisher, 2)
    scene.deliver("c", "a")
    scene.isolate("c")
    for _ in range(30):
        scene.publish("a", filler, size=200)
        scene.work(1)
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    assert not publisher.waiting
    assert len(publisher.refusals) == 2
    scene.finish()


def test_a_nack_may_mean_that_nobody_knows() -> None:
    """The same where the queue had room: the messages are there, and their publisher's node cannot know
    that.
    """
    scene = Scene("full")
    publisher, filler = scene.publisher("c"), scene.publisher("a")
    scene.publish("c", publisher, 2)
    scene.deliver("c", "a")
    scene.isolate("c")
    for _ in range(30):
        scene.publish("a", filler, size=200)
        scene.work(1)
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    assert not publisher.waiting
    assert len(publisher.refusals) == 2
    assert all(scene.ledger.accepted.get(body) for body in publisher.bodies[1:])
    scene.finish()


def test_a_publisher_is_not_told_that_a_paused_queue_took_it() -> None:
    """It was paused when the batch came, and neither before nor when its node hears of it again."""
    scene = Scene("plain")
    scene.raise_version()
    filler, publisher = scene.publisher("a"), scene.publisher("c")
    scene.publish("a", filler)
    scene.work()
    resumed = scene.host("a").settings
    scene.publish("c", publisher, 2)
    scene.configure(replace(resumed, publishes_paused=True), "a", "b")
    scene.deliver("c", "a")
    scene.isolate("c")
    scene.work()
    scene.configure(resumed, "a", "b")
    for _ in range(30):
        scene.publish("a", filler, size=200)
        scene.work(1)
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    assert not publisher.waiting
    assert len(publisher.refusals) == 2
    assert not any(scene.ledger.accepted.get(body) for body in publisher.bodies[1:])
    scene.finish()


def test_a_nack_for_its_length_means_that_a_message_is_not_there() -> None:
    scene = Scene("full")
    publisher = scene.publisher("c")
    scene.publish("c", publisher, 8)
    scene.work(2)
    assert not publisher.waiting
    assert len(publisher.refusals) == 3
    assert list(scene.ledger.accepted) == publisher.bodies[1:6]
    scene.finish()


def test_a_consumer_gets_what_a_snapshot_says_that_it_holds() -> None:
    scene = Scene()
    holder = scene.consume("c", prefetch=3)
    scene.work()
    # The log goes on without c, but not for long enough that c is taken for down.
    for session in scene.sessions_of("c"):
        scene.end_session(session)
    publisher = scene.publisher("a")
    for _ in range(40):
        scene.publish("a", publisher, size=200)
        scene.work()
    assert not holder.unacked
    scene.heal()
    scene.settle()
    assert scene.nodes["c"].restored == 1
    assert len(holder.unacked) == 3
    scene.finish()
