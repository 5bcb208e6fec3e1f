"""Offsets that a stream keeps by name, for consumers that go on where they last acked."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.streams.host import StreamOptions
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


def test_names_are_limited() -> None:
    node = StreamNode(StreamOptions(names_max=2))
    peer = opened(node)
    declare(peer)
    publish(peer, [b"a", b"b"])
    node.work()
    for name in ("x", "y", "x", "z"):
        one = opened(node)
        named(one, name, "first")
        tell(one, commands.Basic.Ack(1), commands.Channel.Close(200, "", 0, 0))
    node.restart()
    assert [named(opened(node), name, "first") for name in ("x", "z", "y")] == [[], [1], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-stream-offset": "committed"}, "needs a name"),
        ({"x-stream-offset": "committed", "x-group": ""}, "needs a name"),
        ({"x-stream-offset": "committed", "x-group": 5}, "needs a name"),
        ({"x-stream-offset": "first", "x-group": "a"}, "goes with"),
        ({"x-stream-offset-default": "first"}, "goes with"),
        (
            {"x-stream-offset": "committed", "x-group": "a", "x-stream-offset-default": "soon"},
            "x-stream-offset-default",
        ),
    ],
)
def test_bad_names(arguments: dict[str, Any], words: str) -> None:
    _, peer = twenty()
    consume_ = commands.Basic.Consume(queue="s", arguments=arguments)
    ((_, _), (_, close)) = peer.call(1, commands.Basic.Qos(prefetch_count=1), consume_)
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert words in close.reply_text
