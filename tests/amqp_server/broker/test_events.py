"""Events of the broker: when they are made, and their limits."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.topology.events import EVENT, Events

from ..connection.node import Delivery, MemoryNode, Peer


def told(peer: Peer, queue: str = "tap") -> list[tuple[str, dict[str, Any]]]:
    """Return the events in the queue: keys and headers."""
    found: list[tuple[str, dict[str, Any]]] = []
    while True:
        answers = peer.call(1, commands.Basic.Get(queue=queue, no_ack=True))
        deliveries = [each for _, each in answers if isinstance(each, Delivery)]
        if not deliveries:
            return found
        (one,) = deliveries
        assert one.body == b"" and one.properties.delivery_mode == 2
        assert isinstance(one.method, commands.Basic.GetOk) and one.method.exchange == EVENT
        found.append((str(one.method.routing_key), dict(one.properties.headers or {})))


def keys(peer: Peer) -> list[str]:
    return [key for key, _ in told(peer)]


def events(node: MemoryNode) -> Events:
    assert node.broker.events is not None
    return node.broker.events


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode(event_exchange_vhost="/", event_waiting_max=16)


@pytest.fixture
def tap(node: MemoryNode) -> Peer:
    peer = node.peer(name="tap")
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="tap", durable=True))
    peer.call(1, commands.Queue.Bind(queue="tap", exchange=EVENT, routing_key="#"))
    assert keys(peer) == ["binding.created"]
    return peer


@pytest.mark.pure
def test_nothing_is_made_where_nobody_is_bound(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = node.peer()
    made: list[str] = []
    monkeypatch.setattr(Events, "tell", lambda self, key, headers: made.append(key))
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"), commands.Queue.Delete(queue="q"))
    assert made == []
    peer.call(1, commands.Queue.Declare(queue="tap"))
    peer.call(1, commands.Queue.Bind(queue="tap", exchange=EVENT, routing_key="none"))
    peer.call(1, commands.Queue.Declare(queue="q"))
    assert made == ["binding.created", "queue.created"]
    assert MemoryNode().broker.events is None
    assert MemoryNode().broker.vhost("/").router.get(EVENT) is None


def test_the_exchange_comes_with_its_vhost() -> None:
    node = MemoryNode(event_exchange_vhost="later")
    assert node.broker.vhost("/").router.get(EVENT) is None
    node.broker.add_vhost("later")
    exchange = node.broker.vhost("later").router.get(EVENT)
    assert exchange is not None and (exchange.type, exchange.durable, exchange.internal) == (
        "topic",
        True,
        True,
    )
    node.broker.topology.declare_event_exchange()
    node.broker.delete_vhost("later")
    node.broker.add_vhost("other")


def test_what_goes_with_something_else(node: MemoryNode, tap: Peer) -> None:
    peer = node.peer(user="other")
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="mine", exclusive=True))
    peer.call(1, commands.Exchange.Declare(exchange="x", auto_delete=True))
    peer.call(1, commands.Queue.Bind(queue="mine", exchange="x", routing_key="k"))
    assert [(key, headers["user_who_performed_action"]) for key, headers in told(tap)] == [
        ("queue.created", "other"),
        ("exchange.created", "other"),
        ("binding.created", "other"),
    ]
    node.turn.run(peer.session.lost)
    node.sync()
    gone = told(tap)
    assert sorted(key for key, _ in gone) == ["binding.deleted", "exchange.deleted", "queue.deleted"]
    # No user has asked for it.
    assert {headers["user_who_performed_action"] for _, headers in gone} == {"rmq-internal"}


def test_events_of_the_queue_that_gets_them(node: MemoryNode, tap: Peer) -> None:
    tap.call(1, commands.Queue.Declare(queue="other tap"))
    tap.call(1, commands.Queue.Bind(queue="other tap", exchange=EVENT, routing_key="queue.*"))
    assert keys(tap) == ["queue.created", "binding.created"]
    # A tap hears nothing of its own end; the other one does.
    tap.call(1, commands.Queue.Delete(queue="other tap"))
    assert keys(tap) == ["binding.deleted", "queue.deleted"]
    tap.call(1, commands.Queue.Delete(queue="tap"))
    assert not events(node).wanted
    assert not node.contents()


def test_more_than_may_wait(node: MemoryNode, tap: Peer, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"q{number}" for number in range(40)]
    # One read, which is one turn.
    tap.send(*(_declare(name) for name in names))
    node.sync()
    found = keys(tap)
    assert found == ["queue.created"] * 16
    assert "24 events were dropped" in caplog.text
    tap.call(1, commands.Queue.Delete(queue="q0"))
    assert keys(tap) == ["queue.deleted"]


def _declare(name: str) -> bytes:
    from amqp_server.wire.frames import method_frame

    return method_frame(1, commands.Queue.Declare(queue=name, nowait=True))


def test_users_and_alarms(node: MemoryNode, tap: Peer) -> None:
    users, broker = node.broker.access.users, node.broker
    from amqp_server.broker.declared import operations

    node.turn.run(broker.propose, operations.PutUser(users.prepare("ann", "hash", ("monitoring",))))
    node.turn.run(broker.propose, operations.PutUser(users.prepare("ann", "hash")))
    node.turn.run(broker.propose, operations.PutUser(users.prepare("ann", "")))
    node.turn.run(broker.propose, operations.ReplaceHash("ann", "", "hash"))
    node.turn.run(broker.propose, operations.DeleteUser("ann"))
    for raised in (True, False):
        broker.alarms.set("disk", raised)
    node.sync()
    assert [(key, headers.get("name", headers.get("source"))) for key, headers in told(tap)] == [
        ("user.created", "ann"),
        ("user.tags.set", "ann"),
        ("user.tags.set", "ann"),
        ("user.password.cleared", "ann"),
        ("user.deleted", "ann"),
        ("alarm.set", "disk"),
        ("alarm.cleared", "disk"),
    ]
