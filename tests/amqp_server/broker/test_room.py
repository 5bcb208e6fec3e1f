"""Room for several queues and bindings at once. Each limit in each way: tests/amqp_server/limits."""

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


def test_room_is_told_when_all_nodes_know_it() -> None:
    node, _ = prepared()
    vhost = node.broker.vhost("/")
    assert growth(vhost, "whole", 1).room == Room(100_000, 100_000, 1_000_000)
    node.broker.replication.version = versions.ROOM - 1  # type: ignore[misc]
    assert growth(vhost, "whole", 1).room is None
