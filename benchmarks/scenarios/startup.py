"""How soon a broker serves."""

from __future__ import annotations

from ..brokers import Broker
from ..pump import Pace
from .scenario import RSS_MIB, Figure, Figures, Scenario, mqd_at_most

MIB = 1 << 20


class Startup(Scenario):
    name = "start-up"
    title = "from exec, with an empty data directory, until a client has a channel"
    figures = (Figure("seconds", "s", mqd_at_most(0.5)),)
    rounds = 5

    def run(self, broker: Broker, pace: Pace) -> Figures:
        seconds = broker.restart()
        broker.settle()
        return {"seconds": seconds, RSS_MIB: broker.rss_bytes() / MIB}
