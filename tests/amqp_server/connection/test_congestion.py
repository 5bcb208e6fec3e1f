"""One read may ask for any number of bytes. The client gets them as fast as it takes them, and large bodies
are not copied.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from ..wire.published import acknowledge, message, method
from .node import Delivery, MemoryNode, Peer
from .served import client, served, until

MIB = 1 << 20
LARGE = 4 * MIB
TIMES = 12


def framed(routing_key: str, size: int, **how: Any) -> bytes:
    """Encode a message in frames of the permitted size."""
    most = 131_064
    cuts = (most,) * (size // most) + ((size % most,) if size % most else ())
    return replace(message("", routing_key, b"x" * size, **how), cuts=cuts).encode(1)


class Slow(Peer):
    """A peer that takes its output when the test says so."""

    takes = True

    def collect(self) -> None:
        if self.takes:
            super().collect()


def slow(node: MemoryNode, channel: int = 1) -> Slow:
    peer = Slow(node, "guest", 131_072)
    node.peers.append(peer)
    peer.call(channel, commands.Channel.Open())
    return peer


def filled(size: int, count: int = 1, arguments: Any = None) -> MemoryNode:
    node = MemoryNode(message_bytes_max=2 * LARGE)
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q", arguments=arguments))
    one = framed("q", size)
    for _ in range(count):
        peer.send(one)
    return node


def peak_of(ask: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        ask()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bodies(peer: Peer) -> list[bytes]:
    return [each.body for _, each in peer.answers() if isinstance(each, Delivery)]


#: The publisher has used channel 1: for any other number each frame must be changed.
@pytest.mark.parametrize("channel", [1, 2])
def test_a_large_message_got_and_given_back_many_times_in_one_read(channel: int) -> None:
    node = filled(LARGE)
    peer = slow(node, channel)
    peer.takes = False
    get = method(channel, commands.Basic.Get(queue="q"))
    both = [get + acknowledge(channel, tag, method_id=120, flags=2) for tag in range(1, TIMES + 1)]
    peak = peak_of(lambda: peer.send(*both))
    assert peer.session.incoming.congested
    assert peer.outbox.size < 2 * LARGE
    # The body itself is not copied.
    assert peak < LARGE // 2
    peer.takes = True
    peer.send()
    assert not peer.session.incoming.congested
    sizes = [len(body) for body in bodies(peer)]
    assert sizes == [LARGE] * TIMES


def test_a_large_message_delivered_to_many_channels() -> None:
    node = filled(LARGE, arguments={"x-max-priority": 1})
    peer = slow(node)
    peer.takes = False

    def ask() -> None:
        for channel in range(2, 16):
            peer.send(method(channel, commands.Channel.Open()))
            peer.send(method(channel, commands.Basic.Consume(queue="q")))
            peer.send(acknowledge(channel, 1, method_id=120, flags=2))

    assert peak_of(ask) < LARGE // 2


def test_small_answers_are_bounded_too() -> None:
    """Thousands of requests in one read, each answered with a kilobyte."""
    node = filled(1_000)
    peer = slow(node)
    peer.takes = False
    get = method(1, commands.Basic.Get(queue="q"))
    count = 4_000
    peer.send(*(get + acknowledge(1, tag, method_id=120, flags=2) for tag in range(1, count + 1)))
    assert peer.outbox.size < 2 * peer.outbox.high_bytes + 10_000
    peer.takes = True
    peer.send()
    assert len(bodies(peer)) == count


def test_large_messages_that_nobody_gets_are_returned_without_a_copy() -> None:
    node = filled(1)
    peer = slow(node)
    one = framed("nowhere", LARGE, mandatory=True)
    peer.takes = False
    # One copy is the message's frames, and one is the message put together from them.
    assert peak_of(lambda: peer.send(one)) < 2.5 * LARGE
    peer.takes = True
    peer.send()
    assert [len(body) for body in bodies(peer)] == [LARGE]


def test_what_comes_behind_waits_and_order_is_kept() -> None:
    node = filled(600_000, 8)
    peer = slow(node)
    peer.takes = False
    get = method(1, commands.Basic.Get(queue="q", no_ack=True))
    peer.send(get * 6, method(1, commands.Queue.Declare(queue="behind")))
    assert "behind" not in node.broker.vhost("/").queues
    # One more get, in two halves.
    peer.send(get[:5])
    peer.send(get[5:])
    assert "behind" not in node.broker.vhost("/").queues
    peer.takes = True
    peer.send()
    kinds = [type(each).__name__ for _, each in peer.answers()]
    assert kinds == ["Delivery"] * 6 + ["DeclareOk", "Delivery"]


def test_a_close_behind_is_answered() -> None:
    node = filled(600_000, 8)
    peer = slow(node)
    peer.takes = False
    get = method(1, commands.Basic.Get(queue="q", no_ack=True))
    peer.send(get * 8, method(0, commands.Connection.Close(200, "", 0, 0)))
    peer.takes = True
    peer.send()
    assert isinstance(peer.answers()[-1][1], commands.Connection.CloseOk)


async def test_over_a_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node, receive_buffer_bytes=4_096) as slow_client:
        await slow_client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        get = method(1, commands.Basic.Get(queue="q"))
        one = framed("q", 200_000)
        asks = [get + acknowledge(1, tag, method_id=120, flags=2) for tag in range(1, 501)]
        await slow_client.send(one, *asks)
        (transport,) = node.server.transports
        await until(lambda: transport.session.incoming.congested)
        assert transport.outbox.size < 4 * MIB
        assert len(await slow_client.deliveries(500)) == 500
        await slow_client.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
