"""basic.ack, nack, reject, recover: tags, multiple, requeue to the old place, the redelivered flag."""

from __future__ import annotations

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Connect, Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import (
    Delivery,
    Inbox,
    drain,
    get,
    numbered,
    publish,
    sync,
    wait_depth,
    wait_drain,
    wait_get,
)

Basic = commands.Basic


@pytest.fixture
def queue(ch: BlockingChannel, name: Name) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    return queue


def hold(ch: BlockingChannel, queue: str, count: int) -> list[Delivery]:
    got = [get(ch, queue, auto_ack=False) for _ in range(count)]
    assert None not in got
    return [delivery for delivery in got if delivery]


def after_close(ch: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Return the messages that come back when the channel is closed."""
    ch.close()
    other = ch.connection.channel()
    got = wait_drain(other, queue, count)
    assert drain(other, queue) == []
    return got


def test_acked_messages_never_return(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    held = hold(ch, queue, 3)
    ch.basic_ack(held[1].tag)
    assert after_close(ch, queue, 2) == [b"0", b"2"]


def test_ack_multiple_is_up_to_the_tag(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(5))
    held = hold(ch, queue, 5)
    ch.basic_ack(held[2].tag, multiple=True)
    assert after_close(ch, queue, 2) == [b"3", b"4"]


def test_ack_multiple_zero_is_all(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(5))
    hold(ch, queue, 5)
    ch.basic_ack(0, multiple=True)
    assert after_close(ch, queue, 0) == []


def test_ack_multiple_zero_with_nothing_unacked_is_fine(ch: BlockingChannel) -> None:
    ch.basic_ack(0, multiple=True)
    sync(ch)


def test_ack_multiple_passes_over_what_was_settled(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(4))
    held = hold(ch, queue, 4)
    ch.basic_ack(held[1].tag)
    ch.basic_reject(held[0].tag, requeue=False)
    ch.basic_ack(held[2].tag, multiple=True)
    assert after_close(ch, queue, 1) == [b"3"]


def test_ack_multiple_spans_queues(ch: BlockingChannel, queue: str, name: Name) -> None:
    other = name("q")
    ch.queue_declare(other)
    publish(ch, queue, b"1")
    publish(ch, other, b"2")
    hold(ch, queue, 1)
    last = hold(ch, other, 1)[0]
    ch.basic_ack(last.tag, multiple=True)
    ch.close()
    channel = ch.connection.channel()
    assert drain(channel, queue) + drain(channel, other) == []


@pytest.mark.parametrize("method", ["ack", "ack multiple", "nack", "nack multiple", "reject"])
@pytest.mark.parametrize("tag", [1, 99, 2**63 - 1])
def test_unknown_tag(raw: Raw, method: str, tag: int) -> None:
    methods = {
        "ack": Basic.Ack(tag),
        "ack multiple": Basic.Ack(tag, multiple=True),
        "nack": Basic.Nack(tag),
        "nack multiple": Basic.Nack(tag, multiple=True),
        "reject": Basic.Reject(tag),
    }
    client = raw()
    client.send_method(methods[method])
    client.expect_channel_close(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}$")


def test_tag_zero_without_multiple_is_unknown(ch: BlockingChannel, queue: str, raw: Raw) -> None:
    client = raw()
    client.send_method(Basic.Ack(0))
    client.expect_channel_close(406, "PRECONDITION_FAILED - unknown delivery tag 0$", method_id=(60, 80))


@pytest.mark.parametrize("second", ["ack", "nack", "reject"])
def test_settling_twice(ch: BlockingChannel, queue: str, second: str) -> None:
    publish(ch, queue, b"m")
    tag = hold(ch, queue, 1)[0].tag
    ch.basic_ack(tag)
    with expect_channel_close(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        getattr(ch, f"basic_{second}")(tag)
        sync(ch)


def test_ack_of_what_needs_no_ack(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    delivery = Inbox(ch, queue, auto_ack=True).one()
    with expect_channel_close(406, f"PRECONDITION_FAILED - unknown delivery tag {delivery.tag}"):
        ch.basic_ack(delivery.tag)
        sync(ch)


def test_a_tag_belongs_to_its_channel(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    tag = hold(ch, queue, 1)[0].tag
    other = ch.connection.channel()
    with expect_channel_close(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        other.basic_ack(tag)
        sync(other)
    ch.basic_ack(tag)
    sync(ch)


def test_an_unknown_tag_gives_back_what_the_channel_held(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"1", b"2")
    hold(ch, queue, 2)
    with expect_channel_close(406, "PRECONDITION_FAILED - unknown delivery tag 77"):
        ch.basic_ack(77)
        sync(ch)
    assert wait_drain(ch.connection.channel(), queue, 2) == [b"1", b"2"]


# --- requeue ---


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_requeue_to_the_old_place_and_flagged(ch: BlockingChannel, queue: str, method: str) -> None:
    publish(ch, queue, *numbered(4))
    held = hold(ch, queue, 2)
    getattr(ch, f"basic_{method}")(held[1].tag, requeue=True)
    getattr(ch, f"basic_{method}")(held[0].tag, requeue=True)
    got = [wait_get(ch, queue) for _ in range(4)]
    assert [(delivery.body, delivery.redelivered) for delivery in got] == [
        (b"0", True),
        (b"1", True),
        (b"2", False),
        (b"3", False),
    ]


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_without_requeue_it_is_gone(ch: BlockingChannel, queue: str, method: str) -> None:
    publish(ch, queue, b"m")
    getattr(ch, f"basic_{method}")(hold(ch, queue, 1)[0].tag, requeue=False)
    assert after_close(ch, queue, 0) == []


def test_nack_multiple_requeues_up_to_the_tag_in_order(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(6))
    held = hold(ch, queue, 4)
    ch.basic_nack(held[2].tag, multiple=True, requeue=True)
    assert drain(ch, queue) == [b"0", b"1", b"2", b"4", b"5"]
    ch.basic_ack(held[3].tag)
    sync(ch)


def test_nack_multiple_zero_is_all(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    hold(ch, queue, 3)
    ch.basic_nack(0, multiple=True, requeue=False)
    assert after_close(ch, queue, 0) == []


def test_a_closed_channel_returns_all_in_order(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(6))
    hold(ch, queue, 4)
    assert after_close(ch, queue, 6) == numbered(6)


def test_a_closed_channel_returns_what_it_had_acked_in_between(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(6))
    held = hold(ch, queue, 4)
    ch.basic_ack(held[1].tag)
    assert after_close(ch, queue, 5) == [b"0", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_an_ended_connection_returns_all_flagged(
    ch: BlockingChannel, raw: Raw, queue: str, ending: str
) -> None:
    publish(ch, queue, *numbered(4))
    client = raw()
    client.call(Basic.Qos(prefetch_count=3), Basic.QosOk)
    client.call(Basic.Consume(queue=queue), Basic.ConsumeOk)
    assert [client.read_content().body for _ in range(3)] == numbered(3)
    getattr(client, ending)()
    wait_depth(ch, queue, 4)
    got = [wait_get(ch, queue) for _ in range(4)]
    assert [(delivery.body, delivery.redelivered) for delivery in got] == [
        (b"0", True),
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]


def test_a_consumer_gets_its_own_requeued_message_again(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    inbox = Inbox(ch, queue)
    first = inbox.one()
    assert not first.redelivered
    ch.basic_reject(first.tag, requeue=True)
    second = inbox.one()
    assert (second.body, second.redelivered, second.tag) == (b"m", True, first.tag + 1)


def test_requeued_messages_come_before_newer_ones(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    held = hold(ch, queue, 3)
    publish(ch, queue, b"new")
    for index in (2, 0, 1):
        ch.basic_reject(held[index].tag, requeue=True)
    assert drain(ch, queue) == [b"0", b"1", b"2", b"new"]


def test_redelivered_is_for_the_message_not_the_consumer(
    ch: BlockingChannel, connect: Connect, queue: str
) -> None:
    publish(ch, queue, b"m")
    ch.basic_reject(hold(ch, queue, 1)[0].tag, requeue=True)
    assert Inbox(connect().channel(), queue, auto_ack=True).one().redelivered


# --- recover ---


def test_recover_redelivers_what_is_unacked(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(3))
    inbox = Inbox(ch, queue)
    first = inbox.take(3)
    ch.basic_ack(first[1].tag)
    ch.basic_recover(requeue=True)
    again = inbox.take(2)
    assert [(d.body, d.redelivered) for d in again] == [(b"0", True), (b"2", True)]
    assert [d.tag for d in again] == [4, 5]


def test_recover_with_nothing_unacked(ch: BlockingChannel) -> None:
    ch.basic_recover(requeue=True)
    sync(ch)


def test_recover_returns_what_was_got(ch: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"1", b"2")
    hold(ch, queue, 2)
    ch.basic_recover(requeue=True)
    assert wait_drain(ch, queue, 2) == [b"1", b"2"]


def test_recover_async_has_no_answer(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    publish(ch, queue, b"m")
    client = raw()
    client.call(Basic.Consume(queue=queue), Basic.ConsumeOk)
    client.read_content()
    client.send(b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x64\x01\xce")
    again = client.read_content()
    assert isinstance(again.method, Basic.Deliver)
    assert (again.body, again.method.redelivered) == (b"m", True)
    client.expect_answer_first()


def test_recover_async_without_requeue_is_refused(raw: Raw) -> None:
    client = raw()
    client.send(b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x64\x00\xce")
    client.expect_connection_close(540, "NOT_IMPLEMENTED - requeue=false", (60, 100))
