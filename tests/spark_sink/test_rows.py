"""Frames that may be written, as the driver checks before any row is computed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_sink.options import sink_options
from spark_sink.rows import SINK_COLUMNS, BadColumn, check_schema, source_schema

TEXT = StringType()


def frame(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def check(schema: StructType, **options: str) -> None:
    check_schema(schema, sink_options({"routingKey": "q"} | options))


def test_what_was_read_can_be_written_but_for_where_it_came_from() -> None:
    read = source_schema()
    writable = StructType(
        [field for field in read.fields if field.name not in ("queue", "redelivered", "offset")]
    )
    check(writable)
    assert {*writable.fieldNames(), "key", "stream", "partition"} == set(SINK_COLUMNS)
    for name in ("queue", "redelivered", "offset"):
        with pytest.raises(BadColumn, match=f"column '{name}' says where a message came from"):
            check(StructType([*writable.fields, read[name]]))
    check(read, ignoreUnknownColumns="true")


@pytest.mark.parametrize(
    "headers",
    [
        MapType(TEXT, LongType()),
        MapType(TEXT, BinaryType()),
        ArrayType(frame(key=TEXT, value=BinaryType())),
        frame(a=TEXT, b=IntegerType(), c=TimestampType()),
    ],
)
def test_forms_of_headers(headers: DataType) -> None:
    check(frame(value=BinaryType(), headers=headers))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (frame(), "column 'value' is missing.*the frame has none"),
        (frame(body=TEXT), "a message has no column 'body'"),
        (frame(value=TEXT, contentType=TEXT), "no column 'contentType'; did you mean 'content_type'"),
        (frame(value=TEXT).add("value", TEXT), "column 'value' appears twice"),
        (frame(value=DecimalType()), r"column 'value' is decimal\(10,0\) and must be string or binary"),
        (frame(value=TEXT, priority=TEXT), "column 'priority' is string and must be"),
        (frame(value=TEXT, timestamp=LongType()), "column 'timestamp' is bigint and must be timestamp"),
        (frame(value=TEXT, headers=TEXT), "column 'headers' is string and must be map or array or struct"),
        (frame(value=TEXT, headers=MapType(IntegerType(), TEXT)), "column 'headers' has keys of type int"),
        (
            frame(value=TEXT, headers=MapType(TEXT, MapType(TEXT, TEXT))),
            "has values of type map<string,string>",
        ),
        (frame(value=TEXT, headers=frame(a=DecimalType())), "has a field 'a' of type decimal"),
        (frame(value=TEXT, headers=ArrayType(TEXT)), "an array of headers holds struct<key, value>"),
    ],
)
def test_what_cannot_be_written(schema: StructType, text: str) -> None:
    with pytest.raises(BadColumn, match=text):
        check(schema)


def test_something_must_say_where_messages_go() -> None:
    with pytest.raises(
        BadColumn, match="set option 'stream', 'routingKey' or 'exchange', or give a column 'routing_key' or"
    ):
        check_schema(frame(value=TEXT), sink_options({}))
    for column in ("stream", "key"):
        check_schema(frame(value=TEXT).add(column, TEXT), sink_options({}))
    check_schema(frame(value=TEXT, routing_key=TEXT), sink_options({}))
    check_schema(frame(value=TEXT), sink_options({"exchange": "fanout"}))


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (frame(key=TEXT, routing_key=TEXT), {}, "columns 'key' and 'routing_key' are the same"),
        (frame(stream=TEXT, exchange=TEXT), {}, "columns 'stream' and 'exchange' both say where"),
        (frame(stream=TEXT), {"stream": "s"}, "column 'stream' and option 'stream' both say where"),
        (frame(stream=TEXT), {"exchange": "x"}, "column 'stream' and option 'exchange' both say where"),
        (frame(stream=TEXT), {"routingKey": "q"}, "column 'stream' and option 'routingKey' both say where"),
        (frame(partition=IntegerType()), {"exchange": "x"}, "column 'partition' is that of a stream: name"),
        (frame(partition=IntegerType(), exchange=TEXT), {"stream": "s"}, "column 'partition' is that of"),
        (frame(partition=TEXT), {"stream": "s"}, "column 'partition' is string and must be"),
        (frame(key=IntegerType()), {"stream": "s"}, "column 'key' is int and must be string or binary"),
    ],
)
def test_nothing_says_twice_where_messages_go(schema: StructType, options: dict[str, str], text: str) -> None:
    with pytest.raises(BadColumn, match=text):
        check_schema(StructType([*schema.fields, *frame(value=TEXT).fields]), sink_options(options))
    check_schema(frame(value=TEXT, stream=TEXT, partition=LongType(), key=BinaryType()), sink_options({}))
    check_schema(frame(value=TEXT, partition=IntegerType()), sink_options({"stream": "s"}))
