"""Steady traffic: a topology, messages, terms; deliveries a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..brokers import Broker
from ..pump import Pace, pump
from ..streams import OpenStream, Route, Terms, Topology
from .scenario import CPU_US, RSS_MIB, Bar, Figure, Figures, Scenario

MIB = 1 << 20


class Throughput(Scenario):
    def __init__(
        self,
        name: str,
        title: str,
        bar: Bar,
        routes: Callable[[Topology], Sequence[Route]],
        terms: Terms | None = None,
        quick: bool = True,
    ) -> None:
        self.name = name
        self.title = title
        self.figures = (Figure("rate", "deliveries/s", bar),)
        self.quick = quick
        self._routes = routes
        self._terms = terms or Terms()

    def run(self, broker: Broker, pace: Pace) -> Figures:
        with Topology(broker.port) as topology, ExitStack() as connections:
            routes = self._routes(topology)
            opened = [OpenStream(broker.port, route, self._terms, connections) for route in routes]
            streams = [one.stream() for one in opened]
            run = pump(streams, pace, broker.cpu_seconds)
            rss = broker.rss_bytes()
            for one, stream in zip(opened, streams, strict=True):
                one.check(stream)
        return {"rate": run.rate, CPU_US: run.cpu_us, RSS_MIB: rss / MIB}
