"""Readings as dots, averages as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.sensors.readings import BEGIN_S, WINDOW_S, Average, Reading


def draw(path: Path, sent: Sequence[Reading], found: Sequence[Average]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    for number, sensor in enumerate(sorted({each.sensor for each in found})):
        colour = f"C{number}"
        mine = [each for each in sent if each.sensor == sensor and not each.last]
        axes.plot(
            [r.at_s - BEGIN_S for r in mine], [r.value for r in mine], ".", ms=2, color=colour, alpha=0.4
        )
        windows = sorted((each for each in found if each.sensor == sensor), key=lambda each: each.start_s)
        axes.hlines(
            [each.average for each in windows],
            [each.start_s - BEGIN_S for each in windows],
            [each.start_s - BEGIN_S + WINDOW_S for each in windows],
            colors=colour,
            linewidth=2.5,
            label=f"{sensor}: {len(windows)} averages",
        )
    axes.set(
        xlabel="time of the reading (s after the first)",
        ylabel="temperature (°C)",
        title=f"Thermometers: readings (dots) and the averages of each {WINDOW_S} s that Spark made of them (bars)",
    )
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
