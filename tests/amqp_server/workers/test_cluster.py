"""Workers in a cluster of several machines: to others, each machine is one node."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from amqp_server.cluster.membership.machines import machine_of, machines
from tests.cluster import releases
from tests.cluster.mqd import TROUBLED, MqdCluster
from tests.cluster.nodes import wait_for

from .test_node import DURABLE, close, take, until

NODES = ("n1", "n2", "n3")
WORKERS = 2
OLD = releases.program(releases.WHEELS[-1])
EVERYONE = {f"{node}{worker}" for node in NODES for worker in ("", "/1")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MqdCluster]:
    """For tests after which all nodes serve again; their queues have names of their own."""
    with MqdCluster(NODES, workers=WORKERS) as started:
        yield started


@pytest.fixture
def changing() -> Iterator[MqdCluster]:
    """For tests that change which nodes there are."""
    with MqdCluster(NODES, workers=WORKERS) as started:
        yield started


@contextmanager
def client(cluster: MqdCluster, name: str) -> Iterator[BlockingChannel]:
    """A channel in confirm mode at any worker of a node."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1", cluster.port(name), connection_attempts=20, retry_delay=0.2
    )
    with ExitStack() as stack:
        connection = BlockingConnection(parameters)
        stack.callback(partial(close, connection))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=10)
        yield channel


def declare(channel: BlockingChannel, queue: str, kind: str) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})


def fill(channel: BlockingChannel, queue: str, kind: str, messages: int = 10) -> None:
    declare(channel, queue, kind)
    for number in range(messages):
        channel.basic_publish("", queue, b"%d" % number, DURABLE, mandatory=True)


def fill_four(cluster: MqdCluster) -> None:
    with client(cluster, "n1") as channel:
        for number in range(4):
            fill(channel, f"q{number}", "quorum")


def take_four(cluster: MqdCluster, name: str) -> None:
    """All that `fill_four` has published is there, for a client of this node."""
    with client(cluster, name) as channel:
        for number in range(4):
            assert take(channel, f"q{number}", 10) == [b"%d" % each for each in range(10)]


def rows(cluster: MqdCluster, name: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in cluster.status(name)["nodes"]}


def members(cluster: MqdCluster, name: str) -> dict[str, list[str]]:
    return {row["name"]: row["members"] for row in cluster._api("GET", name, "/api/cluster/queues")}


def voters(cluster: MqdCluster, queue: str) -> set[str]:
    return machines(each["node"] for each in cluster.queue("n1", queue)["members"] if each["voter"])


def topology_voters(cluster: MqdCluster) -> set[str]:
    members = cluster.status("n2")["topology"]["members"]
    return {each["node"] for each in members if each["voter"]}


def test_queues_are_on_machines_not_on_workers(cluster: MqdCluster) -> None:
    assert {*rows(cluster, "n1")} == EVERYONE
    assert topology_voters(cluster) == {*NODES}
    with client(cluster, "n1") as channel:
        for number in range(8):
            fill(channel, f"quorum{number}", "quorum", 1)
            fill(channel, f"stream{number}", "stream", 1)
    found = members(cluster, "n3")
    assert len(found) == 16
    assert "n1/1" in cluster.mqctl("n1", "cluster", "status")
    assert all(machines(nodes) == {*NODES} for nodes in found.values()), found
    # The further workers have their part of them.
    assert {name for nodes in found.values() for name in nodes} == EVERYONE


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_each_queue_is_used_from_all_nodes(cluster: MqdCluster, kind: str) -> None:
    for name in NODES:
        with client(cluster, name) as channel:
            fill(channel, f"{kind} of {name}", kind)
    for name in NODES:
        with client(cluster, name) as channel:
            for other in NODES:
                channel.basic_publish("", f"{kind} of {other}", b"more", DURABLE, mandatory=True)
    for name, other in zip(NODES, (*NODES[1:], NODES[0]), strict=True):
        with client(cluster, other) as channel:
            assert take(channel, f"{kind} of {name}", 13) == [
                *(b"%d" % each for each in range(10)),
                *[b"more"] * 3,
            ]


