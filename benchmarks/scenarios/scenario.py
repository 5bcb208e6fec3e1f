"""The definition of a scenario, its figures, and the target of each figure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..brokers import Broker
from ..pump import Pace

Figures = dict[str, float]

CPU_US = "cpu_us"
RSS_MIB = "rss_mib"
OTHERS_CORES = "others_cores"
#: Pause after a start: work that a node does once when it has become quiet, such as the imports of mqd's
#: management API, should not count as the cost of connections and queues.
QUIET_S = 3.0


class Kind(Enum):
    RATIO_MIN = "ratio ≥"
    RATIO_MAX = "ratio ≤"
    VALUE_MAX = "mqd ≤"
    VALUE_MIN = "mqd ≥"


@dataclass(frozen=True, slots=True)
class Bar:
    kind: Kind
    limit: float

    def met(self, mqd: float, ratio: float | None) -> bool | None:
        """None if there is nothing to compare with."""
        if self.kind is Kind.VALUE_MAX:
            return mqd <= self.limit
        if self.kind is Kind.VALUE_MIN:
            return mqd >= self.limit
        if ratio is None:
            return None
        return ratio >= self.limit if self.kind is Kind.RATIO_MIN else ratio <= self.limit

    def unchanged(self) -> Bar:
        """Return the target of the same figure if the peer is an earlier build."""
        return at_most(1.05) if self.kind in (Kind.RATIO_MAX, Kind.VALUE_MAX) else at_least(0.95)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.limit:g}"


def at_least(ratio: float) -> Bar:
    return Bar(Kind.RATIO_MIN, ratio)


def at_most(ratio: float) -> Bar:
    return Bar(Kind.RATIO_MAX, ratio)


def mqd_at_most(value: float) -> Bar:
    return Bar(Kind.VALUE_MAX, value)


def mqd_at_least(value: float) -> Bar:
    return Bar(Kind.VALUE_MIN, value)


@dataclass(frozen=True, slots=True)
class Figure:
    key: str
    label: str
    bar: Bar | None = None


class Scenario(ABC):
    name: str
    title: str
    figures: Sequence[Figure]
    # Memory is only comparable in a broker that has done nothing before.
    fresh = False
    # None: the number on the command line.
    rounds: int | None = None
    quick = True
    # The number of nodes of the broker.
    nodes = 1

    def missing(self) -> str | None:
        """Return a requirement that this machine lacks, or None."""
        return None

    @abstractmethod
    def run(self, broker: Broker, pace: Pace) -> Figures:
        """One round against one broker, leaving nothing behind in it."""
