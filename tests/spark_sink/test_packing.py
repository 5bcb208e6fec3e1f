"""Rows in a message and out again; and offsets from the headers of a stream's messages."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pika
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from exchanges.binding import Binding
from exchanges.super_stream import SuperStreamMatcher
from spark_sink.rows import BadColumn, source_schema
from spark_sink.sink import packing
from spark_sink.sink.packing import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    Packer,
    check_columns,
    content_bytes,
    partition_of,
)
from spark_sink.source.columns import Decoder
from spark_sink.source.deliveries import Run, Splitter
from spark_sink.source.properties import BadMessage
from spark_sink.streams.placed import OFFSET, offset_at, without_offsets
from tests.spark_sink.wire import FRAME_MAX, Message, delivery

SCHEMA = source_schema(of_stream=True)


def run_of(*messages: Message) -> Run:
    splitter = Splitter()
    wire = b"".join(delivery(each, tag, False, FRAME_MAX) for tag, each in enumerate(messages, 1))
    assert splitter.take(wire, 0, len(wire)) == len(wire)
    return Run.joined(splitter.runs)


def properties(**given_properties: Any) -> bytes:
    return b"".join(pika.BasicProperties(**given_properties).encode())


def packed(rows: dict[str, Any], **packer: Any) -> list[dict[str, Any]]:
    batches = list(Packer(**{"rows_max": 1_000, **packer}).packed([pa.record_batch(rows)]))
    return [row for batch in batches for row in batch.to_pylist()]


def read(*messages: Message) -> list[dict[str, Any]]:
    decoder = Decoder(SCHEMA, "orders-3")
    return [
        row
        for batch in decoder.log_batches(run_of(*messages), "orders", 3, timed=False)
        for row in batch.to_pylist()
    ]


def message(body: bytes, offset: int, **given_properties: Any) -> Message:
    headers = {**given_properties.pop("headers", {}), OFFSET: 2**40 + offset}
    return Message(body, "", "orders", {**given_properties, "headers": headers})


def test_what_goes_in_comes_out() -> None:
    moment = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.UTC)
    [one] = packed(
        {
            "value": ["a", "", "c"],
            "routing_key": ["k", "k", "k"],
            "priority": pa.array([1, None, 3], pa.int64()),
            "timestamp": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
            "headers": pa.array([{"h": "1"}, None, {}], pa.map_(pa.string(), pa.string())),
        }
    )
    assert (one["content_type"], one["content_encoding"]) == (CONTENT_TYPE, CONTENT_ENCODING)
    rows = read(
        message(b"before", 0, content_type="text/plain"),
        message(
            one["value"], 1, content_type=CONTENT_TYPE, content_encoding=CONTENT_ENCODING, message_id="m"
        ),
        message(b"behind", 2),
    )
    assert [row["value"] for row in rows] == [b"before", b"a", b"", b"c", b"behind"]
    assert [row["offset"] - 2**40 for row in rows] == [0, 1, 1, 1, 2]
    assert [row["routing_key"] for row in rows] == ["orders", "k", "k", "k", "orders"]
    assert [row["message_id"] for row in rows] == [None, "m", "m", "m", None]
    assert [row["content_type"] for row in rows] == ["text/plain", None, None, None, None]
    assert [row["priority"] for row in rows] == [None, 1, None, 3, None]
    assert [row["timestamp"] for row in rows] == [None, moment, None, moment, None]
    assert [row["headers"] for row in rows] == [None, [("h", "1")], None, [], None]
    assert {row["partition"] for row in rows} == {3} and {row["queue"] for row in rows} == {"orders-3"}


def test_rows_of_one_message_are_limited() -> None:
    messages = packed({"value": [str(number) for number in range(25)]}, rows_max=10)
    assert all("routing_key" not in each for each in messages)
    counts = [
        len(read(message(each["value"], 0, content_type=CONTENT_TYPE, content_encoding=CONTENT_ENCODING)))
        for each in messages
    ]
    assert counts == [10, 10, 5]


def test_the_same_rows_make_the_same_messages() -> None:
    batches = [
        pa.record_batch({"value": [f"{number}"] * 700, "routing_key": [f"k{number % 3}"] * 700})
        for number in range(9)
    ]
    once = [batch.to_pylist() for batch in Packer(1_000, ("a", "b")).packed(batches)]
    again = [batch.to_pylist() for batch in Packer(1_000, ("a", "b")).packed(batches)]
    assert once == again


def test_a_key_goes_where_the_broker_sends_it() -> None:
    matcher = SuperStreamMatcher()
    for number in range(5):
        matcher.bind(Binding("orders", f"orders-{number}", "queue", str(number), {}))
    for number in range(200):
        key = f"kéy-{number}"
        [destinations] = matcher.match(key, None, 0)
        [queue] = destinations.queues
        assert queue == f"orders-{partition_of(key.encode(), 5)}"


def test_rows_of_a_super_stream_go_by_their_keys() -> None:
    names = ("s-0", "s-1", "s-2")
    keys = [None if number % 10 == 0 else f"k{number % 7}" for number in range(100)]
    messages = packed({"value": [str(n) for n in range(100)], "routing_key": keys}, partitions=names, spare=4)
    found = {}
    for each in messages:
        rows = read(message(each["value"], 0, content_type=CONTENT_TYPE, content_encoding=CONTENT_ENCODING))
        found[each["routing_key"]] = [int(row["value"]) for row in rows]
    wanted = {
        name: [
            n for n, key in enumerate(keys) if (1 if key is None else partition_of(key.encode(), 3)) == number
        ]
        for number, name in enumerate(names)
    }
    assert found == {name: numbers for name, numbers in wanted.items() if numbers}


def test_arrow_of_somebody_else_is_a_body() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"value": pa.string()})) as writer:
        writer.write_batch(pa.record_batch({"value": ["x"]}))
    body = pa.Codec("zstd").compress(sink.getvalue(), asbytes=True)
    kind = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}
    [row] = read(message(body, 0, **kind))
    assert (row["value"], row["content_type"]) == (body, CONTENT_TYPE)
    with pytest.raises(BadMessage, match="the rows of a packed message cannot be read"):
        read(message(body[:-5], 0, **kind))


def test_columns_that_cannot_be_packed() -> None:
    with pytest.raises(BadColumn, match="'exchange' cannot be used with packing"):
        check_columns(StructType().add("value", StringType()).add("exchange", StringType()))
    with pytest.raises(BadColumn, match="must be map<string,string>"):
        check_columns(StructType().add("headers", MapType(StringType(), IntegerType())))
    check_columns(StructType().add("headers", MapType(StringType(), StringType())))


texts = st.text(max_size=8)
given_headers = st.dictionaries(
    st.text("abx-", min_size=1, max_size=5), texts | st.integers(-5, 5), max_size=3
)
#: A publisher may write anything, also bytes that look like the header.
mark = st.sampled_from(["", "\x0fx-stream-offsetl", "\x0fx-stream-offsetl12345678"])


@given(
    st.lists(
        st.tuples(given_headers, given_headers, mark, st.none() | st.text("abc", max_size=3)),
        min_size=1,
        max_size=8,
    )
)
def test_offsets_are_taken_out_wherever_they_stand(
    messages: list[tuple[dict[str, Any], dict[str, Any], str, str | None]],
) -> None:
    wanted, with_offsets = [], []
    for number, (before, behind, text, kind) in enumerate(messages):
        headers = {**before, **({"m": text} if text else {})}
        own = {**headers, **behind}
        # RabbitMQ sorts its headers, and mqd adds this one as the last.
        placed = {**headers, OFFSET: 2**33 + number, **{k: v for k, v in behind.items() if k not in headers}}
        own = {k: placed[k] for k in placed if k != OFFSET}
        rest = {"content_type": kind, "correlation_id": text or None, "message_id": str(number)}
        wanted.append(properties(headers=own or None, **rest))
        with_offsets.append(properties(headers=placed, **rest))
    offsets, found = without_offsets(with_offsets)
    assert offsets == [2**33 + number for number in range(len(messages))]
    assert found == wanted


def test_a_message_without_an_offset() -> None:
    with pytest.raises(BadMessage, match="without"):
        offset_at(run_of(Message(b"x", "", "q", {"headers": {"a": "b"}})), 0)
    with pytest.raises(BadMessage, match="without"):
        offset_at(run_of(Message(b"x", "", "q", {})), 0)


def test_frames_of_other_compressors_are_read() -> None:
    """Several frames in one body, and a frame that does not give the size of its content."""
    [one] = packed({"value": ["a" * 500, "b"]})
    plain = pa.CompressedInputStream(pa.BufferReader(one["value"]), "zstd").read()
    codec = pa.Codec("zstd")
    several = b"".join(codec.compress(part, asbytes=True) for part in (plain[:300], plain[300:]))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain)
    silent = sink.getvalue().to_pybytes()
    assert [content_bytes(body) for body in (one["value"], several, silent)] == [len(plain), 300, None]
    kind = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}
    for body in (one["value"], several, silent):
        assert [row["value"] for row in read(message(body, 0, **kind))] == [b"a" * 500, b"b"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 1 << 20])
def test_the_size_that_a_frame_tells(size: int) -> None:
    body = pa.Codec("zstd").compress(bytes(size), asbytes=True)
    assert content_bytes(body.ljust(18, b"\0")) == size


def test_more_than_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "UNPACKED_BYTES_MAX", 1_000)
    [one] = packed({"value": ["a" * 2_000]})
    kind = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}
    with pytest.raises(BadMessage, match="more than 1000 bytes of rows"):
        read(message(one["value"], 0, **kind))


def test_what_a_message_says_holds_for_its_rows_only() -> None:
    """Columns with one value are kept for the next message: one that is longer, shorter, has another value,
    or has none.
    """
    messages = []
    wanted = []
    for offset, (count, who) in enumerate([(3, "a"), (2, "a"), (5, "a"), (4, "b"), (1, None), (2, "b")]):
        [one] = packed({"value": [str(number) for number in range(count)]})
        kind = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING, "app_id": who}
        messages.append(message(one["value"], offset, headers={"n": str(offset)}, **kind))
        wanted += [(b"%d" % number, who, [("n", str(offset))]) for number in range(count)]
    found = read(*messages)
    assert [(row["value"], row["app_id"], row["headers"]) for row in found] == wanted
    assert [row["offset"] - 2**40 for row in found] == [0] * 3 + [1] * 2 + [2] * 5 + [3] * 4 + [4] + [5] * 2