def test_groups_of_all_workers_are_told_and_reset(cluster: MqdCluster) -> None:
    partitions = 4
    with client(cluster, "n1") as channel:
        channel.exchange_declare(
            "parts", "x-super-stream", durable=True, arguments={"x-partitions": partitions}
        )
        for number in range(20):
            channel.basic_publish("parts", f"{number}", b"x", DURABLE, mandatory=True)
        arguments = {"x-queue-type": "stream-group", "x-stream": "parts", "x-stream-offset": "first"}
        for number in range(4):
            channel.queue_declare(f"group{number}", durable=True, arguments=arguments)
        # They are at different workers of a machine, and none of these has all partitions.
        placed = {tuple(sorted(nodes)) for name, nodes in members(cluster, "n1").items() if "group" in name}
        assert len(placed) > 1, placed
        for number, name in zip(range(4), (*NODES, "n1"), strict=True):
            for to, lag in (("next", 0), ("first", 20)):
                cluster.mqctl(name, "reset_group", f"group{number}", "--to", to)
                until(
                    "all nodes know it",
                    lambda number=number, lag=lag: (
                        {
                            (row["messages"], row["partitions"], row["state"])
                            for node in NODES
                            for row in cluster._api("GET", node, "/api/groups")
                            if row["name"] == f"group{number}"
                        }
                        == {(lag, partitions, "running")}
                    ),
                )
            told = cluster._api("GET", name, f"/api/groups/%2F/group{number}")
            assert [each["stream"] for each in told["partition_details"]] == [
                f"parts-{each}" for each in range(partitions)
            ]
        channel.basic_consume("group1", lambda *told: None)
        until(
            "it has a member",
            lambda: (
                {
                    row["members"]
                    for node in NODES
                    for row in cluster._api("GET", node, "/api/groups")
                    if row["name"] == "group1"
                }
                == {1}
            ),
        )


def test_a_drained_node_leads_nothing(cluster: MqdCluster) -> None:
    with client(cluster, "n1") as channel:
        for number in range(4):
            declare(channel, f"drained{number}", "quorum")
    cluster.mqctl("n1", "drain")
    until(
        "its leaders have gone",
        lambda: "n1" not in machines(cluster.status("n2")["groups"]),
    )
    cluster.mqctl("n1", "revive")
    for number in range(4):
        cluster.transfer(f"drained{number}", "n1")


def worker_pids(cluster: MqdCluster, name: str) -> list[int]:
    return cluster._nodes[name].pids()[1:]


def test_a_machine_and_a_worker_are_killed(cluster: MqdCluster) -> None:
    with client(cluster, "n1") as channel:
        for number in range(6):
            fill(channel, f"killed{number}", "quorum")
    for pid in worker_pids(cluster, "n2"):
        os.kill(pid, signal.SIGKILL)
        # It is started again, and serves; the others never stopped.
        with client(cluster, "n3") as channel:
            for number in range(6):
                channel.basic_publish("", f"killed{number}", b"meanwhile", DURABLE, mandatory=True)
    until("both are back", lambda: all(row["running"] for row in rows(cluster, "n1").values()))
    cluster.kill("n1")
    with client(cluster, "n3") as channel:
        for number in range(6):
            channel.basic_publish("", f"killed{number}", b"last", DURABLE, mandatory=True)
    cluster.restart("n1")
    with client(cluster, "n1") as channel:
        for number in range(6):
            found = take(channel, f"killed{number}", 13)
            assert found == [*(b"%d" % each for each in range(10)), b"meanwhile", b"meanwhile", b"last"]
    assert "has ended by SIGKILL" in cluster.log("n2")


def test_all_are_killed_at_once(cluster: MqdCluster) -> None:
    with client(cluster, "n2") as channel:
        for kind in ("classic", "quorum", "stream"):
            fill(channel, f"all {kind}", kind)
    for name in NODES:
        cluster.kill(name)
    for name in NODES:
        cluster.launch(name)
    for name in NODES:
        cluster.ready(name)
    with client(cluster, "n3") as channel:
        for kind in ("classic", "quorum", "stream"):
            assert take(channel, f"all {kind}", 10) == [b"%d" % each for each in range(10)]


