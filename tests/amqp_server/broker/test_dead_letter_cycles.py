"""A dropped cycle is counted and logged, and a client cannot make one up."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pamqp import commands, frame, header
from pamqp.body import ContentBody

from tests.amqp_server.connection.node import Delivery, MemoryNode, Peer

#: The queue sends what expires to itself.
CYCLE: dict[str, Any] = {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}


def publish(peer: Peer, **headers: Any) -> None:
    properties = commands.Basic.Properties(headers=headers)
    parts = (
        commands.Basic.Publish(routing_key="q"), header.ContentHeader(0, 1, properties), ContentBody(b"m")
    )  # fmt: skip
    peer.send(b"".join(frame.marshal(part, 1) for part in parts))


def expire(node: MemoryNode) -> None:
    node.clock.now_ms += 20
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    node.sync()


def test_a_dropped_cycle_is_counted_and_seldom_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q", arguments=CYCLE))
    sender: Any = node.broker.services.dead_letters
    with caplog.at_level(logging.WARNING, "mqd.queues"):
        for _ in range(5):
            publish(peer)
            expire(node)
    assert sender.cycles == 5
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'q' in vhost '/': a dead letter (expired) for 'q' is dropped, because the message has died there before, "
        "in a cycle without a rejection"
    ]
    caplog.clear()
    node.clock.now_ms += 60_000
    publish(peer)
    expire(node)
    assert "(and 4 more like this)" in caplog.text


def test_the_history_goes_on_only_in_what_the_broker_sent() -> None:
    """Also after a dead letter came back with the same headers from a client."""
    node = MemoryNode()
    peer = node.peer()
    more: dict[str, Any] = {
        "x-message-ttl": 10,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "r",
    }
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q", arguments=more))
    peer.call(
        1,
        commands.Queue.Declare(queue="r", arguments={**more, "x-dead-letter-routing-key": "s"}),
        commands.Queue.Declare(queue="s"),
    )
    headers: dict[str, Any] = {}
    for _ in range(3):
        publish(peer, **headers)
        expire(node)
        expire(node)
        answers = peer.call(1, commands.Basic.Get(queue="s", no_ack=True))
        (delivery,) = [answer for _, answer in answers if isinstance(answer, Delivery)]
        headers = dict(delivery.properties.headers or {})
        assert [(each["queue"], each["count"]) for each in headers["x-death"]] == [("r", 1), ("q", 1)]
        assert headers["x-first-death-queue"] == "q"
