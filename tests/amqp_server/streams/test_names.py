"""Offsets that a stream keeps by name, for consumers that go on where they last acked."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.streams.layout.named_offsets import NAME_ABSENT, NAME_IN_USE
from amqp_server.streams.local_host import StreamOptions
from amqp_server.wire import frames
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, declare, got, publish
from tests.amqp_server.streams.test_super_streams import opened


def work(peer: Peer) -> None:
    node = peer.node
    assert isinstance(node, StreamNode)
    node.work()


def named(peer: Peer, name: str = "n", default: object = None, prefetch: int = 1000) -> list[int]:
    """Consume from where the name has come to; return the offsets that come at once."""
    arguments: dict[str, Any] = {"x-stream-offset": "committed", "x-group": name}
    if default is not None:
        arguments["x-stream-offset-default"] = default
    consume_ = commands.Basic.Consume(queue="s", consumer_tag=f"c-{name}", arguments=arguments)
    peer.send(
        frames.method_frame(1, commands.Basic.Qos(prefetch_count=prefetch)), frames.method_frame(1, consume_)
    )
    work(peer)
    return [offset for offset, _ in got(peer)]


def tell(peer: Peer, *methods: base.Frame) -> None:
    peer.send(*(frames.method_frame(1, method) for method in methods))
    work(peer)


def twenty() -> tuple[StreamNode, Peer]:
    node = StreamNode()
    peer = opened(node)
    declare(peer)
    publish(peer, [b"m%d" % number for number in range(20)])
    node.work()
    return node, peer


def test_a_name_goes_on_where_it_last_acked() -> None:
    node, peer = twenty()
    one = opened(node)
    assert named(one, default="first") == list(range(20))
    # Messages that were acked behind a gap come again: a stream remembers one offset.
    tell(one, commands.Basic.Ack(5, multiple=True), commands.Basic.Ack(9))
    tell(one, commands.Channel.Close(200, "", 0, 0))
    two = opened(node)
    assert named(two, default="first") == list(range(5, 20))
    tell(two, commands.Basic.Ack(1), commands.Basic.Nack(2), commands.Basic.Ack(3))
    node.restart()
    three = opened(node)
    assert named(three, default="first") == list(range(6, 20))
    assert named(three, "other", default=18) == [18, 19]


def test_acks_right_before_the_end_count() -> None:
    node, _ = twenty()
    one = opened(node)
    named(one, default="first")
    tell(one, commands.Basic.Ack(7, multiple=True), commands.Channel.Close(200, "", 0, 0))
    assert named(opened(node)) == list(range(7, 20))


def test_a_name_without_an_offset_begins_as_it_is_told() -> None:
    node, peer = twenty()
    one = opened(node)
    assert named(one) == []
    tell(one, commands.Channel.Close(200, "", 0, 0))
    publish(peer, [b"x"])
    node.work()
    # The first consumer began with later messages only.
    assert named(opened(node), default="first") == [20]


def test_who_takes_a_name_over_cancels_the_one_before() -> None:
    node, _ = twenty()
    one, two = opened(node), opened(node)
    named(one, default="first")
    assert named(two) == list(range(20))
    assert [type(each) for _, each in one.answers()] == [commands.Basic.Cancel]
    tell(one, commands.Basic.Ack(20, multiple=True))
    tell(two, commands.Basic.Ack(2, multiple=True), commands.Channel.Close(200, "", 0, 0))
    assert named(opened(node)) == list(range(2, 20))


def limited(most: int = 2) -> tuple[StreamNode, Peer]:
    node = StreamNode(StreamOptions(segment_bytes=500, flush_bytes=1, names_max=most), stream_names_max=most)
    peer = opened(node)
    declare(peer)
    publish(peer, [b"a", b"b"])
    node.work()
    return node, peer


def refused(peer: Peer, name: str, node: StreamNode) -> commands.Channel.Close:
    """Consume with a name for which there is no place; return the answer."""
    arguments: dict[str, Any] = {"x-stream-offset": "committed", "x-group": name}
    consume_ = commands.Basic.Consume(queue="s", consumer_tag=f"c-{name}", arguments=arguments)
    peer.send(frames.method_frame(1, commands.Basic.Qos(prefetch_count=9)), frames.method_frame(1, consume_))
    node.work()
    ((_, _), (_, close)) = peer.answers()
    assert isinstance(close, commands.Channel.Close)
    return close


def test_a_new_name_is_refused_if_there_are_enough() -> None:
    node, _ = limited()
    for name in ("x", "y", "x"):
        one = opened(node)
        named(one, name, "first")
        tell(one, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    close = refused(opened(node), "z", node)
    assert close.reply_code == 406
    assert close.reply_text == (
        "PRECONDITION_FAILED - queue 's' in vhost '/' stores 2 named offsets already (stream_names_max), so 'x-group' "
        "cannot add another name: delete one (mqctl delete_stream_offset), or raise the limit"
    )
    assert node.host().consumer_count == 0
    node.restart()
    # Those that are there go on.
    assert [named(opened(node), name, "first") for name in ("x", "y")] == [[], [1]]
    assert refused(opened(node), "z", node).reply_code == 406


def test_a_consumer_whose_offset_is_looked_up_has_its_place() -> None:
    node, _ = limited(1)
    one, two, three = opened(node), opened(node), opened(node)
    for peer in (one, two):
        arguments: dict[str, Any] = {
            "x-stream-offset": "committed",
            "x-group": "x",
            "x-stream-offset-default": "last",
        }
        consume_ = commands.Basic.Consume(queue="s", consumer_tag="c", arguments=arguments)
        peer.send(
            frames.method_frame(1, commands.Basic.Qos(prefetch_count=9)),
            frames.method_frame(1, consume_),
        )
    assert kept(node) == {"x": None}
    assert refused(three, "y", node).reply_code == 406
    assert [type(each) for _, each in one.answers()][-1] is commands.Basic.Cancel
    assert [offset for offset, _ in got(two)] == [0, 1]
    assert kept(node) == {"x": 0}


def test_more_names_than_the_limit_stay() -> None:
    node, _ = limited()
    for name in ("x", "y"):
        one = opened(node)
        named(one, name, "first")
        tell(one, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    node.options = StreamOptions(names_max=1)
    node.restart()
    two = opened(node)
    assert named(two, "y") == [1]
    tell(two, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    assert refused(opened(node), "z", node).reply_code == 406
    node.restart()
    assert [named(opened(node), name, "first") for name in ("x", "y")] == [[1], []]


def kept(node: StreamNode) -> dict[str, int | None]:
    found: list[Any] = []
    node.turn.run(node.host().kept_names, found.extend)
    return dict(found)


def delete(node: StreamNode, name: str) -> Any:
    found: list[Any] = []
    node.turn.run(node.host().delete_name, name, found.append)
    node.work()
    (answer,) = found
    return answer


def test_an_operator_deletes_names() -> None:
    node, _ = limited()
    for name in ("x", "y"):
        one = opened(node)
        named(one, name, "first")
        tell(one, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    one = opened(node)
    named(one, "x", prefetch=1)
    assert kept(node) == {"x": 1, "y": 1}
    assert (delete(node, "x"), delete(node, "nobody")) == (NAME_IN_USE, NAME_ABSENT)
    two = opened(node)
    named(two, "y")
    tell(two, commands.Basic.Nack(1), commands.Basic.Cancel("c-y"))
    assert node.host().names_here() == {"x"}
    # A consumer that was cancelled may still ack what it has.
    tell(one, commands.Basic.Cancel("c-x"))
    assert delete(node, "x") == NAME_IN_USE
    tell(one, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    assert delete(node, "x") is None
    assert kept(node) == {"y": 1}
    two = opened(node)
    named(two, "z", "first")
    assert kept(node) == {"y": 1, "z": 0}
    tell(two, commands.Basic.Ack(2, multiple=True), commands.Channel.Close(200, "", 0, 0))
    for _ in range(2):
        assert kept(node) == {"y": 1, "z": 2}
        node.restart()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-stream-offset": "committed"}, "needs a name"),
        ({"x-stream-offset": "committed", "x-group": ""}, "needs a name"),
        ({"x-stream-offset": "committed", "x-group": 5}, "needs a name"),
        ({"x-stream-offset": "first", "x-group": "a"}, "it needs 'x-stream-offset'"),
        ({"x-stream-offset-default": "first"}, "it needs 'x-stream-offset'"),
        (
            {"x-stream-offset": "committed", "x-group": "a", "x-stream-offset-default": "soon"},
            "x-stream-offset-default",
        ),
    ],
)
def test_a_name_that_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    _, peer = twenty()
    consume_ = commands.Basic.Consume(queue="s", arguments=arguments)
    ((_, _), (_, close)) = peer.call(1, commands.Basic.Qos(prefetch_count=1), consume_)
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert words in close.reply_text
