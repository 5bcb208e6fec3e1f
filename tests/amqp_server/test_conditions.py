"""Conditions that an operator has to know of are alarms: set once, logged, and cleared."""

from __future__ import annotations

import logging

import pytest

from amqp_server.broker.alarms import Alarms
from amqp_server.conditions import DAY_S, ConditionWatch
from amqp_server.config import Config


class Watched:
    def __init__(self, **options: object) -> None:
        self.alarms = Alarms()
        self.failed = 0
        self.majority = True
        config = Config(**{"clock_step_max_s": 60.0, "clock_alarm_s": 3600.0, **options})  # type: ignore[arg-type]
        self.watch = ConditionWatch(
            config,
            self.alarms,
            failed_queues=lambda: self.failed,
            has_majority=lambda: self.majority,
        )
        self.wall, self.monotonic = self.watch._clocks._began_s, 0.0

    def look(self, seconds: float = 2.0) -> list[str]:
        self.wall += seconds
        self.monotonic += seconds
        self.watch.look(self.wall, self.monotonic)
        return [raised.name for raised in self.alarms.told()]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mqd.alarms"]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    assert watched.look() == watched.look(86_400) == []
    assert lines(caplog) == []


def test_a_failed_queue_is_an_alarm_until_it_works(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.failed = 2
    assert watched.look() == watched.look() == ["failed_queues"]
    watched.failed = 0
    assert watched.look() == []
    assert lines(caplog) == [
        "failed_queues alarm set on this node: 2 queues are stopped on this node because they failed: see mqctl "
        "list_failed",
        "failed_queues alarm cleared on this node",
    ]


def test_no_majority_is_an_alarm_and_an_election_is_none(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.majority = False
    assert watched.look() == []
    watched.majority = True
    assert watched.look() == []
    watched.majority = False
    watched.look()
    assert watched.look() == ["no_majority"]
    watched.majority = True
    assert watched.look() == []
    assert [line.partition(":")[0] for line in lines(caplog)] == [
        "no_majority alarm set on this node",
        "no_majority alarm cleared on this node",
    ]


@pytest.mark.parametrize(("step", "word"), [(7200.0, "forward"), (-90.0, "back")])
def test_a_clock_that_was_set(caplog: pytest.LogCaptureFixture, step: float, word: str) -> None:
    watched = Watched()
    watched.wall += step
    assert watched.look() == ["clock"]
    assert f"the wall clock was set {word} by {abs(step):.0f} s" in lines(caplog)[0]
    watched.wall -= step
    assert watched.look() == []


def test_a_small_step_is_no_alarm_and_a_new_time_counts_after_a_while() -> None:
    watched = Watched()
    watched.wall += 50
    assert watched.look() == []
    watched.wall += 3600
    assert watched.look() == watched.look(3000) == ["clock"]
    assert watched.look(700) == watched.look() == []
    # The old time would be wrong now.
    watched.wall -= 3600
    assert watched.look() == ["clock"]


def test_certificates(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(certificate_alarm_days=14)
    now = 1_800_000_000.0
    watched.watch.look_at_certificates({"a.pem": now + 15 * DAY_S}, now)
    assert watched.alarms.told() == []
    watched.watch.look_at_certificates({"a.pem": now + 13 * DAY_S, "b.pem": now - 1, "c.pem": None}, now)
    told = watched.alarms.told()
    assert [(each.name, each.blocks_publishers) for each in told] == [("certificate", False)]
    for part in ("a.pem expires on 2027-01-28", "b.pem has expired on", "c.pem cannot be read"):
        assert part in told[0].text
    # RabbitMQ has no such alarm, and its checks do not fail because of one.
    assert watched.alarms.names() == []
    watched.watch.look_at_certificates({"a.pem": now + 400 * DAY_S}, now)
    assert watched.alarms.told() == []
    assert len(lines(caplog)) == 2


def test_certificates_are_not_looked_at_if_nobody_wants_that() -> None:
    watched = Watched(certificate_alarm_days=0)
    watched.watch.look_at_certificates({"a.pem": 0.0}, 1e9)
    assert watched.alarms.told() == []


def test_alarms_that_block_come_first() -> None:
    alarms = Alarms()
    alarms.set_condition("clock", "it was set")
    alarms.set_limit("file_descriptor_limit", True, "9 of 10")
    alarms.set("memory", True, "9 bytes used")
    assert alarms.told() == [
        ("memory", "9 bytes used", True),
        ("file_descriptor_limit", "9 of 10", False),
        ("clock", "it was set", False),
    ]
