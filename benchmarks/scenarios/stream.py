"""A stream: appended to with confirms, then read from its first message by one consumer, and by ten at once.

The same with messages that differ in their properties and sizes. And a super stream that is appended to: mqd
chooses the partition by the key; RabbitMQ 3.10 leaves that to the publisher.
"""

from __future__ import annotations

import select
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import accumulate

from ..brokers import Broker
from ..client import Connection, Refused, Unexpected
from ..frames import ack_through, message
from ..pump import READ_BYTES, Pace
from ..settled import Settled
from ..streams import properties
from .scenario import CPU_US, RSS_MIB, Figure, Figures, Scenario, at_least

MESSAGES = 400_000
WARM_MESSAGES = 20_000
BODY_BYTES = 128
BLOCK = 200
#: Unconfirmed messages. A confirm of mqd waits for a sync of the disk, one of RabbitMQ's streams does not.
WINDOW = 20_000
PREFETCH = 10_000
CONSUMERS = 10
PARTITIONS = 3
#: Messages that all differ, and how far their bodies' sizes are from BODY_BYTES at most.
DISTINCT = 800
SIZES = 30
STREAM = "bench-stream"
MIB = 1 << 20


class Replay(Scenario):
    name = "stream"
    title = "stream, 128 B: appended with confirms, replayed by one and by ten consumers"
    figures = (
        Figure("append", "append msg/s", at_least(4)),
        Figure("replay", "replay msg/s", at_least(4)),
        Figure("ten", "ten consumers msg/s", at_least(5)),
    )
    fresh = True
    quick = False

    def messages(self) -> list[bytes]:
        """Return the messages to publish, again and again."""
        return alike()

    def run(self, broker: Broker, pace: Pace) -> Figures:
        count = max(int(MESSAGES * pace.share) // BLOCK, 10) * BLOCK
        messages = self.messages()
        with Connection(broker.port) as connection:
            connection.queue(STREAM, durable=True, **{"x-queue-type": "stream"})
            connection.confirms()
            settled = Settled(count + WARM_MESSAGES)
            append(connection, settled, WARM_MESSAGES, messages)
            cpu = broker.cpu_seconds()
            append_s = append(connection, settled, WARM_MESSAGES + count, messages)
            cpu = broker.cpu_seconds() - cpu
            total = WARM_MESSAGES + count
            replay(broker, 1, WARM_MESSAGES, messages)
            replay_s = replay(broker, 1, total, messages)
            ten_s = replay(broker, CONSUMERS, total, messages)
            rss = broker.rss_bytes()
            connection.delete_queue(STREAM)
        return {
            "append": count / append_s,
            "replay": total / replay_s,
            "ten": CONSUMERS * total / ten_s,
            CPU_US: cpu / count * 1e6,
            RSS_MIB: rss / MIB,
        }


class DistinctReplay(Replay):
    name = "stream-distinct"
    title = "the same, 98 to 158 B, each message with other properties"

    def messages(self) -> list[bytes]:
        return [
            message(
                "",
                STREAM,
                b"b" * (BODY_BYTES - SIZES + number * 37 % (2 * SIZES + 1)),
                properties(
                    headers={"id": 10**9 + number, "kind": "k" * (number % 7)},
                    correlation_id=str(number),
                    message_id=str(10**9 + number),
                    timestamp=datetime.fromtimestamp(1_700_000_000 + number, UTC),
                ),
            )
            for number in range(DISTINCT)
        ]


class SuperStream(Scenario):
    name = "super-stream"
    title = "super stream of three partitions, 128 B, 100 keys: appended with confirms"
    figures = (Figure("append", "append msg/s", at_least(4)),)
    fresh = True
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        count = max(int(MESSAGES * pace.share) // BLOCK, 10) * BLOCK
        chooses = broker.name.startswith("mqd")
        keys = (
            [f"{number:02}" for number in range(100)]
            if chooses
            else [str(each) for each in range(PARTITIONS)]
        )
        messages = [message(STREAM, key, b"b" * BODY_BYTES, properties()) for key in keys]
        partitions = [f"{STREAM}-{number}" for number in range(PARTITIONS)]
        with Connection(broker.port) as connection:
            connection.exchange(STREAM, "x-super-stream" if chooses else "direct")
            for number, partition in enumerate(partitions):
                connection.queue(partition, durable=True, **{"x-queue-type": "stream"})
                connection.bind(partition, STREAM, str(number), **{"x-stream-partition-order": number})
            connection.confirms()
            settled = Settled(count + WARM_MESSAGES)
            append(connection, settled, WARM_MESSAGES, messages)
            cpu = broker.cpu_seconds()
            append_s = append(connection, settled, WARM_MESSAGES + count, messages)
            cpu = broker.cpu_seconds() - cpu
            rss = broker.rss_bytes()
            stored = [connection.queued(partition) for partition in partitions]
            if chooses and sum(stored) != settled.count:
                # RabbitMQ reports the count of a stream with its next statistics.
                raise Unexpected(f"{settled.count} were confirmed, there are {stored}")
            connection.delete_exchange(STREAM)
            for partition in partitions:
                connection.delete_queue(partition)
        return {"append": count / append_s, CPU_US: cpu / count * 1e6, RSS_MIB: rss / MIB}


def alike() -> list[bytes]:
    """Return the message that most scenarios publish, again and again."""
    return [message("", STREAM, b"b" * BODY_BYTES, properties())]


def append(
    connection: Connection, settled: Settled, until: int, messages: Sequence[bytes] | None = None
) -> float:
    """Publish these messages, again and again, until so many are confirmed; return how long it took, s."""
    messages = messages or alike()
    block = [*messages] * max(1, BLOCK // len(messages))
    data, ends = memoryview(b"".join(block)), [0, *accumulate(map(len, block))]
    sent = settled.count
    began = time.perf_counter()
    while settled.count < until:
        while sent < until and sent + len(block) - settled.count <= WINDOW:
            part = min(len(block), until - sent)
            connection.sock.sendall(data[: ends[part]])
            sent += part
        settled.feed(connection.sock.recv(READ_BYTES))
    return time.perf_counter() - began


class Reader:
    """Consumes so many deliveries of these messages, which come again and again; acks by the quarter of its
    prefetch.
    """

    def __init__(self, connection: Connection, count: int, messages: Sequence[bytes] | None = None) -> None:
        """The connection must consume already."""
        messages = messages or alike()
        self.connection = connection
        first = connection.delivery()
        if first.tag != 1 or not first.body.endswith(b"b" * 16):
            raise Unexpected("the first delivery is another one")
        # Deliveries have as many bytes more than each other as the messages.
        more = first.wire_bytes - len(messages[0])
        #: Where the deliveries of the messages end.
        self._ends = [0, *accumulate([len(each) + more for each in messages])]
        self.received = first.wire_bytes + connection.undecoded()
        rounds, rest = divmod(count, len(messages))
        self.wanted = rounds * self._ends[-1] + self._ends[rest]
        self._acked = 0

    @property
    def done(self) -> bool:
        return self.received >= self.wanted

    def receive(self, scratch: bytearray) -> None:
        size = self.connection.sock.recv_into(scratch)
        if not size:
            raise Refused("the broker hung up")
        self.received += size
        self.ack()

    def ack(self) -> None:
        rounds, rest = divmod(self.received, self._ends[-1])
        tag = rounds * (len(self._ends) - 1) + bisect_right(self._ends, rest) - 1
        if tag - self._acked >= PREFETCH // 4:
            self._acked = tag
            self.connection.sock.sendall(ack_through(tag))


def replay(broker: Broker, consumers: int, count: int, messages: Sequence[bytes] | None = None) -> float:
    """Return how long it takes until all consumers have read so many of these messages, s."""
    with ExitStack() as opened:
        connections = [opened.enter_context(Connection(broker.port)) for _ in range(consumers)]
        began = time.perf_counter()
        for connection in connections:
            connection.consume(STREAM, PREFETCH, **{"x-stream-offset": "first"})
        readers = [Reader(connection, count, messages) for connection in connections]
        read_all(readers)
        seconds = time.perf_counter() - began
        for reader in readers:
            if count > WARM_MESSAGES and reader.received != reader.wanted:
                raise Unexpected("more came than was published")
            hang_up(reader.connection)
    return seconds


def hang_up(connection: Connection) -> None:
    """Close without reading the messages that are still on their way."""
    connection.sock.close()
    connection.close = lambda: None  # type: ignore[method-assign]


def read_all(readers: Sequence[Reader]) -> None:
    """Read until each reader has its messages."""
    scratch = bytearray(READ_BYTES)
    left = {reader.connection.sock.fileno(): reader for reader in readers}
    with select.epoll() as poll:
        for number, reader in left.items():
            poll.register(number, select.EPOLLIN)
            reader.ack()
        while left:
            ready = poll.poll(30)
            if not ready:
                raise Unexpected("nothing comes any more")
            for number, _ in ready:
                left[number].receive(scratch)
                if left[number].done:
                    poll.unregister(number)
                    del left[number]
