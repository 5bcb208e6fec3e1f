"""Operators see transactions that a cluster has not decided, and decisions that not all queues have answered,
whichever node they ask; and they have undecided ones aborted.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from amqp_server.broker.access.users import User
from amqp_server.cluster.coordinator.decisions import Decision
from amqp_server.management.request import other_nodes
from amqp_server.management.request.answer import NO_CONTENT, Refusal
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import Rows
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.resources import transactions
from amqp_server.management.serving import endpoints
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_simulation_scenes import Scene
from tests.amqp_server.cluster.test_transactions import begun, left

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("hand")]


class OtherNodes:
    """See questions.Others."""

    def __init__(self, cluster: Nodes, own: str) -> None:
        self._cluster = cluster
        self._own = own

    def names(self) -> list[str]:
        return [name for name in "abc" if name != self._own]

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        await trio.lowlevel.checkpoint()
        if not self._cluster.scene.nodes[node].alive:
            return None

        def make(asked: Any) -> Any:
            handler = next(
                each.handler
                for each in endpoints.ENDPOINTS
                if (each.method, each.path) == (asked.method, asked.path)
            )
            return handler, self._cluster.call(node, asked.method, asked.path, asked.parts, local=True)

        return [part async for part in other_nodes.answer(question, make)]


class Nodes:
    """The management API of simulated nodes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.tags: tuple[str, ...] = ("administrator",)

    def call(self, node: str, method: str, route: str, path: dict[str, str], *, local: bool = False) -> Call:
        asked = self.scene.nodes[node]
        parts: Any = SimpleNamespace(
            config=asked.broker.config,
            broker=asked.broker,
            cluster=asked.cluster,
            others=OtherNodes(self, node),
        )
        user = User("guest", "", self.tags)
        return Call(parts, user, path, {}, b"", Slices(1), 100, method=method, route=route, local=local)

    async def rows(self, node: str) -> list[dict[str, Any]]:
        found = await transactions.transactions(self.call(node, "GET", "/api/transactions", {}))
        assert isinstance(found, Rows)
        rows: list[dict[str, Any]] = msgspec.json.decode(b"".join([part async for part in found.chunks()]))
        return rows

    async def abort(self, node: str, name: str) -> Any:
        """The answer, while the cluster does its work."""
        answers: list[Any] = []

        async def asks() -> None:
            call = self.call(node, "DELETE", "/api/transactions/{id}", {"id": name})
            try:
                answers.append(await transactions.abort(call))
            except Refusal as refusal:
                answers.append(refusal)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asks)
            while not answers:
                await trio.lowlevel.checkpoint()
                self.scene.ticks(1)
        return answers[0]


@pytest.fixture
def under_way(hand: None, monkeypatch: pytest.MonkeyPatch) -> tuple[Nodes, Client, Callable[[], None]]:
    """A transaction that moves a message from a queue at a to one at c: both queues have their parts, and the
    client's node, b, decides when the function is called.
    """
    scene, client, _ = begun(("a", "c"))
    node = scene.nodes["b"]
    coordinator, asked = node.cluster.transactions, list[Any]()
    decide = coordinator.decide
    monkeypatch.setattr(coordinator, "decide", lambda *arguments: asked.append(arguments))
    for each in scene.running:
        # Nobody aborts it but the test.
        monkeypatch.setattr(each.cluster.transactions, "_decision_ms", 1 << 30)
    client.commit()
    scene.wait(lambda: bool(asked))
    scene.ticks(25)
    return Nodes(scene), client, lambda: node.turn.run(decide, *asked[0])


@pytest.mark.pure
@pytest.mark.parametrize("asked", ["a", "b", "c"])
async def test_an_undecided_transaction_is_listed_as_one(under_way: Any, asked: str) -> None:
    nodes, _, _ = under_way
    (row,) = await nodes.rows(asked)
    assert row.pop("id").startswith("b:") and row.pop("age_ms") > 0 and row.pop("message_bytes") > 0
    assert sorted(row.pop("participants")) == ["quorum/1", "quorum/2"]
    assert row.pop("connection").startswith("client ")
    assert row == {
        "state": "undecided",
        "vhost": "/",
        "node": "b",
        "messages": 1,
        "acks": 1,
        "waiting_for": [],
        "channel": 1,
        "user": "guest",
    }


@pytest.mark.pure
@pytest.mark.parametrize("asked", ["a", "b", "c"])
async def test_an_undecided_transaction_is_aborted(under_way: Any, asked: str) -> None:
    nodes, client, decide = under_way
    (row,) = await nodes.rows(asked)
    assert await nodes.abort(asked, row["id"]) == NO_CONTENT
    # The node of its client hears of it, however late it decides.
    nodes.scene.ticks(100)
    decide()
    nodes.scene.wait(lambda: bool(client.refusals))
    assert "an operator has aborted it" in client.refusals[0]
    nodes.scene.settle()
    assert (left(nodes.scene, "quorum/1"), left(nodes.scene, "quorum/2")) == (1, 0)
    again = await nodes.abort(asked, row["id"])
    assert again.status == 404


@pytest.mark.pure
async def test_a_transaction_that_is_committed_meanwhile_is_not_aborted(
    under_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its decision comes while the nodes are asked, and is forgotten before an abort is proposed."""
    nodes, client, decide = under_way
    (row,) = await nodes.rows("a")
    of_cluster = transactions._of_cluster

    async def slow(*arguments: Any) -> Any:
        found = await of_cluster(*arguments)
        decide()
        nodes.scene.settle()
        nodes.scene.ticks(100)
        assert not len(nodes.scene.nodes["a"].cluster.catalog.decisions)
        return found

    monkeypatch.setattr(transactions, "_of_cluster", slow)
    answer = await nodes.abort("a", row["id"])
    assert (answer.status, answer.body["reason"]) == (409, f"transaction '{row['id']}' is already committed")
    assert client.refusals == []
    assert (left(nodes.scene, "quorum/1"), left(nodes.scene, "quorum/2")) == (0, 1)


@pytest.mark.pure
async def test_a_decision_that_waits_for_answers_is_listed(under_way: Any) -> None:
    nodes, _, _ = under_way
    (row,) = await nodes.rows("a")
    transaction = transactions._parsed(row["id"])
    assert transaction is not None
    for committed in (True, False):
        for node in nodes.scene.nodes.values():
            known = node.cluster.catalog.decisions
            known.by_id.clear()
            queues = tuple(host.queue_id for host in node.broker.hosts.queues.values())
            known.take(Decision(transaction, committed, (*queues, 999_999)))
        (told,) = await nodes.rows("b")
        assert told["state"] == ("committed" if committed else "aborted")
        expected = {"quorum/1", "quorum/2", "a deleted queue"} | (set() if committed else {"node b"})
        assert set(told["waiting_for"]) == expected
        answer = await nodes.abort("b", row["id"])
        assert (answer.status, answer.body["reason"]) == (
            409,
            f"transaction '{row['id']}' is already {told['state']}",
        )


@pytest.mark.pure
async def test_who_may_abort_undecided_ones(under_way: Any) -> None:
    nodes, _, _ = under_way
    (row,) = await nodes.rows("a")
    for tags, status in ((("monitoring",), 401), (("management",), 404)):
        nodes.tags = tags
        assert (await nodes.abort("a", row["id"])).status == status
    nodes.tags = ("policymaker",)
    assert await nodes.abort("a", row["id"]) == NO_CONTENT
