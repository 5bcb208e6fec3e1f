"""Events of a shop over two weeks. Each follows from its number, so that sums can be checked."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

#: When the first event happened; and the days after which the last one did.
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
DAYS = 14
KINDS = ("view", "basket", "order", "return")


class Event(NamedTuple):
    number: int
    at: datetime
    kind: str
    cents: int

    @property
    def body(self) -> bytes:
        return json.dumps(
            {"number": self.number, "product": f"p{self.number % 997}", "cents": self.cents}
        ).encode()


class Day(NamedTuple):
    """What happened on a day."""

    events: int
    cents: int


def event(number: int, count: int) -> Event:
    """Return one of `count` events."""
    at = BEGIN + timedelta(days=DAYS) * (number / count)
    return Event(number, at.replace(microsecond=0), KINDS[number * 7 % 13 % 4], number * 37 % 10_000)


def days(low: int, stop: int, count: int) -> dict[date, Day]:
    """Add up the events from one number to another one."""
    events, cents = Counter[date](), Counter[date]()
    for number in range(low, stop):
        each = event(number, count)
        events[each.at.date()] += 1
        cents[each.at.date()] += each.cents
    return {day: Day(events[day], cents[day]) for day in sorted(events)}
