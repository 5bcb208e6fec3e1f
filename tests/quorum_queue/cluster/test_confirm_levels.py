"""Publishers choose when messages are confirmed: when the leader has them, when a majority has them, or when
all members in reach have them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum_queue.cluster import frames
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY
from quorum_queue.ports import Refused
from tests.quorum_queue.cluster.clients import Publisher
from tests.quorum_queue.cluster.scene import Scene, sync


def waiting(*publishers: Publisher) -> list[int]:
    return [len(publisher.waiting) for publisher in publishers]


def publishers(scene: Scene, node: str) -> tuple[Publisher, Publisher, Publisher]:
    """Return one publisher of each level, each with one message: leader, majority, all."""
    found = scene.publisher(node), scene.publisher(node), scene.publisher(node)
    for publisher, level in zip(found, (LEADER, MAJORITY, ALL), strict=True):
        scene.publish(node, publisher, level=level)
    return found


def hold(scene: Scene, *nodes: str) -> None:
    """Nothing arrives at these nodes for now, and no node has noticed that yet."""
    for node in nodes:
        for other in scene.names:
            if other != node:
                scene.network.blocked[other, node] = None


@pytest.mark.parametrize("node", ["a", "b"])
def test_each_level_is_confirmed_when_it_is_reached(node: str) -> None:
    scene = Scene()
    others = [name for name in "abc" if name not in ("a", node)]
    found = publishers(scene, node)
    assert waiting(*found) == [1, 1, 1]
    if node == "b":
        scene.deliver("b", "a")
    assert waiting(*found) == [1, 1, 1]
    sync(scene.nodes["a"])
    if node == "b":
        scene.deliver("a", "b", lambda frame: frame[0] == frames.RAFT)
        scene.deliver("a", "b")
    # The message is on the leader's disk, and nowhere else.
    assert waiting(*found) == [0, 1, 1]
    assert not any(body in scene.ledger.accepted for publisher in found for body in publisher.bodies[1:])
    hold(scene, *others)
    scene.work_off()
    # A majority has it: one of two followers, if the publisher is at the leader; otherwise the publisher's
    # node.
    assert waiting(*found)[:2] == ([0, 0] if len(others) == 1 else [0, 1])
    assert waiting(*found)[2] == 1
    scene.network.blocked.clear()
    scene.work_off()
    assert waiting(*found) == [0, 0, 0]
    scene.finish()


def test_a_member_that_is_not_reached_any_more_is_not_waited_for() -> None:
    scene = Scene()
    hold(scene, "c")
    publisher = scene.publisher("b")
    scene.publish("b", publisher, level=ALL)
    scene.work(1)
    assert publisher.bodies[1] in scene.ledger.accepted
    assert waiting(publisher) == [1]
    scene.work(10)
    assert waiting(publisher) == [0]
    scene.finish()


def test_the_next_leader_is_asked() -> None:
    """The earlier leader was told that a publisher waits until all have the message."""
    scene = Scene()
    hold(scene, "c")
    publisher = scene.publisher("b")
    scene.publish("b", publisher, level=ALL)
    scene.work_off()
    assert waiting(publisher) == [1]
    scene.crash(scene.nodes["a"])
    scene.network.blocked.clear()
    scene.work(30)
    assert waiting(publisher) == [0]
    scene.finish()


def test_what_only_a_leader_has_confirmed_goes_with_it_and_is_delivered_by_nobody() -> None:
    scene = Scene()
    holder = scene.consume("b")
    scene.work_off()
    hold(scene, "b", "c")
    publisher = scene.publisher("a")
    scene.publish("a", publisher, level=LEADER)
    sync(scene.nodes["a"])
    assert waiting(publisher) == [0]
    consumer = scene.consume("a", queue="plain")
    scene.work_off()
    assert not holder.unacked and not consumer.unacked
    for name in "bc":
        scene.nodes["a"].sessions[name].streams[name].clear()
    scene.crash(scene.nodes["a"])
    scene.network.blocked.clear()
    scene.work(30)
    scene.finish()
    # Another node led without the message, so the log of the node that came back is cut.
    assert publisher.bodies[1] not in scene.ledger.accepted
    assert scene.ledger.count["lost with the leader that confirmed it"] == 1


def test_what_a_leader_has_confirmed_comes_again_from_its_publishers_node() -> None:
    """As long as the publisher's node runs, nothing is lost with the leader."""
    scene = Scene()
    publisher = scene.publisher("b")
    hold(scene, "c")
    scene.publish("b", publisher, level=LEADER)
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    # Only the report of the sync arrives, and the leader is gone.
    stream = scene.nodes["b"].sessions["a"].streams["b"]
    words = [frame for frame in stream if frame[0] == frames.SYNCED]
    stream.clear()
    stream.extend(words)
    assert scene.deliver("a", "b") == 1
    assert waiting(publisher) == [0]
    scene.crash(scene.nodes["a"])
    scene.network.blocked.clear()
    scene.work(30)
    assert publisher.bodies[1] in scene.ledger.accepted
    scene.finish()


def test_a_word_of_a_leader_that_is_none_any_more_confirms_nothing() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    hold(scene, "b")
    scene.publish("b", publisher, level=LEADER)
    # The leader gets the message and reports that; before the report arrives another node leads.
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    assert scene.on_the_way("a", "b", frames.SYNCED) == 1
    group = scene.host("b").group
    group.core.become_follower(group.core.term + 1, "")
    scene.network.blocked.clear()
    scene.deliver("a", "b")
    assert waiting(publisher) == [1]
    scene.work(40)
    assert waiting(publisher) == [0]
    scene.finish()


