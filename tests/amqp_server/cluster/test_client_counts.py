"""While there is a limit, nodes tell each other how many clients they have; see cluster.client_counts."""

from __future__ import annotations

import pytest

from amqp_server.broker.declared.operations import ClearParameter, PutParameter
from amqp_server.broker.declared.parameters import GLOBAL, USER_LIMITS, ParameterRecord
from amqp_server.broker.topology.limits import CHANNELS_OF
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

LIMIT = PutParameter(ParameterRecord(GLOBAL, USER_LIMITS, "ann", '{"max-channels":5}'))
NO_LIMIT = ClearParameter(GLOBAL, USER_LIMITS, "ann")


def opened(scene: Scene, name: str, count: int = 1) -> None:
    node = scene.nodes[name]
    for _ in range(abs(count)):
        change = node.broker.sessions.channel_opened if count > 0 else node.broker.sessions.channel_gone
        node.turn.run(change, "ann")
    scene.ticks(2)


def counted(scene: Scene) -> list[int]:
    return [node.broker.sessions.counted(CHANNELS_OF, "ann") for node in scene.running]


def test_counts_are_told_while_there_is_a_limit() -> None:
    scene = Scene()
    opened(scene, "a", 2)
    opened(scene, "b")
    assert counted(scene) == [2, 1, 0]
    scene.propose("c", LIMIT)
    scene.settle()
    assert counted(scene) == [3, 3, 3]
    opened(scene, "c", 2)
    opened(scene, "a", -2)
    assert counted(scene) == [3, 3, 3]
    scene.propose("a", NO_LIMIT)
    opened(scene, "a", 4)
    assert scene.nodes["a"].broker.sessions.counted(CHANNELS_OF, "ann") == 7
    scene.propose("a", LIMIT)
    scene.settle()
    assert counted(scene) == [7, 7, 7]


def test_a_link_that_was_down_and_a_node_that_was() -> None:
    scene = Scene()
    scene.propose("a", LIMIT)
    opened(scene, "a")
    scene.cut("a", "b")
    opened(scene, "a")
    opened(scene, "b")
    scene.network.blocked.clear()
    scene.doubt_all()
    scene.connect_all()
    scene.settle()
    assert counted(scene) == [3, 3, 3]
    scene.crash(scene.nodes["a"])
    scene.ticks(40)
    assert counted(scene) == [1, 1]
    scene.doubt_all()
    scene.start(scene.nodes["a"])
    scene.connect_all()
    scene.settle()
    assert counted(scene) == [1, 1, 1]
    opened(scene, "a")
    assert counted(scene) == [2, 2, 2]


def test_a_node_of_another_version_is_told_nothing() -> None:
    scene = Scene()
    scene.crash(scene.nodes["c"])
    scene.nodes["c"].features = tuple(each for each in scene.nodes["c"].features if each != "clients")
    scene.doubt_all()
    scene.start(scene.nodes["c"])
    scene.connect_all()
    scene.settle()
    scene.propose("a", LIMIT)
    opened(scene, "a")
    assert counted(scene) == [1, 1, 0]
