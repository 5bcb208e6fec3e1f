"""The columns of a table, and messages as rows of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from persistence.streams.batch import Batch
from stream_tables.messages import Decoder, Message
from stream_tables.packed import packed_rows

Array = Any
RecordBatch = Any

_TIME: Final = pa.timestamp("us", tz="UTC")
#: A value that is null says that the message has no such property.
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        # Of the row in a message with packed rows; 0 for other messages.
        pa.field("row", pa.int32(), nullable=False),
        # When the broker took the message.
        pa.field("timestamp", _TIME, nullable=False),
        # Null only where packed rows say so.
        pa.field("exchange", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("content_type", pa.string()),
        pa.field("content_encoding", pa.string()),
        pa.field("delivery_mode", pa.int32()),
        pa.field("priority", pa.int32()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("expiration", pa.string()),
        pa.field("message_id", pa.string()),
        # The property `timestamp`, which the publisher sets.
        pa.field("publisher_timestamp", _TIME),
        pa.field("type", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("app_id", pa.string()),
        pa.field("cluster_id", pa.string()),
        # The bytes as AMQP has them, where the columns do not say everything.
        pa.field("raw_routing", pa.binary()),
        pa.field("raw_properties", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
#: Names of properties by column.
_PROPERTIES: Final = {
    "headers": "headers",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "delivery_mode": "delivery_mode",
    "priority": "priority",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "expiration": "expiration",
    "message_id": "message_id",
    "publisher_timestamp": "timestamp",
    "type": "type",
    "user_id": "user_id",
    "app_id": "app_id",
    "cluster_id": "cluster_id",
}
#: Columns that packed rows may bring, by the names that they have there. What the message says of the same
#: names does not hold for its rows.
_PACKED: Final = {_PROPERTIES[column]: column for column in _PROPERTIES} | {
    "value": "value",
    "exchange": "exchange",
    "routing_key": "routing_key",
}
_ENVELOPE: Final = frozenset({"content_type", "content_encoding", "raw_properties"})
#: The largest offset of a binary array.
_BINARY_BYTES_MAX: Final = 2**31 - 1


class Rows:
    """Makes record batches of messages."""

    def __init__(self) -> None:
        self._decoder = Decoder()

    def of(self, batch: Batch, first: int, stop: int) -> list[RecordBatch]:
        """Return the rows of a batch's messages with these offsets."""
        found: list[RecordBatch] = []
        plain: list[Message] = []
        for message in self._decoder.messages(batch):
            if not first <= message.offset < stop:
                continue
            rows = _unpacked(message, batch.time_ms)
            if rows is None:
                plain.append(message)
                continue
            if plain:
                found.append(_plain(plain, batch.time_ms))
                plain = []
            found += rows
        if plain:
            found.append(_plain(plain, batch.time_ms))
        return found


def _plain(messages: Sequence[Message], time_ms: int) -> RecordBatch:
    count = len(messages)
    values = [message.published.values for message in messages]
    columns: dict[str, Array] = {
        "offset": pa.array([message.offset for message in messages], pa.int64()),
        "row": _repeated(0, pa.int32(), count),
        "timestamp": _repeated(time_ms * 1000, _TIME, count),
        "exchange": _column([message.routing.exchange for message in messages], pa.string()),
        "routing_key": _column([message.routing.routing_key for message in messages], pa.string()),
        "raw_routing": _column([message.routing.raw for message in messages], pa.binary()),
        "raw_properties": _column([message.published.raw for message in messages], pa.binary()),
        "value": _binaries([message.body for message in messages]),
    }
    for column, name in _PROPERTIES.items():
        columns[column] = _column([each.get(name) for each in values], SCHEMA.field(column).type)
    return _made(columns.__getitem__)


def _column(values: list[Any], kind: Any) -> Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def _binaries(bodies: list[bytes]) -> Array:
    """One copy of all bytes, which is much faster than a look at each value."""
    sizes = list(map(len, bodies))
    if sum(sizes) > _BINARY_BYTES_MAX:
        raise ValueError("the bodies of a batch have more than 2 GiB")
    ends = array("i", accumulate(sizes, initial=0))
    return pa.Array.from_buffers(
        pa.binary(), len(bodies), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(bodies))]
    )


def _unpacked(message: Message, time_ms: int) -> list[RecordBatch] | None:
    """Return the rows that a message packs; None if it packs none, or if they do not fit the columns."""
    packed = packed_rows(message)
    if packed is None:
        return None
    found: list[RecordBatch] = []
    number = 0
    try:
        for rows in packed:
            found.append(_packed(message, time_ms, rows, number))
            number += rows.num_rows
    except pa.ArrowException:
        return None
    return found


def _packed(message: Message, time_ms: int, rows: RecordBatch, number: int) -> RecordBatch:
    """Rows of one message: the packed columns; all others have the message's values."""
    count = rows.num_rows
    names = {column: name for name, column in _PACKED.items() if name in rows.schema.names}
    of_message = _plain([message], time_ms)

    def column(name: str) -> Array:
        kind = SCHEMA.field(name).type
        if name == "row":
            return pa.array(range(number, number + count), kind)
        if name in names:
            return rows.column(names[name]).cast(kind)
        if name == "value" or name in _ENVELOPE:
            return pa.nulls(count, kind)
        # Arrow cannot repeat a scalar of a map.
        return of_message.column(name).take(pa.repeat(pa.scalar(0, pa.int32()), count))

    return _made(column)


def _repeated(value: object, kind: Any, count: int) -> Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _made(column: Callable[[str], Array]) -> RecordBatch:
    return pa.RecordBatch.from_arrays([column(field.name) for field in SCHEMA], schema=SCHEMA)


__all__ = ["SCHEMA", "Rows"]
