"""Groups of a queue, and what can disturb them: leaders that change, links that break, snapshots, disks,
members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.machine.entries import decode_entry
from tests.quorum_queue.cluster.clients import Holder
from tests.quorum_queue.cluster.node import REPLICATION, TICK_MS
from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")


def enqueues(scene: Scene) -> list[tuple[str, int]]:
    """Return node and number of each batch in the log that published messages."""
    return [
        (batch.node, batch.number)
        for data in scene.ledger.entries.values()
        if data is not None
        for batch in decode_entry(data).batches
        if any(command[0] == "enqueue" for command in batch.commands)
    ]


# -- leaders -------------------------------------------------------------------------------------------------


def test_what_a_lost_leader_had_is_sent_again_and_taken_once() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    for _ in range(3):
        scene.publish("b", publisher, 2)
    # The leader has them in its log and has sent them on; then it is gone before it has told anybody.
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    scene.deliver("a", "b")
    scene.isolate("a")
    scene.work(20)
    assert not publisher.waiting
    assert not publisher.refusals
    scene.heal()
    scene.work(20)
    # The log may have a batch twice, once from each leader; the queue has each message once.
    assert sorted(dict.fromkeys(enqueues(scene))) == [("b", 1), ("b", 2), ("b", 3)]
    assert [len(seqs) for seqs in scene.ledger.accepted.values()] == [1] * 6
    scene.finish()


@pytest.mark.parametrize("name", ["a", "b"])
def test_nothing_is_applied_while_an_entry_is_made_ready(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry may be made ready on the leader or on another node: the other nodes go on."""
    scene = Scene()
    publisher = scene.publisher("b")
    scene.publish("b", publisher, 1)
    scene.work(20)
    (group,) = scene.nodes[name].replicas.groups.values()
    before, waiting = group.applied, list[Callable[[], None]]()

    def foresee(index: int, data: bytes, ready: Callable[[], None]) -> bool:
        waiting.append(ready)
        return True

    made = property(lambda host: foresee if host is group.machine else None)
    monkeypatch.setattr(GroupHost, "foresee", made)
    scene.publish("b", publisher, 2)
    scene.work(20)
    assert waiting and group.applied == before < group.core.commit
    for ready in waiting:
        ready()
    monkeypatch.undo()
    scene.work(20)
    assert group.applied == group.core.commit > before
    scene.finish()


def test_a_gap_in_the_batches_waits_until_it_is_filled() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    scene.publish("b", publisher)
    session = scene.nodes["b"].sessions["a"]
    lost = [frame for frame in session.streams["a"] if frame[0] == frames.BATCH]
    for frame in lost:
        session.streams["a"].remove(frame)
    scene.publish("b", publisher)
    scene.work()
    assert len(publisher.waiting) == 2
    assert not scene.ledger.accepted
    # Within a session nothing is lost; the next session begins with all batches that are not applied.
    scene.end_session(session)
    scene.heal()
    scene.work(2)
    assert not publisher.waiting
    assert [body.split(b".")[1] for body in scene.ledger.accepted] == [b"1", b"2"]
    scene.finish()


def test_batches_wait_while_the_leader_hands_over() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    scene.host("a").group.core.transfer("b")
    scene.publish("a", publisher)
    assert scene.host("a").group.inbox
    assert publisher.waiting
    scene.work(5)
    assert scene.host("b").group.is_leader
    assert not publisher.waiting
    scene.finish()


def test_batches_go_on_if_the_hand_over_fails() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    scene.network.blocked["a", "b"] = None
    scene.host("a").group.core.transfer("b")
    scene.publish("a", publisher)
    for _ in range(8):
        scene.nodes["a"].tick()
        scene.work()
    assert scene.host("a").group.is_leader
    assert not publisher.waiting
    scene.finish()


