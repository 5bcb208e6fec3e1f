"""Consumer groups on a node that stands alone: members, acks, messages that come back, restarts, and requests
that are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pamqp import base, commands, header

from amqp_server.broker.declared.records import MARKS
from amqp_server.broker.topology import consumer_groups
from amqp_server.broker.topology.super_streams import growth
from amqp_server.broker.topology.vhost import VHost
from amqp_server.streams.consumer_groups import local_host
from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost
from amqp_server.streams.consumer_groups.options import LETTERS_MAX
from amqp_server.streams.layout.group_headers import PIECE
from amqp_server.streams.local_host import StreamOptions
from amqp_server.turn import SCHEDULED_MAX, Turn
from amqp_server.wire import content, frames
from persistence.metadata import Metadata
from quorum_queue.consumer_groups import group as group_of_members
from quorum_queue.consumer_groups.group import Member
from quorum_queue.local_host import LocalHost
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.streams.node import StreamNode, publish
from tests.amqp_server.streams.node import declare as declare_stream
from tests.amqp_server.streams.test_super_streams import declare as declare_super_stream
from tests.amqp_server.streams.test_super_streams import opened, refused

GROUP = "stream-group"


class Message(NamedTuple):
    stream: str
    offset: int
    body: bytes
    again: bool = False


@pytest.fixture
def node() -> StreamNode:
    return StreamNode(super_stream_partitions_max=20)


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    return opened(node)


def declare(peer: Peer, name: str = "g", stream: object = "s", **arguments: Any) -> list[tuple[int, Any]]:
    table: dict[str, Any] = {"x-queue-type": GROUP, "x-stream": stream, "x-stream-offset": "first"}
    table |= {key.replace("_", "-"): value for key, value in arguments.items()}
    table = {key: value for key, value in table.items() if value is not None}
    return peer.call(1, commands.Queue.Declare(queue=name, durable=True, arguments=table))


def tell(peer: Peer, *methods: base.Frame) -> None:
    """Send methods as one read, and do not take the answers."""
    peer.send(*(frames.method_frame(1, method) for method in methods))


def consume(
    node: StreamNode, peer: Peer, prefetch: int = 1000, tag: str = "t", name: str = "g", **more: Any
) -> None:
    """Become a member."""
    method = commands.Basic.Consume(queue=name, consumer_tag=tag, **more)
    tell(peer, commands.Basic.Qos(prefetch_count=prefetch), method)


def got(peer: Peer, answers: list[tuple[int, Any]] | None = None) -> list[Message]:
    """Return the messages delivered since the last call."""
    found: list[Message] = []
    for _, each in [*(answers or []), *peer.answers()]:
        if isinstance(each, Delivery):
            found.append(_message(each))
    return found


def _message(delivery: Delivery) -> Message:
    headers, method = delivery.properties.headers or {}, delivery.method
    stream, offset = headers["x-stream"], headers["x-stream-offset"]
    assert isinstance(stream, str) and isinstance(offset, int)
    assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk)
    return Message(stream, offset, delivery.body, bool(method.redelivered))


def worked(node: StreamNode, *peers: Peer) -> list[list[Message]]:
    """Do all pending work, and return the messages that each peer got."""
    found: list[list[Message]] = [[] for _ in peers]
    node.work()
    for place, peer in enumerate(peers):
        found[place] += got(peer)
    return found


def offsets(messages: list[Message]) -> list[int]:
    return [each.offset for each in messages]


def host(node: StreamNode, name: str = "g") -> ConsumerGroupHost:
    found = node.broker.vhost("/").queues[name].host
    assert isinstance(found, ConsumerGroupHost)
    return found


def committed(node: StreamNode, name: str = "g") -> list[int]:
    return [each.committed for each in host(node, name).group.partitions.values()]


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(start, start + count)]


def filled(node: StreamNode, peer: Peer, count: int = 10, **arguments: Any) -> None:
    """Make a stream with messages, and a group over it."""
    declare_stream(peer)
    publish(peer, bodies(count))
    node.work()
    declare(peer, **arguments)
    node.work()
    peer.answers()


def published(node: StreamNode, peer: Peer, partitions: int, each: int) -> None:
    """Publish this many messages to each partition of the super stream s."""
    for number in range(partitions):
        publish(peer, bodies(each), name=f"s-{number}")
    node.work()
    peer.answers()


def super_filled(node: StreamNode, peer: Peer, partitions: int = 4, each: int = 5) -> None:
    declare_super_stream(peer, partitions=partitions)
    published(node, peer, partitions, each)
    declare(peer)
    node.work()
    peer.answers()


# -- one member ----------------------------------------------------------------------------------------------


def test_a_member_gets_the_stream_with_its_name_and_offsets(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    consume(node, peer)
    (messages,) = worked(node, peer)
    assert messages == [Message("s", number, b"m%d" % number) for number in range(10)]
    publish(peer, [b"more"])
    assert worked(node, peer) == [[Message("s", 10, b"more")]]


def test_a_passive_declare_may_repeat_the_arguments(node: StreamNode, peer: Peer) -> None:
    """Some clients send them again. For a stream, `x-stream-offset` would ask a different question."""
    filled(node, peer)
    for offset in ("first", 3):
        arguments: Any = {"x-queue-type": "stream-group", "x-stream": "s", "x-stream-offset": offset}
        [(_, answer)] = peer.call(1, commands.Queue.Declare(queue="g", passive=True, arguments=arguments))
        assert isinstance(answer, commands.Queue.DeclareOk) and answer.message_count == 10


def test_prefetch_and_acks(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 20)
    consume(node, peer, 4)
    assert offsets(worked(node, peer)[0]) == [0, 1, 2, 3]
    tell(peer, commands.Basic.Ack(2, multiple=True))
    assert offsets(worked(node, peer)[0]) == [4, 5]
    assert committed(node) == [2]
    tell(peer, commands.Basic.Ack(4))
    assert offsets(worked(node, peer)[0]) == [6]
    assert committed(node) == [2]
    tell(peer, commands.Basic.Ack(3))
    worked(node, peer)
    assert committed(node) == [4]
    group = host(node)
    assert (group.ready_count, group.unacked_count) == (12, 4)


def test_without_acks_a_delivery_is_a_commit(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    consume(node, peer, no_ack=True)
    assert len(worked(node, peer)[0]) == 10
    assert committed(node) == [10]
    node.restart()
    again = opened(node)
    consume(node, again)
    assert worked(node, again) == [[]]


def test_what_is_refused_comes_next(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 100)
    consume(node, peer, 3)
    worked(node, peer)
    tell(peer, commands.Basic.Nack(2, requeue=True))
    assert worked(node, peer) == [[Message("s", 1, b"m1", True)]]
    tell(peer, commands.Basic.Reject(1, requeue=True), commands.Basic.Ack(3))
    assert worked(node, peer) == [[Message("s", 0, b"m0", True), Message("s", 3, b"m3")]]


def test_how_often_it_came_back_is_told(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 1)
    consume(node, peer)
    node.work()
    for tag in (1, 2):
        tell(peer, commands.Basic.Nack(tag, requeue=True))
        node.work()
    deliveries = [each for _, each in peer.answers() if isinstance(each, Delivery)]
    assert [(each.properties.headers or {}).get("x-delivery-count") for each in deliveries][-1] == 2


def test_headers_of_the_publisher_stay(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer)
    declare(peer)
    given: list[Any] = [{"a": 1, "b": "two"}, {"x-stream": "mine", "c": True}, None]
    for headers in given:
        properties = commands.Basic.Properties(content_type="text/plain", message_id="7", headers=headers)
        payload = header.ContentHeader(0, 4, properties).marshal()
        method = frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key="s"))
        peer.send(method, content.build(payload, b"body", 1, 131_072))
    consume(node, peer)
    node.work()
    found = [each for _, each in peer.answers() if isinstance(each, Delivery)]
    assert [each.properties.headers for each in found] == [
        {"x-stream": "s", "a": 1, "b": "two", "x-stream-offset": 0},
        {"x-stream": "s", "c": True, "x-stream-offset": 1},
        {"x-stream": "s", "x-stream-offset": 2},
    ]
    assert {(each.properties.content_type, each.properties.message_id) for each in found} == {
        ("text/plain", "7")
    }


@pytest.mark.parametrize(
    ("start", "first"), [("first", 0), ("last", 9), ("next", 10), (4, 4), (None, 10), ("1h", 0)]
)
def test_where_a_group_begins(node: StreamNode, peer: Peer, start: object, first: int) -> None:
    declare_stream(peer)
    for number in range(10):
        publish(peer, [b"m%d" % number])
        node.work()
    declare(peer, x_stream_offset=start)
    node.work()
    publish(peer, [b"m10"])
    node.work()
    peer.answers()
    consume(node, peer)
    assert offsets(worked(node, peer)[0]) == list(range(first, 11))


def test_next_is_where_the_stream_was_when_it_was_declared(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, x_stream_offset="next")
    publish(peer, bodies(5, 10))
    node.work()
    node.restart()
    again = opened(node)
    consume(node, again)
    assert offsets(worked(node, again)[0]) == [10, 11, 12, 13, 14]


# -- members -------------------------------------------------------------------------------------------------


def test_partitions_are_shared_and_no_message_comes_twice(node: StreamNode, peer: Peer) -> None:
    super_filled(node, peer)
    one, two = opened(node), opened(node)
    consume(node, one)
    node.work()
    consume(node, two)
    first, second = worked(node, one, two)
    # The first consumer had every message before the second one came; it keeps its unacked messages until it
    # acks.
    assert len(first) == 20 and not second
    tell(one, commands.Basic.Ack(0, multiple=True))
    published(node, peer, 4, 3)
    first, second = worked(node, one, two)
    assert len(first) == 6 and len(second) == 6
    assert not {each.stream for each in first} & {each.stream for each in second}
    assert offsets(second) == [5, 6, 7, 5, 6, 7]


def test_what_a_lost_member_held_comes_first_and_flagged(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    one, two = opened(node), opened(node)
    consume(node, one, 6)
    consume(node, two)
    first, second = worked(node, one, two)
    assert offsets(first) == [0, 1, 2, 3, 4, 5] and not second
    tell(one, commands.Basic.Ack(1), commands.Basic.Ack(4))
    worked(node, one)
    tell(one, commands.Channel.Close(200, "", 0, 0))
    (second,) = worked(node, two)
    again = [each for each in second if each.again]
    # The first consumer got two more after its acks.
    assert offsets(again) == [1, 2, 4, 5, 6, 7]
    assert offsets(second) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_a_cancelled_member_settles_what_it_holds(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    one, two = opened(node), opened(node)
    consume(node, one, 4)
    consume(node, two)
    worked(node, one, two)
    tell(one, commands.Basic.Cancel("t"))
    assert worked(node, two) == [[]]
    tell(one, commands.Basic.Ack(3, multiple=True))
    assert worked(node, two) == [[]]
    tell(one, commands.Basic.Ack(4))
    assert offsets(worked(node, two)[0]) == [4, 5, 6, 7, 8, 9]
    assert committed(node) == [4]


def test_a_member_that_is_stuck_is_cancelled(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10, x_consumer_timeout=60_000)
    one, two = opened(node), opened(node)
    consume(node, one, 3)
    consume(node, two)
    worked(node, one, two)
    node.pass_time(30_000)
    tell(one, commands.Basic.Ack(1))
    worked(node, one)
    node.pass_time(31_000)
    node.work()
    told = [each for _, each in one.answers() if isinstance(each, commands.Basic.Cancel)]
    assert [each.consumer_tag for each in told] == ["t"]
    assert offsets(got(two)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    # Its ack now is too late, and no error.
    tell(one, commands.Basic.Ack(2))
    assert one.answers() == []


def test_more_members_than_partitions_wait(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    one, two = opened(node), opened(node)
    consume(node, one)
    consume(node, two)
    worked(node, one, two)
    tell(one, commands.Basic.Ack(0, multiple=True), commands.Channel.Close(200, "", 0, 0))
    publish(peer, [b"x"])
    assert offsets(worked(node, two)[0]) == [10]


def test_a_channels_window_is_shared(node: StreamNode, peer: Peer) -> None:
    super_filled(node, peer, 2, 10)
    tell(peer, commands.Basic.Qos(prefetch_count=5, global_=True))
    tell(peer, commands.Basic.Consume(queue="g", consumer_tag="a"))
    tell(peer, commands.Basic.Consume(queue="g", consumer_tag="b"))
    assert len(worked(node, peer)[0]) <= 5
    seen = 5
    for tag in range(1, 21):
        tell(peer, commands.Basic.Ack(tag))
        seen += len(worked(node, peer)[0])
    assert seen >= 20 and committed(node) == [10, 10]


def test_what_a_client_holds_of_a_deleted_group_keeps_its_share_of_the_window(
    node: StreamNode, peer: Peer
) -> None:
    super_filled(node, peer, 2, 10)
    declare(peer, "h")
    tell(peer, commands.Basic.Qos(prefetch_count=5, global_=True))
    tell(peer, commands.Basic.Consume(queue="g", consumer_tag="a"))
    assert len(worked(node, peer)[0]) == 5
    opened(node).call(1, commands.Queue.Delete(queue="g"))
    tell(peer, commands.Basic.Consume(queue="h", consumer_tag="b"))
    assert worked(node, peer)[0] == []
    tell(peer, commands.Basic.Ack(2))
    assert len(worked(node, peer)[0]) == 1
    tell(peer, commands.Basic.Ack(5, multiple=True))
    assert len(worked(node, peer)[0]) == 4
    assert peer.session.channels[1].window.used == 5


def test_more_partitions_are_the_groups_too(node: StreamNode, peer: Peer) -> None:
    super_filled(node, peer, 2, 3)
    consume(node, peer)
    assert len(worked(node, peer)[0]) == 6
    node.broker.propose(growth(node.broker.vhost("/"), "s", 2))
    published(node, peer, 0, 0)
    publish(peer, bodies(3), name="s-3")
    (messages,) = worked(node, peer)
    assert messages == [Message("s-3", number, b"m%d" % number) for number in range(3)]


def test_a_group_over_a_deleted_stream_says_so(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    one = opened(node)
    consume(node, one)
    worked(node, one)
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert [type(each) for _, each in one.answers()] == [commands.Basic.Cancel]
    text = refused(one.call(1, commands.Basic.Consume(queue="g")), 506)
    assert "stream 's'" in text and "gone" in text
    # A new stream of that name is read from its first message on.
    peer.answers()
    declare_stream(peer)
    publish(peer, [b"new"])
    node.work()
    two = opened(node)
    consume(node, two)
    assert worked(node, two) == [[Message("s", 0, b"new")]]


# -- poison --------------------------------------------------------------------------------------------------


def letters(node: StreamNode, peer: Peer) -> list[Delivery]:
    node.work()
    peer.answers()
    found: list[Delivery] = []
    while True:
        (answer,) = peer.call(1, commands.Basic.Get(queue="dead", no_ack=True))
        if not isinstance(answer[1], Delivery):
            return found
        found.append(answer[1])


def test_what_is_rejected_or_comes_back_too_often_is_dead_lettered(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="dead"))
    more = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead", "x_delivery_limit": 1}
    filled(node, peer, 30, **more)
    consume(node, peer, 5)
    worked(node, peer)
    tell(peer, commands.Basic.Nack(5, requeue=True), commands.Basic.Nack(2, requeue=False))
    # The message that came back has the next free tag.
    assert worked(node, peer) == [[Message("s", 4, b"m4", True), Message("s", 5, b"m5")]]
    tell(peer, commands.Basic.Nack(6, requeue=True))
    found = letters(node, peer)
    assert [each.body for each in found] == [b"m1", b"m4"]
    headers: list[Any] = [each.properties.headers for each in found]
    deaths = [each["x-death"][0] for each in headers]
    assert [(each["reason"], each["queue"]) for each in deaths] == [
        ("rejected", "g"),
        ("delivery_limit", "g"),
    ]
    assert [each["x-stream-offset"] for each in headers] == [1, 4]


def test_many_dead_letters_leave_in_order_and_are_committed(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="dead"))
    filled(node, peer, 100, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    consume(node, peer)
    worked(node, peer)
    tell(peer, commands.Basic.Nack(0, multiple=True, requeue=False))
    assert [each.body for each in letters(node, peer)] == bodies(100)
    assert committed(node) == [100]


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_dead_letters_wait_for_a_stream_that_has_failed(
    node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    peer.call(1, commands.Queue.Declare(queue="dead"))
    filled(node, peer, 30, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    one = opened(node)
    consume(node, one, 5)
    worked(node, one)
    stream = node.broker.vhost("/").queues["s"]
    if when == "before it is read":
        node.turn.run(stream.host_failed, RuntimeError("for the test"))
        tell(one, commands.Basic.Nack(2, multiple=True, requeue=False))
    else:

        def unreadable(*_: object) -> None:
            raise OSError("for the test")

        monkeypatch.setattr(node.host()._log, "read", unreadable)
        tell(one, commands.Basic.Nack(2, multiple=True, requeue=False))
    node.work()
    for _ in range(3):
        node.pass_time(1_000)
        node.work()
    assert [each.body for each in letters(node, peer)] == [b"m0", b"m1"]
    assert committed(node) == [2]


def test_without_a_dead_letter_exchange_what_is_refused_is_done(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 3)
    consume(node, peer)
    worked(node, peer)
    tell(peer, commands.Basic.Nack(0, multiple=True, requeue=False))
    node.work()
    assert committed(node) == [3]


# -- restarts ------------------------------------------------------------------------------------------------


def test_what_was_acked_does_not_come_again_after_a_crash(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 20)
    consume(node, peer, 10)
    worked(node, peer)
    tell(peer, *[commands.Basic.Ack(tag) for tag in (1, 2, 5, 6, 9)])
    assert offsets(worked(node, peer)[0]) == [10, 11, 12, 13, 14]
    node.restart()
    again = opened(node)
    consume(node, again)
    (messages,) = worked(node, again)
    assert offsets([each for each in messages if each.again]) == [2, 3, 6, 7, 9, 10, 11, 12, 13, 14]
    assert offsets([each for each in messages if not each.again]) == [15, 16, 17, 18, 19]
    assert offsets(messages) == sorted(offsets(messages))


def test_acks_that_were_not_synced_come_again_flagged(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 5)
    consume(node, peer)
    worked(node, peer)
    tell(peer, commands.Basic.Ack(0, multiple=True))
    node.restart()
    again = opened(node)
    consume(node, again)
    (messages,) = worked(node, again)
    assert [(each.offset, each.again) for each in messages] == [(number, True) for number in range(5)]


def test_many_acks_are_one_entry(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 50)
    consume(node, peer)
    worked(node, peer)
    host(node)
    layer = node.environment.pending
    for tag in range(1, 51):
        tell(peer, commands.Basic.Ack(tag))
    queue_id = node.broker.vhost("/").queues["g"].queue_id
    changes = [each.queues[queue_id] for each in layer if queue_id in each.queues]
    assert sum(len(each.annotations) for each in changes) == 1
    worked(node, peer)
    node.restart()
    assert committed(node) == [50]


# -- one by one, and all at once -----------------------------------------------------------------------------


def get(node: StreamNode, peer: Peer, *, no_ack: bool = False) -> Message | None:
    answers = peer.call(1, commands.Basic.Get(queue="g", no_ack=no_ack))
    node.work()
    ((_, answer),) = [*answers, *peer.answers()]
    return _message(answer) if isinstance(answer, Delivery) else None


def test_a_get_takes_from_a_partition_that_nobody_else_holds(node: StreamNode, peer: Peer) -> None:
    super_filled(node, peer, 2, 2)
    one, two = opened(node), opened(node)
    assert get(node, one) == Message("s-0", 0, b"m0")
    # The other consumer gets the partition that nobody holds.
    assert get(node, two) == Message("s-1", 0, b"m0")
    assert get(node, one) == Message("s-0", 1, b"m1")
    assert get(node, one) is None
    tell(one, commands.Basic.Ack(1, multiple=True), commands.Basic.Nack(2, requeue=True))
    assert get(node, two) == Message("s-1", 1, b"m1")
    assert get(node, one) == Message("s-0", 1, b"m1", True)
    one.call(1, commands.Channel.Close(200, "", 0, 0))
    node.work()
    assert get(node, two, no_ack=True) == Message("s-0", 1, b"m1", True)
    assert sorted(committed(node)) == [0, 2]


def test_basic_get_takes_nothing_from_a_member(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    one, two = opened(node), opened(node)
    consume(node, one, 2)
    worked(node, one)
    assert get(node, two) is None
    assert get(node, one) == Message("s", 2, b"m2")


def test_purge_goes_to_the_end(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    consume(node, peer, 3)
    worked(node, peer)
    ((_, answer),) = peer.call(1, commands.Queue.Purge(queue="g"))
    assert isinstance(answer, commands.Queue.PurgeOk) and answer.message_count == 7
    tell(peer, commands.Basic.Ack(0, multiple=True))
    publish(peer, [b"new"])
    assert worked(node, peer) == [[Message("s", 10, b"new")]]
    assert committed(node) == [10]


def test_a_group_that_was_deleted_begins_anew(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    consume(node, peer)
    worked(node, peer)
    tell(peer, commands.Basic.Ack(0, multiple=True))
    ((_, answer), _) = peer.call(1, commands.Queue.Delete(queue="g"))
    assert isinstance(answer, commands.Queue.DeleteOk)
    node.work()
    peer.answers()
    declare(peer)
    consume(node, peer)
    assert len(worked(node, peer)[0]) == 10
    # The stream has all messages, and knows of no consumer.
    assert (node.host().ready_count, node.host().consumer_count) == (10, 0)


def test_groups_do_not_disturb_each_other(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 5)
    declare(peer, "other")
    consume(node, peer)
    consume(node, peer, tag="u", name="other")
    assert len(worked(node, peer)[0]) == 10
    tell(peer, commands.Basic.Ack(5, multiple=True))
    worked(node, peer)
    assert sorted(committed(node) + committed(node, "other")) == [0, 5]


def test_retention_takes_what_was_not_read(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer, x_max_length_bytes=400)
    declare(peer)
    consume(node, peer, 1)
    for number in range(30):
        publish(peer, [b"%d" % number * 20])
        node.work()
    tell(peer, commands.Basic.Nack(1, requeue=True))
    (messages,) = worked(node, peer)
    (first,) = {each.offset for each in messages} - {0}
    assert first == node.host().first_offset > 0
    assert committed(node) == [first]


def test_a_reset_begins_elsewhere_and_forgets_what_is_held(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    consume(node, peer, 6)
    worked(node, peer)
    group = host(node)
    node.turn.run(group.move, [(group.readers[0], 3)])
    assert offsets(worked(node, peer)[0]) == [3, 4, 5, 6, 7, 8]
    # Acks of messages that were held before mean nothing any more.
    tell(peer, commands.Basic.Ack(6, multiple=True))
    assert worked(node, peer) == [[]] and committed(node) == [3]
    node.restart()
    again = opened(node)
    consume(node, again)
    (messages,) = worked(node, again)
    assert [(each.offset, each.again) for each in messages] == [(each, each < 9) for each in range(3, 10)]


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"stream": None}, 406, "a group needs a stream"),
        ({"stream": 5}, 406, "x-stream"),
        ({"stream": "nothing"}, 404, "no stream or super stream 'nothing'"),
        ({"stream": "plain"}, 406, "queue 'plain' is a classic queue"),
        ({"stream": "amq.direct"}, 406, "is not a super stream"),
        ({"x_stream_offset": "soon"}, 406, "x-stream-offset"),
        ({"x_message_ttl": 5}, 406, "x-message-ttl"),
        ({"x_max_length": 5}, 406, "x-max-length"),
        ({"x_single_active_consumer": True}, 406, "x-single-active-consumer"),
        ({"x_consumer_timeout": 0}, 406, "x-consumer-timeout"),
        ({"x_delivery_limit": "many"}, 406, "x-delivery-limit"),
        ({"x_max_age": "1D"}, 406, "x-max-age"),
    ],
)
def test_a_group_that_cannot_be_is_refused(
    node: StreamNode, peer: Peer, more: dict[str, Any], code: int, words: str
) -> None:
    declare_stream(peer)
    peer.call(1, commands.Queue.Declare(queue="plain"))
    assert words in refused(declare(peer, **more), code)
    assert "g" not in node.broker.vhost("/").queues


def test_a_second_declare_has_to_say_the_same(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    ((_, answer),) = declare(peer)
    assert isinstance(answer, commands.Queue.DeclareOk) and answer.message_count == 10
    assert "x-delivery-limit" in refused(declare(peer, x_delivery_limit=4))


def test_nothing_is_published_to_a_group(node: StreamNode, peer: Peer) -> None:
    filled(node, peer)
    publish(peer, [b"x"], name="g")
    assert "publish to 's'" in refused(peer.answers())
    other = opened(node)
    bound = other.call(1, commands.Queue.Bind(queue="g", exchange="amq.fanout"))
    assert "publish to 's'" in refused(bound)


@pytest.mark.parametrize("more", [{"exclusive": True}, {"arguments": {"x-stream-offset": "first"}}])
def test_what_a_member_cannot_ask_for(node: StreamNode, peer: Peer, more: dict[str, Any]) -> None:
    filled(node, peer)
    assert "which is a consumer group" in refused(peer.call(1, commands.Basic.Consume(queue="g", **more)))


def test_who_may_not_read_the_stream_has_no_group_over_it(node: StreamNode, peer: Peer) -> None:
    declare_stream(peer)
    node.broker.access.permissions.set("other", "/", ".*", ".*", "g")
    assert "'s'" in refused(declare(opened(node, "other")), 403)


# -- failures ------------------------------------------------------------------------------------------------


def test_a_group_outlives_a_failure_of_its_stream(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    one = opened(node)
    consume(node, one, 4)
    worked(node, one)
    tell(one, commands.Basic.Ack(2, multiple=True))
    worked(node, one)
    stream = node.broker.vhost("/").queues["s"]
    node.turn.run(stream.host_failed, RuntimeError("for the test"))
    node.work()
    assert host(node).ready_count == 0
    for _ in range(3):
        node.pass_time(1_000)
        node.work()
    # The member is still there, and goes on with the messages that it had not got.
    tell(one, commands.Basic.Ack(6, multiple=True))
    assert offsets(worked(node, one)[0]) == [6, 7, 8, 9]
    assert committed(node) == [6]


def test_a_group_that_failed_begins_where_it_was(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    one = opened(node)
    consume(node, one, 4)
    worked(node, one)
    tell(one, commands.Basic.Ack(2, multiple=True))
    worked(node, one)
    group = node.broker.vhost("/").queues["g"]
    node.turn.run(group.host_failed, RuntimeError("for the test"))
    node.work()
    assert [type(each) for _, each in one.answers()] == [commands.Basic.Cancel]
    for _ in range(3):
        node.pass_time(1_000)
        node.work()
    two = opened(node)
    consume(node, two)
    (messages,) = worked(node, two)
    assert [(each.offset, each.again) for each in messages] == [(each, each < 6) for each in range(2, 10)]


def test_a_transaction_of_acks(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10)
    tell(peer, commands.Tx.Select())
    consume(node, peer, 5)
    worked(node, peer)
    tell(peer, commands.Basic.Ack(3, multiple=True))
    assert worked(node, peer) == [[]] and committed(node) == [0]
    ((_, answer),) = [
        each for each in peer.call(1, commands.Tx.Commit()) if not isinstance(each[1], Delivery)
    ]
    assert isinstance(answer, commands.Tx.CommitOk)
    # The answer came when the acks were on the disk.
    node.restart()
    node.work()
    assert committed(node) == [3]


def test_a_transaction_of_acks_that_come_too_late_does_nothing(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 10, x_consumer_timeout=60_000)
    one = opened(node)
    consume(node, one, 4)
    worked(node, one)
    tell(one, commands.Tx.Select(), commands.Basic.Ack(1))
    node.pass_time(61_000)
    node.work()
    one.answers()
    ((_, answer),) = one.call(1, commands.Tx.Commit())
    assert isinstance(answer, commands.Channel.Close) and answer.reply_code == 406
    assert "nothing was done, because messages of queue 'g' that it acks have gone back" in answer.reply_text
    assert committed(node) == [0]


@pytest.mark.parametrize("how", ["nack", "channel", "restart"])
def test_more_gaps_than_a_partition_may_have_come_back(how: str) -> None:
    """At group_gaps_max a member gets nothing new. Returned messages are not new, and nobody can ack them
    before they are delivered: the partition would stand still for ever.
    """
    node = StreamNode(group_gaps_max=16)
    peer = opened(node)
    filled(node, peer, 80)
    consume(node, peer)
    assert offsets(worked(node, peer)[0]) == [*range(80)]
    tell(peer, *[commands.Basic.Ack(tag) for tag in range(1, 81, 2)])
    node.work()
    publish(peer, bodies(5, 80))
    assert worked(node, peer) == [[]]
    if how == "nack":
        tell(peer, commands.Basic.Nack(0, multiple=True, requeue=True))
    else:
        if how == "channel":
            tell(peer, commands.Channel.Close(200, "", 0, 0))
        else:
            node.restart()
        peer = opened(node)
        consume(node, peer)
    back = worked(node, peer)[0]
    assert [(each.offset, each.again) for each in back] == [(offset, True) for offset in range(1, 80, 2)]
    tell(peer, commands.Basic.Ack(0, multiple=True))
    assert offsets(worked(node, peer)[0]) == [*range(80, 85)]


@pytest.mark.pure
@pytest.mark.parametrize(
    "one",
    [
        test_what_a_lost_member_held_comes_first_and_flagged,
        test_a_member_that_is_stuck_is_cancelled,
        test_a_cancelled_member_settles_what_it_holds,
        test_a_reset_begins_elsewhere_and_forgets_what_is_held,
        test_a_group_over_a_deleted_stream_says_so,
    ],
)
def test_what_a_member_held_comes_back_in_parts(
    one: Callable[[StreamNode, Peer], None], node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same happens."""
    for module in (group_of_members, local_host):
        monkeypatch.setattr(module, "PORTIONS_MAX", 1)
    one(node, peer)


