"""Partitions of a super stream are made ready in parts, and appear all at once, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.declared.operations import DeleteVhost, PutVhost
from amqp_server.broker.declared.vhosts import VhostRecord
from amqp_server.broker.topology import partitions
from amqp_server.broker.topology.super_streams import growth
from quorum_queue.steps import in_steps
from tests.amqp_server.broker.test_host_parts import Hurried
from tests.amqp_server.broker.test_policies import put
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode
from tests.amqp_server.streams.node import declare as declare_stream
from tests.amqp_server.streams.test_super_streams import declare, delete, opened, publish, read, refused

pytestmark = pytest.mark.pure
PARTITIONS = 5


class Slow:
    """Turns that have time for one partition each: the work goes on when the test says so."""

    def __init__(self, node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hurried = Hurried(node.turn)
        self.made: list[str] = []
        made = partitions.Partitions._made

        def counted(self_: partitions.Partitions, place: int) -> partitions.Partition:
            found = made(self_, place)
            self.made.append(found.queue.name)
            return found

        def begin(turn: object, *rest: Any) -> None:
            in_steps(self, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(partitions.Partitions, "_made", counted)
        monkeypatch.setattr("amqp_server.broker.topology.topology.in_steps", begin)
        self._node = node

    def overdue(self) -> bool:
        return True

    def later(self, unit: Any, call: Any) -> None:
        self.hurried.later(unit, call)

    def turn(self) -> list[str]:
        """Run one more turn. Return the partitions that it made ready."""
        before = len(self.made)
        self._node.turn.run(self.hurried.go_on)
        self._node.work()
        return self.made[before:]

    def end(self) -> None:
        while self.hurried.left:
            self.turn()


@pytest.fixture
def node() -> StreamNode:
    return StreamNode(super_stream_partitions_max=PARTITIONS)


@pytest.fixture
def slow(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(node, monkeypatch)


def queues(node: StreamNode) -> list[str]:
    return [queue.name for queue in node.broker.all_queues()]


def answers(peer: Peer) -> list[tuple[int, Any]]:
    peer.collect()
    return peer.answers()


def test_a_turn_makes_one_ready_and_nobody_sees_it(node: StreamNode, slow: Slow) -> None:
    one = opened(node)
    assert declare(one, partitions=PARTITIONS) == [] and slow.made == ["s-0"]
    while len(slow.made) < PARTITIONS:
        assert queues(node) == [] and answers(one) == []
        assert node.broker.vhost("/").router.get("s") is None and not node.broker.counts.bindings
        passive = commands.Queue.Declare(queue="s-0", passive=True)
        assert "no queue 's-0'" in refused(opened(node).call(1, passive), 404)
        assert len(slow.turn()) == 1
    assert queues(node) == [] and slow.turn() == []
    assert queues(node) == [f"s-{number}" for number in range(PARTITIONS)]
    ((_, answer),) = answers(one)
    assert isinstance(answer, commands.Exchange.DeclareOk)
    publish(one, *[(f"key {number}", b"%d" % number) for number in range(20)])
    found = [body for number in range(PARTITIONS) for body in read(node, f"s-{number}")]
    assert sorted(found) == sorted(b"%d" % number for number in range(20))


def test_its_records_are_those_of_queues_and_bindings(node: StreamNode, slow: Slow) -> None:
    """So a restart finds all of the super stream, and a deletion finds its records."""
    declare(opened(node), partitions=PARTITIONS)
    slow.end()
    stored = {name: dict(node.environment.items(name)) for name in ("queues", "bindings", "exchanges")}
    assert [len(stored[name]) for name in ("queues", "bindings", "exchanges")] == [PARTITIONS, PARTITIONS, 1]
    vhost = node.broker.vhost("/")
    assert set(stored["bindings"]) == {record.key for record in vhost.binding_records()}
    node.restart()
    assert sorted(queues(node)) == [f"s-{number}" for number in range(PARTITIONS)]
    delete(opened(node))
    node.work()
    assert not any(dict(node.environment.items(name)) for name in stored)


def test_a_node_that_ends_in_between_has_nothing_of_it(node: StreamNode, slow: Slow) -> None:
    declare(opened(node), partitions=PARTITIONS)
    slow.turn()
    node.restart()
    assert queues(node) == [] and node.broker.vhost("/").router.get("s") is None


def test_a_queue_takes_the_name_of_a_partition_meanwhile(node: StreamNode, slow: Slow) -> None:
    one, other = opened(node), opened(node)
    declare(one, partitions=PARTITIONS)
    declare_stream(other, "s-3")
    slow.end()
    assert "queue 's-3' in vhost '/' exists already" in refused(answers(one))
    assert queues(node) == ["s-3"] and node.broker.vhost("/").router.get("s") is None


def test_two_declare_it_at_the_same_time(node: StreamNode, slow: Slow) -> None:
    one, other = opened(node), opened(node)
    declare(one, partitions=3)
    declare(other, partitions=3)
    slow.end()
    for peer in (one, other):
        ((_, answer),) = answers(peer)
        assert isinstance(answer, commands.Exchange.DeclareOk)
    assert queues(node) == ["s-0", "s-1", "s-2"] and node.broker.counts.bindings == 3


def test_the_client_goes_meanwhile(node: StreamNode, slow: Slow) -> None:
    peer = opened(node)
    declare(peer, partitions=3)
    node.turn.run(peer.session.lost)
    slow.end()
    assert queues(node) == ["s-0", "s-1", "s-2"]


@pytest.mark.parametrize("again", [False, True])
def test_the_vhost_goes_meanwhile(node: StreamNode, slow: Slow, again: bool) -> None:
    declare(opened(node), partitions=3)
    node.turn.run(node.broker.propose, DeleteVhost("/"))
    if again:
        node.turn.run(node.broker.propose, PutVhost(VhostRecord("/")))
    slow.end()
    assert queues(node) == (["s-0", "s-1", "s-2"] if again else [])
    assert all(queue.vhost is node.broker.vhost("/") for queue in node.broker.all_queues())


def test_a_policy_comes_meanwhile(node: StreamNode, slow: Slow) -> None:
    declare(opened(node), partitions=3)
    put(node.broker, "p", {"max-age": "2h"})
    slow.end()
    assert {queue.effective.max_age_ms for queue in node.broker.all_queues()} == {7_200_000}


def test_more_partitions_come_in_parts(node: StreamNode, slow: Slow) -> None:
    declare(opened(node), partitions=2)
    slow.end()
    slow.made.clear()
    node.turn.run(node.broker.propose, growth(node.broker.vhost("/"), "s", 2))
    assert slow.made == ["s-2"] and queues(node) == ["s-0", "s-1"]
    slow.end()
    assert queues(node) == ["s-0", "s-1", "s-2", "s-3"]
