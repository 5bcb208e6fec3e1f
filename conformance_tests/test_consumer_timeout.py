"""Consumers that hold a delivery for longer than `x-consumer-timeout` are cancelled, as in RabbitMQ 4.3."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, publish, wait_get

KINDS = ["quorum", "classic"]
TIMEOUT: dict[str, Any] = {"x-consumer-timeout": 1000}


def filled(ch: BlockingChannel, name: Name, kind: str, **arguments: Any) -> str:
    queue = name("timeout")
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})
    channel = ch.connection.channel()
    channel.confirm_delivery()
    publish(channel, queue, b"1", b"2")
    channel.close()
    return queue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["consumer", "queue"])
def test_a_consumer_that_does_not_ack_is_cancelled(
    ch: BlockingChannel, connect: Connect, name: Name, kind: str, where: str
) -> None:
    queue = filled(ch, name, kind, **(TIMEOUT if where == "queue" else {}))
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue, arguments=TIMEOUT if where == "consumer" else {})
    inbox.one()
    inbox.await_cancel()
    other = connect().channel()
    found = sorted((got.body, got.redelivered) for got in [wait_get(other, queue) for _ in range(2)])
    assert found == [(b"1", True), (b"2", False)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_may_have_more_time_than_its_queue_gives(
    ch: BlockingChannel, name: Name, kind: str
) -> None:
    queue = filled(ch, name, kind, **TIMEOUT)
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue, arguments={"x-consumer-timeout": 60_000})
    inbox.one()
    inbox.nothing_more(3)
    assert not inbox.cancelled


@pytest.mark.parametrize(
    ("value", "reason"), [("a", '"expected integer, got longstr"'), (-1, "{value_negative,-1}")]
)
def test_a_timeout_that_is_none_is_refused(
    ch: BlockingChannel, name: Name, value: object, reason: str
) -> None:
    queue = filled(ch, name, "quorum")
    with expect_channel_close(406, f"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' .*{reason}"):
        ch.basic_consume(queue, lambda *_: None, arguments={"x-consumer-timeout": value})
