"""Dead letters that the node holds until their targets have them."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from quorum_queue import held_letters
from quorum_queue.held_letters import RETRY_MS
from quorum_queue.local_host import LocalHost

from ..connection.node import MemoryNode, Peer
from ..wire.published import message, method

SOURCE: dict[str, Any] = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def peer(node: MemoryNode) -> Peer:
    found = node.peer()
    found.call(1, commands.Channel.Open())
    found.call(1, commands.Queue.Declare(queue="source", durable=True, arguments=SOURCE))
    return found


def target(peer: Peer, name: str, **arguments: Any) -> None:
    peer.call(1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
    peer.call(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))


def reject(node: MemoryNode, peer: Peer) -> None:
    """Publish one message and reject it; the disk has nothing of the rejection yet."""
    peer.send(message("", "source", delivery_mode=b"\x02").encode(1))
    node.sync()
    peer.send(method(1, commands.Basic.Get(queue="source")))
    peer.answers()
    peer.send(method(1, commands.Basic.Reject(1, requeue=False)))


def held(node: MemoryNode) -> int:
    host = node.broker.vhost("/").queues["source"].host
    assert isinstance(host, LocalHost)
    return len(host.machine.dead_lettering)


def ready(node: MemoryNode, name: str) -> int:
    return node.broker.vhost("/").queues[name].host.ready_count


def later(node: MemoryNode) -> None:
    node.clock.now_ms += RETRY_MS
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    node.sync()


def test_it_is_held_until_it_is_on_disk_at_every_target(node: MemoryNode, peer: Peer) -> None:
    target(peer, "a")
    target(peer, "b")
    reject(node, peer)
    assert (ready(node, "a"), ready(node, "b"), held(node)) == (1, 1, 1)
    # A retry while the answer is still to come sends nothing twice.
    node.clock.now_ms += RETRY_MS
    node.broker.vhost("/").queues["source"].host.wake()
    node.turn.end()
    assert (ready(node, "a"), ready(node, "b"), held(node)) == (1, 1, 1)
    node.sync()
    assert (ready(node, "a"), ready(node, "b"), held(node)) == (1, 1, 0)


def test_a_target_that_is_full_is_asked_again(node: MemoryNode, peer: Peer) -> None:
    target(peer, "full", **{"x-max-length": 0, "x-overflow": "reject-publish"})
    reject(node, peer)
    node.sync()
    later(node)
    assert (ready(node, "full"), held(node)) == (0, 1)
    peer.call(1, commands.Queue.Delete(queue="full"))
    target(peer, "full")
    later(node)
    assert (ready(node, "full"), held(node)) == (1, 0)


def test_without_a_target_it_is_held(node: MemoryNode, peer: Peer) -> None:
    reject(node, peer)
    node.sync()
    later(node)
    assert held(node) == 1
    target(peer, "late")
    later(node)
    assert (ready(node, "late"), held(node)) == (1, 0)


def test_a_source_that_is_deleted_meanwhile_asks_for_nothing(node: MemoryNode, peer: Peer) -> None:
    target(peer, "a")
    reject(node, peer)
    peer.send(method(1, commands.Queue.Delete(queue="source")))
    node.sync()
    later(node)
    assert ready(node, "a") == 1


def reject_many(node: MemoryNode, peer: Peer, count: int) -> None:
    for _ in range(count):
        peer.send(message("", "source", delivery_mode=b"\x02").encode(1))
    node.sync()
    for _ in range(count):
        peer.send(method(1, commands.Basic.Get(queue="source")))
    peer.answers()
    peer.send(method(1, commands.Basic.Nack(0, multiple=True, requeue=False)))
    node.sync()


@pytest.mark.pure
def test_of_very_many_that_nobody_takes_some_are_sent_at_a_time(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    dead_letters = node.broker.services.dead_letters
    send = dead_letters.dead_letter

    def counted(queue: Any, run: Any, *rest: Any) -> Any:
        sent.append(run.seqs.start)
        return send(queue, run, *rest)

    monkeypatch.setattr(dead_letters, "dead_letter", counted)
    monkeypatch.setattr(held_letters, "AT_ONCE", 10)
    reject_many(node, peer, 25)
    assert (sent, held(node)) == ([*range(1, 26)], 25)
    for expected in (range(1, 11), range(11, 21), [*range(21, 26), *range(1, 6)]):
        sent.clear()
        later(node)
        assert sent == [*expected]
    # When a target takes them, all go at once.
    target(peer, "late")
    later(node)
    for _ in range(25):
        node.sync()
    assert (ready(node, "late"), held(node)) == (25, 0)
