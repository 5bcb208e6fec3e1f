"""Samples: which ones are kept, how rates are made of them, and how much memory they take."""

from __future__ import annotations

import pytest

from amqp_server.management.statistics.history import (
    GLOBAL,
    SEEN_AT_ONCE,
    SERIES_BYTES,
    Chart,
    Histories,
    Range,
    Timeline,
    Totals,
    asked,
)

T0 = 1_700_000_000_000


def record(histories: Histories, of: object, values: list[int], start: int = 0) -> None:
    """Record one sample every five seconds."""
    for index, value in enumerate(values, start):
        histories.timeline.advance(T0 + index * 5_000)
        histories.record(of, (value, 7))


def test_a_rate_is_the_change_between_the_last_two_samples() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "q", [10, 20, 70])
    series = histories.get("q")
    assert series is not None
    assert (series.rate(0), series.rate(1)) == (10.0, 0.0)


def test_the_first_sample_makes_no_rate() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "q", [1_000_000])
    series = histories.get("q")
    assert series is not None
    assert series.rate(0) == 0.0


def test_samples_run_from_the_newest_to_the_oldest() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "q", [10 * index for index in range(40)])
    told = Chart(histories.timeline.places(Range(60, 5))).details(histories.get("q"), 0)
    assert [each["sample"] for each in told["samples"]] == [390 - 10 * index for index in range(13)]
    stamps = [each["timestamp"] for each in told["samples"]]
    assert stamps[0] == T0 + 39 * 5_000 and stamps[-1] == T0 + 27 * 5_000
    assert (told["rate"], told["avg_rate"], told["avg"]) == (2.0, 2.0, 330.0)


def test_wider_steps_have_the_sample_at_their_end() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "q", list(range(1, 41)))
    told = Chart(histories.timeline.places(Range(60, 30))).details(histories.get("q"), 0)
    stamps = [each["timestamp"] for each in told["samples"]]
    assert [stamp % 30_000 for stamp in stamps] == [0, 0, 0]
    for stamp, sample in zip(stamps, (each["sample"] for each in told["samples"]), strict=True):
        assert sample == min((stamp - T0) // 5_000 + 6, 40)


def test_the_ring_forgets_what_is_old_and_keeps_the_rest() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "q", list(range(1, 1_001)))
    told = Chart(histories.timeline.places(Range(6_000, 5))).details(histories.get("q"), 0)
    assert [each["sample"] for each in told["samples"]] == list(range(1_000, 1_000 - 121, -1))


def test_a_new_object_had_nothing_before() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "old", [1, 2, 3])
    record(histories, "q", [8, 9], start=3)
    told = Chart(histories.timeline.places(Range(20, 5))).details(histories.get("q"), 0)
    assert [each["sample"] for each in told["samples"]] == [9, 8, 0, 0, 0]


def test_nothing_is_kept_of_what_has_never_counted() -> None:
    histories = Histories(1 << 20, 5.0)
    histories.timeline.advance(T0)
    histories.record("idle", (0, 0))
    assert len(histories) == 0 and histories.used_bytes == 0


def test_objects_that_are_gone_are_forgotten() -> None:
    histories = Histories(1 << 20, 5.0)
    record(histories, "a", [1])
    record(histories, "b", [1, 2], start=1)
    list(histories.forget_gone())
    assert histories.get("a") is None and histories.get("b") is not None
    series = histories.get("b")
    assert series is not None and histories.used_bytes == series.size


def test_many_that_are_gone_are_forgotten_in_steps() -> None:
    histories = Histories(1 << 30, 5.0)
    histories.timeline.advance(T0)
    for index in range(20 * SEEN_AT_ONCE):
        histories.record(index, (1,))
    histories.timeline.advance(T0 + 5_000)
    for index in range(10 * SEEN_AT_ONCE):
        histories.record(index, (2,))
    left = len(histories)
    for _ in histories.forget_gone():
        assert left - len(histories) <= 1
        left = len(histories)
    assert left == 10 * SEEN_AT_ONCE


def test_memory_is_bounded() -> None:
    histories = Histories(100_000, 5.0)
    histories.timeline.advance(T0)
    for index in range(1_000):
        histories.record(index, (1, 1))
    assert 10 < len(histories) < 100_000 // SERIES_BYTES
    assert histories.used_bytes <= 100_000
    assert Chart(None).details(histories.get(999), 0) == {"rate": 0.0}


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"lengths_age": "60"},
        {"lengths_incr": "5"},
        {"lengths_age": "x", "lengths_incr": "5"},
        {"lengths_age": "60", "lengths_incr": "0"},
        {"lengths_age": "-60", "lengths_incr": "5"},
        {"lengths_age": "9" * 50, "lengths_incr": "5"},
    ],
)
def test_what_is_no_range_is_ignored(query: dict[str, str]) -> None:
    assert asked(query, "lengths") is None


def test_a_range() -> None:
    assert asked({"lengths_age": "60", "lengths_incr": "5"}, "lengths") == Range(60, 5)


def test_totals_of_a_day_are_kept_in_coarser_steps() -> None:
    totals = Totals(5.0, 1)
    steps = 86_400 // 5
    for index in range(steps):
        totals.record(T0 + index * 5_000, (index,))
    for age_s, incr_s in GLOBAL:
        samples = totals.details(0, Range(age_s, incr_s))["samples"]
        newest, oldest = samples[0], samples[-1]
        assert newest["timestamp"] - oldest["timestamp"] == pytest.approx(age_s * 1000, rel=0.05)
        known = [each for each in samples if each["sample"]]
        assert len(known) >= len(samples) - 2
        for each in known:
            # The first sample of a step represents the step.
            assert abs(each["sample"] - (each["timestamp"] - T0) / 5_000) <= incr_s / 5
    assert totals.details(0, None) == {"rate": 0.2}


def test_a_query_costs_no_more_than_there_are_samples() -> None:
    timeline = Timeline(600, 5)
    for index in range(200):
        timeline.advance(T0 + index * 5_000)
    assert len(timeline.places(Range(1_000_000, 1))) == 121
