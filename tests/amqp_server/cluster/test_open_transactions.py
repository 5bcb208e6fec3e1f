"""Transactions that stay open in a cluster: they end after their time, those that commit do not."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.broker.access.users import User
from amqp_server.broker.declared.operations import PutUser
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
