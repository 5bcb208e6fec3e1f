"""Streams over AMQP: what they refuse, where a consumer begins, credit, and that messages stay."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from conformance_tests.broker import Broker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close, expect_connection_close
from conformance_tests.inbox import Delivery, Inbox, numbered, publish, queue_exists
from conformance_tests.patience import wait_s
from conformance_tests.stored_batch import Stored, messages_of

STREAM = {"x-queue-type": "stream"}
#: Pause between messages that should have different times, s. Times of AMQP are seconds.
PAUSE_S = 2.1


def declare(ch: BlockingChannel, name: Name, **arguments: Any) -> str:
    queue = name("stream")
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments=STREAM | named)
    return queue


def confirmed(connect: Connect, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish, and wait until the stream has the message."""
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel, queue, *bodies, **properties)
    connection.close()


@pytest.fixture
def stream(ch: BlockingChannel, name: Name) -> str:
    return declare(ch, name)


def reader(
    connect: Connect, queue: str, offset: object = "first", prefetch: int = 100, **arguments: Any
) -> Inbox:
    """Return a consumer on its own channel; it acks nothing."""
    channel = connect().channel()
    channel.basic_qos(prefetch_count=prefetch)
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    if offset is not None:
        named["x-stream-offset"] = offset
    return Inbox(channel, queue, arguments=named)


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.headers["x-stream-offset"] for delivery in deliveries]


# --- declare ---


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_stream_is_durable_and_nobodys_own(
    ch: BlockingChannel, name: Name, options: dict[str, bool], refused: str
) -> None:
    with expect_channel_close(406, f"invalid property '{refused}' for queue '"):
        ch.queue_declare(name("stream"), arguments=STREAM, **options)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-dead-letter-exchange", "amq.fanout"),
        ("x-max-length", 5),
        ("x-overflow", "drop-head"),
        ("x-max-priority", 5),
        ("x-single-active-consumer", True),
        ("x-delivery-limit", 5),
        ("x-queue-mode", "lazy"),
        ("x-quorum-initial-group-size", 3),
    ],
)
def test_arguments_that_mean_nothing_for_a_log(
    ch: BlockingChannel, name: Name, argument: str, value: object
) -> None:
    with expect_channel_close(
        406, f"invalid arg '{argument}' for queue '.*' of queue type rabbit_stream_queue"
    ):
        ch.queue_declare(name("stream"), durable=True, arguments={**STREAM, argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-age", "2h"),
        ("x-max-age", "14D"),
        ("x-max-age", "1Y"),
        ("x-max-length-bytes", 1_000_000),
        ("x-stream-max-segment-size-bytes", 1_000_000),
        ("x-stream-filter-size-bytes", 100),
        ("x-initial-cluster-size", 1),
        ("x-queue-leader-locator", "client-local"),
        ("x-unheard-of", 5),
    ],
)
def test_arguments_of_a_stream(ch: BlockingChannel, name: Name, argument: str, value: object) -> None:
    queue = name("stream")
    for _ in range(2):
        ch.queue_declare(queue, durable=True, arguments={**STREAM, argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-age", 5),
        ("x-max-age", "5"),
        ("x-max-age", "0s"),
        ("x-max-age", "1.5h"),
        ("x-max-age", "2H"),
        ("x-max-length-bytes", -1),
        ("x-max-length-bytes", "x"),
        ("x-stream-max-segment-size-bytes", -1),
        ("x-initial-cluster-size", 0),
        ("x-queue-leader-locator", "nowhere"),
    ],
)
def test_arguments_that_are_wrong(ch: BlockingChannel, name: Name, argument: str, value: object) -> None:
    with expect_channel_close(406, f"invalid arg '{argument}' for queue '"):
        ch.queue_declare(name("stream"), durable=True, arguments={**STREAM, argument: value})


