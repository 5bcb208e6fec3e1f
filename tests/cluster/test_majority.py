"""Without a majority nothing is confirmed, and everything continues by itself when there is one again."""

from __future__ import annotations

import time

import pytest

from tests.cluster.links import isolate
from tests.cluster.nodes import Cluster, wait_for
from tests.cluster.scene import Scene

#: Messages that were under way to the disks when the majority went may still be confirmed. The test waits
#: until no confirm has come for SETTLED_S, which must happen within SETTLED_MAX_S, also if clients are slow
#: to read.
SETTLED_S = 1.0
SETTLED_MAX_S = 20.0
ALONE_S = 5.0


def alone(scene: Scene, survivor: str) -> None:
    """Clients of this node stay connected, and the node tells them nothing that is not true."""
    publishers = [each for each in scene.load.publishers if each.node == survivor]

    def settled() -> bool:
        before = scene.load.confirmed
        scene.hold(SETTLED_S)
        return scene.load.confirmed == before

    wait_for("nothing is confirmed any more", settled, SETTLED_MAX_S)
    before = scene.load.confirmed
    since = time.monotonic()
    scene.hold(ALONE_S)
    heard = [each.name for each in publishers if each.heard and each.heard[-1] > since]
    assert not heard and scene.load.confirmed == before, f"confirmed without a majority: {heard}"


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_no_majority_no_confirm(cluster: Cluster, how: str) -> None:
    scene = Scene(cluster, seed=1, name=f"majority-{how[0]}", streams=False)
    scene.declare()
    try:
        scene.load.start()
        survivor = scene.leader() if how == "killed" else cluster.names[0]
        others = [name for name in cluster.names if name != survivor]
        if how == "killed":
            with scene.killed(*others):
                alone(scene, survivor)
        else:
            scene.strike(*cluster.names)
            for name in cluster.names:
                isolate(cluster.links, name, cluster.names, hold=True)
            alone(scene, survivor)
            scene.heal(*cluster.names)
            for name in cluster.names:
                isolate(cluster.links, name, cluster.names)
        scene.load.wait_all_confirmed("after the heal", since=scene.healing_at)
        scene.caught_up()
        scene.load.stop_publishing()
        scene.load.drain()
    finally:
        scene.load.stop()
    scene.verify_quiet()
    for ledger in scene.ledgers:
        ledger.close()
        assert ledger.faults() == []
    assert scene.failures == []
    scene.delete()
