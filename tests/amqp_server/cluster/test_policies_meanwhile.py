"""A policy changes after queues have prepared their parts of a transaction and before it is decided, or is
taken away then. See the table in docs/transactions.md; the machine's part is in
tests.quorum_queue.test_parts_and_settings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from pamqp import commands

from amqp_server.broker.declared.operations import ClearParameter
from amqp_server.broker.declared.parameters import POLICY
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.test_policies import policy
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = [
    pytest.mark.pure,
    pytest.mark.usefixtures("hand"),
    pytest.mark.parametrize("kind", ["quorum", "classic"]),
]

#: Messages that wait in the queue, and messages of the transaction.
WAITING, PENDED = 2, 3
OTHER, LETTERS = "quorum/other", "classic/letters"

REFUSES = {"max_length": 1, "overflow": "reject-publish"}
DROPS = {"max_length": 1}
LETTERED = {"dead_letter_exchange": "", "dead_letter_routing_key": LETTERS}
NO_RETURNS = {"delivery_limit": 0}


class Meanwhile(NamedTuple):
    """A transaction of a client at b that is prepared: its queue is at a, and the other one at c."""

    scene: Scene
    client: Client
    name: str
    #: Lets the client's node decide.
    decide: Any

    def host(self, name: str = "") -> Any:
        return self.scene.nodes["a"].broker.vhosts["/"].queues[name or self.name].host

    def change(self, how: dict[str, Any], *, changes: bool = True) -> None:
        """Set the policy, or clear it if there is none."""
        before = self.host().settings
        self.scene.propose("c", policy(**how) if how else ClearParameter("/", POLICY, "p"))
        self.scene.ticks(5)
        assert (self.host().settings != before) is changes
        assert len(self.host().parts) == 1

    def commit(self) -> None:
        self.decide()
        self.scene.wait_for(self.client)
        assert self.client.refusals == []
        self.scene.settle()

    def publish_more(self) -> bool:
        """Return whether the queue takes one message more."""
        client = self.scene.client("c")
        client.publish(self.name, 1)
        self.scene.wait(lambda: not client.unconfirmed)
        self.scene.ticks(5)
        return not client.nacked

    def ready(self, name: str = "") -> int:
        count: int = self.host(name).ready_count
        return count


def prepared(
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    settles: commands.Basic.Reject | None = None,
    *,
    published: int = PENDED,
) -> Meanwhile:
    """Begin with this policy. `settles` answers a delivery that the client had before."""
    scene = Scene()
    name, reader = f"{kind}/1", scene.client("a")
    if kind == "quorum":
        scene.place(reader, name, "abc")
    else:
        scene.declare(reader, name)
    scene.declare(reader, LETTERS)
    scene.place(reader, OTHER, "c")
    for _ in range(WAITING):
        reader.publish(name, 1)
        scene.wait(lambda: not reader.unconfirmed)
    client = scene.new_client(scene.nodes["b"], transactional=True)
    scene.settle()
    if settles is not None:
        client.get(name)
        scene.wait_for(client)
    if before:
        scene.propose("c", policy(**before))
        scene.settle()
    coordinator, asked = scene.nodes["b"].cluster.transactions, list[Any]()
    decide = coordinator.decide
    monkeypatch.setattr(coordinator, "decide", lambda *arguments: asked.append(arguments))
    for node in scene.running:
        # Nobody aborts it but the test.
        monkeypatch.setattr(node.cluster.transactions, "_decision_ms", 1 << 30)
    if published:
        client.publish(name, published)
    client.publish(OTHER, 1)
    if settles is not None:
        settles.delivery_tag = next(iter(client.unacked))
        client.send(settles)
        client.uncommitted_tags = list(client.unacked)
        client.unacked.clear()
    client.commit()
    scene.wait(lambda: bool(asked))
    scene.work_off()
    return Meanwhile(scene, client, name, lambda: scene.nodes["b"].turn.run(decide, *asked[0]))


def test_a_queue_that_refuses_by_now_keeps_its_promise(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = prepared(kind, monkeypatch, {})
    meanwhile.change(REFUSES)
    assert not meanwhile.publish_more() and meanwhile.ready() == WAITING
    meanwhile.commit()
    assert meanwhile.ready() == WAITING + PENDED
    assert not meanwhile.publish_more()


def test_a_queue_that_refuses_no_more_takes_what_it_has_promised(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = {"max_length": WAITING + PENDED, "overflow": "reject-publish"}
    meanwhile = prepared(kind, monkeypatch, room)
    # The part counts.
    assert not meanwhile.publish_more()
    meanwhile.change({})
    assert meanwhile.publish_more()
    meanwhile.commit()
    assert meanwhile.ready() == WAITING + 1 + PENDED


@pytest.mark.parametrize(("before", "after", "left"), [({}, DROPS, 1), (DROPS, {}, 1 + PENDED)])
def test_a_limit_drops_at_the_decision(
    kind: str, before: dict[str, Any], after: dict[str, Any], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile = prepared(kind, monkeypatch, before)
    meanwhile.change(after)
    assert meanwhile.ready() == 1 if before else WAITING
    meanwhile.commit()
    assert meanwhile.ready() == left


@pytest.mark.parametrize(("before", "after", "letters"), [({}, LETTERED, 1), (LETTERED, {}, 0)])
def test_the_target_of_dead_letters_is_that_at_the_decision(
    kind: str, before: dict[str, Any], after: dict[str, Any], letters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile = prepared(kind, monkeypatch, before, commands.Basic.Reject(requeue=False), published=0)
    meanwhile.change(after)
    meanwhile.commit()
    assert (meanwhile.ready(), meanwhile.host().unacked_count) == (WAITING - 1, 0)
    assert meanwhile.ready(LETTERS) == letters


@pytest.mark.parametrize(("before", "after"), [({}, NO_RETURNS), (NO_RETURNS, {})])
def test_the_delivery_limit_is_that_at_the_decision(
    kind: str, before: dict[str, Any], after: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classic queues have none: nothing changes for them."""
    meanwhile = prepared(kind, monkeypatch, before, commands.Basic.Reject(requeue=True), published=0)
    meanwhile.change(after, changes=kind == "quorum")
    meanwhile.commit()
    assert meanwhile.host().unacked_count == 0
    limited = kind == "quorum" and not before
    assert meanwhile.ready() == (WAITING - 1 if limited else WAITING)
