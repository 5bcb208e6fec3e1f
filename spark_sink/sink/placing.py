"""Turns rows that name a stream, a partition and a key into rows with an exchange and a routing key, which is
what AMQP has.

A message goes to a super stream through its exchange, with its key as the routing key. It goes to a
partition, or to a single stream, through the default exchange: the routing key is then the queue's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_sink import arrow
from spark_sink.client.errors import AmqpError
from spark_sink.client.publisher import connect
from spark_sink.option_values import SHORTSTR_BYTES_MAX
from spark_sink.options import SinkOptions
from spark_sink.sink.encoder import BadRow
from spark_sink.streams.probe import discovered

STREAM, PARTITION, KEY, ROUTING_KEY = "stream", "partition", "key", "routing_key"
RecordBatch = Any


class Place:
    """A stream, or a super stream with its partitions."""

    __slots__ = ("name", "partitions", "single")

    def __init__(self, name: bytes, partitions: Sequence[str], single: bool) -> None:
        self.name = name
        self.partitions = [each.encode() for each in partitions]
        self.single = single


def asked(options: SinkOptions, name: str) -> Place:
    """Ask the broker about a stream. Raises AmqpError."""
    with connect(options.login, "spark_sink streams", options.confirm_timeout_ms) as connection:
        partitions, single = discovered(connection, name, {})
    return Place(name.encode(), [partitions[number] for number in sorted(partitions)], single)


class Placer:
    """The rows of one task."""

    def __init__(
        self, options: SinkOptions, where: str, ask: Callable[[SinkOptions, str], Place] = asked
    ) -> None:
        self._options = options
        self._where = where
        self._ask = ask
        self._places: dict[bytes, Place] = {}
        self._row = 0

    def placed(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield the batches without the columns `stream`, `partition` and `key`. Raises BadRow, AmqpError."""
        for batch in batches:
            names = batch.schema.names
            if STREAM in names or PARTITION in names:
                batch = self._addressed(batch)
            elif KEY in names:
                batch = renamed(batch)
            yield batch
            self._row += batch.num_rows

    def checked(self, batches: Iterable[RecordBatch], partitions: Sequence[str]) -> Iterator[RecordBatch]:
        """The same for rows that are packed afterwards, by their keys or partitions. Raises BadRow."""
        place = Place(b"", partitions, single=False)
        for batch in batches:
            if KEY in batch.schema.names:
                batch = self._as_text(renamed(batch))
            for position, number in enumerate(self._numbers(batch)):
                if number is not None:
                    self._queue(place, number, position)
            yield batch
            self._row += batch.num_rows

    def _as_text(self, batch: RecordBatch) -> RecordBatch:
        """The key as text, as a reader of the packed rows gets it. Raises BadRow."""
        index = batch.schema.get_field_index(ROUTING_KEY)
        column = batch.column(index)
        for position, key in enumerate(arrow.texts(column)):
            try:
                key.decode()
            except UnicodeDecodeError:
                raise self._bad(KEY, position, "is not UTF-8, and with packing a key is text") from None
        return batch.set_column(index, ROUTING_KEY, column.cast(pa.string()))

    def _addressed(self, batch: RecordBatch) -> RecordBatch:
        batch = renamed(batch)
        names, count = batch.schema.names, batch.num_rows
        streams = self._streams(batch)
        keys: list[bytes | None] = [None] * count
        if ROUTING_KEY in names:
            column = batch.column(ROUTING_KEY)
            if (longer := arrow.first_longer(column, SHORTSTR_BYTES_MAX)) is not None:
                raise self._bad(KEY, longer, f"is longer than {SHORTSTR_BYTES_MAX} bytes")
            keys = list(arrow.texts(column))
            for position in arrow.nulls(column):
                keys[position] = None
        exchanges: list[bytes] = []
        for position, (stream, number) in enumerate(zip(streams, self._numbers(batch), strict=True)):
            exchange, keys[position] = self._address(stream, number, keys[position], position)
            exchanges.append(exchange)
        kept = [name for name in names if name not in (STREAM, PARTITION, ROUTING_KEY)]
        columns = [batch.column(name) for name in kept]
        columns += [pa.array(exchanges, pa.binary()), pa.array(keys, pa.binary())]
        return pa.RecordBatch.from_arrays(columns, names=[*kept, "exchange", ROUTING_KEY])

    def _streams(self, batch: RecordBatch) -> list[bytes]:
        if STREAM not in batch.schema.names:
            assert self._options.stream is not None
            return [self._options.stream.encode()] * batch.num_rows
        column = batch.column(STREAM)
        if missing := arrow.nulls(column):
            raise self._bad(STREAM, missing[0], "is null: it says where the message goes")
        return arrow.texts(column)

    def _numbers(self, batch: RecordBatch) -> list[int | None]:
        if PARTITION not in batch.schema.names:
            return [None] * batch.num_rows
        numbers: list[int | None] = batch.column(PARTITION).to_pylist()
        return numbers

    def _address(
        self, stream: bytes, number: int | None, key: bytes | None, position: int
    ) -> tuple[bytes, bytes | None]:
        """Return exchange and routing key. Raises BadRow, AmqpError."""
        place = self._places.get(stream) or self._found(stream, position)
        if number is not None:
            return b"", self._queue(place, number, position)
        if not place.single:
            return place.name, key
        if key is not None:
            raise self._bad(
                KEY,
                position,
                f"is set, and '{stream.decode()}' is a single stream, which has no place for a key",
            )
        return b"", place.name

    def _found(self, stream: bytes, position: int) -> Place:
        try:
            place = self._ask(self._options, stream.decode(errors="replace"))
        except AmqpError as error:
            raise self._bad(STREAM, position, f"names a stream that cannot be written to: {error}") from None
        return self._places.setdefault(stream, place)

    def _queue(self, place: Place, number: int, position: int) -> bytes:
        if not 0 <= number < len(place.partitions):
            most = len(place.partitions) - 1
            raise self._bad(PARTITION, position, f"is {number}: the partitions are 0 to {most}")
        return place.partitions[number]

    def _bad(self, column: str, position: int, text: str) -> BadRow:
        row = self._row + position
        return BadRow(f"column '{column}' in row {row} of {self._where} {text}", column, row)


def renamed(batch: RecordBatch) -> RecordBatch:
    """Return the batch with its column `key` as `routing_key`."""
    names = [ROUTING_KEY if name == KEY else name for name in batch.schema.names]
    return batch.rename_columns(names)
