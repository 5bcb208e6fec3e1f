"""The place where a group is to continue, as an operator gives it."""

from __future__ import annotations

import pytest

from amqp_server.errors import PreconditionFailed
from amqp_server.management.resources.groups import parse_to
from amqp_server.streams.layout.consumer_start import Start


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("first", Start("first")),
        ("last", Start("last")),
        ("next", Start("next")),
        ("0", Start(offset=0)),
        ("00017", Start(offset=17)),
        ("18446744073709551615", Start(offset=18_446_744_073_709_551_615)),
        ("-2h", Start(ago_ms=7_200_000)),
        ("1970-01-01T00:00:02Z", Start(time_ms=2_000)),
        ("1970-01-01T01:00:02+01:00", Start(time_ms=2_000)),
        ("1970-01-01", Start(time_ms=0)),
    ],
)
def test_a_place(text: str, place: Start) -> None:
    assert parse_to(text) == place


@pytest.mark.parametrize(
    "text", ["", "end", "1.5", "\u0663", "\u00b2", "9" * 21, "9" * 5_000, "-1", "-h", "2027-13-01"]
)
def test_no_place(text: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"^to: expected first, last, next, an offset"):
        parse_to(text)
