"""The table of ratios, and the same figures as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .brokers import Before, Mqd, RabbitMQ
from .ceiling import Ceiling
from .rounds import Outcome, Outcomes
from .scenarios.scenario import CPU_US, OTHERS_CORES, RSS_MIB, Bar, Figure, Scenario

MQD = Mqd.name
# With more than this, a machine of two cores measures its neighbours.
QUIET_CORES = 0.15
NONE = Outcome(failure="not run")
#: The first column that is aligned to the right.
FIRST_NUMBER = 2


@dataclass(frozen=True, slots=True)
class Row:
    scenario: Scenario
    figure: Figure
    outcomes: Outcomes

    @property
    def peer(self) -> str:
        """The broker with which mqd is compared."""
        return next((name for name in self.outcomes if name != MQD), RabbitMQ.name)

    @property
    def others(self) -> list[str]:
        """Brokers that are measured beside these two."""
        return [name for name in self.outcomes if name not in (MQD, self.peer)]

    @property
    def bar(self) -> Bar | None:
        bar = self.figure.bar
        return bar.unchanged() if bar and self.peer == Before.name else bar

    def value(self, broker: str, key: str | None = None) -> float | None:
        return self.outcomes.get(broker, NONE).median(key or self.figure.key)

    @property
    def ratio(self) -> float | None:
        return self.ratio_to(self.peer)

    def ratio_to(self, broker: str) -> float | None:
        mqd, other = self.value(MQD), self.value(broker)
        return mqd / other if mqd is not None and other else None

    @property
    def met(self) -> bool | None:
        mqd = self.value(MQD)
        return self.bar.met(mqd, self.ratio) if self.bar and mqd is not None else None


def rows(results: Sequence[tuple[Scenario, Outcomes]]) -> Iterator[Row]:
    for scenario, outcomes in results:
        for figure in scenario.figures:
            yield Row(scenario, figure, outcomes)


def table(results: Sequence[tuple[Scenario, Outcomes]]) -> str:
    found = list(rows(results))
    peer, others = (found[0].peer, found[0].others) if found else (RabbitMQ.name, [])
    lines = [_head(peer, others), *map(_cells, found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    numbers = range(FIRST_NUMBER, FIRST_NUMBER + 3 + 2 * len(others))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _head(peer: str, others: Sequence[str]) -> tuple[str, ...]:
    all_of_them = " / ".join((MQD, peer, *others))
    return (
        *("scenario", "figure", MQD, peer, "ratio"),
        *(cell for other in others for cell in (other, "ratio")),
        *("bar", "", f"CPU µs {all_of_them}", f"RSS MiB {all_of_them}"),
    )


def _cells(row: Row) -> tuple[str, ...]:
    first = row.figure is row.scenario.figures[0]
    return (
        row.scenario.name if first else "",
        row.figure.label,
        number(row.value(MQD)),
        *(cell for broker in (row.peer, *row.others) for cell in _beside(row, broker)),
        str(row.bar or ""),
        {None: "", True: "met", False: "MISSED"}[row.met],
        _each(row, CPU_US) if first else "",
        _each(row, RSS_MIB) if first else "",
    )


def _beside(row: Row, broker: str) -> tuple[str, str]:
    ratio = row.ratio_to(broker)
    return number(row.value(broker)), "-" if ratio is None else f"{ratio:.2f}"


def _each(row: Row, key: str) -> str:
    return " / ".join(number(row.value(broker, key)) for broker in (MQD, row.peer, *row.others))


def number(value: float | None) -> str:
    """Three figures are more than one run can promise."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def failures(results: Sequence[tuple[Scenario, Outcomes]]) -> list[str]:
    return [
        f"{scenario.name}: {broker}: {outcome.failure}"
        for scenario, outcomes in results
        for broker, outcome in outcomes.items()
        if outcome.failure
    ]


def disturbed(results: Sequence[tuple[Scenario, Outcomes]]) -> str:
    """Empty if the machine was quiet."""
    worst = {
        scenario.name: max(
            (turn[OTHERS_CORES] for outcome in outcomes.values() for turn in outcome.rounds), default=0.0
        )
        for scenario, outcomes in results
    }
    noisy = [f"{name} {cores:.1f}" for name, cores in worst.items() if cores > QUIET_CORES]
    return f"Not a quiet machine. Cores used by others, at worst: {', '.join(noisy)}." if noisy else ""


def ceiling_lines(found: Sequence[Ceiling]) -> str:
    return "\n".join(f"  {one.name}: {one.value:.2f} {one.unit}" for one in found)


def write_json(
    path: Path,
    results: Sequence[tuple[Scenario, Outcomes]],
    found: Sequence[Ceiling],
    settings: dict[str, Any],
) -> dict[str, Any]:
    document = {
        "settings": settings,
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "date": datetime.date.today().isoformat(),
        },
        "client_ceiling": {f"{one.name}, {one.unit}": one.value for one in found},
        "figures": [_record(row) for row in rows(results)],
        "rounds": {
            scenario.name: {
                broker: {"failure": outcome.failure, "rounds": outcome.rounds}
                for broker, outcome in outcomes.items()
            }
            for scenario, outcomes in results
        },
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return document


def _record(row: Row) -> dict[str, Any]:
    return {
        "scenario": row.scenario.name,
        "title": row.scenario.title,
        "figure": row.figure.label,
        "mqd": row.value(MQD),
        row.peer: row.value(row.peer),
        **{other: row.value(other) for other in row.others},
        "ratio": row.ratio,
        "bar": str(row.bar) if row.bar else None,
        "met": row.met,
    }
