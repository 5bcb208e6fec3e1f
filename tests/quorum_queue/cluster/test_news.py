"""What all groups of a node have to hear they hear one after the other, and each before any later frame."""

from __future__ import annotations

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.raft.messages import COMMIT, Message, encode_message
from tests.quorum_queue.cluster.scene import Scene

#: It looks into the class.
pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("quiet")]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record what groups hear from now on."""
    heard: list[tuple[str, int]] = []
    for name in ("_link_up", "_link_down"):

        def note(self: Replicas, peer: str, group: Group, name: str = name) -> None:
            heard.append((name, group.id))

        monkeypatch.setattr(Replicas, name, note)
    monkeypatch.setattr(
        Replicas, "_step", lambda self, group, message: heard.append(("frame", group.id)), raising=True
    )
    return heard


def three_groups(scene: Scene) -> tuple[Replicas, list[int]]:
    replicas = scene.nodes["b"].replicas
    (group,) = replicas.groups.values()
    own: list[int] = [group.id]
    for number in (1_001, 1_002):
        core = group.core
        opened = replicas.open(
            number, group.machine, members=core.members, hard=core.hard, log=core.log, applied=0
        )
        own.append(opened.id)
    return replicas, own


def test_a_group_hears_of_links_before_a_frame_of_the_next_link(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas, own = three_groups(Scene())
    heard = recorded(monkeypatch)
    replicas.link_down("a")
    replicas.link_up("a")
    assert heard == [] and replicas.has_news
    steps = replicas.tell()
    next(steps)
    assert heard == [("_link_down", own[0]), ("_link_up", own[0])]
    heard.clear()
    message = Message(COMMIT, "a", "b", 1)
    frame = b"".join(encode_message(own[2], message, bytes((frames.RAFT,))))
    replicas.received("a", memoryview(frame))
    assert heard == [("_link_down", own[2]), ("_link_up", own[2]), ("frame", own[2])]
    heard.clear()
    # News of the next minute, while some groups have not heard the first ones.
    replicas.link_down("a")
    list(steps)
    told = [("_link_down", own[1]), ("_link_up", own[1]), ("_link_down", own[1])]
    assert heard[:3] == told
    list(replicas.tell())
    assert sorted(heard) == sorted([*told, ("_link_down", own[0]), ("_link_down", own[2])])
    assert not replicas.has_news
    list(replicas.tell())
    assert len(heard) == 5


def test_a_new_group_hears_no_old_news(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    heard = recorded(monkeypatch)
    scene.nodes["b"].replicas.link_down("a")
    replicas, own = three_groups(scene)
    list(replicas.tell())
    assert heard == [("_link_down", own[0])]


def test_a_batch_that_a_link_lost_is_sent_again_though_its_leader_stays_leader() -> None:
    """In one turn the group hears that the link broke, that it is up again, and the leader's next frame."""
    scene = Scene()
    node, publisher = scene.nodes["b"], scene.publisher("b")
    replicas = node.replicas
    (group,) = replicas.groups.values()
    scene.publish("b", publisher)
    node.sessions["a"].streams["a"].clear()
    message = Message(COMMIT, "a", "b", group.core.term)
    frame = b"".join(encode_message(group.id, message, bytes((frames.RAFT,))))

    def turn() -> None:
        replicas.link_down("a")
        replicas.link_up("a")
        replicas.received("a", memoryview(frame))

    node.turn.run(turn)
    node.end_turn()
    assert group.leader == "a"
    scene.work(2)
    assert not publisher.waiting and not publisher.refusals
    scene.finish()


def test_a_tick_that_takes_several_turns_forgets_no_link_that_came_meanwhile() -> None:
    scene = Scene(more=("single", "dead"))
    node, publisher = scene.nodes["a"], scene.publisher("a")
    replicas = node.replicas
    scene.network.close(node.sessions["c"], "a")
    scene.work()
    scene.publish("a", publisher)
    scene.work()
    group = replicas.groups[scene.group_id]
    assert not publisher.waiting and len(replicas.groups) == 3
    # It comes last.
    replicas.active = dict.fromkeys(sorted(replicas.groups.values(), key=lambda each: each is group))
    steps = replicas.ticks()
    next(steps)
    scene.network.connect("a", "c")
    scene.work_off()
    list(steps)
    node.end_turn()
    scene.work_off()
    # No further tick may come to it: it may be idle.
    assert group.core.leadership is not None and group.core.leadership.peers["c"].contact
    (applied,) = {scene.nodes[name].replicas.groups[scene.group_id].applied for name in "abc"}
    assert applied == group.applied
    scene.finish()
