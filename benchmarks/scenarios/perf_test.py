"""RabbitMQ's own load generator, as its users run it, on one queue."""

from __future__ import annotations

from statistics import median
from uuid import uuid4

from .. import maven, perf_test
from ..brokers import Broker
from ..client import Connection, Unexpected
from ..pump import Pace
from .scenario import CPU_US, Bar, Figure, Figures, Scenario

#: Java's virtual machine compiles code that runs often; before that it is slower than the broker.
WARM_S, RUN_S = 6, 8


class PerfTest(Scenario):
    quick = False

    def __init__(self, name: str, title: str, clients: int, window: int, bar: Bar) -> None:
        self.name = name
        self.title = title
        self.figures = (Figure("rate", "msg/s", bar),)
        self._clients = clients
        self._window = window

    def missing(self) -> str | None:
        return maven.missing()

    def run(self, broker: Broker, pace: Pace) -> Figures:
        queue = f"perf-test-{uuid4().hex[:8]}"
        with Connection(broker.port) as connection:
            connection.queue(queue, durable=False)
            try:
                return self._run(broker, queue)
            finally:
                connection.delete_queue(queue)

    def _run(self, broker: Broker, queue: str) -> Figures:
        clients = str(self._clients)
        options = [
            "--predeclared",
            "--queue",
            queue,
            "--routing-key",
            queue,
            "--exchange",
            "",
            "--size",
            "128",
        ]
        options += ["--producers", clients, "--consumers", clients, "--confirm", str(self._window)]
        rates: list[int] = []
        began = ended = 0.0
        for seconds, _, received in perf_test.intervals(broker.port, *options, seconds=WARM_S + RUN_S + 1):
            # In its last second it waits for messages on their way.
            if seconds <= WARM_S + 0.5:
                began = broker.cpu_seconds()
            elif len(rates) < RUN_S:
                rates.append(received)
                ended = broker.cpu_seconds()
        if len(rates) < RUN_S or not all(rates):
            raise Unexpected(f"PerfTest received {rates} messages in {RUN_S} seconds")
        return {"rate": median(rates), CPU_US: (ended - began) / sum(rates) * 1e6}
