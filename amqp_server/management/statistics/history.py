"""Samples of counters and lengths, for rates and charts: the last ten minutes of each object, and a day of
the node's totals.

Objects that have never counted anything have no history, and all histories together have a limit in bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

#: Retention of all objects, and of the node's totals, as RabbitMQ has them: (age in s, between two samples in
#: s).
DETAILED = ((600, 5),)
GLOBAL = ((600, 5), (3_600, 60), (28_800, 600), (86_400, 1_800))
#: Memory of a history without its samples, bytes.
SERIES_BYTES = 800
#: Histories that one step looks through for objects that are gone.
SEEN_AT_ONCE = 100

Details = dict[str, Any]


class Range(NamedTuple):
    """The samples that a query asks for: those of the last `age_s` seconds, one for each `incr_s`."""

    age_s: int
    incr_s: int


class Timeline:
    """The times of samples. Tick t is at index t modulo `length`, here and in each Series.

    Times are those of the monotonic clock, so that no rate changes when the wall clock is set.
    """

    def __init__(self, age_s: int, incr_s: float) -> None:
        self.age_s = age_s
        self.incr_s = incr_s
        self.length = int(age_s / incr_s) + 2
        self._times_ms = array("q", bytes(8 * self.length))
        #: The last tick, -1 before the first.
        self.tick = -1
        #: How far the wall clock was ahead of the monotonic one at the last tick.
        self._ahead_ms = 0

    def advance(self, now_ms: int, ahead_ms: int = 0) -> None:
        """A sample is taken. `ahead_ms`: how far the wall clock is ahead of the clock of `now_ms`."""
        self.tick += 1
        self._times_ms[self.tick % self.length] = now_ms
        self._ahead_ms = ahead_ms

    def due(self, now_ms: int) -> bool:
        """True if a new step has begun."""
        step_ms = int(self.incr_s * 1000)
        return self.tick < 0 or now_ms // step_ms != self.time_ms(self.tick) // step_ms

    def time_ms(self, tick: int) -> int:
        return self._times_ms[tick % self.length]

    def places(self, asked: Range) -> list[tuple[int, int]]:
        """Return (timestamp in ms, tick), the newest first; tick -1 for times before the first. Timestamps
        are of the wall clock.
        """
        if self.tick < 0:
            return []
        incr_s = max(asked.incr_s, self.incr_s)
        count = int(min(asked.age_s, self.age_s) / incr_s) + 1
        step_ms = int(incr_s * 1000)
        ahead_ms = self._ahead_ms
        newest = (self.time_ms(self.tick) + ahead_ms) // step_ms * step_ms
        oldest_tick = max(0, self.tick - self.length + 1)
        found: list[tuple[int, int]] = []
        tick = self.tick
        for index in range(count):
            stamp = newest - index * step_ms
            # The sample that belongs to a time was taken within the step that begins there.
            while tick > oldest_tick and self.time_ms(tick) + ahead_ms >= stamp + step_ms:
                tick -= 1
            found.append((stamp, tick if self.time_ms(tick) + ahead_ms < stamp + step_ms else -1))
        return found


class Series:
    """Samples of one object: all its fields at each tick."""

    __slots__ = ("_rates", "_rates_of", "_ring", "_timeline", "_width", "first", "last")

    def __init__(self, timeline: Timeline, width: int) -> None:
        self._timeline = timeline
        self._width = width
        self._ring = array("q", bytes(8 * width * timeline.length))
        self.first = self.last = timeline.tick
        #: Rates of all fields, computed when a rate is first read after a sample; `_rates_of` is that
        #: sample's tick.
        self._rates: list[float] = []
        self._rates_of = -1

    @property
    def size(self) -> int:
        return SERIES_BYTES + 8 * len(self._ring)

    def record(self, values: Sequence[int]) -> None:
        tick = self._timeline.tick
        start = tick % self._timeline.length * self._width
        self._ring[start : start + self._width] = array("q", values)
        self.last = tick

    def value(self, tick: int, field: int) -> int:
        """Return what a field was; 0 before the first sample."""
        oldest = max(self.first, self.last - self._timeline.length + 1)
        if tick < oldest:
            return 0 if self.first > self.last - self._timeline.length else self.value(oldest, field)
        return self._ring[min(tick, self.last) % self._timeline.length * self._width + field]

    def rate(self, field: int) -> float:
        """Return the change per second between the last two samples."""
        return self.rates()[field]

    def rates(self) -> Sequence[float]:
        """Return the rates of all fields."""
        tick, timeline = self.last, self._timeline
        # While the next sample is being taken, objects that it has not reached yet keep the rate of the last
        # one.
        if tick <= self.first or tick < timeline.tick - 1:
            return [0.0] * self._width
        if self._rates_of != tick:
            self._rates_of = tick
            elapsed_ms = max(1, timeline.time_ms(tick) - timeline.time_ms(tick - 1))
            now, before = self._sample(tick), self._sample(tick - 1)
            self._rates = [(new - old) * 1000 / elapsed_ms for new, old in zip(now, before, strict=True)]
        return self._rates

    def rate_alone(self, field: int) -> float:
        """Return the same rate without storing the rates of the other fields: for one field of very many
        objects.
        """
        tick, timeline = self.last, self._timeline
        if self._rates_of == tick or tick <= self.first or tick < timeline.tick - 1:
            return self.rate(field)
        ring, at = self._ring, tick % timeline.length * self._width + field
        # The sample before the first one of the ring is the last one.
        elapsed_ms = max(1, timeline.time_ms(tick) - timeline.time_ms(tick - 1))
        before = ring[at - self._width if at >= self._width else at - self._width + len(ring)]
        return (ring[at] - before) * 1000 / elapsed_ms

    def _sample(self, tick: int) -> Sequence[int]:
        start = tick % self._timeline.length * self._width
        return self._ring[start : start + self._width]

    def samples(self, field: int, places: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
        return [
            {"sample": 0 if tick < 0 else self.value(tick, field), "timestamp": stamp}
            for stamp, tick in places
        ]


class Chart:
    """How one answer shows fields of one kind: with rates, and with samples if the query asks for them."""

    def __init__(self, places: Sequence[tuple[int, int]] | None) -> None:
        self._places = places
        #: True if the query asks for no samples.
        self.is_plain = places is None
        #: The details of a field that never counted anything.
        self._nothing: Details = {"rate": 0.0}
        if places is not None:
            zeros = [{"sample": 0, "timestamp": stamp} for stamp, _ in places]
            self._nothing |= {"avg": 0.0, "avg_rate": 0.0, "samples": zeros}

    def of(self, series: Series | None, fields: Sequence[int]) -> list[Details]:
        """Return the details of fields; nobody changes them."""
        if series is None:
            return [self._nothing] * len(fields)
        rates = series.rates()
        if self._places is None:
            return [{"rate": rates[field]} for field in fields]
        return [self._with_samples(series, field, self._places) | {"rate": rates[field]} for field in fields]

    def _with_samples(self, series: Series, field: int, places: Sequence[tuple[int, int]]) -> Details:
        samples = series.samples(field, places)
        return {"avg": _mean(samples), "avg_rate": _slope(samples), "samples": samples}

    def details(self, series: Series | None, field: int) -> Details:
        (told,) = self.of(series, [field])
        return told


def _mean(samples: list[dict[str, int]]) -> float:
    return sum(each["sample"] for each in samples) / len(samples) if samples else 0.0


def _slope(samples: list[dict[str, int]]) -> float:
    if len(samples) < 2:
        return 0.0
    newest, oldest = samples[0], samples[-1]
    return (newest["sample"] - oldest["sample"]) * 1000 / (newest["timestamp"] - oldest["timestamp"])


def asked(query: Mapping[str, str], name: str) -> Range | None:
    """Return the range of `lengths`, `msg_rates`, `data_rates` or `node_stats`. As in RabbitMQ, a value that
    is no number, and one of the two parameters without the other, are ignored.
    """
    age, incr = query.get(f"{name}_age", ""), query.get(f"{name}_incr", "")
    if not (age.isascii() and age.isdigit() and incr.isascii() and incr.isdigit()):
        return None
    if len(age) > 9 or len(incr) > 9 or not int(incr):
        return None
    return Range(int(age), int(incr))


class Histories:
    """Histories of many objects of one node; the keys are the objects themselves."""

    def __init__(self, bytes_max: int, interval_s: float) -> None:
        self._bytes_max = bytes_max
        self.timeline = Timeline(DETAILED[0][0], interval_s)
        #: By object.
        self.series: dict[object, Series] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self.series)

    def get(self, of: object) -> Series | None:
        return self.series.get(of)

    def record(self, of: object, values: Sequence[int]) -> None:
        series = self.series.get(of)
        if series is None:
            if not any(values):
                return
            series = Series(self.timeline, len(values))
            if self.used_bytes + series.size > self._bytes_max:
                return
            self.series[of] = series
            self.used_bytes += series.size
        series.record(values)

    def forget_gone(self) -> Iterator[None]:
        """Forget objects that were not sampled in this tick; yield now and then. Nothing may be recorded
        meanwhile.
        """
        tick = self.timeline.tick
        gone: list[object] = []
        for number, (of, series) in enumerate(self.series.items()):
            if series.last != tick:
                gone.append(of)
            if number % SEEN_AT_ONCE == 0:
                yield
        # A connection that ended may keep much alive until it is forgotten.
        while gone:
            self.used_bytes -= self.series.pop(gone.pop()).size
            yield


class Totals:
    """The history of the node's totals; coarser samples are kept for a day."""

    def __init__(self, interval_s: float, width: int) -> None:
        self._timelines = [Timeline(age_s, max(interval_s, incr_s)) for age_s, incr_s in GLOBAL]
        self._width = width
        self._series: list[Series] = []
        #: Values of the last sample.
        self.values: tuple[int, ...] = (0,) * width

    def record(self, now_ms: int, values: tuple[int, ...], ahead_ms: int = 0) -> None:
        """See Timeline.advance."""
        self.values = values
        for index, timeline in enumerate(self._timelines):
            if index and not timeline.due(now_ms):
                continue
            timeline.advance(now_ms, ahead_ms)
            if index == len(self._series):
                self._series.append(Series(timeline, self._width))
            self._series[index].record(values)

    def details(self, field: int, asked: Range | None) -> Details:
        if not self._series:
            return Chart(None if asked is None else []).details(None, field)
        series = self._series[0]
        if asked is None:
            return Chart(None).details(series, field)
        for index, timeline in enumerate(self._timelines):
            if timeline.age_s >= asked.age_s or index == len(self._timelines) - 1:
                told = Chart(timeline.places(asked)).details(self._series[index], field)
                return told | {"rate": series.rate(field)}
        raise AssertionError
