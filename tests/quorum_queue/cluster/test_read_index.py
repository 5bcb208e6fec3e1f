"""Answers that must not be older than what other clients know: counts, and the conditions of deletes."""

from __future__ import annotations

import pytest

from quorum_queue.host import DELETED
from quorum_queue.machine.record.states import Found
from quorum_queue.machine.seal import EMPTY, IN_USE, NOT_EMPTY, SEALED, UNUSED, Sealed
from quorum_queue.ports import Refused
from tests.quorum_queue.cluster.clients import message_id_of
from tests.quorum_queue.cluster.node import REPLICATION, TICK_MS
from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")

#: More ticks than a read waits for.
LATE_TICKS = REPLICATION.read_index_timeout_ms // TICK_MS + 2


def lagging(scene: Scene) -> None:
    """A message is confirmed at node b, and node c does not know it yet."""
    publisher = scene.publisher("b")
    scene.publish("b", publisher, 1)
    for _ in range(6):
        scene.deliver("b", "a")
        sync(scene.nodes["a"])
        scene.deliver("a", "b")
        sync(scene.nodes["b"])
    assert not publisher.waiting
    assert scene.host("c").ready_count == 0


def counts(scene: Scene, node: str) -> list[int]:
    """Ask for the count of messages, which is in the list when it comes."""
    found: list[int] = []
    host = scene.host(node)
    host.catch_up(lambda *why: found.append(host.ready_count))
    scene.nodes[node].end_turn()
    return found


def seals(scene: Scene, node: str, condition: int) -> list[Sealed | Refused]:
    found: list[Sealed | Refused] = []
    scene.host(node).seal(condition, found.append)
    scene.nodes[node].end_turn()
    return found


def test_a_count_has_what_was_confirmed_before() -> None:
    scene = Scene()
    lagging(scene)
    found = counts(scene, "c")
    assert not found
    scene.work(4)
    assert found == [1]
    # Nothing was written for it.
    assert scene.host("c").replica.applied == scene.host("a").replica.applied
    index = scene.ledger.index
    assert counts(scene, "a") == []
    scene.work(4)
    assert scene.ledger.index == index
    scene.finish()


def test_a_leader_that_was_replaced_does_not_answer() -> None:
    scene = Scene()
    scene.isolate("a")
    publisher = scene.publisher("b")
    scene.publish("b", publisher, 1)
    # Node a stands still. By the end b or c leads, and has confirmed the message.
    for _ in range(40):
        for name in "bc":
            scene.tick(scene.nodes[name])
        scene.work_off()
    assert not publisher.waiting
    led = scene.nodes["a"].replicas.groups[scene.group_id]
    assert led.is_leader
    known: list[bool] = []
    led.catch_up(known.append)
    scene.nodes["a"].end_turn()
    assert not known
    for _ in range(LATE_TICKS):
        scene.tick(scene.nodes["a"])
    # Without a majority the caller goes on with what the node knows, after a time.
    assert known == [False]
    scene.heal()
    scene.work(20)
    scene.finish()


@pytest.mark.parametrize("node", ["a", "c"])
def test_a_delete_if_empty_is_decided_by_the_log(node: str) -> None:
    scene = Scene()
    scene.raise_version()
    lagging(scene)
    found = seals(scene, node, EMPTY)
    scene.work(6)
    assert found == [Sealed(NOT_EMPTY, 1)]
    assert not scene.ledger.machine.sealed
    scene.finish()


def test_a_delete_if_unused_is_decided_by_the_log() -> None:
    scene = Scene()
    scene.raise_version()
    consumer = scene.consume("b")
    scene.work(6)
    found = seals(scene, "c", UNUSED)
    scene.work(6)
    assert found == [Sealed(IN_USE, 0)]
    assert consumer.attached
    scene.finish()


def test_nothing_comes_between_the_decision_and_the_deletion() -> None:
    scene = Scene()
    scene.raise_version()
    found = seals(scene, "c", EMPTY | UNUSED)
    scene.work(6)
    assert found == [Sealed(SEALED, 0)]
    publisher = scene.publisher("b")
    scene.publish("b", publisher, 2)
    barriers: list[tuple[Refused, ...]] = []
    scene.host("b").barrier(lambda *why: barriers.append(why))
    scene.nodes["b"].end_turn()
    scene.work(6)
    # The message is neither taken nor confirmed: the queue is as good as deleted, and then the answer comes.
    assert scene.ledger.ready == 0
    assert len(publisher.waiting) == 2
    assert not barriers
    assert list(scene.nodes["a"].deletions) == scene.declared
    scene.carry_out_deletions()
    scene.work(6)
    for node in scene.running:
        scene.learn(node)
        scene.learn(node)
    assert not publisher.waiting
    assert barriers == [(DELETED,)]


def test_a_new_leader_finds_the_seal_and_deletes_the_queue() -> None:
    scene = Scene()
    scene.raise_version()
    found = seals(scene, "c", EMPTY)
    scene.work(6)
    assert found == [Sealed(SEALED, 0)]
    # The proposal of the first leader is lost with it, and the seal is in a snapshot.
    scene.crash(scene.nodes["a"])
    for name in "bc":
        scene.nodes[name].deletions.clear()
        host = scene.host(name)
        host.load(host.replica.snapshot())
    scene.work(30)
    assert scene.nodes["b"].deletions or scene.nodes["c"].deletions


def test_members_of_an_earlier_version_are_sent_no_seal() -> None:
    scene = Scene()
    found = seals(scene, "b", EMPTY)
    scene.work(6)
    assert found == [Sealed(SEALED, 0)]
    assert not scene.ledger.machine.sealed
    assert list(scene.nodes["b"].deletions) == scene.declared


def test_a_node_whose_disk_takes_no_writes_still_answers() -> None:
    scene = Scene()
    scene.isolate("c")
    known: list[bool] = []
    scene.nodes["c"].replicas.groups[scene.group_id].catch_up(known.append)
    scene.nodes["c"].end_turn()
    scene.nodes["c"].replicas.disk_full(True)
    assert scene.nodes["c"].replicas.stalled
    for _ in range(LATE_TICKS):
        scene.tick(scene.nodes["c"])
    assert known == [False]


def test_what_became_of_a_message_is_told_with_all_that_was_confirmed() -> None:
    scene = Scene("full")
    scene.raise_version()
    lagging(scene)
    found: list[Found | Refused] = []
    [body] = scene.ledger.published
    scene.host("c").message_status(message_id_of(body), found.append)
    scene.nodes["c"].end_turn()
    assert not found
    scene.work(4)
    [status] = found
    assert isinstance(status, Found)
    assert len(status.copies) == 1
    scene.finish()
