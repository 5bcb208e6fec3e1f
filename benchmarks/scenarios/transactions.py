"""Transactions that take messages from one queue and put them into another, and the time of a commit."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from pamqp import commands, frame

from ..brokers import Broker
from ..client import HOST, Connection, Refused
from ..clock import percentiles
from ..clusters import NAMES, QUORUM, Cluster
from ..frames import CHANNEL, message
from ..pump import READ_BYTES, Pace, Stalled
from ..streams import Topology, properties
from .scenario import CPU_US, RSS_MIB, Bar, Figure, Figures, Scenario, at_least, mqd_at_least, mqd_at_most

BODY = b"b" * 128
MIB = 1 << 20
#: Messages of one transaction; each worker may have twice as many in its hands.
SIZE = 100
#: Messages in each queue at the start, for each of its workers.
AHEAD = 5 * SIZE
COMMIT = frame.marshal(commands.Tx.Commit(), CHANNEL)
COMMIT_OK = frame.marshal(commands.Tx.CommitOk(), CHANNEL)
#: Class and method of basic.deliver.
DELIVER = b"\x00\x3c\x00\x3c"
STALL_S = 20.0

LATENCY_RATE = 200
LATENCY_QUEUES = 4
#: Clients of each kind: a channel handles nothing while its commit waits.
LATENCY_CLIENTS = 24
WARM_S = 1.0
#: Frame head without its size is skipped; method, delivery tag, bits.
CONFIRM = struct.Struct(">7xIQBx")


class Worker:
    """Takes SIZE messages of one queue, and puts as many into the other one; all of that in one
    transaction.
    """

    def __init__(self, connection: Connection, source: str, target: str) -> None:
        self.sock = connection.sock
        connection.call(commands.Tx.Select(), commands.Tx.SelectOk)
        connection.consume(source, 2 * SIZE)
        first = connection.delivery()
        self._delivery_bytes = first.wire_bytes
        self._publishes = message("", target, BODY, properties(persistent=True)) * SIZE
        self._received = 1
        self._acked = 0
        self._waits = False
        self._rest = connection.rest()
        self._unsent = memoryview(b"")
        #: Transactions that are committed.
        self.done = 0

    def begin(self) -> None:
        self.sock.setblocking(False)
        self._take(b"")

    def wants_to_send(self) -> bool:
        return bool(self._unsent)

    def send(self) -> None:
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            return

    def receive(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise Refused("the broker hung up")
        self._take(data)

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        place, end, size = 0, len(data), self._delivery_bytes
        while True:
            if data.startswith(COMMIT_OK, place):
                place += len(COMMIT_OK)
                self._waits = False
                self.done += 1
            elif end - place >= 11 and data[place + 7 : place + 11] not in (DELIVER, COMMIT_OK[7:11]):
                raise Refused(repr(data[place : place + 200]))
            elif end - place >= size:
                place += size
                self._received += 1
            else:
                break
        self._rest = data[place:]
        self._go_on()

    def _go_on(self) -> None:
        if self._waits or self._received - self._acked < SIZE:
            return
        self._acked += SIZE
        self._waits = True
        ack = frame.marshal(commands.Basic.Ack(self._acked, True), CHANNEL)
        self._unsent = memoryview(self._publishes + ack + COMMIT)
        self.send()


class Moves(Scenario):
    quick = False

    def __init__(self, name: str, title: str, bar: Bar, workers: int, nodes: int = 1) -> None:
        """`workers` move messages from one queue to another, as many move them back."""
        self.name = name
        self.title = title
        self.nodes = nodes
        self.figures = (Figure("rate", "messages/s", bar), Figure(CPU_US, "broker CPU µs"))
        self._workers = workers

    def run(self, broker: Broker, pace: Pace) -> Figures:
        ports = broker.ports if isinstance(broker, Cluster) else [broker.port]
        arguments: dict[str, Any] = QUORUM if len(ports) > 1 else {}
        queues = ("bench-0", "bench-1")
        with ExitStack() as stack:
            for place, queue in enumerate(queues):
                topology = stack.enter_context(Topology(ports[place % len(ports)]))
                topology.queue(queue, durable=True, **arguments)
                _fill(topology.connection, queue, AHEAD * self._workers)
            workers: list[Worker] = []
            for number in range(2 * self._workers):
                connection = Connection(ports[number % len(ports)])
                stack.callback(connection.sock.close)
                workers.append(Worker(connection, queues[number % 2], queues[1 - number % 2]))
            figures = _moved(broker, pace, workers)
            rss = broker.rss_bytes() / MIB
        return figures | {RSS_MIB: rss}


def _fill(connection: Connection, queue: str, count: int) -> None:
    one = message("", queue, BODY, properties(persistent=True))
    for _ in range(count // SIZE):
        connection.sock.sendall(one * SIZE)
    deadline = time.perf_counter() + STALL_S
    while connection.queued(queue) < count:
        if time.perf_counter() > deadline:
            raise Stalled(f"queue {queue} did not take {count} messages")
        time.sleep(0.05)


def _moved(broker: Broker, pace: Pace, workers: Sequence[Worker]) -> Figures:
    for worker in workers:
        worker.begin()
    _pump(workers, pace.warm_s)
    before, cpu, began = sum(each.done for each in workers), broker.cpu_seconds(), time.perf_counter()
    _pump(workers, pace.run_s)
    moved = (sum(each.done for each in workers) - before) * SIZE
    cpu, seconds = broker.cpu_seconds() - cpu, time.perf_counter() - began
    if not moved:
        raise Stalled(f"no transaction was committed in {seconds:.0f} s")
    return {"rate": moved / seconds, CPU_US: cpu / moved * 1e6}


def _pump(workers: Sequence[Worker], seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    by_socket = {each.sock: each for each in workers}
    while time.perf_counter() < deadline:
        sending = [each.sock for each in workers if each.wants_to_send()]
        readable, writable, _ = select.select(list(by_socket), sending, (), STALL_S)
        if not (readable or writable):
            raise Stalled(f"nothing came from {HOST} for {STALL_S:.0f} s")
        for sock in writable:
            by_socket[sock].send()
        for sock in readable:
            by_socket[sock].receive()


class CommitLatency(Scenario):
    """A commit of one message for four quorum queues, and the confirm of one message for one of them, each on
    an open schedule of its own and by clients at all nodes.
    """

    name = "cluster-commit-latency"
    title = (
        f"three nodes: commits of one message over {LATENCY_QUEUES} quorum queues at {LATENCY_RATE}/s, 128 B"
    )
    figures = (
        Figure("commit_p50_ms", "commit p50 ms"),
        Figure("commit_p99_ms", "commit p99 ms"),
        Figure("confirm_p50_ms", "confirm p50 ms"),
        Figure("confirm_p99_ms", "confirm p99 ms"),
        Figure("p99_ratio", "p99, commit/confirm", mqd_at_most(2)),
    )
    nodes = len(NAMES)
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        if not isinstance(broker, Cluster):
            raise TypeError(f"{self.name} is for a cluster")
        with ExitStack() as stack:
            topologies = [stack.enter_context(Topology(port)) for port in broker.ports]
            exchange = topologies[0].exchange("fanout")
            for number in range(LATENCY_QUEUES):
                queue = topologies[number % len(topologies)].queue(f"bench-{number}", durable=True, **QUORUM)
                topologies[0].connection.bind(queue, exchange)
            persistent = properties(persistent=True)
            request = message(exchange, "", BODY, persistent) + COMMIT
            committing, confirming = list[_Client](), list[_Client]()
            for number in range(LATENCY_CLIENTS):
                connection = stack.enter_context(Connection(broker.ports[number % len(broker.ports)]))
                connection.call(commands.Tx.Select(), commands.Tx.SelectOk)
                committing.append(_Client(connection.sock, request, _commits))
                connection = stack.enter_context(Connection(broker.ports[number % len(broker.ports)]))
                connection.confirms()
                alone = message("", f"bench-{number % LATENCY_QUEUES}", BODY, persistent)
                confirming.append(_Client(connection.sock, alone, _confirms))
            count = int(LATENCY_RATE * (WARM_S + 2 * pace.run_s))
            confirmed = _timed(confirming, count)
            cpu = broker.cpu_seconds()
            committed = _timed(committing, count)
            cpu = broker.cpu_seconds() - cpu
            rss = broker.rss_bytes() / MIB
        found = percentiles("commit", committed) | percentiles("confirm", confirmed)
        ratio = found["commit_p99_ms"] / found["confirm_p99_ms"]
        return found | {"p99_ratio": ratio, CPU_US: cpu / count * 1e6, RSS_MIB: rss}


def _commits(data: bytes, answered: int) -> tuple[int, int]:
    """Return how many requests are answered after these bytes, and how many bytes that took."""
    count = len(data) // len(COMMIT_OK)
    if data[: count * len(COMMIT_OK)] != COMMIT_OK * count:
        raise Refused(repr(data[:200]))
    return answered + count, count * len(COMMIT_OK)


def _confirms(data: bytes, answered: int) -> tuple[int, int]:
    used = 0
    while len(data) - used >= CONFIRM.size:
        method, tag, multiple = CONFIRM.unpack_from(data, used)
        if method != 0x003C_0050 or not (multiple & 1 or tag == answered + 1):
            raise Refused(repr(data[used : used + 200]))
        answered = tag
        used += CONFIRM.size
    return answered, used


class _Client:
    """Sends its share of the requests, whether earlier ones are answered or not."""

    def __init__(
        self, sock: socket.socket, request: bytes, take: Callable[[bytes, int], tuple[int, int]]
    ) -> None:
        self.sock = sock
        self._request = request
        self._take = take
        self._rest = b""
        self._answered = 0
        #: When each request without an answer was due, ns.
        self._due: deque[int] = deque()
        #: From when a request was due to its answer, ns.
        self.found: list[int] = []

    def send(self, due: int) -> None:
        self.sock.sendall(self._request)
        self._due.append(due)

    def receive(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise Refused("the broker hung up")
        now = time.monotonic_ns()
        data = self._rest + data
        before = self._answered
        self._answered, used = self._take(data, before)
        self._rest = data[used:]
        self.found += [now - self._due.popleft() for _ in range(before, self._answered)]


def _timed(clients: Sequence[_Client], count: int) -> list[int]:
    """Send requests at LATENCY_RATE, by one client after the other; return their times after WARM_S."""
    interval, began, sent = 1_000_000_000 // LATENCY_RATE, time.monotonic_ns(), 0
    give_up = began + count * interval + int(STALL_S * 1e9)
    by_socket = {each.sock: each for each in clients}
    while (answered := sum(len(each.found) for each in clients)) < count:
        now = time.monotonic_ns()
        if now > give_up:
            raise Stalled(f"{answered} of {count} requests were answered")
        while sent < count and began + sent * interval <= now:
            clients[sent % len(clients)].send(began + sent * interval)
            sent += 1
        wait_ns = began + sent * interval - now if sent < count else 1_000_000_000
        readable, _, _ = select.select(list(by_socket), (), (), max(0, wait_ns) / 1e9)
        for sock in readable:
            by_socket[sock].receive()
    warm = int(LATENCY_RATE * WARM_S) // len(clients)
    return [each for client in clients for each in client.found[warm:]]


TRANSACTION_SCENARIOS: Sequence[Scenario] = (
    Moves(
        "transactions",
        f"consume-publish transactions of {SIZE} messages, durable, 128 B",
        at_least(4),
        workers=1,
    ),
    Moves(
        "transactions-busy",
        "the same with 16 clients",
        at_least(4),
        workers=8,
    ),
    Moves(
        "cluster-transactions",
        f"three nodes: consume-publish transactions of {SIZE} messages over two quorum queues, 128 B",
        mqd_at_least(50_000),
        workers=3,
        nodes=len(NAMES),
    ),
    Moves(
        "cluster-transactions-busy",
        "the same with 24 clients",
        mqd_at_least(50_000),
        workers=12,
        nodes=len(NAMES),
    ),
    CommitLatency(),
)