def test_a_dead_machine_is_forgotten_and_another_joins(changing: MqdCluster) -> None:
    cluster = changing
    fill_four(cluster)
    # A worker does not go alone.
    with pytest.raises(AssertionError, match="is a worker of node 'n2'"):
        cluster.mqctl("n1", "cluster", "forget", "n2/1")
    with pytest.raises(AssertionError, match="is up: stop it first"):
        cluster.mqctl("n1", "cluster", "forget", "n2")
    cluster.shrink("n2")
    assert {*rows(cluster, "n1")} == {name for name in EVERYONE if machine_of(name) != "n2"}
    assert all(machines(nodes) == {"n1", "n3"} for nodes in members(cluster, "n1").values())
    joined = cluster.grow()
    everyone = {"n1", "n3", joined}
    wait_for("it votes", lambda: all(voters(cluster, f"q{number}") == everyone for number in range(4)))
    cluster.kill("n3")
    take_four(cluster, joined)


def test_a_machine_leaves(changing: MqdCluster) -> None:
    cluster = changing
    fill_four(cluster)
    with client(cluster, "n1") as channel:
        fill(channel, "only here", "classic")
    with pytest.raises(AssertionError, match="has its only copy on node 'n1"):
        cluster.mqctl("n1", "cluster", "leave")
    # Nothing of it has happened.
    assert {*rows(cluster, "n1")} == EVERYONE
    assert all(row["address"] for row in rows(cluster, "n1").values())
    with client(cluster, "n3") as channel:
        channel.queue_delete("only here")
    cluster.mqctl("n1", "cluster", "leave")
    wait_for("the node ends", lambda: not cluster._nodes["n1"].running)
    assert {*rows(cluster, "n2")} == {name for name in EVERYONE if machine_of(name) != "n1"}
    # It joins again under its name, with an empty directory, and all its workers come with it.
    cluster.join_again("n1")
    assert {*rows(cluster, "n2")} == EVERYONE
    take_four(cluster, "n1")


def test_a_machine_that_lost_its_disk_comes_back_with_all_its_workers_or_not(changing: MqdCluster) -> None:
    cluster = changing
    fill_four(cluster)
    cluster.kill("n3")
    shutil.rmtree(cluster.data("n3"))
    cluster.set_options("n3", "--workers", "1")
    cluster.launch("n3")
    # Its second worker would count as a member of queues for ever.
    with pytest.raises(AssertionError, match="knows 2 workers of node 'n3', and this start has 1"):
        cluster.ready("n3")
    cluster.set_options("n3")
    cluster.launch("n3")
    cluster.ready("n3")
    until("all run", lambda: all(row["running"] for row in rows(cluster, "n1").values()))
    assert {*rows(cluster, "n1")} == EVERYONE
    # Forgotten, it may come back with fewer.
    cluster.kill("n3")
    until("it is down", lambda: not rows(cluster, "n1")["n3"]["running"])
    cluster.mqctl("n1", "cluster", "forget", "n3")
    shutil.rmtree(cluster.data("n3"))
    cluster.mqctl("n1", "cluster", "join", "n3", f"127.0.0.1:{cluster._listen['n3']}")
    cluster.set_options("n3", "--workers", "1")
    cluster.launch("n3")
    cluster.ready("n3")
    assert {*rows(cluster, "n1")} == EVERYONE - {"n3/1"}
    take_four(cluster, "n3")


@pytest.mark.parametrize("program", [TROUBLED, OLD], ids=["members", "members of the last release"])
def test_members_get_workers_one_after_the_other(program: Sequence[str]) -> None:
    with MqdCluster(NODES, workers=1, program=program) as cluster:
        numbers = count()
        with client(cluster, "n1") as channel:
            declare(channel, "kept", "quorum")
            declare(channel, "here", "classic")
        for name in NODES:
            cluster.stop(name)
            cluster.run_as(name, TROUBLED)
            cluster.set_options(name, "--workers", "2")
            cluster.launch(name)
            cluster.ready(name)
            for other in NODES:
                with client(cluster, other) as channel:
                    for queue in ("kept", "here"):
                        channel.basic_publish("", queue, b"%d" % next(numbers), DURABLE, mandatory=True)
        until("all are there", lambda: {*rows(cluster, "n1")} == EVERYONE)
        # The leader of an older version lets each of them vote.
        until("first workers vote", lambda: topology_voters(cluster) == {*NODES})
        until("all run", lambda: all(row["running"] for row in rows(cluster, "n1").values()))
        with client(cluster, "n2") as channel:
            assert take(channel, "kept", 9) == [b"%d" % each for each in range(0, 18, 2)]
            assert take(channel, "here", 9) == [b"%d" % each for each in range(1, 18, 2)]
