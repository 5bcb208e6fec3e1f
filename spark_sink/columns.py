"""Whole messages, as bytes, into Arrow columns: what the tasks of a read do.

Most messages of a queue have the same route and the same properties, so both are remembered by their raw bytes. A
batch in which they are all the same costs nothing for those columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pika import data as field_table
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_sink.deliveries import BASIC_DELIVER, FLAGS_AT, HEAD_BYTES, OVERHEAD_BYTES, U32, U64, Run, Splitter
from spark_sink.options import nearest
from spark_sink.rows import PROPERTIES, BadColumn, source_schema

ROWS_PER_BATCH = 10_000
#: Distinct routes or property sets that are remembered.
MEMO_MAX = 4_096
#: What a signed 64-bit count of microseconds holds; some publishers write milliseconds where seconds are due.
SECONDS_MAX = (2**63 - 1) // 1_000_000

COLUMNS = tuple(each.column for each in PROPERTIES)
NO_PROPERTIES: tuple[Any, ...] = (None,) * len(PROPERTIES)
HEADERS, TIMESTAMP = COLUMNS.index("headers"), COLUMNS.index("timestamp")
OCTETS = {COLUMNS.index("delivery_mode"), COLUMNS.index("priority")}
#: Bit in the flags, place in the tuple.
BITS = tuple((1 << each.bit, place) for place, each in enumerate(PROPERTIES))

Route = tuple[bool, str, str]
Properties = tuple[Any, ...]


class BadMessage(Exception):
    """A message that cannot become a row."""


def check_schema(schema: StructType) -> None:
    """A query may ask for fewer columns than there are. Raises BadColumn."""
    ours = source_schema()
    for field in schema.fields:
        if field.name not in ours.fieldNames():
            raise BadColumn(f"a message has no column '{field.name}'{nearest(field.name, ours.fieldNames())}")
        due = ours[field.name].dataType
        if field.dataType != due:
            raise BadColumn(
                f"column '{field.name}' is {due.simpleString()}, and the schema asks for "
                f"{field.dataType.simpleString()}: read it as it is, and cast"
            )


class Decoder:
    def __init__(self, schema: StructType, queue: str) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._queue = queue
        self._routes: dict[bytes, Route] = {}
        self._properties: dict[bytes, Properties] = {}

    def batches(self, blocks: Iterable[bytes], offset: int) -> Iterator[pa.RecordBatch]:
        """One Arrow batch for so many rows; `offset` is the first row's."""
        splitter = Splitter()
        values: list[bytes] = []
        routes: list[Route] = []
        properties: list[Properties] = []
        for block in blocks:
            splitter.take(block, 0, len(block))
            runs, splitter.runs = splitter.runs, []
            for run in runs:
                self._decode(run, values, routes, properties)
            while len(values) >= ROWS_PER_BATCH:
                yield self._batch(
                    values[:ROWS_PER_BATCH], routes[:ROWS_PER_BATCH], properties[:ROWS_PER_BATCH], offset
                )
                offset += ROWS_PER_BATCH
                del values[:ROWS_PER_BATCH], routes[:ROWS_PER_BATCH], properties[:ROWS_PER_BATCH]
        if values:
            yield self._batch(values, routes, properties, offset)

    def _decode(
        self, run: Run, values: list[bytes], routes: list[Route], properties: list[Properties]
    ) -> None:
        data, u32, u64 = run.data, U32.unpack_from, U64.unpack_from
        known_routes, known = self._routes, self._properties
        at = HEAD_BYTES + len(BASIC_DELIVER)
        # After the consumer's tag, which is the same in all messages, and the delivery's.
        skip = at + 1 + data[run.starts[0] + at] + 8
        for start, head in zip(run.starts, run.heads, strict=True):
            key = data[start + skip : head - OVERHEAD_BYTES]
            route = known_routes.get(key)
            if route is None:
                route = self._remember_route(key)
            routes.append(route)
            end = head + u32(data, head - 4)[0]
            key = data[head + FLAGS_AT : end]
            found = known.get(key)
            if found is None:
                found = self._remember_properties(key)
            properties.append(found)
            size = u64(data, head + 4)[0]
            body = end + OVERHEAD_BYTES
            if not size:
                values.append(b"")
            elif u32(data, body - 4)[0] == size:
                values.append(data[body : body + size])
            else:
                values.append(_joined(data, end + 1, size))

    def _remember_route(self, key: bytes) -> Route:
        exchange_end = 2 + key[1]
        exchange, routing_key = key[2:exchange_end], key[exchange_end + 1 :]
        # Nothing in the protocol says that these are UTF-8, and Spark's strings are.
        route = (bool(key[0]), exchange.decode(errors="replace"), routing_key.decode(errors="replace"))
        if len(self._routes) >= MEMO_MAX:
            self._routes.clear()
        self._routes[key] = route
        return route

    def _remember_properties(self, key: bytes) -> Properties:
        found = decode_properties(key)
        if len(self._properties) >= MEMO_MAX:
            self._properties.clear()
        self._properties[key] = found
        return found

    def _batch(
        self,
        values: list[bytes],
        routes: Sequence[Route],
        properties: Sequence[Properties],
        offset: int,
    ) -> pa.RecordBatch:
        count = len(values)
        # By identity: what is remembered is one object.
        one_route = routes[0] if len(set(map(id, routes))) == 1 else None
        one_set = properties[0] if len(set(map(id, properties))) == 1 else None
        columns: dict[str, Callable[[Any], Any]] = {
            "value": lambda kind: pa.array(values, kind),
            "queue": lambda kind: pa.repeat(pa.scalar(self._queue, kind), count),
            "offset": lambda kind: pa.array(range(offset, offset + count), kind),
        }
        for place, name in enumerate(("redelivered", "exchange", "routing_key")):
            columns[name] = _column(routes, one_route, place)
        for place, name in enumerate(COLUMNS):
            columns[name] = _column(properties, one_set, place)
        arrays = [columns[field.name](field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(rows: Sequence[tuple[Any, ...]], one: tuple[Any, ...] | None, place: int) -> Callable[[Any], Any]:
    if one is None:
        return lambda kind: pa.array([row[place] for row in rows], kind)
    if one[place] is None:
        return lambda kind: pa.nulls(len(rows), kind)
    if isinstance(one[place], list):
        # Arrow repeats no maps.
        return lambda kind: pa.array([one[place]] * len(rows), kind)
    return lambda kind: pa.repeat(pa.scalar(one[place], kind), len(rows))


def _joined(data: bytes, at: int, size: int) -> bytes:
    """A body of more than one frame."""
    pieces = []
    while size:
        (length,) = U32.unpack_from(data, at + 3)
        pieces.append(data[at + HEAD_BYTES : at + HEAD_BYTES + length])
        size -= length
        at += length + OVERHEAD_BYTES
    return b"".join(pieces)


def decode_properties(data: bytes) -> Properties:
    """Flags and properties (spec 4.2.6.1). Raises BadMessage."""
    flags = data[0] << 8 | data[1]
    if not flags:
        return NO_PROPERTIES
    found: list[Any] = [None] * len(PROPERTIES)
    at = 2
    try:
        for bit, place in BITS:
            if not flags & bit:
                continue
            if place == HEADERS:
                table, at = field_table.decode_table(data, at)
                found[place] = [(name, as_text(value)) for name, value in table.items()]
            elif place == TIMESTAMP:
                (seconds,) = U64.unpack_from(data, at)
                found[place] = seconds * 1_000_000 if seconds <= SECONDS_MAX else None
                at += 8
            elif place in OCTETS:
                found[place] = data[at]
                at += 1
            else:
                end = at + 1 + data[at]
                found[place] = data[at + 1 : end].decode(errors="replace")
                at = end
    except Exception as error:
        raise BadMessage(
            f"the properties of a message cannot be decoded: {error!r}: {data[:200]!r}"
        ) from error
    return tuple(found)


def as_text(value: Any) -> str | None:
    """A header's value: text as it is, all else as JSON writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value, default=as_text, ensure_ascii=False)
