"""The promised order: by publisher and queue, across fanout, under requeue, acks and many consumers."""

from __future__ import annotations

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Connect, Name, Raw
from conformance_tests.inbox import Inbox, drain, numbered, publish, sync, wait_depth, wait_get
from conformance_tests.wire import METHOD, method_bytes

Basic = commands.Basic


@pytest.mark.parametrize("kind", ["transient", "durable", "quorum"])
@pytest.mark.parametrize("acked", [False, True])
def test_one_publisher_one_consumer(
    ch: BlockingChannel, connect: Connect, name: Name, kind: str, acked: bool
) -> None:
    queue = name("q")
    ch.queue_declare(
        queue, durable=kind != "transient", arguments={"x-queue-type": "quorum"} if kind == "quorum" else None
    )
    consumer = connect().channel()
    consumer.basic_qos(prefetch_count=50)
    inbox = Inbox(consumer, queue, auto_ack=not acked)
    publish(ch, queue, *numbered(1000), delivery_mode=2)
    sync(ch)
    for number in range(0, 1000, 50):
        got = inbox.take(50)
        assert [delivery.body for delivery in got] == numbered(50, start=number)
        assert not any(delivery.redelivered for delivery in got)
        if acked:
            consumer.basic_ack(got[-1].tag, multiple=True)