def test_the_largest_segment(ch: BlockingChannel, name: Name) -> None:
    largest = 3_000_000_000
    declare(ch, name, stream_max_segment_size_bytes=largest)
    with expect_channel_close(406, "Exceeded max value for x-stream-max-segment-size-bytes"):
        declare(ch, name, stream_max_segment_size_bytes=largest + 1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-age", "2h"),
        ("x-max-length-bytes", 1_000_000),
        ("x-stream-max-segment-size-bytes", 1_000_000),
        ("x-queue-leader-locator", "balanced"),
    ],
)
def test_another_declare_must_mean_the_same(
    ch: BlockingChannel, stream: str, argument: str, value: object
) -> None:
    with expect_channel_close(406, f"inequivalent arg '{argument}' for queue '.*' but current is none"):
        ch.queue_declare(stream, durable=True, arguments={**STREAM, argument: value})


def test_another_type_is_not_the_same(ch: BlockingChannel, stream: str) -> None:
    with expect_channel_close(406, "inequivalent arg 'x-queue-type' .* but current is (the value )?'stream'"):
        ch.queue_declare(stream, durable=True)


def test_delete(ch: BlockingChannel, stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(3))
    ch.queue_delete(stream)
    assert not queue_exists(ch, stream)


# --- what a log is not ---


def test_no_get(ch: BlockingChannel, stream: str) -> None:
    with expect_connection_close(
        540, f"basic.get not supported by stream queues queue '{stream}' in vhost '/'"
    ):
        ch.basic_get(stream)


def test_no_purge(ch: BlockingChannel, stream: str) -> None:
    with expect_connection_close(
        540, f"queue.purge not supported by stream queues queue '{stream}' in vhost '/'"
    ):
        ch.queue_purge(stream)


def test_a_consumer_needs_a_prefetch(ch: BlockingChannel, stream: str) -> None:
    with expect_channel_close(
        406, f"consumer prefetch count is not set for '?(stream )?queue '{stream}' in vhost '/'"
    ):
        ch.basic_consume(stream, lambda *_: None)


def test_a_prefetch_of_the_channel_is_none(ch: BlockingChannel, stream: str) -> None:
    ch.basic_qos(prefetch_count=10, global_qos=True)
    with expect_channel_close(406, "consumer prefetch count is not set"):
        ch.basic_consume(stream, lambda *_: None)


def test_a_consumer_needs_acks(ch: BlockingChannel, stream: str) -> None:
    ch.basic_qos(prefetch_count=10)
    with expect_connection_close(540, "automatic acknowledgement not supported by stream queue"):
        ch.basic_consume(stream, lambda *_: None, auto_ack=True)


def test_a_consumer_has_no_priority(ch: BlockingChannel, stream: str) -> None:
    ch.basic_qos(prefetch_count=10)
    with expect_channel_close(
        406, "invalid arg 'x-priority' for queue '.*' of queue type rabbit_stream_queue"
    ):
        ch.basic_consume(stream, lambda *_: None, arguments={"x-priority": 5})


def test_an_offset_is_for_streams_only(ch: BlockingChannel, name: Name) -> None:
    queue = name("classic")
    ch.queue_declare(queue)
    with expect_channel_close(406, "invalid arg 'x-stream-offset' for queue '"):
        ch.basic_consume(queue, lambda *_: None, arguments={"x-stream-offset": "first"})


# --- publish ---


def test_messages_stay_and_have_offsets(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(20))
    for _ in range(2):
        found = reader(connect, stream).take(20)
        assert [each.body for each in found] == numbered(20)
        assert offsets(found) == list(range(20))
        assert not any(each.redelivered for each in found)


def test_every_message_is_stored_whatever_its_mode(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, b"transient", delivery_mode=1)
    confirmed(connect, stream, b"persistent", delivery_mode=2)
    assert reader(connect, stream).bodies(2) == [b"transient", b"persistent"]


def test_properties_come_back(stream: str, connect: Connect) -> None:
    headers = {"a": 1, "x-stream-offset": 77, "b": "text"}
    confirmed(connect, stream, b"x", headers=headers, content_type="text/plain", app_id="app", priority=3)
    delivery = reader(connect, stream).one()
    properties = delivery.properties
    assert (properties.content_type, properties.app_id, properties.priority) == ("text/plain", "app", 3)
    assert properties.headers == {"a": 1, "b": "text", "x-stream-offset": 0}


