"""A client says how long a message waits that it gives back: an extension of mqd."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Delivery, Inbox, get, publish, sync, wait_depth, wait_for, wait_get

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
RETRIES = "amq.mqd.retry"
LONG_MS = 60_000


def declare(ch: BlockingChannel, queue: str, kind: str, **arguments: Any) -> str:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **given})
    return queue


def fill(ch: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    channel = ch.connection.channel()
    channel.confirm_delivery()
    publish(channel, queue, *bodies, delivery_mode=2, **properties)
    channel.close()


def give_back(ch: BlockingChannel, tag: int, delay_ms: int, **more: Any) -> None:
    headers = {"x-delivery-tag": tag, "x-delay": delay_ms}
    headers |= {f"x-{name}": value for name, value in more.items()}
    publish(ch, "", b"", exchange=RETRIES, headers=headers)


def held(ch: BlockingChannel, queue: str) -> Delivery:
    return wait_get(ch, queue, auto_ack=False)


def delayed(api: Api, queue: str) -> int:
    return int(api.ask("GET", f"queues/%2F/{queue}").json.get("messages_delayed", 0))


def wait_delayed(api: Api, queue: str, count: int) -> None:
    wait_for(lambda: delayed(api, queue) == count, f"{count} messages of {queue} to wait")


@KINDS
@pytest.mark.parametrize("retry", ["disabled", "all"])
def test_it_comes_again_after_its_own_delay(ch: BlockingChannel, name: Name, kind: str, retry: str) -> None:
    queue = declare(ch, name("q"), kind, delayed_retry_type=retry, delayed_retry_min=LONG_MS)
    fill(ch, queue, b"m")
    ch.confirm_delivery()
    inbox = Inbox(ch, queue)
    first, begun = inbox.one(), monotonic()
    give_back(ch, first.tag, 400)
    second = inbox.one()
    assert monotonic() - begun >= 0.4
    assert (second.body, second.redelivered) == (b"m", True)
    # At once, although the queue lets returned messages wait.
    give_back(ch, second.tag, 0, failed=False)
    third = inbox.one()
    if kind == "quorum":
        counts = [
            (each.headers["x-acquired-count"], each.headers["x-delivery-count"]) for each in (second, third)
        ]
        assert counts == [(1, 1), (2, 1)]
    ch.basic_ack(third.tag)


@KINDS
def test_several_wait_each_for_its_own_time(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    fill(ch, queue, b"a", b"b", b"c", b"d")
    inbox = Inbox(ch, queue)
    tags = [each.tag for each in inbox.take(4)]
    begun = monotonic()
    # In one read with an ack of all others, which must not take them, too.
    for tag, delay in zip(tags, (600, 300, 0), strict=False):
        give_back(ch, tag, delay)
    ch.basic_ack(tags[3], multiple=True)
    assert inbox.bodies(3) == [b"c", b"b", b"a"]
    assert monotonic() - begun >= 0.6
    inbox.nothing_more()


@KINDS
def test_the_confirm_says_that_it_is_on_disk(broker: Broker, connect: Connect, name: Name, kind: str) -> None:
    if not isinstance(broker, OwnBroker):
        pytest.skip("only for a broker that the suite started itself")
    ch = connect().channel()
    queue = declare(ch, name("q"), kind)
    fill(ch, queue, b"a", b"b")
    ch.confirm_delivery()
    give_back(ch, held(ch, queue).tag, 6_000)
    broker.restart(kill=True)
    ch = connect().channel()
    assert held(ch, queue).body == b"b"
    assert get(ch, queue) is None
    assert wait_get(ch, queue).body == b"a"
    ch.queue_delete(queue)


@KINDS
@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-delivery-tag": 7, "x-delay": 1}, "unknown delivery tag 7"),
        ({"x-delivery-tag": 0, "x-delay": 1}, "unknown delivery tag 0"),
        ({"x-delivery-tag": -1, "x-delay": 1}, "unknown delivery tag -1"),
        ({"x-delivery-tag": "1", "x-delay": 1}, "invalid header x-delivery-tag '1'"),
        ({"x-delivery-tag": True, "x-delay": 1}, "invalid header x-delivery-tag 'True'"),
        ({"x-delay": 1}, "needs the header x-delivery-tag"),
        ({"x-delivery-tag": 1}, "needs the header x-delay"),
        (None, "needs the header x-delivery-tag"),
        ({"x-delivery-tag": 1, "x-delay": -1}, "invalid header x-delay '-1': it must not be negative"),
        ({"x-delivery-tag": 1, "x-delay": 10**12}, "no message waits longer than ten years"),
        ({"x-delivery-tag": 1, "x-delay": "1"}, "invalid header x-delay '1'"),
        ({"x-delivery-tag": 1, "x-delay": False}, "invalid header x-delay 'False'"),
        ({"x-delivery-tag": 1, "x-delay": datetime.now(UTC)}, "invalid header x-delay"),
        ({"x-delivery-tag": 1, "x-delay": 1, "x-failed": "no"}, "invalid header x-failed 'no'"),
    ],
)
def test_what_is_refused(
    ch: BlockingChannel, name: Name, kind: str, headers: dict[str, Any] | None, text: str
) -> None:
    """And the delivery that the channel held goes back, as with any other error."""
    queue = declare(ch, name("q"), kind)
    fill(ch, queue, b"m")
    channel = ch.connection.channel()
    assert held(channel, queue).tag == 1
    with expect_channel_close(406, text):
        publish(channel, "", b"", exchange=RETRIES, headers=headers)
        sync(channel)
    assert wait_get(ch, queue).body == b"m"


def test_a_delivery_goes_back_once(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), "quorum")
    fill(ch, queue, b"m")
    channel = ch.connection.channel()
    tag = held(channel, queue).tag
    with expect_channel_close(406, f"unknown delivery tag {tag}"):
        give_back(channel, tag, LONG_MS)
        channel.basic_ack(tag)
        sync(channel)


def test_no_message_of_a_stream_waits(ch: BlockingChannel, name: Name) -> None:
    queue = name("log")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    fill(ch, queue, b"m")
    channel = ch.connection.channel()
    channel.basic_qos(prefetch_count=10)
    inbox = Inbox(channel, queue, arguments={"x-stream-offset": "first"})
    tag = inbox.one().tag
    with expect_channel_close(406, "it is no classic or quorum queue"):
        give_back(channel, tag, 1)
        sync(channel)


def test_not_in_a_transaction(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), "quorum")
    fill(ch, queue, b"m")
    channel = ch.connection.channel()
    channel.tx_select()
    tag = held(channel, queue).tag
    with expect_channel_close(406, "a channel with transactions"):
        give_back(channel, tag, 1)
        sync(channel)
    assert wait_get(ch, queue).body == b"m"


def test_who_may_only_read_gives_back(ch: BlockingChannel, connect: Connect, api: Api, name: Name) -> None:
    queue = declare(ch, name("q"), "quorum")
    fill(ch, queue, b"m")
    user = name("reader")
    assert api.ask("PUT", f"users/{user}", {"password": "x", "tags": ""}).status < 300
    try:
        rights = {"configure": "", "write": "", "read": ".*"}
        assert api.ask("PUT", f"permissions/%2F/{user}", rights).status < 300
        reader = connect(user=user, password="x").channel()
        reader.confirm_delivery()
        give_back(reader, held(reader, queue).tag, LONG_MS)
        wait_delayed(api, queue, 1)
    finally:
        api.ask("DELETE", f"users/{user}")


@KINDS
def test_it_expires_while_it_waits(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    queue = declare(ch, name("q"), kind, dead_letter_exchange="", dead_letter_routing_key=dead)
    fill(ch, queue, b"m", expiration="1500")
    give_back(ch, held(ch, queue).tag, LONG_MS)
    wait_delayed(api, queue, 1)
    letter = wait_get(ch, dead)
    assert (letter.body, letter.headers["x-death"][0]["reason"]) == (b"m", "expired")


def test_the_delivery_limit_counts_failures(ch: BlockingChannel, api: Api, name: Name) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    queue = declare(
        ch, name("q"), "quorum", delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key=dead
    )
    fill(ch, queue, b"m")
    for more in ({}, {"failed": False}, {"failed": False}):
        give_back(ch, held(ch, queue).tag, 1, **more)
    last = held(ch, queue)
    assert (last.headers["x-delivery-count"], last.headers["x-acquired-count"]) == (1, 3)
    give_back(ch, last.tag, LONG_MS)
    assert wait_get(ch, dead).headers["x-death"][0]["reason"] == "delivery_limit"
    assert delayed(api, queue) == 0


def test_its_group_waits_with_it(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), "quorum", message_groups=True)
    for group, body in (("a", b"a1"), ("a", b"a2"), ("b", b"b1")):
        fill(ch, queue, body, headers={"x-group-id": group})
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue)
    first = inbox.one()
    assert first.body == b"a1"
    give_back(ch, first.tag, 700)
    came = []
    for _ in range(3):
        delivery = inbox.one()
        came.append(delivery.body)
        ch.basic_ack(delivery.tag)
    assert came == [b"b1", b"a1", b"a2"]


@KINDS
def test_with_priorities_and_a_single_active_consumer(ch: BlockingChannel, name: Name, kind: str) -> None:
    more = {"max_priority": 5} if kind == "classic" else {}
    queue = declare(ch, name("q"), kind, single_active_consumer=True, **more)
    for number in (1, 5, 3):
        fill(ch, queue, b"%d" % number, priority=number)
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue)
    Inbox(ch.connection.channel(), queue)
    first = inbox.one()
    assert first.body == b"5"
    give_back(ch, first.tag, 500)
    second = inbox.one()
    assert second.body == b"3"
    wait_for(lambda: ready(ch, queue) == 2, "the message to be ready again")
    ch.basic_ack(second.tag)
    third = inbox.one()
    ch.basic_ack(third.tag)
    assert [third.body, inbox.one().body] == [b"5", b"1"]


def ready(ch: BlockingChannel, queue: str) -> int:
    return int(ch.queue_declare(queue, passive=True).method.message_count)


@KINDS
def test_consumers_that_were_cancelled_give_back(
    ch: BlockingChannel, api: Api, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    fill(ch, queue, b"a", b"b")
    inbox = Inbox(ch, queue)
    tags = [each.tag for each in inbox.take(2)]
    ch.basic_cancel(inbox.tag)
    ch.confirm_delivery()
    give_back(ch, tags[1], LONG_MS)
    wait_delayed(api, queue, 1)
    ch.basic_ack(tags[0])
    assert ch.queue_purge(queue).method.message_count == 1


def test_a_queue_that_is_deleted_takes_it_along(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), "quorum")
    fill(ch, queue, b"a")
    tag = held(ch, queue).tag
    ch.queue_delete(queue)
    ch.confirm_delivery()
    give_back(ch, tag, 1)
    wait_depth(ch, declare(ch, queue, "quorum"), 0)
