"""basic.consume and basic.cancel: tags, exclusivity, priorities, cancellation both ways, delivery."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Connect, Name, Raw
from conformance_tests.expect import expect_channel_close, expect_connection_close
from conformance_tests.inbox import Inbox, drain, numbered, publish, sync, wait_drain, wait_for
from conformance_tests.wire import RawClient, raw_method, short_string, table_bytes

Basic = commands.Basic


@pytest.fixture
def queue(ch: BlockingChannel, name: Name) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    return queue


def test_a_consumer_gets_what_is_there_and_what_comes(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"before")
    inbox = Inbox(ch, queue, auto_ack=True)
    publish(ch, queue, b"after")
    assert inbox.bodies(2) == [b"before", b"after"]


def test_the_tag_is_made_by_the_broker_if_none_is_given(raw: Raw, queue: str) -> None:
    client = raw()
    tags = [client.call(Basic.Consume(queue=queue), Basic.ConsumeOk).consumer_tag for _ in range(2)]
    assert all(str(tag).startswith("amq.ctag-") for tag in tags)
    assert tags[0] != tags[1]


def test_deliveries_carry_the_consumers_tag(ch: BlockingChannel, queue: str) -> None:
    inbox = Inbox(ch, queue, tag="my tag ☂")
    publish(ch, queue, b"m")
    assert inbox.one().consumer_tag == "my tag ☂"


def test_delivery_tags_count_up_per_channel_over_consumers_and_gets(
    ch: BlockingChannel, raw: Raw, queue: str
) -> None:
    publish(ch, queue, *numbered(4))
    client = raw()
    client.call(Basic.Qos(prefetch_count=1), Basic.QosOk)
    client.send_method(Basic.Get(queue=queue))
    methods = [client.read_content(Basic.GetOk).method]
    for tag in ("a", "b"):
        client.call(Basic.Consume(queue=queue, consumer_tag=tag), Basic.ConsumeOk)
        methods.append(client.read_content().method)
    tags = [method.delivery_tag for method in methods if isinstance(method, Basic.GetOk | Basic.Deliver)]
    assert tags == [1, 2, 3]


def test_each_channel_counts_for_itself(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"1", b"2")
    for _ in range(2):
        channel = ch.connection.channel()
        channel.basic_qos(prefetch_count=1)
        assert Inbox(channel, queue).one().tag == 1


def test_a_tag_in_use_closes_the_connection(raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="twice"), Basic.ConsumeOk)
    client.send_method(Basic.Consume(queue=queue, consumer_tag="twice"))
    client.expect_connection_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'", (60, 20))


def test_the_same_tag_on_two_channels(ch: BlockingChannel, queue: str) -> None:
    for _ in range(2):
        assert Inbox(ch.connection.channel(), queue, tag="same").tag == "same"


def test_a_tag_is_free_after_cancel(ch: BlockingChannel, queue: str) -> None:
    for body in (b"1", b"2"):
        inbox = Inbox(ch, queue, tag="again", auto_ack=True)
        publish(ch, queue, body)
        assert inbox.bodies(1) == [body]
        ch.basic_cancel("again")


def test_consume_of_a_missing_queue(ch: BlockingChannel, name: Name) -> None:
    missing = name("q")
    with expect_channel_close(404, f"NOT_FOUND - no queue '{missing}' in vhost '/'"):
        Inbox(ch, missing)


def test_no_wait_consume_is_answered_by_deliveries_only(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    publish(ch, queue, b"m")
    client = raw()
    client.send_method(Basic.Consume(queue=queue, consumer_tag="t", no_ack=True, nowait=True))
    assert client.read_content().body == b"m"
    client.send_method(Basic.Cancel(consumer_tag="t", nowait=True))
    client.expect_answer_first()


def test_no_local_is_accepted_and_means_nothing(raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Consume(queue=queue, no_local=True, no_ack=True), Basic.ConsumeOk)
    client.publish(b"mine", routing_key=queue)
    assert client.read_content().body == b"mine"


def test_unknown_consume_arguments_are_accepted(ch: BlockingChannel, queue: str) -> None:
    inbox = Inbox(ch, queue, auto_ack=True, arguments={"whatever": [1, {"a": True}]})
    publish(ch, queue, b"m")
    assert inbox.bodies(1) == [b"m"]


def test_consume_ok_comes_before_the_first_delivery(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    client = raw()
    client.call(Basic.Consume(queue=queue, no_ack=True), Basic.ConsumeOk)
    assert [client.read_content().body for _ in range(3)] == numbered(3)


# --- exclusive ---


def test_exclusive_consumer_is_alone(ch: BlockingChannel, queue: str) -> None:
    holder = Inbox(ch.connection.channel(), queue, exclusive=True)
    with expect_channel_close(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Inbox(ch, queue)
    holder.ch.basic_cancel(holder.tag)
    Inbox(ch.connection.channel(), queue)


def test_exclusive_is_refused_beside_other_consumers(ch: BlockingChannel, queue: str) -> None:
    Inbox(ch.connection.channel(), queue)
    with expect_channel_close(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Inbox(ch, queue, exclusive=True)


def test_get_works_beside_an_exclusive_consumer(ch: BlockingChannel, queue: str) -> None:
    other = ch.connection.channel()
    other.basic_qos(prefetch_count=1)
    holder = Inbox(other, queue, exclusive=True)
    publish(ch, queue, b"1", b"2")
    assert holder.bodies(1) == [b"1"]
    assert wait_drain(ch, queue, 1) == [b"2"]


# --- consumer priority ---


def test_the_higher_priority_consumer_is_served_first(ch: BlockingChannel, queue: str) -> None:
    channels = [ch.connection.channel() for _ in range(3)]
    for channel in channels:
        channel.basic_qos(prefetch_count=2)
    low = Inbox(channels[0], queue, arguments={"x-priority": -5})
    normal = Inbox(channels[1], queue)
    high = Inbox(channels[2], queue, arguments={"x-priority": 10})
    publish(ch, queue, *numbered(5))
    assert high.bodies(2) == [b"0", b"1"]
    assert normal.bodies(2) == [b"2", b"3"]
    assert low.bodies(1) == [b"4"]
    high.ch.basic_ack(high.deliveries[0].tag)
    sync(high.ch)
    publish(ch, queue, b"next")
    assert high.bodies(1) == [b"next"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("1", "longstr"), ([1], "array"), ({"a": 1}, "table"), (None, "void"), (True, "bool")],
)
def test_consumer_priority_must_be_an_integer(ch: BlockingChannel, queue: str, value: Any, kind: str) -> None:
    with expect_channel_close(
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': "
        f'"expected integer, got {kind}"',
    ):
        Inbox(ch, queue, arguments={"x-priority": value})


def consume_with(client: RawClient, queue: str, value: bytes) -> None:
    """Send a basic.consume whose x-priority has this type and these octets."""
    arguments = table_bytes({"x-priority": value})
    client.send(
        raw_method(60, 20, b"\0\0" + short_string(queue.encode()) + short_string(b"") + b"\0" + arguments)
    )


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"T" + b"\xff" * 8, "timestamp"),
        (b"T" + b"\0" * 7 + b"\x05", "timestamp"),
        (b"D\0\0\0\0\x05", "decimal"),
        (b"d" + struct.pack(">d", 5), "double"),
        (b"f" + struct.pack(">f", 5), "float"),
        (b"x\0\0\0\x015", "binary"),
    ],
)
def test_consumer_priority_of_a_type_that_is_like_an_integer(
    ch: BlockingChannel, name: Name, raw: Raw, queue_type: str, value: bytes, kind: str
) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type})
    client = raw()
    consume_with(client, queue, value)
    client.expect_channel_close(
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': "
        f'"expected integer, got {kind}"',
    )
    ch.queue_delete(queue)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_consumer_priority_of_any_width(ch: BlockingChannel, name: Name, raw: Raw, queue_type: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type})
    client = raw()
    for value in (
        b"b\x80",
        b"B\xff",
        b"s\x80\0",
        b"u\xff\xff",
        b"I\x80\0\0\0",
        b"i\xff\xff\xff\xff",
        b"l\x80" + b"\0" * 7,
        b"l\x7f" + b"\xff" * 7,
    ):
        consume_with(client, queue, value)
        client.read(Basic.ConsumeOk)
    publish(ch, queue, b"m")
    client.read(Basic.Deliver)
    client.close()
    ch.queue_delete(queue)


def test_equal_consumers_share_in_turn(ch: BlockingChannel, queue: str) -> None:
    channels = [ch.connection.channel() for _ in range(2)]
    for channel in channels:
        channel.basic_qos(prefetch_count=1)
    inboxes = [Inbox(channel, queue) for channel in channels]
    publish(ch, queue, *numbered(40))
    while sum(len(inbox.deliveries) for inbox in inboxes) < 40:
        for inbox in inboxes:
            inbox.ch.basic_ack(inbox.one().tag)
            if sum(len(each.deliveries) for each in inboxes) >= 40:
                break
    assert all(len(inbox.deliveries) >= 18 for inbox in inboxes)


# --- cancel ---


def test_cancel_of_an_unknown_tag_is_no_error(raw: Raw) -> None:
    client = raw()
    assert client.call(Basic.Cancel(consumer_tag="unknown"), Basic.CancelOk).consumer_tag == "unknown"


def test_after_cancel_ok_nothing_is_delivered(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    client.call(Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
    publish(ch, queue, b"m")
    client.expect_silence()
    assert drain(ch, queue) == [b"m"]


def test_cancel_leaves_the_unacked_with_the_channel(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    publish(ch, queue, b"1", b"2")
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    assert [client.read_content().body for _ in range(2)] == [b"1", b"2"]
    client.call(Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
    assert drain(ch, queue) == []
    client.send_method(Basic.Ack(1))
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    assert wait_drain(ch, queue, 1) == [b"2"]


def test_a_deleted_queue_cancels_its_consumers(ch: BlockingChannel, connect: Connect, queue: str) -> None:
    inboxes = [Inbox(connect().channel(), queue) for _ in range(2)]
    ch.queue_delete(queue)
    for inbox in inboxes:
        inbox.await_cancel()
        sync(inbox.ch)


def test_a_deleted_queue_cancels_the_deleters_own_consumer(raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    client.send_method(commands.Queue.Delete(queue=queue))
    got = [client.read_frame().method for _ in range(2)]
    assert {type(method) for method in got} == {Basic.Cancel, commands.Queue.DeleteOk}
    cancel = next(method for method in got if isinstance(method, Basic.Cancel))
    assert cancel.consumer_tag == "t"


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_on_the_deleters_channel_the_cancel_follows_delete_ok(raw: Raw, name: Name, queue_type: str) -> None:
    """A client that waits for delete-ok treats any method that comes before it as the answer."""
    client = raw()
    queue = name("q")
    arguments: dict[str, Any] = {"x-queue-type": queue_type}
    client.call(
        commands.Queue.Declare(queue=queue, durable=True, arguments=arguments), commands.Queue.DeclareOk
    )
    for tag in ("a", "b"):
        client.call(Basic.Consume(queue=queue, consumer_tag=tag), Basic.ConsumeOk)
    client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
    assert {str(client.read(Basic.Cancel).consumer_tag) for _ in "ab"} == {"a", "b"}
    client.declare()


def test_a_delete_without_an_answer_cancels_too(raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    client.send_method(commands.Queue.Delete(queue=queue, nowait=True))
    assert client.read(Basic.Cancel).consumer_tag == "t"


def test_a_refused_delete_cancels_nothing(raw: Raw, queue: str) -> None:
    client = raw().open_channel(2)
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk, 2)
    client.send_method(commands.Queue.Delete(queue=queue, if_unused=True), 2)
    client.expect_channel_close(406, "in use", 2)
    client.call(Basic.Consume(queue=queue, consumer_tag="u"), Basic.ConsumeOk)
    client.publish(b"m", routing_key=queue)
    assert client.read_content().body == b"m"
    client.send_method(commands.Queue.Delete(queue=queue))
    client.read(commands.Queue.DeleteOk)
    assert client.read(Basic.Cancel).consumer_tag == "u"


def test_no_cancel_for_a_client_that_did_not_announce_it(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client, told = raw(capabilities={"consumer_cancel_notify": False}), raw()
    for each in (client, told):
        each.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    ch.queue_delete(queue)
    # By then the client that announced the capability has got its cancel.
    told.read(Basic.Cancel)
    client.expect_answer_first()


def test_a_tag_is_free_after_the_brokers_cancel(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    queue = name("q")
    client = raw()
    for _ in range(2):
        client.call(commands.Queue.Declare(queue=queue), commands.Queue.DeclareOk)
        client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
        ch.queue_delete(queue)
        client.read(Basic.Cancel)


def test_a_closed_channel_stops_its_consumers(ch: BlockingChannel, queue: str) -> None:
    other = ch.connection.channel()
    Inbox(other, queue)
    other.close()
    wait_for(lambda: ch.queue_declare(queue, passive=True).method.consumer_count == 0, "no consumers")
    publish(ch, queue, b"m")
    assert drain(ch, queue) == [b"m"]


def test_connection_survives_a_refused_consume(ch: BlockingChannel, name: Name, queue: str) -> None:
    with expect_channel_close(404, "NOT_FOUND"):
        Inbox(ch, name("missing"))
    other = ch.connection.channel()
    inbox = Inbox(other, queue, auto_ack=True)
    publish(other, queue, b"m")
    assert inbox.bodies(1) == [b"m"]


def test_a_stream_offset_is_refused_on_a_classic_queue(ch: BlockingChannel, queue: str) -> None:
    with expect_channel_close(
        406, f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{queue}' in vhost '/'"
    ):
        Inbox(ch, queue, auto_ack=True, arguments={"x-stream-offset": "first"})


def test_immediate_publish_closes_the_connection(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client = raw()
    client.publish(b"m", routing_key=queue, immediate=True)
    client.expect_connection_close(540, "NOT_IMPLEMENTED - immediate=true", (60, 40))
    assert drain(ch, queue) == []


def test_recover_without_requeue_closes_the_connection(ch: BlockingChannel) -> None:
    with expect_connection_close(540, "NOT_IMPLEMENTED - requeue=false"):
        ch.basic_recover(requeue=False)
