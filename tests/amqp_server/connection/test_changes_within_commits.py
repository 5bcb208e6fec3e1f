"""Settings of queues change while large transactions are committed: each counts for all of a transaction, or
for nothing of it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pamqp import commands, encode

from amqp_server.broker.declared.operations import Operation, PauseQueue, PutParameter
from amqp_server.broker.declared.parameters import POLICY, ParameterRecord
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.connection.test_large_transactions import COUNT, begun, bodies, consumer
from tests.amqp_server.connection.test_slices import SlicedNode, called, depths, message, method, opened
from tests.amqp_server.wire.published import message as published

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


def without_source(sliced: SlicedNode) -> None:
    other = opened(sliced)
    other.send(method(1, commands.Queue.Delete(queue="source")))


def without_permission(sliced: SlicedNode) -> None:
    sliced.broker.access.permissions.set("guest", "/", ".*", ".*", "^$")
    for peer in list(sliced.peers):
        for channel in peer.session.channels.values():
            sliced.turn.run(channel.check_consumers)


@pytest.mark.parametrize("change_it", [without_source, without_permission])
def test_acks_are_whole_whatever_becomes_of_their_consumer(change_it: Any) -> None:
    for after in range(0, 1_000, 25):
        sliced = SlicedNode(looks=1)
        other, peer = opened(sliced), opened(sliced)
        for name in ("source", "a"):
            called(other, commands.Queue.Declare(queue=name, durable=True))
        other.send(message("", "source", persistent=True) * 2 * COUNT)
        called(peer, commands.Basic.Consume(queue="source"), commands.Tx.Select())
        acks = [method(1, commands.Basic.Ack(tag)) for tag in range(1, 2 * COUNT, 2)]
        peer.send(message("", "a", persistent=True) + b"".join(acks))
        sliced.drive()
        peer.answers()
        peer.send(method(1, commands.Tx.Commit()))
        for _ in range(after):
            sliced.turn.run(sliced.turn.catch_up)
        over = not sliced.turn.behind
        change_it(sliced)
        finish(sliced)
        [said] = [
            each for _, each in peer.answers() if not isinstance(each, commands.Basic.Cancel | Delivery)
        ]
        assert isinstance(said, commands.Tx.CommitOk), said
        assert depths(sliced)["a"] == 1
        source = sliced.broker.vhost("/").queues.get("source")
        if source is not None:
            assert source.host.unacked_count == COUNT
        if over:
            break
    assert over and after


def as_billing(epoch: int, queue: str, body: bytes, *, persistent: bool = True) -> bytes:
    headers = encode.field_table({"x-producer": "billing", "x-producer-epoch": epoch})
    properties: dict[str, Any] = {"headers": headers} | ({"delivery_mode": b"\2"} if persistent else {})
    return published("", queue, body, **properties).encode(1)


def fill(peer: Peer, body: bytes, count: int, *, persistent: bool) -> None:
    """Publish to "a" and "b" in turn, each message a part by itself."""
    for _ in range(count):
        for queue in ("a", "b"):
            peer.send(message("", queue, body, persistent=persistent))
    assert isinstance(peer.node, SlicedNode)
    peer.node.drive()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_later_start_of_its_producer_comes_behind_all_of_it(persistent: bool) -> None:
    """When the new start has its answer, the old one's transaction is there as a whole, or never comes."""
    found: set[type] = set()
    for after in range(0, 1_000, 20):
        sliced = SlicedNode()
        other, old, new = opened(sliced), opened(sliced), opened(sliced)
        for name in ("a", "b"):
            called(other, commands.Queue.Declare(queue=name, durable=True))
        for peer in (old, new):
            called(peer, commands.Tx.Select())
        old.send(as_billing(1, "a", b"old", persistent=persistent))
        fill(old, b"old", COUNT, persistent=persistent)
        old.answers()
        old.send(method(1, commands.Tx.Commit()))
        for _ in range(after):
            sliced.turn.run(sliced.turn.catch_up)
        over = not sliced.turn.behind
        new.send(as_billing(2, "a", b"new", persistent=persistent))
        for queue in ("b", "a"):
            new.send(message("", queue, b"new", persistent=persistent))
        new.send(method(1, commands.Tx.Commit()))
        known: list[Any] = []
        while not known:
            if sliced.turn.behind:
                sliced.turn.run(sliced.turn.catch_up)
            else:
                sliced.sync()
            new.collect()
            known = new.answers()
        assert isinstance(known[0][1], commands.Tx.CommitOk)
        watcher = consumer(sliced, "a")
        seen = bodies(watcher)
        finish(sliced)
        assert bodies(watcher) == [], after
        old.collect()
        said = answer(old)
        found.add(type(said))
        committed = isinstance(said, commands.Tx.CommitOk)
        assert seen.count(b"old") == (COUNT + 1 if committed else 0)
        assert seen == sorted(seen, reverse=True), "the new start's messages come behind"
        if over:
            break
    assert over and after and commands.Tx.CommitOk in found