@pytest.mark.pure
def test_a_turn_lets_a_part_of_what_a_member_held_come_back(
    node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(node, peer, 100)
    one, two = opened(node), opened(node)
    consume(node, one)
    consume(node, two)
    worked(node, one, two)
    tell(one, *[commands.Basic.Ack(tag) for tag in range(1, 100, 2)])
    node.work()
    for module in (group_of_members, local_host):
        monkeypatch.setattr(module, "PORTIONS_MAX", 10)
    monkeypatch.setattr(Turn, "overdue", lambda turn: True)
    (member,) = [each for each in host(node).group.members.values() if each.count]
    left = [50]
    apply_pending = ConsumerGroupHost.apply_pending

    def counting(group: ConsumerGroupHost) -> None:
        apply_pending(group)
        left.append(len(member.portions()))

    monkeypatch.setattr(ConsumerGroupHost, "apply_pending", counting)
    tell(one, commands.Channel.Close(200, "", 0, 0))
    while left[-1]:
        node.turn.run(node.turn.catch_up)
    assert all(before - after <= 10 for before, after in pairwise(left)) and not left[-1]
    monkeypatch.undo()
    while node.turn.behind:
        node.turn.run(node.turn.catch_up)
    assert offsets(worked(node, two)[0]) == [*range(1, 100, 2)]


def test_recover_brings_all_back(node: StreamNode, peer: Peer) -> None:
    filled(node, peer, 5)
    consume(node, peer)
    worked(node, peer)
    tell(peer, commands.Basic.Ack(2), commands.Basic.Recover(requeue=True))
    (messages,) = worked(node, peer)
    assert [(each.offset, each.again) for each in messages] == [(0, True), (2, True), (3, True), (4, True)]


def test_what_many_groups_have_read_ahead_is_bounded() -> None:
    """While the members of a group take no more messages, the group keeps nothing of a batch that the
    stream's reader has let go of.
    """
    options = StreamOptions(segment_bytes=20_000, flush_bytes=1, read_bytes_max=30_000)
    node = StreamNode(options)
    peer = opened(node)
    declare_stream(peer)
    for start in range(0, 200, 10):
        publish(peer, [b"%04d" % number + b"x" * 1000 for number in range(start, start + 10)])
        node.work()
    names = [f"g{number}" for number in range(10)]
    for name in names:
        declare(peer, name)
        consume(node, peer, prefetch=3, name=name, tag=name)
    found = len(worked(node, peer)[0])
    while found < len(names) * 200:
        kept = [reader._headers._source for name in names for reader in host(node, name).readers]
        assert sum([batch.size for batch in kept if batch is not None]) <= 30_000 + 20_000
        tell(peer, commands.Basic.Ack(0, multiple=True))
        found += (more := len(worked(node, peer)[0]))
        assert more


@pytest.mark.pure
def test_a_group_looks_for_partitions_when_its_own_streams_change(
    node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every bind would have thousands of groups look through thousands of bindings."""
    filled(node, peer)
    declare_super_stream(peer, "su", 5)
    declare(peer, "over", "su")
    node.work()
    looked: list[str] = []
    streams_of = consumer_groups.streams_of

    def noted(vhost: VHost, name: str) -> list[Any]:
        looked.append(name)
        return streams_of(vhost, name)

    monkeypatch.setattr(consumer_groups, "streams_of", noted)
    peer.call(1, commands.Queue.Declare(queue="q"))
    for method in (commands.Queue.Bind, commands.Queue.Unbind):
        peer.call(1, method(queue="q", exchange="amq.direct", routing_key="k"))
    declare_stream(peer, "other")
    peer.call(1, commands.Queue.Delete(queue="other"))
    node.work()
    assert looked == []
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert set(looked) == {"s"}
    looked.clear()
    peer.call(1, commands.Exchange.Delete(exchange="su"))
    node.work()
    assert set(looked) == {"su"} and host(node, "over").readers == []
    declare_stream(peer)
    declare_super_stream(peer, "su", 7)
    node.work()
    assert len(host(node, "over").readers) == 7 and len(host(node).readers) == 1
    peer.call(1, commands.Queue.Delete(queue="over"))
    assert list(node.broker.vhost("/")._groups_over) == ["s"]


def test_the_marks_of_a_groups_partitions_are_stored_once(
    node: StreamNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_super_stream(peer, "su", 20)
    stored: list[str] = []
    put = Metadata.put

    def noted(store: Metadata, table: str, key: str, value: bytes) -> None:
        stored.append(table)
        put(store, table, key, value)

    monkeypatch.setattr(Metadata, "put", noted)
    declare(peer, "g", "su")
    node.work()
    assert stored.count(MARKS) == 1
    assert sorted(each.number for each in host(node).group.partitions.values()) == list(range(20))


def in_memory() -> tuple[StreamNode, Peer]:
    """Return a node whose streams stay in memory, so that threads have nothing to read."""
    node = StreamNode(StreamOptions(segment_bytes=1 << 20, flush_bytes=1 << 20))
    return node, opened(node)


def test_a_batch_of_messages_that_differ_is_handed_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    node, peer = in_memory()
    declare_stream(peer)
    declare(peer)
    consume(node, peer, prefetch=0)
    node.work()
    peer.answers()
    # These messages name a stream already, as dead letters of groups do: so the headers of each are made
    # anew.
    more = [{"x-stream": "other", "n": n} for n in range(4 * PIECE)]
    publish(peer, bodies(4 * PIECE), more=more)
    monkeypatch.setattr(Turn, "overdue", lambda turn: True)
    node.sync()
    counts, found = [], list[Message]()
    for _ in range(20):
        node.turn.run(node.turn.catch_up)
        peer.collect()
        part = got(peer)
        counts.append(len(part))
        found += part
    assert found == [Message("s", n, b"m%d" % n) for n in range(4 * PIECE)]
    assert max(counts) == PIECE


@pytest.mark.pure
def test_dead_letters_leave_as_many_as_a_turn_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node, peer = in_memory()
    peer.call(1, commands.Queue.Declare(queue="dead"))
    filled(node, peer, 40, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    consume(node, peer)
    node.work()
    got(peer)
    dead = node.broker.vhost("/").queues["dead"].host
    asked = [0]

    def overdue(turn: Turn) -> bool:
        asked[0] += 1
        return asked[0] > 3

    monkeypatch.setattr(Turn, "overdue", overdue)
    tell(peer, commands.Basic.Nack(0, True, False))
    counts = [0]
    for _ in range(100):
        asked[0] = 0
        node.turn.run(node.turn.catch_up)
        node.sync()
        counts.append(dead.ready_count)
    node.work()
    assert counts[-1] == 40
    assert max(after - before for before, after in zip(counts, counts[1:], strict=False)) < LETTERS_MAX
    assert [each.body for each in letters(node, peer)] == bodies(40)
    assert host(node).unacked_count == 0
    assert committed(node) == [40]


@pytest.mark.parametrize(("queues", "count"), [(12, 40), (200, 3)])
def test_dead_letters_to_many_queues_wait_until_those_have_taken_the_last_ones(
    monkeypatch: pytest.MonkeyPatch, queues: int, count: int
) -> None:
    """To hand a dead letter to a queue is quick; the work of the queue takes the time."""
    node, peer = in_memory()
    for number in range(queues):
        peer.call(1, commands.Queue.Declare(queue=f"dead{number}"))
        peer.call(1, commands.Queue.Bind(queue=f"dead{number}", exchange="amq.fanout"))
    filled(node, peer, count, x_dead_letter_exchange="amq.fanout")
    consume(node, peer)
    node.work()
    got(peer)
    dead = [node.broker.vhost("/").queues[f"dead{number}"].host for number in range(queues)]
    applied: list[LocalHost] = []
    apply_pending = LocalHost.apply_pending

    def slow(host: LocalHost) -> None:
        applied.append(host)
        apply_pending(host)

    monkeypatch.setattr(LocalHost, "apply_pending", slow)
    # The commands of one queue take a whole turn.
    monkeypatch.setattr(Turn, "overdue", lambda turn: bool(applied))
    tell(peer, commands.Basic.Nack(0, True, False))
    counts = [0]
    for _ in range(200):
        counts.append(sum(each.ready_count for each in dead))
        applied.clear()
        node.turn.run(node.turn.catch_up)
        node.sync()
    assert max(after - before for before, after in zip(counts, counts[1:], strict=False)) <= 2 * SCHEDULED_MAX
    assert {each.ready_count for each in dead} == {count}
    assert host(node).unacked_count == 0
    assert committed(node) == [count]


@pytest.mark.pure
@pytest.mark.parametrize("end", ["ack", "nack", "reject"])
def test_many_gaps_do_not_move_the_lists_of_a_member_once_each(
    node: StreamNode, peer: Peer, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ack or nack of everything, when every second message was acked before: 50 runs of one member."""
    filled(node, peer, 100)
    consume(node, peer)
    worked(node, peer)
    tell(peer, *[commands.Basic.Ack(tag) for tag in range(1, 101, 2)])
    node.work()
    taken: list[int] = []
    take = Member.take

    def noted(self: Member, low: int, high: int) -> list[Any]:
        taken.append(low)
        return take(self, low, high)

    monkeypatch.setattr(Member, "take", noted)
    tell(
        peer,
        commands.Basic.Ack(0, multiple=True)
        if end == "ack"
        else commands.Basic.Nack(0, multiple=True, requeue=end == "nack"),
    )
    back = worked(node, peer)[0]
    assert offsets(back) == ([*range(1, 100, 2)] if end == "nack" else []) and not taken


@pytest.mark.parametrize("more", [0, 3])
def test_what_is_lost_at_the_end_of_a_stream_is_no_lag(node: StreamNode, peer: Peer, more: int) -> None:
    """A damaged segment is the last one that has messages: none behind it shows the gap."""
    filled(node, peer)
    for start in (10, 20, 30):
        publish(peer, bodies(10, start))
        node.work()
    segments = sorted(path for path, data in node.files.now.items() if path.suffix == ".segment" and data)
    last = node.files.now[segments[-1]]
    last[:] = bytes(len(last))
    node.files.synced[segments[-1]] = bytes(last)
    node.restart()
    peer = opened(node)
    consume(node, peer)
    there = offsets(worked(node, peer)[0])
    assert there == [*range(len(there))] and 0 < len(there) < 40
    tell(peer, commands.Basic.Ack(0, multiple=True))
    node.work()
    assert host(node).ready_count == 0
    assert committed(node) == [40]
    node.restart()
    assert committed(node) == [40]
    peer = opened(node)
    consume(node, peer)
    publish(peer, bodies(more, 40))
    assert offsets(worked(node, peer)[0]) == [*range(40, 40 + more)]
