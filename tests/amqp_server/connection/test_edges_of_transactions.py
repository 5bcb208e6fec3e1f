"""A transaction of exactly as many bytes, or parts, as are permitted, and of one more."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.amqp_server.connection.node import Delivery, MemoryNode, Peer
from tests.amqp_server.wire.published import message, method

#: The header's frame of a message without properties, and what its body's frame has beside the body.
HEAD, FRAME = 22, 8
PARTS = 1_000


def opened(node: MemoryNode, *queues: str) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), *(commands.Queue.Declare(queue=each) for each in queues))
    peer.call(1, commands.Tx.Select())
    peer.answers()
    return peer


def outcome(peer: Peer) -> Any:
    """Commit; return the answer, or what came before it."""
    ((_, answer),) = peer.answers() or peer.call(1, commands.Tx.Commit())
    return answer


def is_too_large(answer: Any, option: str) -> bool:
    if isinstance(answer, commands.Tx.CommitOk):
        return False
    assert isinstance(answer, commands.Channel.Close) and answer.reply_code == 406
    assert f"({option}): commit more often" in answer.reply_text
    return True


def depth(node: MemoryNode, queue: str = "q") -> int:
    return node.broker.vhost("/").queues[queue].host.ready_count


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
@pytest.mark.parametrize("read", [1 << 20, 100], ids=["one-read", "many-reads"])
@pytest.mark.parametrize(
    ("count", "body", "headers"), [(1, 5_000, 0), (50, 80, 0), (10, 300, 200), (100, 0, 0)]
)
def test_bytes(count: int, body: int, headers: int, read: int, fast: bool) -> None:
    """Headers of messages count, and the frames of headers and bodies; exchange and routing key do not."""
    properties: dict[str, Any] = {"correlation_id": bytes((headers,)) + b"h" * headers} if headers else {}
    one = HEAD + (headers + 1 if headers else 0) + (FRAME + body if body else 0)
    for spare in (0, -1):
        node = MemoryNode(tx_bytes_max=count * one + spare, switch_fast_path=fast)
        peer = opened(node, "q", "a queue with a longer name")
        # What was committed before does not count, nor what was rolled back, nor what is published elsewhere.
        for end in (commands.Tx.Rollback(), commands.Tx.Commit()):
            peer.send(message(routing_key="q", body=b"x" * 500).encode(1))
            peer.call(1, end)
        other = opened(node)
        other.send(message(routing_key="q", body=b"x" * 500).encode(1))
        names = ("q", "a queue with a longer name")
        data = b"".join(
            message(routing_key=names[number % 2], body=b"x" * body, **properties).encode(1)
            for number in range(count)
        )
        peer.answers()
        for at in range(0, len(data), read):
            peer.send(data[at : at + read])
        assert is_too_large(outcome(peer), "tx_bytes_max") is (spare < 0)
        assert depth(node) + depth(node, names[1]) == 1 + (0 if spare else count)


def queues_of(node: MemoryNode, count: int) -> Peer:
    peer = opened(node)
    peer.call(1, commands.Exchange.Declare(exchange="all", exchange_type="fanout"))
    for number in range(count):
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
        peer.call(1, commands.Queue.Bind(queue=f"q{number}", exchange="all"))
    peer.answers()
    return peer


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("how", ["fan-out", "one by one", "messages and acks"])
def test_parts(how: str, more: int) -> None:
    node = MemoryNode(tx_parts_max=PARTS)
    count = PARTS + more
    peer = queues_of(node, count)
    if how == "fan-out":
        # Several that follow each other are as many parts as one.
        peer.send(message("all", "").encode(1) * 3)
        peer.send(message("all", "").encode(1))
    elif how == "one by one":
        for number in range(count):
            peer.send(message(routing_key=f"q{number}").encode(1) * 2)
    else:
        peer.call(1, commands.Queue.Declare(queue="source"))
        peer.send(message(routing_key="source").encode(1) * 600)
        peer.call(1, commands.Tx.Commit())
        peer.call(1, commands.Basic.Consume(queue="source"))
        for number in range(count - 300):
            peer.send(message(routing_key=f"q{number}").encode(1))
        peer.answers()
        # Every second one: no two of them are one part.
        for tag in range(1, 601, 2):
            peer.send(method(1, commands.Basic.Ack(tag)))
    answer = outcome(peer)
    assert is_too_large(answer, "tx_parts_max") is bool(more)
    assert bool(depth(node, "q0")) is not bool(more)
    if how == "messages and acks":
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
        assert node.broker.vhost("/").queues["source"].host.unacked_count == (0 if more else 300)


@pytest.mark.parametrize(
    "settle",
    [
        lambda tag: commands.Basic.Ack(tag),
        lambda tag: commands.Basic.Reject(tag, requeue=False),
        lambda tag: commands.Basic.Nack(tag, requeue=True),
    ],
    ids=["ack", "reject", "nack"],
)
@pytest.mark.parametrize("end", ["commit", "rollback", "channel"])
def test_acks_in_a_row_are_one_part(settle: Any, end: str) -> None:
    """However many methods bring them, and whatever they say."""
    node = MemoryNode(tx_parts_max=PARTS)
    peer = opened(node, "q")
    count = PARTS + 500
    bodies = [b"%d" % number for number in range(count)]
    peer.send(b"".join(message(routing_key="q", body=body).encode(1) for body in bodies))
    peer.call(1, commands.Tx.Commit())
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    peer.answers()
    peer.call(1, commands.Basic.Cancel("c"))
    peer.answers()
    for tag in range(1, count + 1):
        peer.send(method(1, settle(tag)))
    transaction = peer.session.channels[1].tx
    assert peer.answers() == [] and transaction is not None
    assert (transaction.part_count, transaction.settled_count) == (1, count)
    host = node.broker.vhost("/").queues["q"].host
    requeued = isinstance(settle(1), commands.Basic.Nack)
    if end == "channel":
        peer.call(1, commands.Channel.Close(200, "", 0, 0))
        requeued = True
    elif end == "commit":
        assert isinstance(outcome(peer), commands.Tx.CommitOk)
    else:
        peer.call(1, commands.Tx.Rollback())
        assert host.unacked_count == count
        # They are unacked under their old tags.
        peer.send(
            method(1, commands.Basic.Ack(1), commands.Basic.Ack(count)), method(1, commands.Tx.Commit())
        )
        assert host.unacked_count == count - 2
        return
    assert (host.unacked_count, host.ready_count) == (0, count if requeued else 0)
    if requeued:
        reader = node.peer()
        reader.call(1, commands.Channel.Open())
        got = reader.call(1, commands.Basic.Consume(queue="q", no_ack=True))
        assert [each.body for _, each in got if isinstance(each, Delivery)] == bodies
