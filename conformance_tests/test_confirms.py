"""confirm.select: every publish gets exactly one ack or nack, numbered by channel."""

from __future__ import annotations

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Alarm, Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import drain, numbered, publish, wait_get
from conformance_tests.wire import METHOD, RawClient

Basic = commands.Basic


@pytest.fixture
def queue(ch: BlockingChannel, name: Name) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    return queue


def confirming(raw: Raw) -> RawClient:
    client = raw()
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


def expect_next_ack(client: RawClient, tag: int, queue: str) -> None:
    """Publish on channel 1; the next frame of any kind must be its ack."""
    client.publish(b"next", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == tag


def outcomes(client: RawClient, count: int) -> dict[int, str]:
    """Tag → "ack" or "nack" for the first `count` publishes; none may be settled twice."""
    settled: dict[int, str] = {}
    while len(settled) < count:
        method = client.read_frame().method
        assert isinstance(method, Basic.Ack | Basic.Nack), method
        outcome = "ack" if isinstance(method, Basic.Ack) else "nack"
        tag = int(method.delivery_tag or 0)
        assert 0 < tag <= count
        assert tag not in settled, f"{tag} settled twice"
        tags = [t for t in range(1, tag + 1) if t not in settled] if method.multiple else [tag]
        settled.update(dict.fromkeys(tags, outcome))
    return settled


def test_each_publish_is_acked_once(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.send(b"".join(client.publish_bytes(b"m", routing_key=queue) for _ in range(500)))
    assert outcomes(client, 500) == dict.fromkeys(range(1, 501), "ack")
    expect_next_ack(client, 501, queue)


def test_one_publish_one_ack(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    for number in range(1, 4):
        client.publish(b"m", routing_key=queue)
        ack = client.read(Basic.Ack)
        assert ack.delivery_tag == number


def test_the_sequence_starts_at_confirm_select(raw: Raw, queue: str) -> None:
    client = raw()
    client.publish(b"not counted", routing_key=queue)
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.publish(b"first", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == 1


def test_select_again_changes_nothing(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.publish(b"m", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == 1
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.publish(b"m", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == 2


def test_select_no_wait(raw: Raw, queue: str) -> None:
    client = raw()
    client.send_method(commands.Confirm.Select(nowait=True))
    client.publish(b"m", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == 1


def test_channels_count_for_themselves(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.open_channel(2)
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk, 2)
    for channel in (1, 2):
        client.publish(b"m", routing_key=queue, channel=channel)
        assert client.read(Basic.Ack, channel).delivery_tag == 1


def test_a_channel_without_select_gets_no_acks(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.open_channel(2)
    client.publish(b"m", routing_key=queue, channel=2)
    # Its ack would come before the ack of the next message to the same queue.
    expect_next_ack(client, 1, queue)


def test_unroutable_is_acked(raw: Raw, name: Name) -> None:
    client = confirming(raw)
    client.publish(b"m", routing_key=name("nowhere"))
    assert client.read(Basic.Ack).delivery_tag == 1


def test_unroutable_mandatory_is_returned_and_then_acked(raw: Raw, name: Name) -> None:
    client = confirming(raw)
    for number in range(1, 4):
        client.publish(b"m", routing_key=name("nowhere"), mandatory=True)
        method = client.read_content(Basic.Return).method
        assert isinstance(method, Basic.Return) and method.reply_code == 312
        assert client.read(Basic.Ack).delivery_tag == number


@pytest.mark.parametrize("delivery_mode", [1, 2])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_the_ack_of_a_returned_message_is_one_of_its_own(
    ch: BlockingChannel, raw: Raw, name: Name, delivery_mode: int, before: int
) -> None:
    """Whatever is published in the same write. Clients take it for that of the message that was returned."""
    queue = name("q")
    ch.queue_declare(queue, durable=True)
    client = confirming(raw)
    properties = Basic.Properties(delivery_mode=delivery_mode)
    routed = client.publish_bytes(b"m", routing_key=queue, properties=properties)
    client.send(routed * before + client.publish_bytes(b"m", routing_key=name("nowhere"), mandatory=True))
    acks: list[tuple[int, bool]] = []
    returned = False
    while (before + 1, False) not in acks:
        frame = client.read_frame()
        if frame.type != 1:
            # The returned content.
            continue
        method = frame.method
        if isinstance(method, Basic.Return):
            returned = True
            continue
        assert isinstance(method, Basic.Ack)
        assert returned or method.delivery_tag <= before
        acks.append((method.delivery_tag, method.multiple))
    assert returned
    assert all(tag <= before + 1 and (tag, multiple) != (before + 1, True) for tag, multiple in acks)


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_return_comes_behind_the_ack_of_an_earlier_publish(
    raw: Raw, queue: str, name: Name, delivery_mode: int
) -> None:
    client = confirming(raw)
    for number in range(1, 7, 2):
        client.publish(b"m", routing_key=queue, properties=Basic.Properties(delivery_mode=delivery_mode))
        ack = client.read(Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (number, False)
        client.publish(b"m", routing_key=name("nowhere"), mandatory=True)
        client.read_content(Basic.Return)
        ack = client.read(Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (number + 1, False)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_transient_and_persistent_are_acked(
    ch: BlockingChannel, raw: Raw, name: Name, durable: bool, delivery_mode: int
) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=durable)
    client = confirming(raw)
    properties = Basic.Properties(delivery_mode=delivery_mode)
    client.send(
        b"".join(client.publish_bytes(b"m", routing_key=queue, properties=properties) for _ in range(100))
    )
    assert outcomes(client, 100) == dict.fromkeys(range(1, 101), "ack")


def test_an_ack_comes_when_all_queues_have_it(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    queues = [name("q") for _ in range(3)]
    for number, queue in enumerate(queues):
        ch.queue_declare(queue, durable=number > 0)
        ch.queue_bind(queue, exchange)
    client = confirming(raw)
    client.publish(b"m", exchange=exchange, properties=Basic.Properties(delivery_mode=2))
    client.read(Basic.Ack)
    assert [drain(ch, queue) for queue in queues] == [[b"m"]] * 3
    expect_next_ack(client, 2, queues[-1])


def test_an_acked_message_is_in_the_queue(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.publish(b"m", routing_key=queue)
    client.read(Basic.Ack)
    assert drain(ch, queue) == [b"m"]


def test_a_message_consumed_at_once_is_acked_too(raw: Raw, queue: str) -> None:
    consumer, publisher = raw(), confirming(raw)
    consumer.call(Basic.Consume(queue=queue, no_ack=True), Basic.ConsumeOk)
    publisher.send(b"".join(publisher.publish_bytes(body, routing_key=queue) for body in numbered(50)))
    assert outcomes(publisher, 50) == dict.fromkeys(range(1, 51), "ack")
    assert [consumer.read_content().body for _ in range(50)] == numbered(50)


def test_refused_messages_are_nacked_and_the_others_acked(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    client = confirming(raw)
    client.send(b"".join(client.publish_bytes(body, routing_key=queue) for body in numbered(10)))
    assert outcomes(client, 10) == {tag: "ack" if tag <= 3 else "nack" for tag in range(1, 11)}
    assert drain(ch, queue) == numbered(3)


def test_a_refused_publish_closes_the_channel_and_the_earlier_are_settled_or_not(
    ch: BlockingChannel, raw: Raw, queue: str, name: Name
) -> None:
    client = confirming(raw)
    client.publish(b"1", routing_key=queue)
    client.read(Basic.Ack)
    client.publish(b"2", exchange=name("missing"))
    client.expect_channel_close(404, "NOT_FOUND - no exchange", method_id=(60, 40))
    assert drain(ch, queue) == [b"1"]


def test_a_new_channel_counts_from_one(raw: Raw, queue: str) -> None:
    client = confirming(raw)
    client.publish(b"m", routing_key=queue)
    client.read(Basic.Ack)
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    client.open_channel()
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.publish(b"m", routing_key=queue)
    assert client.read(Basic.Ack).delivery_tag == 1


def test_confirm_on_a_transactional_channel(ch: BlockingChannel) -> None:
    ch.tx_select()
    with expect_channel_close(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        ch.confirm_delivery()


def test_tx_on_a_confirming_channel(ch: BlockingChannel) -> None:
    ch.confirm_delivery()
    with expect_channel_close(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        ch.tx_select()


def test_an_internal_or_dead_letter_hop_gives_no_second_ack(
    ch: BlockingChannel, raw: Raw, name: Name
) -> None:
    dead, queue = name("q"), name("q")
    ch.queue_declare(dead)
    ch.queue_declare(
        queue,
        arguments={"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    client = confirming(raw)
    client.publish(b"m", routing_key=queue)
    client.read(Basic.Ack)
    assert wait_get(ch, dead).body == b"m"
    expect_next_ack(client, 2, queue)


def test_pika_publishes_with_confirms(ch: BlockingChannel, queue: str) -> None:
    ch.confirm_delivery()
    publish(ch, queue, *numbered(20), mandatory=True)
    assert drain(ch, queue) == numbered(20)


# -- a queue that changes while an alarm holds publishes back


def blocked(raw: Raw, queue: str, bodies: list[bytes], *, mandatory: bool = False) -> RawClient:
    """Return a blocked publisher that has published to a queue since it was blocked."""
    client = confirming(raw)
    # The publish that causes the block may still get through.
    client.publish(b"blocks", routing_key="nowhere")
    while not isinstance(client.read_frame().method, commands.Connection.Blocked):
        pass
    client.send(
        b"".join(client.publish_bytes(body, routing_key=queue, mandatory=mandatory) for body in bodies)
    )
    return client


def until_confirmed(client: RawClient, tag: int) -> list[str]:
    """Read until this publish is confirmed; return all other frames except confirms, and the end of the
    alarm.
    """
    others: list[str] = []
    while True:
        frame = client.read_frame()
        if frame.type != METHOD or isinstance(frame.method, commands.Connection.Unblocked):
            continue
        if not isinstance(frame.method, Basic.Ack):
            others.append(frame.method.name)
        elif frame.method.delivery_tag == tag:
            return others


def test_a_queue_declared_again_gets_what_was_held_back(
    ch: BlockingChannel, raw: Raw, queue: str, memory_alarm: Alarm
) -> None:
    memory_alarm(True)
    client = blocked(raw, queue, numbered(10))
    ch.queue_delete(queue)
    ch.queue_declare(queue)
    memory_alarm(False)
    assert until_confirmed(client, 11) == []
    assert drain(ch, queue) == numbered(10)


def test_a_queue_deleted_while_publishes_are_held_back(
    ch: BlockingChannel, raw: Raw, queue: str, memory_alarm: Alarm
) -> None:
    memory_alarm(True)
    client = blocked(raw, queue, [b"m"], mandatory=True)
    ch.queue_delete(queue)
    memory_alarm(False)
    assert until_confirmed(client, 2) == ["Basic.Return"]
