"""Queue arguments: accepted and refused values, and the texts of refusals; TTL, expiry, length limits,
overflow.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from conformance_tests.conftest import Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import (
    Inbox,
    depth,
    drain,
    get,
    numbered,
    publish,
    pump,
    queue_exists,
    sync,
    wait_depth,
    wait_expired,
    wait_for,
    wait_get,
)
from conformance_tests.wire import raw_method, short_string, table_bytes


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", 0),
        ("x-message-ttl", 60_000),
        ("x-message-ttl", long(60_000)),
        ("x-message-ttl", 2**32 - 1),
        ("x-expires", 60_000),
        ("x-max-length", 0),
        ("x-max-length", 100),
        ("x-max-length-bytes", 0),
        ("x-max-length-bytes", 2**40),
        ("x-max-priority", 0),
        ("x-max-priority", 1),
        ("x-max-priority", 255),
        ("x-overflow", "drop-head"),
        ("x-overflow", "reject-publish"),
        ("x-overflow", "reject-publish-dlx"),
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-exchange", "never declared"),
        ("x-single-active-consumer", True),
        ("x-single-active-consumer", False),
        ("x-queue-type", "classic"),
        ("x-queue-mode", "default"),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 1),
        ("x-queue-version", 2),
        ("x-queue-master-locator", "client-local"),
        ("some-argument", "whatever"),
    ],
)
def test_accepted_argument(ch: BlockingChannel, name: Name, argument: str, value: Any) -> None:
    queue = name("q")
    for _ in range(2):
        ch.queue_declare(queue, arguments={argument: value})
    publish(ch, queue, b"m")
    sync(ch)


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires", "x-max-length"])
@pytest.mark.parametrize(
    "value",
    [
        b"b\x64",
        b"B\x64",
        b"s\x00\x64",
        b"u\x00\x64",
        b"I\x00\x00\x00\x64",
        b"i\x00\x00\x00\x64",
        b"l" + b"\0" * 7 + b"\x64",
    ],
)
def test_an_integer_argument_may_have_any_width(raw: Raw, name: Name, argument: str, value: bytes) -> None:
    queue = name("q")
    client = raw()
    client.send(
        raw_method(50, 10, b"\0\0" + short_string(queue.encode()) + b"\0" + table_bytes({argument: value}))
    )
    assert client.read(commands.Queue.DeclareOk).queue == queue


REFUSED: list[tuple[str, Any, str]] = [
    ("x-message-ttl", -1, "invalid arg A for Q: {value_negative,-1}"),
    ("x-message-ttl", "60000", 'invalid arg A for Q: "expected integer, got longstr"'),
    ("x-message-ttl", True, 'invalid arg A for Q: "expected integer, got bool"'),
    ("x-message-ttl", 2**63 - 1, "invalid arg A for Q: {value_too_large,9223372036854775807}"),
    ("x-expires", 0, "invalid arg A for Q: {value_zero,0}"),
    ("x-expires", -10, "invalid arg A for Q: {value_negative,-10}"),
    ("x-expires", "1", 'invalid arg A for Q: "expected integer, got longstr"'),
    ("x-expires", 2**63 - 1, "invalid arg A for Q: {value_too_large,9223372036854775807}"),
    ("x-max-length", -1, "invalid arg A for Q: {value_negative,-1}"),
    ("x-max-length", "1", 'invalid arg A for Q: "expected integer, got longstr"'),
    ("x-max-length-bytes", -1, "invalid arg A for Q: {value_negative,-1}"),
    ("x-max-length-bytes", [1], 'invalid arg A for Q: "expected integer, got array"'),
    ("x-max-priority", -10, "invalid arg A for Q: {value_negative,-10}"),
    ("x-max-priority", 256, "invalid arg A for Q: {max_value_exceeded,256}"),
    ("x-max-priority", "9", 'invalid arg A for Q: "expected integer, got longstr"'),
    ("x-overflow", "drop-tail", "invalid arg A for Q: invalid_overflow"),
    ("x-overflow", 1, "invalid arg A for Q: {unacceptable_type,signedint}"),
    ("x-dead-letter-exchange", 1, "invalid type 'signedint' for arg A in Q"),
    ("x-queue-mode", "busy", "invalid arg A for Q: "),
    ("x-queue-type", "no-such-type", "invalid arg A for Q: \"unsupported queue type 'no-such-type'\""),
    ("x-single-active-consumer", "yes", "invalid arg A for Q: {unacceptable_type,longstr}"),
    ("x-dead-letter-routing-key", "k", "invalid arg A for Q: routing_key_but_no_dlx_defined"),
]


@pytest.mark.parametrize(("argument", "value", "text"), REFUSED, ids=[f"{a}-{v}" for a, v, _ in REFUSED])
def test_refused_argument(ch: BlockingChannel, name: Name, argument: str, value: Any, text: str) -> None:
    queue = name("q")
    text = text.replace("for Q", f"for queue '{queue}' in vhost '/'").replace(
        "in Q", f"in queue '{queue}' in vhost '/'"
    )
    text = "PRECONDITION_FAILED - " + text.replace("arg A", f"arg '{argument}'")
    with expect_channel_close(406, re.escape(text)):
        ch.queue_declare(queue, arguments={argument: value})
    assert not queue_exists(ch.connection.channel(), queue)


def test_dead_letter_routing_key_of_the_wrong_type(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    with expect_channel_close(
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue '{queue}' in vhost '/': "
        "{unacceptable_type,signedint}",
    ):
        ch.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 1})


# --- message TTL ---


def test_queue_ttl_drops_messages(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 100})
    publish(ch, queue, b"1", b"2")
    pump(ch, 0.15)
    wait_depth(ch, queue, 0)
    assert get(ch, queue) is None


def test_queue_ttl_counts_from_each_publish(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 1000})
    publish(ch, queue, b"early")
    pump(ch, 0.7)
    publish(ch, queue, b"late")
    wait_depth(ch, queue, 2)
    wait_depth(ch, queue, 1)
    assert drain(ch, queue) == [b"late"]


@pytest.mark.parametrize("where", ["queue", "message"])
def test_ttl_zero_goes_to_a_waiting_consumer_or_nowhere(ch: BlockingChannel, name: Name, where: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 0} if where == "queue" else None)
    properties: dict[str, Any] = {"expiration": "0"} if where == "message" else {}
    publish(ch, queue, b"nobody waits", **properties)
    assert get(ch, queue) is None
    inbox = Inbox(ch, queue, auto_ack=True)
    publish(ch, queue, b"taken", **properties)
    assert inbox.bodies(1) == [b"taken"]


def test_message_ttl(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"short", expiration="80")
    publish(ch, queue, b"stays", expiration="60000")
    publish(ch, queue, b"forever")
    pump(ch, 0.1)
    wait_depth(ch, queue, 2)
    delivery = get(ch, queue)
    assert delivery is not None
    assert (delivery.body, delivery.properties.expiration) == (b"stays", "60000")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_message_expires_behind_others(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    for body, expiration in ((b"head", None), (b"soon", "50"), (b"late", "60000"), (b"later", "100")):
        publish(ch, queue, body, expiration=expiration)
    wait_depth(ch, queue, 2)
    assert drain(ch, queue) == [b"head", b"late"]


def test_what_expires_behind_others_is_a_dead_letter_then(ch: BlockingChannel, name: Name) -> None:
    """The pattern of delays by queues without consumers, with a time for each message."""
    queue, dead = name("q"), name("dead")
    ch.queue_declare(dead)
    ch.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for body, expiration in ((b"third", "900"), (b"first", "50"), (b"second", "300"), (b"never", None)):
        publish(ch, queue, body, expiration=expiration)
    inbox = Inbox(ch, dead, auto_ack=True)
    assert [inbox.one().body for _ in range(3)] == [b"first", b"second", b"third"]
    assert depth(ch, queue) == 1


def test_what_has_expired_behind_others_takes_no_room(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    ch.confirm_delivery()
    publish(ch, queue, b"head")
    publish(ch, queue, b"short", expiration="50")
    wait_depth(ch, queue, 1)
    publish(ch, queue, b"fits")
    assert drain(ch, queue) == [b"head", b"fits"]


@pytest.mark.parametrize(("queue_ttl", "expiration"), [(80, "60000"), (60_000, "80")])
def test_the_smaller_ttl_wins(ch: BlockingChannel, name: Name, queue_ttl: int, expiration: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": queue_ttl})
    publish(ch, queue, b"m", expiration=expiration)
    pump(ch, 0.1)
    wait_depth(ch, queue, 0)


def test_a_requeued_message_keeps_its_deadline(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 400})
    inbox = Inbox(ch, queue)
    publish(ch, queue, b"m")
    delivery = inbox.one()
    pump(ch, 0.3)
    ch.basic_cancel(inbox.tag)
    ch.basic_reject(delivery.tag, requeue=True)
    pump(ch, 0.2)
    assert get(ch, queue) is None


def test_an_unacked_message_does_not_expire(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 50})
    inbox = Inbox(ch, queue)
    publish(ch, queue, b"m")
    delivery = inbox.one()
    pump(ch, 0.15)
    ch.basic_ack(delivery.tag)
    sync(ch)


def test_an_unacked_message_that_returns_late_expires_at_once(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-message-ttl": 50})
    inbox = Inbox(ch, queue)
    publish(ch, queue, b"m")
    delivery = inbox.one()
    pump(ch, 0.15)
    ch.basic_cancel(inbox.tag)
    ch.basic_reject(delivery.tag, requeue=True)
    assert get(ch, queue) is None


EXPIRATIONS = {
    "": "no_integer",
    "abc": "no_integer",
    "12foobar": '{leftover_string,"foobar"}',
    "1.5": '{leftover_string,".5"}',
    "-10": "{value_negative,-10}",
    "99999999999999": "{value_too_large,99999999999999}",
}


@pytest.mark.parametrize(("expiration", "reason"), EXPIRATIONS.items())
def test_invalid_expiration(ch: BlockingChannel, name: Name, expiration: str, reason: str) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    with expect_channel_close(
        406, re.escape(f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}")
    ):
        publish(ch, queue, b"m", expiration=expiration)
        sync(ch)


# --- queue expiry ---


def test_an_unused_queue_expires(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-expires": 150})
    publish(ch, queue, b"m")
    wait_expired(ch, queue, 0.15)


def test_a_consumer_keeps_a_queue_from_expiring(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-expires": 150})
    inbox = Inbox(ch, queue)
    pump(ch, 0.5)
    assert queue_exists(ch, queue)
    ch.basic_cancel(inbox.tag)
    wait_expired(ch, queue, 0.15)


@pytest.mark.parametrize("use", ["get", "declare", "passive declare"])
def test_use_renews_the_lease(ch: BlockingChannel, name: Name, use: str) -> None:
    queue = name("q")
    arguments = {"x-expires": 800}
    ch.queue_declare(queue, arguments=arguments)
    deadline = time.monotonic() + 1.2
    while time.monotonic() < deadline:
        pump(ch, 0.1)
        if use == "get":
            ch.basic_get(queue)
        elif use == "declare":
            ch.queue_declare(queue, arguments=arguments)
        else:
            ch.queue_declare(queue, passive=True)
    wait_expired(ch, queue, 0.8)


def test_a_publish_does_not_renew_the_lease(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-expires": 300})
    for _ in range(6):
        publish(ch, queue, b"m")
        pump(ch, 0.1)
    assert not queue_exists(ch, queue)


def test_expired_messages_do_not_count_in_an_expiring_queue(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-expires": 60_000, "x-message-ttl": 50})
    publish(ch, queue, b"m")
    pump(ch, 0.1)
    wait_depth(ch, queue, 0)
    ch.queue_delete(queue, if_empty=True)


# --- length limits ---


def test_max_length_drops_the_head(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 3})
    publish(ch, queue, *numbered(10))
    assert drain(ch, queue) == [b"7", b"8", b"9"]


def test_max_length_zero_keeps_nothing(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 0})
    publish(ch, queue, b"dropped")
    assert drain(ch, queue) == []
    inbox = Inbox(ch, queue, auto_ack=True)
    publish(ch, queue, b"straight to the consumer")
    assert inbox.bodies(1) == [b"straight to the consumer"]


def test_max_length_counts_only_ready_messages(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 2})
    publish(ch, queue, b"1", b"2")
    assert get(ch, queue, auto_ack=False)
    assert get(ch, queue, auto_ack=False)
    publish(ch, queue, b"3", b"4")
    assert drain(ch, queue) == [b"3", b"4"]


def test_max_length_bytes_counts_bodies(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length-bytes": 100})
    publish(ch, queue, b"a" * 40, b"b" * 40, headers={"not": "counted" * 100})
    wait_depth(ch, queue, 2)
    publish(ch, queue, b"c" * 40)
    assert drain(ch, queue) == [b"b" * 40, b"c" * 40]
    publish(ch, queue, b"d" * 10, b"too big itself" * 10)
    assert drain(ch, queue) == []


def test_both_limits_hold(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 5, "x-max-length-bytes": 10})
    publish(ch, queue, *numbered(9))
    sync(ch)
    wait_depth(ch, queue, 5)
    publish(ch, queue, b"x" * 9)
    assert drain(ch, queue) == [b"8", b"x" * 9]


def test_drop_head_confirms_what_it_takes(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "drop-head"})
    ch.confirm_delivery()
    publish(ch, queue, *numbered(3))
    assert drain(ch, queue) == [b"2"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_reject_publish_refuses_what_does_not_fit(ch: BlockingChannel, name: Name, overflow: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 2, "x-overflow": overflow})
    ch.confirm_delivery()
    publish(ch, queue, b"1", b"2")
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            publish(ch, queue, b"refused")
    assert drain(ch, queue) == [b"1", b"2"]
    publish(ch, queue, b"3")
    assert drain(ch, queue) == [b"3"]


def test_reject_publish_by_bytes(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    ch.confirm_delivery()
    publish(ch, queue, b"12345", b"12345")
    with pytest.raises(pika.exceptions.NackError):
        publish(ch, queue, b"x")
    assert depth(ch, queue) == 2


#: Sizes that are published to a queue with a limit of 1,000 bytes, and those that it takes.
AROUND_THE_BYTES = [
    ([600, 1_000_000, 600], [600]),
    ([1001, 10], [10]),
    ([1000, 1], [1000]),
    ([999, 1, 0, 1], [999, 1, 0]),
    ([400, 400, 201, 200], [400, 400, 200]),
]


def publish_sizes(ch: BlockingChannel, queue: str, sizes: list[int]) -> list[int]:
    """Publish messages of these sizes; return the sizes of those that were not refused."""
    ch.confirm_delivery()
    taken: list[int] = []
    for size in sizes:
        with contextlib.suppress(pika.exceptions.NackError):
            publish(ch, queue, b"x" * size)
            taken.append(size)
    return taken


@pytest.mark.parametrize(("sizes", "taken"), AROUND_THE_BYTES)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_reject_publish_refuses_the_message_that_does_not_fit_into_the_bytes(
    ch: BlockingChannel, name: Name, kind: str, sizes: list[int], taken: list[int]
) -> None:
    queue = name("q")
    limits = {"x-queue-type": kind, "x-max-length-bytes": 1000, "x-overflow": "reject-publish"}
    ch.queue_declare(queue, durable=True, arguments=limits)
    assert publish_sizes(ch, queue, sizes) == taken
    assert list(map(len, drain(ch, queue))) == taken


@pytest.mark.parametrize(("sizes", "taken"), AROUND_THE_BYTES)
def test_reject_publish_dlx_by_bytes_sends_on_what_does_not_fit(
    ch: BlockingChannel, name: Name, sizes: list[int], taken: list[int]
) -> None:
    queue, dead = name("q"), name("dead")
    ch.queue_declare(dead)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    limits = {"x-max-length-bytes": 1000, "x-overflow": "reject-publish-dlx"}
    ch.queue_declare(queue, arguments={**limits, **letters})
    assert publish_sizes(ch, queue, sizes) == taken
    refused = list(sizes)
    for size in taken:
        refused.remove(size)
    wait_depth(ch, dead, len(refused))
    assert list(map(len, drain(ch, dead))) == refused


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("sizes", "kept"), [([1001], []), ([600, 1_000_000, 600], [600]), ([1000, 1], [1]), ([1001, 10], [10])]
)
def test_drop_head_by_bytes_takes_any_message_and_drops_the_oldest(
    ch: BlockingChannel, name: Name, kind: str, sizes: list[int], kept: list[int]
) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, "x-max-length-bytes": 1000})
    assert publish_sizes(ch, queue, sizes) == sizes
    assert list(map(len, drain(ch, queue))) == kept


def test_a_dead_letter_that_does_not_fit_into_the_bytes_is_refused(ch: BlockingChannel, name: Name) -> None:
    target, source = name("target"), name("source")
    ch.queue_declare(target, arguments={"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    ch.queue_declare(source, arguments={"x-max-length": 0, **letters})
    publish(ch, source, b"x" * 600, b"x" * 1001, b"x" * 400)
    wait_depth(ch, target, 2)
    assert list(map(len, drain(ch, target))) == [600, 400]


def test_a_transaction_with_a_message_that_does_not_fit_into_the_bytes(
    ch: BlockingChannel, name: Name
) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
    tx = ch.connection.channel()
    tx.tx_select()
    publish(tx, queue, b"x" * 600, b"x" * 1001, b"x" * 400)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        tx.tx_commit()
    assert closed.value.reply_code == 406
    assert list(map(len, drain(ch, queue))) == [600, 400]


def test_reject_publish_without_confirms_drops_silently(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publish(ch, queue, b"1", b"2", b"3")
    assert drain(ch, queue) == [b"1"]


def test_one_full_queue_of_two_nacks_and_the_other_keeps_the_message(ch: BlockingChannel, name: Name) -> None:
    full, free, exchange = name("q"), name("q"), name("x")
    ch.exchange_declare(exchange, "fanout")
    ch.queue_declare(full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch.queue_declare(free)
    for queue in (full, free):
        ch.queue_bind(queue, exchange)
    ch.confirm_delivery()
    publish(ch, "", b"1", exchange=exchange)
    with pytest.raises(pika.exceptions.NackError):
        publish(ch, "", b"2", exchange=exchange)
    assert drain(ch, full) == [b"1"]
    assert drain(ch, free) == [b"1", b"2"]


# --- priorities ---


def test_higher_priority_first_and_fifo_within(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 10})
    for number, priority in enumerate([1, 5, 3, 5, 1, 10, 3]):
        publish(ch, queue, b"%d:%d" % (priority, number), priority=priority)
    assert drain(ch, queue) == [b"10:5", b"5:1", b"5:3", b"3:2", b"3:6", b"1:0", b"1:4"]


def test_no_priority_is_the_lowest_and_too_high_is_the_highest(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(ch, queue, b"none")
    publish(ch, queue, b"one", priority=1)
    publish(ch, queue, b"five", priority=5)
    publish(ch, queue, b"two hundred", priority=200)
    publish(ch, queue, b"zero", priority=0)
    assert drain(ch, queue) == [b"five", b"two hundred", b"one", b"none", b"zero"]


def test_the_priority_property_is_delivered_as_sent(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(ch, queue, b"m", priority=200)
    delivery = get(ch, queue)
    assert delivery is not None and delivery.properties.priority == 200


def test_without_x_max_priority_the_property_orders_nothing(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    for priority in (1, 9, 5):
        publish(ch, queue, b"%d" % priority, priority=priority)
    assert drain(ch, queue) == [b"1", b"9", b"5"]


def test_a_requeued_message_keeps_its_priority_and_place(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(ch, queue, b"a", b"b", priority=3)
    delivery = get(ch, queue, auto_ack=False)
    assert delivery is not None
    publish(ch, queue, b"high", priority=4)
    ch.basic_reject(delivery.tag, requeue=True)
    assert drain(ch, queue) == [b"high", b"a", b"b"]


def test_a_consumer_gets_priorities_in_order(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 9})
    for priority in (0, 9, 4, 9, 1):
        publish(ch, queue, b"%d" % priority, priority=priority)
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue)
    got = []
    for _ in range(5):
        delivery = inbox.one()
        got.append(delivery.body)
        ch.basic_ack(delivery.tag)
    assert got == [b"9", b"9", b"4", b"1", b"0"]


def test_max_length_of_a_priority_queue_drops_its_head(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5, "x-max-length": 2})
    publish(ch, queue, b"high", priority=5)
    publish(ch, queue, b"low", priority=1)
    publish(ch, queue, b"middle", priority=3)
    assert drain(ch, queue) == [b"middle", b"low"]


def test_a_message_in_a_priority_queue_expires_behind_others(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(ch, queue, b"high", priority=5)
    publish(ch, queue, b"low", priority=1, expiration="50")
    wait_depth(ch, queue, 1)
    assert drain(ch, queue) == [b"high"]


def test_purge_of_a_priority_queue_counts_all(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-max-priority": 5})
    for priority in range(6):
        publish(ch, queue, b"m", priority=priority)
    assert ch.queue_purge(queue).method.message_count == 6


# --- single active consumer ---


def test_only_one_consumer_is_active_and_the_next_in_line_follows(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    inboxes = [Inbox(ch.connection.channel(), queue, auto_ack=True) for _ in range(3)]
    for number, active in enumerate(inboxes):
        publish(ch, queue, b"%d" % number)
        assert active.bodies(1) == [b"%d" % number]
        for waiting in inboxes:
            waiting.nothing_more(0.05)
        active.ch.basic_cancel(active.tag)


def test_the_unacked_of_a_lost_active_consumer_go_to_the_next(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    first, second = (Inbox(ch.connection.channel(), queue) for _ in range(2))
    publish(ch, queue, b"1", b"2")
    assert first.bodies(2) == [b"1", b"2"]
    first.ch.close()
    again = second.take(2)
    assert [(delivery.body, delivery.redelivered) for delivery in again] == [(b"1", True), (b"2", True)]


def test_the_active_consumer_keeps_its_prefetch(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    channels = [ch.connection.channel() for _ in range(2)]
    for channel in channels:
        channel.basic_qos(prefetch_count=1)
    first, second = (Inbox(channel, queue) for channel in channels)
    publish(ch, queue, b"1", b"2")
    delivery = first.one()
    second.nothing_more()
    first.ch.basic_ack(delivery.tag)
    assert first.bodies(1) == [b"2"]


def test_an_exclusive_consumer_is_refused_on_a_single_active_consumer_queue(
    ch: BlockingChannel, name: Name
) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    with expect_channel_close(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Inbox(ch, queue, exclusive=True)


def test_get_works_beside_a_single_active_consumer(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue)
    publish(ch, queue, b"1", b"2")
    assert inbox.bodies(1) == [b"1"]
    assert wait_get(ch, queue).body == b"2"


def test_declare_counts_waiting_consumers_too(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-single-active-consumer": True})
    for _ in range(3):
        Inbox(ch, queue)
    wait_for(lambda: ch.queue_declare(queue, passive=True).method.consumer_count == 3, "three consumers")
