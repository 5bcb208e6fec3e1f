"""Messages that reach their queues long after they were routed: at a commit, or when an alarm is over.

A route names queues, as in RabbitMQ: the queue that has the name at the end gets the message.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import base, commands

from tests.amqp_server.connection.node import Delivery, MemoryNode, Peer
from tests.amqp_server.wire.published import Message, message

Answers = list[tuple[int, base.Frame | Delivery]]
#: Takes messages; returns a call that lets them reach their queues and returns the answers to the publisher.
Late = Callable[..., Callable[[], Answers]]

TAKEN = {"tx": "Tx.CommitOk", "alarm": "Basic.Ack"}


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def other(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    return peer


@pytest.fixture(params=["tx", "alarm"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def late(node: MemoryNode, other: Peer, how: str) -> Late:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Tx.Select() if how == "tx" else commands.Confirm.Select())

    def publish(*messages: Message) -> Callable[[], Answers]:
        if how == "alarm":
            node.broker.alarms.set("memory", True)
        peer.answers()
        peer.send(*(message.encode(1) for message in messages))
        node.sync()
        found = [named for _, named in peer.answers()]
        assert all(isinstance(each, commands.Connection.Blocked) for each in found), found

        def go_on() -> Answers:
            if how == "tx":
                return peer.call(1, commands.Tx.Commit())
            node.broker.alarms.set("memory", False)
            node.sync()
            return [each for each in peer.answers() if each[0]]

        return go_on

    return publish


def to(queue: str, *bodies: bytes, exchange: str = "", mandatory: bool = False) -> list[Message]:
    return [
        message(exchange, queue, body, mandatory=mandatory, delivery_mode=b"\x02")  # persistent
        for body in bodies
    ]


TEN = [b"%d" % number for number in range(10)]


def bodies(node: MemoryNode, queue: str) -> list[bytes]:
    """Each body fits into one frame."""
    return [item[item.index(b"\xce\x03") + 8 : -1] for _, item, _ in node.contents()[queue]]


def names(answers: Answers) -> list[str]:
    return [each.method.name if isinstance(each, Delivery) else each.name for _, each in answers]


def declare_again(other: Peer, *, durable: bool = False) -> None:
    other.call(1, commands.Queue.Delete(queue="q"), commands.Queue.Declare(queue="q", durable=durable))


@pytest.mark.parametrize("durable", [False, True])
def test_a_queue_that_was_declared_again_gets_them(
    node: MemoryNode, other: Peer, late: Late, how: str, durable: bool
) -> None:
    go_on = late(*to("q", *TEN))
    declare_again(other, durable=durable)
    assert bodies(node, "q") == []
    answers = go_on()
    assert names(answers) == [TAKEN[how]]
    assert bodies(node, "q") == TEN


def test_a_large_message_goes_to_the_queue_that_was_declared_again(
    node: MemoryNode, other: Peer, late: Late
) -> None:
    """The message is put together frame by frame."""
    go_on = late(*to("q", b"x" * 100_000))
    declare_again(other)
    go_on()
    assert bodies(node, "q") == [b"x" * 100_000]


def test_a_deleted_queue_gets_nothing_and_the_publisher_is_told_that_it_may_go_on(
    node: MemoryNode, other: Peer, late: Late, how: str
) -> None:
    go_on = late(*to("q", *TEN))
    other.call(1, commands.Queue.Delete(queue="q"))
    assert names(go_on()) == [TAKEN[how]]
    assert node.contents() == {}


def test_what_is_mandatory_comes_back_if_its_queue_is_gone(other: Peer, late: Late, how: str) -> None:
    go_on = late(*to("q", b"1", b"2", mandatory=True))
    other.call(1, commands.Queue.Delete(queue="q"))
    answers = go_on()
    taken = TAKEN[how]
    # The ack of a returned message follows it at once.
    apart = ["Basic.Return", taken] if taken == "Basic.Ack" else ["Basic.Return"]
    assert names(answers) == [*apart, "Basic.Return", taken]
    returned = [each for _, each in answers if isinstance(each, Delivery)]
    assert [each.body for each in returned] == [b"1", b"2"]
    assert [
        each.method.reply_code for each in returned if isinstance(each.method, commands.Basic.Return)
    ] == [
        312,
        312,
    ]


def test_of_several_queues_those_that_are_left_get_them(
    node: MemoryNode, other: Peer, late: Late, how: str
) -> None:
    other.call(
        1,
        commands.Queue.Declare(queue="second"),
        commands.Queue.Bind(queue="q", exchange="amq.fanout"),
        commands.Queue.Bind(queue="second", exchange="amq.fanout"),
    )
    go_on = late(*to("", *TEN, exchange="amq.fanout", mandatory=True))
    other.call(1, commands.Queue.Delete(queue="second"))
    assert names(go_on()) == [TAKEN[how]]
    assert bodies(node, "q") == TEN


def test_bindings_count_when_a_message_comes(node: MemoryNode, other: Peer, late: Late, how: str) -> None:
    """The first message is not routed again; a message that comes after a change uses the new bindings."""
    bind = commands.Queue.Bind(queue="q", exchange="amq.direct", routing_key="k")
    other.call(1, bind, commands.Queue.Declare(queue="new"))
    first = late(*to("k", b"before", exchange="amq.direct"))
    other.call(
        1,
        commands.Queue.Unbind(queue="q", exchange="amq.direct", routing_key="k"),
        commands.Queue.Bind(queue="new", exchange="amq.direct", routing_key="k"),
    )
    late(*to("k", b"after", exchange="amq.direct"))
    assert names(first()) == [TAKEN[how]]
    assert (bodies(node, "q"), bodies(node, "new")) == ([b"before"], [b"after"])


def test_a_binding_does_not_come_back_with_its_queue(node: MemoryNode, other: Peer, late: Late) -> None:
    """The new queue of that name gets messages that were under way, and no later ones."""
    bind = commands.Queue.Bind(queue="q", exchange="amq.fanout")
    other.call(1, bind)
    first = late(*to("", b"before", exchange="amq.fanout"))
    declare_again(other)
    late(*to("", b"after", exchange="amq.fanout"))
    first()
    assert bodies(node, "q") == [b"before"]


def test_an_exchange_that_was_deleted_has_done_its_part(
    node: MemoryNode, other: Peer, late: Late, how: str
) -> None:
    other.call(
        1,
        commands.Exchange.Declare(exchange="e", exchange_type="fanout"),
        commands.Queue.Bind(queue="q", exchange="e"),
    )
    go_on = late(*to("", *TEN, exchange="e"))
    other.call(1, commands.Exchange.Delete(exchange="e"))
    assert names(go_on()) == [TAKEN[how]]
    assert bodies(node, "q") == TEN


def test_a_queue_that_moved_twice(node: MemoryNode, other: Peer, late: Late) -> None:
    go_on = late(*to("q", *TEN))
    declare_again(other)
    declare_again(other, durable=True)
    go_on()
    assert bodies(node, "q") == TEN


def test_a_commit_with_an_ack_for_a_queue_that_is_gone(node: MemoryNode, other: Peer) -> None:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Tx.Select())
    other.send(message(routing_key="q").encode(1))
    [*_, (_, got)] = peer.call(1, commands.Basic.Get(queue="q"))
    assert isinstance(got, Delivery)
    other.call(1, commands.Queue.Delete(queue="q"), commands.Queue.Declare(queue="q"))
    peer.send(message(routing_key="q", body=b"result").encode(1))
    assert names(peer.call(1, commands.Basic.Ack(1), commands.Tx.Commit())) == ["Tx.CommitOk"]
    assert bodies(node, "q") == [b"result"]
