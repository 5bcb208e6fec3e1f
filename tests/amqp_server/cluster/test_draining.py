"""An operator's commands on three nodes of which one is down: maintenance, members, options, reports."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pika
import pika.exceptions
import pytest

from amqp_server.mqctl.command import mqctl
from tests.amqp_server.cluster.ring import Ring
from tests.reliability.node import wait_until

QUORUM = {"x-queue-type": "quorum"}
QUEUES = [f"drained.{number}" for number in range(4)]


@pytest.fixture
def declared(ring: Ring) -> Ring:
    with ring.connection("n1") as connection:
        channel = connection.channel()
        for name in QUEUES:
            channel.queue_declare(name, durable=True, arguments=QUORUM)
    return ring


def leaders(ring: Ring, at: str) -> list[str]:
    told = ring.ask("GET", at, "/api/cluster/queues")[1]
    return [row["leader"] for row in told if row["name"] in QUEUES]


def test_leaders_and_clients_of_a_drained_node_go_while_another_is_down(declared: Ring) -> None:
    ring = declared
    for name in QUEUES[:2]:
        ring.mqctl("n1", "cluster", "transfer-leader", name, "n1")
    wait_until("n1 leads some", lambda: leaders(ring, "n1").count("n1") >= 2)
    ring.nodes["n3"].kill()
    wait_until("n3 leads nothing", lambda: set(leaders(ring, "n1")) <= {"n1", "n2"})
    client, bystander = ring.connect("n1"), ring.connect("n2")
    try:
        assert "is drained" in ring.mqctl("n1", "drain", "--timeout", "60")
        assert set(leaders(ring, "n2")) == {"n2"}
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance mode"):
            client.process_data_events(5)
        assert bystander.is_open and bystander.channel()
        assert ring.ask("GET", "n1", "/health/ready")[0] == 503
        assert ring.ask("GET", "n2", "/health/ready")[0] == 200
        told = {row["name"]: row for row in ring.ask("GET", "n2", "/api/nodes")[1]}
        assert (told["n1"]["being_drained"], told["n3"]["running"]) == (True, False)
        # Messages go through the rest: n1 is still a member.
        with ring.connection("n2") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", QUEUES[0], b"kept")
            assert channel.basic_get(QUEUES[0], auto_ack=True)[2] == b"kept"
    finally:
        ring.mqctl("n1", "revive")
        bystander.close()
    ring.mqctl("n1", "cluster", "transfer-leader", QUEUES[0], "n1")
    wait_until("n1 leads again", lambda: "n1" in leaders(ring, "n1"))
    with ring.connection("n1") as connection:
        connection.channel()


def test_members_of_a_queue_with_one_down(declared: Ring) -> None:
    ring = declared
    ring.nodes["n3"].kill()
    led_by_n2 = [["n1", "follower", "true"], ["n2", "leader", "true"], ["n3", "unknown", "false"]]

    def told() -> list[list[str]]:
        # Again each time: on a slow machine n1 may stand for election after that, and win.
        ring.mqctl("n1", "cluster", "transfer-leader", QUEUES[0], "n2")
        head, *rows = (line.split("\t") for line in ring.mqctl("n1", "quorum_status", QUEUES[0]).splitlines())
        assert head[:4] == ["Node Name", "Raft State", "online", "Last Log Index"]
        return [row[:3] for row in sorted(rows)]

    wait_until("n2 leads", lambda: told() == led_by_n2)
    assert "leaders are moving" in ring.mqctl("n1", "rebalance", "all")


def test_alarms_options_and_reports_with_one_down(declared: Ring, tmp_path: Path) -> None:
    ring = declared
    ring.nodes["n3"].kill()
    ring.mqctl("n2", "set_vm_memory_high_watermark", "0.0000001")
    try:
        status = ring.mqctl("n1", "status")
        assert "node n3 does not answer\n" in status
        assert "  alarms mem_alarm\n    memory (publishers are blocked): " in status
    finally:
        ring.mqctl("n2", "set_vm_memory_high_watermark", "0.6")
    assert "command line: --peers" in ring.mqctl("n1", "environment", "--changed")
    file = tmp_path / "report.json"
    ring.mqctl("n1", "report", str(file))
    told = json.loads(file.read_text())
    assert sorted(told["options that are no defaults"]) == ["n1", "n2", "n3"]
    assert told["options that are no defaults"]["n3"] == []
    assert {"n1", "n2"} == {row["name"] for row in told["nodes"] if row["running"]}
    assert ring.secret.read_text() not in file.read_text()


def without_arguments() -> list[str]:
    """Commands that read, and need no more than their name."""
    return [
        name
        for name, command in sorted(mqctl.commands.items())
        if name.startswith("list_")
        and not any(isinstance(each, click.Argument) and each.required for each in command.params)
    ]


def test_every_list_is_printed_with_one_down(declared: Ring) -> None:
    names = without_arguments()
    assert len(names) > 15
    declared.nodes["n3"].kill()
    printed = {name: declared.mqctl("n1", name) for name in names}
    assert [name for name, text in printed.items() if "Traceback" in text or "rror" in text] == []
    assert all(f"{name}\t" in printed["list_queues"] for name in QUEUES)


def test_a_node_without_a_majority_says_so(ring: Ring) -> None:
    for name in ("n2", "n3"):
        ring.nodes[name].kill()
    wait_until("the alarm is set", lambda: "alarms no_majority" in ring.mqctl("n1", "status"))
    assert "no_majority alarm set on this node" in ring.nodes["n1"].log()
    ring.start("n2")
    wait_until("the alarm is cleared", lambda: "no_majority" not in ring.mqctl("n1", "status"))
    assert "no_majority alarm cleared on this node" in ring.nodes["n1"].log()


def test_a_node_says_how_it_has_started(ring: Ring) -> None:
    log = ring.nodes["n1"].log()
    line = next(line for line in log.splitlines() if " has started as node n1; listeners: amqp " in line)
    for part in (
        "cluster 127.0.0.1:",
        "data directory: /",
        "limits: memory ",
        "free disk 1048576 bytes",
        "connections ",
    ):
        assert part in line


def test_dead_letters_are_redriven_with_one_down(ring: Ring) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead.ring"}
    with ring.connection("n1") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("dead.ring", durable=True, arguments=QUORUM)
        channel.queue_declare("alive.ring", durable=True, arguments=QUORUM | letters)
        for number in range(5):
            channel.basic_publish("", "alive.ring", b"%d" % number)
            method, _, _ = channel.basic_get("alive.ring")
            channel.basic_reject(method.delivery_tag, requeue=False)
    wait_until("all are dead", lambda: "dead.ring\t5" in ring.mqctl("n1", "list_queues"))
    ring.nodes["n3"].kill()
    assert ring.mqctl("n2", "redrive", "dead.ring") == "5 messages went back to their queues, 0 stay\n"
    with ring.connection("n2") as connection:
        channel = connection.channel()
        found = [channel.basic_get("alive.ring", auto_ack=True)[2] for _ in range(5)]
        assert found == [b"%d" % number for number in range(5)]
        for name in ("dead.ring", "alive.ring"):
            channel.queue_delete(name)