def test_through_an_exchange(ch: BlockingChannel, stream: str, connect: Connect) -> None:
    ch.queue_bind(stream, "amq.topic", f"{stream}.#")
    channel = connect().channel()
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("amq.topic", f"{stream}.{number}", b"%d" % number)
    found = reader(connect, stream).take(3)
    assert [each.body for each in found] == [b"0", b"1", b"2"]
    assert [(each.exchange, each.routing_key) for each in found] == [
        ("amq.topic", f"{stream}.{number}") for number in range(3)
    ]


def test_large_and_empty_messages(stream: str, connect: Connect) -> None:
    bodies = [b"", b"x" * 200_000, b"y" * 131_064, b"", b"z" * 131_065]
    confirmed(connect, stream, *bodies)
    assert reader(connect, stream).bodies(5) == bodies


# --- where a consumer begins ---


@pytest.mark.parametrize(("offset", "first"), [("first", 0), (0, 0), (3, 3), (19, 19), ("1h", 0), ("1Y", 0)])
def test_where_a_consumer_begins(stream: str, connect: Connect, offset: object, first: int) -> None:
    confirmed(connect, stream, *numbered(20))
    inbox = reader(connect, stream, offset)
    assert offsets(inbox.take(20 - first)) == list(range(first, 20))
    inbox.nothing_more()


def test_last_is_the_last_chunk(stream: str, connect: Connect) -> None:
    for body in numbered(3):
        confirmed(connect, stream, body)
    inbox = reader(connect, stream, "last")
    assert offsets(inbox.take(1)) == [2]
    inbox.nothing_more()


@pytest.mark.parametrize("offset", [None, "next", 20, datetime.datetime(2100, 1, 1)])
def test_only_what_is_still_to_come(stream: str, connect: Connect, offset: object) -> None:
    confirmed(connect, stream, *numbered(20))
    inbox = reader(connect, stream, offset)
    inbox.nothing_more()
    confirmed(connect, stream, b"new")
    assert offsets(inbox.take(1)) == [20]


def test_a_time(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(5))
    time.sleep(PAUSE_S)
    middle = datetime.datetime.fromtimestamp(int(time.time()), datetime.UTC).replace(tzinfo=None)
    confirmed(connect, stream, *numbered(5, 5))
    inbox = reader(connect, stream, middle)
    assert offsets(inbox.take(5)) == list(range(5, 10))
    inbox.nothing_more()
    assert offsets(reader(connect, stream, datetime.datetime(1971, 1, 1)).take(10)) == list(range(10))


def test_a_consumer_that_asks_gets_the_time_at_which_the_broker_took_each_message(
    stream: str, connect: Connect
) -> None:
    # A broker's time may go by the monotonic clock since its start, while the wall clock is corrected.
    apart_s = 0.3
    before = time.time() * 1_000
    confirmed(connect, stream, *numbered(5))
    time.sleep(apart_s)
    middle = time.time() * 1_000
    time.sleep(apart_s)
    confirmed(connect, stream, *numbered(5, 5), headers={"x-stream-timestamp": 17})
    after = time.time() * 1_000
    found = reader(connect, stream, x_stream_timestamps=True).take(10)
    assert offsets(found) == list(range(10))
    times = [delivery.headers["x-stream-timestamp"] for delivery in found]
    assert times == sorted(times)
    assert before - apart_s * 1_000 <= times[0] <= times[4] <= middle
    assert middle <= times[5] <= times[9] <= after + apart_s * 1_000
    # Other consumers get the messages as they were published.
    plain = reader(connect, stream).take(10)
    assert [delivery.headers.get("x-stream-timestamp") for delivery in plain] == [None] * 5 + [17] * 5


