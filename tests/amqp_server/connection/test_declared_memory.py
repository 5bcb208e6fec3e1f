"""Declarations take up memory. The node counts it to the last byte, and bounds it."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.broker.declared import operations
from tests.amqp_server.connection.node import MemoryNode, Peer
from tests.amqp_server.streams.node import StreamNode

LARGE: dict[str, Any] = {"text": "x" * 2_000, "table": {"list": [1, {"a": None}, b"bytes"]}}


def opened(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    return peer


def called(peer: Peer, *methods: base.Frame) -> None:
    """Check that each method gets the answer that it asks for."""
    for method in methods:
        ((_, answer),) = peer.call(1, method)
        assert answer.name == f"{method.name}Ok", answer  # type: ignore[union-attr]


def everything() -> list[base.Frame]:
    """Declares of all kinds, with and without arguments."""
    declares: list[base.Frame] = [
        commands.Exchange.Declare(exchange="plain", exchange_type="topic", durable=True),
        commands.Exchange.Declare(exchange="large", exchange_type="headers", arguments=LARGE),
        commands.Exchange.Declare(exchange="gone", exchange_type="fanout", auto_delete=True, arguments=LARGE),
        commands.Exchange.Declare(
            exchange="super", exchange_type="x-super-stream", durable=True, arguments={"x-partitions": 3}
        ),
        commands.Queue.Declare(queue="plain", durable=True),
        commands.Queue.Declare(queue="own", exclusive=True, arguments=LARGE),
        commands.Queue.Declare(queue="large", durable=True, arguments=LARGE),
    ]
    for queue in ("plain", "own", "large"):
        for exchange in ("plain", "large", "gone", "amq.fanout"):
            key = f"a.{queue}.*.#"
            declares += [
                commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key),
                commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=LARGE),
            ]
        declares += [
            commands.Basic.Consume(queue=queue, consumer_tag=queue),
            commands.Basic.Consume(queue=queue, consumer_tag=f"{queue}'s", arguments=LARGE),
        ]
    declares.append(commands.Exchange.Bind(destination="large", source="plain", arguments=LARGE))
    return declares


@pytest.fixture
def node() -> MemoryNode:
    return StreamNode()


def taken(node: MemoryNode) -> int:
    return node.broker.counts.declared_bytes


@pytest.mark.parametrize("how", ["one by one", "cancelled", "client lost", "vhost deleted"])
def test_nothing_is_counted_when_all_is_gone(node: MemoryNode, how: str) -> None:
    peer, other = opened(node), opened(node)
    before = taken(node)
    called(peer, *everything())
    whole = taken(node)
    assert whole - before > 25 * 2_000
    if how == "cancelled":
        called(peer, *(commands.Basic.Cancel(tag) for tag in ("plain", "plain's", "own", "own's")))
        called(peer, commands.Queue.Unbind(queue="large", exchange="plain", routing_key="a.large.*.#"))
        assert taken(node) < whole
    if how in ("client lost", "cancelled"):
        node.turn.run(peer.session.lost)
        peer = other
        called(peer)
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
    if how == "vhost deleted":
        node.turn.run(lambda: node.broker.propose(operations.DeleteVhost("/")))
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
    else:
        for queue in ("plain", "own", "large"):
            peer.call(1, commands.Queue.Delete(queue=queue))
        for exchange in ("plain", "large", "gone", "super"):
            peer.call(1, commands.Exchange.Delete(exchange=exchange))
    assert taken(node) == before


def test_a_node_that_gets_a_snapshot_counts_the_same(node: MemoryNode) -> None:
    kinds = (commands.Exchange.Declare, commands.Queue.Declare, commands.Queue.Bind)
    named = (each for each in everything() if isinstance(each, kinds))
    # An exclusive queue is deleted by a client of its own node.
    called(opened(node), *(each for each in named if getattr(each, "queue", "") != "own"))
    other = StreamNode()
    other.turn.run(lambda: other.broker.topology.restore(node.broker.topology.snapshot()))
    assert taken(other) == taken(node) > 2_000


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Declare(queue="new", arguments=LARGE),
        commands.Exchange.Declare(exchange="new", arguments=LARGE),
        commands.Queue.Bind(queue="there", exchange="amq.topic", routing_key="a", arguments=LARGE),
        commands.Exchange.Bind(destination="amq.fanout", source="amq.topic", arguments=LARGE),
        commands.Basic.Consume(queue="there", arguments=LARGE),
        commands.Exchange.Declare(
            exchange="new", exchange_type="x-super-stream", durable=True, arguments={"x-partitions": 3}
        ),
    ],
    ids=lambda method: method.name,
)
def test_more_than_fits_is_refused(method: base.Frame) -> None:
    node = StreamNode(declared_bytes_max=10_000)
    peer = opened(node)
    called(peer, commands.Queue.Declare(queue="there"), commands.Queue.Declare(queue="more"))
    before = taken(node)
    ((_, close),) = peer.call(1, method)
    assert isinstance(close, commands.Connection.Close) and close.reply_code == 506
    assert "declared_bytes_max" in close.reply_text
    # To declare again what is there is no new declaration, and a deletion makes room.
    again = opened(node)
    called(again, commands.Queue.Declare(queue="there"), commands.Queue.Delete(queue="more"))
    assert taken(node) < before
    called(again, commands.Queue.Declare(queue="more"))
