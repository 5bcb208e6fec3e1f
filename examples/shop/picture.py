"""The table as bars, beside the expected table and the table at the time when the driver was killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.shop.orders import BEGIN_S, WINDOW_S, Total


def draw(path: Path, due: Sequence[Total], before: Sequence[Total], found: Sequence[Total]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    minutes = sorted({each.start_s for each in due})
    places = [(start_s - BEGIN_S) / WINDOW_S + 0.5 for start_s in minutes]
    bottoms = [0.0] * len(minutes)
    for product in sorted({each.product for each in found}):
        mine = _by_minute(each for each in found if each.product == product)
        heights = [mine[start_s] for start_s in minutes]
        axes.bar(places, heights, 0.9, bottoms, label=product)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    wanted, killed = _by_minute(due), _by_minute(before)
    axes.plot(
        places,
        [wanted[start_s] for start_s in minutes],
        "kx",
        ms=7,
        label="the orders, added up without Spark",
    )
    axes.step(
        places,
        [killed[start_s] for start_s in minutes],
        "k--",
        where="mid",
        linewidth=1.2,
        label="the table at kill -9 of the driver",
    )
    axes.set(
        xlabel="time of the order (minutes after the first)",
        ylabel="revenue of the minute (€)",
        title="Shop: revenue of each product and minute (bars), as the table has it that Spark keeps in a stream",
    )
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _by_minute(found: Iterable[Total]) -> defaultdict[int, float]:
    """Sums by minute, in euros."""
    sums: defaultdict[int, float] = defaultdict(float)
    for each in found:
        sums[each.start_s] += each.cents / 100
    return sums
