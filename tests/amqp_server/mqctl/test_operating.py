"""Commands for operators of one node: options, limits, maintenance, messages, a report without secrets."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pika
import pika.exceptions
import pytest

from amqp_server.config import VERSION

from .conftest import Addresses, Mqctl, Outcome


def ok(outcome: Outcome) -> Outcome:
    assert (outcome.code, outcome.err) == (0, "")
    return outcome


def test_options_in_force(mqd: Addresses, mqctl: Mqctl) -> None:
    rows = {row[0]: row[1:] for row in ok(mqctl("environment")).rows}
    assert rows["option"] == ["value", "source"]
    assert rows["amqp"][1] == "command line: --amqp"
    assert rows["heartbeat_s"][1] == "default"
    assert rows["default_password"][0] == "***"
    ok(mqctl("set_log_level", "debug"))
    ok(mqctl("set_disk_free_limit", "3MiB"))
    try:
        changed = {row[0]: row[1:] for row in ok(mqctl("environment", "--changed")).rows}
        assert "heartbeat_s" not in changed
        assert changed["log_level"] == ["debug", "changed in the running node by user 'guest'"]
        assert changed["disk_free_min_bytes"][0] == str(3 << 20)
        assert "publishers are blocked below 3 MiB" in ok(mqctl("status")).out
        ok(mqctl("set_disk_free_limit", "mem_relative", "0.001"))
        assert "publishers are blocked below 3 MiB" not in ok(mqctl("status")).out
    finally:
        ok(mqctl("set_log_level", "info"))
        ok(mqctl("set_disk_free_limit", "2GiB"))
    for wrong in (["much"], ["mem_relative", "x"], ["1", "2"]):
        assert mqctl("set_disk_free_limit", *wrong).code in (64, 65)
    assert mqctl("set_log_level", "loud").code == 64


def test_status_for_people(mqctl: Mqctl) -> None:
    lines = ok(mqctl("status")).out.splitlines()
    assert lines[0].startswith(f"mqd {VERSION}, ")
    assert lines[1].startswith("node n1, process ")
    text = "\n".join(lines)
    for part in (
        "  memory ",
        " MiB of ",
        "  disk ",
        " free, publishers are blocked below 2 GiB",
        "  alarms none",
    ):
        assert part in text
    assert "  amqp 127.0.0.1:" in text
    ok(mqctl("set_vm_memory_high_watermark", "0.0000001"))
    try:
        out = ok(mqctl("status")).out
        assert "  alarms mem_alarm\n    memory (publishers are blocked): " in out
        assert "bytes used, limit" in out
        told = json.loads(ok(mqctl("--formatter", "json", "status")).out)
        assert told["nodes"][0]["mem_alarm"] is True
    finally:
        ok(mqctl("set_vm_memory_high_watermark", "0.6"))


def test_a_connection_that_is_blocked_is_shown(mqd: Addresses, mqctl: Mqctl) -> None:
    host, _, port = mqd.amqp.rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.queue_declare("blocked")
    ok(mqctl("set_vm_memory_high_watermark", "0.0000001"))
    try:
        channel.basic_publish("", "blocked", b"x")
        connection.process_data_events(0.5)
        assert ["guest", "blocked"] in ok(mqctl("list_connections", "user", "state")).rows
    finally:
        ok(mqctl("set_vm_memory_high_watermark", "0.6"))
    connection.process_data_events(0.5)
    assert ["guest", "running"] in ok(mqctl("list_connections", "user", "state")).rows
    channel.queue_delete("blocked")
    connection.close()


def test_a_hash_is_that_of_definitions(mqctl: Mqctl) -> None:
    hashed = base64.b64decode(ok(mqctl("hash_password", "s3cret")).out)
    assert hashed[4:] == hashlib.sha256(hashed[:4] + b"s3cret").digest()


def test_a_node_alone_answers_for_its_cluster(mqctl: Mqctl) -> None:
    rows = ok(mqctl("cluster_status")).rows
    assert rows[1][:2] == ["n1", "up"]
    assert rows[1][-1] == "stands alone, without a cluster"
    assert json.loads(ok(mqctl("--formatter", "json", "cluster_status")).out)["nodes"][0]["name"] == "n1"
    assert ok(mqctl("rebalance", "quorum")).out == "0 leaders are moving: this node stands alone\n"
    ok(mqctl("declare_queue", "q", "-a", "x-queue-type=quorum"))
    rows = ok(mqctl("quorum_status", "q")).rows
    assert rows == [["Node Name", "Raft State", "online"], ["n1", "leader", "true"]]
    ok(mqctl("delete_queue", "q"))
    assert mqctl("quorum_status", "q").code == 69


def test_messages_are_moved(mqctl: Mqctl) -> None:
    for name in ("from", "to"):
        ok(mqctl("declare_queue", name))
    for number in range(3):
        ok(mqctl("publish", "", "from", str(number)))
    assert ok(mqctl("move", "from", "to", "--count", "1")).out == "1 messages were moved\n"
    assert ok(mqctl("move", "from", "to")).out == "2 messages were moved\n"
    assert [row[-1] for row in ok(mqctl("-q", "get", "to", "-n", "5")).rows] == ["0", "1", "2"]
    assert ok(mqctl("move", "from", "to")).out == "0 messages were moved\n"
    assert mqctl("move", "from", "none").code == 69
    ok(mqctl("declare_queue", "full", "-a", "x-max-length=1", "-a", "x-overflow=reject-publish"))
    for number in range(3):
        ok(mqctl("publish", "", "from", str(number)))
    outcome = mqctl("move", "from", "full")
    assert (outcome.code, "refuses more" in outcome.err) == (69, True)
    for name in ("from", "to", "full"):
        ok(mqctl("delete_queue", name))


def test_a_stream_is_read(mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "log", "-a", "x-queue-type=stream"))
    for number in range(4):
        ok(mqctl("publish", "", "log", f"m{number}"))
    rows = ok(mqctl("read", "log")).rows
    assert rows[0] == ["offset", "exchange", "routing_key", "properties", "payload"]
    assert [(row[0], row[-1]) for row in rows[1:]] == [(str(number), f"m{number}") for number in range(4)]
    assert [row[-1] for row in ok(mqctl("-q", "read", "log", "--offset", "2", "-n", "1")).rows] == ["m2"]
    assert mqctl("read", "log", "--offset", "nonsense").code == 65
    ok(mqctl("declare_queue", "classic"))
    assert mqctl("read", "classic").code == 65
    for name in ("log", "classic"):
        ok(mqctl("delete_queue", name))


def test_a_node_is_drained_and_revived(mqd: Addresses, mqctl: Mqctl) -> None:
    host, _, port = mqd.amqp.rpartition(":")
    where = pika.ConnectionParameters(host, int(port), connection_attempts=1)
    connection = pika.BlockingConnection(where)
    try:
        drained = ok(mqctl("drain", "--timeout", "30"))
        assert drained.out.startswith("Node n1 is drained")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance mode"):
            connection.process_data_events(5)
        assert "drained: it accepts no clients" in ok(mqctl("status")).out
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(where)
        assert mqctl("check_running").code == 69
        # What the node does for itself goes on.
        ok(mqctl("declare_queue", "meanwhile"))
        ok(mqctl("publish", "", "meanwhile", "x"))
        ok(mqctl("delete_queue", "meanwhile"))
    finally:
        ok(mqctl("revive"))
    assert mqctl("check_running").code == 0
    pika.BlockingConnection(where).close()


SECRETS = ("s3cret-of-a-user", "s3cret-of-a-shovel", "s3cret-of-a-client", "s3cret-in-a-message")


def test_a_report_has_no_secrets(mqd: Addresses, mqctl: Mqctl, tmp_path: Path) -> None:
    ok(mqctl("add_user", "reported", SECRETS[0]))
    ok(mqctl("declare_queue", "reported.queue"))
    value = {
        "src-uri": f"amqp://u:{SECRETS[1]}@127.0.0.9:9",
        "src-queue": "a",
        "dest-uri": "amqp://",
        "dest-queue": "b",
    }
    ok(mqctl("set_parameter", "shovel", "reported.shovel", json.dumps(value)))
    ok(mqctl("publish", "", "reported.queue", SECRETS[3]))
    host, _, port = mqd.amqp.rpartition(":")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host, int(port), client_properties={"note": SECRETS[2]})
    )
    file = tmp_path / "report.json"
    outcome = mqctl("report", str(file))
    assert outcome.code == 0
    assert "read it before you publish it" in outcome.err
    text = file.read_text()
    told = json.loads(text)
    assert told["overview"]["product_version"] == VERSION
    assert {"name": "reported", "tags": []} in told["users"]
    assert [row for row in told["queues"] if row["name"] == "reported.queue"]
    assert {"vhost": "/", "component": "shovel", "name": "reported.shovel"} in told["parameters"]
    assert told["connections"][0]["user"] == "guest"
    options = told["options that are no defaults"]["n1"]
    assert "amqp" in [row["name"] for row in options]
    for secret in (*SECRETS, "password_hash", "argon2"):
        assert secret not in text
    assert json.loads(ok(mqctl("report")).out)["nodes"][0]["name"] == "n1"
    connection.close()
    ok(mqctl("clear_parameter", "shovel", "reported.shovel"))
    ok(mqctl("delete_queue", "reported.queue"))
    ok(mqctl("delete_user", "reported"))
