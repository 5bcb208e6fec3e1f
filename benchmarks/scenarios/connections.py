"""The cost of a connection: a thousand idle ones, and many that come and go."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from pamqp import commands

from ..brokers import Broker
from ..client import Connection, Unexpected
from ..frames import message
from ..pump import Pace
from ..streams import properties
from .scenario import CPU_US, QUIET_S, RSS_MIB, Figure, Figures, Scenario, at_least, at_most

IDLE = 1_000
WARM = 50
CHURN_CLIENTS = 4
CHURN_BODY = b"b" * 128


class IdleConnections(Scenario):
    name = "idle-connections"
    title = "1,000 idle connections, each with an open channel"
    figures = (Figure("kib_each", "KiB each", at_most(0.25)),)
    fresh = True
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        _open_and_close(broker, WARM)
        time.sleep(QUIET_S)
        broker.settle()
        before = broker.rss_bytes()
        with ExitStack() as connections:
            for _ in range(IDLE):
                connections.enter_context(Connection(broker.port))
            time.sleep(1)
            broker.settle()
            after = broker.rss_bytes()
        return {"kib_each": (after - before) / IDLE / 1024, RSS_MIB: after / (1 << 20)}


def _open_and_close(broker: Broker, count: int) -> None:
    """Open a few connections first: they load code and fill pools."""
    with ExitStack() as connections:
        for _ in range(count):
            connections.enter_context(Connection(broker.port))


class Churn(Scenario):
    name = "churn"
    title = "connect, declare, publish, get, close; four clients"
    figures = (Figure("rate", "rounds/s", at_least(1)),)

    def run(self, broker: Broker, pace: Pace) -> Figures:
        began, cpu = time.perf_counter(), broker.cpu_seconds()
        deadline = began + pace.run_s
        with ThreadPoolExecutor(CHURN_CLIENTS) as pool:
            clients = [pool.submit(_churn, broker.port, i, deadline) for i in range(CHURN_CLIENTS)]
            done = sum(client.result() for client in clients)
        seconds = time.perf_counter() - began
        cpu_us = (broker.cpu_seconds() - cpu) / done * 1e6
        return {"rate": done / seconds, CPU_US: cpu_us, RSS_MIB: broker.rss_bytes() / (1 << 20)}


def _churn(port: int, client: int, deadline: float) -> int:
    done = 0
    while time.perf_counter() < deadline:
        queue = f"bench-churn-{client}-{done}"
        with Connection(port) as connection:
            connection.call(commands.Queue.Declare(queue=queue, exclusive=True), commands.Queue.DeclareOk)
            connection.sock.sendall(message("", queue, CHURN_BODY, properties()))
            if connection.get(queue) != CHURN_BODY:
                raise Unexpected("basic.get did not bring the message that was published before it")
        done += 1
    return done
