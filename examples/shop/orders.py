"""The orders of the shop, and the totals that Spark has to compute."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WINDOW_S = 60
MINUTES = 20
#: 2024-01-01T00:00:00Z, a multiple of the window.
BEGIN_S = 1_704_067_200
#: Cents.
PRICES = {"bread": 320, "coffee": 250, "milk": 140, "tea": 210, "apples": 90}
#: The order in which products are sold, repeated; so each partition has the same amount of every minute.
_SOLD = [next(name for name in PRICES if name[0] == letter) for letter in "bcbmcbtbcmbacbmt"]
#: An order may arrive so much later than it was made.
LATE_MS = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    product: str
    #: Time of the order, since 1970.
    at_ms: int
    cents: int


@dataclass(frozen=True, slots=True)
class Total:
    """The total of one product in one minute: a row of the table."""

    product: str
    start_s: int
    orders: int
    cents: int


def orders(count: int) -> Iterator[Order]:
    """Waves without randomness. The orders come out of order."""
    for number in range(count):
        since_ms = number * MINUTES * 60_000 // count
        late_ms = number * 7919 % LATE_MS
        product = _SOLD[number % len(_SOLD)]
        pieces = 2 + round(1.5 * math.sin(since_ms / 150_000 + len(product)))
        yield Order(
            number, product, BEGIN_S * 1_000 + max(0, since_ms - late_ms), PRICES[product] * max(1, pieces)
        )


def totals(sent: Iterable[Order]) -> list[Total]:
    """The same totals, computed without Spark."""
    cents: dict[tuple[str, int], list[int]] = defaultdict(list)
    for order in sent:
        cents[order.product, order.at_ms // 1_000 // WINDOW_S * WINDOW_S].append(order.cents)
    return [
        Total(product, start_s, len(found), sum(found)) for (product, start_s), found in sorted(cents.items())
    ]


def differences(due: Iterable[Total], found: Iterable[Total]) -> list[str]:
    """Missing, superfluous, duplicate or wrong rows."""
    by_key: dict[tuple[str, int], list[Total]] = defaultdict(list)
    for each in found:
        by_key[each.product, each.start_s].append(each)
    wrong = []
    for each in due:
        got = by_key.pop((each.product, each.start_s), [])
        if got != [each]:
            wrong.append(f"{each} is {got or 'missing'}")
    return wrong + [f"not due: {each}" for rest in by_key.values() for each in rest]
