"""What a client feels while somebody searches, empties or redrives a long queue. Figures of mqd only."""

from __future__ import annotations

import time
from statistics import median

from .. import searched
from ..brokers import Broker
from ..pump import Pace
from .scenario import QUIET_S, Figure, Figures, Scenario, mqd_at_most

MESSAGES = 200_000
ROUNDS, ROUND_S = 2, 2.0
ACTIONS = ("search", "move", "redrive")
#: Figures by the type of queue.
KEYS = {
    "classic": "classic_ms",
    "quorum": "quorum_ms",
    "quorum, 3 nodes": "cluster_ms",
    "stream": "stream_ms",
}
#: A slice ends when a client waits, after a look each quarter of a millisecond; some steps are longer.
MORE_MS = 2.0


class Searched(Scenario):
    name = "searched"
    title = (
        "500 msg/s with confirms beside a queue of 200,000 messages (mqd only), while mqctl searches it, moves a "
        "tenth of it, or redrives it"
    )
    figures = tuple(
        Figure(key, f"ms more at p99, {kind}", mqd_at_most(MORE_MS)) for kind, key in KEYS.items()
    )
    quick = False
    # It starts its own brokers, and runs its own rounds.
    rounds = 1

    def run(self, broker: Broker, pace: Pace) -> Figures:
        return self.measure() if broker.name.startswith("mqd") else {}

    def measure(self) -> Figures:
        found = {}
        for name, key in KEYS.items():
            kind = searched.KINDS[name]
            actions = [action for action in ACTIONS if action in kind.actions]
            with searched.started(kind.nodes) as place:
                searched.fill(place.amqp, kind.arguments, MESSAGES)
                time.sleep(QUIET_S)
                told = searched.rounds(place, actions, ROUNDS, ROUND_S, persistent=False)
            found[key] = max(
                median(with_["p99"] - without["p99"] for without, with_ in zip(alone, beside, strict=True))
                for alone, beside in told.values()
            )
        return found
