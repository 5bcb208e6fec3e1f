"""Commands of rabbitmq-diagnostics that scripts and probes of operators call."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.config import VERSION
from amqp_server.mqctl.client import Client

from .conftest import Addresses, Mqctl

CHECKS = [
    ("check_alarms",),
    ("check_local_alarms",),
    ("check_virtual_hosts",),
    ("check_running",),
    ("check_if_node_is_quorum_critical",),
    ("check_protocol_listener", "amqp"),
    ("check_certificate_expiration",),
    ("check_certificate_expiration", "--unit", "days", "--within", "2"),
    ("await_startup", "--timeout", "5"),
    ("await_online_nodes", "1"),
]


@pytest.mark.parametrize("command", CHECKS, ids=" ".join)
def test_all_is_well(mqctl: Mqctl, command: tuple[str, ...]) -> None:
    outcome = mqctl(*command)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out


def test_listeners_are_listed_and_checked(mqd: Addresses, mqctl: Mqctl) -> None:
    host, _, port = mqd.amqp.rpartition(":")
    assert ["n1", "amqp", host, port] in mqctl("listeners").rows
    assert mqctl("check_port_listener", port).code == 0
    assert mqctl("check_port_listener", "1") == (69, "", "Error: No active listener\n")
    assert mqctl("check_protocol_listener", "mqtt").code == 69
    assert mqctl("check_port_listener", "x").code == 65


def test_an_alarm_is_listed_and_fails_the_checks(mqctl: Mqctl) -> None:
    assert mqctl("alarms").rows == []
    assert mqctl("set_vm_memory_high_watermark", "0.0000001").code == 0
    try:
        assert ["n1", "memory"] in mqctl("alarms").rows
        said = "Error: There are alarms in effect in the cluster: memory of n1\n"
        assert mqctl("check_alarms") == (69, "", said)
        assert mqctl("check_local_alarms").code == 69
    finally:
        assert mqctl("set_vm_memory_high_watermark", "0.6").code == 0
    assert mqctl("check_alarms").code == 0


def test_a_certificate_that_ends_is_named(mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    expired = [{"file": "/etc/mqd/cert.pem", "cert_expires_on": "2031-02-03T04:05:06Z"}]
    told = {"status": "failed", "reason": "Certificates expiring", "expired": expired}
    monkeypatch.setattr(Client, "check", lambda self, *path: told)
    said = "Error: Certificates expiring: /etc/mqd/cert.pem (2031-02-03T04:05:06Z)\n"
    assert mqctl("check_certificate_expiration") == (69, "", said)


def test_waiting_ends_with_its_timeout(mqctl: Mqctl) -> None:
    outcome = mqctl("await_online_nodes", "2", "--timeout", "0.1")
    assert (outcome.code, outcome.err) == (69, "Error: fewer than 2 nodes were up within 0.1 s\n")
    outcome = mqctl("--url", "http://127.0.0.1:1", "await_startup", "--timeout", "0.1")
    assert (outcome.code, outcome.err) == (69, "Error: the node did not serve clients within 0.1 s\n")


def test_logins_are_counted_and_the_counts_reset(mqctl: Mqctl) -> None:
    assert mqctl("reset_node_auth_attempt_metrics").code == 0
    assert mqctl("--password", "wrong", "list_users").code == 77
    rows = {row[0]: row[1:] for row in mqctl("-q", "list_node_auth_attempt_stats").rows}
    assert rows["amqp091"] == ["0", "0", "0"]
    assert rows["http"][1] == "1"


def test_looks_at_a_node(mqctl: Mqctl) -> None:
    assert mqctl("server_version").out == f"{VERSION}\n"
    assert {"total", "other_system"} <= {row[0] for row in mqctl("memory_breakdown").rows}
    assert ["quorum_queue", "enabled"] in mqctl("list_feature_flags").rows
    assert mqctl("enable_feature_flag", "quorum_queue").code == 0
    assert mqctl("enable_feature_flag", "nosuch").code == 65
    assert mqctl("cluster_status").out == mqctl("cluster", "status").out


def test_sizes_of_messages(mqctl: Mqctl) -> None:
    def counts() -> list[int]:
        return [int(row[1]) for row in mqctl("-q", "message_size_stats").rows]

    before = counts()
    for payload in ("x", "x" * 100, "x" * 101, "x" * 2_000):
        mqctl("publish", "amq.fanout", "", payload)
    assert [after - once for after, once in zip(counts(), before, strict=True)] == [2, 1, 1] + [0] * 6
    rows = mqctl("-q", "message_size_stats").rows
    assert rows[0][0] == "below 100B" and rows[1][0] == "between 100B and 1KB"
    assert (rows[6][0], rows[-1][0]) == ("between 10MB and 50MB", "above 100MB")
    assert abs(sum(float(row[2]) for row in rows) - 100) < 0.1


def test_what_else_rabbitmqctl_has(mqctl: Mqctl) -> None:
    assert mqctl("add_user", "gone", "secret").code == 0
    assert mqctl("clear_password", "gone").code == 0
    assert mqctl("authenticate_user", "gone", "secret").code == 65
    assert mqctl("close_all_user_connections", "gone", "enough").code == 0
    assert mqctl("delete_user", "gone").code == 0
    assert mqctl("clear_password", "gone").code == 67
    assert mqctl("add_vhost", "tagged", "--description", "d", "--default-queue-type", "quorum").code == 0
    assert mqctl("set_vhost_tags", "tagged", "a", "b").code == 0
    assert mqctl("enable_vhost_protection_from_deletion", "tagged").code == 0
    assert mqctl("set_vhost_tags", "tagged", "b", "c").code == 0
    columns = ("name", "description", "tags", "default_queue_type", "protected_from_deletion")
    assert ["tagged", "d", "[b, c]", "quorum", "true"] in mqctl("list_vhosts", *columns).rows
    refused = mqctl("delete_vhost", "tagged")
    assert refused.code == 65 and "is protected from deletion" in refused.err
    assert mqctl("disable_vhost_protection_from_deletion", "tagged").code == 0
    assert mqctl("delete_vhost", "tagged").code == 0
    assert mqctl("enable_vhost_protection_from_deletion", "tagged").code == 69
    assert mqctl("check_for_quorum_queues_without_an_elected_leader", "--across-all-vhosts", ".*").code == 0
    assert mqctl("check_for_quorum_queues_without_an_elected_leader", "(").code == 65
    assert mqctl("list_queues", "name", "message_bytes_unacknowledged", "head_message_timestamp").code == 0


def test_status_of_a_cluster_without_one_of_its_nodes(mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    get = Client.get

    def told(client: Client, *path: str, **query: str) -> Any:
        rows = get(client, *path, **query)
        if path == ("nodes",):
            rows.append({"name": "n2", "type": "disc", "running": False, "being_drained": False})
        return rows

    monkeypatch.setattr(Client, "get", told)
    outcome = mqctl("status")
    assert (outcome.code, outcome.err) == (0, "")
    assert "node n2 does not answer\n" in outcome.out
