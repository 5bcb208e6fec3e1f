"""Each node derives the settings of a queue from its declaration; where they have changed, the log says
so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp_server.broker.declared import settings as declared
from amqp_server.broker.declared.settings import effective_settings
from quorum_queue.cluster.snapshots import compaction
from quorum_queue.machine.settings import Settings

from .test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")


def settings_at(scene: Scene, queue_id: int) -> list[Settings]:
    return [node.cluster.hosts.grouped[queue_id].settings for node in scene.nodes.values()]


def test_a_version_that_derives_other_settings_says_so_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    client = scene.client("a")
    queue_id = scene.place(client, "quorum", "abc")
    scene.publish(client, "quorum")
    scene.settle()
    (before,) = set(settings_at(scene, queue_id))
    assert before == scene.nodes["a"].broker.vhost("/").queues["quorum"].settings
    assert before.delivery_limit is None

    # The snapshots have the settings that the group uses, whatever a node would derive.
    for node in scene.nodes.values():
        node.turn.run(compaction.take_snapshot, node.cluster.replicas.groups[queue_id])
    scene.settle()
    for node in scene.nodes.values():
        assert node.cluster.replicas.groups[queue_id].snapshot_index
        scene.crash(node, written=True)

    def derived(*declaration: Any) -> Settings:
        return replace(effective_settings(*declaration), delivery_limit=7)

    monkeypatch.setattr(declared, "effective_settings", derived)
    for node in scene.nodes.values():
        scene.start(node)
    scene.mend()
    scene.settle()
    assert set(settings_at(scene, queue_id)) == {replace(before, delivery_limit=7)}
    assert scene.leading(queue_id) is not None
