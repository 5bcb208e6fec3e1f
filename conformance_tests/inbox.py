"""Sends, takes and awaits messages with pika, without a sleep wherever the broker sends an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.patience import wait_s

QUIET_S = 0.2


class Delivery(NamedTuple):
    tag: int
    body: bytes
    properties: pika.BasicProperties
    redelivered: bool
    exchange: str
    routing_key: str
    consumer_tag: str = ""
    remaining: int = 0

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


class Inbox:
    """A consumer that stores its deliveries in order."""

    def __init__(self, ch: BlockingChannel, queue: str, *, tag: str | None = None, **options: Any) -> None:
        self.ch = ch
        self.deliveries: list[Delivery] = []
        self.cancelled = False
        self.taken = 0
        self.tag: str = ch.basic_consume(queue, self._on_message, consumer_tag=tag, **options)
        ch.add_on_cancel_callback(self._on_cancel)

    def _on_message(self, _ch: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.deliveries.append(
            Delivery(
                method.delivery_tag,
                body,
                properties,
                method.redelivered,
                method.exchange,
                method.routing_key,
                method.consumer_tag,
            )
        )

    def _on_cancel(self, frame: Any) -> None:
        if frame.method.consumer_tag == self.tag:
            self.cancelled = True

    def take(self, count: int, timeout: float | None = None) -> list[Delivery]:
        """Return the next `count` deliveries; fails if they do not come in time."""
        target = self.taken + count
        pump_until(self.ch, lambda: len(self.deliveries) >= target, timeout)
        fresh = self.deliveries[self.taken : target]
        assert len(fresh) == count, f"expected {count} deliveries, got {[d.body for d in fresh]}"
        self.taken = target
        return fresh

    def bodies(self, count: int, timeout: float | None = None) -> list[bytes]:
        return [delivery.body for delivery in self.take(count, timeout)]

    def one(self, timeout: float | None = None) -> Delivery:
        return self.take(1, timeout)[0]

    def nothing_more(self, wait: float = QUIET_S) -> None:
        pump(self.ch, wait)
        extra = [delivery.body for delivery in self.deliveries[self.taken :]]
        assert not extra, f"unexpected deliveries {extra[:10]}"

    def await_cancel(self, timeout: float | None = None) -> None:
        pump_until(self.ch, lambda: self.cancelled, timeout)
        assert self.cancelled, "the broker did not cancel the consumer"


def pump(ch: BlockingChannel, seconds: float) -> None:
    """Handle everything that arrives during this time."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ch.connection.process_data_events(time_limit=left)


def pump_until(ch: BlockingChannel, condition: Callable[[], bool], timeout: float | None = None) -> None:
    deadline = time.monotonic() + (timeout or wait_s())
    while not condition() and (left := deadline - time.monotonic()) > 0:
        ch.connection.process_data_events(time_limit=left)


def publish(
    ch: BlockingChannel,
    queue: str,
    *bodies: bytes,
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> None:
    for body in bodies:
        ch.basic_publish(exchange, queue, body, pika.BasicProperties(**properties), mandatory=mandatory)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def get(ch: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Delivery | None:
    method, properties, body = ch.basic_get(queue, auto_ack=auto_ack)
    if method is None:
        return None
    return Delivery(
        method.delivery_tag,
        body,
        properties,
        method.redelivered,
        method.exchange,
        method.routing_key,
        remaining=method.message_count,
    )


def wait_get(
    ch: BlockingChannel, queue: str, *, auto_ack: bool = True, timeout: float | None = None
) -> Delivery:
    """basic.get until there is a message, for those that come from elsewhere (dead-lettered, other
    connections).
    """
    deadline = time.monotonic() + (timeout or wait_s())
    while time.monotonic() < deadline:
        if (delivery := get(ch, queue, auto_ack=auto_ack)) is not None:
            return delivery
        time.sleep(0.01)
    raise AssertionError(f"no message in {queue} within {timeout or wait_s()} s")


def drain(ch: BlockingChannel, queue: str) -> list[bytes]:
    """Get and ack all messages that are ready in the queue now."""
    bodies = []
    while (delivery := get(ch, queue)) is not None:
        bodies.append(delivery.body)
    return bodies


def wait_drain(ch: BlockingChannel, queue: str, count: int) -> list[bytes]:
    return [wait_get(ch, queue).body for _ in range(count)]


def depth(ch: BlockingChannel, queue: str) -> int:
    return int(ch.queue_declare(queue, passive=True).method.message_count)


def consumers(ch: BlockingChannel, queue: str) -> int:
    return int(ch.queue_declare(queue, passive=True).method.consumer_count)


def wait_depth(ch: BlockingChannel, queue: str, count: int, timeout: float | None = None) -> None:
    wait_for(lambda: depth(ch, queue) == count, f"{queue} to hold {count} messages", timeout)


def wait_for(condition: Callable[[], bool], what: str, timeout: float | None = None) -> None:
    """Poll for a state of the broker that it does not announce."""
    deadline = time.monotonic() + (timeout or wait_s())
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout or wait_s()} s for {what}"
        time.sleep(0.02)


def wait_expired(ch: BlockingChannel, queue: str, lease_s: float) -> None:
    """Wait until the queue is gone. A request uses the queue, so there is a pause longer than its lease
    before each check.
    """
    deadline = time.monotonic() + wait_s()
    pump(ch, 2 * lease_s)
    while queue_exists(ch, queue):
        assert time.monotonic() < deadline, f"{queue} does not expire"
        pump(ch, 2 * lease_s)


def queue_exists(ch: BlockingChannel, queue: str) -> bool:
    """Uses a separate channel, because a missing queue closes the channel."""
    probe = ch.connection.channel()
    try:
        probe.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        # 405: it exists, and belongs to another connection.
        assert error.reply_code in (404, 405), error
        return bool(error.reply_code == 405)
    probe.close()
    return True


def exchange_exists(ch: BlockingChannel, exchange: str) -> bool:
    probe = ch.connection.channel()
    try:
        probe.exchange_declare(exchange, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404, error
        return False
    probe.close()
    return True


def sync(ch: BlockingChannel) -> None:
    """One round trip on the channel: earlier methods are handled then, and their refusal is raised here."""
    ch.exchange_declare("amq.direct", passive=True)
