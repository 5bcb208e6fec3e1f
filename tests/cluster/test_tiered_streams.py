"""A stream of three real nodes whose older segments go to an S3 server on this machine, and a fourth node
that is no member: kill -9 of leaders in the middle of uploads, and a server that is away for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance_tests.patience import open_connection
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.test_streams import url
from tests.reliability.test_tiered_streams import ARGUMENTS, OPTIONS, STREAM, read
from tests.reliability.test_tiered_streams import publish as publish_once
from tests.stores.s3 import S3Server, s3_server

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def cluster(s3: S3Server, tmp_path: Path) -> Iterator[MqdCluster]:
    remote = s3.remote("cluster", tmp_path)
    with MqdCluster(NODES, "--stream-remotes", remote, *OPTIONS) as started:
        yield started


def members(cluster: MqdCluster) -> list[str]:
    return [member.node for member in cluster.members(STREAM)]


def segments(cluster: MqdCluster, name: str) -> int:
    return len(list((cluster.data(name) / "streams").rglob("*.segment")))


#: Members at three of the nodes, the leader where the client is.
PLACED = {**ARGUMENTS, "x-initial-cluster-size": 3, "x-queue-leader-locator": "client-local"}


def publish(cluster: MqdCluster, node: str, low: int, stop: int, arguments: dict[str, Any] = PLACED) -> int:
    """Publish with confirms, by whichever node answers; return the number that is not confirmed."""
    number = low
    while number < stop:
        number = publish_once(cluster.port(node), number, stop, arguments)
    return number


def check(cluster: MqdCluster, stop: int) -> None:
    """Check that each node delivers everything from the first offset on."""
    for name in NODES:
        connection = open_connection(url(cluster.port(name)))
        channel = connection.channel()
        told = channel.queue_declare(STREAM, passive=True, arguments={"x-stream-offset": 0})
        end = told.method.message_count
        connection.close()
        found = read(cluster.port(name), "first", end)
        assert [offset for offset, _ in found] == list(range(end)), name
        assert sorted({number for _, number in found}) == list(range(stop)), name


def test_history_is_in_the_store_whoever_leads(cluster: MqdCluster, s3: S3Server) -> None:
    assert publish(cluster, "n1", 0, 300) == 300
    kept = members(cluster)
    wait_for("old segments leave the disks", lambda: all(segments(cluster, name) <= 5 for name in kept))
    assert len(s3.all_keys("cluster")) >= 5
    check(cluster, 300)
    # Leaders are killed while segments are on their way.
    reached = 300
    for _ in range(2):
        leader = cluster.leader(STREAM)
        timer = threading.Timer(1.0, cluster.kill, [leader])
        timer.start()
        other = next(name for name in kept if name != leader)
        reached = publish(cluster, other, reached, reached + 250)
        timer.join()
        cluster.restart(leader)
    wait_for("old segments leave the disks", lambda: all(segments(cluster, name) <= 5 for name in kept))
    check(cluster, reached)
    # The fourth node becomes a member: it takes the manifest and the newest part.
    outside = next(name for name in NODES if name not in kept)
    cluster.mqctl(outside, "cluster", "grow", outside)
    wait_for("a new member serves", lambda: outside in members(cluster))
    wait_for("it has the newest part", lambda: 0 < segments(cluster, outside) <= 5)
    check(cluster, reached)
    connection = open_connection(url(cluster.port("n1")))
    connection.channel().queue_delete(STREAM)
    connection.close()
    wait_for(
        "the objects are deleted",
        lambda: not s3.all_keys("cluster"),
        state=lambda: f"{s3.all_keys('cluster')} {[cluster.log(name)[-1500:] for name in NODES]}",
    )


def test_a_store_that_is_away(cluster: MqdCluster, s3: S3Server) -> None:
    publish(cluster, "n1", 0, 200)
    s3.stop()
    reached = publish(cluster, "n1", 200, 400)
    kept = members(cluster)
    leader = cluster.leader(STREAM)
    wait_for("there is an alarm", lambda: "stream_remote alarm set" in cluster.log(leader))
    assert all(segments(cluster, name) > 5 for name in kept)
    time.sleep(1)
    again = S3Server(s3.port)
    try:
        wait_for("old segments leave the disks", lambda: all(segments(cluster, name) <= 5 for name in kept))
        check(cluster, reached)
    finally:
        again.stop()
