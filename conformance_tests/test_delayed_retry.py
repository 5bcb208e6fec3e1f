"""Delayed retries: returned messages that wait before they are delivered again."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.conftest import Name
from conformance_tests.inbox import Delivery, Inbox, get, publish, sync, wait_for, wait_get
from conformance_tests.test_policies import SetPolicy
from conformance_tests.test_policies import set_policy as set_policy

KINDS = ["quorum", "classic"]


def retrying(ch: BlockingChannel, name: Name, kind: str, **arguments: Any) -> str:
    queue = name("retry")
    named = {f"x-delayed-retry-{key}": value for key, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **named})
    channel = ch.connection.channel()
    channel.confirm_delivery()
    publish(channel, queue, b"m")
    channel.close()
    return queue


def come_again(ch: BlockingChannel, inbox: Inbox, delivery: Delivery, verb: str) -> tuple[Delivery, float]:
    """Give a message back; return it when it comes again, and after how many seconds that was."""
    begun = monotonic()
    getattr(ch, f"basic_{verb}")(delivery.tag, requeue=True)
    return inbox.one(), monotonic() - begun


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "waits"), [("all", "nack reject"), ("failed", "reject"), ("returned", "nack")]
)
def test_which_messages_wait(ch: BlockingChannel, name: Name, kind: str, what: str, waits: str) -> None:
    queue = retrying(ch, name, kind, type=what, min=60_000)
    for verb in ("nack", "reject"):
        tag = wait_get(ch, queue, auto_ack=False).tag
        getattr(ch, f"basic_{verb}")(tag, requeue=True)
        if verb in waits:
            sync(ch)
            assert get(ch, queue) is None
            assert ch.queue_purge(queue).method.message_count == 1
            publish(ch, queue, b"m")


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_waited_comes_again(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = retrying(ch, name, kind, type="all", min=100, max=150)
    inbox = Inbox(ch, queue)
    delivery, waited_s = come_again(ch, inbox, inbox.one(), "reject")
    assert waited_s >= 0.1
    delivery, waited_s = come_again(ch, inbox, delivery, "reject")
    assert waited_s >= 0.15
    assert delivery.redelivered
    if kind == "quorum":
        assert delivery.headers == {"x-acquired-count": 2, "x-delivery-count": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_lets_messages_wait(
    ch: BlockingChannel, api: Api, name: Name, set_policy: SetPolicy, kind: str
) -> None:
    queue = retrying(ch, name, kind)
    set_policy(queue, {"delayed-retry-type": "all", "delayed-retry-min": 60_000}, apply_to="queues")
    ch.basic_nack(wait_get(ch, queue, auto_ack=False).tag, requeue=True)

    def shown() -> list[Any]:
        row = api.ask("GET", f"queues/%2F/{queue}").json
        return [row.get(key) for key in ("messages", "messages_ready", "messages_delayed")]

    wait_for(lambda: shown() == [1, 0, 1], "the message to wait")
    row = api.ask("GET", f"queues/%2F/{queue}").json
    assert row["next_delayed_at"] == row["last_delayed_at"] > 1_700_000_000_000
    if kind == "quorum":
        assert row["delayed_retry"] == "all (min: 60000ms, max: 60000ms)"
