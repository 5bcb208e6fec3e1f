"""Nodes that start with a write-ahead log of another size, or without one, and are killed meanwhile."""

from __future__ import annotations

import time

from tests.cluster.links import Unsupported
from tests.cluster.mqd import MqdCluster
from tests.cluster.scene import Scene

#: Values of log_bytes, one start after the other; None is the default.
SIZES = ("0", "16777216", "0", None, "1048576", None)
#: Times after the launch at which a node is killed: it makes its log, or resizes it, somewhere among them.
MOMENTS_S = (0.05, 0.15, 0.3, 0.6)
HOLD_S = 1.0


def other_logs(scene: Scene) -> None:
    """Each node in turn starts with another size of its log, is killed during the start, starts again with
    this size, and is killed under load.
    """
    cluster = scene.cluster
    if not isinstance(cluster, MqdCluster):
        raise Unsupported("log_bytes is an option of mqd")
    for turn, size in enumerate(SIZES):
        name = cluster.names[turn % len(cluster.names)]
        with scene.killed(name):
            cluster.set_options(name, *(() if size is None else ("--log-bytes", size)))
            for moment_s in MOMENTS_S:
                cluster.launch(name)
                time.sleep(moment_s * scene.random.uniform(0.8, 1.2))
                cluster.kill(name)
        scene.hold(HOLD_S)
        # Again, with what it has written into the new log, or without one.
        with scene.killed(name):
            pass
        scene.caught_up()
    for name in cluster.names:
        cluster.set_options(name)