def batches(connect: Connect, stream: str, offset: object, stop: int, **arguments: Any) -> list[Stored]:
    """Return the messages of stored batches from an offset up to another."""
    inbox = reader(connect, stream, offset, 2, x_stream_batches=True, **arguments)
    found: list[Stored] = []
    while True:
        (delivery,) = inbox.take(1)
        messages = messages_of(delivery.body)
        headers = delivery.headers
        assert headers["x-stream-count"] == len(messages)
        assert headers["x-stream-offset"] == messages[0].offset
        found += messages[headers["x-stream-skip"] :]
        inbox.ch.basic_ack(delivery.tag)
        if headers["x-stream-next-offset"] >= stop:
            inbox.nothing_more()
            return found


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_consumer_of_batches(ch: BlockingChannel, name: Name, connect: Connect, compression: str) -> None:
    stream = declare(ch, name, stream_compression=compression)
    for low in range(0, 60, 20):
        confirmed(connect, stream, *numbered(20, low), headers={"n": low})
    plain = reader(connect, stream).take(60)
    for offset in (0, 7, 20, 59):
        found = batches(connect, stream, offset, 60)
        assert [(each.offset, each.body) for each in found] == [
            (each.headers["x-stream-offset"], each.body) for each in plain[offset:]
        ]
        assert [each.headers for each in found] == [each.headers for each in plain[offset:]]
        assert {(each.exchange, each.routing_key) for each in found} == {("", stream)}


def test_large_messages_of_batches(ch: BlockingChannel, name: Name, connect: Connect) -> None:
    stream = declare(ch, name)
    bodies = [bytes([number]) * 700_000 * number for number in range(4)]
    confirmed(connect, stream, *bodies)
    assert [each.body for each in batches(connect, stream, "first", 4)] == bodies


def test_a_name_of_batches(ch: BlockingChannel, name: Name, connect: Connect) -> None:
    stream = declare(ch, name)
    named = {"x_group": "g", "x_stream_offset_default": "first"}
    for low in (0, 10):
        confirmed(connect, stream, *numbered(10, low))
        found = batches(connect, stream, "committed", low + 10, **named)
        assert [each.offset for each in found] == list(range(low, low + 10))


@pytest.mark.parametrize("argument", ["x-stream-filter", "x-stream-timestamps"])
def test_what_does_not_go_together_with_a_consumer_of_batches(
    ch: BlockingChannel, stream: str, argument: str
) -> None:
    ch.basic_qos(prefetch_count=10)
    value = "red" if argument == "x-stream-filter" else True
    with expect_channel_close(406, f"invalid arg '{argument}' for queue '.*'x-stream-batches'"):
        ch.basic_consume(stream, lambda *_: None, arguments={"x-stream-batches": True, argument: value})


def test_a_queue_has_no_consumer_of_batches(ch: BlockingChannel, name: Name) -> None:
    queue = name("plain")
    ch.queue_declare(queue, exclusive=True)
    with expect_channel_close(406, "invalid arg 'x-stream-batches' for queue"):
        ch.basic_consume(queue, lambda *_: None, arguments={"x-stream-batches": True})


def test_a_passive_declare_counts_the_messages_before_a_time(
    ch: BlockingChannel, stream: str, connect: Connect
) -> None:
    confirmed(connect, stream, *numbered(5))
    time.sleep(0.3)
    middle = int(time.time() * 1_000)
    time.sleep(0.3)
    confirmed(connect, stream, *numbered(5, 5))

    def count(offset: int, until: int) -> int:
        arguments = {"x-stream-offset": offset, "x-stream-until": until}
        return int(ch.queue_declare(stream, passive=True, arguments=arguments).method.message_count)

    assert [count(0, until) for until in (0, middle, 1 << 60)] == [0, 5, 10]
    assert [count(3, middle), count(7, middle)] == [2, 0]
    with expect_channel_close(406, "invalid arg 'x-stream-until'"):
        ch.queue_declare(stream, passive=True, arguments={"x-stream-offset": 0, "x-stream-until": "1h"})


@pytest.mark.parametrize("offset", ["5", "0s", "5x"])
def test_a_start_that_means_nothing(ch: BlockingChannel, stream: str, offset: object) -> None:
    ch.basic_qos(prefetch_count=10)
    with expect_channel_close(
        406, "invalid arg 'x-stream-offset' for queue '.*': {invalid_stream_offset_arg,"
    ):
        ch.basic_consume(stream, lambda *_: None, arguments={"x-stream-offset": offset})


# --- credit ---


