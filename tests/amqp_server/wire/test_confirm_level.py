"""The header x-confirm, as the scanner of publishes finds it."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, header

from amqp_server.wire.intake import Publisher
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY

SLOW = -1


def publisher(*, knows_levels: bool = True) -> Publisher:
    made = Publisher(131_072, b"guest", 1 << 24)
    made.knows_levels = knows_levels
    return made


def level(of: Publisher, headers: dict[str, Any] | None) -> int:
    """Return the level of a message with these headers; SLOW if the slow path must read it."""
    payload = header.ContentHeader(0, 1, commands.Basic.Properties(headers=headers)).marshal()
    flags = int.from_bytes(payload[12:14], "big")
    attributes, _ = of.properties(payload, 12, len(payload), flags, 1, False)
    return SLOW if attributes is None else attributes.confirm_level


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, MAJORITY),
        ({"a": 1}, MAJORITY),
        ({"x-confirm": "leader"}, LEADER),
        ({"x-confirm": "all", "a": 1}, ALL),
        ({"a": {"x-confirm": "leader"}}, MAJORITY),
        ({"a": "\tx-confirmS\0\0\0\6leader"}, MAJORITY),
        ({"x-confirmed": "leader"}, MAJORITY),
        ({"x-confirm": "majority"}, SLOW),
        ({"x-confirm": ""}, SLOW),
        ({"x-confirm": 1}, SLOW),
        ({"x-confirm": None}, SLOW),
        ({"x-confirm": bytearray(b"leader")}, SLOW),
    ],
)
def test_a_header_chooses_the_confirm_level(headers: dict[str, Any] | None, expected: int) -> None:
    assert level(publisher(), headers) == expected


def test_a_header_of_the_same_shape_may_have_another_level() -> None:
    """Once the shape is known, the scanner skips other values of the same length."""
    of = publisher()
    assert level(of, {"x-confirm": "leader", "n": "1"}) == LEADER
    assert level(of, {"x-confirm": "leader", "n": "2"}) == LEADER
    assert level(of, {"x-confirm": "leadex", "n": "2"}) == SLOW
    assert level(of, {"x-confirm": "all", "n": "2"}) == ALL
    assert level(of, {"x-confirm": "alx", "n": "2"}) == SLOW


def test_the_slow_path_finds_out_whether_all_nodes_know_it() -> None:
    of = publisher(knows_levels=False)
    assert level(of, {"x-confirm": "leader"}) == SLOW
    assert level(of, {"a": 1}) == MAJORITY
    of.knows_levels = True
    assert level(of, {"x-confirm": "leader"}) == LEADER
