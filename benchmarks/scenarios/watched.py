"""The effect of monitoring on other clients, and the cost of statistics. Figures of mqd only."""

from __future__ import annotations

from statistics import median

from .. import watched
from ..brokers import Broker
from ..management import REQUESTS, Mqd
from ..pump import Pace
from .scenario import Figure, Figures, Scenario, mqd_at_most

OBJECTS = 1_000
PAIRS = 4
ROUND_S, REST_S = 5.0, 20.0
#: By the requested path.
TIMES_MS = {"overview": "overview_ms", "a page of queues": "page_ms", "scrape": "scrape_ms"}


class Watched(Scenario):
    name = "watched"
    title = (
        "5,000 msg/s beside 1,000 queues and connections (mqd only), while somebody asks for the overview, a page of "
        "queues and a scrape each second"
    )
    figures = (
        Figure("added_p99_ms", "ms more at p99", mqd_at_most(5)),
        Figure("p99_ms", "ms at p99, looked at"),
        Figure("samples_percent", "% of the CPU for statistics", mqd_at_most(2)),
        *(Figure(key, f"ms, {name}", mqd_at_most(REQUESTS[name][1])) for name, key in TIMES_MS.items()),
    )
    quick = False
    # It starts its own brokers, and runs its own rounds.
    rounds = 1

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return self.measure() if broker.name.startswith("mqd") else {}

    def measure(self) -> Figures:
        brokers = [Mqd(), Mqd(*watched.NO_SAMPLES)]
        try:
            clients = [watched.fill(mqd, OBJECTS) for mqd in brokers]
            alone, looked_at, busy = watched.rounds(brokers[0], PAIRS, ROUND_S, watched.LOOKS)
            took_ms = watched.look_times(brokers[0], list(TIMES_MS), watched.TIMES)
            sampled, not_sampled = watched.at_rest(brokers, REST_S)
            del clients
        finally:
            for mqd in brokers:
                mqd.stop()
        more = watched.added(alone, looked_at)
        return {
            "added_p99_ms": max(more["delivery_p99_ms"], more["confirm_p99_ms"]),
            "p99_ms": median(each["delivery_p99_ms"] for each in looked_at),
            "samples_percent": 100 * (sampled - not_sampled) / busy,
            **{key: took_ms[name] for name, key in TIMES_MS.items()},
        }
