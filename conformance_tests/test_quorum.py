"""Quorum queues: what they refuse, confirms, delivery counts and limits, and what they share with classic
ones.
"""

from __future__ import annotations

import re
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import (
    Inbox,
    get,
    numbered,
    publish,
    pump,
    queue_exists,
    sync,
    wait_depth,
    wait_drain,
    wait_for,
    wait_get,
)


def quorum(ch: BlockingChannel, name: Name, **arguments: Any) -> str:
    queue = name("quorum")
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **named})
    return queue


def confirmed(ch: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish, and wait until the message is in the queue."""
    channel = ch.connection.channel()
    channel.confirm_delivery()
    publish(channel, queue, *bodies, **properties)
    channel.close()


# --- declare ---


def test_declare_publish_get_delete(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(3))
    assert wait_drain(ch, queue, 3) == numbered(3)
    ch.queue_delete(queue)
    assert not queue_exists(ch, queue)


def test_a_count_has_what_was_confirmed_on_another_connection(
    ch: BlockingChannel, connect: Connect, name: Name
) -> None:
    queue = quorum(ch, name)
    other = connect().channel()
    other.confirm_delivery()
    publish(other, queue, *numbered(3))
    assert ch.queue_declare(queue, passive=True).method.message_count == 3
    assert ch.queue_purge(queue).method.message_count == 3
    publish(other, queue, b"4")
    assert ch.queue_delete(queue).method.message_count == 1


def test_declare_again(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    ch.queue_declare(queue, passive=True)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "invalid property 'non-durable' for Q"),
        ({"durable": True, "exclusive": True}, "invalid property 'exclusive-owner' for Q"),
        ({"durable": True, "auto_delete": True}, "invalid property 'auto-delete' for Q"),
    ],
)
def test_flags_that_a_quorum_queue_refuses(
    ch: BlockingChannel, name: Name, flags: dict[str, Any], text: str
) -> None:
    queue = name("quorum")
    text = text.replace("Q", f"queue '{queue}' in vhost '/'")
    with expect_channel_close(406, f"PRECONDITION_FAILED - {text}"):
        ch.queue_declare(queue, arguments={"x-queue-type": "quorum"}, **flags)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delivery-limit": 5},
        {"x-delivery-limit": 0},
        {"x-delivery-limit": -1},
        {"x-quorum-initial-group-size": 1},
        {"x-queue-leader-locator": "client-local"},
        {"x-queue-leader-locator": "balanced"},
        {"x-max-length": 5},
        {"x-max-length-bytes": 5000},
        {"x-max-in-memory-length": 5},
        {"x-max-in-memory-bytes": 5000},
        {"x-message-ttl": 60_000},
        {"x-expires": 60_000},
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-single-active-consumer": True},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
        {"x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-most-once"},
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    ],
    ids=lambda arguments: "-".join(f"{key}={value}" for key, value in arguments.items()),
)
def test_accepted_argument(ch: BlockingChannel, name: Name, arguments: dict[str, Any]) -> None:
    queue = name("quorum")
    for _ in range(2):
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **arguments})


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("x-max-priority", 5, "invalid arg A for Q"),
        ("x-queue-mode", "lazy", "invalid arg A for Q"),
        ("x-delivery-limit", "5", 'invalid arg A for Q: "expected integer, got longstr"'),
        ("x-quorum-initial-group-size", 0, "invalid arg A for Q: {value_zero,0}"),
        ("x-quorum-initial-group-size", "one", 'invalid arg A for Q: "expected integer, got longstr"'),
        ("x-queue-leader-locator", "nowhere", "invalid arg A for Q: "),
        ("x-dead-letter-strategy", "sometimes", "invalid arg A for Q: "),
        ("x-message-ttl", -1, "invalid arg A for Q: {value_negative,-1}"),
    ],
)
def test_refused_argument(ch: BlockingChannel, name: Name, argument: str, value: Any, text: str) -> None:
    queue = name("quorum")
    text = text.replace("arg A", f"arg '{argument}'").replace("Q", f"queue '{queue}' in vhost '/'")
    with expect_channel_close(406, re.escape(f"PRECONDITION_FAILED - {text}")):
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", argument: value})


@pytest.mark.parametrize(("argument", "value"), [("x-delivery-limit", 5), ("x-quorum-initial-group-size", 1)])
def test_quorum_arguments_are_refused_on_classic_queues(
    ch: BlockingChannel, name: Name, argument: str, value: int
) -> None:
    queue = name("q")
    with expect_channel_close(
        406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{queue}' in vhost '/'"
    ):
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic", argument: value})


@pytest.mark.parametrize("first", ["quorum", "classic"])
def test_the_queue_type_is_compared(ch: BlockingChannel, name: Name, first: str) -> None:
    queue = name("quorum")
    second = "classic" if first == "quorum" else "quorum"
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": first})
    with expect_channel_close(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost '/': "
        f"received '{second}' but current is '{first}'",
    ):
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": second})


def test_a_plain_declare_of_a_quorum_queue_is_inequivalent(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    with expect_channel_close(406, "PRECONDITION_FAILED - inequivalent arg 'x-queue-type'"):
        ch.queue_declare(queue, durable=True)


# --- publish, consume, settle ---


def test_transient_messages_are_confirmed_and_kept(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(20), delivery_mode=1)
    assert wait_drain(ch, queue, 20) == numbered(20)


def test_order_and_prefetch(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(20))
    ch.basic_qos(prefetch_count=5)
    inbox = Inbox(ch, queue)
    got = inbox.take(5)
    inbox.nothing_more()
    ch.basic_ack(got[-1].tag, multiple=True)
    assert [d.body for d in got] + inbox.bodies(5) == numbered(10)


def test_global_qos(ch: BlockingChannel, name: Name) -> None:
    queues = [quorum(ch, name) for _ in range(2)]
    for queue in queues:
        confirmed(ch, queue, *numbered(3))
    ch.basic_qos(prefetch_count=4, global_qos=True)
    first, second = (Inbox(ch, queue) for queue in queues)
    first.take(3)
    second.take(1)
    second.nothing_more()


def test_ack_is_final(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, b"1", b"2")
    other = ch.connection.channel()
    held = [wait_get(other, queue, auto_ack=False) for _ in range(2)]
    other.basic_ack(held[0].tag)
    other.close()
    assert wait_get(ch, queue).body == b"2"
    assert get(ch, queue) is None


def test_purge_answers_the_count(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(4))
    assert ch.queue_purge(queue).method.message_count == 4
    assert get(ch, queue) is None


def test_delivery_count_and_redelivered(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, b"m")
    inbox = Inbox(ch, queue)
    seen = []
    for _ in range(3):
        delivery = inbox.one()
        seen.append((delivery.redelivered, delivery.headers.get("x-delivery-count")))
        ch.basic_reject(delivery.tag, requeue=True)
    assert seen == [(False, None), (True, 1), (True, 2)]


@pytest.mark.parametrize("limit", ["delivery limit", "no limit given"])
def test_requeued_messages_come_again_before_the_rest(ch: BlockingChannel, name: Name, limit: str) -> None:
    queue = quorum(ch, name, **({"delivery_limit": 5} if limit == "delivery limit" else {}))
    confirmed(ch, queue, *numbered(4))
    held = [wait_get(ch, queue, auto_ack=False) for _ in range(2)]
    ch.basic_nack(held[-1].tag, multiple=True, requeue=True)
    assert wait_drain(ch, queue, 4) == numbered(4)


def test_a_closed_channel_returns_what_it_held(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(3))
    other = ch.connection.channel()
    Inbox(other, queue).take(3)
    other.close()
    got = [wait_get(ch, queue) for _ in range(3)]
    assert [(delivery.body, delivery.redelivered) for delivery in got] == [(b, True) for b in numbered(3)]


def test_a_deleted_quorum_queue_cancels_its_consumers(
    ch: BlockingChannel, connect: Connect, name: Name
) -> None:
    queue = quorum(ch, name)
    inbox = Inbox(connect().channel(), queue)
    ch.queue_delete(queue)
    inbox.await_cancel()


def test_single_active_consumer(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, single_active_consumer=True)
    first, second = (Inbox(ch.connection.channel(), queue) for _ in range(2))
    confirmed(ch, queue, b"1")
    delivery = first.one()
    second.nothing_more()
    first.ch.basic_ack(delivery.tag)
    first.ch.basic_cancel(first.tag)
    confirmed(ch, queue, b"2")
    assert second.bodies(1) == [b"2"]


def test_consumer_priority(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    channels = [ch.connection.channel() for _ in range(2)]
    for channel in channels:
        channel.basic_qos(prefetch_count=2)
    low = Inbox(channels[0], queue)
    high = Inbox(channels[1], queue, arguments={"x-priority": 5})
    confirmed(ch, queue, *numbered(3))
    assert high.bodies(2) == [b"0", b"1"]
    assert low.bodies(1) == [b"2"]


# --- limits ---


def test_drop_head(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, max_length=3)
    confirmed(ch, queue, *numbered(10))
    assert wait_drain(ch, queue, 3) == [b"7", b"8", b"9"]
    assert get(ch, queue) is None


def test_reject_publish_nacks_when_full(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, max_length=2, overflow="reject-publish")
    ch.confirm_delivery()
    accepted = 0
    # The leader informs its publishers when it is full, so a few more than the limit may pass.
    with pytest.raises(pika.exceptions.NackError):
        for number in numbered(20):
            publish(ch, queue, number)
            accepted += 1
    assert 2 <= accepted <= 4
    assert wait_drain(ch, queue, accepted) == numbered(accepted)


def test_message_ttl(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, message_ttl=80)
    confirmed(ch, queue, b"m")
    wait_depth(ch, queue, 0)
    assert get(ch, queue) is None


def test_per_message_expiration(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, b"short", expiration="50")
    confirmed(ch, queue, b"stays")
    wait_depth(ch, queue, 1)
    assert wait_get(ch, queue).body == b"stays"


def test_queue_expiry(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, expires=150)
    # RabbitMQ checks the lease of a quorum queue every five seconds.
    wait_for(lambda: not queue_exists(ch, queue), "the queue to expire")


def test_the_delivery_limit_drops(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, delivery_limit=2)
    confirmed(ch, queue, b"m")
    inbox = Inbox(ch, queue)
    for _ in range(3):
        ch.basic_reject(inbox.one().tag, requeue=True)
    inbox.nothing_more()


def test_the_delivery_limit_dead_letters(ch: BlockingChannel, name: Name) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    queue = quorum(ch, name, delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key=dead)
    confirmed(ch, queue, b"m")
    inbox = Inbox(ch, queue)
    for _ in range(2):
        ch.basic_reject(inbox.one().tag, requeue=True)
    delivery = wait_get(ch, dead)
    death = delivery.headers["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", queue, 1)
    assert delivery.headers["x-first-death-reason"] == "delivery_limit"


def test_the_delivery_limit_is_20_unless_given(ch: BlockingChannel, name: Name) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    queue = quorum(ch, name, dead_letter_exchange="", dead_letter_routing_key=dead)
    confirmed(ch, queue, b"m")
    inbox = Inbox(ch, queue)
    for _ in range(21):
        ch.basic_reject(inbox.one().tag, requeue=True)
    assert wait_get(ch, dead).headers["x-death"][0]["reason"] == "delivery_limit"


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_dead_lettering_by_each_strategy(ch: BlockingChannel, name: Name, strategy: str, reason: str) -> None:
    dead = quorum(ch, name)
    arguments: dict[str, Any] = {
        "dead_letter_exchange": "",
        "dead_letter_routing_key": dead,
        "dead_letter_strategy": strategy,
        "overflow": "reject-publish",
    }
    if reason == "expired":
        arguments["message_ttl"] = 50
    queue = quorum(ch, name, **arguments)
    confirmed(ch, queue, *numbered(3))
    if reason == "rejected":
        for _ in range(3):
            ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    got = [wait_get(ch, dead) for _ in range(3)]
    assert [delivery.body for delivery in got] == numbered(3)
    assert got[0].headers["x-death"][0]["reason"] == reason


def without_a_target(ch: BlockingChannel, name: Name, **arguments: object) -> tuple[str, str]:
    """Declare a queue that holds its dead letters, and their exchange, to which nothing is bound; return the
    names of the exchange and of the queue.
    """
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout", durable=True)
    queue = quorum(
        ch,
        name,
        dead_letter_exchange=exchange,
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        **arguments,
    )
    return exchange, queue


def test_at_least_once_waits_for_a_target(ch: BlockingChannel, name: Name) -> None:
    """A dead letter that can't be routed stays with its queue until it can."""
    exchange, queue = without_a_target(ch, name)
    dead = name("dead")
    confirmed(ch, queue, b"m")
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    pump(ch, 0.2)
    ch.queue_declare(dead, durable=True)
    ch.queue_bind(dead, exchange)
    # RabbitMQ tries again every three minutes by default, or when the queue is configured again.
    assert wait_get(ch, dead).body == b"m"


def test_dead_letters_that_nobody_takes_count_in_the_limit(ch: BlockingChannel, api: Api, name: Name) -> None:
    _, queue = without_a_target(ch, name, max_length=2)
    ch.confirm_delivery()

    def refuses() -> bool:
        try:
            publish(ch, queue, b"m")
        except pika.exceptions.NackError:
            return True
        ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
        return False

    # RabbitMQ's limit is not sharp.
    wait_for(refuses, "a refusal")
    row: dict[str, Any] = {}

    def shown() -> bool:
        row.update(api.ask("GET", f"queues/%2F/{queue}").json)
        # RabbitMQ shows its numbers later than the queue.
        return bool(row.get("messages_dlx", 0) >= 2 and row.get("messages_ready") == 0)

    wait_for(shown, "the number of dead letters")
    assert row["message_bytes_dlx"] >= row["messages_dlx"]


def test_depth_is_told(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    confirmed(ch, queue, *numbered(3))
    wait_depth(ch, queue, 3)
    sync(ch)
