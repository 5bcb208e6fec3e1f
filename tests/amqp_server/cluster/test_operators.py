"""Settings that an operator makes on one node hold on all nodes when the answer comes, or as soon as a
queue's leader has them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring
from tests.reliability.node import wait_until


def test_policies_and_definitions(ring: Ring, tmp_path: Path) -> None:
    with ring.channel("n1") as first, ring.channel("n2") as second, ring.channel("n3") as third:
        channels = (first, second, third)
        for channel in channels:
            channel.confirm_delivery()
        first.queue_declare("limited", durable=True, arguments=QUORUM)
        second.queue_declare("limited too", durable=True)
        for queue in ("limited", "limited too"):
            for channel in channels:
                for _ in range(3):
                    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        ring.mqctl("n2", "set_policy", "short", "^limited", '{"max-length": 4}')
        for name in NAMES:
            assert "short" in ring.mqctl(name, "list_policies")
            rows = ring.mqctl(name, "-q", "list_queues", "name", "policy", "effective_policy_definition")
            assert 'limited\tshort\t{"max-length": 4}' in rows
        for channel, queue in zip(channels * 2, ["limited", "limited too"] * 3, strict=True):
            wait_until(
                "the policy holds",
                lambda channel=channel, queue=queue: (
                    channel.queue_declare(queue, durable=True, passive=True).method.message_count == 4
                ),
            )
        file = tmp_path / "definitions.json"
        ring.mqctl("n3", "export_definitions", str(file))
        told = json.loads(file.read_text())
        assert {each["name"] for each in told["queues"]} >= {"limited", "limited too"}
        told["queues"] = [
            {"name": f"many{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
            for number in range(200)
        ]
        file.write_text(json.dumps(told))
        ring.mqctl("n1", "import_definitions", str(file))
        third.queue_declare("many199", durable=True, passive=True)
        for queue in ("limited", "limited too", *(f"many{number}" for number in range(200))):
            second.queue_delete(queue)
        ring.mqctl("n3", "clear_policy", "short")
        assert "short" not in ring.mqctl("n1", "list_policies")


def test_limits_hold_on_all_nodes_together(ring: Ring) -> None:
    ring.mqctl("n1", "add_vhost", "narrow")
    ring.mqctl("n2", "set_permissions", "-p", "narrow", "guest", ".*", ".*", ".*")
    ring.mqctl("n3", "set_vhost_limits", "-p", "narrow", '{"max-queues": 1}')
    with (
        ring.connection("n1", virtual_host="narrow") as here,
        ring.connection("n2", virtual_host="narrow") as there,
    ):
        here.channel().queue_declare("one")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue limit in vhost 'narrow'"):
            there.channel().queue_declare("two")
    ring.mqctl("n3", "set_vhost_limits", "-p", "narrow", '{"max-connections": 2}')
    with ring.connection("n1", virtual_host="narrow"):
        with ring.connection("n2", virtual_host="narrow"):
            wait_until("one is too many", lambda: "connection limit (2) is reached" in refusal(ring, "n3"))
            assert "connection limit (2) is reached" in refusal(ring, "n1")
        wait_until("there is room again", lambda: not refusal(ring, "n3"))
    ring.mqctl("n1", "set_vhost_limits", "-p", "narrow", '{"max-connections": -1}')
    ring.mqctl("n1", "set_user_limits", "guest", '{"max-channels": 3}')
    try:
        with ring.connection("n1") as here, ring.connection("n2") as there:
            first = here.channel()
            opened = [here.channel(), there.channel()]
            wait_until("one is too many", lambda: "user limit of (3)" in refusal(ring, "n3", "/"))
            first.close()
            wait_until("there is room again", lambda: not refusal(ring, "n3", "/"))
            assert all(channel.is_open for channel in opened)
    finally:
        ring.mqctl("n2", "clear_user_limits", "guest", "all")
    ring.mqctl("n1", "delete_vhost", "narrow")


def refusal(ring: Ring, at: str, vhost: str = "narrow") -> str:
    """Return why a client gets no channel there; empty if it gets one."""
    try:
        with ring.connection(at, virtual_host=vhost, connection_attempts=1) as connection:
            connection.channel()
    except pika.exceptions.AMQPError as error:
        return str(error)
    return ""


def test_sizes_of_messages_are_those_of_all_nodes(ring: Ring) -> None:
    def counts() -> list[int]:
        found = [[row["count"] for row in ring.get(name, "/api/message-sizes")["sizes"]] for name in NAMES]
        assert found[0] == found[1] == found[2]
        return found[0]

    before = counts()
    for name in NAMES:
        with ring.channel(name) as channel:
            channel.basic_publish("amq.fanout", "", bytes(500))
    assert [after - once for after, once in zip(counts(), before, strict=True)] == [0, 3, 0, 0, 0, 0, 0, 0, 0]
