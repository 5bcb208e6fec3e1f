"""Latency at a fixed rate, of deliveries and of confirms."""

from __future__ import annotations

from ..brokers import Broker
from ..clock import QUEUE, Clock, clock_between, percentiles
from ..pump import Pace
from ..streams import Topology
from .scenario import CPU_US, RSS_MIB, Bar, Figure, Figures, Scenario, at_most, mqd_at_most

STREAM_RATE = 5_000


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
            with clock_between(broker.port, broker.port, self._rate, total) as clock:
                cpu = broker.cpu_seconds()
                clock.run()
                cpu = broker.cpu_seconds() - cpu
                rss = broker.rss_bytes()
        figures = percentiles("delivery", clock.delivered[warm:]) | percentiles(
            "confirm", clock.confirmed[warm:]
        )
        lag = percentiles("lag", clock.lag[warm:])
        return figures | lag | {CPU_US: cpu / total * 1e6, RSS_MIB: rss / (1 << 20)}


class StreamLatency(Scenario):
    """A stream, and then a quorum queue.

    A single node delivers from the queue at once, and confirms after the sync; a stream does both after the
    sync.
    """

    name = "stream-latency"
    title = f"latency at {STREAM_RATE:,} msg/s, 128 B, confirms: a stream, and a quorum queue"
    figures = (
        Figure("stream_p50_ms", "stream p50 ms", at_most(1)),
        Figure("stream_p99_ms", "stream p99 ms", at_most(1)),
        Figure("quorum_p99_ms", "quorum queue p99 ms"),
        Figure("quorum_confirmed_p99_ms", "quorum queue's confirms p99 ms"),
        Figure("share", "stream/quorum queue p99", mqd_at_most(1)),
        Figure("lag_p99_ms", "sent late p99 ms"),
    )
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        warm = int(STREAM_RATE * max(pace.warm_s, 0.5))
        total = warm + int(STREAM_RATE * pace.run_s * 1.5)
        clocks: dict[str, Clock] = {}
        for kind in ("stream", "quorum"):
            clocks[kind], cpu = clocked(broker, kind, total)
            if kind == "stream":
                used = {CPU_US: cpu / total * 1e6, RSS_MIB: broker.rss_bytes() / (1 << 20)}
        figures = used | percentiles("lag", clocks["stream"].lag[warm:])
        for kind, clock in clocks.items():
            figures |= percentiles(kind, clock.delivered[warm:])
        figures |= percentiles("quorum_confirmed", clocks["quorum"].confirmed[warm:])
        return figures | {"share": figures["stream_p99_ms"] / figures["quorum_p99_ms"]}


def clocked(broker: Broker, kind: str, total: int) -> tuple[Clock, float]:
    """Send so many messages to a queue of this type; return their times, and the broker's CPU seconds."""
    with Topology(broker.port) as topology:
        topology.queue(QUEUE, durable=True, **{"x-queue-type": kind})
        # Prefetch for all of them: a stream has no auto-ack, and acks would disturb the measurement.
        with clock_between(broker.port, broker.port, STREAM_RATE, total, prefetch=total + 1) as clock:
            cpu = broker.cpu_seconds()
            clock.run()
            return clock, broker.cpu_seconds() - cpu
