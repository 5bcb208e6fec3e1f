"""Settings of queues change while large transactions are committed: each counts for all of a transaction, or
for nothing of it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pamqp import commands

from amqp_server.broker.declared.operations import Operation, PauseQueue, PutParameter
from amqp_server.broker.declared.parameters import POLICY, ParameterRecord
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.connection.test_large_transactions import COUNT, begun, bodies, consumer
from tests.amqp_server.connection.test_slices import SlicedNode, called, depths, message, method, opened

#: Turns after which a part of the transaction is in its queues.
TURNS = 5


def change(sliced: SlicedNode, operation: Operation) -> None:
    sliced.turn.run(sliced.broker.propose, operation, lambda result: None)


def policy(**definition: Any) -> PutParameter:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    value = {"pattern": "^(a|last)$", "apply-to": "all", "priority": 0, "definition": named}
    return PutParameter(ParameterRecord("/", POLICY, "p", msgspec.json.encode(value).decode()))


def paused(sliced: SlicedNode, queue: str) -> PauseQueue:
    return PauseQueue("/", queue, sliced.broker.vhost("/").queues[queue].queue_id, publishes=True)


def turns(sliced: SlicedNode, count: int = TURNS) -> None:
    for _ in range(count):
        sliced.turn.run(sliced.turn.catch_up)
    assert sliced.turn.behind


def finish(sliced: SlicedNode) -> None:
    for _ in range(3):
        sliced.drive()
        sliced.sync()


def answer(peer: Peer) -> Any:
    [(_, found)] = peer.answers()
    return found


def publish_later(sliced: SlicedNode, queue: str) -> Any:
    """Return the answer to one message more."""
    peer = opened(sliced)
    called(peer, commands.Confirm.Select())
    peer.answers()
    peer.send(message("", queue, b"later", persistent=True))
    finish(sliced)
    return answer(peer)


@pytest.mark.parametrize("queue", ["a", "last"])
@pytest.mark.parametrize("how", ["a policy", "a pause"])
def test_a_queue_that_refuses_from_the_middle_on_takes_all_of_it(how: str, queue: str) -> None:
    """Whether it has a part of the transaction already, or has none yet."""
    sliced = SlicedNode()
    publisher = begun(sliced)
    publisher.send(method(1, commands.Tx.Commit()))
    turns(sliced)
    assert 0 < depths(sliced)["a"] < COUNT and not depths(sliced)["last"]
    refusing = policy(max_length=1, overflow="reject-publish")
    change(sliced, refusing if how == "a policy" else paused(sliced, queue))
    finish(sliced)
    assert isinstance(answer(publisher), commands.Tx.CommitOk)
    assert depths(sliced) == {"a": COUNT, "b": COUNT, "last": 1}
    # From now on it refuses.
    assert isinstance(publish_later(sliced, queue), commands.Basic.Nack)


def test_a_limit_that_comes_in_the_middle_drops_the_oldest_of_all() -> None:
    sliced = SlicedNode()
    publisher = begun(sliced)
    publisher.send(method(1, commands.Tx.Commit()))
    turns(sliced)
    change(sliced, policy(max_length=10))
    finish(sliced)
    assert isinstance(answer(publisher), commands.Tx.CommitOk)
    assert bodies(consumer(sliced, "a")) == [b"%d" % number for number in range(COUNT - 10, COUNT)]


def test_a_record_that_is_turned_on_in_the_middle_knows_nothing_of_it() -> None:
    """It begins behind the transaction: it does not say that it would know all of it."""
    sliced = SlicedNode()
    publisher = begun(sliced)
    publisher.send(method(1, commands.Tx.Commit()))
    turns(sliced)
    host: Any = sliced.broker.vhost("/").queues["a"].host
    change(sliced, policy(message_status=True))
    finish(sliced)
    assert isinstance(answer(publisher), commands.Tx.CommitOk)
    assert host.machine.record.count == 0 and host.machine.record.since_ms >= host.machine.arrivals.times[-1]


@pytest.mark.parametrize("waiting", ["messages", "acks"])
def test_a_pause_while_a_commit_waits_for_its_turn_refuses_all_of_it(waiting: str) -> None:
    """One large transaction is committed at a time."""
    sliced = SlicedNode()
    first = begun(sliced)
    second = opened(sliced)
    called(second, commands.Queue.Declare(queue="source", durable=True))
    second.send(message("", "source", b"work", persistent=True))
    called(second, commands.Basic.Get(queue="source"), commands.Tx.Select())
    for _ in range(COUNT):
        second.send(message("", "a", b"of the second") + message("", "b", b"of the second"))
        sliced.drive()
    if waiting == "acks":
        second.send(method(1, commands.Basic.Ack(1)))
    second.answers()
    first.send(method(1, commands.Tx.Commit()))
    turns(sliced)
    second.send(method(1, commands.Tx.Commit()))
    change(sliced, paused(sliced, "b"))
    finish(sliced)
    assert isinstance(answer(first), commands.Tx.CommitOk)
    closed = answer(second)
    assert isinstance(closed, commands.Channel.Close) and closed.reply_code == 406
    assert closed.reply_text == (
        "PRECONDITION_FAILED - partial tx completion: nothing was done, because publishes to queue 'b' are "
        "paused"
    )
    assert depths(sliced) == {"a": COUNT, "b": COUNT, "last": 1, "source": 1}
    # Others are not held up.
    third = opened(sliced)
    called(third, commands.Tx.Select())
    third.send(message("", "a", b"after") * 300 + method(1, commands.Tx.Commit()))
    finish(sliced)
    assert isinstance(third.answers()[-1][1], commands.Tx.CommitOk)
    assert depths(sliced)["a"] == COUNT + 300
