"""basic.publish, basic.return and basic.get: properties, flags, refusals; direct reply-to."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Connect, Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, drain, get, numbered, publish, sync, wait_get
from conformance_tests.wire import BODY, HEADER, decode_header, header_payload

Basic = commands.Basic
REPLY_TO = "amq.rabbitmq.reply-to"

PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"a": "b", "n": 5},
    "delivery_mode": 1,
    "priority": 7,
    "correlation_id": "corr ☂",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "id",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}


@pytest.fixture
def queue(ch: BlockingChannel, name: Name) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    return queue


def properties_of(properties: pika.BasicProperties) -> dict[str, Any]:
    return {
        field: getattr(properties, field) for field in PROPERTIES if getattr(properties, field) is not None
    }


def test_all_properties_come_back(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m", **PROPERTIES)
    delivery = get(ch, queue)
    assert delivery is not None and properties_of(delivery.properties) == PROPERTIES


@pytest.mark.parametrize("field", PROPERTIES)
@pytest.mark.parametrize("way", ["get", "consume"])
def test_each_property_alone_comes_back_alone(ch: BlockingChannel, queue: str, field: str, way: str) -> None:
    publish(ch, queue, b"m", **{field: PROPERTIES[field]})
    delivery = get(ch, queue) if way == "get" else Inbox(ch, queue, auto_ack=True).one()
    assert delivery is not None and properties_of(delivery.properties) == {field: PROPERTIES[field]}


def test_no_properties_come_back_as_none(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    delivery = get(ch, queue)
    assert delivery is not None and properties_of(delivery.properties) == {}


@pytest.mark.parametrize("size", [0, 1, 255, 4096, 131_064, 131_065, 300_000])
def test_bodies_of_any_size(ch: BlockingChannel, queue: str, size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    publish(ch, queue, body)
    delivery = get(ch, queue)
    assert delivery is not None and delivery.body == body


def test_an_empty_body_has_no_body_frame(raw: Raw, queue: str) -> None:
    client = raw()
    client.publish(b"", routing_key=queue)
    client.send_method(Basic.Get(queue=queue, no_ack=True))
    content = client.read_content(Basic.GetOk)
    assert (content.body, content.body_frames) == (b"", 0)


def test_a_body_may_be_cut_into_any_frames(raw: Raw, queue: str) -> None:
    client = raw()
    client.send_method(Basic.Publish(routing_key=queue))
    client.send_frame(HEADER, 1, header_payload(10))
    for part in (b"0", b"123", b"", b"45678", b"9"):
        client.send_frame(BODY, 1, part)
    client.send_method(Basic.Get(queue=queue, no_ack=True))
    assert client.read_content(Basic.GetOk).body == b"0123456789"


def test_a_body_is_cut_to_the_consumers_frame_max(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client = raw(frame_max=4096)
    client.call(Basic.Consume(queue=queue, no_ack=True), Basic.ConsumeOk)
    publish(ch, queue, b"x" * 10_000, headers={"h": "y" * 500})
    content = client.read_content()
    assert (content.body, content.body_frames) == (b"x" * 10_000, 3)
    assert decode_header(content.header).properties.headers == {"h": "y" * 500}


def test_publish_to_a_missing_exchange(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    with expect_channel_close(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        publish(ch, "k", b"m", exchange=exchange)
        sync(ch)


def test_what_follows_a_refused_publish_is_ignored_until_close_ok(raw: Raw, queue: str, name: Name) -> None:
    client = raw()
    client.send(
        client.publish_bytes(b"refused", exchange=name("x"), routing_key="k")
        + client.publish_bytes(b"ignored", routing_key=queue)
    )
    client.expect_channel_close(404, "NOT_FOUND - no exchange", method_id=(60, 40))
    client.open_channel()
    client.send_method(Basic.Get(queue=queue))
    client.read(Basic.GetEmpty)


# --- mandatory ---


def test_mandatory_unroutable_comes_back(raw: Raw, name: Name) -> None:
    key = name("nowhere")
    client = raw()
    client.publish(b"body", routing_key=key, mandatory=True, properties=Basic.Properties(message_id="7"))
    content = client.read_content(Basic.Return)
    assert isinstance(content.method, Basic.Return)
    method = content.method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("", key)
    assert (content.body, content.properties.message_id) == (b"body", "7")


def test_mandatory_routed_does_not_come_back(raw: Raw, queue: str) -> None:
    client = raw()
    client.publish(b"m", routing_key=queue, mandatory=True)
    client.expect_answer_first()


def test_unroutable_without_mandatory_is_dropped(raw: Raw, name: Name) -> None:
    client = raw()
    client.publish(b"m", routing_key=name("nowhere"))
    client.expect_answer_first()


def test_a_named_exchange_returns_too(raw: Raw) -> None:
    client = raw()
    client.publish(b"m", exchange="amq.topic", routing_key="a.b.unbound", mandatory=True)
    method = client.read_content(Basic.Return).method
    assert isinstance(method, Basic.Return)
    assert (method.exchange, method.routing_key) == ("amq.topic", "a.b.unbound")


def test_returns_come_in_order(raw: Raw, name: Name) -> None:
    key = name("nowhere")
    client = raw()
    client.send(
        b"".join(client.publish_bytes(body, routing_key=key, mandatory=True) for body in numbered(20))
    )
    assert [client.read_content(Basic.Return).body for _ in range(20)] == numbered(20)


def test_an_empty_body_comes_back(raw: Raw, name: Name) -> None:
    client = raw()
    client.publish(b"", routing_key=name("nowhere"), mandatory=True)
    assert client.read_content(Basic.Return).body == b""


# --- user-id ---


def test_the_own_user_id_is_accepted(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m", user_id="guest")
    delivery = get(ch, queue)
    assert delivery is not None and delivery.properties.user_id == "guest"


def test_another_user_id_is_refused(ch: BlockingChannel, queue: str) -> None:
    with expect_channel_close(
        406, "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    ):
        publish(ch, queue, b"m", user_id="somebody")
        sync(ch)


# --- get ---


def test_get_of_an_empty_queue(raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Basic.Get(queue=queue), Basic.GetEmpty)


def test_get_tells_what_remains(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    got = [get(ch, queue) for _ in range(3)]
    assert [(d.body, d.remaining, d.redelivered) for d in got if d] == [
        (b"0", 2, False),
        (b"1", 1, False),
        (b"2", 0, False),
    ]


def test_get_without_ack_keeps_the_message_with_the_channel(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    delivery = get(ch, queue, auto_ack=False)
    assert delivery is not None
    assert get(ch, queue) is None
    ch.basic_ack(delivery.tag)
    ch.close()
    assert drain(ch.connection.channel(), queue) == []


def test_get_with_auto_ack_is_final(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    assert get(ch, queue)
    ch.close()
    assert drain(ch.connection.channel(), queue) == []


def test_get_of_a_missing_queue(ch: BlockingChannel, name: Name) -> None:
    missing = name("q")
    with expect_channel_close(404, f"NOT_FOUND - no queue '{missing}' in vhost '/'"):
        ch.basic_get(missing)


# --- direct reply-to ---


def test_direct_reply_to(ch: BlockingChannel, connect: Connect, queue: str) -> None:
    replies = Inbox(ch, REPLY_TO, auto_ack=True)
    publish(ch, queue, b"question", reply_to=REPLY_TO, correlation_id="1")
    server = connect().channel()
    question = Inbox(server, queue, auto_ack=True).one()
    reply_to = question.properties.reply_to
    assert reply_to.startswith(REPLY_TO + ".")
    publish(server, reply_to, b"answer", correlation_id=question.properties.correlation_id)
    answer = replies.one()
    assert (answer.body, answer.properties.correlation_id, answer.exchange) == (b"answer", "1", "")
    assert answer.routing_key == reply_to


def test_a_reply_address_takes_many_replies_in_order(
    ch: BlockingChannel, connect: Connect, queue: str
) -> None:
    replies = Inbox(ch, REPLY_TO, auto_ack=True)
    publish(ch, queue, b"question", reply_to=REPLY_TO)
    server = connect().channel()
    question = Inbox(server, queue, auto_ack=True).one()
    publish(server, question.properties.reply_to, *numbered(50))
    assert replies.bodies(50) == numbered(50)


def test_direct_reply_to_on_the_same_channel(ch: BlockingChannel, queue: str) -> None:
    replies = Inbox(ch, REPLY_TO, auto_ack=True)
    publish(ch, queue, b"question", reply_to=REPLY_TO)
    question = get(ch, queue)
    assert question is not None
    publish(ch, question.properties.reply_to, b"answer")
    assert replies.bodies(1) == [b"answer"]


@pytest.mark.parametrize("copy", ["queue", "reply"])
def test_a_direct_reply_with_copies(ch: BlockingChannel, queue: str, copy: str) -> None:
    """A message may name queues and clients that wait for replies together."""
    replies = Inbox(ch, REPLY_TO, auto_ack=True)
    publish(ch, queue, b"question", reply_to=REPLY_TO)
    question = get(ch, queue)
    assert question is not None
    keys = [question.properties.reply_to, queue]
    first, second = keys if copy == "queue" else reversed(keys)
    publish(ch, first, b"answer", headers={"CC": [second]})
    assert replies.bodies(1) == [b"answer"]
    kept = wait_get(ch, queue)
    assert kept.body == b"answer"


def test_reply_consumer_must_not_acknowledge(ch: BlockingChannel) -> None:
    with expect_channel_close(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        Inbox(ch, REPLY_TO)


def test_only_one_reply_consumer_on_a_channel(ch: BlockingChannel) -> None:
    Inbox(ch, REPLY_TO, auto_ack=True)
    with expect_channel_close(406, "PRECONDITION_FAILED - reply consumer already set"):
        Inbox(ch, REPLY_TO, auto_ack=True)


def test_asking_for_a_direct_reply_without_a_reply_consumer(ch: BlockingChannel, queue: str) -> None:
    with expect_channel_close(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        publish(ch, queue, b"m", reply_to=REPLY_TO)
        sync(ch)


def test_a_reply_to_a_consumer_that_is_gone_is_dropped(
    ch: BlockingChannel, connect: Connect, queue: str
) -> None:
    client = connect()
    asker = client.channel()
    Inbox(asker, REPLY_TO, auto_ack=True)
    publish(asker, queue, b"question", reply_to=REPLY_TO)
    sync(asker)
    question = get(ch, queue)
    assert question is not None
    client.close()
    publish(ch, question.properties.reply_to, b"nobody reads this")
    sync(ch)


def test_a_mandatory_reply_to_nobody_comes_back(raw: Raw) -> None:
    client = raw()
    client.publish(b"m", routing_key=REPLY_TO + ".not-a-real-address", mandatory=True)
    assert client.read_content(Basic.Return).body == b"m"


def test_declaring_the_reply_queue_tells_whether_it_is_there(
    ch: BlockingChannel, connect: Connect, queue: str
) -> None:
    Inbox(ch, REPLY_TO, auto_ack=True)
    publish(ch, queue, b"question", reply_to=REPLY_TO)
    question = get(ch, queue)
    assert question is not None
    server = connect().channel()
    ok = server.queue_declare(question.properties.reply_to, passive=True).method
    assert (ok.message_count, ok.consumer_count) == (0, 1)


def test_a_reply_consumer_can_be_cancelled_and_set_again(ch: BlockingChannel) -> None:
    for _ in range(2):
        inbox = Inbox(ch, REPLY_TO, auto_ack=True)
        ch.basic_cancel(inbox.tag)


def test_other_reply_to_values_are_left_alone(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m", reply_to="my-own-queue")
    delivery = get(ch, queue)
    assert delivery is not None and delivery.properties.reply_to == "my-own-queue"
