"""A client that has its close-ok finds its consumers gone, whatever node it asks then."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.topology.queue import Queue
from amqp_server.connection.session import ASKED_AT_ONCE
from amqp_server.wire import frames
from quorum_queue.local_host import LocalHost
from tests.amqp_server.connection.node import MemoryNode, Peer

pytestmark = pytest.mark.pure
CLOSES = {"channel": commands.Channel.Close, "connection": commands.Connection.Close}


class Asked:
    """What queues were asked, and have not answered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Any] = []
        patch.setattr(LocalHost, "barrier", lambda host, done: self.waiting.append(done))


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


def peer_with(node: MemoryNode, count: int) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    for index in range(count):
        name = f"q{index}"
        peer.call(
            1, commands.Queue.Declare(queue=name), commands.Basic.Consume(queue=name, consumer_tag=name)
        )
    peer.answers()
    return peer


def close(peer: Peer, how: str) -> None:
    peer.send(frames.method_frame(1 if how == "channel" else 0, CLOSES[how](200, "", 0, 0)))
    peer.node.sync()


def closed(peer: Peer) -> bool:
    peer.collect()
    return any(
        isinstance(each, commands.Channel.CloseOk | commands.Connection.CloseOk) for _, each in peer.answers()
    )


@pytest.mark.parametrize("how", CLOSES)
@pytest.mark.parametrize("count", [2, 2 * ASKED_AT_ONCE])
def test_it_follows_what_each_queue_knows(
    node: MemoryNode, monkeypatch: pytest.MonkeyPatch, how: str, count: int
) -> None:
    peer = peer_with(node, count)
    asked = Asked(monkeypatch)
    close(peer, how)
    while node.turn.behind:
        node.turn.run(node.turn.catch_up)
    assert len(asked.waiting) == count
    for known in asked.waiting:
        assert not closed(peer)
        node.turn.run(known)
    assert closed(peer)


@pytest.mark.parametrize("how", CLOSES)
def test_it_does_not_wait_for_a_queue_that_nobody_serves(
    node: MemoryNode, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    peer = peer_with(node, 1)
    asked = Asked(monkeypatch)
    monkeypatch.setattr(Queue, "is_led", False)
    close(peer, how)
    assert closed(peer) and not asked.waiting


def test_a_consumer_that_the_broker_has_just_ended_counts(
    node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peer_with(node, 1)
    [channel] = peer.session.channels.values()
    [subscription] = channel.subscriptions.values()
    asked = Asked(monkeypatch)
    node.turn.run(channel.time_out, subscription)
    close(peer, "channel")
    assert not closed(peer)
    # Of the consumer's end, and of the channel's.
    _, known = asked.waiting
    node.turn.run(known)
    assert closed(peer)
