"""Objects of clients are freed when the clients are gone, and not only when the collector runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from pamqp import commands

from amqp_server.broker.declared.operations import DeleteVhost
from amqp_server.broker.recovery.failures import PAUSE_MS
from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.channel import Channel
from amqp_server.connection.session import Session
from amqp_server.wire import frames
from quorum_queue.local_host import LocalHost
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.run import Run
from tests.garbage import alive, garbage
from tests.turns import Planted

from ..wire.published import message, method
from .node import MemoryNode, Peer
from .served import client, served, until
from .test_leaks import _cycles

KINDS: dict[str, dict[str, Any]] = {
    "transient": {},
    "durable": {"durable": True},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "priorities": {"arguments": {"x-max-priority": 5}},
    "deduplicating": {"durable": True, "arguments": {"x-deduplication": True}},
    "with timers": {
        "arguments": {"x-message-ttl": 1_000, "x-expires": 9_000, "x-dead-letter-exchange": "amq.fanout"}
    },
    "at least once": {
        "durable": True,
        "arguments": {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "amq.fanout",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    },
}


def opened(node: MemoryNode, **declared: Any) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Confirm.Select())
    peer.call(1, commands.Queue.Declare(queue="q", **declared))
    peer.call(1, commands.Queue.Bind(queue="q", exchange="amq.headers", arguments={"a": 1}))
    return peer


def publish(peer: Peer, count: int = 3) -> None:
    one = message("", "q", b"x" * 10_000, delivery_mode=b"\x02").encode(1)
    peer.send(*[one] * count)
    headers = b"\0\0\0\x07\x01aI\0\0\0\x01"
    peer.send(message("amq.headers", "", headers=headers).encode(1))
    peer.node.sync()


def forget(node: MemoryNode, peer: Peer) -> None:
    """The peer loses its socket."""
    node.turn.run(peer.session.lost)
    node.turn.forget(peer.session, peer)
    node.peers.remove(peer)


def nothing(peer: Peer) -> None: ...


def consumes(peer: Peer) -> None:
    peer.call(1, commands.Basic.Qos(0, 2, False), commands.Basic.Consume(queue="q", consumer_tag="c"))


def gets(peer: Peer) -> None:
    peer.call(1, commands.Basic.Get(queue="q"), commands.Basic.Get(queue="q", no_ack=True))


def gives_back(peer: Peer) -> None:
    gets(peer)
    peer.call(1, commands.Basic.Nack(0, True, True))


def rejects(peer: Peer) -> None:
    gets(peer)
    peer.call(1, commands.Basic.Nack(0, True, False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [nothing, consumes, gets, gives_back, rejects])
def test_a_deleted_queue_goes_with_all_that_it_held(kind: str, use: Callable[[Peer], None]) -> None:
    node = MemoryNode()
    with garbage() as left:
        peer = opened(node, **KINDS[kind])
        publish(peer)
        use(peer)
        assert alive(Run)
        peer.call(1, commands.Queue.Delete(queue="q"))
        # The queue's client goes on, and may have unacked messages of the queue.
        assert not alive(Run) and not alive(LocalHost)
    assert not left.found, str(left)


def end_by_close(node: MemoryNode, peer: Peer) -> None:
    peer.send(frames.method_frame(0, commands.Connection.Close(200, "", 0, 0)))
    forget(node, peer)


def end_by_channel_close(node: MemoryNode, peer: Peer) -> None:
    peer.call(1, commands.Channel.Close(200, "", 0, 0))
    forget(node, peer)


def end_by_cancel(node: MemoryNode, peer: Peer) -> None:
    peer.call(1, commands.Basic.Cancel("c"))
    forget(node, peer)


def end_by_soft_error(node: MemoryNode, peer: Peer) -> None:
    peer.call(1, commands.Basic.Ack(99))
    forget(node, peer)


def end_by_hard_error(node: MemoryNode, peer: Peer) -> None:
    peer.send(b"\x07\0\0\0\0\0\0\xce")
    forget(node, peer)


def end_in_a_message(node: MemoryNode, peer: Peer) -> None:
    whole = message("", "q", b"x" * 100_000).encode(1)
    peer.send(whole[:60_000])
    forget(node, peer)


def end_in_a_transaction(node: MemoryNode, peer: Peer) -> None:
    peer.call(2, commands.Channel.Open(), commands.Tx.Select())
    peer.send(message("", "q", b"x" * 10_000).encode(2))
    forget(node, peer)


def end_under_an_alarm(node: MemoryNode, peer: Peer) -> None:
    node.turn.run(node.broker.alarms.set, "memory", True)
    publish(peer)
    forget(node, peer)


@pytest.mark.parametrize("declared", [{"auto_delete": True}, {"exclusive": True}, {"durable": True}])
@pytest.mark.parametrize(
    "end",
    [
        end_by_close,
        forget,
        end_by_channel_close,
        end_by_cancel,
        end_by_soft_error,
        end_by_hard_error,
        end_in_a_message,
        end_in_a_transaction,
        end_under_an_alarm,
    ],
)
def test_a_connection_goes_with_its_queues(
    declared: dict[str, Any], end: Callable[[MemoryNode, Peer], None]
) -> None:
    node = MemoryNode()
    with garbage() as left:
        peer = opened(node, **declared)
        peer.call(1, commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True))
        publish(peer)
        consumes(peer)
        end(node, peer)
        node.sync()
        del peer
        assert not alive(Session) and not alive(Channel)
        kept = "durable" in declared
        assert bool(alive(Run)) is kept and bool(alive(Queue)) is kept
    assert not left.found, str(left)


def test_a_channel_that_is_closed_for_too_large_a_transaction() -> None:
    node = MemoryNode(tx_bytes_max=15_000)
    with garbage() as left:
        peer = opened(node)
        peer.call(2, commands.Channel.Open(), commands.Tx.Select())
        peer.send(message("", "q", b"x" * 10_000).encode(2) * 3)
        (closed,) = [each for _, each in peer.answers() if isinstance(each, commands.Channel.Close)]
        assert closed.reply_code == 406
        peer.call(2, commands.Channel.CloseOk())
        assert len(alive(Channel)) == 1
        # Nothing of the transaction was published, not even what came with the same read.
        assert not alive(Run)
    assert not left.found, str(left)


def test_a_queue_that_failed() -> None:
    node = MemoryNode()
    with garbage() as left:
        peer = opened(node)
        publish(peer)
        assert alive(Machine)
        queue = node.broker.vhost("/").queues["q"]
        node.turn.run(node.turn.failed, queue.host, Planted())
        assert not alive(Machine)
        peer.call(1, commands.Queue.Delete(queue="q"))
        del queue
        # A timer was about to begin the queue anew.
        node.clock.now_ms += PAUSE_MS
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        assert not alive(Queue)
    assert not left.found, str(left)


def test_a_virtual_host() -> None:
    node = MemoryNode()
    with garbage() as left:
        node.turn.run(node.broker.add_vhost, "v")
        peer = node.peer()
        peer.session.vhost = node.broker.vhost("v")
        node.broker.access.permissions.set("guest", "v", ".*", ".*", ".*")
        peer.call(1, commands.Channel.Open())
        for kind, declared in KINDS.items():
            peer.call(1, commands.Queue.Declare(queue=kind, **declared))
            peer.call(1, commands.Queue.Bind(queue=kind, exchange="amq.topic", routing_key="a.#"))
            peer.send(message("amq.topic", "a.b").encode(1))
        peer.call(1, commands.Exchange.Declare(exchange="e", exchange_type="x-consistent-hash"))
        peer.call(1, commands.Exchange.Bind(destination="e", source="amq.topic", routing_key="#"))
        assert alive(Run)
        node.turn.run(node.broker.propose, DeleteVhost("v"))
        forget(node, peer)
        node.sync()
        del peer
        assert not alive(Queue) and not alive(Run)
    assert not left.found, str(left)


@pytest.mark.parametrize("ahead", [0, 1])
async def test_sockets_and_tasks_go_with_their_clients(tmp_path: Path, ahead: int) -> None:
    """Over sockets, with the tasks and the frames of their calls: clients go in order, abruptly, or are
    closed by an operator.
    """
    async with served(tmp_path, login_memory_s=3_600) as node:
        await _cycles(node, 16)
        await trio.testing.wait_all_tasks_blocked()
        with garbage() as left:
            await _cycles(node, 40)
            if ahead:
                # A client that does not read has a task of its own.
                async with client(node, receive_buffer_bytes=4_096) as slow:
                    await slow.send(
                        method(1, commands.Queue.Declare(queue="q", exclusive=True)),
                        message("", "q", b"x" * 100_000).encode(1) * 100,
                        method(1, commands.Basic.Consume(queue="q", no_ack=True)),
                    )
                    await until(lambda: any(each._draining for each in node.server.transports))
            await until(lambda: not node.server.transports)
            await until(lambda: not alive(Session))
            # A queue is deleted in a turn of its own.
            await until(lambda: not alive(Run))
        assert not left.found, str(left)
    assert gc.isenabled()
