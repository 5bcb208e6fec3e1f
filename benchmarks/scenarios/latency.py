"""Latency at a fixed rate, of deliveries and of confirms."""

from __future__ import annotations

from ..brokers import Broker
from ..client import Connection
from ..clock import QUEUE, WIRE, Clock, percentiles
from ..pump import Pace
from ..streams import Topology
from .scenario import CPU_US, RSS_MIB, Bar, Figure, Figures, Scenario, at_most


class Latency(Scenario):
    def __init__(self, rate: int, quick: bool) -> None:
        self.name = f"latency-{rate}"
        self.title = f"latency at {rate:,} msg/s, 128 B, transient, confirms"
        self.quick = quick
        self._rate = rate
        bars: dict[str, Bar] = {"p50": at_most(1), "p99": at_most(0.5), "p999": at_most(1)}
        self.figures = [
            Figure(f"{what}_{key}_ms", f"{what} {key} ms", bar)
            for what in ("delivery", "confirm")
            for key, bar in bars.items()
        ] + [Figure("lag_p99_ms", "sent late p99 ms")]

    def run(self, broker: Broker, pace: Pace) -> Figures:
        warm = int(self._rate * max(pace.warm_s, 0.5))
        total = warm + int(self._rate * pace.run_s * 1.5)
        with Topology(broker.port) as topology:
            topology.queue(QUEUE)
            with Connection(broker.port) as publisher, Connection(broker.port) as consumer:
                consumer.consume(QUEUE, None)
                publisher.sock.sendall(WIRE)
                delivery_bytes = consumer.delivery().wire_bytes
                publisher.confirms()
                clock = Clock(publisher.sock, consumer.sock, delivery_bytes, self._rate, total)
                cpu = broker.cpu_seconds()
                clock.run()
                cpu = broker.cpu_seconds() - cpu
                rss = broker.rss_bytes()
        figures = percentiles("delivery", clock.delivered[warm:]) | percentiles(
            "confirm", clock.confirmed[warm:]
        )
        lag = percentiles("lag", clock.lag[warm:])
        return figures | lag | {CPU_US: cpu / total * 1e6, RSS_MIB: rss / (1 << 20)}
