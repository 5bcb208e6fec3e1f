"""Many clients with one message each on its way: the next message is sent after the delivery and the confirm
of the last one.
"""

from __future__ import annotations

import resource
import select
import time
from contextlib import ExitStack
from typing import Any

from pamqp import commands, frame

from ..brokers import Broker
from ..client import HOST, Connection, Refused
from ..clusters import QUORUM, Cluster
from ..frames import CHANNEL, message
from ..pump import Pace, Stalled
from ..streams import properties
from .scenario import CPU_US, RSS_MIB, Figure, Figures, Scenario, at_least, at_most

BODY = b"b" * 128
#: A basic.ack of the broker.
CONFIRM_BYTES = 21
#: A basic.ack of the client, up to its tag.
ACK = frame.marshal(commands.Basic.Ack(0), CHANNEL)[:-10]
STALL_S = 20.0


class Looper:
    """One client with its own queue."""

    def __init__(self, connection: Connection, queue: str, durable: bool, arguments: dict[str, Any]) -> None:
        self.sock = connection.sock
        connection.queue(queue, durable=durable, **arguments)
        connection.consume(queue, 10 if durable else None)
        self._message = message("", queue, BODY, properties(persistent=durable))
        self.sock.sendall(self._message)
        self._loop_bytes = connection.delivery().wire_bytes + CONFIRM_BYTES
        connection.confirms()
        self._acks = durable
        self._tag = 1
        self._missing = 0
        self.loops = 0

    def send(self) -> None:
        """Ack the last message, and publish the next one."""
        ack = ACK + self._tag.to_bytes(8, "big") + b"\0\xce" if self._acks else b""
        self._tag += 1
        self._missing += self._loop_bytes
        self.sock.send(ack + self._message)

    def receive(self) -> None:
        data = self.sock.recv(4096)
        if not data:
            raise Refused("the broker hung up")
        self._missing -= len(data)
        if not self._missing:
            self.loops += 1
            self.send()


class ClosedLoop(Scenario):
    quick = False

    def __init__(self, clients: int, kind: str, nodes: int = 1) -> None:
        """Queues are transient, durable or quorum. On several nodes clients are spread, each with a queue
        that its node has or leads.
        """
        on = "" if nodes == 1 else f"-{nodes}-nodes"
        self.name = f"closed-loop-{clients}-{kind}{on}"
        where = "" if nodes == 1 else "three nodes: "
        acked = ", auto-ack" if kind == "transient" else ", persistent, acks"
        self.title = f"{where}{clients:,} clients with one message each under way, {kind}{acked}, confirms"
        self.nodes = nodes
        rate = Figure("rate", "loops/s", at_least(2 if self.name == "closed-loop-1-durable" else 1))
        self.figures = (rate,) if clients == 1 else (rate, Figure(CPU_US, "broker CPU µs", at_most(0.5)))
        self.queues = [f"bench-loop-{number}" for number in range(clients)]
        self.durable = kind != "transient"
        self._arguments = QUORUM if kind == "quorum" else {}

    def run(self, broker: Broker, pace: Pace) -> Figures:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        ports = broker.ports if isinstance(broker, Cluster) else [broker.port]
        names = self.queues
        with ExitStack() as connections, select.epoll() as poll:
            loopers: dict[int, Looper] = {}
            for number, name in enumerate(names):
                connection = Connection(ports[number % len(ports)])
                connections.callback(connection.sock.close)
                looper = Looper(connection, name, self.durable, self._arguments)
                loopers[looper.sock.fileno()] = looper
                poll.register(looper.sock.fileno(), select.EPOLLIN)
            try:
                return _measured(broker, pace, loopers, poll)
            finally:
                with Connection(broker.port) as cleaner:
                    for looper in loopers.values():
                        looper.sock.close()
                    for name in names:
                        cleaner.delete_queue(name)


def _measured(broker: Broker, pace: Pace, loopers: dict[int, Looper], poll: select.epoll) -> Figures:
    for looper in loopers.values():
        looper.sock.setblocking(False)
        looper.send()
    _pump(loopers, poll, pace.warm_s)
    before, cpu, began = _loops(loopers), broker.cpu_seconds(), time.perf_counter()
    _pump(loopers, poll, pace.run_s)
    done = _loops(loopers) - before
    cpu, seconds = broker.cpu_seconds() - cpu, time.perf_counter() - began
    return {"rate": done / seconds, CPU_US: cpu / done * 1e6, RSS_MIB: broker.rss_bytes() / (1 << 20)}


def _loops(loopers: dict[int, Looper]) -> int:
    return sum(looper.loops for looper in loopers.values())


def _pump(loopers: dict[int, Looper], poll: select.epoll, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        ready = poll.poll(STALL_S)
        if not ready:
            raise Stalled(f"nothing came from {HOST} for {STALL_S:.0f} s")
        for number, _ in ready:
            loopers[number].receive()
