"""The cost of a queue, and of a message that waits in a queue."""

from __future__ import annotations

import time

from ..blocks import numbered
from ..brokers import Broker
from ..client import Connection, Refused, Unexpected
from ..frames import message
from ..pump import READ_BYTES, Pace
from ..streams import properties
from .scenario import CPU_US, QUIET_S, RSS_MIB, Figure, Figures, Scenario, at_least, at_most, mqd_at_most

QUEUES = 1_000
WARM_QUEUES = 20
MESSAGES = 1_000_000
WARM_MESSAGES = 20_000
BODY_BYTES = 128
MARK = b"0123456789"
FILL_BLOCK = 200
FILL_MAX_S = 120.0
EXCHANGE = "bench"
QUEUE = "bench-0"
MIB = 1 << 20


class ManyQueues(Scenario):
    name = "queues-1000"
    title = "1,000 durable queues declared and bound, one after the other"
    figures = (Figure("rate", "queues/s", at_least(1)), Figure("kib_each", "KiB each", at_most(1)))
    fresh = True
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        with Connection(broker.port) as connection:
            connection.exchange(EXCHANGE, "direct")
            _declare(connection, "warm", WARM_QUEUES)
            time.sleep(QUIET_S)
            broker.settle()
            before, cpu = broker.rss_bytes(), broker.cpu_seconds()
            began = time.perf_counter()
            _declare(connection, "bench", QUEUES)
            seconds = time.perf_counter() - began
            cpu = broker.cpu_seconds() - cpu
            broker.settle()
            after = broker.rss_bytes()
        return {
            "rate": QUEUES / seconds,
            "kib_each": (after - before) / QUEUES / 1024,
            CPU_US: cpu / QUEUES * 1e6,
            RSS_MIB: after / MIB,
        }


def _declare(connection: Connection, prefix: str, count: int) -> None:
    for i in range(count):
        queue = f"{prefix}-{i:04}"
        connection.queue(queue, durable=True)
        connection.bind(queue, EXCHANGE, queue)


class Backlog(Scenario):
    """Published as fast as the broker takes it. RabbitMQ grows by about 5 KB a message then; with at most
    5,000 messages unconfirmed it was 1.8 KB, and the fill 12 % slower (400,000 messages, 3.10.8). The
    benchmark uses the faster way for RabbitMQ: mqd's memory has its own target, and the rates are compared.
    """

    name = "backlog"
    title = "a million transient 128-byte messages queued, no two alike"
    figures = (
        Figure("bytes_each", "B each", mqd_at_most(300)),
        Figure("fill", "fill msg/s", at_least(4)),
        Figure("drain", "drain msg/s", at_least(4)),
    )
    fresh = True
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        with Connection(broker.port) as connection:
            connection.queue(QUEUE)
            _fill(connection, WARM_MESSAGES)
            _drain(broker, WARM_MESSAGES)
            broker.settle()
            before, cpu = broker.rss_bytes(), broker.cpu_seconds()
            began = time.perf_counter()
            _fill(connection, MESSAGES)
            fill_s = time.perf_counter() - began
            broker.settle()
            after = broker.rss_bytes()
            drain_s = _drain(broker, MESSAGES)
            cpu = broker.cpu_seconds() - cpu
            connection.delete_queue(QUEUE)
        return {
            "bytes_each": (after - before) / MESSAGES,
            "fill": MESSAGES / fill_s,
            "drain": MESSAGES / drain_s,
            CPU_US: cpu / MESSAGES * 1e6,
            RSS_MIB: after / MIB,
        }


def _message() -> bytes:
    return message("", QUEUE, MARK + b"b" * (BODY_BYTES - len(MARK)), properties())


def _fill(connection: Connection, count: int) -> None:
    """Publish, and wait until the broker says that all messages are in the queue.

    RabbitMQ's queue process answers before it has taken all messages from its mailbox, so the question is
    repeated until the number is right.
    """
    connection.sock.settimeout(60)
    sent = 0
    blocks = numbered(_message(), MARK, 4 * FILL_BLOCK)
    for _ in range(count // FILL_BLOCK):
        block = next(blocks)
        connection.sock.sendall(block.data)
        sent += block.messages
    if sent != count:
        raise ValueError("blocks of this size do not make up the count")
    deadline = time.perf_counter() + FILL_MAX_S
    while (queued := connection.queued(QUEUE)) != count:
        if queued > count or time.perf_counter() > deadline:
            raise Unexpected(f"{count} messages were to be queued, {queued} are")
        time.sleep(0.005)


def _drain(broker: Broker, count: int) -> float:
    """Seconds from basic.consume until the last message is there."""
    with Connection(broker.port) as connection:
        began = time.perf_counter()
        connection.consume(QUEUE, None)
        first = connection.delivery()
        received = first.wire_bytes + connection.undecoded()
        scratch = bytearray(READ_BYTES)
        while received < count * first.wire_bytes:
            n = connection.sock.recv_into(scratch)
            if not n:
                raise Refused("the broker hung up")
            received += n
        seconds = time.perf_counter() - began
        if received != count * first.wire_bytes:
            raise Unexpected("more came than was queued")
        # If the next delivery does not have the next tag, the messages were counted wrongly.
        connection.sock.sendall(_message())
        if connection.delivery().tag != count + 1:
            raise Unexpected("the count of deliveries is wrong")
        return seconds
