"""The order of runs: the brokers take turns within each scenario, and each figure is a median."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import processes
from .brokers import Broker, BrokerFailed
from .client import Refused, Unexpected
from .pump import Pace, Stalled
from .scenarios.scenario import OTHERS_CORES, Figures, Scenario

FAILURES = (BrokerFailed, Refused, Unexpected, Stalled, OSError)


@dataclass(slots=True)
class Outcome:
    """The rounds of one broker in one scenario."""

    rounds: list[Figures] = field(default_factory=list)
    failure: str = ""

    def median(self, key: str) -> float | None:
        values = [figures[key] for figures in self.rounds if key in figures]
        return statistics.median(values) if values and not self.failure else None


Outcomes = dict[str, Outcome]


def take_turns(scenario: Scenario, brokers: Sequence[Broker], rounds: int, pace: Pace) -> Outcomes:
    outcomes = {broker.name: Outcome() for broker in brokers}
    for _ in range(rounds):
        for broker in brokers:
            outcome = outcomes[broker.name]
            if not outcome.failure:
                _turn(scenario, broker, brokers, pace, outcome)
    return outcomes


def _turn(
    scenario: Scenario, broker: Broker, brokers: Sequence[Broker], pace: Pace, outcome: Outcome
) -> None:
    others = _Others(brokers)
    gc.collect()
    gc.disable()
    try:
        if scenario.fresh:
            broker.restart()
        broker.settle()
        # What one broker has left to the kernel must not be written while another is measured.
        os.sync()
        figures = scenario.run(broker, pace)
        outcome.rounds.append(figures | {OTHERS_CORES: others.cores()})
    except FAILURES as failure:
        outcome.failure = f"{type(failure).__name__}: {failure}"
        broker.restart()
    finally:
        gc.enable()


class _Others:
    """How many cores other programs used: a figure that was measured beside a busy neighbour says so."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = brokers
        self._began = time.perf_counter()
        self._before = self._seconds()

    def _seconds(self) -> float:
        # The CPU time of a restarted broker moves from the running to the ended processes, and still counts.
        ours = processes.own_cpu_seconds() + sum(broker.cpu_seconds() for broker in self._brokers)
        return processes.machine_cpu_seconds() - ours

    def cores(self) -> float:
        return max(0.0, self._seconds() - self._before) / (time.perf_counter() - self._began)
