"""Field tables: every type, three ways, and against pamqp."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode

from amqp_server.broker.declared import records
from amqp_server.management.request.answer import plain
from amqp_server.wire import tables
from exchanges import field

from .published import field_tables, long, short


@given(field_tables)
def test_tables_are_decoded_as_by_pamqp(table: bytes) -> None:
    assert tables.check(table, 0, len(table)) == len(table)
    assert same(tables.decode(table), decode.field_table(table)[1])


@given(field_tables)
def test_every_cut_is_refused(table: bytes) -> None:
    for end in range(len(table)):
        with pytest.raises(tables.TableError):
            tables.check(table, 0, end)
        with pytest.raises(tables.TableError):
            tables.decode(table[:end])


@given(field_tables, st.binary(max_size=20), st.binary(max_size=20))
def test_data_around_it(table: bytes, before: bytes, after: bytes) -> None:
    data = before + table + after
    assert tables.check(data, len(before), len(data)) == len(before) + len(table)
    assert repr(tables.decode(table + after)) == repr(tables.decode(table))


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(long)))
def test_any_bytes_are_a_table_or_refused(data: bytes) -> None:
    try:
        tables.decode(data)
    except tables.TableError:
        return
    assert tables.check(data, 0, len(data)) <= len(data)
    tables.types(data)


@given(field_tables, st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_a_table_or_refused(table: bytes, at: int, value: int) -> None:
    data = bytearray(table)
    data[at % len(data)] = value
    try:
        tables.decode(bytes(data))
    except tables.TableError:
        return


def nested(depth: int, kind: bytes) -> bytes:
    """A table with tables (F) or arrays (A) in it, `depth` of them."""
    value = b"t\x01"
    for _ in range(depth):
        value = kind + long(short(b"k") + value if kind == b"F" else value)
    return long(short(b"k") + value)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_depth_is_bounded(kind: bytes) -> None:
    for depth in (1, 32, tables.DEPTH_MAX):
        deepest, deeper = nested(depth, kind), nested(depth + 1, kind)
        assert tables.check(deepest, 0, len(deepest), depth) == len(deepest)
        with pytest.raises(tables.TableTooDeep, match=f"more than {depth} deep"):
            tables.check(deeper, 0, len(deeper), depth)
    for depth in (tables.DEPTH_MAX + 1, 5_000):
        with pytest.raises(tables.TableTooDeep):
            tables.decode(nested(depth, kind))


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_the_deepest_table_goes_through_all_that_walks_tables(kind: bytes) -> None:
    deepest = nested(tables.DEPTH_MAX, kind)
    decoded = tables.decode(deepest)
    assert tables.encode(decoded) == deepest
    assert records.encoded(decoded) == deepest
    assert field.token(decoded) == field.token(tables.decode(deepest))
    assert field.matching_token(decoded)
    assert field.erlang_term(decoded).count("table" if kind == b"F" else "array") == tables.DEPTH_MAX
    assert plain(decoded) == decoded
    assert records.BindingRecord("/", "x", "q", "queue", "", deepest).key


@pytest.mark.parametrize("kind", [dict, list])
def test_what_did_not_come_by_amqp_is_encoded_up_to_a_depth(kind: type) -> None:
    value: object = 1
    for _ in range(tables.DEPTH_MAX):
        value = {"k": value} if kind is dict else [value]
    assert tables.encode({"k": value})
    for _ in range(5_000):
        value = {"k": value} if kind is dict else [value]
        with pytest.raises(tables.TableTooDeep):
            tables.encode({"k": value})


def test_a_deep_table_is_decoded_in_one_pass() -> None:
    """The decoder reads each value once, not once for each table around it."""
    many = long(b"".join(short(b"") + b"t\x01" for _ in range(1000)))
    value = b"F" + many
    for _ in range(tables.DEPTH_MAX - 1):
        value = b"F" + long(short(b"k") + value)
    seen = 0

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal seen
            seen += 1
            return super().__getitem__(key)

    table = Counted(long(short(b"k") + value))
    assert tables.decode(table)
    assert seen < 20 * 1000


def test_lengths_are_not_believed() -> None:
    for value in (b"S", b"x", b"F", b"A"):
        with pytest.raises(tables.TableError):
            tables.decode(long(short(b"k") + value + b"\xff\xff\xff\xff"))


@given(field_tables, st.binary(min_size=1, max_size=4))
def test_replaced_keeps_all_other_bytes(table: bytes, name: bytes) -> None:
    name = b"x-" + name
    added = tables.replaced(table, {name: b"t\x01"})
    assert added[4:] == table[4:] + short(name) + b"t\x01"
    assert tables.replaced(added, {name: None}) == table
    assert tables.replaced(added, {name: b"V"})[4:] == table[4:] + short(name) + b"V"


def test_each_field_tells_its_type() -> None:
    table = long(b"".join(short(bytes((tag,))) + bytes((tag,)) + bytes(size) for tag, size in SIZES.items()))
    assert tables.types(table) == {chr(tag): tables.TYPE_NAMES[tag] for tag in SIZES}


#: Size of a zero of each type, in bytes.
SIZES = {
    ord(tag): size
    for tag, size in zip(
        "tbBsuIilLfdDSxATFV", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 4, 4, 4, 8, 4, 0), strict=True
    )
}


def same(one: object, two: object) -> bool:
    """Equality, except that NaN equals NaN, and pamqp's naive and aware times are the same moment."""
    if isinstance(one, dict) and isinstance(two, dict):
        return list(one) == list(two) and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return struct.pack(">d", one) == struct.pack(">d", two) or (math.isnan(one) and math.isnan(two))
    if isinstance(one, (bytes, bytearray)) and isinstance(two, (bytes, bytearray)):
        return bytes(one) == bytes(two)
    return one == two


@given(field_tables)
def test_one_field_is_found_without_the_others(table: bytes) -> None:
    decoded = tables.decode(table)
    names = [name for name, _, _ in tables.checked_entries(table)]
    assert list(tables.checked_entries(table)) == list(tables.entries(table, 4, len(table)))
    for name in [*names, b"none"]:
        found = tables.values_in(table, (name, b"other"))
        assert tables.has(table, name) == (name in found) == (name in names)
        if name in names:
            assert repr(found[name]) == repr(decoded[name.decode(errors="replace")])
    for name in names:
        assert list(tables.tables_in(table, name)) == [
            table[at + 1 : after] for at, after in _items(table, name) if table[at] == ord("F")
        ]


def _items(table: bytes, name: bytes) -> list[tuple[int, int]]:
    """Where the items of an array begin and end, by the function that checks them."""
    found: list[tuple[int, int]] = []
    for field_name, start, after in tables.entries(table, 4, len(table)):
        at = start + 5
        while field_name == name and table[start] == ord("A") and at < after:
            behind = tables.skip(table, at, after, tables.DEPTH_MAX)
            found.append((at, behind))
            at = behind
    return found
