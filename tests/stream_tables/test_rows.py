"""Messages as rows: what each property and each type of a header becomes."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.streams.layout.encode import Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.wire import content, tables
from persistence.streams import batch as batches
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.run import Run
from spark_sink.sink.packing import LEVEL, ROWS
from spark_sink.source import field_table
from stream_tables.packed import CONTENT_ENCODING, CONTENT_TYPE
from stream_tables.rows import SCHEMA, Rows
from tests.amqp_server.wire.published import field_tables

TIME_MS = 1_764_547_200_123


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def head(exchange: bytes = b"", routing_key: bytes = b"s") -> bytes:
    return short(exchange) + short(routing_key)


def payload(properties: dict[str, bytes], size: int) -> bytes:
    """A content header with properties as AMQP has them."""
    return content.Properties(properties).encode(size)


def rows_of(
    messages: list[tuple[bytes, dict[str, bytes], bytes]], frame_max: int = 131_072, codec: str = "none"
) -> list[dict[str, Any]]:
    """Encode messages, as heads, properties and bodies, for a stream; return them as rows."""
    encoder = Encoder(Layouts(), 100, TIME_MS)
    for number, (routing, properties, body) in enumerate(messages):
        built = content.build(payload(properties, len(body)), body, 1, frame_max)
        encoder.add(Run(range(number, number + 1), [bytes(built)], routing, Attributes(True, 0, None, 1, 0)))
    found: list[dict[str, Any]] = []
    rows = Rows()
    for encoded in encoder.finish():
        stored = b"".join(batches.compressed(encoded.parts, codec))
        batch = batches.decode(batches.decode_head(stored), stored)
        for part in rows.of(batch, 0, 1 << 62):
            assert part.schema == SCHEMA
            part.validate(full=True)
            found += part.to_pylist()
    return found


def row(properties: dict[str, bytes], body: bytes = b"x", routing: bytes = head()) -> dict[str, Any]:
    return rows_of([(routing, properties, body)])[0]


def test_a_message_without_properties_has_nulls() -> None:
    found = row({}, b"", head(b"amq.topic", b"a.b"))
    due = dict.fromkeys(SCHEMA.names) | {
        "offset": 100,
        "row": 0,
        "timestamp": datetime.fromtimestamp(TIME_MS // 1000, UTC).replace(microsecond=123_000),
        "exchange": "amq.topic",
        "routing_key": "a.b",
        "value": b"",
    }
    assert found == due


def test_all_properties_have_columns() -> None:
    texts = "content_type content_encoding correlation_id reply_to expiration message_id type user_id app_id cluster_id"
    properties = {name: short(name.encode()) for name in texts.split()}
    properties |= {
        "delivery_mode": b"\x02",
        "priority": b"\xff",
        "timestamp": struct.pack(">Q", 1_764_547_200),
        "headers": tables.encode({"a": "b", "empty": ""}),
    }
    found = row(properties)
    assert {name: found[name] for name in texts.split()} == {name: name for name in texts.split()}
    assert (found["delivery_mode"], found["priority"]) == (2, 255)
    assert found["publisher_timestamp"] == datetime.fromtimestamp(1_764_547_200, UTC)
    assert found["headers"] == [("a", "b"), ("empty", "")]
    assert found["raw_properties"] is None and found["raw_routing"] is None


TYPES = [
    (b"t\x01", "true"),
    (b"b\xff", "-1"),
    (b"B\xff", "255"),
    (b"s\x80\x00", "-32768"),
    (b"u\xff\xff", "65535"),
    (b"I\x80\x00\x00\x00", "-2147483648"),
    (b"i\xff\xff\xff\xff", "4294967295"),
    (b"l" + struct.pack(">q", -(1 << 63)), "-9223372036854775808"),
    (b"L" + struct.pack(">q", 5), "5"),
    (b"f" + struct.pack(">f", 0.5), "0.5"),
    (b"d" + struct.pack(">d", float("nan")), "nan"),
    (b"d" + struct.pack(">d", float("-inf")), "-inf"),
    (b"D\x02" + struct.pack(">i", -12345), "-123.45"),
    (b"D\xff" + struct.pack(">i", 1), "0." + 254 * "0" + "1"),
    (b"T" + struct.pack(">Q", 0), "1970-01-01T00:00:00+00:00"),
    (b"T" + struct.pack(">Q", 1 << 63), str(1 << 63)),
    (b"V", None),
    (b"x" + struct.pack(">I", 2) + b"\xc3\xa4", "ä"),
    (b"x" + struct.pack(">I", 1) + b"\xff", "\N{REPLACEMENT CHARACTER}"),
    (b"S" + struct.pack(">I", 2) + b"\xff!", "\N{REPLACEMENT CHARACTER}!"),
    (b"F" + tables.encode({"a": [1, None, "x"]}), '{"a": [1, null, "x"]}'),
    (b"A" + struct.pack(">I", 9) + b"d" + struct.pack(">d", float("inf")), '["inf"]'),
]


@pytest.mark.parametrize(("encoded", "text"), TYPES)
def test_a_header_of_another_type_is_text_and_stays_as_it_is(encoded: bytes, text: str | None) -> None:
    fields = short(b"name") + encoded
    properties = {"headers": len(fields).to_bytes(4, "big") + fields, "app_id": short(b"app")}
    found = row(properties)
    assert found["headers"] == [("name", text)]
    assert found["raw_properties"] == payload(properties, 0)[12:]


def test_texts_that_are_no_utf_8_are_replaced_and_stay_as_they_are() -> None:
    found = row({"type": short(b"\xfe")}, routing=head(b"x", b"k\xff"))
    assert (found["type"], found["routing_key"]) == (
        "\N{REPLACEMENT CHARACTER}",
        "k\N{REPLACEMENT CHARACTER}",
    )
    assert found["raw_routing"] == head(b"x", b"k\xff")
    assert found["raw_properties"] == payload({"type": short(b"\xfe")}, 0)[12:]


def test_a_time_beyond_the_calendar_is_null_and_stays_as_it_is() -> None:
    properties = {"timestamp": struct.pack(">Q", 1_764_547_200_000)}
    found = row(properties)
    assert found["publisher_timestamp"] is None
    assert found["raw_properties"] == payload(properties, 0)[12:]


def test_headers_of_one_name_become_one_and_stay_as_they_are() -> None:
    fields = 2 * (short(b"a") + b"S" + struct.pack(">I", 1) + b"x")
    properties = {"headers": len(fields).to_bytes(4, "big") + fields}
    found = row(properties)
    assert found["headers"] == [("a", "x")] and found["raw_properties"] == payload(properties, 0)[12:]


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000, 3 << 20])
def test_bodies_in_any_number_of_frames_are_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    found = rows_of([(head(), {}, body), (head(), {"app_id": short(b"a")}, body)], frame_max=4096)
    assert [each["value"] for each in found] == [body, body]
    assert [each["offset"] for each in found] == [100, 101]


messages = st.tuples(
    st.binary(max_size=5).map(lambda raw: head(b"x", raw)),
    st.fixed_dictionaries(
        {},
        optional={
            "headers": field_tables,
            "content_encoding": st.sampled_from([b"gzip", b"utf-8"]).map(short),
            "message_id": st.binary(max_size=6).map(short),
            "timestamp": st.integers(0, (1 << 64) - 1).map(lambda number: struct.pack(">Q", number)),
            "priority": st.integers(0, 255).map(lambda number: bytes((number,))),
        },
    ),
    st.binary(max_size=9),
)


@given(st.lists(messages, min_size=1, max_size=20), st.sampled_from(["none", "zstd", "lz4"]))
def test_every_message_is_a_row_that_says_everything(
    published: list[tuple[bytes, dict[str, bytes], bytes]], codec: str
) -> None:
    found = rows_of(published, codec=codec)
    assert [each["offset"] for each in found] == list(range(100, 100 + len(published)))
    for each, (routing, properties, body) in zip(found, published, strict=True):
        # A stream stores no table without headers.
        properties = {name: raw for name, raw in properties.items() if raw != bytes(4)}
        assert each["value"] == body
        if each["raw_routing"] is None:
            assert short(each["exchange"].encode()) + short(each["routing_key"].encode()) == routing
        else:
            assert each["raw_routing"] == routing
        if each["raw_properties"] is not None:
            assert each["raw_properties"] == payload(properties, 0)[12:]
            continue
        again: dict[str, bytes] = {}
        if each["headers"] is not None:
            again["headers"] = tables.encode(dict(each["headers"]))
        for name in ("content_encoding", "message_id"):
            if each[name] is not None:
                again[name] = short(each[name].encode())
        if each["publisher_timestamp"] is not None:
            again["timestamp"] = struct.pack(">Q", int(each["publisher_timestamp"].timestamp()))
        if each["priority"] is not None:
            again["priority"] = bytes((each["priority"],))
        assert again == properties


@given(field_tables)
def test_headers_are_the_text_that_the_spark_connector_has(encoded: bytes) -> None:
    found = row({"headers": encoded})["headers"] or []
    decoded, _ = field_table.decode(encoded, 0)
    assert dict(found) == {name: field_table.as_text(value) for name, value in decoded.items()}


def packed(table: pa.Table, metadata: dict[bytes, bytes] = ROWS) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(metadata)) as stream:
        stream.write_table(table)
    return bytes(pa.Codec("zstd", LEVEL).compress(sink.getvalue(), asbytes=True))


PACKED = {
    "content_type": short(CONTENT_TYPE.encode()),
    "content_encoding": short(CONTENT_ENCODING.encode()),
    "app_id": short(b"job"),
}


def test_packed_rows_are_rows() -> None:
    table = pa.table(
        {
            "value": pa.array(["a", "b", None]),
            "message_id": pa.array(["1", "2", "3"]),
            "headers": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    found = rows_of([(head(), {}, b"before"), (head(), PACKED, packed(table)), (head(), {}, b"after")])
    names = ("offset", "row", "value", "message_id", "headers", "app_id", "content_type", "routing_key")
    assert [tuple(each[name] for name in names) for each in found] == [
        (100, 0, b"before", None, None, None, None, "s"),
        (101, 0, b"a", "1", [("k", "v")], "job", None, "s"),
        (101, 1, b"b", "2", None, "job", None, "s"),
        (101, 2, None, "3", [], "job", None, "s"),
        (102, 0, b"after", None, None, None, None, "s"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no arrow",
        packed(pa.table({"value": ["a"]}), {}),
        packed(pa.table({"value": pa.array([], pa.string())})),
        packed(pa.table({"value": ["a" * 1000]}))[:-9],
        packed(pa.table({"headers": [1]})),
        json.dumps({}).encode(),
    ],
)
def test_what_cannot_be_unpacked_is_a_message(body: bytes) -> None:
    found = rows_of([(head(), PACKED, body)])
    assert [(each["row"], each["value"], each["content_encoding"]) for each in found] == [(0, body, "zstd")]
