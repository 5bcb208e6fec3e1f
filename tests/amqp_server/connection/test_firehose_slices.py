"""Copies for the firehose take many times longer than the messages: the node makes them in parts, in order,
and neither publishers nor consumers run ahead of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from amqp_server.broker.in_parts.firehose import Firehose
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.connection.test_slices import (
    TURN_MAX,
    SlicedNode,
    bystander,
    called,
    message,
    method,
    opened,
)

COUNT = 2_000
#: Instructions of the longest turn: the node makes some copies between two looks at the clock. All copies
#: would take ten times as many.
COPIES_MAX = 10 * TURN_MAX


@pytest.fixture
def sliced() -> SlicedNode:
    node = SlicedNode()
    node.broker.vhost("/").tracing = True
    return node


def traced(sliced: SlicedNode) -> Peer:
    """Return a client that has declared a queue, and another queue for the copies."""
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"), commands.Queue.Declare(queue="copies"))
    called(peer, commands.Queue.Bind(queue="copies", exchange="amq.rabbitmq.trace", routing_key="#"))
    return peer


def bodies(sliced: SlicedNode, name: str) -> list[bytes]:
    """Return the bodies in a queue."""
    reader = opened(sliced)
    reader.send(method(1, commands.Basic.Consume(queue=name, no_ack=True)))
    sliced.drive()
    return [each.body for _, each in reader.answers() if isinstance(each, Delivery)]


def numbered(exchange: str = "", routing_key: str = "q") -> tuple[bytes, list[bytes]]:
    wanted = [b"%d" % number for number in range(COUNT)]
    return b"".join([message(exchange, routing_key, body) for body in wanted]), wanted


def test_copies_of_one_read_are_made_in_parts(sliced: SlicedNode) -> None:
    peer, see = traced(sliced), bystander(sliced)
    data, wanted = numbered()
    sliced.turns.clear()
    sliced.feed(peer, data)
    assert sliced.drive(between=see) > 10
    assert max(sliced.turns) < COPIES_MAX
    sliced.broker.vhost("/").tracing = False
    copied = [body for body in bodies(sliced, "copies") if body != b"hello"]
    assert copied == wanted == bodies(sliced, "q")


def test_a_publisher_is_not_read_before_its_copies_are_made(sliced: SlicedNode) -> None:
    peer = traced(sliced)
    data, _ = numbered()
    peer.send(data)
    assert peer.session.unfinished
    sliced.drive()
    assert not peer.session.unfinished


def test_a_transaction_is_copied_in_parts(sliced: SlicedNode) -> None:
    peer, see = traced(sliced), bystander(sliced)
    data, wanted = numbered()
    called(peer, commands.Tx.Select())
    peer.send(data)
    sliced.drive()
    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Tx.Commit()))
    assert sliced.drive(between=see) > 10
    assert max(sliced.turns) < COPIES_MAX
    sliced.broker.vhost("/").tracing = False
    assert [body for body in bodies(sliced, "copies") if body != b"hello"] == wanted


def test_copies_of_what_a_client_gets_are_made_in_parts(sliced: SlicedNode) -> None:
    peer = traced(sliced)
    sliced.broker.vhost("/").tracing = False
    data, wanted = numbered()
    peer.send(data)
    sliced.drive()
    sliced.broker.vhost("/").tracing = True
    getter = opened(sliced)
    see = bystander(sliced)
    sliced.turns.clear()
    sliced.feed(getter, method(1, commands.Basic.Consume(queue="q", no_ack=True)))
    # The consumer gets no more messages before those are copied.
    assert getter.session.paused
    assert sliced.drive(between=see) > 10
    assert not getter.session.paused
    assert max(sliced.turns) < COPIES_MAX
    sliced.broker.vhost("/").tracing = False
    assert [each.body for _, each in getter.answers() if isinstance(each, Delivery)] == wanted
    assert [body for body in bodies(sliced, "copies") if body != b"hello"] == wanted


def test_the_queue_of_copies_goes_while_they_wait(sliced: SlicedNode) -> None:
    peer, other = traced(sliced), opened(sliced)
    data, wanted = numbered()
    peer.send(data)
    assert sliced.turn.behind
    other.send(method(1, commands.Queue.Delete(queue="copies")))
    sliced.drive()
    sliced.broker.vhost("/").tracing = False
    assert bodies(sliced, "q") == wanted


def test_a_connection_whose_copies_cannot_be_made_goes_on() -> None:
    log: list[str] = []

    class Connection:
        def __init__(self, name: str) -> None:
            self._name = name

        def copies_wait(self) -> None:
            log.append(f"{self._name} waits")

        def copied(self) -> None:
            log.append(f"{self._name} goes on")

    def copies() -> Iterator[None]:
        yield
        raise RuntimeError("for the test")

    node = SlicedNode()
    turn = node.turn
    firehose = Firehose(turn)
    for name in ("a", "b"):
        made = copies()
        # The turn has time for no copy.
        turn.ends = 0.0
        firehose.copy(Connection(name), made)
    assert log == ["a waits", "b waits"]
    node.drive()
    assert sorted(log[2:]) == ["a goes on", "b goes on"]
