"""Dead letters with at-most-once delivery: a new leader or a restart may lose them, and never sends them
again.
"""

from __future__ import annotations

import pytest

from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")


def letters(scene: Scene) -> list[int]:
    """Return how often each dead letter came to its queue."""
    return [len(seqs) for seqs in scene.ledgers["dead"].accepted.values()]


def test_a_new_leader_does_not_send_what_the_one_before_has_sent() -> None:
    scene = Scene("short", more=("dead",))
    publisher = scene.publisher("a")
    # The queue takes 6, so 4 are dropped.
    scene.publish("a", publisher, 10)
    sync(scene.nodes["a"])
    scene.deliver("a", "b")
    sync(scene.nodes["b"])
    # The leader learns that its entry is committed, and applies it. It is gone before any other node learns
    # of that.
    scene.deliver("b", "a")
    assert not publisher.waiting
    scene.isolate("a")
    scene.work(20)
    assert scene.leaders()["short"] != "a"
    scene.heal()
    scene.work(20)
    assert letters(scene) == [1] * 4
    scene.finish()


def test_nodes_that_start_again_do_not_send_what_they_have_sent() -> None:
    scene = Scene("short", more=("dead",))
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 10)
    scene.work(2)
    assert letters(scene) == [1] * 4
    for _ in range(3):
        for name in "abc":
            scene.crash(scene.nodes[name])
        scene.mend()
        scene.settle()
    assert letters(scene) == [1] * 4
    scene.finish()


def test_a_leader_that_steps_down_sends_what_it_proposed() -> None:
    scene = Scene("short", more=("dead",))
    publisher = scene.publisher("a")
    scene.publish("a", publisher, 10)
    sync(scene.nodes["a"])
    scene.deliver("a", "b")
    # Another node has the entry, and the leader does not know that when it loses its lead.
    scene.isolate("a")
    while scene.leaders()["short"] == "a":
        scene.work(1)
    assert publisher.waiting
    scene.heal()
    scene.work(20)
    assert not publisher.waiting
    assert letters(scene) == [1] * 4
    scene.finish()
