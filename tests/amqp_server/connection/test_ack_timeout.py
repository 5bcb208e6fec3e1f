"""A delivery that is never acked closes its channel, and goes to other consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.channel.unacked import Unacked
from amqp_server.connection import ack_timeout
from amqp_server.connection.ack_timeout import AckTimeout

from ..wire.published import message
from .node import MemoryNode, Peer

TIMEOUT_MS = 10_000
LOOK_MS = TIMEOUT_MS // ack_timeout.LOOKS


class Watched:
    def __init__(self, **options: Any) -> None:
        self.node = MemoryNode(**({"consumer_timeout_ms": TIMEOUT_MS} | options))
        self.watch = AckTimeout(self.node.broker)

    def peer(self, **queue: Any) -> Peer:
        peer = self.node.peer()
        peer.call(1, commands.Channel.Open())
        peer.call(1, commands.Queue.Declare(queue="q", **queue))
        peer.answers()
        return peer

    def publish(self, peer: Peer, count: int) -> None:
        for _ in range(count):
            peer.send(b"".join(message("", "q", b"body").frames(1)))

    def passes(self, ms: int) -> None:
        """Let time pass in steps that are shorter than those of the watch."""
        node, end = self.node, self.node.clock.now_ms + ms
        while node.clock.now_ms < end:
            node.clock.now_ms = min(end, node.clock.now_ms + LOOK_MS // 2)
            node.turn.run(node.broker.timers.run, node.clock.now_ms)
            while node.turn.behind:
                node.turn.run(node.turn.catch_up)
        for peer in node.peers:
            peer.collect()

    @property
    def ready(self) -> int:
        return self.node.broker.vhost("/").queues["q"].host.ready_count


def closed(peer: Peer) -> commands.Channel.Close | None:
    return next((each for _, each in peer.answers() if isinstance(each, commands.Channel.Close)), None)


@pytest.mark.parametrize("way", ["consume", "get"])
def test_a_channel_that_does_not_ack_is_closed_and_its_messages_go_back(way: str) -> None:
    watched = Watched()
    peer = watched.peer()
    watched.publish(peer, 2)
    if way == "consume":
        peer.call(1, commands.Basic.Consume(queue="q"))
    else:
        peer.call(1, commands.Basic.Get(queue="q"))
    peer.answers()
    watched.passes(TIMEOUT_MS - LOOK_MS)
    assert closed(peer) is None
    watched.passes(3 * LOOK_MS)
    said = closed(peer)
    assert said is not None and (said.reply_code, said.class_id, said.method_id) == (406, 0, 0)
    assert said.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 10000 ms."
    )
    assert watched.ready == 2
    # The connection goes on, and the age of its own deliveries decides about another channel.
    peer.call(1, commands.Channel.CloseOk())
    peer.call(2, commands.Channel.Open())
    peer.call(2, commands.Basic.Get(queue="q"))
    peer.answers()
    watched.passes(TIMEOUT_MS - LOOK_MS)
    assert closed(peer) is None


def test_only_the_age_of_what_is_unacked_counts() -> None:
    """A busy channel that always has something unacked is not closed."""
    watched = Watched()
    peer = watched.peer()
    peer.call(1, commands.Basic.Qos(prefetch_count=2))
    peer.call(1, commands.Basic.Consume(queue="q"))
    watched.publish(peer, 2)
    for tag in range(1, 40):
        watched.passes(TIMEOUT_MS // 3)
        watched.publish(peer, 1)
        peer.call(1, commands.Basic.Ack(tag))
    assert closed(peer) is None
    # The other one of the last two is acked, and the older one is not.
    peer.call(1, commands.Basic.Ack(41))
    watched.passes(TIMEOUT_MS + 2 * LOOK_MS)
    assert closed(peer) is not None


@pytest.mark.parametrize(
    ("options", "no_ack"), [({"consumer_timeout_ms": 0}, False), ({}, True)], ids=["off", "no ack"]
)
def test_channels_that_stay(options: dict[str, Any], no_ack: bool) -> None:
    watched = Watched(**options)
    peer = watched.peer()
    peer.call(1, commands.Basic.Consume(queue="q", no_ack=no_ack))
    watched.publish(peer, 2)
    watched.passes(3 * TIMEOUT_MS)
    assert closed(peer) is None
    assert watched.ready == 0


def test_acks_of_an_open_transaction_are_acks() -> None:
    watched = Watched()
    peer = watched.peer()
    watched.publish(peer, 1)
    peer.call(1, commands.Tx.Select())
    peer.call(1, commands.Basic.Get(queue="q"))
    peer.call(1, commands.Basic.Ack(1))
    watched.passes(3 * TIMEOUT_MS)
    assert closed(peer) is None


def test_deliveries_of_groups_have_a_timeout_of_their_own() -> None:
    unacked = Unacked()
    group, queue = (
        SimpleNamespace(queue=SimpleNamespace(type=QUEUE_TYPES[name])) for name in ("stream-group", "stream")
    )
    unacked.add(1, 3, group, 0)
    unacked.add(4, 2, queue, 0)
    assert [unacked.has_below(tag) for tag in (1, 4, 5, 9)] == [False, False, True, True]
    unacked.take(4, 5, strict=True)
    assert not unacked.has_below(9)


def test_many_connections_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_timeout, "SESSIONS_AT_ONCE", 3)
    watched = Watched()
    first = watched.peer()
    peers = [first]
    for _ in range(9):
        peer = watched.node.peer()
        peer.call(1, commands.Channel.Open())
        peers.append(peer)
    watched.publish(first, len(peers))
    for peer in peers:
        peer.call(1, commands.Basic.Get(queue="q"))
        peer.answers()
    watched.passes(TIMEOUT_MS + 8 * LOOK_MS)
    assert all(closed(peer) for peer in peers)
    assert watched.ready == len(peers)
    # Nothing is kept for channels that are gone.
    watched.passes(8 * LOOK_MS)
    assert not watched.watch._noted and not watched.watch._before
