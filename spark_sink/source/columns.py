"""Turns whole messages, as bytes, into Arrow columns, in the tasks of a read.

Arrow cuts them where it can (`cuts`); otherwise Python works on lists. Most messages of a queue have the same
route and the same properties. So both are taken as bytes, only distinct ones are decoded, and the decoded
values are repeated to make a column; a value that is the same in a whole batch costs nothing for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import sub
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_sink.arrow import binaries
from spark_sink.option_values import nearest
from spark_sink.rows import TAKEN, BadColumn, source_schema
from spark_sink.sink.packing import Messages, Repeats, repeated, unpacked
from spark_sink.source.cuts import Cuts, cuts
from spark_sink.source.deliveries import BASIC_DELIVER, FLAGS_AT, HEAD_BYTES, OVERHEAD_BYTES, U32, U64, Run
from spark_sink.source.properties import COLUMNS, MESSAGE_ID, decode_properties, without_ids
from spark_sink.source.stored import StoredRun
from spark_sink.source.stored_cuts import stored_cuts
from spark_sink.streams.placed import without_offsets, without_times

ROUTE_COLUMNS = ("redelivered", "exchange", "routing_key")
#: If more of a batch's properties differ, the code checks whether only their ids differ.
SIMILAR_MAX = 0.5

#: The values of these columns in a packed message do not hold for its rows.
ENVELOPE = frozenset({"content_type", "content_encoding"})

Array = Any
#: Converts a column to its Arrow type.
Column = Callable[[Any], Array]


def check_schema(schema: StructType, of_stream: bool = False) -> None:
    """A query may ask for fewer columns than there are. Raises BadColumn."""
    ours = source_schema(of_stream=of_stream)
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
        self._repeats = Repeats()

    def batches(self, run: Run, offset: int) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the messages of a run; `offset` is the first one's. Raises BadMessage."""
        offsets = range(offset, offset + len(run))
        if (found := cuts(run, of_stream=False)) is not None:
            return iter((self._batch_of(found, offsets, {}),))
        values, routes, properties = _parts(run)
        return self._batches(Messages(values, routes, properties, offsets), {})

    def log_batches(self, run: Run, stream: str, partition: int, timed: bool) -> Iterator[pa.RecordBatch]:
        """As `batches`, for messages of a stream, which bring their offsets, and if `timed` the times when
        the broker took them. Raises BadMessage.
        """
        same = {"stream": stream, "partition": partition}
        if (found := cuts(run, of_stream=True, timed=timed)) is not None:
            return iter((self._batch_of(found, found.offsets, same),))
        values, routes, properties = _parts(run)
        times, properties = without_times(properties) if timed else ([None] * len(run), properties)
        offsets, properties = without_offsets(properties)
        return self._batches(Messages(values, routes, properties, offsets, times), same)

    def stored_batches(self, run: StoredRun, stream: str, partition: int) -> Iterator[pa.RecordBatch]:
        """As `log_batches`, for messages out of batches as the broker stores them. Raises BadMessage."""
        same = {"stream": stream, "partition": partition}
        found = stored_cuts(run, routes=self._wants(ROUTE_COLUMNS), properties=self._wants(COLUMNS))
        if found is not None:
            return iter((self._batch_of(found, found.offsets, same),))
        values, routes, properties = _parts(run.deliveries())
        _, properties = without_offsets(properties)
        return self._batches(Messages(values, routes, properties, run.offsets, run.times), same)

    def _batches(self, messages: Messages, same: Mapping[str, object]) -> Iterator[pa.RecordBatch]:
        for part, rows in unpacked(messages):
            yield self._batch(part, same, rows)

    def _batch(self, messages: Messages, same: Mapping[str, object], rows: Any) -> pa.RecordBatch:
        """`rows` has the rows of a packed message; then there is only one message."""
        columns: dict[str, Column] = {
            "value": lambda kind: binaries(messages.values, kind),
            "offset": lambda kind: pa.array(messages.offsets, kind),
            TAKEN: lambda kind: _taken(pa.array(messages.times, pa.int64()), kind),
            **self._same(len(messages), same),
            **_columns(ROUTE_COLUMNS, messages.routes, _route),
        }
        if self._wants(COLUMNS):
            columns |= _property_columns(messages.properties)
        if rows is not None:
            columns = of_packed(columns, rows, self._repeats)
        return self._made(columns)

    def _batch_of(self, found: Cuts, offsets: Any, same: Mapping[str, object]) -> pa.RecordBatch:
        count, routes = found.count, found.routes
        columns: dict[str, Column] = {
            "value": lambda kind: found.bodies,
            "offset": lambda kind: pa.array(offsets, kind) if isinstance(offsets, range) else offsets,
            TAKEN: lambda kind: pa.nulls(count, kind) if found.times is None else _taken(found.times, kind),
            **self._same(count, same),
        }
        if self._wants(ROUTE_COLUMNS):
            columns |= _distinct(ROUTE_COLUMNS, routes.raws, routes.indices, count, _route)
        if self._wants(COLUMNS):
            properties = found.properties
            if len(properties.raws) > SIMILAR_MAX * count:
                columns |= _property_columns(
                    [properties.raws[index] for index in properties.indices.to_pylist()]
                )
            else:
                columns |= _distinct(COLUMNS, properties.raws, properties.indices, count, decode_properties)
        return self._made(columns)

    def _wants(self, columns: Sequence[str]) -> bool:
        """Return whether the query has any of these columns; others do not pay for them."""
        return any(name in columns for name in self._schema.names)

    def _same(self, count: int, same: Mapping[str, object]) -> dict[str, Column]:
        """Columns that are the same in all rows."""
        return {
            "queue": lambda kind: pa.repeat(pa.scalar(self._queue, kind), count),
            **{name: _repeated(value, count) for name, value in same.items()},
        }

    def _made(self, columns: Mapping[str, Column]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [columns[field.name](field.type) for field in self._schema], schema=self._schema
        )


