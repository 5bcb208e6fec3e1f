"""The disk of a member has not read the next bodies yet: the member's consumers wait for them, and nobody
else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorum_queue.cluster.queues import member_host
from quorum_queue.cluster.snapshots import compaction
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.peeking import Look
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.machine.run import Run
from quorum_queue.ports import Refused
from tests.quorum_queue.cluster.clients import Holder
from tests.quorum_queue.cluster.scene import Scene
from tests.quorum_queue.cluster.test_read_index import LATE_TICKS

#: Too large for the bodies that stay in memory.
SIZE = 380


class ColdScene(Scene):
    """The disk of b reads when the test says so."""

    def __init__(self) -> None:
        super().__init__(more=("dead",))
        self.sent = self.publisher("a")
        for _ in range(20):
            self.publish("a", self.sent, size=SIZE)
            self.settle()
        self.cold = self.nodes["b"]
        self.cold.replicas.bodies.drop_group(self.group_id)
        self.cold.slow_reads = 1.0
        self._step: Callable[[], bool] = self.cold.step_read
        changed: Any = self.cold
        changed.step_read = lambda: False

    def thaw(self) -> None:
        """The disk does all reads that it was asked for."""
        changed: Any = self.cold
        changed.step_read = self._step
        self.work(3)

    @property
    def asked(self) -> int:
        return len(self.cold.environment.reader.waiting)


def watched(holder: Holder) -> list[bytes]:
    """Return a list that gets the messages which arrive from now on."""
    received: list[bytes] = []
    deliver = holder.deliver

    def noted(consumer: Consumer | None, run: Run, first_id: int) -> None:
        deliver(consumer, run, first_id)
        received.extend(run.contents or ())

    changed: Any = holder
    changed.deliver = noted
    return received


def test_deliveries_wait_in_order_and_publishers_do_not() -> None:
    scene = ColdScene()
    received = watched(scene.consume("b", prefetch=30))
    scene.work(2)
    assert received == []
    assert scene.asked == 1
    at_b, of_other = scene.publisher("b"), scene.publisher("b", "dead")
    scene.publish("b", at_b, size=SIZE)
    scene.publish("b", of_other, queue="dead")
    scene.work(2)
    assert not at_b.waiting
    assert not of_other.waiting
    assert received == []
    scene.thaw()
    assert received == scene.sent.bodies[1:] + at_b.bodies[1:]
    scene.finish()


def test_large_messages_wait_while_clients_do_not_take_what_they_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_host, "LARGE_BYTES", 4 * SIZE)
    scene = Scene(more=("dead",))
    sent, of_other = scene.publisher("a"), scene.publisher("a", "dead")
    for _ in range(3):
        scene.publish("a", sent, size=5 * SIZE)
        scene.publish("a", of_other, queue="dead", size=SIZE)
        scene.settle()
    unsent = scene.host("b").services.memory.unsent
    unsent.bytes_max = 10 * SIZE
    unsent.add(11 * SIZE)
    received = watched(scene.consume("b", prefetch=30))
    small = watched(scene.consume("b", queue="dead", prefetch=30))
    scene.work(3)
    assert received == [] and small == of_other.bodies[1:]
    unsent.take(11 * SIZE)
    scene.nodes["b"].end_turn()
    scene.work(2)
    assert received == sent.bodies[1:]
    scene.finish()


def test_what_needs_no_ack_is_kept_on_the_disk_until_it_has_been_read() -> None:
    scene = ColdScene()
    received = watched(scene.consume("b", prefetch=0, no_ack=True))
    scene.work(2)
    host = scene.host("b")
    assert host.ready_count == 0
    assert received == []
    of_now = scene.publisher("a")
    last = host.group.applied
    for _ in range(40):
        scene.publish("a", of_now)
        scene.work(1)
    # The queue needs nothing of these entries any more, and the log has been cut behind them.
    assert host.group.cleaned > last
    assert received == []
    scene.thaw()
    assert received == scene.sent.bodies[1:] + of_now.bodies[1:]
    for _ in range(40):
        scene.publish("a", of_now)
        scene.work(1)
    stored = scene.cold.environment.groups.groups[scene.group_id].entries
    assert min(stored, default=last + 1) > last
    scene.finish()


@pytest.mark.parametrize("end", ["purge", "delete", "fail"])
def test_a_queue_that_ends_meanwhile(end: str) -> None:
    scene = ColdScene()
    holder = scene.consume("b", prefetch=5)
    received = watched(holder)
    scene.work(2)
    assert scene.asked == 1
    host = scene.host("b")
    waiting = list(scene.cold.environment.reader.waiting)
    if end == "purge":
        purged: list[Any] = []
        scene.host("a").purge(purged.append)
        scene.nodes["a"].end_turn()
        scene.work(2)
        # Messages that were handed out are unacked, though they have not arrived.
        assert purged == [15]
    elif end == "delete":
        host.close()
    else:
        host.ended = "failed"
        host._release()
    for done in waiting:
        scene.cold.turn.run(done)
    if end == "purge":
        scene.cold.environment.reader.waiting.clear()
        scene.thaw()
        assert received == scene.sent.bodies[1:6]
    else:
        assert received == []
    assert not host.deliveries_waiting


def freeze(scene: Scene, name: str) -> Callable[[], None]:
    """The disk of a node reads when the test says so; return the call that says so."""
    node: Any = scene.nodes[name]
    step = node.step_read
    node.replicas.bodies.drop_group(scene.group_id)
    node.slow_reads = 1.0
    node.step_read = lambda: False

    def thaw() -> None:
        node.step_read = step
        scene.work(3)

    return thaw


def letters(scene: Scene) -> list[int]:
    """Return how often each dead letter came to its queue."""
    return [len(seqs) for seqs in scene.ledgers["dead"].accepted.values()]


def test_dead_letters_wait_for_the_disk_and_publishers_do_not() -> None:
    scene = Scene("short", more=("dead",))
    publisher, of_other = scene.publisher("a"), scene.publisher("b", "dead")
    for _ in range(6):
        scene.publish("a", publisher, size=SIZE)
        scene.settle()
    thaw = freeze(scene, "a")
    # The queue takes 6, so it drops some, and the log is cut behind them.
    for _ in range(40):
        scene.publish("a", publisher)
        scene.work(1)
    assert not publisher.waiting
    assert letters(scene) == []
    scene.publish("b", of_other, queue="dead")
    scene.work(2)
    assert not of_other.waiting
    thaw()
    scene.settle()
    assert letters(scene) == [1] * 41
    scene.finish()


def test_dead_letters_of_a_deleted_queue_wait_for_the_disk_and_nobody_else_does() -> None:
    scene = Scene("short", more=("dead",))
    publisher, of_other = scene.publisher("a"), scene.publisher("b", "dead")
    for _ in range(6):
        scene.publish("a", publisher, size=SIZE)
        scene.settle()
    thaw = freeze(scene, "a")
    for _ in range(6):
        scene.publish("a", publisher)
        scene.work(1)
    scene.declare_anew(scene.declared[0], "abc")
    for node in scene.nodes.values():
        while node.known < len(scene.events):
            scene.learn(node)
    scene.work(4)
    assert scene.host("a").queue_id != scene.group_id
    assert letters(scene) == []
    assert scene.group_id in scene.nodes["a"].environment.groups.groups
    scene.publish("b", of_other, queue="dead")
    scene.work(2)
    assert not of_other.waiting
    thaw()
    scene.settle()
    assert letters(scene) == [1] * 7
    assert scene.group_id not in scene.nodes["a"].environment.groups.groups
    scene.finish()


def test_held_dead_letters_wait_for_the_disk_and_come_once() -> None:
    scene = Scene("few", more=("dead",))
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 3, size=SIZE)
    scene.settle()
    holder = scene.consume("b")
    scene.work(2)
    thaw = freeze(scene, "a")
    scene.settle_all(holder, "discard")
    scene.work(40)
    assert letters(scene) == []
    thaw()
    scene.settle()
    assert letters(scene) == [1] * 3
    scene.finish()


def test_a_new_leader_sends_held_dead_letters_that_the_last_one_waited_with() -> None:
    scene = Scene("few", more=("dead",))
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 3, size=SIZE)
    scene.settle()
    holder = scene.consume("b")
    scene.work(2)
    thaw = freeze(scene, "a")
    scene.settle_all(holder, "discard")
    scene.work(2)
    scene.elect("c")
    scene.work(20)
    assert letters(scene) == [1] * 3
    thaw()
    scene.settle()
    scene.finish()


def test_a_member_that_is_filled_waits_for_the_disk_of_the_leader_and_publishers_do_not() -> None:
    scene = Scene(more=("dead",))
    publisher = scene.publisher("a")
    for _ in range(6):
        scene.publish("a", publisher, size=SIZE)
        scene.settle()
    for name in "ab":
        compaction.take_snapshot(scene.host(name).group)
        scene.nodes[name].end_turn()
    scene.work(2)
    node = scene.nodes["c"]
    scene.crash(node)
    node.lose_disk()
    thaw = freeze(scene, "a")
    scene.start(node)
    scene.heal()
    scene.work(10)
    assert scene.host("c").group.core.amnesiac
    assert scene.nodes["a"].environment.reader.waiting
    scene.publish("a", publisher)
    scene.work(2)
    assert not publisher.waiting
    thaw()
    scene.settle()
    assert not scene.host("c").group.core.amnesiac
    scene.finish()


def test_a_follower_that_comes_back_waits_for_the_disk_of_the_leader_and_publishers_do_not() -> None:
    """The leader sends entries of its log that are not in its memory any more."""
    scene = Scene(more=("dead",))
    scene.crash(scene.nodes["c"])
    publisher = scene.publisher("a")
    leading: Any = scene.nodes["a"]
    # The log keeps these entries.
    leading.maintenance._cut_logs = lambda: iter(())
    for _ in range(4):
        scene.publish("a", publisher, size=SIZE)
        scene.work(2)
    thaw = freeze(scene, "a")
    scene.start(scene.nodes["c"])
    scene.heal()
    scene.work(10)
    group, behind = scene.host("a").group, scene.host("c").group
    assert group.is_leader
    assert group.core.log.waits(behind.core.last_index + 1)
    assert behind.applied < group.applied
    assert not scene.nodes["a"].environment.groups.stood_still
    scene.publish("a", publisher)
    scene.work(2)
    assert not publisher.waiting
    thaw()
    scene.settle()
    assert behind.applied == group.applied
    scene.finish()


def test_a_node_that_starts_applies_its_log_when_the_disk_gives_it_and_publishers_do_not_wait() -> None:
    scene = Scene(more=("dead",))
    publisher = scene.publisher("a")
    for _ in range(12):
        scene.publish("a", publisher, size=SIZE)
        scene.settle()
    last = scene.host("c").group.applied
    scene.crash(scene.nodes["c"])
    node: Any = scene.nodes["c"]
    step, node.slow_reads = node.step_read, 1.0
    node.step_read = lambda: False
    scene.start(node)
    scene.heal()
    scene.work(10)
    assert scene.host("c").group.applied < last
    assert scene.nodes["c"].environment.reader.waiting
    scene.publish("a", publisher)
    scene.work(2)
    assert not publisher.waiting
    node.step_read = step
    scene.settle()
    assert scene.host("c").group.applied > last
    scene.finish()


def test_a_follower_that_gets_a_snapshot_looks_for_its_bodies_when_the_disk_gives_them() -> None:
    scene = Scene(more=("dead",))
    publisher, of_other = scene.publisher("a"), scene.publisher("c", "dead")
    for _ in range(6):
        scene.publish("a", publisher, size=SIZE)
        scene.settle()
    node: Any = scene.nodes["c"]
    scene.crash(node)
    for _ in range(20):
        scene.publish("a", publisher, size=SIZE)
        scene.work(2)
    for name in "ab":
        compaction.take_snapshot(scene.host(name).group)
        scene.nodes[name].end_turn()
    scene.work(4)
    step, node.slow_reads = node.step_read, 1.0
    node.step_read = lambda: False
    scene.start(node)
    scene.heal()
    scene.work(6)
    receiving = scene.host("c").group.receiving
    assert receiving is not None and receiving.checking
    scene.publish("c", of_other, queue="dead")
    scene.work(2)
    assert not of_other.waiting
    node.step_read = step
    scene.settle()
    assert scene.host("c").group.applied == scene.host("a").group.applied
    scene.finish()


def test_any_member_shows_messages_when_its_disk_has_read_them() -> None:
    scene = ColdScene()
    seen: list[Any] = []
    for name in "abc":
        scene.host(name).peek(Look(Place(0, 5), 10, 1 << 20), seen.append)
    scene.work(3)
    assert scene.asked == 1 and len(seen) == 2
    scene.thaw()
    for found in seen:
        assert [body for each in found for body in each.run.contents] == scene.sent.bodies[6:16]
    assert len(seen) == 3
    assert scene.host("b").ready_count == 20
    scene.finish()


def test_who_looks_without_a_majority_is_told() -> None:
    scene = Scene()
    scene.isolate("a")
    seen: list[Any] = []
    scene.host("a").peek(Look(HEAD, 10, 1 << 20), seen.append)
    scene.nodes["a"].end_turn()
    for _ in range(LATE_TICKS):
        scene.tick(scene.nodes["a"])
    assert [type(each) for each in seen] == [Refused]
