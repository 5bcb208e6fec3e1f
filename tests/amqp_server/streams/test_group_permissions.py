"""Nobody reads by a consumer group what he may not read: whoever declares it, and whatever is bound later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.broker.access.http_permissions import ASKED, BackendAnswers, Question, RemoteGrant
from amqp_server.broker.topology.super_streams import growth
from amqp_server.wire import methods
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.streams.node import StreamNode, publish
from tests.amqp_server.streams.node import declare as declare_stream
from tests.amqp_server.streams.test_consumer_groups import (
    Message,
    consume,
    declare,
    got,
    host,
    tell,
    worked,
)
from tests.amqp_server.streams.test_super_streams import declare as declare_super_stream
from tests.amqp_server.streams.test_super_streams import opened, refused

REFUSED = "ACCESS_REFUSED - read access to queue '{}' in vhost '/' refused for user '{}'"


@pytest.fixture
def node() -> StreamNode:
    """`other` may configure and read what begins with `low`, and write to `secret`, too."""
    node = StreamNode(super_stream_partitions_max=20)
    node.broker.access.permissions.set("other", "/", "^low", "^(low|secret)", "^low")
    return node


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    """A client of guest, who may do everything."""
    return opened(node)


@pytest.fixture
def low(node: StreamNode) -> Peer:
    return opened(node, "other")


def exchange(name: str = "lowx", type_: str = "direct") -> base.Frame:
    mark = {"x-super-stream": True} if type_ == "direct" else {}
    return methods.make(
        commands.Exchange.Declare, exchange=name, exchange_type=type_, durable=True, arguments=mark
    )


def bind(queue: str, number: int, source: str = "lowx") -> base.Frame:
    order: Any = {"x-stream-partition-order": number}
    return commands.Queue.Bind(queue=queue, exchange=source, routing_key=str(number), arguments=order)


def done(answers: list[tuple[int, Any]]) -> None:
    ((_, answer),) = answers
    assert not isinstance(answer, commands.Channel.Close | commands.Connection.Close), answer


def layout(node: StreamNode, by: Peer, type_: str = "direct") -> None:
    """The exchange lowx with the stream lows, and the group lowg over it."""
    done(by.call(1, exchange(type_=type_)))
    declare_stream(by, "lows")
    done(by.call(1, bind("lows", 0)))
    done(declare(by, "lowg", "lowx"))
    node.work()


def secret(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer, "secret")
    publish(peer, [b"top secret"], "secret")
    node.work()
    peer.answers()


def cancelled(peer: Peer) -> list[str]:
    """Return the tags of cancelled consumers; nothing else has come."""
    found: list[str] = []
    for _, each in peer.answers():
        assert isinstance(each, commands.Basic.Cancel), each
        found.append(str(each.consumer_tag))
    return found


@pytest.mark.parametrize("type_", ["direct", "x-super-stream"])
def test_a_stream_is_bound_later_by_one_who_may_only_write_it(
    node: StreamNode, peer: Peer, low: Peer, type_: str
) -> None:
    secret(node, peer)
    layout(node, low, type_)
    assert refused(low.call(1, bind("secret", 1)), 403) == REFUSED.format("secret", "other")
    reader = opened(node, "other")
    consume(node, reader, name="lowg")
    assert worked(node, reader) == [[]]


def test_it_is_bound_before_the_group_is_declared(node: StreamNode, peer: Peer, low: Peer) -> None:
    secret(node, peer)
    done(low.call(1, exchange()))
    # Nothing is read by this binding yet, and RabbitMQ permits it.
    done(low.call(1, bind("secret", 1)))
    assert refused(declare(low, "lowg", "lowx"), 403) == REFUSED.format("secret", "other")
    done(declare(peer, "lowg", "lowx"))
    reader = opened(node, "other")
    assert refused(
        reader.call(1, commands.Basic.Qos(prefetch_count=5), commands.Basic.Consume(queue="lowg"))[1:], 403
    ) == REFUSED.format("secret", "other")
    reader = opened(node, "other")
    assert refused(reader.call(1, commands.Basic.Get(queue="lowg")), 403) == REFUSED.format("secret", "other")
    node.work()
    assert got(peer, peer.call(1, commands.Basic.Get(queue="lowg"))) == []
    node.work()
    assert [each.body for each in got(peer)] == [b"top secret"]


@pytest.mark.parametrize("type_", ["direct", "x-super-stream"])
def test_it_is_bound_by_one_who_may_while_a_member_may_not(
    node: StreamNode, peer: Peer, low: Peer, type_: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret(node, peer)
    layout(node, low, type_)
    consume(node, low, name="lowg", prefetch=1)
    consume(node, peer, name="lowg", tag="p", prefetch=10)
    publish(peer, [b"a", b"b", b"c"], "lows")
    node.work()
    low.answers(), peer.answers()
    done([each for each in peer.call(1, bind("secret", 1)) if not isinstance(each[1], Delivery)])
    node.work()
    assert cancelled(low) == ["t"]
    # What it held returns to the others, and the new stream is read by them.
    found = worked(node, peer)[0]
    assert "may not read its stream 'secret', and is cancelled" in caplog.text
    assert list(host(node, "lowg").group.members) == [
        key for key in host(node, "lowg").group.members if key[2] == "p"
    ]
    assert "secret" in [each.stream for each in found] or host(node, "lowg").unacked_count
    tell(peer, commands.Basic.Recover(requeue=True))
    streams = {each.stream for each in worked(node, peer)[0]}
    assert streams == {"lows", "secret"}


def test_a_member_that_may_not_read_a_new_partition_is_cancelled(
    node: StreamNode, peer: Peer, low: Peer
) -> None:
    node.broker.access.permissions.set("other", "/", "^low", "^low", "^low(g|-[01]$)")
    declare_super_stream(peer, "low", 2)
    done(declare(peer, "lowg", "low"))
    consume(node, low, name="lowg")
    assert worked(node, low) == [[]]
    node.turn.run(node.broker.propose, growth(node.broker.vhost("/"), "low", 1))
    node.work()
    assert cancelled(low) == ["t"]
    assert refused(low.call(1, commands.Basic.Consume(queue="lowg")), 403) == REFUSED.format("low-2", "other")


@pytest.mark.parametrize("way", ["changed", "cleared"])
def test_a_member_that_loses_its_permission_is_cancelled(
    node: StreamNode, peer: Peer, low: Peer, way: str
) -> None:
    layout(node, low)
    consume(node, low, name="lowg")
    publish(peer, [b"a"], "lows")
    assert worked(node, low) == [[Message("lows", 0, b"a")]]
    permissions = node.broker.access.permissions
    # Others lose nothing, and a change that leaves the permission leaves the member.
    permissions.set("other", "/", "", "^low", "^low")
    permissions.set("guest", "/", "", ".*", "")
    node.work()
    assert cancelled(low) == []
    if way == "changed":
        permissions.set("other", "/", "^low", "^low", "^lowg")
    else:
        permissions.clear("other", "/")
    node.work()
    assert cancelled(low) == ["t"]
    permissions.set("guest", "/", ".*", ".*", ".*")
    publish(peer, [b"b"], "lows")
    consume(node, peer, name="lowg")
    assert worked(node, low, peer) == [[], [Message("lows", 0, b"a", True), Message("lows", 1, b"b")]]


def test_a_client_that_gets_messages_one_by_one(node: StreamNode, peer: Peer, low: Peer) -> None:
    layout(node, low)
    publish(peer, [b"a", b"b"], "lows")
    node.work()
    tell(low, commands.Basic.Get(queue="lowg"))
    assert [each.body for each in worked(node, low)[0]] == [b"a"]
    node.broker.access.permissions.set("other", "/", "^low", "^low", "^lowg")
    assert refused(low.call(1, commands.Basic.Get(queue="lowg")), 403) == REFUSED.format("lows", "other")


@pytest.mark.pure
def test_permissions_are_cleared_while_a_member_joins(node: StreamNode, low: Peer) -> None:
    layout(node, low)
    member = commands.Basic.Consume(queue="lowg", consumer_tag="t")
    group = host(node, "lowg")
    attach, waiting = group.attach, list[Any]()
    group.attach = lambda *given: waiting.append(given)  # type: ignore[method-assign]
    tell(low, commands.Basic.Qos(prefetch_count=1), member)
    node.broker.access.permissions.clear("other", "/")
    group.attach = attach  # type: ignore[method-assign]
    node.turn.run(lambda: group.attach(*waiting[0]))
    node.work()
    answers = low.answers()
    assert isinstance(answers[0][1], commands.Basic.QosOk)
    assert refused(answers[1:], 403) == REFUSED.format("lows", "other")
    assert not group.group.members


def test_a_stream_of_the_same_name(node: StreamNode, peer: Peer, low: Peer) -> None:
    """The group reads by name: the stream that comes under this name is another one, and so is its reader."""
    declare_stream(peer, "lows")
    done(declare(peer, "lowg", "lows"))
    consume(node, low, name="lowg")
    node.work()
    low.answers()
    peer.call(1, commands.Queue.Delete(queue="lows"))
    node.broker.access.permissions.set("other", "/", "^low", "^low", "^lowg")
    node.work()
    declare_stream(peer, "lows")
    publish(peer, [b"a"], "lows")
    assert worked(node, low) == [[]]


def test_who_may_not_read_binds_to_an_exchange_without_groups(
    node: StreamNode, peer: Peer, low: Peer
) -> None:
    secret(node, peer)
    done(low.call(1, exchange()))
    done(low.call(1, bind("secret", 0)))
    done(low.call(1, exchange("lowy", "x-super-stream")))
    done(low.call(1, bind("secret", 0, "lowy")))


class Backend:
    """The HTTP backend: questions wait until `answer`."""

    def __init__(self, node: StreamNode, peer: Peer) -> None:
        self._node = node
        self.refuses: set[str] = set()
        self.asked: list[tuple[Question, Callable[[bool], None]]] = []
        self._answers = answers = BackendAnswers(node.clock.monotonic_ms, 1_000, 100)
        answers.asks = lambda question, done: self.asked.append((question, done))
        permissions, client = node.broker.access.permissions, peer.session.client
        grant = RemoteGrant(answers, "remote", (ASKED, "127.0.0.1"))
        client.username, client.access = "remote", permissions.add_grant("remote", grant)

    def answer(self) -> None:
        """Answer all questions, and those that follow from the answers."""
        while self.asked:
            question, done = self.asked.pop(0)
            allowed = dict(question.parameters)["name"] not in self.refuses
            self._answers.remember(question, allowed)
            self._node.turn.run(done, allowed)
            self._node.work()


def test_users_of_the_http_backend(node: StreamNode, peer: Peer) -> None:
    layout(node, peer)
    secret(node, peer)
    remote = opened(node)
    backend = Backend(node, remote)
    consume(node, remote, name="lowg")
    backend.answer()
    publish(peer, [b"a"], "lows")
    assert worked(node, remote) == [[Message("lows", 0, b"a")]]
    # A member whose permission is not known yet stays until the answer comes.
    backend.refuses.add("secret")
    done(peer.call(1, bind("secret", 1)))
    assert [dict(question.parameters)["name"] for question, _ in backend.asked] == ["secret"] * 2
    assert not any(isinstance(each, commands.Basic.Cancel) for _, each in remote.answers())
    backend.answer()
    assert [each.consumer_tag for _, each in remote.answers() if isinstance(each, commands.Basic.Cancel)] == [
        "t"
    ]
    assert not host(node, "lowg").group.members
