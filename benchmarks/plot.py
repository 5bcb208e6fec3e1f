"""The ratios as a chart: one bar for each figure, on a log scale, with a tick at its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from .report import number

COLOURS = {None: "#8a8f98", True: "#2f7d4f", False: "#b4472f"}


Record = Mapping[str, Any]


def write_plot(path: Path, records: Sequence[Record]) -> bool:
    """Draw the figures of a run's JSON. False when there is nothing to compare."""
    compared = [(record, float(record["ratio"])) for record in records if (record["ratio"] or 0) > 0]
    if not compared:
        return False
    figure, axes = pyplot.subplots(figsize=(11, 1.5 + 0.32 * len(compared)), layout="constrained")
    places = range(len(compared), 0, -1)
    ratios = [ratio for _, ratio in compared]
    axes.barh(
        list(places),
        [ratio - 1 for ratio in ratios],
        left=1,
        height=0.6,
        color=[COLOURS[record["met"]] for record, _ in compared],
    )
    for place, (record, ratio) in zip(places, compared, strict=True):
        axes.text(
            ratio, place, f" {ratio:.2f} ", va="center", ha="left" if ratio >= 1 else "right", fontsize=8
        )
        _bar_tick(axes, record, place)
        _other_dots(axes, record, place)
    axes.set_yticks(list(places), [_label(record) for record, _ in compared], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(0.05, *ratios) / 2, max(10, *ratios) * 2)
    axes.axvline(1, color="black", linewidth=0.8)
    others = ", ".join(sorted({name for record, _ in compared for name in _others(record)}))
    dots = f"; dot: mqd / {others}" if others else ""
    axes.set_xlabel(
        f"mqd / RabbitMQ in one run (medians){dots}; tick: what is wanted; green: as wanted, red: not"
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _bar_tick(axes: Axes, record: Record, place: int) -> None:
    """For targets that are ratios; other targets are about mqd's own value."""
    bar = record["bar"]
    if bar and bar.startswith("ratio"):
        limit = float(bar.split()[-1])
        axes.plot([limit, limit], [place - 0.42, place + 0.42], color="black", linewidth=1.6)


def _others(record: Record) -> list[str]:
    """A second RabbitMQ, whose name has its version."""
    return [name for name in record if name.startswith("rabbitmq-")]


def _other_dots(axes: Axes, record: Record, place: int) -> None:
    for name in _others(record):
        if record["mqd"] and record[name]:
            axes.plot([record["mqd"] / record[name]], [place], "o", color="black", markersize=3)


def _label(record: Record) -> str:
    values = f"{number(record['mqd'])} / {number(record['rabbitmq'])}"
    return f"{record['scenario']}, {record['figure']}: {values}"
