"""Messages on their way through queues of every kind: few, so that the queues are idle most of the time.

A flow has a publisher thread that connects to the node it is told, and consumer threads, one at a node. What
is confirmed, or committed, has to come to a consumer of each of its queues soon; twice only as redelivered.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.patience import patient
from tests.cluster.load import Judge
from tests.cluster.nodes import Cluster

#: A consumer looks for the end of its work so often, s.
LOOK_S = 0.1
#: How long a consumer waits before it consumes again what was cancelled, s.
AGAIN_S = 0.05
PREFETCH = 10
#: Queues that live on one node are out of reach for a moment when the node wakes, or the one that asks.
OUT_OF_REACH = (404, 506)
#: Acks of what was delivered before a consumer was cancelled are refused.
CONSUMER_CLOSED = (*OUT_OF_REACH, 406)
#: A consumer that keeps messages keeps each of which the number is a multiple of this.
KEPT = 3

QUORUM: dict[str, Any] = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
STREAM: dict[str, Any] = {"x-queue-type": "stream", "x-queue-leader-locator": "client-local"}


@dataclass(frozen=True)
class Kind:
    """What a flow goes through."""

    #: Queues with their arguments, in the order of their declaration; names are prefixed.
    queues: dict[str, dict[str, Any]]
    #: Where a message is published to, all in one transaction if `transactional`.
    to: tuple[str, ...]
    #: Where it has to arrive.
    arrives: tuple[str, ...]
    #: Queues whose consumers reject what they get.
    rejects: tuple[str, ...] = ()
    transactional: bool = False
    headers: dict[str, Any] = field(default_factory=dict)
    #: Arguments of basic.consume.
    consume: dict[str, Any] = field(default_factory=dict)
    #: Consumers of each queue, at different nodes.
    consumers: int = 1
    #: True if messages come in their order.
    ordered: bool = True
    #: The consumer declares its queue with these flags, whenever it connects.
    flags: tuple[str, ...] = ()
    #: True if messages go with the queue when a link breaks.
    lossy: bool = False
    #: True if a consumer keeps some messages until they are taken from it.
    keeps: bool = False
    #: Queues that get dead letters at least once, and do not know which they have had.
    letters: tuple[str, ...] = ()

    @property
    def reads(self) -> bool:
        return "x-stream-offset" in self.consume


def kinds(prefix: str) -> dict[str, Kind]:
    """Names of queues in arguments have the prefix."""
    return {
        "classic": Kind({"q": {}}, ("q",), ("q",)),
        "quorum": Kind({"q": QUORUM}, ("q",), ("q",)),
        "active": Kind({"q": QUORUM | {"x-single-active-consumer": True}}, ("q",), ("q",), consumers=2),
        "active classic": Kind({"q": {"x-single-active-consumer": True}}, ("q",), ("q",), consumers=2),
        "stream": Kind({"q": STREAM}, ("q",), ("q",), consume={"x-stream-offset": "first"}, consumers=3),
        "group": Kind(
            {"s": STREAM, "q": {"x-queue-type": "stream-group", "x-stream": f"{prefix}group s", "x-stream-offset": "first"}},
            ("s",), ("q",), consumers=2,
        ),
        "message groups": Kind(
            {"q": QUORUM | {"x-message-groups": True}}, ("q",), ("q",), headers={"x-group-id": "a"}, consumers=2
        ),
        "delayed": Kind({"q": QUORUM | {"x-delayed": True}}, ("q",), ("q",), headers={"x-delay": 700}, ordered=False),
        "delayed classic": Kind({"q": {"x-delayed": True}}, ("q",), ("q",), headers={"x-delay": 700}, ordered=False),
        "transaction": Kind({"a": QUORUM, "b": QUORUM}, ("a", "b"), ("a", "b"), transactional=True),
        "mixed transaction": Kind({"a": QUORUM, "b": {}, "c": STREAM}, ("a", "b", "c"), ("a", "b"), transactional=True),
        "exclusive": Kind({"q": {}}, ("q",), ("q",), flags=("exclusive",)),
        "auto-delete": Kind({"q": {}}, ("q",), ("q",), flags=("auto_delete",), lossy=True),
        "timeout": Kind({"q": QUORUM}, ("q",), ("q",), consume={"x-consumer-timeout": 700}, consumers=2, keeps=True, ordered=False),
        "timeout classic": Kind({"q": {}}, ("q",), ("q",), consume={"x-consumer-timeout": 700}, consumers=2, keeps=True, ordered=False),
        "letters": Kind(
            {
                "dead": QUORUM,
                "q": QUORUM | {
                    "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{prefix}letters dead",
                    "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
                },
            },
            ("q",), ("dead",), rejects=("q",), ordered=False, letters=("dead",),
        ),
        "expired": Kind(
            {
                "dead": QUORUM,
                "q": QUORUM | {
                    "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{prefix}expired dead",
                    "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-message-ttl": 500,
                },
            },
            ("q",), ("dead",), ordered=False, letters=("dead",),
        ),
    }  # fmt: skip


class Flow:
    def __init__(self, cluster: Cluster, judge: Judge, prefix: str, name: str, kind: Kind, home: str) -> None:
        self._cluster = cluster
        self._judge = judge
        self.name = name
        self.kind = kind
        self._prefix = f"{prefix}{name} "
        self._home = home
        self._jobs: queue.Queue[tuple[str, int] | None] = queue.Queue()
        self._number = 0
        #: Numbers of messages, each with the node it was published at.
        self.sent: dict[int, str] = {}
        #: When they were published, s.
        self._sent_s: dict[int, float] = {}
        self.confirmed: set[int] = set()
        #: Those whose outcome is not known: they may come later, or not at all.
        self.doubted: set[int] = set()
        #: By queue, or for a stream by reader.
        self.arrived: dict[str, set[int]] = {}
        #: Those that came without the flag `redelivered`, by queue.
        self._first: dict[str, set[int]] = defaultdict(set)
        #: Calls of `put` that are not done.
        self.under_way = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(self._publish,), daemon=True)]
        nodes = cluster.names
        for each in dict.fromkeys((*kind.arrives, *kind.rejects)):
            for number in range(kind.consumers):
                # Not all at the home of the queues.
                at = nodes[(nodes.index(home) + 1 + number) % len(nodes)]
                if each in kind.arrives:
                    self.arrived[self._place(each, at)] = set()
                self._threads.append(
                    threading.Thread(target=self._guarded, args=(self._consume, each, at), daemon=True)
                )

    def _place(self, name: str, node: str) -> str:
        return f"{self.queue(name)} at {node}" if self.kind.reads else self.queue(name)

    def queue(self, name: str) -> str:
        return self._prefix + name

    @property
    def queues(self) -> list[str]:
        return [self.queue(name) for name in self.kind.queues]

    # -- from beginning to end -------------------------------------------------------------------------------

    def connect(self, node: str) -> pika.BlockingConnection:
        where = pika.ConnectionParameters("127.0.0.1", self._cluster.port(node), heartbeat=0)
        return pika.BlockingConnection(patient(where))

    def start(self) -> None:
        connection = self.connect(self._home)
        channel = connection.channel()
        if not self.kind.flags:
            for name, arguments in self.kind.queues.items():
                channel.queue_declare(self.queue(name), durable=True, arguments=arguments)
        connection.close()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._jobs.put(None)

    def end(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(10)
            if thread.is_alive():
                self._judge.fail(f"{self.name}: a client hangs")
        connection = self.connect(self._home)
        for name in () if self.kind.flags else reversed(self.queues):
            connection.channel().queue_delete(name)
        connection.close()

    def put(self, node: str, count: int) -> None:
        """Have messages published at a node, one after the other; this does not wait."""
        with self._lock:
            self.under_way += 1
        self._jobs.put((node, count))

    def forgive(self) -> None:
        """What was published until now may be lost."""
        with self._lock:
            self.confirmed.clear()

    def missing(self) -> list[str]:
        """Return what has to come, and is not there yet."""
        if self.under_way:
            return [f"{self.name}: {self.under_way} publishers wait for their confirms"]
        with self._lock:
            found = {place: sorted(self.confirmed - numbers) for place, numbers in self.arrived.items()}
        return [f"{place} lacks {numbers}" for place, numbers in found.items() if numbers]

    def halves(self) -> list[str]:
        """Return transactions that have come to some of their queues only. All are decided."""
        if not self.kind.transactional:
            return []
        with self._lock:
            first, *others = self.arrived.values()
            halves = first.union(*others) - first.intersection(*others)
        return [f"{self.name}: {sorted(halves)} came to some of the queues only"] if halves else []

    def _guarded(self, do: Callable[..., None], *arguments: str) -> None:
        try:
            do(*arguments)
        except BaseException as error:  # noqa: BLE001  it is told where the run is judged
            if self._stopping.is_set():
                return
            self._judge.fail(f"{self.name}: {do.__name__} {arguments}: {type(error).__name__}: {error}")

    # -- publishing ------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        connections: dict[str, tuple[pika.BlockingConnection, BlockingChannel]] = {}
        while (job := self._jobs.get()) is not None:
            node, count = job
            if node not in connections:
                connections[node] = self._opened(node)
            connection, channel = connections[node]
            for _ in range(count):
                self._number += 1
                self.sent[self._number] = node
                self._sent_s[self._number] = time.monotonic()
                try:
                    self._publish_one(channel, self._number)
                except pika.exceptions.NackError:
                    self.doubted.add(self._number)
                except pika.exceptions.UnroutableError:
                    if not self.kind.flags:
                        self._judge.fail(f"{self.name} at {node}: {self._number} is unroutable")
                except pika.exceptions.ChannelClosedByBroker as closed:
                    self.doubted.add(self._number)
                    if closed.reply_code not in OUT_OF_REACH:
                        self._judge.fail(f"{self.name} at {node}: {closed}")
                    with suppress(pika.exceptions.AMQPError):
                        connection.close()
                    connection, channel = connections[node] = self._opened(node)
                else:
                    with self._lock:
                        self.confirmed.add(self._number)
            with self._lock:
                self.under_way -= 1
        for connection, _ in connections.values():
            connection.close()

    def _opened(self, node: str) -> tuple[pika.BlockingConnection, BlockingChannel]:
        connection = self.connect(node)
        channel = connection.channel()
        if self.kind.transactional:
            channel.tx_select()
        else:
            channel.confirm_delivery()
        return connection, channel

    def _publish_one(self, channel: BlockingChannel, number: int) -> None:
        properties = pika.BasicProperties(delivery_mode=2, headers=self.kind.headers)
        for name in self.kind.to:
            channel.basic_publish(
                "", self.queue(name), b"%d" % number, properties, mandatory=not self.kind.transactional
            )
        if self.kind.transactional:
            channel.tx_commit()

    # -- consuming -------------------------------------------------------------------------------------------

    def _consume(self, name: str, node: str) -> None:
        arguments = dict(self.kind.consume)
        while not self._stopping.is_set():
            try:
                connection = self.connect(node)
            except (pika.exceptions.AMQPError, OSError) as error:
                self._judge.fail(f"{self.name}: {node} lets no consumer in: {error}")
                return
            try:
                self._consume_once(connection.channel(), name, self._place(name, node), arguments)
            except pika.exceptions.ChannelClosedByBroker as closed:
                if closed.reply_code not in CONSUMER_CLOSED:
                    self._judge.fail(f"{self.name}: consumer at {node}: {closed}")
            with suppress(pika.exceptions.AMQPError):
                connection.close()
            self._stopping.wait(AGAIN_S)

    def _consume_once(
        self, channel: BlockingChannel, name: str, place: str, arguments: dict[str, Any]
    ) -> None:
        """Consume until the consumer is cancelled, or the storm is over."""
        cancelled = threading.Event()
        last: dict[str, int] = {}
        channel.add_on_cancel_callback(lambda frame: cancelled.set())
        if self.kind.flags:
            channel.queue_declare(self.queue(name), **dict.fromkeys(self.kind.flags, True))
        channel.basic_qos(prefetch_count=PREFETCH)

        def got(_: Any, method: Any, properties: Any, body: bytes) -> None:
            number = int(body)
            if self.kind.keeps and number % KEPT == 0 and not method.redelivered:
                return
            if self.kind.reads:
                arguments["x-stream-offset"] = properties.headers["x-stream-offset"] + 1
            self._take(name, place, number, redelivered=method.redelivered)
            if self.kind.ordered and not method.redelivered and number not in self.doubted:
                # Queues may see a transaction a moment after its client, and so after one of another client.
                line = self.sent[number] if self.kind.transactional else ""
                if number < last.get(line, 0):
                    self._judge.fail(f"{self.name}: {number} came after {last[line]} at {place}")
                last[line] = number
            if name in self.kind.rejects:
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(self.queue(name), got, arguments=arguments)
        while not (cancelled.is_set() or self._stopping.is_set()):
            channel.connection.process_data_events(LOOK_S)

    def _take(self, name: str, place: str, number: int, *, redelivered: bool) -> None:
        with self._lock:
            if not redelivered:
                # A node that stood still may hand out later what others have got as redelivered.
                if number in self._first[place] and name not in self.kind.letters:
                    self._judge.fail(f"{self.name}: {number} came twice from {place}, and not as redelivered")
                self._first[place].add(number)
            if number not in self.sent:
                self._judge.fail(f"{self.name}: {number} came and was never published")
            elif time.monotonic() - self._sent_s[number] < self.kind.headers.get("x-delay", 0) / 1000:
                self._judge.fail(f"{self.name}: {number} came before its time")
            if place in self.arrived:
                self.arrived[place].add(number)


def left(flows: Iterable[Flow]) -> list[str]:
    return [text for flow in flows for text in flow.missing()]
