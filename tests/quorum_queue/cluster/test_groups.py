"""Groups of a queue and what can come between: leaders that change, links that break, snapshots, disks, members."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from quorum_queue.cluster import frames
from quorum_queue.machine.entries import decode_entry
from tests.quorum_queue.cluster.network import OPEN
from tests.quorum_queue.cluster.node import REPLICATION, TICK_MS
from tests.quorum_queue.cluster.scene import Scene, sync


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def enqueues(scene: Scene) -> list[tuple[str, int]]:
    """Return node and number of each batch in the log that brought messages."""
    return [
        (batch.node, batch.number)
        for data in scene.ledger.entries.values()
        if data is not None
        for batch in decode_entry(data).batches
        if any(command[0] == "enqueue" for command in batch.commands)
    ]


# -- leaders -----------------------------------------------------------------------------------------------------------


def test_what_a_lost_leader_had_is_sent_again_and_taken_once() -> None:
    scene = Scene()
    publisher = scene.publisher("b")
    for _ in range(3):
        scene.publish("b", publisher, 2)
    # The leader has them in its log and has sent them on; then it is gone before anybody was told.
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    scene.deliver("a", "b")
    scene.isolate("a")
    scene.work(20)
    assert not publisher.waiting
    assert not publisher.refusals
    scene.heal()
    scene.work(20)
    # The log may have a batch twice, from both leaders; the queue has each message once.
    assert sorted(dict.fromkeys(enqueues(scene))) == [("b", 1), ("b", 2), ("b", 3)]
    assert [len(seqs) for seqs in scene.ledger.accepted.values()] == [1] * 6
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
    # Within a session nothing is lost; the next one begins with all that is not applied.
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


# -- snapshots ---------------------------------------------------------------------------------------------------------


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
    """Let the snapshot for c begin, with nothing on its way having arrived."""
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
    # What a wrote as leader of nobody, until it knew, is not in anybody's log.
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
    """What became of the batch is known to the others only; here a snapshot stands for it."""
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


def test_a_consumer_gets_what_a_snapshot_says_that_it_holds() -> None:
    scene = Scene()
    holder = scene.consume("c", prefetch=3)
    scene.work()
    # The log goes on without c for less time than it takes to be taken for down.
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


# -- disks -------------------------------------------------------------------------------------------------------------


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
        # The question for the body does not arrive yet.
        for sender in "abc":
            for to in "abc":
                if sender != to:
                    scene.deliver(sender, to, lambda frame: frame[0] != frames.FETCH)
            sync(scene.nodes[sender])
    assert scene.host("b").replica.machine.unacked_count == 4
    # What comes later does not overtake it.
    assert not holder.unacked
    assert node.replicas.losses.entries() == [(scene.group_id, pinned[1])]
    scene.work()
    assert [body.split(b".")[1] for body in holder.unacked.values()] == [b"1", b"2", b"3", b"4"]
    assert not node.replicas.losses.entries()
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
    # Without acks the message is settled as soon as it is handed out, and nobody keeps its body.
    holder = scene.consume("b", no_ack=True)
    scene.isolate("b")
    scene.heal()
    scene.work(2)
    scene.publish("a", publisher)
    scene.work(80)
    assert not node.replicas.losses.entries()
    assert holder.next_id == 2
    scene.finish()


def test_a_log_with_a_hole_begins_anew_as_one_that_lost_its_disk() -> None:
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
    assert group.core.amnesiac
    assert group.core.last_index == last - 2
    scene.heal()
    scene.settle()
    assert not group.core.amnesiac
    assert group.applied == scene.host("a").group.applied
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
    # c has everything on its disk, and after its start does not know that it is committed.
    scene.crash(scene.nodes["c"])
    for name in "ab":
        scene.nodes[name].replicas.take_snapshot(scene.host(name).group)
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


def test_a_leader_that_cannot_read_what_only_it_has_forgets_it() -> None:
    scene = Scene()
    scene.isolate("b")
    scene.isolate("c")
    publisher = scene.publisher("a")
    for _ in range(3):
        scene.publish("a", publisher)
        sync(scene.nodes["a"])
    committed = scene.host("a").group.applied
    for name in "abc":
        scene.crash(scene.nodes[name])
    for name in "abc":
        scene.start(scene.nodes[name])
    # Its log is the longest: it leads, if its disk does not fail it.
    assert scene.host("a").group.core.last_index == committed + 3
    scene.nodes["a"].environment.groups.flip(scene.group_id, committed + 2)
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
        holder.queue.host.pending.append(("settle", holder.key, number, number))
    node = scene.nodes["a"]
    node.dirty(holder.queue.host)
    node.end_turn()
    scene.settle()
    first = scene.host("a").replica.locations.pinned()
    assert len(first) == 1
    for name in "abc":
        group = scene.host(name).group
        group.replicas.take_snapshot(group)
    # The snapshots reach the disks, what they make superfluous is not yet deleted everywhere.
    scene.nodes["b"].disk.begin()
    scene.nodes["b"].disk.end()
    scene.crash(scene.nodes["b"])
    scene.start(scene.nodes["b"])
    stored = scene.nodes["b"].environment.groups.groups[scene.group_id]
    sync(scene.nodes["b"])
    assert [index for index in stored.entries if index <= scene.host("b").group.snapshot_index] == first
    scene.finish()


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_a_living_node_taken_for_down_attaches_its_consumers_again() -> None:
    scene = Scene()
    publisher = scene.publisher("a")
    holder = scene.consume("c", prefetch=2)
    scene.publish("a", publisher, 4)
    scene.work()
    assert len(holder.unacked) == 2
    scene.isolate("c")
    scene.work(20)
    # The others have given away what it held.
    assert not scene.host("a").replica.machine.consumers.by_key
    assert scene.host("a").ready_count == 4
    other = scene.consume("b", prefetch=1)
    scene.work()
    assert list(other.unacked.values()) == list(holder.unacked.values())[:1]
    scene.heal()
    scene.work(5)
    assert scene.host("a").replica.machine.consumers.count == 2
    # What it says of the old deliveries is of no account.
    before = scene.ledger.count["redelivered"]
    holder.client.settle(holder, "settle", 2)
    scene.nodes["c"].end_turn()
    scene.work()
    assert len(scene.ledger.live) == 4
    assert before > 0
    scene.finish()


def test_a_consumer_that_was_on_its_way_when_its_node_stopped_does_not_stay() -> None:
    scene = Scene()
    scene.consume("b")
    scene.deliver("b", "a")
    sync(scene.nodes["a"])
    # It is in the log and not applied when the node is known to have started anew.
    scene.crash(scene.nodes["b"])
    scene.start(scene.nodes["b"])
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
    node.declared = scene.declared[:1]
    scene.mend()
    node.replicas.may_come = lambda number: number == late.queue_id
    scene.work(20)
    assert scene.leading(late) is not None
    assert late.queue_id not in node.replicas.groups
    # Its leader says nothing twice within a session, so that first word is all there is.
    node.declare(late)
    node.end_turn()
    assert node.replicas.groups[late.queue_id].leader
    node.declared = scene.declared
    scene.settle()
    scene.finish()


# -- members -----------------------------------------------------------------------------------------------------------


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
    # d is home now, and its consumer with it; what it held came back first.
    assert scene.host("d").consumer_count == 1
    assert len(holder.unacked) == 4
    scene.publish("d", publisher)
    scene.settle()
    assert not publisher.waiting
    scene.finish()


def test_batches_of_a_node_that_comes_again_are_taken() -> None:
    """It left with batches on their way that nobody took; numbered on from these, what follows would wait for ever."""
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
