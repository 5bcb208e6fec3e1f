"""The readings of the sensors, and the averages that Spark has to compute."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WINDOW_S = 10
#: 2024-01-01T00:00:00Z, a multiple of the window.
BEGIN_S = 1_704_067_200


@dataclass(frozen=True, slots=True)
class Reading:
    sensor: str
    at_s: float
    #: °C
    value: float
    #: A last reading moves the watermark past all windows, and belongs to none of the compared windows.
    last: bool = False


@dataclass(frozen=True, slots=True)
class Average:
    sensor: str
    start_s: int
    average: float
    count: int


def readings(sensors: int, seconds: int, per_second: int) -> Iterator[Reading]:
    """Waves without randomness."""
    for step in range(seconds * per_second):
        at_s = step / per_second
        for number in range(sensors):
            value = (
                20 + 3 * number + 2 * math.sin(at_s / (8 + 2 * number)) + 0.3 * math.sin(7 * at_s + number)
            )
            yield Reading(f"s{number}", BEGIN_S + at_s, round(value, 3))
    yield Reading("s0", BEGIN_S + seconds + 10 * WINDOW_S, 0.0, last=True)


def averages(sent: Sequence[Reading]) -> list[Average]:
    """The same averages, computed without Spark."""
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for reading in sent:
        if not reading.last:
            values[reading.sensor, int(reading.at_s // WINDOW_S) * WINDOW_S].append(reading.value)
    return [
        Average(sensor, start_s, sum(found) / len(found), len(found))
        for (sensor, start_s), found in sorted(values.items())
    ]


def differences(due: Sequence[Average], found: Sequence[Average]) -> list[str]:
    """Missing, superfluous, duplicate or wrong values."""
    by_key: dict[tuple[str, int], list[Average]] = defaultdict(list)
    for each in found:
        by_key[each.sensor, each.start_s].append(each)
    wrong = []
    for each in due:
        got = by_key.pop((each.sensor, each.start_s), [])
        if len(got) != 1:
            wrong.append(f"{each}: came {len(got)} times")
        elif got[0].count != each.count or not math.isclose(got[0].average, each.average, rel_tol=1e-9):
            wrong.append(f"{each}: came as {got[0]}")
    return wrong + [f"not due: {each}" for rest in by_key.values() for each in rest]
