"""A delivery that is never acked closes its channel, and goes to other consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.declared.operations import PutParameter
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.channel.subscription import Getter
from amqp_server.channel.unacked import Unacked
from amqp_server.connection import ack_timeout
from amqp_server.connection.ack_timeout import AckTimeout
from quorum_queue.local_host import LocalHost
from quorum_queue.machine.machine import Machine

from ..wire.published import message
from .node import Delivery, MemoryNode, Peer

TIMEOUT_MS = 10_000
LOOK_MS = TIMEOUT_MS // ack_timeout.LOOKS


class Watched:
    def __init__(self, **options: Any) -> None:
        self.node = MemoryNode(**({"consumer_timeout_ms": TIMEOUT_MS} | options))
        self.watch = AckTimeout(self.node.broker)

    def peer(self, **queue: Any) -> Peer:
        peer = self.node.peer()
        peer.call(1, commands.Channel.Open())
        peer.call(1, commands.Queue.Declare(queue="q", **queue))
        peer.answers()
        return peer

    def publish(self, peer: Peer, count: int) -> None:
        for _ in range(count):
            peer.send(b"".join(message("", "q", b"body").frames(1)))

    def passes(self, ms: int) -> None:
        """Let time pass in steps that are shorter than those of the watch."""
        node, end = self.node, self.node.clock.now_ms + ms
        while node.clock.now_ms < end:
            node.clock.now_ms = min(end, node.clock.now_ms + LOOK_MS // 2)
            node.turn.run(node.broker.timers.run, node.clock.now_ms)
            while node.turn.behind:
                node.turn.run(node.turn.catch_up)
        for peer in node.peers:
            peer.collect()

    def policy(self, definition: dict[str, Any]) -> None:
        broker = self.node.broker
        record = broker.runtime.policies.prepare(
            "/", "p", pattern="", definition=definition, priority=0, apply_to="queues", operator=False
        )
        broker.propose(PutParameter(record))
        self.node.sync()

    @property
    def machine(self) -> Machine:
        host = self.node.broker.vhost("/").queues["q"].host
        assert isinstance(host, LocalHost)
        return host.machine

    @property
    def ready(self) -> int:
        return self.node.broker.vhost("/").queues["q"].host.ready_count


def cancelled(peer: Peer) -> list[str | None]:
    """Return the consumers that the broker has cancelled."""
    return [each.consumer_tag for _, each in peer.answers() if isinstance(each, commands.Basic.Cancel)]


def closed(peer: Peer) -> commands.Channel.Close | None:
    return next((each for _, each in peer.answers() if isinstance(each, commands.Channel.Close)), None)


@pytest.mark.parametrize("way", ["consume", "get"])
def test_a_channel_that_does_not_ack_is_closed_and_its_messages_go_back(way: str) -> None:
    watched = Watched()
    peer = watched.peer()
    watched.publish(peer, 2)
    if way == "consume":
        peer.call(1, commands.Basic.Consume(queue="q"))
    else:
        peer.call(1, commands.Basic.Get(queue="q"))
    peer.answers()
    watched.passes(TIMEOUT_MS - LOOK_MS)
    assert closed(peer) is None
    watched.passes(3 * LOOK_MS)
    said = closed(peer)
    assert said is not None and (said.reply_code, said.class_id, said.method_id) == (406, 0, 0)
    assert said.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 10000 ms."
    )
    assert watched.ready == 2
    # The connection goes on, and the age of its own deliveries decides about another channel.
    peer.call(1, commands.Channel.CloseOk())
    peer.call(2, commands.Channel.Open())
    peer.call(2, commands.Basic.Get(queue="q"))
    peer.answers()
    watched.passes(TIMEOUT_MS - LOOK_MS)
    assert closed(peer) is None


def test_only_the_age_of_what_is_unacked_counts() -> None:
    """A busy channel that always has something unacked is not closed."""
    watched = Watched()
    peer = watched.peer()
    peer.call(1, commands.Basic.Qos(prefetch_count=2))
    peer.call(1, commands.Basic.Consume(queue="q"))
    watched.publish(peer, 2)
    for tag in range(1, 40):
        watched.passes(TIMEOUT_MS // 3)
        watched.publish(peer, 1)
        peer.call(1, commands.Basic.Ack(tag))
    assert closed(peer) is None
    # The other one of the last two is acked, and the older one is not.
    peer.call(1, commands.Basic.Ack(41))
    watched.passes(TIMEOUT_MS + 2 * LOOK_MS)
    assert closed(peer) is not None


@pytest.mark.parametrize(
    ("options", "no_ack"), [({"consumer_timeout_ms": 0}, False), ({}, True)], ids=["off", "no ack"]
)
def test_channels_that_stay(options: dict[str, Any], no_ack: bool) -> None:
    watched = Watched(**options)
    peer = watched.peer()
    peer.call(1, commands.Basic.Consume(queue="q", no_ack=no_ack))
    watched.publish(peer, 2)
    watched.passes(3 * TIMEOUT_MS)
    assert closed(peer) is None
    assert watched.ready == 0


def test_acks_of_an_open_transaction_are_acks() -> None:
    watched = Watched()
    peer = watched.peer()
    watched.publish(peer, 1)
    peer.call(1, commands.Tx.Select())
    peer.call(1, commands.Basic.Get(queue="q"))
    peer.call(1, commands.Basic.Ack(1))
    watched.passes(3 * TIMEOUT_MS)
    assert closed(peer) is None


def test_deliveries_of_groups_have_a_timeout_of_their_own() -> None:
    unacked = Unacked()
    unacked.add(1, 3, "group", 0)
    unacked.add(4, 2, "queue", 0)
    unacked.add(6, 2, "group", 3)
    assert unacked.first_tags() == {"group": 1, "queue": 4}
    unacked.take(1, 4, strict=True)
    assert unacked.first_tags() == {"queue": 5, "group": 6}
    channel: Any = SimpleNamespace()
    group: Any = SimpleNamespace(type=QUEUE_TYPES["stream-group"], counted=lambda: None)
    channel.connection = SimpleNamespace(number=1)
    channel.number = 1
    assert Getter(channel, group, no_ack=False).timeout_ms == 0


QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


@pytest.mark.parametrize("where", ["consumer", "queue", "policy", "node"])
def test_a_consumer_that_does_not_ack_is_cancelled_and_its_messages_go_back(where: str) -> None:
    watched = Watched(**({} if where == "node" else {"consumer_timeout_ms": 0}))
    given: dict[str, Any] = {"x-consumer-timeout": TIMEOUT_MS}
    arguments = QUORUM | (given if where == "queue" else {})
    peer = watched.peer(durable=True, arguments=arguments)
    if where == "policy":
        watched.policy({"consumer-timeout": TIMEOUT_MS})
    watched.publish(peer, 3)
    peer.call(1, commands.Basic.Qos(prefetch_count=2))
    begun = peer.call(1, commands.Basic.Consume(queue="q", arguments=given if where == "consumer" else {}))
    tags = [each.consumer_tag for _, each in begun if isinstance(each, commands.Basic.ConsumeOk)]
    # A look may come a minute late if nobody has said that there is a timeout.
    late = 60_000 if where == "policy" else 0
    watched.passes(TIMEOUT_MS - 2 * LOOK_MS)
    assert not peer.answers()
    watched.passes(late + 4 * LOOK_MS)
    said = [each for _, each in peer.answers()]
    assert len(said) == 1
    assert [each.consumer_tag for each in said if isinstance(each, commands.Basic.Cancel)] == tags
    assert watched.ready == 3
    # That is no failure of a delivery, and late acks do no harm.
    peer.call(1, commands.Basic.Ack(1))
    got = [each for _, each in peer.call(1, commands.Basic.Get(queue="q")) if isinstance(each, Delivery)]
    assert len(got) == 1
    runs = [*watched.machine.ready.runs()]
    assert [(run.attempts, run.acquired) for run in runs] == [(0, 1), (0, 0)]
    watched.passes(late + 2 * TIMEOUT_MS if where != "node" else TIMEOUT_MS // 2)
    assert closed(peer) is None


def test_the_timeout_of_a_consumer_counts_before_that_of_its_queue() -> None:
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer(durable=True, arguments=QUORUM | {"x-consumer-timeout": TIMEOUT_MS})
    peer.call(1, commands.Basic.Consume(queue="q", arguments={"x-consumer-timeout": 4 * TIMEOUT_MS}))
    watched.publish(peer, 1)
    peer.answers()
    watched.passes(3 * TIMEOUT_MS)
    assert watched.ready == 0
    watched.passes(2 * TIMEOUT_MS)
    assert watched.ready == 1


def test_only_the_consumer_that_is_late_is_cancelled() -> None:
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer()
    peer.call(1, commands.Basic.Qos(prefetch_count=1))
    late: dict[str, Any] = {"x-consumer-timeout": TIMEOUT_MS}
    for tag, arguments in (("late", late), ("patient", {})):
        peer.call(1, commands.Basic.Consume(queue="q", consumer_tag=tag, arguments=arguments))
    watched.publish(peer, 3)
    peer.answers()
    watched.passes(2 * TIMEOUT_MS)
    assert cancelled(peer) == ["late"]
    assert watched.ready == 2


def test_a_consumer_that_its_client_has_cancelled_gives_back_in_time() -> None:
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer(arguments={"x-consumer-timeout": TIMEOUT_MS})
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    watched.publish(peer, 2)
    peer.call(1, commands.Basic.Cancel("c"))
    peer.answers()
    watched.passes(TIMEOUT_MS - LOOK_MS)
    assert watched.ready == 0
    watched.passes(3 * LOOK_MS)
    assert watched.ready == 2
    # The client knows that the consumer is gone. The next consumer has the same time.
    assert peer.answers() == []
    watched.passes(2 * TIMEOUT_MS)
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    watched.passes(TIMEOUT_MS + 2 * LOOK_MS)
    assert watched.ready == 2


@pytest.mark.pure
@pytest.mark.parametrize("then", ["waits", "consumes again", "closes"])
def test_the_client_hears_when_the_node_of_the_queue_knows_it(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    peer = watched.peer(arguments={"x-consumer-timeout": TIMEOUT_MS})
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    watched.publish(peer, 1)
    known: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(LocalHost, "barrier", lambda self, done: known.append(done))
        watched.passes(2 * TIMEOUT_MS)
    assert cancelled(peer) == []
    if then == "consumes again":
        peer.call(1, commands.Basic.Cancel("c"))
        peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    elif then == "closes":
        peer.call(1, commands.Channel.Close(200, "", 0, 0))
    peer.answers()
    [tell] = known
    watched.node.turn.run(tell)
    peer.collect()
    assert cancelled(peer) == (["c"] if then == "waits" else [])


def test_a_client_that_cannot_hear_of_it_loses_its_channel() -> None:
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer()
    peer.session.client.capabilities = {}
    peer.call(1, commands.Basic.Consume(queue="q", arguments={"x-consumer-timeout": TIMEOUT_MS}))
    watched.publish(peer, 1)
    peer.answers()
    watched.passes(2 * TIMEOUT_MS)
    said = closed(peer)
    assert said is not None and said.reply_code == 406
    assert watched.ready == 1


@pytest.mark.parametrize("value", [0, -1, "a", 1 << 40])
def test_a_timeout_that_is_none_is_refused(value: Any) -> None:
    watched = Watched()
    peer = watched.peer()
    answers = peer.call(1, commands.Basic.Consume(queue="q", arguments={"x-consumer-timeout": value}))
    (said,) = (each for _, each in answers if isinstance(each, commands.Channel.Close))
    assert said.reply_code == 406
    assert "x-consumer-timeout" in said.reply_text


def test_many_connections_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_timeout, "SESSIONS_AT_ONCE", 3)
    watched = Watched()
    first = watched.peer()
    peers = [first]
    for _ in range(9):
        peer = watched.node.peer()
        peer.call(1, commands.Channel.Open())
        peers.append(peer)
    watched.publish(first, len(peers))
    for peer in peers:
        peer.call(1, commands.Basic.Get(queue="q"))
        peer.answers()
    watched.passes(TIMEOUT_MS + 8 * LOOK_MS)
    assert all(closed(peer) for peer in peers)
    assert watched.ready == len(peers)
    # Nothing is kept for channels that are gone.
    watched.passes(8 * LOOK_MS)
    assert not watched.watch._noted and not watched.watch._before


@pytest.mark.parametrize("arguments", [{}, QUORUM, QUORUM | {"x-single-active-consumer": True}])
def test_a_transaction_that_acks_what_has_gone_back_does_nothing(arguments: dict[str, Any]) -> None:
    """Another consumer gets the message, and would publish its result again."""
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer(durable=True, arguments=arguments | {"x-consumer-timeout": TIMEOUT_MS})
    peer.call(1, commands.Queue.Declare(queue="results"))
    peer.call(1, commands.Basic.Consume(queue="q"))
    watched.publish(peer, 2)
    peer.call(1, commands.Tx.Select())
    peer.send(b"".join(message("", "results", b"of the first").frames(1)))
    peer.call(1, commands.Basic.Ack(1))
    watched.passes(2 * TIMEOUT_MS)
    peer.answers()
    assert watched.ready == 2
    (said,) = [each for _, each in peer.call(1, commands.Tx.Commit())]
    assert isinstance(said, commands.Channel.Close) and said.reply_code == 406
    assert "nothing was done, because messages of queue 'q' that it acks have gone back" in said.reply_text
    assert watched.node.broker.vhost("/").queues["results"].host.ready_count == 0
    assert watched.ready == 2


def test_a_transaction_acks_deliveries_of_a_consumer_that_was_cancelled() -> None:
    watched = Watched(consumer_timeout_ms=0)
    peer = watched.peer(arguments={"x-consumer-timeout": TIMEOUT_MS})
    peer.call(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    watched.publish(peer, 2)
    peer.call(1, commands.Tx.Select())
    peer.call(1, commands.Basic.Cancel("c"))
    peer.call(1, commands.Basic.Ack(2, multiple=True))
    peer.answers()
    assert [type(each) for _, each in peer.call(1, commands.Tx.Commit())] == [commands.Tx.CommitOk]
    assert watched.machine.unacked_count == watched.ready == 0
