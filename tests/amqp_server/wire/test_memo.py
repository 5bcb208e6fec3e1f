"""The memo of publish frames: void after changes of the topology or a permission, bounded, and without
refusals.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import base, commands

from ..connection.node import Delivery, MemoryNode, Peer
from .published import Message, message, method, short

PUBLISH = message("x", "k", b"body").encode(1)


def counted(node: MemoryNode) -> dict[str, int]:
    return {name: len(messages) for name, messages in node.contents().items()}


def closes(peer: Peer) -> list[int | None]:
    """The reply codes of channels that were closed since the last call."""
    peer.node.sync()
    return [answer.reply_code for _, answer in peer.answers() if isinstance(answer, commands.Channel.Close)]


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def peer(node: MemoryNode) -> Peer:
    """A peer that publishes to the fanout exchange x, to which the queue a is bound."""
    peer = node.peer()
    peer.call(
        1,
        commands.Channel.Open(),
        commands.Exchange.Declare(exchange="x", exchange_type="fanout"),
        commands.Queue.Declare(queue="a"),
        commands.Queue.Declare(queue="b"),
        commands.Queue.Bind(queue="a", exchange="x"),
    )
    peer.answers()
    peer.send(PUBLISH)
    assert counted(node) == {"a": 1, "b": 0}
    return peer


CHANGES: dict[str, tuple[base.Frame, dict[str, int]]] = {
    "bind": (commands.Queue.Bind(queue="b", exchange="x"), {"a": 3, "b": 1}),
    "unbind": (commands.Queue.Unbind(queue="a", exchange="x"), {"a": 2, "b": 0}),
    "delete queue": (commands.Queue.Delete(queue="a"), {"b": 0}),
    "bind exchange": (commands.Exchange.Bind(destination="amq.fanout", source="x"), {"a": 3, "b": 0}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reads", [1, 2, 3])
@pytest.mark.parametrize("other", [False, True], ids=["own channel", "other channel"])
def test_a_change_counts_from_the_next_message_on(
    node: MemoryNode, peer: Peer, change: str, reads: int, other: bool
) -> None:
    """The change may come between reads or within one read."""
    what, expected = CHANGES[change]
    channel = 1
    if other:
        peer.call(2, commands.Channel.Open())
        channel = 2
    parts = [PUBLISH, method(channel, what), PUBLISH]
    if reads == 1:
        parts = [b"".join(parts)]
    elif reads == 2:
        parts = [parts[0] + parts[1], parts[2]]
    for part in parts:
        peer.send(part)
    assert counted(node) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_another_connection_counts(node: MemoryNode, peer: Peer, change: str) -> None:
    what, expected = CHANGES[change]
    other = node.peer()
    other.call(7, commands.Channel.Open())
    peer.send(PUBLISH)
    other.call(7, what)
    peer.send(PUBLISH)
    assert counted(node) == expected


def test_deleted_and_declared_again(node: MemoryNode, peer: Peer) -> None:
    """The name is the same, but it is another queue."""
    peer.send(
        PUBLISH,
        method(
            1,
            commands.Queue.Delete(queue="a"),
            commands.Queue.Declare(queue="a"),
            commands.Queue.Bind(queue="a", exchange="x"),
        ),
        PUBLISH,
    )
    assert counted(node) == {"a": 1, "b": 0}


def test_a_remembered_publish_fails_once_its_exchange_is_deleted(node: MemoryNode, peer: Peer) -> None:
    peer.send(PUBLISH, method(1, commands.Exchange.Delete(exchange="x")), PUBLISH)
    assert closes(peer) == [404]
    assert counted(node) == {"a": 2, "b": 0}


def test_exchange_of_another_type(node: MemoryNode, peer: Peer) -> None:
    peer.send(
        method(
            1,
            commands.Exchange.Delete(exchange="x"),
            commands.Exchange.Declare(exchange="x", exchange_type="headers"),
            commands.Queue.Bind(queue="b", exchange="x", arguments={"x-match": "all", "h": 1}),
        ),
        PUBLISH,
    )
    assert counted(node) == {"a": 1, "b": 0}


@pytest.mark.parametrize("write", ["^$", "other"])
def test_permission_taken_away(node: MemoryNode, peer: Peer, write: str) -> None:
    node.broker.access.permissions.set("guest", "/", ".*", write, ".*")
    peer.send(PUBLISH)
    assert closes(peer) == [403]
    assert counted(node) == {"a": 1, "b": 0}


def test_a_remembered_publish_fails_once_the_permission_is_cleared(node: MemoryNode, peer: Peer) -> None:
    node.broker.access.permissions.clear("guest", "/")
    peer.send(PUBLISH)
    assert closes(peer) == [403]


def reopened(peer: Peer) -> None:
    peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())
    peer.answers()


@pytest.mark.parametrize("generation_stays", [True, False])
def test_a_refusal_is_not_remembered(node: MemoryNode, peer: Peer, generation_stays: bool) -> None:
    """The memo would repeat a stored refusal even where nothing that the memo knows of has changed."""
    node.broker.access.permissions.set("guest", "/", ".*", "^$", ".*")
    for _ in range(2):
        peer.send(PUBLISH)
        assert closes(peer) == [403]
        reopened(peer)
    before = node.broker.generation
    node.broker.access.permissions.set("guest", "/", ".*", ".*", ".*")
    if generation_stays:
        node.broker.generation = before
    peer.send(PUBLISH)
    assert closes(peer) == []
    assert counted(node) == {"a": 2, "b": 0}


def test_a_missing_exchange_is_not_remembered(node: MemoryNode, peer: Peer) -> None:
    later = message("later", "k", b"body").encode(1)
    peer.send(later)
    assert closes(peer) == [404]
    assert not [route for route in peer.session.incoming.routes.values() if route.exchange == "later"]
    reopened(peer)
    peer.call(1, commands.Exchange.Declare(exchange="later", exchange_type="fanout"))
    peer.answers()
    peer.send(later)
    assert closes(peer) == []


def test_no_queue_yet(node: MemoryNode, peer: Peer) -> None:
    """That a message has no queue is an ordinary result, and as short-lived as others."""
    early = message("", "soon", mandatory=True).encode(1)
    peer.send(early, method(1, commands.Queue.Declare(queue="soon")), early)
    returned = [answer for _, answer in peer.answers() if isinstance(answer, Delivery)]
    assert len(returned) == 1
    assert counted(node)["soon"] == 1


def test_memo_is_bounded() -> None:
    node = MemoryNode(memo_entries_max=16)
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    for index in range(100):
        peer.send(message("", f"nowhere-{index}").encode(1), message("", "q").encode(1))
        assert len(peer.session.incoming.routes) <= 16
    assert counted(node) == {"q": 100}


def test_memo_of_header_routes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_server.channel.publish.RESOLVED_MAX", 8)
    node = MemoryNode()
    peer = node.peer()
    peer.call(
        1,
        commands.Channel.Open(),
        commands.Queue.Declare(queue="q"),
        commands.Queue.Bind(queue="q", exchange="amq.headers", arguments={"x-match": "any"}),
    )
    for index in range(100):
        peer.send(message("amq.headers", "", message_id=short(b"%d" % index)).encode(1))
    [route] = peer.session.incoming.routes.values()
    resolver: Callable[[bytes], object] | None = route.resolve
    assert resolver is not None
    assert 0 < len(resolver._known) <= 8  # type: ignore[attr-defined]


def test_channels_do_not_share_frames(node: MemoryNode, peer: Peer) -> None:
    """The same publish on another channel belongs to that channel: its confirms, its transaction."""
    peer.call(2, commands.Channel.Open())
    peer.call(2, commands.Tx.Select())
    peer.send(message("x", "k").encode(1), message("x", "k").encode(2))
    assert counted(node) == {"a": 2, "b": 0}
    peer.send(method(2, commands.Tx.Commit()))
    assert counted(node) == {"a": 3, "b": 0}


def test_a_closed_channel_is_forgotten(node: MemoryNode, peer: Peer) -> None:
    old = peer.session.channels[1]
    peer.send(
        method(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Confirm.Select()),
        PUBLISH,
    )
    assert peer.session.channels[1] is not old
    assert all(route.publisher is not old for route in peer.session.incoming.routes.values())
    acks = [answer for _, answer in peer.answers() if isinstance(answer, commands.Basic.Ack)]
    assert [ack.delivery_tag for ack in acks] == [1]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_content_that_comes_after_the_change(fast: bool, cut: int) -> None:
    """A message is routed when it is whole: a queue deleted meanwhile gets nothing, and a new one gets the
    message.
    """
    node = MemoryNode(switch_fast_path=fast)
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    peer.call(2, commands.Channel.Open())
    parts = Message(b"", b"q", 0, message(body=b"12345678").header, b"12345678", (4, 4)).frames(1)
    peer.send(b"".join(parts[:cut]))
    peer.call(2, commands.Queue.Delete(queue="q"), commands.Queue.Declare(queue="q"))
    peer.send(b"".join(parts[cut:]))
    assert counted(node) == {"q": 1}


def test_a_content_that_comes_after_its_exchange_went(node: MemoryNode, peer: Peer) -> None:
    publish, *content = message("x", "k").frames(1)
    peer.call(2, commands.Channel.Open())
    peer.send(publish)
    peer.call(2, commands.Exchange.Delete(exchange="x"))
    peer.send(*content)
    assert closes(peer) == [404]


@pytest.mark.parametrize("frame_max", [4096, 8192, 131_072])
@pytest.mark.parametrize("channel", [1, 6])
@pytest.mark.parametrize("size", [0, 10, 4088, 4089, 9_000, 131_064])
def test_content_leaves_with_the_consumers_channel_and_frames(
    node: MemoryNode, frame_max: int, channel: int, size: int
) -> None:
    publisher, consumer = node.peer(), node.peer(frame_max=frame_max)
    publisher.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    consumer.call(channel, commands.Channel.Open())
    consumer.call(channel, commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    before = len(consumer.output)
    publisher.send(message(body=b"x" * size).encode(1) * 3)
    data = consumer.output[before:]
    consumer.answers()
    channels, sizes = [], []
    while data:
        channels.append(int.from_bytes(data[1:3], "big"))
        sizes.append(int.from_bytes(data[3:7], "big") + 8)
        data = data[sizes[-1] :]
    assert set(channels) == {channel}
    assert max(sizes) <= frame_max
    assert len(sizes) == 3 * (2 + -(-size // (frame_max - 8)))