def _repeated(value: object, count: int) -> Column:
    return lambda kind: pa.repeat(pa.scalar(value, kind), count)


def _taken(times: Array, kind: Any) -> Array:
    """Times in ms since 1970 as a column."""
    return times.cast(pa.timestamp("ms", kind.tz)).cast(kind)


def of_packed(columns: Mapping[str, Column], rows: Any, repeats: Repeats) -> dict[str, Column]:
    """Columns of the rows of one message: the packed columns; all others have the message's values."""

    def column(name: str, of_message: Column) -> Column:
        def made(kind: Any) -> Array:
            if name in rows.schema.names:
                found = rows.column(name)
                return found if found.type == kind else found.cast(kind)
            if name in ENVELOPE:
                return repeats.column(name, pa.nulls(1, kind), rows.num_rows)
            return repeats.column(name, of_message(kind), rows.num_rows)

        return made

    return {name: column(name, of_message) for name, of_message in columns.items()}


def _parts(run: Run) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Bodies, routes and properties, as they came. A list at a time: that is half the work of a message at a
    time.
    """
    data, starts, heads = run.data, run.starts, run.heads
    u32, u64 = U32.unpack_from, U64.unpack_from
    at = HEAD_BYTES + len(BASIC_DELIVER)
    # After the consumer's tag, which is the same in all messages, and the delivery's.
    skip = at + 1 + data[starts[0] + at] + 8
    routes = [data[start + skip : head - OVERHEAD_BYTES] for start, head in zip(starts, heads, strict=True)]
    ends = [head + u32(data, head - 4)[0] for head in heads]
    properties = [data[head + FLAGS_AT : end] for head, end in zip(heads, ends, strict=True)]
    sizes = [u64(data, head + 4)[0] for head in heads]
    bodies = [
        data[end + OVERHEAD_BYTES : end + OVERHEAD_BYTES + size]
        for end, size in zip(ends, sizes, strict=True)
    ]
    # The end of the header's frame, and one frame of the body: a longer message has its body in several
    # frames.
    usual = OVERHEAD_BYTES + 1
    wholes = map(sub, [*starts[1:], len(data)], ends)
    for index, (whole, size) in enumerate(zip(wholes, sizes, strict=True)):
        if whole > size + usual:
            bodies[index] = _joined(data, ends[index] + 1, size)
    return bodies, routes, properties


def _joined(data: bytes, at: int, size: int) -> bytes:
    """A body of more than one frame."""
    pieces = []
    while size:
        (length,) = U32.unpack_from(data, at + 3)
        pieces.append(data[at + HEAD_BYTES : at + HEAD_BYTES + length])
        size -= length
        at += length + OVERHEAD_BYTES
    return b"".join(pieces)


def _route(raw: bytes) -> tuple[bool, str, str]:
    exchange_end = 2 + raw[1]
    exchange, routing_key = raw[2:exchange_end], raw[exchange_end + 1 :]
    # The protocol does not require UTF-8 here, but Spark's strings do.
    return bool(raw[0]), exchange.decode(errors="replace"), routing_key.decode(errors="replace")


def _property_columns(raws: Sequence[bytes]) -> dict[str, Column]:
    if len(set(raws)) > SIMILAR_MAX * len(raws) and (found := without_ids(raws)) is not None:
        ids, rest = found
        columns = _columns(COLUMNS, rest, decode_properties)
        columns[COLUMNS[MESSAGE_ID]] = lambda kind: pa.array(
            [each.decode(errors="replace") for each in ids], kind
        )
        return columns
    return _columns(COLUMNS, raws, decode_properties)


def _columns(
    names: Sequence[str], raws: Sequence[bytes], decode: Callable[[bytes], tuple[Any, ...]]
) -> dict[str, Column]:
    """Columns that are decoded from the same bytes in the same way."""
    distinct = {raw: index for index, raw in enumerate(dict.fromkeys(raws))}
    indices = (
        None if len(distinct) in (1, len(raws)) else pa.array(map(distinct.__getitem__, raws), pa.int32())
    )
    return _distinct(names, distinct, indices, len(raws), decode)


def _distinct(
    names: Sequence[str],
    raws: Collection[bytes],
    indices: Array,
    count: int,
    decode: Callable[[bytes], tuple[Any, ...]],
) -> dict[str, Column]:
    """The same, if it is known which rows have which bytes; without indices all rows have the same, or each
    row has its own.
    """
    decoded = list(map(decode, raws))
    return {name: _column(decoded, place, indices, count) for place, name in enumerate(names)}


def _column(decoded: Sequence[tuple[Any, ...]], place: int, indices: Array, count: int) -> Column:
    def column(kind: Any) -> Array:
        values = [row[place] for row in decoded]
        if values.count(None) == len(values):
            return pa.nulls(count, kind)
        if values.count(values[0]) == len(values):
            if isinstance(values[0], list):
                # Arrow cannot repeat a scalar of a map.
                return repeated(pa.array([values[0]], kind), count)
            return pa.repeat(pa.scalar(values[0], kind), count)
        found = pa.array(values, kind)
        return found if indices is None else found.take(indices)

    return column
