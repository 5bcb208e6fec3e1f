"""Transactions that stay open in a cluster: they end after their time, those that commit do not."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from pamqp import commands

from amqp_server.broker.access.users import User
from amqp_server.broker.declared.operations import PutUser
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.amqp_server.cluster.test_transactions import begun, left

pytestmark = pytest.mark.usefixtures("hand")


def test_a_transaction_that_stays_open_is_rolled_back_on_its_node() -> None:
    scene, client, _ = begun(("ac", "c"))
    node = scene.nodes["b"]
    assert len(node.broker.open_transactions) == 1
    node.clock.now_ms += node.broker.config.tx_timeout_ms
    scene.wait(lambda: bool(client.refusals))
    assert "(tx_timeout_ms)" in client.refusals[0]
    assert len(node.broker.open_transactions) == 0
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 0)


def as_producer(scene: Scene, client: Client, epoch: int) -> None:
    """Take a message if there is one, and ack it in an open transaction of this producer."""
    client.get("quorum/1")
    scene.wait_for(client)
    headers = {"x-producer": "billing", "x-producer-epoch": epoch}
    with mock.patch.object(client, "headers", return_value=headers):
        client.publish("quorum/2", 1)
    for tag in client.unacked:
        client.send(commands.Basic.Ack(delivery_tag=tag))
    client.uncommitted_tags = list(client.unacked)
    client.unacked.clear()
    client.node.end_turn()
    scene.work_off()


def two_starts() -> tuple[Scene, Client, Client]:
    """Return clients at b and c."""
    scene = Scene()
    reader = scene.client("c")
    for name, members in (("quorum/1", "ac"), ("quorum/2", "c")):
        scene.place(reader, name, members)
    scene.publish(reader, "quorum/1")
    old, new = (scene.new_client(scene.nodes[name], transactional=True) for name in "bc")
    scene.settle()
    return scene, old, new


def test_an_idle_predecessor_at_another_node_gives_back_what_it_acked() -> None:
    scene, old, new = two_starts()
    as_producer(scene, old, 1)
    assert left(scene, "quorum/1") == 0 and old.refusals == []
    as_producer(scene, new, 2)
    scene.wait(lambda: bool(old.refusals))
    assert "x-producer-epoch 1 of producer '//billing' is over" in old.refusals[0]
    assert len(scene.nodes["b"].broker.open_transactions) == 0
    scene.settle()
    # Its successor had found the queue empty, and gets the message now.
    new.get("quorum/1")
    scene.wait_for(new)
    assert len(new.unacked) == 1
    new.commit()
    scene.wait_for(new)
    scene.settle()
    assert new.refusals == [] and left(scene, "quorum/2") == 1


def test_a_node_that_hears_of_it_by_a_snapshot_ends_it_too() -> None:
    scene, old, new = two_starts()
    as_producer(scene, old, 1)
    for name in "ac":
        scene.network.blocked[name, "b"] = scene.network.blocked["b", name] = None
    as_producer(scene, new, 2)
    for session in [each for each in scene.network.sessions if "b" in each.ends]:
        scene.network.close(session, session.other("b"))
    scene.ticks(10)
    other = scene.nodes["a"]
    for number in range(60):
        other.turn.run(other.broker.propose, PutUser(User("ann", str(number))))
        scene.work_off()
    assert len(scene.nodes["b"].broker.open_transactions) == 1
    raised = scene.ledger.count["RaiseEpoch"]
    scene.network.blocked.clear()
    scene.doubt_all()
    scene.settle()
    assert scene.ledger.count["RaiseEpoch"] == raised
    assert len(scene.nodes["b"].broker.open_transactions) == 0
    assert "x-producer-epoch 1" in old.refusals[0]


def test_a_commit_under_way_does_not_end_by_its_age() -> None:
    scene, client, _ = begun(("ac", "c"))
    node = scene.nodes["b"]
    client.commit()
    node.end_turn()
    assert len(node.broker.open_transactions) == 0
    node.turn.run(node.broker.open_transactions.wake)
    scene.wait_for(client)
    assert client.refusals == []
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (0, 1)


@pytest.mark.pure
def test_a_commit_that_was_aborted_meanwhile_stays_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue has its part, and its leader hears nothing of a decision for so long that it has the
    transaction aborted. All queues do that and answer, so that the decision is forgotten. Only then the
    answer of the other queue comes to the node that commits: it must not decide anew.
    """
    scene, client, _ = begun(("a", "c"))
    node = scene.nodes["b"]
    coordinator, asked, aborted = node.cluster.transactions, list[Any](), list[Any]()
    decide, decided = coordinator.decide, coordinator.decided

    def watched(decisions: Any, *, own: bool) -> None:
        aborted.extend(decisions)
        decided(decisions, own=own)

    monkeypatch.setattr(coordinator, "decide", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(coordinator, "decided", watched)
    client.commit()
    scene.wait(lambda: bool(asked))
    # All queues are ready, and the last answer is still on its way.
    scene.ticks(100)
    assert aborted and not any(each.committed for each in aborted)
    scene.ticks(100)
    assert not len(node.cluster.catalog.decisions)
    node.turn.run(decide, *asked[0])
    scene.wait(lambda: bool(client.refusals))
    assert "rolled back" in client.refusals[0]
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 0)


@pytest.mark.pure
def test_an_abort_is_forgotten_though_the_late_commit_came_with_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The committing node hears nothing for a while. Others abort the transaction, then its own proposal to
    commit comes into the log, and then a snapshot replaces that part of the log.
    """
    scene, client, _ = begun(("a", "c"))
    node, other = scene.nodes["b"], scene.nodes["a"]
    coordinator, asked = node.cluster.transactions, list[Any]()
    decide = coordinator.decide
    monkeypatch.setattr(coordinator, "decide", lambda *arguments: asked.append(arguments))
    client.commit()
    scene.wait(lambda: bool(asked))
    (transaction, queues, *_) = asked[0]
    for name in "ac":
        scene.network.blocked[name, "b"] = None
    other.turn.run(other.cluster.transactions.abort, transaction, queues)
    scene.work_off()
    node.turn.run(decide, *asked[0])
    scene.work_off()
    # Now its links break: what is on the way to it is lost, and the others cut their logs.
    for session in [each for each in scene.network.sessions if "b" in each.ends]:
        scene.network.close(session, session.other("b"))
    scene.ticks(10)
    for number in range(60):
        other.turn.run(other.broker.propose, PutUser(User("ann", str(number))))
        scene.work_off()
    scene.network.blocked.clear()
    assert transaction in node.cluster.transactions._proposed
    scene.doubt_all()
    scene.settle()
    assert scene.ledger.count["Decide"] == 2
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 0)
