"""In a cluster, a transaction takes a message from one queue and puts another one into the next queue.

However far the commit has come when the client's node ends: the message is in one of the two queues.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands

from amqp_server.channel.transactions import tx
from amqp_server.channel.transactions.prepared_commit import PreparedCommit
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.transactions import Mover
from tests.amqp_server.cluster.test_moving_queues import steps
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

#: The nodes that have the first queue and the second one; the client is at b.
PLACES = {
    "both elsewhere": ("a", "c"),
    "both everywhere": ("abc", "bca"),
    "from here": ("ba", "c"),
    "to here": ("ac", "b"),
}
MOMENTS = (*range(16), 20, 25, 32, 40, 60)


def begun(
    places: tuple[str, str], *, moved: int = 1, limits: dict[str, Any] | None = None
) -> tuple[Scene, Client, list[bytes]]:
    """Return the bodies that the transaction moves: they are acked and published, and the commit is not sent
    yet.
    """
    scene = Scene()
    reader = scene.client("c")
    for name, members in zip(("quorum/1", "quorum/2"), places, strict=True):
        scene.place(reader, name, members)
    for _ in range(moved):
        scene.publish(reader, "quorum/1")
    client = scene.new_client(scene.nodes["b"], transactional=True)
    client.session.config = replace(client.session.config, **(limits or {}))
    scene.settle()
    for _ in range(moved):
        client.get("quorum/1")
        scene.wait_for(client)
    known = len(scene.messages.by_body)
    client.publish("quorum/2", moved)
    for tag in client.unacked:
        client.send(commands.Basic.Ack(delivery_tag=tag))
    client.uncommitted_tags = list(client.unacked)
    client.unacked.clear()
    return scene, client, list(scene.messages.by_body)[known:]


def left(scene: Scene, name: str, at: str = "c") -> int:
    reader = scene.client(at)
    reader.declare(name)
    scene.wait_for(reader)
    host = scene.nodes[at].broker.vhosts["/"].queues[name].host
    return host.ready_count


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_the_message_is_in_one_of_the_queues(places: tuple[str, str]) -> None:
    found: set[tuple[int, int]] = set()
    for moment in MOMENTS:
        scene, client, _ = begun(places)
        client.commit()
        scene.nodes["b"].end_turn()
        steps(scene, moment)
        scene.crash(scene.nodes["b"])
        scene.start(scene.nodes["b"])
        scene.doubt_all()
        scene.connect_all()
        scene.settle()
        found.add((left(scene, "quorum/1"), left(scene, "quorum/2")))
    # In some runs the transaction was committed, and in others it was not.
    assert found == {(1, 0), (0, 1)}


@pytest.mark.parametrize("whole", [True, False], ids=["small", "large"])
def test_a_message_that_cannot_be_published_is_not_acked(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next queue is out of reach: the commit fails, and the message is in the first queue again."""
    if not whole:
        monkeypatch.setattr(tx, "WHOLE_PARTS_MAX", 0)
    scene, client, _ = begun(("a", "c"))
    scene.crash(scene.nodes["c"])
    scene.ticks(10)
    client.commit()
    scene.wait(lambda: bool(client.refusals))
    assert client.refusals[0].startswith("RESOURCE_ERROR - no node that has queue 'quorum/2' can be reached")
    scene.start(scene.nodes["c"])
    scene.doubt_all()
    scene.connect_all()
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["small", "large"])
def test_the_firehose_has_only_what_is_committed(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(tx, "WHOLE_PARTS_MAX", 0)
    scene, client, _ = begun(("a", "c"), moved=2)
    reader = scene.client("b")
    reader.declare("classic/tap")
    scene.wait_for(reader)
    bound = commands.Queue.Bind(queue="classic/tap", exchange="amq.rabbitmq.trace", routing_key="publish.#")
    reader.ask("bind", "classic/tap", bound)
    scene.wait_for(reader)
    scene.nodes["b"].broker.vhosts["/"].tracing = True
    scene.crash(scene.nodes["c"])
    scene.ticks(10)
    client.commit()
    scene.wait(lambda: bool(client.refusals))
    scene.settle()
    assert left(scene, "classic/tap", "b") == 0
    scene.start(scene.nodes["c"])
    scene.doubt_all()
    scene.connect_all()
    scene.settle()
    again = scene.new_client(scene.nodes["b"], transactional=True)
    scene.settle()
    again.publish("quorum/2", 3)
    again.commit()
    scene.wait_for(again)
    scene.settle()
    assert again.refusals == []
    assert (left(scene, "quorum/2"), left(scene, "classic/tap", "b")) == (3, 3)


@pytest.mark.parametrize("whole", [True, False], ids=["small", "large"])
def test_many_messages_are_moved(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(tx, "WHOLE_PARTS_MAX", 0)
    scene, client, _ = begun(("a", "c"), moved=3)
    client.commit()
    scene.wait_for(client)
    assert client.refusals == []
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (0, 3)
    # The channel goes on.
    client.publish("quorum/1", 1)
    client.commit()
    scene.wait_for(client)
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 3)


def test_a_client_that_goes_in_between_changes_nothing_about_its_commit() -> None:
    """Its connection ends while the queues get their parts."""
    scene, client, _ = begun(("a", "c"))
    scene.network.blocked["c", "b"] = None
    client.commit()
    scene.nodes["b"].end_turn()
    scene.work_off()
    client.node.turn.run(client.session.lost)
    scene.network.blocked.clear()
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (0, 1)


@pytest.mark.pure
def test_a_link_that_breaks_while_parts_are_handed_out_rolls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues have their parts, and one of them is never asked whether it takes it, nor told the end."""
    scene, client, _ = begun(("a", "c"))
    handed_out, prepare = list[Any](), PreparedCommit._prepare
    monkeypatch.setattr(PreparedCommit, "_prepare", lambda self: handed_out.append(self))
    client.commit()
    scene.nodes["b"].end_turn()
    scene.work_off()
    parts: Any = scene.nodes["a"].broker.vhosts["/"].queues["quorum/1"].host.parts
    assert [part.prepared for part in parts.all()] == [False]
    for session in [each for each in scene.network.sessions if set(each.ends) == {"a", "b"}]:
        scene.network.close(session, "b")
    scene.nodes["b"].turn.run(prepare, handed_out[0])
    scene.wait(lambda: bool(client.refusals))
    assert client.refusals[0].startswith("RESOURCE_ERROR")
    # Long before a part is given up because it takes too long.
    scene.ticks(2)
    assert len(parts) == 0
    scene.doubt_all()
    scene.settle()
    assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (1, 0)


@pytest.mark.parametrize("room", [4, 5])
def test_a_queue_may_refuse_since_a_large_commit_waits_for_its_turn(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its queues are in the journal of the client's node: it needed no parts when it was sent. Each queue
    has two messages.
    """
    monkeypatch.setattr(tx, "WHOLE_PARTS_MAX", 0)
    scene = Scene()
    reader = scene.client("b")
    names = "classic/1", "classic/2"
    for name in names:
        scene.declare(reader, name)
        reader.publish(name, 2)
        scene.wait(lambda: not reader.unconfirmed)
    client = scene.new_client(scene.nodes["b"], transactional=True)
    scene.settle()
    for name in names:
        client.publish(name, 3)
    commits = scene.nodes["b"].broker.services.commits
    # Another large one is committed.
    scene.nodes["b"].turn.run(commits.hold, lambda: None)
    client.commit()
    scene.nodes["b"].end_turn()
    hosts: list[Any] = [scene.nodes["b"].broker.vhosts["/"].queues[name].host for name in names]
    for host in hosts:
        # As a policy says that comes meanwhile.
        settings = replace(host.settings, max_length=room, overflow="reject-publish")
        scene.nodes["b"].turn.run(host.configure, settings)
    scene.nodes["b"].turn.run(commits.release)
    if room == 5:
        scene.wait_for(client)
    scene.wait(lambda: not client.asked)
    scene.settle()
    taken = 3 if room == 5 else 0
    assert [left(scene, name, "b") for name in names] == [2 + taken] * 2
    assert [text.partition(", because")[0] for text in client.refusals] == (
        [] if taken else ["PRECONDITION_FAILED - partial tx completion: nothing was done"]
    )


#: The publishes are one part of the transaction, and the acks are one; a body has three bytes or more.
EDGES = {"tx_parts_max": 2, "tx_bytes_max": 0}


@pytest.mark.pure
@pytest.mark.parametrize("limit", EDGES)
def test_as_much_as_is_permitted_is_moved_between_other_nodes(limit: str) -> None:
    """And of one more nothing."""
    edge = EDGES[limit]
    if not edge:
        _, client, _ = begun(("a", "c"), moved=2)
        transaction = client.session.channels[client.channel].tx
        assert transaction is not None
        edge = transaction.published_bytes
    for most, moved in ((edge, 2), (edge - 1, 0)):
        scene, client, _ = begun(("a", "c"), moved=2, limits={limit: most})
        scene.work_off()
        if not client.refusals:
            client.commit()
            scene.wait_for(client)
        scene.settle()
        assert [f"({limit})" in text for text in client.refusals] == ([] if moved else [True])
        assert (left(scene, "quorum/1"), left(scene, "quorum/2")) == (2 - moved, moved)


def counted(scene: Scene) -> dict[str, tuple[int, ...]]:
    """By node: messages published, in all and to the exchange and the full queue, and those acked."""
    found: dict[str, tuple[int, ...]] = {}
    for node in scene.running:
        counts, vhost = node.broker.counts, node.broker.vhost("/")
        exchange = vhost.router.get("")
        assert exchange is not None
        of_channels = [
            channel.counted() for client in node.clients for channel in client.session.channels.values()
        ]
        every = [counts.ended.traffic, *of_channels]
        found[node.name] = (
            sum(traffic.publish for traffic in every),
            exchange.published_in,
            vhost.queues["tight"].published,
            sum(traffic.ack for traffic in every),
        )
    return found


def test_a_transaction_that_is_refused_counts_once_at_the_node_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As what is answered with a nack: its messages were published, and nothing was acked. The queue that
    refuses them is led by another node, and has a member on a third one.
    """
    monkeypatch.setattr(Client, "kinds", Mover.kinds)
    scene = Scene()
    reader = scene.client("c")
    scene.place(reader, "quorum/1", "a")
    scene.place(reader, "tight", "ca")
    scene.publish(reader, "quorum/1")
    while left(scene, "tight") < 4:
        scene.publish(reader, "tight")
    client = scene.new_client(scene.nodes["b"], transactional=True)
    scene.settle()
    client.get("quorum/1")
    scene.wait_for(client)
    before = counted(scene)
    client.publish("tight", 3)
    for tag in client.unacked:
        client.send(commands.Basic.Ack(delivery_tag=tag))
    client.uncommitted_tags = list(client.unacked)
    client.unacked.clear()
    client.commit()
    scene.wait(lambda: bool(client.refusals))
    assert "nothing was done, because queue 'tight' is full" in client.refusals[0]
    scene.settle()
    after = counted(scene)
    assert {name: after[name] for name in "ac"} == {name: before[name] for name in "ac"}
    assert after["b"] == (3, 3, 3, 0) and before["b"] == (0, 0, 0, 0)
