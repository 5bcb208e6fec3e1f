"""Wall clocks of whole nodes are wrong, above all the clock of a node whose disk is new."""

from __future__ import annotations

import pytest

from amqp_server.broker.recovery.stored_queue_time import LOOK_MS
from amqp_server.cluster.membership.membership import STARTS_APART, TURNED_BACK
from quorum_queue.clock import KNOWN
from tests.amqp_server.cluster.simulation.node import TICK_MS, SimulatedNode
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

HOUR_MS = 3_600_000


def wiped(scene: Scene, name: str, by_ms: int) -> SimulatedNode:
    """A node that has lost its disk, and whose clock is wrong by this much."""
    node = scene.nodes[name]
    scene.crash(node)
    node.replace_disk()
    node.set_clock(by_ms)
    scene.wiped[name] = None
    return node


def known_start(scene: Scene, of: str, by: str) -> int:
    return scene.nodes[by].cluster.roster.incarnation_of(of)


def test_a_wiped_node_whose_clock_is_behind_joins_and_serves() -> None:
    scene = Scene()
    client = scene.client("a")
    scene.place(client, "quorum", "abc")
    before = known_start(scene, "c", "a")
    node = wiped(scene, "c", -HOUR_MS)
    scene.mend()
    scene.settle()
    assert node.serving
    assert node.incarnation == known_start(scene, "c", "a") >= before + STARTS_APART
    assert scene.ledger.count["starts again with a higher number"] == 1
    other = scene.client("c")
    scene.publish(other, "quorum")
    # And once more, with its new disk.
    scene.crash(node)
    scene.mend()
    scene.settle()
    assert node.incarnation >= before + 2 * STARTS_APART
    scene.finish()


def test_a_wiped_node_hears_first_of_an_early_start_of_its_own() -> None:
    """The node that tells it of the start was out of reach when it started last."""
    scene = Scene()
    scene.cut("b", "a")
    scene.cut("b", "c")
    early = known_start(scene, "c", "b")
    node = scene.nodes["c"]
    scene.crash(node)
    node.clock.now_ms += 10 * HOUR_MS
    scene.start(node)
    scene.connect("a", "c")
    scene.ticks(60)
    late = known_start(scene, "c", "a")
    assert node.serving
    assert late > early + HOUR_MS
    assert known_start(scene, "c", "b") == early
    node = wiped(scene, "c", -20 * HOUR_MS)
    scene.crash(scene.nodes["a"])
    scene.network.blocked.clear()
    scene.start(node)
    scene.connect("b", "c")
    scene.ticks(10)
    assert early < node.incarnation < late
    assert not node.serving
    scene.start(scene.nodes["a"])
    scene.finish()
    assert node.serving
    assert node.incarnation > late


def test_a_node_learns_of_its_later_start_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader itself has not read that far when the link comes up."""
    scene = Scene()
    late = known_start(scene, "c", "a")
    node = wiped(scene, "c", -HOUR_MS)
    for other in scene.running:
        monkeypatch.setattr(other.cluster.roster, "incarnation_of", lambda name: 0)
    scene.mend()
    scene.settle()
    assert node.serving
    assert node.incarnation > late
    monkeypatch.undo()
    scene.finish()


def test_a_disk_that_is_new_and_was_stopped_before_it_had_a_word_is_no_copy() -> None:
    """The node was started with its clock behind, and again when the clock was right."""
    scene = Scene()
    node = wiped(scene, "c", -HOUR_MS)
    scene.start(node)
    scene.connect_all()
    scene.work_off()
    scene.crash(node, written=True)
    node.set_clock(HOUR_MS)
    scene.finish()
    assert not node.out
    assert node.serving


def test_a_copy_of_a_directory_that_is_put_back_is_still_refused() -> None:
    scene = Scene()
    node = scene.nodes["c"]
    scene.crash(node)
    rows = dict(node.disk.items("cluster"))
    scene.mend()
    scene.settle()
    scene.crash(node)
    for key, value in rows.items():
        node.disk.put("cluster", key, value)
    node.disk.flush()
    node.set_clock(-HOUR_MS)
    scene.start(node)
    scene.connect_all()
    outs: list[str] = []
    for _ in range(40):
        scene.ticks(1)
        outs.append(node.out)
    assert TURNED_BACK in outs
    scene.finish()


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_clock_is_set_and_nobody_notices(by_ms: int) -> None:
    scene = Scene()
    client = scene.client("b")
    scene.place(client, "quorum", "abc")
    sessions = list(scene.network.sessions)
    scene.nodes["a"].set_clock(by_ms)
    scene.ticks(20)
    assert scene.network.sessions == sessions
    scene.publish(client, "quorum")
    assert scene.declare(scene.client("a"), "classic")
    scene.finish()


def test_a_node_takes_over_the_time_of_the_cluster_and_keeps_it() -> None:
    scene = Scene()
    node = wiped(scene, "c", -HOUR_MS)
    scene.mend()
    scene.settle()

    def times() -> list[int]:
        return [each.broker.services.queue_time.now_ms() for each in scene.nodes.values()]

    assert max(times()) - min(times()) < 1_000
    assert node.broker.services.queue_time.trust == KNOWN
    scene.ticks(2 * LOOK_MS // TICK_MS)
    scene.crash(node)
    node.set_clock(5 * HOUR_MS)
    scene.start(node)
    scene.connect_all()
    scene.ticks(4)
    assert max(times()) - min(times()) < 1_000
    scene.finish()
