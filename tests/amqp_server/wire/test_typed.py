"""Properties as JSON have the same bytes afterwards."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.wire import content, tables, typed

from .published import field_tables, short

texts = st.binary(max_size=255).map(short)
properties = st.fixed_dictionaries(
    {},
    optional={
        name: field_tables
        if name == "headers"
        else st.binary(min_size=8, max_size=8)
        if name == "timestamp"
        else st.binary(min_size=1, max_size=1)
        if name in ("delivery_mode", "priority")
        else texts
        for name in content.PROPERTIES
    },
)


def through_json(raw: dict[str, bytes]) -> dict[str, bytes]:
    told = typed.of_properties(content.Properties(raw))
    return typed.properties_of(msgspec.json.decode(msgspec.json.encode(told)), tables.DEPTH_MAX).raw


@given(properties)
def test_properties_have_the_same_bytes_afterwards(raw: dict[str, bytes]) -> None:
    assert through_json(raw) == raw


@pytest.mark.parametrize(
    "value",
    [
        b"f" + struct.pack(">f", math.nan),
        b"f" + struct.pack(">f", 0.1),
        b"d" + struct.pack(">d", -math.inf),
        b"d" + bytes.fromhex("7ff0000000000001"),
        b"d" + struct.pack(">d", -0.0),
        b"d" + struct.pack(">d", 5.0),
        b"t\x07",
        b"L" + b"\xff" * 8,
        b"T" + b"\xff" * 8,
        b"D\x02" + struct.pack(">i", -314),
        b"S\x00\x00\x00\x02\xff\xfe",
        b"S\x00\x00\x00\x00",
        b"x\x00\x00\x00\x01\x00",
        b"A\x00\x00\x00\x00",
        b"F\x00\x00\x00\x00",
    ],
)
def test_values_that_json_does_not_know_have_the_same_bytes_afterwards(value: bytes) -> None:
    field = b"\x01\xe9" + value
    table = struct.pack(">I", 2 * len(field)) + 2 * field
    assert through_json({"headers": table}) == {"headers": table}


def test_the_form_is_readable() -> None:
    table = tables.encode({"tenant": "acme", "tries": 3, "path": ["a", True], "in": {"x": None}})
    told = typed.of_properties(content.Properties({"headers": table, "delivery_mode": b"\x02"}))
    assert told == {
        "headers": [
            ["tenant", "S", "acme"],
            ["tries", "I", 3],
            ["path", "A", [["S", "a"], ["t", True]]],
            ["in", "F", [["x", "V", None]]],
        ],
        "delivery_mode": 2,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(
    st.dictionaries(st.sampled_from([*content.PROPERTIES, "other"]), json_values)
    | st.fixed_dictionaries(
        {
            "headers": st.lists(
                st.tuples(st.text(max_size=3), st.sampled_from("tbBsuIilLfdDSxAFTVq"), json_values).map(list)
            )
        }
    )
    | json_values
)
def test_other_json_is_refused_with_a_text(told: Any) -> None:
    try:
        found = typed.properties_of(told, 3)
    except typed.TypedError as refused:
        assert str(refused)
        return
    # What is taken is what AMQP has.
    again = content.Properties.parse(found.encode(0), tables.DEPTH_MAX)
    assert again.raw == found.raw


def test_depth_is_bounded() -> None:
    deep: Any = ["S", "x"]
    for _ in range(4):
        deep = ["A", [deep]]
    told = {"headers": [["a", *deep]]}
    assert typed.properties_of(told, 4)
    with pytest.raises(typed.TypedError, match="table_depth_max"):
        typed.properties_of(told, 3)
