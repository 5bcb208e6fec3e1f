"""Limits of queues, exchanges and bindings: each limit, and each way to make one of them."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.broker.declared.operations import Room
from amqp_server.broker.declared.parameters import VHOST_LIMITS
from amqp_server.broker.topology.limits import LIMITS, QUEUES
from amqp_server.broker.topology.super_streams import growth
from amqp_server.errors import PreconditionFailed
from amqp_server.wire import methods
from quorum_queue.machine import versions
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode


def queue(name: str, **options: Any) -> base.Frame:
    return methods.make(commands.Queue.Declare, queue=name, **options)


def of_type(name: str, type_: str, **arguments: Any) -> base.Frame:
    return queue(name, durable=True, arguments={"x-queue-type": type_, **arguments})


def exchange(name: str, type_: str = "direct", **arguments: Any) -> base.Frame:
    return methods.make(
        commands.Exchange.Declare, exchange=name, exchange_type=type_, durable=True, arguments=arguments
    )


def bind(key: str = "k") -> base.Frame:
    return commands.Queue.Bind(queue="s", exchange="x", routing_key=key)


#: What there is before: 4 queues, 2 exchanges, 3 bindings.
BEFORE = (
    of_type("s", "stream"),
    queue("q", durable=True),
    exchange("x"),
    exchange("whole", "x-super-stream", **{"x-partitions": 2}),
    bind(),
)
QUEUE_WAYS: dict[str, base.Frame] = {
    "transient": queue("new"),
    "durable": queue("new", durable=True),
    "exclusive": queue("new", exclusive=True),
    "auto-delete": queue("new", auto_delete=True),
    "named by the server": queue(""),
    "quorum": of_type("new", "quorum"),
    "stream": of_type("new", "stream"),
    "group": of_type("new", "stream-group", **{"x-stream": "s"}),
    "super stream": exchange("new", "x-super-stream", **{"x-partitions": 1}),
    "super stream of more": exchange("new", "x-super-stream", **{"x-partitions": 4}),
}
EXCHANGE_WAYS: dict[str, base.Frame] = {
    "exchange": exchange("new"),
    "transient exchange": commands.Exchange.Declare(exchange="new", exchange_type="fanout"),
    "super stream": exchange("new", "x-super-stream", **{"x-partitions": 1}),
    "super stream without partitions": exchange("new", "x-super-stream"),
}
BINDING_WAYS: dict[str, base.Frame] = {
    "queue": bind("other"),
    "exchange": commands.Exchange.Bind(destination="x", source="amq.direct", routing_key="k"),
    "super stream": exchange("new", "x-super-stream", **{"x-partitions": 1}),
}


def opened(node: StreamNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    return peer


def limit_queues(node: StreamNode, count: int) -> None:
    parameters = node.broker.runtime.parameters
    node.turn.run(parameters.store, parameters.prepare("/", VHOST_LIMITS, LIMITS, {QUEUES: count}))


def prepared(**config: Any) -> tuple[StreamNode, Peer]:
    node = StreamNode(**config)
    peer = opened(node)
    for each in BEFORE:
        ((_, answer),) = peer.call(1, each)
        assert not isinstance(answer, commands.Channel.Close | commands.Connection.Close), answer
        node.work()
    return node, peer


def state(node: StreamNode) -> tuple[Any, ...]:
    counts, vhost = node.broker.counts, node.broker.vhost("/")
    objects = (sorted(vhost.queues), sorted(each.name for each in vhost.router.exchanges()))
    return counts.queues, counts.exchanges, counts.bindings, counts.declared_bytes, objects


def refused(node: StreamNode, peer: Peer, method: base.Frame) -> str:
    """Return the text of a refusal, which has changed nothing."""
    before = state(node)
    ((_, close),) = peer.call(1, method)
    assert isinstance(close, commands.Channel.Close), close
    assert close.reply_code == 406
    assert state(node) == before
    return close.reply_text.removeprefix("PRECONDITION_FAILED - ")


def taken(node: StreamNode, method: base.Frame) -> None:
    ((_, answer),) = opened(node).call(1, method)
    assert not isinstance(answer, commands.Channel.Close | commands.Connection.Close), answer


def name_in(text: str) -> str:
    return text.split("'")[1]


@pytest.mark.parametrize("way", QUEUE_WAYS)
def test_queues_of_a_vhost(way: str) -> None:
    node, peer = prepared()
    limit_queues(node, 4)
    text = refused(node, peer, QUEUE_WAYS[way])
    assert text == f"cannot declare queue '{name_in(text)}': queue limit in vhost '/' (4) is reached"
    # A queue that exists may be declared again.
    taken(node, queue("q", durable=True))
    limit_queues(node, 8)
    taken(node, QUEUE_WAYS[way])


@pytest.mark.parametrize("way", QUEUE_WAYS)
def test_queues_of_all_vhosts(way: str) -> None:
    node, peer = prepared(queues_max=4)
    text = refused(node, peer, QUEUE_WAYS[way])
    assert text == f"cannot declare queue '{name_in(text)}': queue limit in cluster (4) is reached"
    taken(node, queue("q", durable=True))


@pytest.mark.parametrize("way", EXCHANGE_WAYS)
def test_the_limit_of_exchanges_holds_in_every_way_to_declare_one(way: str) -> None:
    node, peer = prepared(exchanges_max=2)
    text = refused(node, peer, EXCHANGE_WAYS[way])
    assert text == "cannot declare exchange 'new' in vhost '/': exchange limit of 2 is reached"
    taken(node, exchange("x"))


@pytest.mark.parametrize("way", BINDING_WAYS)
def test_the_limit_of_bindings_holds_in_every_way_to_bind(way: str) -> None:
    node, peer = prepared(bindings_max=3)
    text = refused(node, peer, BINDING_WAYS[way])
    source = {"queue": "x", "exchange": "amq.direct"}.get(way, "new")
    assert text == f"cannot bind to exchange '{source}' in vhost '/': binding limit of 3 is reached"
    taken(node, bind())


def test_a_super_stream_takes_all_places_or_none() -> None:
    node, peer = prepared()
    limit_queues(node, 7)
    refused(node, peer, exchange("new", "x-super-stream", **{"x-partitions": 4}))
    taken(node, exchange("new", "x-super-stream", **{"x-partitions": 3}))


def grow(node: StreamNode) -> None:
    growth(node.broker.vhost("/"), "whole", 1)


@pytest.mark.parametrize(
    ("config", "limit", "text"),
    [
        ({}, 4, "cannot declare queue 'whole': queue limit in vhost '/' (4) is reached"),
        ({"queues_max": 4}, -1, "cannot declare queue 'whole': queue limit in cluster (4) is reached"),
        (
            {"bindings_max": 3},
            -1,
            "cannot bind to exchange 'whole' in vhost '/': binding limit of 3 is reached",
        ),
    ],
)
def test_a_super_stream_grows_only_as_far_as_there_is_room(
    config: dict[str, Any], limit: int, text: str
) -> None:
    node, _ = prepared(**config)
    limit_queues(node, limit)
    with pytest.raises(PreconditionFailed) as info:
        grow(node)
    assert info.value.text == text


def test_more_partitions_need_no_room_for_an_exchange() -> None:
    node, _ = prepared(exchanges_max=2)
    grow(node)


@pytest.mark.parametrize("replies_first", [True, False])
def test_consumers_of_a_channel(replies_first: bool) -> None:
    node, peer = prepared(consumers_per_channel_max=1)
    ways = [
        methods.make(commands.Basic.Consume, queue="amq.rabbitmq.reply-to", no_ack=True),
        methods.make(commands.Basic.Consume, queue="q"),
    ]
    first, second = ways if replies_first else reversed(ways)
    ((_, answer),) = peer.call(1, first)
    assert isinstance(answer, commands.Basic.ConsumeOk)
    ((_, close),) = peer.call(1, second)
    assert isinstance(close, commands.Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        530,
        "NOT_ALLOWED - reached maximum (1) of consumers per channel",
    )


def test_channels_of_the_node() -> None:
    node = StreamNode(channels_max=1)
    opened(node)
    ((_, close),) = node.peer().call(1, commands.Channel.Open())
    assert isinstance(close, commands.Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        530,
        f"NOT_ALLOWED - number of channels opened on node '{node.config.node}' has reached the maximum allowed "
        "limit of (1)",
    )


def test_room_is_told_when_all_nodes_know_it() -> None:
    node, _ = prepared()
    vhost = node.broker.vhost("/")
    assert growth(vhost, "whole", 1).room == Room(100_000, 100_000, 1_000_000)
    node.broker.replication.version = versions.ROOM - 1  # type: ignore[misc]
    assert growth(vhost, "whole", 1).room is None