def test_fanout_gives_every_queue_the_same_order(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    queues = [name("q") for _ in range(10)]
    for queue in queues:
        ch.queue_declare(queue)
        ch.queue_bind(queue, exchange)
    publish(ch, "", *numbered(200), exchange=exchange)
    for queue in queues:
        assert drain(ch, queue) == numbered(200)


def test_two_publishers_keep_each_its_own_order(ch: BlockingChannel, connect: Connect, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publishers = {mark: connect().channel() for mark in (b"a", b"b")}
    for number in numbered(200):
        for mark, publisher in publishers.items():
            publish(publisher, queue, mark + number)
    for publisher in publishers.values():
        sync(publisher)
    got = Inbox(ch, queue, auto_ack=True).bodies(400)
    for mark in publishers:
        assert [body[1:] for body in got if body[:1] == mark] == numbered(200)


def test_channels_of_one_connection_keep_their_order(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    channels = [ch.connection.channel() for _ in range(3)]
    for number in numbered(100):
        for index, channel in enumerate(channels):
            publish(channel, queue, b"%d-" % index + number)
    got = Inbox(ch, queue, auto_ack=True).bodies(300)
    for index in range(3):
        mark = b"%d-" % index
        assert [body[len(mark) :] for body in got if body.startswith(mark)] == numbered(100)


def test_the_shares_of_two_consumers_are_in_order_and_all(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    consumers = [raw() for _ in range(2)]
    for consumer in consumers:
        consumer.call(Basic.Consume(queue=queue, no_ack=True), Basic.ConsumeOk)
    publish(ch, queue, *numbered(400))
    sync(ch)
    shares: list[list[int]] = []
    for consumer in consumers:
        share = []
        while True:
            try:
                method = consumer.read_frame(0.3)
            except TimeoutError:
                break
            assert method.method_id == (60, 60)
            consumer.read_frame()
            share.append(int(consumer.read_frame().payload))
        shares.append(share)
    assert all(share == sorted(share) for share in shares)
    assert sorted(shares[0] + shares[1]) == list(range(400))


def test_a_message_of_several_keys_is_in_order_with_the_others(ch: BlockingChannel, name: Name) -> None:
    first, second = name("q"), name("q")
    for queue in (first, second):
        ch.queue_declare(queue)
    for number in range(60):
        if number % 3:
            publish(ch, first, b"%d" % number)
        else:
            publish(ch, first, b"%d" % number, headers={"CC": [second]})
    assert drain(ch, first) == numbered(60)
    assert drain(ch, second) == [b"%d" % number for number in range(0, 60, 3)]


def test_work_in_progress_returns_in_order_before_the_rest(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, *numbered(10))
    first, second = ch.connection.channel(), ch.connection.channel()
    a, b = ([wait_get(channel, queue, auto_ack=False) for _ in range(3)] for channel in (first, second))
    assert [delivery.body for delivery in a + b] == numbered(6)
    first.basic_ack(a[1].tag)
    second.close()
    first.close()
    wait_depth(ch, queue, 9)
    got = Inbox(ch, queue, auto_ack=True).take(9)
    assert [delivery.body for delivery in got] == [b"0", *numbered(8, start=2)]
    assert [delivery.redelivered for delivery in got] == [True] * 5 + [False] * 4


def test_a_publish_is_seen_by_the_get_after_it(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    for body in numbered(50):
        publish(ch, queue, body)
        assert drain(ch, queue) == [body]


def test_methods_sent_in_one_go_are_answered_in_order(raw: Raw, name: Name) -> None:

    queue = name("q")
    client = raw()
    client.send(
        method_bytes(commands.Queue.Declare(queue=queue), 1)
        + client.publish_bytes(b"1", routing_key=queue)
        + client.publish_bytes(b"2", routing_key=queue)
        + method_bytes(Basic.Get(queue=queue, no_ack=True), 1)
        + method_bytes(commands.Queue.Purge(queue=queue), 1)
        + client.publish_bytes(b"3", routing_key=queue)
        + method_bytes(Basic.Get(queue=queue, no_ack=True), 1)
        + method_bytes(commands.Queue.Delete(queue=queue), 1)
    )
    client.read(commands.Queue.DeclareOk)
    assert client.read_content(Basic.GetOk).body == b"1"
    assert client.read(commands.Queue.PurgeOk).message_count == 1
    assert client.read_content(Basic.GetOk).body == b"3"
    assert client.read(commands.Queue.DeleteOk).message_count == 0


# --- orders on the wire that clients rely on ---


@pytest.mark.parametrize("published", ["u", "ru", "rurur", "uurru"])
def test_a_return_comes_before_its_ack(raw: Raw, name: Name, published: str) -> None:
    """An ack of a returned message is its own: a client takes the ack after a return for that message's."""
    client = raw()
    queue, nowhere = client.declare(), name("nowhere")
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.send(
        b"".join(
            client.publish_bytes(b"m", routing_key=queue if kind == "r" else nowhere, mandatory=True)
            for kind in published
        )
    )
    answered, returns = dict.fromkeys(range(1, len(published) + 1), False), 0
    unroutable = [tag for tag, kind in enumerate(published, 1) if kind == "u"]
    while not all(answered.values()):
        method = client.read_frame().method
        if isinstance(method, Basic.Return):
            returns += 1
            client.read_frame(), client.read_frame()
            continue
        assert isinstance(method, Basic.Ack)
        tag = method.delivery_tag
        acked = [each for each in answered if each <= tag] if method.multiple else [tag]
        answered.update(dict.fromkeys(acked, True))
        assert sum(answered[each] for each in unroutable) <= returns
        assert tag not in unroutable or not method.multiple or len(unroutable) > 1
    assert returns == len(unroutable)


def test_a_commit_returns_before_it_is_answered(raw: Raw, name: Name) -> None:
    client = raw()
    client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    for body in numbered(3):
        client.publish(body, routing_key=name("nowhere"), mandatory=True)
    client.send_method(commands.Tx.Commit())
    assert [client.read_content(Basic.Return).body for _ in range(3)] == numbered(3)
    client.read(commands.Tx.CommitOk)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_nothing_is_delivered_behind_cancel_ok(ch: BlockingChannel, raw: Raw, name: Name, kind: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    publish(ch, queue, *numbered(500))
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
    client.send_method(Basic.Cancel(consumer_tag="t"))
    while True:
        frame = client.read_frame()
        if frame.type == METHOD and isinstance(frame.method, Basic.CancelOk):
            break
    publish(ch, queue, b"later")
    client.expect_answer_first()


@pytest.mark.parametrize(
    ("kind", "condition"), [("classic", {}), ("classic", {"if_empty": True}), ("quorum", {"if_empty": True})]
)
def test_deliveries_come_before_the_brokers_cancel(
    ch: BlockingChannel, raw: Raw, name: Name, kind: str, condition: dict[str, bool]
) -> None:
    """What a consumer took before its queue was deleted still comes, and then it learns of the deletion."""
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    client = raw()
    client.call(Basic.Consume(queue=queue, consumer_tag="t", no_ack=True), Basic.ConsumeOk)
    publish(ch, queue, *numbered(100))
    wait_depth(ch, queue, 0)
    ch.queue_delete(queue, **condition)
    assert [client.read_content().body for _ in range(100)] == numbered(100)
    assert client.read(Basic.Cancel).consumer_tag == "t"
