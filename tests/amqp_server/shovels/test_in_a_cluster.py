"""One node of a cluster runs each shovel. Another node takes over when that one dies or is cut off, and
nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pika

from amqp_server.testing.broker import Broker
from amqp_server.testing.cluster import start_cluster
from conformance_tests.expect import eventually

NAMES = [f"s{number}" for number in range(6)]


def put(node: Broker, name: str, source: str, destination: str) -> None:
    value = {
        "src-uri": "amqp://",
        "src-queue": source,
        "src-queue-args": {"x-queue-type": "quorum"},
        "src-prefetch-count": 10,
        "dest-uri": "amqp://",
        "dest-queue": destination,
        "dest-queue-args": {"x-queue-type": "quorum"},
        "reconnect-delay": 0.1,
    }
    node.api("PUT", f"/api/parameters/shovel/%2F/{name}", {"value": value})


def shovels(node: Broker) -> list[dict[str, Any]]:
    rows = node.api("GET", "/api/shovels")
    assert isinstance(rows, list)
    return rows


def keepers(node: Broker) -> dict[str, str]:
    """Return the node of each shovel, once all of them run, each on one node."""

    def all_run() -> dict[str, str]:
        rows = shovels(node)
        running = {row["name"]: row["node"] for row in rows if row["state"] in ("running", "flow")}
        return running if len(running) == len(rows) else {}

    return eventually(all_run, 30)


def drained(url: str, queue: str) -> list[bytes]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).method.message_count
    found: list[bytes] = []
    for _, _, body in channel.consume(queue, auto_ack=True):
        found.append(body)
        if len(found) == count:
            break
    connection.close()
    return found


def test_one_node_runs_each() -> None:
    cluster = start_cluster(cluster_dead_ms=500, shovel_reconnect_min_ms=50)
    try:
        connection = pika.BlockingConnection(pika.URLParameters(cluster.url("n1")))
        channel = connection.channel()
        for queue in ("a", "b"):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        for name in NAMES[1:]:
            put(cluster["n2"], name, f"from-{name}", f"to-{name}")
        # Enough messages for the shovel to take a while.
        wanted = [b"%d" % number for number in range(800)]
        channel.tx_select()
        for body in wanted:
            channel.basic_publish("", "a", body, pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()
        connection.close()
        put(cluster["n1"], NAMES[0], "a", "b")
        before = keepers(cluster["n3"])
        assert sorted(before) == NAMES and len(set(before.values())) > 1
        assert Counter(row["name"] for row in shovels(cluster["n1"])) == Counter(NAMES)
        home = before[NAMES[0]]
        others = [name for name in ("n1", "n2", "n3") if name != home]
        node = cluster[others[0]]
        # Another node than the one that runs the shovel gets the request.
        node.api("DELETE", f"/api/shovels/vhost/%2F/{NAMES[0]}/restart")
        cluster.kill(home)
        eventually(lambda: home not in keepers(node).values(), 30)
        after = keepers(node)
        # Shovels of nodes that live have not moved.
        assert {name: after[name] for name in NAMES if before[name] != home} == {
            name: at for name, at in before.items() if at != home
        }
        cluster.start(home)
        eventually(lambda: keepers(node) == before, 30)
        eventually(
            lambda: (
                sum(each["messages"] for each in node.api("GET", "/api/queues") if each["name"] == "a") == 0
            ),
            30,
        )
        eventually(lambda: all(row["pending"] == 0 for row in shovels(node)))
        moved = Counter(drained(cluster.url(others[0]), "b"))
        assert set(moved) == set(wanted)
        # When the node is cut off it runs no shovel, and its shovels run elsewhere.
        cluster.partition(home)
        eventually(lambda: home not in keepers(node).values(), 30)
        eventually(
            lambda: (
                not [
                    row for row in shovels(cluster[home]) if row["node"] == home and row["state"] == "running"
                ]
            ),
            30,
        )
        cluster.heal()
        eventually(lambda: keepers(node) == before, 30)
    finally:
        cluster.close()
