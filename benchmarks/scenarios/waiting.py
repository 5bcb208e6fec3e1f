"""Messages that wait or expire, a million of them: delays, times to live, and retries."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from pamqp import commands, frame

from .. import processes
from ..brokers import Broker
from ..client import Connection, Refused, Unexpected
from ..frames import CHANNEL, acks, message
from ..pump import READ_BYTES, Pace, Stalled
from ..settled import Settled
from ..streams import properties
from .scenario import CPU_US, RSS_MIB, Figure, Figures, Scenario, mqd_at_least, mqd_at_most

QUEUE = "bench-0"
BODY_BYTES = 128
MESSAGES, WARM_MESSAGES = 1_000_000, 20_000
#: Messages of one send, and the most that are not confirmed.
BLOCK, WINDOW = 200, 20_000
STALL_S = 60.0
MIB = 1 << 20
#: Steps through the times, so that neighbours are due far apart: a prime.
STRIDE = 7_919

#: Time from the last publish until the first of the delayed messages is due, and until the last one is.
AHEAD_S, SPREAD_MS = 45.0, 10_000
TTLS = 1_000
#: Later than the scenario takes.
TTL_MS = 600_000

RETRIED, RETRIES = 100_000, 10
RETRY_MS, RETRY_MAX_MS = 200, 1_000


class _Mqd(Scenario):
    """RabbitMQ has no such thing, or has it by plugins that are not part of it."""

    fresh = True
    quick = False
    rounds = 2

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return self.measure(broker) if broker.name.startswith("mqd") else {}

    def measure(self, broker: Broker) -> Figures:
        raise NotImplementedError


def _publish(connection: Connection, messages: Iterator[bytes], count: int) -> None:
    """Publish so many messages with confirms, and wait for these."""
    connection.sock.settimeout(STALL_S)
    settled, sent = Settled(count), 0
    while settled.count < count:
        while sent < count and sent - settled.count < WINDOW:
            connection.sock.sendall(b"".join([next(messages) for _ in range(BLOCK)]))
            sent += BLOCK
        data = connection.sock.recv(READ_BYTES)
        if not data:
            raise Refused("the broker hung up on the publisher")
        settled.feed(data)


def _take(connection: Connection, count: int) -> float:
    """Take so many messages, with acks; return the seconds from the first delivery to the last one."""
    first = connection.delivery()
    began = time.perf_counter()
    size, received, answered = first.wire_bytes, first.wire_bytes + connection.undecoded(), 0
    while True:
        taken = received // size
        if taken > answered:
            connection.sock.sendall(acks(answered + 1, taken).tobytes())
            answered = taken
        if taken >= count:
            return time.perf_counter() - began
        data = connection.sock.recv(READ_BYTES)
        if not data:
            raise Refused("the broker hung up on a consumer")
        received += len(data)


class Delayed(_Mqd):
    """All are due at times of their own, within some seconds, in an order of their own."""

    name = "delayed"
    title = "a million delayed 128-byte messages (mqd only), due within ten seconds, in another order than they came"
    figures = (
        Figure("bytes_each", "B each", mqd_at_most(300)),
        Figure("fill", "fill msg/s"),
        Figure("due", "msg/s when due", mqd_at_least(50_000)),
        Figure("due_us", "broker CPU µs when due"),
    )

    def measure(self, broker: Broker) -> Figures:
        with Connection(broker.port) as connection:
            connection.queue(QUEUE, durable=True, **{"x-queue-type": "quorum", "x-delayed": True})
            connection.confirms()
            base = int(time.time() * 1000)
            _publish(connection, _delayed(base - 1), WARM_MESSAGES)
            with Connection(broker.port) as consumer:
                consumer.consume(QUEUE, 0)
                _take(consumer, WARM_MESSAGES)
            broker.settle()
            before, cpu = processes.anonymous_bytes(broker.pids()), broker.cpu_seconds()
            began = time.perf_counter()
            base = int((time.time() + AHEAD_S) * 1000)
            with Connection(broker.port) as publisher:
                publisher.confirms()
                _publish(publisher, _delayed(base), MESSAGES)
            fill_s = time.perf_counter() - began
            broker.settle()
            after = processes.anonymous_bytes(broker.pids())
            if time.time() * 1000 > base:
                raise Unexpected("messages were due before all were there")
            with Connection(broker.port) as consumer:
                consumer.sock.settimeout(STALL_S)
                consumer.consume(QUEUE, 0)
                due_cpu = broker.cpu_seconds()
                due_s = _take(consumer, MESSAGES)
                due_cpu = broker.cpu_seconds() - due_cpu
            cpu = broker.cpu_seconds() - cpu
            connection.delete_queue(QUEUE)
        return {
            "bytes_each": (after - before) / MESSAGES,
            "fill": MESSAGES / fill_s,
            "due": MESSAGES / due_s,
            "due_us": due_cpu / MESSAGES * 1e6,
            CPU_US: cpu / MESSAGES * 1e6,
            RSS_MIB: after / MIB,
        }


def _delayed(base_ms: int) -> Iterator[bytes]:
    """Messages that all differ, due at the base and the following milliseconds."""
    # The time is the only 64-bit number in the frames.
    mark, number = 1_234_567_890_123, b"0123456789"
    wire = message(
        "", QUEUE, number + b"b" * (BODY_BYTES - 10), properties(True, headers={"x-deliver-at": mark})
    )
    before, rest = wire.split(struct.pack(">q", mark))
    between, behind = rest.split(number)
    at = 0
    while True:
        due = struct.pack(">q", base_ms + at * STRIDE % SPREAD_MS)
        yield b"%s%s%s%010d%s" % (before, due, between, at, behind)
        at += 1


class TimesToLive(_Mqd):
    """What a deadline of its own adds to a message that waits."""

    name = "ttl-1000"
    title = (
        "a million transient 128-byte messages with 1,000 different times to live, against messages without"
    )
    figures = (
        Figure("more", "B more each", mqd_at_most(40)),
        Figure("bytes_each", "B each"),
        Figure("fill", "fill msg/s"),
    )

    def measure(self, broker: Broker) -> Figures:
        plain, _ = self._filled(broker, 0)
        broker.restart()
        different, seconds = self._filled(broker, TTLS)
        return {
            "more": different - plain,
            "bytes_each": different,
            "fill": MESSAGES / seconds,
            RSS_MIB: broker.rss_bytes() / MIB,
        }

    def _filled(self, broker: Broker, ttls: int) -> tuple[float, float]:
        """Return the bytes that each message takes, and the seconds of publishing."""
        with Connection(broker.port) as connection:
            connection.queue(QUEUE)
            connection.confirms()
            _publish(connection, _expiring(ttls), WARM_MESSAGES)
            connection.call(commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
            broker.settle()
            before, began = processes.anonymous_bytes(broker.pids()), time.perf_counter()
            with Connection(broker.port) as publisher:
                publisher.confirms()
                _publish(publisher, _expiring(ttls), MESSAGES)
            seconds = time.perf_counter() - began
            broker.settle()
            if connection.queued(QUEUE) != MESSAGES:
                raise Unexpected("messages have expired")
            return (processes.anonymous_bytes(broker.pids()) - before) / MESSAGES, seconds


def _expiring(ttls: int) -> Iterator[bytes]:
    """Messages that all differ, with so many times to live; 0: with none."""
    # The number is in front of the time to live: what messages begin with is stored once.
    number, ttl = b"0123456789", str(TTL_MS).encode()
    named = {"expiration": ttl.decode()} if ttls else {"message_id": ttl.decode()}
    wire = message("", QUEUE, b"b" * BODY_BYTES, properties(False, correlation_id=number.decode(), **named))
    before, rest = wire.split(number)
    between, behind = rest.split(ttl)
    at = 0
    while True:
        more = at * STRIDE % ttls if ttls else 0
        yield b"%s%010d%s%d%s" % (before, at, between, TTL_MS + more, behind)
        at += 1


class RetryStorm(_Mqd):
    """Every delivery is rejected, and comes again after a wait that grows."""

    name = "retry-storm"
    title = (
        "100,000 messages of a quorum queue, each rejected ten times with a wait in between, against a plain "
        "delivery and its ack"
    )
    figures = (
        Figure("times", "times the CPU of a plain delivery"),
        Figure("retry_us", "broker CPU µs, a retried delivery"),
        Figure("plain_us", "broker CPU µs, a plain delivery"),
        Figure("rate", "retried deliveries/s"),
    )

    def measure(self, broker: Broker) -> Figures:
        arguments: dict[str, object] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": -1,
            "x-delayed-retry-type": "failed",
            "x-delayed-retry-min": RETRY_MS,
            "x-delayed-retry-max": RETRY_MAX_MS,
        }
        wire = message("", QUEUE, b"b" * BODY_BYTES, properties(persistent=True))
        found = []
        for rejects in (0, RETRIES):
            with Connection(broker.port) as connection:
                connection.queue(QUEUE, durable=True, **arguments)
                connection.confirms()
                _publish(connection, iter(lambda: wire, b""), RETRIED)
                broker.settle()
                with Connection(broker.port) as consumer:
                    cpu, began = broker.cpu_seconds(), time.perf_counter()
                    consumer.consume(QUEUE, 0)
                    _retry(consumer, RETRIED, rejects)
                    broker.settle()
                    found.append((broker.cpu_seconds() - cpu, time.perf_counter() - began))
                connection.delete_queue(QUEUE)
        (plain_cpu, _), (cpu, seconds) = found
        plain_us, retry_us = plain_cpu / RETRIED * 1e6, (cpu - plain_cpu) / RETRIED / RETRIES * 1e6
        return {
            "times": retry_us / plain_us,
            "retry_us": retry_us,
            "plain_us": plain_us,
            "rate": RETRIED * (RETRIES + 1) / seconds,
            CPU_US: retry_us,
        }


#: Class and method of basic.deliver.
DELIVER = b"\x00\x3c\x00\x3c"


def _retry(connection: Connection, count: int, rejects: int) -> None:
    """Reject the first so many deliveries of each message on the average, and ack the others."""
    left = count * rejects
    tag, rest = 0, b""
    reject = frame.marshal(commands.Basic.Reject(0, True), CHANNEL)
    before, behind = reject[:11], reject[19:]
    connection.sock.settimeout(STALL_S)
    data = connection.rest()
    while tag < count * (rejects + 1):
        data = rest + (data or connection.sock.recv(READ_BYTES))
        fresh = at = 0
        while at + 8 <= len(data):
            size = int.from_bytes(data[at + 3 : at + 7], "big") + 8
            if at + size > len(data):
                break
            fresh += data[at] == 1 and data[at + 7 : at + 11] == DELIVER
            at += size
        rest, data = data[at:], b""
        if not fresh:
            continue
        rejected = min(left, fresh)
        left -= rejected
        answers = [
            before + number.to_bytes(8, "big") + behind for number in range(tag + 1, tag + rejected + 1)
        ]
        if fresh > rejected:
            answers.append(acks(tag + rejected + 1, tag + fresh).tobytes())
        tag += fresh
        connection.sock.sendall(b"".join(answers))
    if rest:
        raise Stalled("more came than was due")


WAITING_SCENARIOS = (Delayed(), TimesToLive(), RetryStorm())
