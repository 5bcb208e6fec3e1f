"""Memory for queues, routes and transactions stays bounded, however often they are used."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.timers import SPARE_MAX
from amqp_server.channel import publish
from amqp_server.wire import frames, tables

from ..wire.published import message, method
from .node import MemoryNode, Peer

USES = 20_000


def opened(node: MemoryNode, *methods: Any) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), *methods)
    peer.answers()
    return peer


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_lease_has_one_timer(queue_type: str) -> None:
    node = MemoryNode()
    arguments: Any = {"x-expires": 10**9, "x-queue-type": queue_type}
    declare = commands.Queue.Declare(queue="q", durable=True, arguments=arguments)
    peer = opened(node, declare)
    one_get = method(1, commands.Basic.Get(queue="q"))
    for _ in range(USES // 100):
        node.clock.now_ms += 1
        peer.send(one_get * 100)
        peer.call(1, declare)
        peer.output, peer._read = b"", 0
    assert len(node.broker.timers) <= 2 + SPARE_MAX


def test_queues_that_are_gone_have_no_timers() -> None:
    node = MemoryNode()
    peer = opened(node)
    declare: Any = commands.Queue.Declare(queue="q", arguments={"x-expires": 10**9})
    once = (
        method(1, declare)
        + message(expiration=b"\x09100000000").encode(1)
        + method(1, commands.Queue.Delete(queue="q"))
    )
    for _ in range(USES // 10):
        peer.send(once)
        peer.output, peer._read = b"", 0
    assert len(node.broker.timers) <= 2 + SPARE_MAX


def test_messages_that_expire_sooner_and_sooner_have_one_timer() -> None:
    node = MemoryNode()
    peer = opened(node, commands.Queue.Declare(queue="q"))
    for number in range(USES // 10):
        ttl = str(10**8 - number).encode()
        peer.send(message(expiration=bytes((len(ttl),)) + ttl).encode(1))
        # The next message becomes the head, and expires before the message that is taken.
        if number:
            peer.send(method(1, commands.Basic.Get(queue="q", no_ack=True)))
        peer.output, peer._read = b"", 0
    assert len(node.broker.timers) <= 2 + SPARE_MAX


@pytest.mark.parametrize("fast", [True, False])
def test_routes_are_bounded(fast: bool) -> None:
    node = MemoryNode(memo_entries_max=100, switch_fast_path=fast)
    peer = opened(
        node,
        commands.Queue.Declare(queue="q"),
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"),
    )
    for number in range(USES // 10):
        peer.send(message("amq.topic", f"key.{number}").encode(1))
        incoming = peer.session.incoming
        assert len(incoming.routes) <= 100
        assert len(incoming._targets) <= 100
        peer.session.channels[1]


def test_long_headers_are_not_remembered() -> None:
    node = MemoryNode()
    peer = opened(
        node, commands.Queue.Declare(queue="q"), commands.Queue.Bind(queue="q", exchange="amq.headers")
    )
    for number in range(20):
        for size in (10, 10_000):
            headers = tables.encode({"number": number, "text": "x" * size})
            peer.send(message("amq.headers", headers=headers).encode(1))
    [route] = peer.session.incoming.routes.values()
    resolver: Any = route.resolve
    assert len(resolver._known) == 20
    assert max(map(len, resolver._known)) <= publish.RESOLVED_BYTES_MAX


@pytest.mark.parametrize("size", [100, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one-read", "many-reads"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
def test_a_transaction_is_bounded(size: int, at_once: bool, fast: bool) -> None:
    node = MemoryNode(tx_bytes_max=100_000, switch_fast_path=fast)
    peer = opened(
        node, commands.Queue.Declare(queue="q"), commands.Queue.Declare(queue="r"), commands.Tx.Select()
    )
    peer.call(2, commands.Channel.Open())
    peer.answers()
    one = message(body=b"x" * size).encode(1)
    # A transaction as large as permitted is committed, again and again.
    count = 90_000 // len(one)
    for _ in range(3):
        peer.send(one * count)
        assert names(peer.call(1, commands.Tx.Commit())) == ["Tx.CommitOk"]
    peer.send(one * count, method(1, commands.Tx.Rollback()), one * count)
    assert names(peer.call(1, commands.Tx.Rollback())) == ["Tx.RollbackOk"] * 2
    # A larger one is not committed, and nothing of it is kept or published.
    more = [one, message(routing_key="r", body=b"x" * size).encode(1)] * count
    if at_once:
        peer.send(b"".join(more))
    else:
        for each in more:
            peer.send(each)
    [(number, closed)] = peer.answers()
    assert isinstance(closed, commands.Channel.Close)
    assert (number, closed.reply_code, closed.class_id, closed.method_id) == (1, 406, 60, 40)
    assert "100000 bytes" in closed.reply_text and "tx_bytes_max" in closed.reply_text
    assert len(node.contents()["q"]) == 3 * count
    assert not node.contents()["r"]
    transaction = peer.session.channels[1].tx
    assert transaction is None or not transaction.segments
    # The connection goes on, and the channel's number can be used again.
    peer.send(frames.method_frame(1, commands.Channel.CloseOk()))
    assert names(peer.call(1, commands.Channel.Open(), commands.Tx.Select())) == [
        "Channel.OpenOk",
        "Tx.SelectOk",
    ]
    peer.send(one)
    assert names(peer.call(1, commands.Tx.Commit())) == ["Tx.CommitOk"]
    assert len(node.contents()["q"]) == 3 * count + 1


def names(answers: list[Any]) -> list[str]:
    return [answer.name for _, answer in answers]
