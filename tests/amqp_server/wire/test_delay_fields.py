"""The header that says how long a message waits is found in its frames, whatever stands around it."""

from __future__ import annotations

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from pamqp import commands

from amqp_server.wire.content import Properties, split
from amqp_server.wire.delay_fields import BothGiven, delay_of
from benchmarks import frames

values = st.one_of(
    st.integers(0, 300),
    st.integers(-(1 << 62), 1 << 62),
    st.booleans(),
    st.sampled_from(["x-delay", "soon", bytearray(b"\x07x-delayl")]),
    st.just(datetime(2024, 1, 1, tzinfo=UTC)),
    st.dictionaries(st.sampled_from(["x-delay", "x-deliver-at"]), st.integers(0, 9), max_size=2),
)
names = st.sampled_from(["x-delay", "x-deliver-at", "x-delayed", "x-delivery-count", "a", "x-del"])
properties = st.builds(
    commands.Basic.Properties,
    content_type=st.none() | st.sampled_from(["x-delay", "\x07x-delay", ""]),
    headers=st.none() | st.dictionaries(names, values, max_size=4),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    message_id=st.none() | st.sampled_from(["\x07x-delayl01234567", "x-deliver-at", ""]),
)


def content_of(made: commands.Basic.Properties | None) -> bytes:
    """The header and body frames of a message."""
    published = frames.message("", "q", b"\x07x-delayl01234567", made)
    return published[8 + int.from_bytes(published[3:7], "big") :]


@given(st.lists(st.none() | properties, min_size=1, max_size=8), st.integers(1, 3))
@example([commands.Basic.Properties(headers={"x-delay": at}) for at in (1, 2, 1 << 40)], 1)
@example([commands.Basic.Properties(headers={"x-delay": 5, "x-deliver-at": 5})], 2)
@example([commands.Basic.Properties(headers={"a": {"x-delay": 5}})], 2)
def test_the_header_is_found(made: list[commands.Basic.Properties | None], times: int) -> None:
    for each in made:
        item = content_of(each)
        headers = Properties.parse(split(item)[0]).headers or {}
        given_here = [(name, headers[name]) for name in ("x-delay", "x-deliver-at") if name in headers]
        for _ in range(times):
            if len(given_here) > 1:
                with pytest.raises(BothGiven):
                    delay_of(item)
                continue
            assert delay_of(item) == (given_here[0] if given_here else None)


def test_of_two_fields_with_one_name_the_last_one_counts() -> None:
    item = content_of(commands.Basic.Properties(headers={"x-delay": 5}))
    field = b"\x07x-delay" + item[item.index(b"\x07x-delay") + 8 :][:2]
    assert item.count(field) == 1
    size_at = 7 + 12 + 2
    size = int.from_bytes(item[size_at : size_at + 4], "big")
    later = field[:-1] + b"\x09"
    twice = item.replace(field, field + later)
    twice = twice[:size_at] + (size + len(later)).to_bytes(4, "big") + twice[size_at + 4 :]
    twice = twice[:3] + (int.from_bytes(item[3:7], "big") + len(later)).to_bytes(4, "big") + twice[7:]
    for _ in range(2):
        assert delay_of(item) == ("x-delay", 5)
        assert delay_of(twice) == ("x-delay", 9)
