"""The cost of a method does not grow with what others, or the same client, have declared before."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.wire import frames
from tests.amqp_server.connection.node import MemoryNode, Peer
from tests.work import steps

#: Largest factor between the costs with ten times as much to look at. Trees and sets of different sizes are
#: not exactly as fast.
SAME = 1.3


def opened(channels: int = 1, **options: object) -> Peer:
    peer = MemoryNode(**options).peer()
    for channel in range(1, channels + 1):
        peer.call(channel, commands.Channel.Open())
    return peer


def cost(peer: Peer, *methods: base.Frame, channel: int = 1) -> int:
    """Steps until these methods are answered."""
    data = b"".join(frames.method_frame(channel, method) for method in methods)
    return steps(peer.node.turn.receive, peer.session, data)


def with_bindings(count: int, kind: str = "direct", *, auto_delete: bool = False) -> Peer:
    peer = opened()
    peer.call(1, commands.Exchange.Declare(exchange="e", exchange_type=kind, auto_delete=auto_delete))
    peer.call(1, commands.Exchange.Declare(exchange="auto", auto_delete=True))
    for queue in ("q", "other"):
        peer.call(1, commands.Queue.Declare(queue=queue))
    peer.call(1, *(commands.Queue.Bind(queue="q", exchange="e", routing_key=f"{n}") for n in range(count)))
    peer.call(1, commands.Queue.Bind(queue="other", exchange="auto", routing_key="k"))
    return peer


METHODS: list[base.Frame] = [
    commands.Queue.Bind(queue="q", exchange="e", routing_key="new"),
    commands.Queue.Bind(queue="q", exchange="e", routing_key="1"),
    commands.Queue.Unbind(queue="q", exchange="e", routing_key="1"),
    commands.Queue.Unbind(queue="q", exchange="e", routing_key="unknown"),
    # The exchange is deleted with its last binding.
    commands.Queue.Unbind(queue="other", exchange="auto", routing_key="k"),
    commands.Queue.Delete(queue="other"),
    commands.Exchange.Delete(exchange="auto"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name} {method.marshal()[4:]!r}")
def test_a_change_costs_the_same_however_many_bindings_there_are(method: base.Frame) -> None:
    few, many = cost(with_bindings(100), method), cost(with_bindings(1_000), method)
    assert many < SAME * few


def test_a_publish_after_a_bind_costs_the_same_however_many_bindings_there_are() -> None:
    """A headers exchange must know which bindings a message may match."""

    def publish_after_bind(count: int) -> int:
        peer = with_bindings(0, "headers")
        arguments: list[dict[str, Any]] = [{"n": n} for n in range(count + 1)]
        peer.call(
            1, *(commands.Queue.Bind(queue="q", exchange="e", arguments=each) for each in arguments[1:])
        )
        return cost(
            peer,
            commands.Queue.Bind(queue="q", exchange="e", arguments=arguments[0]),
            commands.Basic.Publish(exchange="e"),
        )

    assert publish_after_bind(1_000) < SAME * publish_after_bind(100)


def routes_remembered(peer: Peer, channel: int, count: int) -> None:
    content = frames.raw_frame(frames.HEADER, channel, b"\0\x3c" + bytes(12))
    for number in range(count):
        key = commands.Basic.Publish(exchange="amq.direct", routing_key=f"{number}")
        peer.send(frames.method_frame(channel, key) + content)
    assert len(peer.session.incoming.routes) >= count


def test_closing_a_channel_costs_the_same_however_many_routes_others_have() -> None:
    def close(routes: int) -> int:
        peer = opened(2)
        routes_remembered(peer, 1, routes)
        return cost(peer, commands.Channel.Close(0, "", 0, 0), channel=2)

    assert close(1_000) < SAME * close(100)


def test_the_routes_of_a_channel_are_forgotten_when_it_is_closed() -> None:
    peer = opened(2)
    routes_remembered(peer, 1, 10)
    routes_remembered(peer, 2, 10)
    peer.call(1, commands.Channel.Close(0, "", 0, 0))
    assert {route.channel for route in peer.session.incoming.routes.values()} == {2}


def consuming(count: int, *, queues: int, ready: int = 0) -> Peer:
    """A channel with this many consumers, and messages that they may get when their window is wider."""
    peer = opened()
    for number in range(queues):
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
    peer.call(1, commands.Basic.Qos(prefetch_count=1, global_=True))
    content = frames.raw_frame(frames.HEADER, 1, b"\0\x3c" + bytes(12))
    for number in range(ready):
        peer.send(frames.method_frame(1, commands.Basic.Publish(routing_key=f"q{number % queues}")) + content)
    for number in range(count):
        peer.call(1, commands.Basic.Consume(queue=f"q{number % queues}", consumer_tag=f"c{number}"))
    return peer


@pytest.mark.parametrize(
    "methods",
    [
        [commands.Basic.Qos(prefetch_count=limit % 2 + 1, global_=True) for limit in range(40)],
        [commands.Basic.Nack(delivery_tag=0, multiple=True)] * 40,
        [commands.Basic.Recover(requeue=True)] * 40,
    ],
    ids=["qos", "nack", "recover"],
)
def test_a_frame_does_not_visit_all_consumers(methods: list[base.Frame]) -> None:
    """A change to the channel's window reaches its queues once in a turn."""
    few, many = (cost(consuming(count, queues=count), *methods) for count in (20, 200))
    one = cost(consuming(200, queues=200), *methods[:2])
    assert many - few < one


def test_a_message_does_not_visit_all_consumers_of_its_queue() -> None:
    """The consumers of one channel are served one message at a time."""

    def deliver(count: int) -> int:
        peer = consuming(count, queues=1)
        content = frames.raw_frame(frames.HEADER, 1, b"\0\x3c" + bytes(12))
        peer.call(1, commands.Basic.Qos(prefetch_count=1_000, global_=True))
        publish = frames.method_frame(1, commands.Basic.Publish(routing_key="q0")) + content
        return steps(peer.node.turn.receive, peer.session, publish * 50)

    assert deliver(400) < SAME * deliver(40)


def test_a_wider_window_is_used_at_once_and_a_narrow_one_only_by_its_acks() -> None:
    peer = consuming(3, queues=3, ready=30)
    peer.answers()
    for limit, more in ((1, 0), (5, 4), (2, 0), (7, 2)):
        found = peer.call(1, commands.Basic.Qos(prefetch_count=limit, global_=True))
        assert len(found) == 1 + more
    assert len(peer.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True))) == 7
    # Now without a window.
    assert len(peer.call(1, commands.Basic.Qos(prefetch_count=0, global_=True))) == 1 + 30 - 14


def test_one_topic_exchange_has_so_many_hashes() -> None:
    """A message may reach all of the bindings that need a hash."""
    peer = opened(topic_extra_hashes_max=3)
    peer.call(1, commands.Queue.Declare(queue="q"))
    keys = ["#.a.#.b.#", "#.c.#", "#", "c.#.#", "#.d.#"]
    for key in keys[:4]:
        peer.call(1, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key=key))
    peer.answers()
    [(_, closed)] = peer.call(1, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key=keys[4]))
    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_code == 406 and "at most 3 are allowed" in closed.reply_text
