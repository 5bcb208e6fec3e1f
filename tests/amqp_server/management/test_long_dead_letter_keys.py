"""Over HTTP, too, the node refuses a dead-letter routing key that no message can have, and stores nothing of
it.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pamqp import commands

from amqp_server.broker.recovery import recovery
from amqp_server.config import Config
from persistence.journal import Journal

from ..connection.node import Commits, make_broker
from .conftest import Connect, ManagedNode, published

pytestmark = pytest.mark.trio

ARGUMENTS = {
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-routing-key": "k" * 300,
    "x-message-ttl": 1,
}
DEFINITION = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "k" * 300, "message-ttl": 1}
QUEUE = {"name": "long", "vhost": "/", "durable": True, "auto_delete": False, "arguments": ARGUMENTS}
POLICY = {
    "name": "long",
    "vhost": "/",
    "pattern": "long",
    "definition": DEFINITION,
    "priority": 0,
    "apply-to": "all",
}
ARGUMENT_REFUSED = "a routing key may have 255 bytes at most"
POLICY_REFUSED = "is not a valid dead letter routing key"


async def asked(client: httpx.AsyncClient, how: str) -> httpx.Response:
    match how:
        case "declare":
            return await client.put("queues/%2F/long", json={"durable": True, "arguments": ARGUMENTS})
        case "policy":
            return await client.put("policies/%2F/long", json={"pattern": "long", "definition": DEFINITION})
        case "definitions with the queue":
            return await client.post("definitions", json={"queues": [QUEUE]})
        case "definitions with the policy":
            return await client.post("definitions", json={"policies": [POLICY]})
        case "definitions of the vhost":
            return await client.post("definitions/%2F", json={"queues": [QUEUE]})
    raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("declare", ARGUMENT_REFUSED),
        ("policy", POLICY_REFUSED),
        ("definitions with the queue", ARGUMENT_REFUSED),
        ("definitions with the policy", POLICY_REFUSED),
        ("definitions of the vhost", ARGUMENT_REFUSED),
    ],
)
async def test_it_is_refused_and_the_node_starts_again(
    connect: Connect, node: ManagedNode, how: str, reason: str
) -> None:
    client = connect("admin")
    answer = await asked(client, how)
    assert answer.status_code == 400
    assert reason in answer.json()["reason"]
    assert "long" not in node.broker.vhost("/").queues
    assert (await client.get("policies")).json() == []
    # The same name with a key that a message can have: its dead letters reach their queue, now and after a
    # start.
    allowed: dict[str, Any] = ARGUMENTS | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name, arguments in (("long", allowed), ("dead", {})):
        made = await client.put(f"queues/%2F/{name}", json={"durable": True, "arguments": arguments})
        assert made.status_code == 201
    for died in (1, 2):
        peer = node.peer()
        peer.call(1, commands.Channel.Open())
        peer.send(published(1, "", "long", b"one", delivery_mode=b"\x02"))
        node.clock.now_ms += 10
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        node.sync()
        assert (node.ready("long"), node.ready("dead")) == (0, died)
        begin_again(node)


def begin_again(node: ManagedNode) -> None:
    """Start the node again from its disk."""
    marks = node.broker.services.marks
    node.broker = make_broker(Config(), node.environment, node.clock, Commits(node.environment), marks=marks)
    node.turn = node.broker.turn
    node.turn.run(recovery.recover, node.broker, Journal(node.environment))
    assert node.broker.failures.stopped() == []