def test_prefetch_is_credit_and_acks_give_it_back(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(20))
    inbox = reader(connect, stream, prefetch=4)
    found = inbox.take(4)
    inbox.nothing_more()
    channel = inbox.ch
    channel.basic_ack(found[2].tag)
    found += inbox.take(1)
    inbox.nothing_more()
    channel.basic_ack(found[3].tag, multiple=True)
    found += inbox.take(3)
    assert offsets(found) == list(range(8))
    inbox.nothing_more()


def test_many_consumers_each_at_its_own_place(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(30))
    inboxes = [reader(connect, stream, first) for first in range(0, 30, 7)]
    for first, inbox in zip(range(0, 30, 7), inboxes, strict=True):
        assert offsets(inbox.take(30 - first)) == list(range(first, 30))
    confirmed(connect, stream, b"new")
    for inbox in inboxes:
        assert offsets(inbox.take(1)) == [30]


def test_unacked_messages_do_not_come_again(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(5))
    inbox = reader(connect, stream, prefetch=3)
    inbox.take(3)
    inbox.ch.connection.close()
    other = reader(connect, stream, "next")
    other.nothing_more()


def test_cancel(stream: str, connect: Connect) -> None:
    confirmed(connect, stream, *numbered(5))
    inbox = reader(connect, stream)
    inbox.take(5)
    inbox.ch.basic_cancel(inbox.tag)
    confirmed(connect, stream, b"new")
    inbox.nothing_more()


def test_filters_deliver_at_least_what_matches(stream: str, connect: Connect) -> None:
    """A broker without filters delivers everything."""
    for value in ("red", "green", "red"):
        confirmed(connect, stream, value.encode(), headers={"x-stream-filter-value": value})
    found = reader(connect, stream, x_stream_filter="red").take(2)
    assert found[0].body == b"red"


def test_transactions(stream: str, connect: Connect) -> None:
    channel = connect().channel()
    channel.tx_select()
    publish(channel, stream, *numbered(5))
    channel.tx_commit()
    publish(channel, stream, b"never")
    channel.tx_rollback()
    inbox = reader(connect, stream)
    assert inbox.bodies(5) == numbered(5)
    inbox.nothing_more()


def test_a_stream_outlives_the_broker(
    broker: Broker, ch: BlockingChannel, name: Name, connect: Connect
) -> None:
    if not broker.has_ctl:
        pytest.skip("needs a control command (--ctl) to restart the broker behind --amqp-url")
    queue = declare(ch, name)
    confirmed(connect, queue, *numbered(20))
    broker.restart()
    # RabbitMQ confirms, and drops, messages that come before its streams are up.
    before = served(connect, queue).take(20)
    assert [each.body for each in before] == numbered(20)
    confirmed(connect, queue, *numbered(5, 20))
    found = served(connect, queue).take(25)
    assert [each.body for each in found] == numbered(25)
    assert offsets(found) == list(range(25))


def served(connect: Connect, queue: str) -> Inbox:
    """Return a consumer as soon as the broker accepts it: RabbitMQ starts its streams after it begins to
    serve.
    """
    deadline = time.monotonic() + wait_s()
    while True:
        try:
            return reader(connect, queue)
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as closed:
            starts = closed.reply_code in (404, 541) or "running replica" in closed.reply_text
            if not starts or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


# --- super streams ---


def test_a_super_stream_as_the_tools_make_it(connect: Connect, ch: BlockingChannel, name: Name) -> None:
    """A direct exchange whose publishers choose the partition."""
    exchange = name("super")
    ch.exchange_declare(exchange, "direct", durable=True, arguments={"x-super-stream": True})
    partitions = [declare(ch, name) for _ in range(2)]
    for number, partition in enumerate(partitions):
        order = {"x-stream-partition-order": number}
        ch.queue_bind(partition, exchange, str(number), arguments=order)
    ch.confirm_delivery()
    for number in (1, 0, 1):
        ch.basic_publish(exchange, str(number), b"to %d" % number, mandatory=True)
    for number, count in ((0, 1), (1, 2)):
        found = reader(connect, partitions[number]).take(count)
        assert [delivery.body for delivery in found] == [b"to %d" % number] * count
        assert offsets(found) == list(range(count))
    ch.exchange_delete(exchange)
    # The others continue without it.
    confirmed(connect, partitions[0], b"still there")
