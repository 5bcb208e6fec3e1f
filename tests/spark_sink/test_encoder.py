"""Rows as frames, checked with pika's decoder."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pamqp.frame
import pamqp.header
import pika.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

from spark_sink.options import sink_options
from spark_sink.sink.encoder import BadRow, Encoder, Identity

ID = b"app/4/2/"


def decoded(data: bytes) -> list[tuple[spec.Basic.Publish, spec.BasicProperties, bytes]]:
    """Return all messages of a stream of frames; the stream must hold whole messages."""
    messages: list[tuple[Any, Any, bytes]] = []
    left = 0
    while data:
        used, frame = pika.frame.decode_frame(data)
        assert used, "the last frame is not whole"
        data = data[used:]
        if isinstance(frame, pika.frame.Method):
            assert left == 0
            messages.append((frame.method, None, b""))
        elif isinstance(frame, pika.frame.Header):
            messages[-1] = (messages[-1][0], frame.properties, b"")
            left = frame.body_size
        else:
            method, properties, body = messages[-1]
            messages[-1] = (method, properties, body + frame.fragment)
            left -= len(frame.fragment)
            assert left >= 0
    assert left == 0
    return messages


def encode(
    columns: dict[str, Any], first_row: int = 0, identity: Identity | None = None, **options: str
) -> list[tuple[Any, Any, bytes]]:
    encoder = Encoder(
        sink_options({"routingKey": "q"} | options), identity or Identity(ID), "partition 2", 4096
    )
    messages = encoder.encode(pa.record_batch(columns), first_row)
    found = [decoded(message) for message in messages]
    assert all(len(each) == 1 for each in found)
    return [each[0] for each in found]


SHORT = st.text(max_size=60)
HEADER_KEYS = st.text(min_size=1, max_size=20)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.binary(max_size=300) | st.integers(4_080, 13_000).map(bytes),
            "exchange": optional(SHORT),
            "routing_key": optional(SHORT),
            "headers": optional(
                st.dictionaries(HEADER_KEYS, optional(st.integers(-(2**63), 2**63 - 1)), max_size=3)
            ),
            "delivery_mode": optional(st.sampled_from([1, 2])),
            "priority": optional(st.integers(0, 255)),
            "expiration": optional(st.integers(0, 9_999_999_999).map(str)),
            "timestamp": optional(st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1))),
            **{
                name: optional(SHORT)
                for name in (
                    *("content_type", "content_encoding", "correlation_id", "reply_to"),
                    *("message_id", "type", "user_id", "app_id"),
                )
            },
        }
    ),
    min_size=1,
    max_size=5,
)
TYPES = {
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.int64()),
    "delivery_mode": pa.int32(),
    "priority": pa.int16(),
    "timestamp": pa.timestamp("us", "UTC"),
}


@given(
    rows=ROWS,
    left_out=st.sets(st.sampled_from(["exchange", "headers", "priority", "message_id", "timestamp"])),
)
def test_every_column_comes_out_as_its_property(rows: list[dict[str, Any]], left_out: set[str]) -> None:
    names = [name for name in rows[0] if name not in left_out]
    columns = {name: pa.array([row[name] for row in rows], TYPES.get(name, pa.string())) for name in names}
    messages = encode(columns, 7, exchange="x")
    for number, (row, (method, properties, body)) in enumerate(zip(rows, messages, strict=True), 7):
        given = {name: row[name] for name in names}
        assert body == row["value"]
        assert method.exchange == (given.get("exchange") if given.get("exchange") is not None else "x")
        assert method.routing_key == (row["routing_key"] if row["routing_key"] is not None else "q")
        assert method.mandatory
        assert properties.headers == given.get("headers")
        assert properties.delivery_mode == (row["delivery_mode"] or 2)
        id = given.get("message_id")
        assert properties.message_id == (id if id is not None else f"app/4/2/{number}")
        moment = given.get("timestamp")
        assert properties.timestamp == (
            None if moment is None else int(moment.replace(tzinfo=dt.UTC).timestamp() // 1)
        )
        for name in (
            "content_type",
            "priority",
            "expiration",
            "correlation_id",
            "reply_to",
            "type",
            "user_id",
            "app_id",
        ):
            assert getattr(properties, name) == given.get(name), name


@pytest.mark.parametrize("size", [0, 1, 4_087, 4_088, 4_089, 3 * 4_088, 3 * 4_088 + 1])
def test_bodies_are_cut_into_frames_of_the_agreed_size(size: int) -> None:
    encoder = Encoder(sink_options({"routingKey": "q"}), Identity(None), "partition 0", 4096)
    (message,) = encoder.encode(pa.record_batch({"value": [bytes(size)]}), 0)
    rest, sizes = message, []
    while rest:
        used, _ = pika.frame.decode_frame(rest)
        sizes.append(used)
        rest = rest[used:]
    assert max(sizes) <= 4096
    assert len(sizes) == 2 + -(-size // 4_088)
    assert decoded(message)[0][2] == bytes(size)


def test_slices_of_batches_are_encoded_as_themselves() -> None:
    columns = {
        "value": pa.array([b"a", b"bb", b"", b"dddd"]),
        "routing_key": pa.array(["k0", None, "k2", "k3"]),
        "headers": pa.array(
            [[("a", "0")], None, [("c", None), ("d", "2")], []], pa.map_(pa.string(), pa.string())
        ),
    }
    whole = pa.record_batch(columns)
    encoder = Encoder(sink_options({"routingKey": "q"}), Identity(ID), "partition 0")
    sliced = [
        message
        for start in (0, 1, 3)
        for message in encoder.encode(whole.slice(start, 2 if start == 1 else 1), start)
    ]
    assert sliced == encoder.encode(whole, 0)
    assert [properties.headers for _, properties, _ in decoded(b"".join(sliced))] == [
        {"a": "0"},
        None,
        {"c": None, "d": "2"},
        {},
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["é", None]), ["é", None]),
        (pa.array([b"\xff\x00"]), [b"\xff\x00"]),
        (pa.array([True, False, None]), [True, False, None]),
        (pa.array([-1, 127], pa.int8()), [-1, 127]),
        (pa.array([2**63 - 1, None]), [2**63 - 1, None]),
        (pa.array([0.5, -2.0], pa.float32()), [0.5, -2.0]),
        (
            pa.array([1_500_000_000], pa.timestamp("us", "UTC")),
            [dt.datetime(1970, 1, 1, 0, 25, tzinfo=dt.UTC)],
        ),
    ],
)
@pytest.mark.parametrize("form", ["map", "array", "struct"])
def test_headers_of_every_type_in_every_form(values: Any, expected: list[Any], form: str) -> None:
    keys = [f"k{i}" for i in range(len(values))]
    if form == "struct":
        column = pa.StructArray.from_arrays([values.slice(i, 1) for i in range(len(values))], keys)
    elif form == "map":
        column = pa.MapArray.from_arrays([0, len(keys)], pa.array(keys), values)
    else:
        column = pa.ListArray.from_arrays(
            [0, len(keys)], pa.StructArray.from_arrays([pa.array(keys), values], ["key", "value"])
        )
    encoder = Encoder(sink_options({"routingKey": "q"}), Identity(None), "partition 0")
    (message,) = encoder.encode(pa.record_batch({"value": [b"x"], "headers": column}), 0)
    # pika reads doubles as whole numbers, so pamqp decodes here.
    used, _, _ = pamqp.frame.unmarshal(message)
    _, _, header = pamqp.frame.unmarshal(message[used:])
    assert isinstance(header, pamqp.header.ContentHeader)
    assert header.properties.headers == dict(zip(keys, expected, strict=True))


@pytest.mark.parametrize("keys", [["a", None], ["a", "k" * 256]])
def test_bad_header_keys(keys: list[str | None]) -> None:
    entries = pa.array([[], [{"key": key, "value": "v"} for key in keys]])
    with pytest.raises(
        BadRow, match=r"column 'headers' in row 1 of partition 2 has a (null key|key longer than 255)"
    ):
        encode({"value": [b"x", b"y"], "headers": entries})


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("value", pa.array([b"x", None]), "is null"),
        ("value", pa.array([b"x", b"y" * 101]), "is longer than 100 bytes: see the option maxMessageBytes"),
        ("routing_key", pa.array(["x", "é" * 128]), "is longer than 255 bytes"),
        ("exchange", pa.array(["x", "e" * 256]), "is longer than 255 bytes"),
        ("type", pa.array(["x", "e" * 256]), "is longer than 255 bytes"),
        ("delivery_mode", pa.array([1, 3]), "is 3; there are 1"),
        ("priority", pa.array([0, 256]), "is 256; it must be between 0 and 255"),
        ("priority", pa.array([0, -1]), "is -1; it must be"),
        ("expiration", pa.array(["1", "soon"]), "is 'soon'; it must be whole milliseconds"),
        ("expiration", pa.array([1, -5]), "is '-5'; it must be whole milliseconds"),
        ("timestamp", pa.array([0, -1_000_000], pa.timestamp("us", "UTC")), "is before 1970"),
        (
            "headers",
            pa.array([[], [("k", "v" * 5000)]], pa.map_(pa.string(), pa.string())),
            "takes 5007 bytes; all headers must fit",
        ),
    ],
)
def test_a_bad_value_names_its_column_and_row(column: str, values: Any, text: str) -> None:
    columns = {"value": pa.array([b"x", b"y"])} | {column: values}
    with pytest.raises(BadRow, match=rf"column '{column}' in row 31 of partition 2 {text}") as caught:
        encode(columns, 30, exchange="x", maxMessageBytes="100")
    assert (caught.value.column, caught.value.row) == (column, 31)


def test_a_row_without_a_routing_key_needs_one_only_for_the_default_exchange() -> None:
    encoder = Encoder(sink_options({}), Identity(None), "partition 0")
    columns = {"value": [b"x", b"y"], "exchange": ["fanout", "fanout"], "routing_key": pa.array(["k", None])}
    assert [decoded(m)[0][0].routing_key for m in encoder.encode(pa.record_batch(columns), 0)] == ["k", ""]
    columns["exchange"] = pa.array(["fanout", None])
    with pytest.raises(BadRow, match="column 'routing_key' in row 1 of partition 0 is missing"):
        encoder.encode(pa.record_batch(columns), 0)


def test_deduplication_headers_stand_beside_the_rows_own() -> None:
    identity = Identity(ID, b"app/2", (4 << 32) + 1, frozenset({6}))
    headers = pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))
    first, second = encode({"value": [b"x", b"y"], "headers": headers}, 5, identity)
    assert first[1].headers == {"k": "v", "x-producer": "app/2", "x-sequence": (4 << 32) + 6}
    assert second[1].headers == {"x-deduplication-id": f"app/2/{(4 << 32) + 7}"}


def test_options_stand_where_rows_say_nothing() -> None:
    ((method, properties, _),) = encode(
        {"value": pa.array(["é"])},
        identity=Identity(None),
        mandatory="false",
        deliveryMode="1",
        messageId="none",
    )
    assert (method.mandatory, properties.delivery_mode, properties.message_id) == (False, 1, None)
