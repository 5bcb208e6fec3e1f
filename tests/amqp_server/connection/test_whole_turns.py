"""A crash at any moment leaves all or nothing of a tx, or of a dead letter and its source, on disk as in
memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from pamqp import commands

from persistence.commits.commit import Commit
from tests.stores.memory import MemoryEnvironment, MemoryTransaction

from ..wire.published import message, method
from .node import MemoryNode, Peer


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.commits.layer.LAYER_APPENDS_MAX", 1)


class LateCommits:
    """First commits in memory, and then those of a Disk."""

    def __init__(self, commits: Any) -> None:
        self.commits = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.commits, name)


class NodeOverDisk(MemoryNode):
    late_commits: LateCommits

    def _commits(self) -> Any:
        self.late_commits = LateCommits(super()._commits())
        return self.late_commits


class Disk:
    """Counts the messages of each queue in every state that a crash could leave behind."""

    def __init__(self, node: NodeOverDisk) -> None:
        self._node = node
        self.states: list[dict[str, int]] = []
        self.commit = Commit(node.environment)
        node.late_commits.commits = self.commit

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        finish = MemoryTransaction.finish

        def watched(transaction: MemoryTransaction) -> None:
            finish(transaction)
            # The spill has another store.
            if transaction._store is self._node.environment:
                self.states.append(self._count(self._node.environment))

        monkeypatch.setattr(MemoryTransaction, "finish", watched)

    def _count(self, environment: MemoryEnvironment) -> dict[str, int]:
        counts = {}
        for queue in self._node.broker.all_queues():
            stored = environment.queues.get(queue.queue_id)
            gone = 0 if stored is None else sum(map(len, stored.gone.values()))
            counts[queue.name] = (
                0 if stored is None else sum(count for count, *_ in stored.records.values()) - gone
            )
        return counts


def declare(peer: Peer, *names: str, **arguments: Any) -> None:
    for name in names:
        peer.call(1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments))


async def test_a_tx_over_several_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeOverDisk()
    peer, publisher = node.peer(), node.peer()
    for each in (peer, publisher):
        each.call(1, commands.Channel.Open())
    declare(peer, "source", "a", "b", "c")
    publisher.send(*(message("", "source", delivery_mode=b"\x02").encode(1) for _ in range(8)))
    node.sync()
    peer.call(1, commands.Tx.Select())
    disk = Disk(node)
    disk.watch(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.commit.run, node.turn.run)
        for _ in range(8):
            peer.send(method(1, commands.Basic.Get(queue="source")))
            peer.answers()
            targets = [message("", name, delivery_mode=b"\x02").encode(1) for name in "abacb"]
            peer.send(*targets, method(1, commands.Basic.Ack(0, multiple=True)))
            peer.send(method(1, commands.Tx.Commit()))
            await trio.testing.wait_all_tasks_blocked()
        await disk.commit.barrier()
        disk.commit.stop()
    assert disk.states[-1] == {"source": 0, "a": 16, "b": 16, "c": 8}
    for state in disk.states:
        done = 8 - state["source"]
        assert state == {"source": 8 - done, "a": 2 * done, "b": 2 * done, "c": done}


@pytest.mark.parametrize("why", ["rejected", "expired"])
@pytest.mark.parametrize("full", [False, True])
async def test_a_dead_letter_to_several_queues(monkeypatch: pytest.MonkeyPatch, why: str, full: bool) -> None:
    monkeypatch.setattr("persistence.commits.commit_task.RETRY_SECONDS", 0.001)
    node = NodeOverDisk()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    declare(peer, "source", **{"x-dead-letter-exchange": "amq.fanout"})
    declare(peer, "a", "b", "other")
    for name in "ab":
        peer.call(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
    if why == "expired":
        published = message("", "source", delivery_mode=b"\x02", expiration=b"\x041000")
    else:
        published = message("", "source", delivery_mode=b"\x02")
    peer.send(*(published.encode(1) for _ in range(8)))
    node.sync()
    disk = Disk(node)
    disk.watch(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.commit.run, node.turn.run)
        if full:
            node.environment.faults.full = 3
            peer.send(message("", "other", delivery_mode=b"\x02").encode(1))
            await trio.testing.wait_all_tasks_blocked()
        if why == "expired":
            node.clock.now_ms += 2000
            node.turn.run(node.broker.timers.run, node.clock.now_ms)
        else:
            for tag in range(1, 9):
                peer.send(method(1, commands.Basic.Get(queue="source")))
                peer.answers()
                peer.send(method(1, commands.Basic.Reject(tag, requeue=False)))
        await disk.commit.barrier()
        disk.commit.stop()
    assert disk.states[-1] == {"source": 0, "a": 8, "b": 8, "other": int(full)}
    for state in disk.states:
        assert state["a"] == state["b"] == 8 - state["source"]
