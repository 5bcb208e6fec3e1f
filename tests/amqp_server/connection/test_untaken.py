"""Clients that do not read their messages fill the memory up to a bound only, and are closed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.reply import PSEUDO_QUEUE
from amqp_server.connection.unread_output import UntakenWatch
from amqp_server.wire import content, frames
from tests.amqp_server.connection.node import Delivery, MemoryNode, Peer
from tests.amqp_server.streams.node import StreamNode

MIB = 1 << 20
BODY = 2 * MIB
#: Two bodies are more than the bound.
OPTIONS: Any = {"unsent_bytes_max": 3 * MIB, "unfinished_timeout_s": 10.0}
MESSAGES = 6


def large(queue: str, size: int = BODY, reply_to: str = "") -> bytes:
    publish = commands.Basic.Publish(routing_key=queue)
    properties = content.Properties({"delivery_mode": b"\x02"})
    if reply_to:
        properties.set_text("reply_to", reply_to)
    body = content.build(properties.encode(size), bytes(size), 1, 131_072)
    return frames.method_frame(1, publish) + body


def opened(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    return peer


def settle(node: MemoryNode) -> None:
    """Do all work that can be done."""
    for _ in range(20):
        if isinstance(node, StreamNode):
            node.work()
        node.sync()
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)


def pass_s(node: MemoryNode, seconds: float) -> None:
    node.clock.now_ms += round(1000 * seconds)
    settle(node)


def deliveries(peer: Peer) -> int:
    return sum(isinstance(answer, Delivery) for _, answer in peer.answers())


def classic(queue: str) -> tuple[MemoryNode, Callable[[], Peer]]:
    return _filled(MemoryNode(**OPTIONS), queue, "classic")


def quorum(queue: str) -> tuple[MemoryNode, Callable[[], Peer]]:
    return _filled(MemoryNode(**OPTIONS), queue, "quorum")


def stream(queue: str) -> tuple[MemoryNode, Callable[[], Peer]]:
    return _filled(StreamNode(**OPTIONS), queue, "stream")


def _filled(node: MemoryNode, queue: str, kind: str) -> tuple[MemoryNode, Callable[[], Peer]]:
    """Return a node whose queue has large messages that are out of memory, and a call that makes a consumer
    that reads nothing.
    """
    peer = opened(node)
    peer.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": kind}))
    for _ in range(MESSAGES):
        peer.send(large(queue))
        settle(node)
    memory = node.broker.services.memory
    memory.budget_bytes = 0
    node.turn.run(memory.relieve)

    def consumer() -> Peer:
        one = opened(node)
        one.call(1, commands.Basic.Qos(prefetch_count=1))
        one.answers()
        one.reads = False
        arguments: Any = {"x-stream-offset": "first"} if kind == "stream" else {}
        one.send(
            frames.method_frame(
                1, commands.Basic.Consume(queue=queue, consumer_tag="c", arguments=arguments, nowait=True)
            )
        )
        settle(node)
        return one

    return node, consumer


KINDS = pytest.mark.parametrize("kind", [classic, quorum, stream])
Kind = Callable[[str], tuple[MemoryNode, Callable[[], Peer]]]


@KINDS
def test_large_messages_wait_until_others_are_taken(kind: Kind) -> None:
    node, consumer = kind("q")
    held = [consumer() for _ in range(4)]
    unsent = node.broker.services.memory.unsent
    # The client that reaches the bound may go beyond it.
    assert [each.outbox.size > MIB for each in held] == [True, True, False, False]
    assert BODY < unsent.bytes < 3 * BODY
    small = opened(node)
    small.call(1, commands.Queue.Declare(queue="small"), commands.Basic.Consume(queue="small", no_ack=True))
    small.answers()
    small.send(large("small", 10))
    settle(node)
    assert deliveries(small) == 1
    for each in (held[0], held[1]):
        each.reads = True
        each.collect()
        assert deliveries(each) == 1
    settle(node)
    assert [each.outbox.size > MIB for each in held] == [False, False, True, True]
    for each in held:
        each.reads = True
        each.collect()
    settle(node)
    assert unsent.bytes == 0 and not unsent.full


@KINDS
def test_who_takes_nothing_is_closed(kind: Kind) -> None:
    node, consumer = kind("q")
    UntakenWatch(node.broker)
    stalled = [consumer() for _ in range(2)]
    waiting = consumer()
    assert node.broker.services.memory.unsent.full
    pass_s(node, 5)
    assert not waiting.outbox.size
    pass_s(node, 6)
    # To close one is enough, and its messages are given up when its socket is closed.
    ended = [each for each in stalled if each.session.state.name != "RUNNING"]
    assert ended and waiting.session.state.name == "RUNNING"
    for each in ended:
        node.turn.run(each.session.lost)
    settle(node)
    waiting.reads = True
    waiting.collect()
    assert deliveries(waiting) == 1
    ended[0].reads = True


def test_who_takes_some_of_it_stays() -> None:
    node, consumer = classic("q")
    UntakenWatch(node.broker)
    slow = [consumer() for _ in range(2)]
    for _ in range(4):
        for each in slow:
            chunks = each.outbox.take()
            each.outbox.sent(MIB // 10)
            # A socket that is nearly full takes little; the rest is still to be sent.
            each.outbox._chunks = chunks
        pass_s(node, 10.5)
        assert [each.session.state.name for each in slow] == ["RUNNING"] * 2
    pass_s(node, 10.5)
    assert "RUNNING" not in {each.session.state.name for each in slow}


@pytest.mark.parametrize("others", ["guest", "other"])
def test_who_waits_takes_turns_with_other_users(others: str) -> None:
    """A client that comes behind five of one user is the second in turn if it belongs to another user."""
    node, consumer = stream("q")
    for _ in range(2 + 5):
        consumer()
    late = node.peer(user=others)
    late.call(1, commands.Channel.Open())
    late.call(1, commands.Basic.Qos(prefetch_count=1))
    late.send(
        frames.method_frame(
            1, commands.Basic.Consume(queue="q", arguments={"x-stream-offset": "first"}, nowait=True)
        )
    )
    settle(node)
    late.answers()
    for peer in node.peers[1:3]:
        peer.reads = True
        peer.collect()
    settle(node)
    assert deliveries(late) == (others != "guest")


def test_replies_that_are_not_taken_end_their_client() -> None:
    node = MemoryNode(**OPTIONS)
    UntakenWatch(node.broker)
    asking, serving = opened(node), opened(node)
    asking.call(1, commands.Basic.Consume(queue=PSEUDO_QUEUE, no_ack=True, consumer_tag="r"))
    serving.call(1, commands.Queue.Declare(queue="q"), commands.Basic.Consume(queue="q", no_ack=True))
    serving.answers()
    asking.send(large("q", 10, reply_to=PSEUDO_QUEUE))
    ((_, request),) = serving.answers()
    assert isinstance(request, Delivery) and request.properties.reply_to is not None
    asking.reads = False
    for _ in range(4):
        serving.send(large(request.properties.reply_to))
    pass_s(node, 10.5)
    assert asking.session.state.name != "RUNNING" and serving.session.state.name == "RUNNING"
