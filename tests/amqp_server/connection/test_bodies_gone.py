"""A message that has left a queue takes no memory any more, even if the queue stays and no other message
comes to it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from quorum_queue.machine.run import Run
from tests.garbage import alive

from ..wire.published import message, method
from .node import MemoryNode, Peer

COUNT = 30


def get(peer: Peer) -> None:
    peer.send(method(1, commands.Basic.Get(queue="q", no_ack=True)) * COUNT)


def consume(peer: Peer) -> None:
    peer.call(1, commands.Basic.Consume(queue="q"))
    peer.call(1, commands.Basic.Ack(0, multiple=True))


def reject_and_consume(peer: Peer) -> None:
    peer.send(method(1, commands.Basic.Get(queue="q")) * COUNT)
    peer.call(1, commands.Basic.Nack(0, multiple=True, requeue=True))
    peer.call(1, commands.Basic.Consume(queue="q"))
    peer.call(1, commands.Basic.Ack(0, multiple=True))


def purge(peer: Peer) -> None:
    peer.call(1, commands.Queue.Purge(queue="q"))


@pytest.mark.parametrize("mode", [b"\x01", b"\x02"], ids=["transient", "persistent"])
@pytest.mark.parametrize("empty", [get, consume, reject_and_consume, purge])
def test_bodies_go_with_their_messages(empty: Callable[[Peer], None], mode: bytes) -> None:
    # Runs of earlier tests, in cycles that the collector has yet to find.
    before = alive(Run)
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q", durable=True))
    # More messages than fit in one run.
    peer.send(message("", "q", b"x" * 100_000, delivery_mode=mode).encode(1) * COUNT)
    node.sync()
    empty(peer)
    node.sync()
    host = node.broker.vhost("/").queues["q"].host
    assert (host.ready_count, host.unacked_count) == (0, 0)
    kept = alive(Run, lambda run: any(map(len, run.contents or ())))
    assert [run for run in kept if not any(run is old for old in before)] == []
