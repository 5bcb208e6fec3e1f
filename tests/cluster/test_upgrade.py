"""A cluster of the last release is upgraded node by node under load, and stays mixed for a while. Nothing is
lost, no node reads anything that it does not know, and a node of the last release does not come back once the
others have gone on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from quorum_queue.machine import versions
from tests.cluster import releases
from tests.cluster.mqd import TROUBLED, MqdCluster
from tests.cluster.nodes import wait_for
from tests.cluster.scene import CONFIRMED_MIN, Scene, run
from tests.reliability.client import Client

OLD = releases.program(releases.WHEELS[-1])
#: Seconds for which both versions serve together.
MIXED_S = 4.0
#: Seconds; within this time a node would have been let in many times.
REFUSED_S = 5.0
#: The others refuse the node, unless its own disk has a snapshot of a newer version by now: then it ends at
#: its start.
UNREADABLE = ", this mqd reads version 1"


@pytest.fixture
def old() -> Iterator[MqdCluster]:
    with MqdCluster(program=OLD) as cluster:
        yield cluster


def upgrade(scene: Scene) -> None:
    """One node after the other, with leaders on both sides while the versions are mixed."""
    cluster = scene.cluster
    assert isinstance(cluster, MqdCluster)
    for at, name in enumerate(cluster.names):
        with scene.stopped(name):
            cluster.run_as(name, TROUBLED)
        scene.caught_up()
        assert at == 2 or not any(
            version(cluster, other) > versions.FIRST for other in cluster.names[: at + 1]
        )
        for queue, leader in zip(scene.queues, cluster.names, strict=True):
            # The leaders are a new node, an old one, and one that has just been upgraded.
            with contextlib.suppress(AssertionError):
                cluster.transfer(queue, leader)
        scene.hold(MIXED_S)


def version(cluster: MqdCluster, name: str) -> int:
    """Return the version of queues that the cluster has, as a new node reports it."""
    return int(cluster.status(name)["machine_version"])


def test_a_rolling_upgrade_under_load_loses_nothing(old: MqdCluster) -> None:
    # The last release has no streams.
    outcome = run(old, "upgrade", upgrade, seed=1, streams=False)
    assert outcome.failures == []
    assert not any(outcome.counts.values()), outcome
    assert outcome.confirmed > CONFIRMED_MIN
    wait_for(
        "all nodes have the new version of queues",
        lambda: all(version(old, name) == versions.NEWEST for name in old.names),
    )


def test_a_node_of_the_last_release_does_not_come_back(old: MqdCluster) -> None:
    with contextlib.closing(Client(old.port("n1"))) as client:
        arguments: Any = {"x-queue-type": "quorum"}
        client.call(
            commands.Queue.Declare(queue="kept", durable=True, arguments=arguments), commands.Queue.DeclareOk
        )
    for name in old.names:
        old.stop(name)
        old.run_as(name, TROUBLED)
        old.restart(name)
    wait_for(
        "the version is raised", lambda: all(version(old, name) == versions.NEWEST for name in old.names)
    )
    wait_for("queues are raised", lambda: queue_version(old, "n1", "kept") == versions.NEWEST)
    old.stop("n3")
    old.run_as("n3", OLD)
    old.launch("n3")
    wait_for(
        "it is kept out",
        lambda: "too old for this cluster" in old.log("n1") + old.log("n2") or UNREADABLE in old.log("n3"),
        state=lambda: "\n".join(f"{name}: {old.log(name)[-2_000:]}" for name in old.names),
    )
    time.sleep(REFUSED_S)
    nodes = {node["name"]: node["running"] for node in old.status("n1")["nodes"]}
    assert nodes == {"n1": True, "n2": True, "n3": False}
    old.kill("n3")
    old.run_as("n3", TROUBLED)
    old.restart("n3")
    wait_for("it is back", lambda: all(node["running"] for node in old.status("n1")["nodes"]))


def queue_version(cluster: MqdCluster, name: str, queue: str) -> int:
    return int(cluster.queue(name, queue)["machine_version"])
