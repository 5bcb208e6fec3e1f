"""Three nodes and quorum queues. Clients are spread: two clients of a queue never use the same node."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy
from pamqp import commands

from .. import processes
from ..blocks import numbered
from ..brokers import Broker
from ..client import Connection, Unexpected
from ..clock import QUEUE, clock_between, percentiles
from ..clusters import NAMES, QUORUM, Cluster
from ..frames import message
from ..pump import READ_BYTES, Pace, pump
from ..settled import Settled
from ..streams import OpenStream, Route, Terms, Topology, properties
from .scenario import CPU_US, QUIET_S, RSS_MIB, Bar, Figure, Figures, Scenario, at_least, at_most, mqd_at_most
from .stream import BLOCK, STREAM, WARM_MESSAGES, append

BODY_BYTES = 128
CONFIRM_WINDOW = 1_000
PREFETCH = 500
MIB = 1 << 20
MARK = b"0123456789"

LATENCY_RATE = 2_000
IDLE_QUEUES = 1_000
IDLE_WATCH_S = 10.0

RESTART_QUEUES = 1_000
RESTART_MESSAGES = 1_000_000
#: Before a node counts as serving, the depth of each of these queues is requested.
RESTART_ASKED_EVERY = 100
RESTART_MAX_S = 300.0
FILL_WINDOW = 4_000
FILL_BLOCK = 200
FILL_MAX_S = 600.0

#: Half as many as on one node: three share this machine.
STREAM_MESSAGES = 200_000

FAILOVER_RATE = 1_000
FAILOVER_BEFORE_S = 1.5
FAILOVER_WATCH_S = 8.0


class ClusterScenario(Scenario):
    """Runs on three nodes of a broker."""

    nodes = len(NAMES)

    def run(self, broker: Broker, pace: Pace) -> Figures:
        if not isinstance(broker, Cluster):
            raise TypeError(f"{self.name} is for a cluster")
        return self.measure(broker, pace)

    @abstractmethod
    def measure(self, cluster: Cluster, pace: Pace) -> Figures: ...


def _rss_mib(cluster: Cluster) -> float:
    return cluster.rss_bytes() / MIB


class ClusterThroughput(ClusterScenario):
    """Queues are declared, so led, on one node after the other; published to there, consumed at the next
    node.
    """

    def __init__(self, name: str, title: str, queues: int, bar: Bar) -> None:
        self.name = name
        self.title = title
        self.figures = [Figure("rate", "deliveries/s", bar)]
        if queues == 1:
            # The third node has no clients of this queue: it only follows.
            self.figures += [
                Figure("leader_us", "leader CPU µs"),
                Figure("follower_us", "follower CPU µs"),
                Figure("follower_share", "follower/leader", mqd_at_most(0.5)),
            ]
        self._queues = queues

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        terms = Terms(PREFETCH, CONFIRM_WINDOW)
        with ExitStack() as topologies, ExitStack() as connections:
            declared = [topologies.enter_context(Topology(port)) for port in cluster.ports]
            opened: list[OpenStream] = []
            for i in range(self._queues):
                place = i % len(cluster.ports)
                queue = declared[place].queue(f"bench-{i}", durable=True, **QUORUM)
                route = Route([queue], [message("", queue, b"b" * BODY_BYTES, properties(persistent=True))])
                port, other = cluster.ports[place], cluster.ports[(place + 1) % len(cluster.ports)]
                opened.append(OpenStream(port, route, terms, connections, other))
            streams = [one.stream() for one in opened]
            cpu = _CpuByNode(cluster)
            before = sum(stream.delivered for stream in streams)
            run = pump(streams, pace, cluster.cpu_seconds)
            by_node = cpu.us_each(sum(stream.delivered for stream in streams) - before)
            rss = _rss_mib(cluster)
            for one, stream in zip(opened, streams, strict=True):
                one.check(stream)
        figures = {"rate": run.rate, CPU_US: run.cpu_us, RSS_MIB: rss}
        if self._queues == 1:
            leader, follower = by_node[0], by_node[2]
            figures |= {"leader_us": leader, "follower_us": follower, "follower_share": follower / leader}
        return figures


class ClusterStream(ClusterScenario):
    """A stream; the publisher is connected to the leader's node."""

    name = "cluster-stream"
    title = "three nodes: one stream, 128 B, appended with confirms"
    figures = (Figure("append", "append msg/s", at_least(4)),)
    fresh = True
    quick = False

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        count = max(int(STREAM_MESSAGES * pace.share) // BLOCK, 10) * BLOCK
        with Connection(cluster.ports[0]) as connection:
            connection.queue(
                STREAM, durable=True, **{"x-queue-type": "stream", "x-queue-leader-locator": "client-local"}
            )
            connection.confirms()
            settled = Settled(count + WARM_MESSAGES)
            append(connection, settled, WARM_MESSAGES)
            cpu = cluster.cpu_seconds()
            seconds = append(connection, settled, WARM_MESSAGES + count)
            cpu = cluster.cpu_seconds() - cpu
            rss = _rss_mib(cluster)
            connection.delete_queue(STREAM)
        return {"append": count / seconds, CPU_US: cpu / count * 1e6, RSS_MIB: rss}


class _CpuByNode:
    """Includes the warm-up: nodes of one run are compared with each other."""

    def __init__(self, cluster: Cluster) -> None:
        self._pids = [cluster.node_pids(place) for place in range(len(NAMES))]
        self._before = self._seconds()

    def _seconds(self) -> list[float]:
        return [processes.cpu_seconds(pids) for pids in self._pids]

    def us_each(self, messages: int) -> list[float]:
        return [
            (now - before) / messages * 1e6 for before, now in zip(self._before, self._seconds(), strict=True)
        ]


class ClusterLatency(ClusterScenario):
    """Published at the leader's node, consumed at another node."""

    name = "cluster-latency"
    title = f"three nodes: latency at {LATENCY_RATE:,} msg/s, 128 B, quorum queue, confirms, auto-ack"
    figures = (
        Figure("confirm_p50_ms", "confirm p50 ms", at_most(1)),
        Figure("confirm_p99_ms", "confirm p99 ms", at_most(0.5)),
        Figure("delivery_p50_ms", "delivery p50 ms"),
        Figure("delivery_p99_ms", "delivery p99 ms"),
        Figure("lag_p99_ms", "sent late p99 ms"),
    )

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        warm = LATENCY_RATE
        total = warm + int(LATENCY_RATE * pace.run_s * 2)
        with Topology(cluster.ports[0]) as topology:
            topology.queue(QUEUE, durable=True, **QUORUM)
            with clock_between(cluster.ports[0], cluster.ports[1], LATENCY_RATE, total) as clock:
                cpu = cluster.cpu_seconds()
                clock.run()
                cpu = cluster.cpu_seconds() - cpu
                rss = _rss_mib(cluster)
        return (
            percentiles("delivery", clock.delivered[warm:])
            | percentiles("confirm", clock.confirmed[warm:])
            | percentiles("lag", clock.lag[warm:])
            | {CPU_US: cpu / total * 1e6, RSS_MIB: rss}
        )


class IdleQuorumQueues(ClusterScenario):
    """Compares the private memory of a node, without mapped files."""

    name = "cluster-idle-queues"
    title = "three nodes: a thousand idle quorum queues, on the node that needs most"
    figures = (
        Figure("cpu_percent", "CPU % of a core", mqd_at_most(2)),
        Figure("kib_each", "KiB each", mqd_at_most(5)),
        Figure("declare_rate", "declared/s"),
        Figure("queues", "queues"),
    )
    fresh = True
    quick = False

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        count = int(IDLE_QUEUES * pace.share)
        _declare(cluster, "warm", len(NAMES), QUORUM)
        time.sleep(QUIET_S)
        cluster.settle()
        pids = [cluster.node_pids(place) for place in range(len(NAMES))]
        empty = [processes.anonymous_bytes(each) for each in pids]
        began = time.perf_counter()
        _declare(cluster, "bench", count, QUORUM)
        seconds = time.perf_counter() - began
        cluster.settle(limit_s=20.0)
        before = [processes.cpu_seconds(each) for each in pids]
        watched = time.perf_counter()
        time.sleep(IDLE_WATCH_S)
        watched = time.perf_counter() - watched
        used = [processes.cpu_seconds(each) - was for each, was in zip(pids, before, strict=True)]
        grown = [processes.anonymous_bytes(each) - was for each, was in zip(pids, empty, strict=True)]
        return {
            "cpu_percent": max(used) / watched * 100,
            "kib_each": max(grown) / count / 1024,
            "declare_rate": count / seconds,
            "queues": count,
            RSS_MIB: _rss_mib(cluster),
        }


def _declare(cluster: Cluster, prefix: str, count: int, arguments: dict[str, str]) -> None:
    """Declare on one node after the other, so that leaders are spread."""
    with ExitStack() as opened:
        connections = [opened.enter_context(Connection(port)) for port in cluster.ports]
        for i in range(count):
            connections[i % len(connections)].queue(f"{prefix}-{i:04}", durable=True, **arguments)


class RestartWithBacklog(ClusterScenario):
    name = "cluster-restart"
    title = "three nodes: kill -9 of all, with 1,000 quorum queues and a million messages, until all serve"
    figures = (
        Figure("seconds", "s", mqd_at_most(3)),
        Figure("fill", "fill msg/s"),
        Figure("queues", "queues"),
        Figure("messages", "messages"),
    )
    fresh = True
    quick = False
    rounds = 1

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        queues = max(RESTART_ASKED_EVERY, int(RESTART_QUEUES * pace.share))
        each = int(RESTART_MESSAGES * pace.share) // queues // FILL_BLOCK * FILL_BLOCK or FILL_BLOCK
        _declare(cluster, "bench", queues, QUORUM)
        began = time.perf_counter()
        for place, port in enumerate(cluster.ports):
            names = [f"bench-{i:04}" for i in range(place, queues, len(NAMES))]
            _fill(port, names, each)
        fill_s = time.perf_counter() - began
        asked = [f"bench-{i:04}" for i in range(0, queues, RESTART_ASKED_EVERY)]
        seconds = cluster.bounce(_holds(asked, each), RESTART_MAX_S)
        return {
            "seconds": seconds,
            "fill": queues * each / fill_s,
            "queues": queues,
            "messages": queues * each,
            RSS_MIB: _rss_mib(cluster),
        }


def _holds(queues: Sequence[str], each: int) -> Callable[[Connection], bool]:
    def serves(connection: Connection) -> bool:
        found = [connection.queued(queue) for queue in queues]
        if any(depth > each for depth in found):
            raise Unexpected(f"{each} messages were queued, {found} are")
        return all(depth == each for depth in found)

    return serves


def _fill(port: int, queues: Sequence[str], each: int) -> None:
    """Publish with confirms, block by block, with at most a window of unconfirmed messages."""
    with Connection(port) as connection:
        connection.confirms()
        settled = Settled(len(queues) * each)
        sent = 0
        for queue in queues:
            wire = message("", queue, MARK + b"b" * (BODY_BYTES - len(MARK)), properties(persistent=True))
            blocks = numbered(wire, MARK, 4 * FILL_BLOCK)
            filled = 0
            while filled < each:
                block = next(blocks)
                # A block may not have the requested size if messages are large.
                if filled + block.messages > each:
                    raise Unexpected("blocks of this size do not make up the count")
                connection.sock.sendall(block.data)
                filled += block.messages
                sent += block.messages
                _confirmed(connection, settled, sent - FILL_WINDOW)
        _confirmed(connection, settled, sent)


def _confirmed(connection: Connection, settled: Settled, wanted: int) -> None:
    deadline = time.perf_counter() + FILL_MAX_S
    while settled.count < wanted:
        settled.feed(connection.sock.recv(READ_BYTES))
        if time.perf_counter() > deadline:
            raise Unexpected(f"{settled.count} confirms of {wanted}")


class Failover(ClusterScenario):
    """A publisher at another node, whose connection stays open."""

    name = "cluster-failover"
    title = "three nodes: kill -9 of a queue's leader, the longest time without a confirm"
    figures = (Figure("silent_s", "s", mqd_at_most(0.3)), Figure("usual_s", "s before the kill"))
    fresh = True
    rounds = 5

    def measure(self, cluster: Cluster, pace: Pace) -> Figures:
        with Connection(cluster.ports[0]) as declaring:
            declaring.queue(QUEUE, durable=True, **QUORUM)
        with Connection(cluster.ports[1]) as publisher:
            publisher.confirms()
            heard, killed = _watch(cluster, publisher)
        before = heard[heard <= killed]
        after = heard[heard > killed]
        if not len(after):
            raise Unexpected(f"no confirm came within {FAILOVER_WATCH_S} s of the kill")
        # The first confirm after the kill may have been on its way, so every gap from then on is looked at.
        since = numpy.concatenate([before[-1:], after])
        return {"silent_s": float(numpy.diff(since).max()), "usual_s": float(numpy.diff(before).max())}


def _watch(cluster: Cluster, publisher: Connection) -> tuple[numpy.typing.NDArray[numpy.float64], float]:
    """Return the times of the confirms, and the time when the leader was killed."""
    sock = publisher.sock
    settled = Settled(int(FAILOVER_RATE * (FAILOVER_BEFORE_S + FAILOVER_WATCH_S) * 2))
    wire = message("", QUEUE, b"b" * BODY_BYTES, properties(persistent=True))
    began = time.perf_counter()
    heard: list[float] = []
    killed, sent = 0.0, 0
    while (now := time.perf_counter()) < began + FAILOVER_BEFORE_S + FAILOVER_WATCH_S:
        if not killed and now > began + FAILOVER_BEFORE_S:
            killed = now
            cluster.kill(0)
        due = int((now - began) * FAILOVER_RATE) - sent
        if due > 0 and sent - settled.count < CONFIRM_WINDOW:
            due = min(due, CONFIRM_WINDOW)
            sock.sendall(wire * due)
            sent += due
        sock.settimeout(1 / FAILOVER_RATE)
        try:
            data = sock.recv(READ_BYTES)
        except TimeoutError:
            continue
        if len(settled.feed(data)):
            heard.append(time.perf_counter())
    sock.settimeout(20)
    # Outstanding confirms come before the connection is closed.
    while settled.count < sent:
        settled.feed(sock.recv(READ_BYTES))
    with Connection(cluster.ports[2]) as other:
        other.call(commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
    return numpy.array(heard), killed


CLUSTER_SCENARIOS: tuple[Scenario, ...] = (
    ClusterThroughput(
        "cluster-one-queue",
        "three nodes: one quorum queue, persistent, confirms (window 1000), acks one by one",
        1,
        at_least(4),
    ),
    ClusterThroughput(
        "cluster-ten-queues", "three nodes: ten quorum queues, clients spread over the nodes", 10, at_least(4)
    ),
    ClusterStream(),
    ClusterLatency(),
    Failover(),
    IdleQuorumQueues(),
    RestartWithBacklog(),
)