def test_a_full_queue_decides_when_it_is_committed() -> None:
    """The queue may refuse them, so a leader confirms nothing early."""
    scene = Scene("full")
    hold(scene, "b", "c")
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 8, level=LEADER)
    sync(scene.nodes["a"])
    assert waiting(publisher) == [8]
    scene.network.blocked.clear()
    scene.work_off()
    assert waiting(publisher) == [0]
    assert len(publisher.refusals) == 3
    scene.finish()


def test_a_paused_queue_takes_what_its_leader_has_confirmed() -> None:
    """Its node did not know yet that the queue is paused; later messages are refused."""
    scene = Scene()
    scene.raise_version()
    publisher = scene.publisher("b")
    scene.configure(replace(scene.host("a").settings, publishes_paused=True), "a")
    scene.publish("b", publisher, 2, level=LEADER)
    scene.work_off()
    assert waiting(publisher) == [0] and not publisher.refusals
    scene.configure(scene.host("a").settings, "b", "c")
    scene.publish("b", publisher, level=LEADER)
    scene.work_off()
    assert len(publisher.refusals) == 1
    assert list(scene.ledger.accepted) == publisher.bodies[1:3]
    assert scene.ledger.count["taken by a paused queue"] == 1
    scene.finish()


def test_what_a_full_queue_refuses_does_not_overtake_what_it_took() -> None:
    """On a node without a copy, a confirm of later messages would say that the earlier ones are lost."""
    scene = Scene("full", names="abcd", members="abc")
    hold(scene, "c")
    publisher = scene.publisher("d")
    scene.publish("d", publisher, 8, level=ALL)
    scene.work_off()
    assert waiting(publisher) == [8]
    scene.network.blocked.clear()
    scene.work_off()
    assert waiting(publisher) == [0]
    assert publisher.refusals == publisher.bodies[6:]
    scene.finish()


def test_many_of_them_share_syncs_and_wait_for_no_commit() -> None:
    """Of other messages at most two entries are under way. These messages would then wait for followers, for
    no reason.
    """
    scene = Scene()
    hold(scene, "b", "c")
    publisher = scene.publisher("a")
    core = scene.host("a").group.core
    first = core.last_index
    for _ in range(5):
        for _ in range(3):
            scene.publish("a", publisher, level=LEADER)
        sync(scene.nodes["a"])
    assert waiting(publisher) == [0]
    assert core.last_index - first <= 10
    scene.network.blocked.clear()
    scene.finish()


@pytest.mark.parametrize("level", [LEADER, MAJORITY, ALL])
def test_a_node_without_a_copy_gets_the_answer_over_the_link(level: int) -> None:
    scene = Scene(names="abcd", members="abc")
    publisher = scene.publisher("d")
    hold(scene, "c") if level == ALL else hold(scene, "b", "c")
    scene.publish("d", publisher, level=level)
    scene.work_off()
    assert waiting(publisher) == [0 if level == LEADER else 1]
    scene.network.blocked.clear()
    scene.work_off()
    assert waiting(publisher) == [0]
    scene.finish()


def test_a_single_member_is_leader_majority_and_all() -> None:
    scene = Scene(names="abc", members="a")
    found = publishers(scene, "a")
    sync(scene.nodes["a"])
    scene.work_off()
    assert waiting(*found) == [0, 0, 0]
    scene.finish()


@pytest.mark.parametrize("deleted", [True, False])
def test_who_waits_for_all_is_answered_when_the_queue_goes(deleted: bool) -> None:
    scene = Scene()
    hold(scene, "c")
    publisher = scene.publisher("b")
    scene.publish("b", publisher, level=ALL)
    scene.work_off()
    assert waiting(publisher) == [1]
    host = scene.host("b")
    if deleted:
        scene.ledger.deleted = True
        host.close()
        assert not publisher.refusals
    else:
        host._refuse_publishes()
        assert len(publisher.refusals) == 1
    assert waiting(publisher) == [0]


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "moved"])
def test_a_transaction_that_waits_for_all_is_answered_when_the_queue_goes(deleted: bool) -> None:
    """What it sent to a queue that is deleted is lost with the queue."""
    scene = Scene()
    scene.raise_version()
    hold(scene, "b", "c")
    answers: list[int | Refused] = []
    host = scene.host("a")
    host.prepare(("a", 1, 1), 0, [1], answers.append, ALL)
    scene.nodes["a"].end_turn()
    assert not answers
    if deleted:
        scene.ledger.deleted = True
        host.close()
    else:
        scene.nodes["a"].turn.run(host.hand_over, scene.nodes["a"].queues[scene.name].host)
    scene.nodes["a"].end_turn()
    assert [isinstance(answer, Refused) for answer in answers] == [not deleted]


def test_frames_of_confirm_levels_are_read_as_written() -> None:
    early = b"".join(frames.early(7, 3, 9, b"batch"))
    assert frames.parse_early(memoryview(early)) == (7, 3, 9, b"batch")
    synced = b"".join(frames.synced(7, 3, 9))
    assert frames.parse_early(memoryview(synced)) == (7, 3, 9, b"")
    wanted = b"".join(frames.await_all(7, 3, 9))
    assert frames.parse_early(memoryview(wanted)) == (7, 3, 9, b"")
    assert frames.parse_stopped(memoryview(b"".join(frames.reached(7, 9)))) == (7, 9)
    with pytest.raises(frames.FrameError):
        frames.parse_early(memoryview(synced[:-1]))
