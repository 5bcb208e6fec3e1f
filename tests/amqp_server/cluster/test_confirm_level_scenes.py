"""Confirm levels at whole nodes, on which messages of other nodes arrive when the test says so."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.channel.confirms import Copies
from amqp_server.channel.transactions.commit_answers import CommitAnswers
from amqp_server.channel.transactions.tx import Transaction
from quorum_queue.machine import versions
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.amqp_server.cluster.test_versions import old_scene, upgrade

pytestmark = pytest.mark.usefixtures("hand")


class LevelScene(Scene):
    """A quorum queue with its leader on a, and a client in tx mode on each of a and b."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.client("a")
        self.queue_id = self.place(self.first, "quorum", "abc")
        self.lead("a", self.queue_id)
        self.wait(lambda: self.nodes["b"].broker.replication.version >= versions.CONFIRM_LEVELS)
        self.settle()
        self.clients = {name: self.new_client(self.nodes[name], transactional=True) for name in "ab"}
        self.settle()

    def hold(self, *names: str) -> None:
        """Nothing arrives at these nodes, and no node notices that."""
        for name in names:
            for other in "abc":
                if other != name:
                    self.network.blocked[other, name] = None

    def committed(self, client: Client) -> bool:
        client.node.end_turn()
        self.work_off()
        return client.asked is None


@pytest.mark.parametrize("at", ["a", "b"])
def test_commit_ok_waits_for_the_strictest_level(at: str) -> None:
    scene = LevelScene()
    client = scene.clients[at]
    scene.hold("c")
    for levels, strict in ((("leader", ""), False), (("leader", "all"), True)):
        for level in levels:
            client.publish("quorum", 1, level)
        client.commit()
        assert scene.committed(client) is not strict
    scene.network.blocked.clear()
    assert scene.committed(client)
    scene.finish()


def test_a_commit_of_what_the_leader_may_lose_needs_a_majority() -> None:
    """All of a transaction is there or none, so no part of it may be lost with one disk."""
    scene = LevelScene()
    client = scene.clients["a"]
    scene.hold("b", "c")
    client.publish("quorum", 2, "leader")
    client.publish("transient", 1, "leader")
    client.commit()
    assert not scene.committed(client)
    scene.network.blocked.clear()
    assert scene.committed(client)
    scene.finish()


def test_a_nodes_queue_takes_no_notice() -> None:
    """The queue is a classic one, used at its home and elsewhere."""
    scene = LevelScene()
    scene.declare(scene.first, "classic")
    scene.settle()
    for name in "abc":
        client = scene.client(name)
        for level in ("leader", "all"):
            client.publish("classic", 3, level)
            scene.wait(lambda client=client: not client.unconfirmed)  # type: ignore[misc]
    scene.finish()


def test_acks_in_a_transaction_need_a_majority() -> None:
    scene = LevelScene()
    client = scene.clients["a"]
    client.publish("quorum", 1)
    client.commit()
    assert scene.committed(client)
    client.get("quorum")
    scene.wait_for(client)
    scene.hold("b", "c")
    client.settle()
    client.publish("quorum", 1, "leader")
    client.commit()
    assert not scene.committed(client)
    scene.network.blocked.clear()
    assert scene.committed(client)
    scene.finish()


def test_nobody_relies_on_it_before_all_nodes_know_it() -> None:
    """A node of the version before would ignore the level, or end the link."""
    scene = old_scene()
    client = scene.client("a")
    scene.declare(client, "quorum")
    client.publish("quorum", 1, "all")
    scene.ticks(1)
    assert "x-confirm" in client.refusals[-1]
    client.publish("quorum", 1)
    scene.wait(lambda: not client.unconfirmed)
    for name in "abc":
        upgrade(scene, name)
    scene.ticks(60)
    later = scene.client("b")
    for level in ("all", "leader"):
        later.publish("quorum", 1, level)
    scene.wait(lambda: not later.unconfirmed)
    assert not later.refusals
    scene.finish()


class Refused:
    """Stands in for a channel."""

    class connection:
        class incoming:
            unfinished: Any = None

    class broker:
        open_transactions: Any = None


def test_answers_of_one_commit() -> None:
    channel: Any = Refused
    transaction = Transaction(channel)
    done: list[str] = []
    assert transaction.origin.take_answers() is None
    answers = transaction.origin.await_answers(2)
    # One of the two messages goes to two queues.
    copies = Copies(answers, 1, 1, 2)
    assert transaction.origin.take_answers() is answers
    assert transaction.origin.take_answers() is None
    answers.when_complete(lambda: done.append("committed"))
    copies.confirmed(1, 1)
    answers.confirmed(2, 2)
    assert not done
    copies.refused(1, 1)
    assert done == ["committed"]
    assert transaction.origin.partial
    later = CommitAnswers(transaction.origin)
    later.when_complete(lambda: done.append("at once"))
    assert done == ["committed", "at once"]
