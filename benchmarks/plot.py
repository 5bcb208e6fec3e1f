"""The ratios as a picture: one bar a figure, on a log scale, a tick where it has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from .report import Row, number, rows
from .rounds import Outcomes
from .scenarios.scenario import Kind, Scenario

COLOURS = {None: "#8a8f98", True: "#2f7d4f", False: "#b4472f"}


def write_plot(path: Path, results: Sequence[tuple[Scenario, Outcomes]]) -> bool:
    """False when there is nothing to compare."""
    compared = [(row, row.ratio) for row in rows(results) if row.ratio is not None and row.ratio > 0]
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
        color=[COLOURS[row.met] for row, _ in compared],
    )
    for place, (row, ratio) in zip(places, compared, strict=True):
        axes.text(
            ratio, place, f" {ratio:.2f} ", va="center", ha="left" if ratio >= 1 else "right", fontsize=8
        )
        _bar_tick(axes, row, place)
    axes.set_yticks(list(places), [_label(row) for row, _ in compared], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(0.05, *ratios) / 2, max(10, *ratios) * 2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("mqd / RabbitMQ in the same run (medians); tick: the bar; green: met, red: missed")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _bar_tick(axes: Axes, row: Row, place: int) -> None:
    bar = row.figure.bar
    if bar is not None and bar.kind is not Kind.VALUE_MAX:
        axes.plot([bar.limit, bar.limit], [place - 0.42, place + 0.42], color="black", linewidth=1.6)


def _label(row: Row) -> str:
    return f"{row.scenario.name}, {row.figure.label}: {number(row.value('mqd'))} / {number(row.value('rabbitmq'))}"
