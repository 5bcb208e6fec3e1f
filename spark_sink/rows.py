"""Columns and AMQP properties: their names, their Spark types, and their order in a content header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.option_values import nearest
from spark_sink.options import SinkOptions

TEXT = (StringType, BinaryType)
WHOLE = (ByteType, ShortType, IntegerType, LongType)
SCALAR = (*TEXT, *WHOLE, BooleanType, FloatType, DoubleType, TimestampType)


class BadColumn(ValueError):
    """The text names the column, and what would be right."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of basic content (spec 4.2.6.1): the bit in the flags, and the types that a column of it may
    have.
    """

    column: str
    bit: int
    types: tuple[type[DataType], ...]


#: In the order of the content header.
PROPERTIES: tuple[Property, ...] = (
    Property("content_type", 15, (StringType,)),
    Property("content_encoding", 14, (StringType,)),
    Property("headers", 13, (MapType, ArrayType, StructType)),
    Property("delivery_mode", 12, WHOLE),
    Property("priority", 11, WHOLE),
    Property("correlation_id", 10, (StringType,)),
    Property("reply_to", 9, (StringType,)),
    Property("expiration", 8, (StringType, *WHOLE)),
    Property("message_id", 7, (StringType,)),
    Property("timestamp", 6, (TimestampType,)),
    Property("type", 5, (StringType,)),
    Property("user_id", 4, (StringType,)),
    Property("app_id", 3, (StringType,)),
)

SINK_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": TEXT,
    "exchange": (StringType,),
    "routing_key": (StringType,),
    "key": TEXT,
    "stream": (StringType,),
    "partition": WHOLE,
    **{each.column: each.types for each in PROPERTIES},
}


#: When the broker took a message of a stream.
TAKEN = "broker_timestamp"


def source_schema(include_headers: bool = True, of_stream: bool = False) -> StructType:
    """The schema of a read; for streams it says of which partition a message is, and when the broker took it.
    Header values are text, because one column has one type.
    """
    fields = [
        StructField("value", BinaryType(), True),
        StructField("queue", StringType(), True),
        StructField("exchange", StringType(), True),
        StructField("routing_key", StringType(), True),
        StructField("headers", MapType(StringType(), StringType(), True), True),
        StructField("content_type", StringType(), True),
        StructField("content_encoding", StringType(), True),
        StructField("delivery_mode", IntegerType(), True),
        StructField("priority", IntegerType(), True),
        StructField("correlation_id", StringType(), True),
        StructField("reply_to", StringType(), True),
        StructField("expiration", StringType(), True),
        StructField("message_id", StringType(), True),
        StructField("timestamp", TimestampType(), True),
        StructField("type", StringType(), True),
        StructField("user_id", StringType(), True),
        StructField("app_id", StringType(), True),
        StructField("redelivered", BooleanType(), True),
        StructField("offset", LongType(), True),
    ]
    if of_stream:
        fields.append(StructField("partition", IntegerType(), True))
        fields.append(StructField("stream", StringType(), True))
        fields.append(StructField(TAKEN, TimestampType(), True))
    return StructType([field for field in fields if include_headers or field.name != "headers"])


#: Columns of a read frame that a sink does not accept: they are ignored when such rows are written back.
SOURCE_ONLY = frozenset({"queue", "redelivered", "offset", TAKEN})


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check on the driver, before any row is computed. Raises BadColumn."""
    names = schema.fieldNames()
    for name in names:
        if name not in SINK_COLUMNS and not options.ignore_unknown_columns:
            raise BadColumn(_unknown(name))
        if names.count(name) > 1:
            raise BadColumn(f"column '{name}' appears twice")
    if "value" not in names:
        raise BadColumn(
            f"column 'value' is missing: it becomes the body; the frame has {', '.join(names) or 'none'}"
        )
    _check_addresses(names, options)
    for field in schema.fields:
        if field.name in SINK_COLUMNS:
            _check_type(field.name, field.dataType)


def _check_addresses(names: Sequence[str], options: SinkOptions) -> None:
    """Check that something says where messages go, and nothing says it twice. Raises BadColumn."""
    given = {"stream": options.stream, "exchange": options.exchange, "routingKey": options.routing_key}
    named = [name for name, value in given.items() if value]
    if not named and options.routing_key is None and not {"routing_key", "key", "stream"} & set(names):
        raise BadColumn(
            "nothing says where messages go: set option 'stream', 'routingKey' or 'exchange', or give a column "
            "'routing_key' or 'stream'"
        )
    if "key" in names and "routing_key" in names:
        raise BadColumn("columns 'key' and 'routing_key' are the same: drop one of them")
    if "stream" in names:
        if "exchange" in names:
            raise BadColumn("columns 'stream' and 'exchange' both say where messages go: drop one of them")
        if named:
            raise BadColumn(
                f"column 'stream' and option '{named[0]}' both say where messages go: drop the column, or leave the "
                "option out"
            )
    elif "partition" in names and (options.stream is None or "exchange" in names):
        raise BadColumn(
            "column 'partition' is that of a stream: name the stream by option 'stream' or by a column 'stream', or "
            "drop the column"
        )


def _unknown(name: str) -> str:
    if name in SOURCE_ONLY:
        return (
            f"column '{name}' says where a message came from and cannot be written: drop it, "
            "or set option 'ignoreUnknownColumns'"
        )
    near = nearest(name, SINK_COLUMNS) or f"; there are {', '.join(SINK_COLUMNS)}"
    return f"a message has no column '{name}'{near} (to leave it out, drop it or set option 'ignoreUnknownColumns')"


def _check_type(name: str, kind: DataType) -> None:
    allowed = SINK_COLUMNS[name]
    if not isinstance(kind, allowed):
        texts = [each.typeName() for each in allowed]
        raise BadColumn(f"column '{name}' is {kind.simpleString()} and must be {' or '.join(texts)}")
    if name == "headers":
        _check_headers(kind)


def _check_headers(kind: DataType) -> None:
    for what, inner, allowed in _header_parts(kind):
        if not isinstance(inner, allowed):
            texts = ", ".join(each.typeName() for each in allowed)
            raise BadColumn(
                f"column 'headers' has {what} of type {inner.simpleString()}; AMQP headers take {texts}"
            )


def _header_parts(kind: DataType) -> list[tuple[str, DataType, tuple[type[DataType], ...]]]:
    if isinstance(kind, MapType):
        return [("keys", kind.keyType, (StringType,)), ("values", kind.valueType, SCALAR)]
    if isinstance(kind, ArrayType):
        entry = kind.elementType
        if not isinstance(entry, StructType) or entry.fieldNames() != ["key", "value"]:
            raise BadColumn(
                f"column 'headers' is {kind.simpleString()}; an array of headers holds struct<key, value>"
            )
        return [("keys", entry["key"].dataType, (StringType,)), ("values", entry["value"].dataType, SCALAR)]
    assert isinstance(kind, StructType)
    return [(f"a field '{field.name}'", field.dataType, SCALAR) for field in kind.fields]
