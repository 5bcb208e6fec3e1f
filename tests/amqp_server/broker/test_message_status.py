"""Events of messages, and questions by the hundred, on a node in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.message_status import QUEUE
from amqp_server.broker.topology.events import MESSAGE_EVENT
from benchmarks import frames
from quorum_queue.machine.machine import Machine

from ..connection.node import Delivery, MemoryNode, Peer

REPLIES = "amq.rabbitmq.reply-to"
ON: dict[str, Any] = {"x-message-status": True, "x-message-status-events": True}


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode(event_exchange_vhost="/", event_waiting_max=16)


def opened(node: MemoryNode, name: str) -> Peer:
    peer = node.peer(name=name)
    peer.call(1, commands.Channel.Open())
    return peer


def send(peer: Peer, queue: str, id: str, body: bytes = b"body") -> None:
    peer.send(frames.message("", queue, body, commands.Basic.Properties(message_id=id, delivery_mode=2)))


def events_of(peer: Peer) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    while True:
        answers = peer.call(1, commands.Basic.Get(queue="tap", no_ack=True))
        deliveries = [each for _, each in answers if isinstance(each, Delivery)]
        if not deliveries:
            return found
        headers = dict(deliveries[0].properties.headers or {})
        method = deliveries[0].method
        assert isinstance(method, commands.Basic.GetOk)
        found.append((str(method.routing_key), headers))


def tapped(node: MemoryNode) -> Peer:
    peer = opened(node, "tap")
    peer.call(1, commands.Queue.Declare(queue="tap"))
    peer.call(1, commands.Queue.Bind(queue="tap", exchange=MESSAGE_EVENT, routing_key="message.#"))
    return peer


def test_events_of_a_queue_that_asks(node: MemoryNode) -> None:
    tap, peer = tapped(node), opened(node, "p")
    asked: dict[str, dict[str, Any]] = {"q": ON, "quiet": {"x-message-status": True}}
    for queue, arguments in asked.items():
        peer.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments))
        send(peer, queue, "m1")
        send(peer, queue, "m2")
        peer.call(1, commands.Basic.Get(queue=queue, no_ack=True))
        peer.call(1, commands.Queue.Purge(queue=queue))
    node.sync()
    told = events_of(tap)
    assert [(key, headers["message_id"], headers["reason"]) for key, headers in told] == [
        ("message.queued", "m1", ""),
        ("message.queued", "m2", ""),
        ("message.acknowledged", "m1", ""),
        ("message.dropped", "m2", "purged"),
    ]
    assert all(headers["queue"] == "q" and headers["vhost"] == "/" for _, headers in told)


def test_events_are_bounded(node: MemoryNode) -> None:
    tap, peer = tapped(node), opened(node, "p")
    peer.call(1, commands.Queue.Declare(queue="q", durable=True, arguments=ON))
    for number in range(40):
        send(peer, "q", f"m{number}")
    peer.call(1, commands.Queue.Purge(queue="q"))
    node.sync()
    assert len(events_of(tap)) <= 80
    assert node.broker.events is not None and not node.broker.events._waiting


def test_nothing_is_told_when_nothing_is_bound(node: MemoryNode) -> None:
    peer = opened(node, "p")
    peer.call(1, commands.Queue.Declare(queue="q", durable=True, arguments=ON))
    send(peer, "q", "m1")
    node.sync()
    assert events_of(tapped(node)) == []


def test_very_many_questions_at_once(node: MemoryNode) -> None:
    peer = opened(node, "p")
    peer.call(1, commands.Queue.Declare(queue="q", durable=True, arguments={"x-message-status": True}))
    send(peer, "q", "m1")
    node.sync()
    peer.call(1, commands.Basic.Consume(queue=REPLIES, no_ack=True))
    question = json.dumps({"message_id": "m1", "queue": "q"}).encode()
    properties = commands.Basic.Properties(reply_to=REPLIES)
    peer.send(frames.message("", QUEUE, question, properties) * 300)
    while node.turn.behind:
        node.turn.run(node.turn.catch_up)
    node.sync()
    answers = [each for _, each in peer.answers() if isinstance(each, Delivery)]
    assert len(answers) == 300
    assert {json.loads(each.body)["queues"][0]["state"] for each in answers} == {"queued"}


def test_a_queue_without_a_record_has_none(node: MemoryNode) -> None:
    peer = opened(node, "p")
    peer.call(1, commands.Queue.Declare(queue="q", durable=True))
    send(peer, "q", "m1")
    host: Any = node.broker.vhost("/").queues["q"].host
    machine: Machine = host.machine
    assert machine.record is None and not host.wants_ids
