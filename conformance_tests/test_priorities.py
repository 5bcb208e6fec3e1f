"""Strict priorities of quorum queues, and the counts of deliveries, as RabbitMQ 4.3 has them."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.conftest import Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, publish, wait_for, wait_get
from conformance_tests.test_quorum import quorum


def with_priorities(ch: BlockingChannel, queue: str, *priorities: int | None) -> None:
    channel = ch.connection.channel()
    channel.confirm_delivery()
    for number, priority in enumerate(priorities):
        publish(channel, queue, b"%d" % number, priority=priority)
    channel.close()


def drained(ch: BlockingChannel, queue: str, count: int) -> list[bytes]:
    return [wait_get(ch, queue).body for _ in range(count)]


def test_a_higher_priority_comes_first(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    with_priorities(ch, queue, None, 0, 1, 3, 4, 5, 31, 32, 200, 255, None, 4)
    # Above 31 counts as 31, and none as 4.
    assert drained(ch, queue, 12) == [
        b"6",
        b"7",
        b"8",
        b"9",
        b"5",
        b"0",
        b"4",
        b"10",
        b"11",
        b"3",
        b"2",
        b"1",
    ]


def test_a_highest_priority_is_not_declared(ch: BlockingChannel, name: Name) -> None:
    with expect_channel_close(406, "PRECONDITION_FAILED - invalid arg 'x-max-priority'"):
        quorum(ch, name, max_priority=5)


def test_returned_messages_come_first_in_the_order_of_their_return(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    with_priorities(ch, queue, 1, 2, 3, 9, 9, None)
    held = {got.body: got.tag for got in [wait_get(ch, queue, auto_ack=False) for _ in range(4)]}
    assert list(held) == [b"3", b"4", b"5", b"2"]
    for body in (b"5", b"3", b"2", b"4"):
        ch.basic_nack(held[body], requeue=True)
    publish(ch, queue, b"new", priority=31)
    assert drained(ch, queue, 7) == [b"5", b"3", b"2", b"4", b"new", b"1", b"0"]


@pytest.mark.parametrize(
    ("overflow", "left"),
    [("drop-head", [b"3", b"0", b"5"]), ("reject-publish", [b"1", b"2", b"3", b"0"])],
)
def test_a_full_queue_drops_the_highest(
    ch: BlockingChannel, name: Name, overflow: str, left: list[bytes]
) -> None:
    queue = quorum(ch, name, max_length=3, overflow=overflow)
    if overflow == "drop-head":
        with_priorities(ch, queue, 1, 9, 5, 2, 31, 0)
        assert drained(ch, queue, 3) == left
    else:
        with_priorities(ch, queue, 1, 9, 5)
        assert drained(ch, queue, 3) == left[:2] + left[3:]


def test_messages_expire_behind_others_of_their_priority(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name)
    channel = ch.connection.channel()
    channel.confirm_delivery()
    for body, priority, expiration in (
        (b"high", 9, None), (b"low", 0, "50"), (b"later", 0, None), (b"behind", 0, "50")
    ):  # fmt: skip
        publish(channel, queue, body, priority=priority, expiration=expiration)
    wait_for(lambda: ch.queue_declare(queue, passive=True).method.message_count == 2, "two to expire")
    assert drained(ch, queue, 2) == [b"high", b"later"]


def test_only_a_rejected_delivery_has_failed(ch: BlockingChannel, name: Name) -> None:
    queue = quorum(ch, name, delivery_limit=2)
    with_priorities(ch, queue, None)
    inbox = Inbox(ch, queue)
    counts = []
    for verb in ("nack", "nack", "reject", "nack", "reject"):
        delivery = inbox.one()
        headers: dict[str, Any] = delivery.headers or {}
        counts.append((headers.get("x-acquired-count"), headers.get("x-delivery-count")))
        getattr(ch, f"basic_{verb}")(delivery.tag, requeue=True)
    assert counts == [(None, None), (1, None), (2, None), (3, 1), (4, 1)]
    assert inbox.one().headers == {"x-acquired-count": 5, "x-delivery-count": 2}


def test_the_api_shows_the_counts(ch: BlockingChannel, api: Api, name: Name) -> None:
    queue = quorum(ch, name)
    with_priorities(ch, queue, None, 0, 31, 9, 4)
    ch.basic_nack(wait_get(ch, queue, auto_ack=False).tag, requeue=True)

    def shown() -> dict[str, Any]:
        row: dict[str, Any] = api.ask("GET", f"queues/%2F/{queue}").json
        return row

    expected = {
        "messages_by_priority": {"0": 1, "4": 2, "9": 1},
        "messages_active_priorities": 3,
        "messages_ready_returned": 1,
        "messages_delayed": 0,
        "messages": 5,
        "delivery_limit": 20,
        "delayed_retry": "disabled",
    }
    wait_for(lambda: {key: shown().get(key) for key in expected} == expected, "the counts")
