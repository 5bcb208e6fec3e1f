"""Streams and a super stream under the faults of a cluster: publishers and readers at all nodes, and the
checks.

Messages are numbered as in the ledger of queues: `connection << 32 | number`. Rules, each counted by itself:

- lost: confirmed, and at no offset;
- strange: delivered, and never published to this stream;
- changed: an offset with two messages, a message at two offsets, a key in two partitions;
- back: a reader gets an offset below its next one;
- skipped: a reader skips a message that neither retention nor compaction has taken;
- order: numbers of one connection fall from one offset to a higher one.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.cluster.ledger import STREAM_BITS, TOLD_MAX, Ledger, Streams
from tests.cluster.load import BODY_BYTES, Judge, Publisher, Worker
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.bodies import body, number
from tests.reliability.client import ChannelClosed, Client, Delivery, Gone

LOG_RULES = ("lost", "strange", "changed", "back", "skipped", "order")
PARTITIONS = 3
KEYS = 5
PREFETCH = 100
#: This many successive messages have one topic: a batch of the publisher.
NEIGHBOURS = 2
#: Small segments, so that they are rolled, trimmed and compacted all the time.
STREAM: dict[str, Any] = {
    "x-queue-type": "stream",
    "x-stream-max-segment-size-bytes": 16_384,
    "x-stream-compression": "none",
}
TRIMMED = {"x-max-length-bytes": 60_000}
COMPACTED = {"x-stream-compaction": "header:key"}
PACKED = {"x-stream-compression": "zstd"}
#: Options of a node with which messages are soon in the segments.
OPTIONS = ("--stream-flush-ms", "50", "--stream-compaction-dirty-percent", "25")
_OFFSET = b"\x0fx-stream-offsetl"


def key_of(message: int) -> bytes:
    return b"%d-%d" % (message >> STREAM_BITS, message % KEYS)


def place(message: int) -> str:
    return f"{message >> STREAM_BITS}/{message & ((1 << STREAM_BITS) - 1)}"


class Log:
    """One stream, or one partition. All methods may be called from any thread."""

    def __init__(self, name: str, *, compacted: bool = False, trimmed: bool = False) -> None:
        self.name = name
        self.compacted = compacted
        self.trimmed = trimmed
        self.published: set[int] = set()
        self.messages: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        #: By node, the next offsets of readers that follow the stream.
        self.next: dict[str, int] = {}
        self._jumps: list[tuple[str, int, int]] = []
        self.counts: dict[str, int] = dict.fromkeys(LOG_RULES, 0)
        self.told: dict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()

    def has(self, message: int) -> bool:
        return message in self._offsets

    def deliver(self, reader: str, offset: int, message: int, expected: int) -> None:
        """`expected` is the next offset of this reader, -1 if it may begin anywhere."""
        with self._lock:
            if message not in self.published:
                self._break("strange", f"{place(message)} at {offset} for {reader}")
            if (before := self.messages.setdefault(offset, message)) != message:
                self._break("changed", f"{offset} is {place(message)} for {reader}, was {place(before)}")
            if (there := self._offsets.setdefault(message, offset)) != offset:
                self._break("changed", f"{place(message)} is at {offset} for {reader}, was at {there}")
            if offset < expected:
                self._break("back", f"{reader} from {expected} to {offset}")
            elif 0 <= expected < offset:
                self._jumps.append((reader, expected, offset))

    def _break(self, rule: str, text: str) -> None:
        self.counts[rule] += 1
        if len(self.told[rule]) < TOLD_MAX:
            self.told[rule].append(f"{self.name}: {rule}: {text}")

    def close(self, confirmed: Iterable[int], first: int, stop: int) -> None:
        """Everything was read; the stream begins and ends at these offsets now."""
        latest = {key_of(self.messages[offset]): offset for offset in sorted(self.messages)}
        for reader, low, high in self._jumps:
            missed = [offset for offset in range(low, high) if not self._may_be_gone(offset, first, latest)]
            if missed:
                self._break("skipped", f"{reader} from {low} to {high}, without {missed[:TOLD_MAX]}")
        highest: dict[int, int] = {}
        for offset in sorted(self.messages):
            message = self.messages[offset]
            connection = message >> STREAM_BITS
            if message <= highest.get(connection, -1):
                self._break("order", f"{place(message)} at {offset}")
            highest[connection] = message
        self._close_lost(confirmed, first, stop, latest)

    def _may_be_gone(self, offset: int, first: int, latest: Mapping[bytes, int]) -> bool:
        if self.trimmed and offset < first:
            return True
        if not self.compacted:
            return False
        message = self.messages.get(offset)
        # A message that no reader has seen is judged by the confirmed ones.
        return message is None or latest[key_of(message)] > offset

    def _close_lost(
        self, confirmed: Iterable[int], first: int, stop: int, latest: Mapping[bytes, int]
    ) -> None:
        unseen = sorted(message for message in confirmed if message not in self._offsets)
        if self.trimmed:
            # This many were gone before anybody read them.
            gone = sum(offset not in self.messages for offset in range(min(first, stop)))
            unseen = unseen[gone:]
        if self.compacted:
            later = {key: self.messages[offset] for key, offset in latest.items()}
            unseen = [message for message in unseen if later.get(key_of(message), -1) < message]
        for message in unseen:
            self._break("lost", place(message))

    def missing(self, offsets: set[int], stop: int) -> list[int]:
        """Return the offsets that are missing in one reading from the first to the last offset."""
        if self.compacted:
            latest = {key_of(self.messages[offset]): offset for offset in sorted(self.messages)}
            wanted = set(latest.values())
        else:
            wanted = set(range(stop))
        first = min(offsets, default=stop) if self.trimmed else 0
        return sorted(offset for offset in wanted - offsets if offset > first)


class Topic(Ledger):
    """A stream, or a super stream with its partitions, as publishers see it."""

    def __init__(self, exchange: str, queue: str, logs: Sequence[Log], arguments: dict[str, Any]) -> None:
        super().__init__(exchange or queue, lambda node: False)
        self.exchange = exchange
        self.logs = logs
        self.arguments = arguments

    def publish(self, messages: Iterable[int]) -> None:
        for log in self.logs:
            log.published.update(messages)


class Topics(Ledger):
    """All of them as one ledger: the number of a message says to which topic it belongs."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}-streams", lambda node: False)
        parts = f"{name}-parts"
        self.topics = [
            Topic("", f"{name}-log", [Log(f"{name}-log")], STREAM),
            Topic(parts, "", [Log(f"{parts}-{i}") for i in range(PARTITIONS)],
                  {"x-partitions": PARTITIONS, "x-stream-max-segment-size-bytes": 16_384}),
            Topic("", f"{name}-short", [Log(f"{name}-short", trimmed=True)], STREAM | TRIMMED),
            Topic("", f"{name}-table", [Log(f"{name}-table", compacted=True)], STREAM | COMPACTED),
            Topic("", f"{name}-all", [Log(f"{name}-all", compacted=True, trimmed=True)],
                  STREAM | TRIMMED | COMPACTED | PACKED),
        ]  # fmt: skip
        self.logs = [log for topic in self.topics for log in topic.logs]

    def topic_of(self, message: int) -> Topic:
        count = message & ((1 << STREAM_BITS) - 1)
        return self.topics[(count - 1) // NEIGHBOURS % len(self.topics)]

    def publish(self, messages: Iterable[int]) -> None:
        for message in messages:
            self.topic_of(message).publish([message])

    def frames(self, messages: Iterable[int], size: int) -> bytes:
        return b"".join(
            _address(topic.exchange, topic.queue, key_of(message)).message(body(message, size))
            for message in messages
            for topic in (self.topic_of(message),)
        )

    def close(self) -> None:
        """Everything was read, and `spans` knows where each stream begins and ends."""
        for topic in self.topics:
            confirmed = [message for message in self.confirmed if self.topic_of(message) is topic]
            if len(topic.logs) == 1:
                topic.logs[0].close(confirmed, *self.spans[topic.logs[0].name])
                continue
            for log in topic.logs:
                log.close([message for message in confirmed if log.has(message)], *self.spans[log.name])
            first = topic.logs[0]
            for message in confirmed:
                if not any(log.has(message) for log in topic.logs):
                    first._break("lost", place(message))
            homes: dict[bytes, Log] = {}
            for log in topic.logs:
                for message in log.messages.values():
                    if homes.setdefault(key_of(message), log) is not log:
                        log._break(
                            "changed", f"key {key_of(message)!r} is in {homes[key_of(message)].name}, too"
                        )

    #: First and next offset of each stream, at rest.
    spans: dict[str, tuple[int, int]]

    @property
    def log_counts(self) -> dict[str, int]:
        return {rule: sum(log.counts[rule] for log in self.logs) for rule in LOG_RULES}

    def faults(self) -> list[str]:
        return [line for log in self.logs for rule in LOG_RULES for line in log.told[rule]]


@lru_cache(4096)
def _address(exchange: str, queue: str, key: bytes) -> Any:
    from tests.reliability.client import Address

    return Address(exchange, queue or key.decode(), headers={"key": key.decode()})


class LogPublisher(Publisher):
    """A publisher that publishes to all of them in turn."""

    def frames(self, messages: Sequence[int]) -> bytes:
        topics = self.ledger
        assert isinstance(topics, Topics)
        return topics.frames(messages, self._size)


class LogReader(Worker):
    """Reads all streams at one node, and continues behind the last message that it got, whatever happens."""

    def session(self, client: Client) -> None:
        topics = self.ledger
        assert isinstance(topics, Topics)
        logs = {b"%d" % index: log for index, log in enumerate(topics.logs)}
        client.sync(PREFETCH)
        for tag, log in logs.items():
            consume(client, log.name, tag, log.next.get(self.node, 0))
        while not self.stopping.is_set():
            last = 0
            for event in client.receive(0.1):
                if not isinstance(event, Delivery):
                    raise AssertionError(f"a delivery was due, {event!r} came")
                log, offset = logs[event.consumer], offset_of(event)
                log.deliver(f"reader at {self.node}", offset, number(event.body), log.next.get(self.node, 0))
                log.next[self.node] = max(log.next.get(self.node, 0), offset + 1)
                last = event.tag
            if last:
                client.ack(last, multiple=True)


def consume(client: Client, stream: str, tag: bytes, offset: int | str) -> None:
    method = commands.Basic.Consume(
        queue=stream, consumer_tag=tag.decode(), arguments={"x-stream-offset": offset}
    )
    client.call(method, commands.Basic.ConsumeOk)


def offset_of(delivery: Delivery) -> int:
    at = delivery.head.index(_OFFSET) + len(_OFFSET)
    return int.from_bytes(delivery.head[at : at + 8], "big")


class LogLoad:
    """A publisher and a reader at each node."""

    def __init__(self, cluster: MqdCluster, name: str, judge: Judge, connections: Streams) -> None:
        self.cluster = cluster
        self.topics = Topics(name)
        self.judge = judge
        self.publishers = [
            LogPublisher(cluster, node, self.topics, judge, connections, BODY_BYTES) for node in cluster.names
        ]
        self.readers = [LogReader(cluster, node, self.topics, judge) for node in cluster.names]

    @property
    def names(self) -> list[str]:
        return [log.name for log in self.topics.logs]

    def declare(self) -> None:
        with contextlib.closing(Client(self.cluster.port(self.cluster.names[0]))) as client:
            for topic in self.topics.topics:
                if topic.exchange:
                    made = commands.Exchange.Declare(
                        exchange=topic.exchange, exchange_type="x-super-stream",
                        durable=True, arguments=topic.arguments,
                    )  # fmt: skip
                    client.call(made, commands.Exchange.DeclareOk)
                else:
                    client.declare(topic.queue, **topic.arguments)

    def delete(self) -> None:
        with contextlib.closing(Client(self.cluster.port(self.cluster.names[0]))) as client:
            for topic in self.topics.topics:
                if topic.exchange:
                    client.call(commands.Exchange.Delete(exchange=topic.exchange), commands.Exchange.DeleteOk)
                else:
                    client.call(commands.Queue.Delete(queue=topic.queue), commands.Queue.DeleteOk)

    def verify(self) -> None:
        """Publishers have ended: all readers come to the end, every node has everything, and replicas are
        whole.
        """
        for log in self.topics.logs:
            try:
                found: list[dict[str, Any]] = []

                def whole(log: Log = log, found: list[dict[str, Any]] = found) -> bool:
                    found[:] = [self._told(node, log.name) for node in self.cluster.names]
                    ends = {(one.get("next_offset"), one.get("digest")) for one in found}
                    return (
                        len(ends) == 1
                        and all(
                            one.get("missing") == 0 and one["stored_offset"] == one["next_offset"]
                            for one in found
                        )
                        and all(log.next.get(node, 0) >= found[0]["next_offset"] for node in self.cluster.names)
                    )  # fmt: skip

                wait_for(
                    f"{log.name} is whole everywhere, and read",
                    whole,
                    PATIENCE_S,
                    lambda log=log, found=found: f"{found}, {log.next}",  # type: ignore[misc]
                )
            except AssertionError as error:
                self.judge.fail(str(error))
        self.topics.spans = {log.name: self._span(log) for log in self.topics.logs}
        for log in self.topics.logs:
            for node in self.cluster.names:
                self._read_whole(log, node)

    def _told(self, node: str, name: str) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            return self.cluster.queue(node, name)
        return {}

    def _span(self, log: Log) -> tuple[int, int]:
        told = [self._told(node, log.name) for node in self.cluster.names]
        stop = max((one.get("next_offset", 0) for one in told), default=0)
        return max((one.get("first_offset", 0) for one in told), default=0), stop

    def _read_whole(self, log: Log, node: str) -> None:
        _, stop = self.topics.spans[log.name]
        expected, offsets = -1 if log.trimmed or log.compacted else 0, set[int]()
        try:
            with contextlib.closing(Client(self.cluster.port(node))) as client:
                client.sync(PREFETCH)
                consume(client, log.name, b"c", "first")
                while stop and (stop - 1) not in offsets:
                    for event in client.receive():
                        assert isinstance(event, Delivery), event
                        offset = offset_of(event)
                        log.deliver(f"last reader at {node}", offset, number(event.body), expected)
                        offsets.add(offset)
                        expected = offset + 1
                        client.ack(event.tag)
        except (Gone, OSError, TimeoutError, ChannelClosed) as error:
            self.judge.fail(f"{log.name} at {node}: read {len(offsets)} messages of {stop}: {error}")
        if missing := log.missing(offsets, stop):
            self.judge.fail(f"{log.name} at {node} has no messages {missing[:TOLD_MAX]}")
        row = self.cluster.row(node, log.name)
        if row.get("lost_messages"):
            self.judge.fail(f"{log.name} at {node} has lost {row['lost_messages']} messages")


def changed(cluster: MqdCluster, node: str, suffix: str) -> None:
    """Wait until a file of the node's streams with this ending comes, goes or is written."""
    directory = cluster.data(node) / "streams"

    def written() -> dict[str, int]:
        found: dict[str, int] = {}
        for path in directory.glob(f"*/*{suffix}"):
            with contextlib.suppress(FileNotFoundError):
                found[str(path)] = path.stat().st_mtime_ns
        return found

    before = written()
    wait_for(f"a file {suffix} changes", lambda: written() != before)


def watched(cluster: MqdCluster, node: str, what: Callable[[set[str]], object]) -> None:
    """Look at the names of the node's stream files in a tight loop, until `what` returns something else for
    them than at first.
    """
    directory = cluster.data(node) / "streams"

    def names() -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in directory.glob("*/*")}

    before = what(names())
    wait_for("its files change", lambda: what(names()) != before)
