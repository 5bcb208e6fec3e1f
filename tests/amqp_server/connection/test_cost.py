"""What a method costs does not grow with what others, or the same client, have declared before."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.wire import frames
from tests.amqp_server.connection.node import MemoryNode, Peer
from tests.work import steps

#: Of the cost with ten times as much to look at. Trees and sets of different sizes are not exactly as fast.
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
    # With the last binding goes an exchange.
    commands.Queue.Unbind(queue="other", exchange="auto", routing_key="k"),
    commands.Queue.Delete(queue="other"),
    commands.Exchange.Delete(exchange="auto"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name} {method.marshal()[4:]!r}")
def test_a_change_costs_the_same_however_many_bindings_there_are(method: base.Frame) -> None:
    few, many = cost(with_bindings(100), method), cost(with_bindings(1_000), method)
    assert many < SAME * few


def test_a_publish_after_a_bind_costs_the_same_however_many_bindings_there_are() -> None:
    """A headers exchange must know what may be behind it."""

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
