"""Wall clocks are set while queues work, while nodes are down, and while leaders change."""

from __future__ import annotations

import pytest

from quorum_queue.cluster import frames
from tests.quorum_queue.cluster.node import TICK_MS
from tests.quorum_queue.cluster.scene import Scene

HOUR_MS = 3_600_000
TTL_MS = 900


def timed() -> Scene:
    """A queue whose messages expire after TTL_MS and become dead letters."""
    return Scene("timed", more=("dead",))


def expires_in_time(scene: Scene, node: str) -> None:
    """Check that a message published now is there for as long as it should be, and no longer."""
    scene.publish(node, scene.publisher(node))
    scene.work()
    (seq,) = scene.ledger.live
    scene.work(TTL_MS // TICK_MS - 4)
    assert [*scene.ledger.live] == [seq]
    scene.work(8)
    assert not scene.ledger.live


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_clock_is_set_on_the_leader(by_ms: int) -> None:
    scene = timed()
    expires_in_time(scene, "b")
    scene.nodes["a"].set_clock(by_ms)
    expires_in_time(scene, "b")
    expires_in_time(scene, "a")
    scene.finish()


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_the_next_leader_has_another_clock(by_ms: int) -> None:
    scene = timed()
    scene.nodes["b"].set_clock(by_ms)
    scene.publish("a", scene.publisher("a"))
    scene.work(TTL_MS // TICK_MS // 2)
    scene.elect("b")
    assert scene.ledger.live
    scene.work(TTL_MS // TICK_MS // 2 + 2)
    assert not scene.ledger.live
    expires_in_time(scene, "c")
    scene.finish()


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_node_starts_with_another_clock_and_leads(by_ms: int) -> None:
    scene = timed()
    scene.crash(scene.nodes["b"])
    scene.nodes["b"].clock.shift_ms += by_ms
    scene.start(scene.nodes["b"])
    scene.heal()
    scene.work(10)
    scene.publish("a", scene.publisher("a"))
    scene.work()
    scene.elect("b")
    assert scene.ledger.live
    scene.work(TTL_MS // TICK_MS)
    assert not scene.ledger.live
    expires_in_time(scene, "c")
    scene.finish()


def all_start_again(scene: Scene, **shift_ms: int) -> None:
    for node in scene.nodes.values():
        node.tick()
    scene.work()
    for name, node in scene.nodes.items():
        scene.crash(node)
        node.clock.shift_ms += shift_ms.get(name, 0)
    scene.mend()
    scene.settle()


def test_all_nodes_start_again_after_a_while() -> None:
    scene = timed()
    scene.publish("a", scene.publisher("a"))
    scene.work()
    all_start_again(scene, a=TTL_MS, b=TTL_MS, c=TTL_MS)
    scene.work(4)
    assert not scene.ledger.live
    scene.finish()


def test_all_nodes_start_again_with_clocks_that_were_set_back() -> None:
    """Nobody knows how long they were down; from then on time goes on."""
    scene = timed()
    scene.publish("a", scene.publisher("a"))
    scene.work()
    all_start_again(scene, a=-HOUR_MS, b=-HOUR_MS, c=-HOUR_MS)
    scene.work(TTL_MS // TICK_MS + 2)
    assert not scene.ledger.live
    scene.finish()


def test_all_nodes_start_again_one_with_a_clock_that_was_set_forward() -> None:
    """The time that the others know counts, whichever node leads: the messages are still there."""
    scene = Scene("timed", more=("dead",))
    for name in scene.names:
        scene.publish(name, scene.publisher(name))
    scene.work()
    count = len(scene.ledger.live)
    assert count == 3
    for node in scene.nodes.values():
        scene.crash(node)
    scene.nodes["a"].clock.shift_ms += HOUR_MS
    scene.mend()
    scene.work(6)
    assert len(scene.ledger.live) == count
    scene.finish()


def test_time_goes_on_from_a_leader_of_the_version_before_that_is_ahead() -> None:
    """Nodes of that version tell nothing of their time, and one of them had another clock when it started."""
    scene = Scene("timed", more=("dead",), begun=False)
    for node in scene.nodes.values():
        node.features = (frames.REACH_FEATURE, frames.STOPPED_FEATURE)
        node.time_note = None
    scene.nodes["a"].clock.shift_ms += HOUR_MS
    scene.mend()
    scene.settle()
    scene.elect("a")
    expires_in_time(scene, "b")
    scene.elect("c")
    scene.settle()
    assert scene.nodes["a"].queue_time.now_ms() - scene.nodes["c"].queue_time.now_ms() >= HOUR_MS
    expires_in_time(scene, "b")
    scene.elect("b")
    expires_in_time(scene, "a")
    # While it led, b was ahead of the others: from then on the group is ahead.
    scene.elect("a")
    expires_in_time(scene, "b")
    scene.finish()