def test_a_slow_disk_gives_up_the_lead() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    scene.publish("a", publisher)
    node = scene.nodes["a"]
    for _ in range(REPLICATION.disk_stall_ms // TICK_MS + 2):
        node.tick()
    assert node.replicas.stalled
    assert not scene.host("a").group.is_leader
    for _ in range(30):
        for name in "bc":
            scene.nodes[name].tick()
            sync(scene.nodes[name])
        for place in scene.network.places():
            scene.network.go_on(*place, 8)
    leader = scene.leading(scene.declared[0])
    assert leader is not None and leader.replicas.node != "a"
    scene.finish()
    assert not publisher.waiting
    assert not node.replicas.stalled


def test_a_full_disk_gives_up_the_lead_and_comes_back() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    scene.nodes["a"].environment.faults.full = 3
    scene.publish("b", publisher)
    scene.deliver("b", "a")
    for _ in range(2):
        scene.nodes["a"].step_disk()
    assert scene.nodes["a"].replicas.stalled
    assert not scene.host("a").group.is_leader
    scene.finish()
    assert not publisher.waiting


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_living_node_taken_for_down_attaches_its_consumers_again() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    holder = scene.consume("c", prefetch=2)
    scene.publish("a", publisher, 4)
    scene.work()
    assert len(holder.unacked) == 2
    scene.isolate("c")
    scene.work(20)
    # The others have given away the messages that it held.
    assert not scene.host("a").replica.machine.consumers.by_key
    assert scene.host("a").ready_count == 4
    other = scene.consume("b", prefetch=1)
    scene.work()
    assert list(other.unacked.values()) == list(holder.unacked.values())[:1]
    scene.heal()
    scene.work(5)
    assert scene.host("a").replica.machine.consumers.count == 2
    # Its answers to the old deliveries do not count.
    before = scene.ledger.count["redelivered"]
    holder.client.settle(holder, "settle", 2)
    scene.nodes["c"].end_turn()
    scene.work()
    assert len(scene.ledger.live) == 4
    assert before > 0
    scene.finish()


LONG_MS = 2_000


def held_by_an_unreachable_node() -> tuple[Scene, Holder]:
    """The queue lets messages stay with consumers for longer than usual; c has two of them."""
    scene = Scene()
    for name in scene.nodes:
        queue: Any = scene.host(name).queue
        queue.effective = replace(queue.effective, disconnected_timeout_ms=LONG_MS)
    holder = scene.consume("c")
    scene.publish("a", scene.publisher("a"), 2)
    scene.work()
    scene.isolate("c")
    scene.work(LONG_MS // TICK_MS // 2)
    assert len(holder.unacked) == scene.host("a").replica.machine.unacked_count == 2
    return scene, holder


def test_messages_stay_with_a_consumer_whose_node_comes_back_in_time() -> None:
    scene, holder = held_by_an_unreachable_node()
    scene.heal()
    scene.work(5)
    before = scene.ledger.count.get("redelivered", 0)
    scene.settle_all(holder)
    scene.work()
    assert not scene.ledger.live and scene.ledger.count.get("redelivered", 0) == before == 0
    scene.finish()


@pytest.mark.parametrize("leader", ["a", "b"])
def test_messages_come_back_from_a_node_that_is_away_for_too_long(leader: str) -> None:
    scene, _ = held_by_an_unreachable_node()
    if leader != "a":
        scene.elect(leader)
    scene.work(LONG_MS // TICK_MS // 4)
    assert scene.host(leader).replica.machine.unacked_count == 2
    scene.work(LONG_MS // TICK_MS // 2)
    assert scene.host(leader).replica.machine.consumers.count == 0
    assert scene.host(leader).ready_count == 2
    scene.finish()


def test_messages_come_back_at_once_from_a_node_that_starts_again() -> None:
    scene, _ = held_by_an_unreachable_node()
    scene.crash(scene.nodes["c"])
    scene.start(scene.nodes["c"])
    scene.heal()
    scene.work(3)
    assert scene.host("a").ready_count == 2
    scene.finish()


def taken_for_down(scene: Scene, node: str) -> None:
    """The log says that a living node is down; the node learns that step by step with the entries before and
    after.
    """
    for session in scene.sessions_of(node):
        scene.end_session(session)
    scene.work()
    scene.host("a").submit(("node_down", node, scene.nodes[node].incarnation))
    scene.nodes["a"].end_turn()
    scene.work()
    scene.doubt_all()
    scene.heal()
    scene.work(2)


def test_a_get_is_answered_though_its_node_was_taken_for_down_meanwhile() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 2)
    scene.work()
    holder = scene.get("c")
    scene.deliver("c", "a")
    taken_for_down(scene, "c")
    assert not holder.client.asked
    assert not holder.unacked
    assert scene.host("a").ready_count == 2
    scene.finish()


def test_what_needs_no_ack_arrives_though_its_node_was_taken_for_down_meanwhile() -> None:
    """The message is gone from the queue, so no other consumer gets it."""
    scene = Scene()
    publisher = scene.publisher("a")
    scene.consume("c", no_ack=True)
    scene.work()
    scene.publish("a", publisher, 2, size=200)
    taken_for_down(scene, "c")
    assert scene.ledger.count.get("received", 0) == 2
    scene.publish("a", publisher)
    scene.work(2)
    assert scene.ledger.count["received"] == 3
    scene.finish()


def test_a_consumer_that_was_on_its_way_when_its_node_stopped_does_not_stay() -> None:
    scene = Scene()
    scene.consume("b")
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    # Its entry is in the log and not applied when the others learn that the node has started anew.
    scene.crash(scene.nodes["b"])
    scene.start(scene.nodes["b"])
    scene.heal()
    scene.settle()
    assert not scene.host("a").replica.machine.consumers.by_key
    scene.finish()


def test_a_consumer_that_waited_to_be_written_when_its_node_started_again_does_not_stay() -> None:
    """It becomes an entry only after the leader has found out which consumers are gone, and after the batches
    that it waited for.
    """
    scene = Scene()
    scene.publish("a", scene.publisher("a"))
    group = scene.host("a").group
    assert group.applied < group.core.last_index
    leadership = group.core.leadership
    assert leadership is not None
    # Nothing is proposed while the leader hands over.
    group.core.transfer("b")
    scene.consume("c")
    scene.deliver("c", "a")
    assert group.inbox
    node = scene.nodes["c"]
    scene.crash(node)
    scene.start(node)
    scene.network.connect("a", "c")
    while scene.nodes["a"].replicas.incarnations["c"] != node.incarnation:
        place = next(place for place in scene.network.places() if place[1] == "a" and "c" in place[0].ends)
        scene.network.go_on(*place)
    leadership.transferring = ""
    group.replicas.touch(group)
    scene.nodes["a"].end_turn()
    assert not group.inbox
    scene.heal()
    scene.settle()
    assert not scene.host("a").replica.machine.consumers.by_key
    scene.finish()


def test_a_channel_closes_while_deliveries_are_on_their_way() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    holder = scene.consume("b")
    scene.work()
    scene.publish("a", publisher, 3)
    holder.client.close()
    scene.nodes["b"].end_turn()
    scene.work()
    assert not holder.unacked
    assert scene.host("a").ready_count == 3
    assert not scene.host("a").replica.machine.consumers.by_key
    scene.finish()


def test_words_for_a_group_that_is_not_open_yet_are_kept() -> None:
    scene = Scene(more=("once",), begun=False)
    late = scene.declared[1]
    node = scene.nodes["c"]
    node.known = 1
    scene.mend()
    scene.work(20)
    assert scene.leading(late) is not None
    assert late.queue_id not in node.replicas.groups
    # Its leader does not repeat itself within a session, so this first message is the only one.
    node.go_on()
    assert node.replicas.groups[late.queue_id].leader
    scene.settle()
    scene.finish()


# -- members -------------------------------------------------------------------------------------------------


def test_a_queue_moves_from_node_to_node_with_its_clients() -> None:
    scene = Scene(names="abcd", members="abc")
    publisher = scene.publisher("d")
    holder = scene.consume("d", prefetch=2)
    scene.publish("d", publisher, 3)
    scene.settle()
    assert not publisher.waiting
    assert len(holder.unacked) == 2
    for members in (("a", "b", "c", "d"), ("a", "b", "d")):
        scene.declared[0].members.append(members)
        scene.settle()
    assert sorted(scene.host("d").group.core.members.voters) == ["a", "b", "d"]
    # d is the home now, for its consumer too; the messages that the consumer held came back first.
    assert scene.host("d").consumer_count == 1
    assert len(holder.unacked) == 4
    scene.publish("d", publisher)
    scene.settle()
    assert not publisher.waiting
    scene.finish()


def test_batches_of_a_node_that_comes_again_are_taken() -> None:
    """When it left, it had batches under way that nobody took. If it numbered on from these, later batches
    would wait forever.
    """
    scene = Scene(names="abcd", members="abcd")
    publisher = scene.publisher("d")
    for members in (("a", "b", "c"), ("a", "b", "c", "d")):
        scene.publish("d", publisher, 2)
        scene.settle()
        scene.declared[0].members.append(members)
        scene.settle()
    scene.publish("d", publisher, 2)
    scene.settle()
    assert not publisher.waiting
    assert len(scene.ledger.accepted) == 6 - len(publisher.refusals)
    assert publisher.bodies[-1] in scene.ledger.accepted
    scene.finish()


# -- queues that are deleted ---------------------------------------------------------------------------------


def test_a_queue_that_is_declared_anew_has_nothing_of_the_one_before() -> None:
    scene = Scene(names="abcd", members="abc")
    old = scene.declared[0]
    holder, away = scene.consume("b", prefetch=1), scene.consume("d", prefetch=1)
    publishers = [scene.publisher(name) for name in "abd"]
    for name, publisher in zip("abd", publishers, strict=True):
        scene.publish(name, publisher, 3)
    scene.settle()
    # These are under way at every node when it goes.
    passed: list[str] = []
    for name, publisher in zip("abd", publishers, strict=True):
        scene.publish(name, publisher, 3)
        host = scene.nodes[name].queues[scene.name].host
        host.barrier(lambda *why, name=name: passed.append(name))
        scene.nodes[name].end_turn()
    scene.declare_anew(old, "bcd")
    for node in scene.running:
        node.go_on()
        node.end_turn()
    assert all(not publisher.waiting for publisher in publishers[:2])
    scene.settle()
    assert all(not publisher.waiting for publisher in publishers)
    assert sorted(passed) == ["a", "b", "d"]
    assert holder.gone
    assert away.gone
    assert [scene.host(name).ready_count for name in "bcd"] == [0, 0, 0]
    assert not any(old.queue_id in node.environment.groups.groups for node in scene.nodes.values())
    scene.finish()


def test_a_node_that_was_away_drops_the_queue_that_was_deleted_meanwhile() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    scene.publish("b", publisher, 3)
    scene.settle()
    node, old = scene.nodes["c"], scene.declared[0]
    scene.crash(node)
    scene.declare_anew(old, "abc")
    for each in scene.running:
        while each.known < len(scene.events):
            each.go_on()
    node.known = len(scene.events)
    scene.heal()
    scene.work(10)
    scene.finish()
    assert old.queue_id not in node.environment.groups.groups
