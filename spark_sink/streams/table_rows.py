"""Rows of a table's files, with the columns and values that the same messages have when they come from the
broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_sink.rows import TAKEN
from spark_sink.sink.packing import CONTENT_ENCODING, CONTENT_TYPE, Repeats, packed_rows
from spark_sink.source.columns import Column, of_packed
from spark_sink.streams.offsets import Partition
from spark_sink.streams.table_files import Part, TableFile
from spark_sink.streams.table_store import NoFile, TableStore

#: Of one Arrow batch.
ROWS_PER_BATCH = 20_000
#: Columns that have another name in tables.
_NAMES = {"timestamp": "publisher_timestamp", TAKEN: "timestamp"}
OFFSET, VALUE, TYPE, ENCODING = "offset", "value", "content_type", "content_encoding"

RecordBatch = Any


class TableRows:
    """Iterates over the rows of a part that has a file, a row group at a time. Raises NoFile, StoreFails,
    BadMessage.

    After NoFile, `next` is the offset to go on with in another place, and `taken` says how many rows of that
    message were returned already: a message with packed rows may be in two row groups.
    """

    def __init__(
        self, store: TableStore, schema: StructType, queue: str, partition: Partition, part: Part
    ) -> None:
        assert part.file is not None
        self._store = store
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._file: TableFile = part.file
        self._start, self._end = part.start, part.end
        self._same: dict[str, object] = {
            "queue": queue,
            "redelivered": False,
            "stream": partition.stream,
            "partition": partition.number,
        }
        self._repeats = Repeats()
        self.next, self.taken = part.start, 0

    def __iter__(self) -> Iterator[RecordBatch]:
        opened = self._store.opened(self._file)
        for number in range(opened.metadata.num_row_groups):
            if self._has_any(opened.metadata.row_group(number)):
                yield from self._of_group(self._read(opened, number))

    def _has_any(self, group: Any) -> bool:
        """Whether a row group may have offsets of the part."""
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == OFFSET and column.statistics is not None:
                low, high = column.statistics.min, column.statistics.max
                return low is None or (low < self._end and high >= self._start)
        return True

    def _read(self, opened: Any, number: int) -> Any:
        wanted = {_NAMES.get(name, name) for name in self._schema.names if name not in self._same}
        columns = [OFFSET, TYPE, ENCODING, *sorted(wanted - {OFFSET, TYPE, ENCODING})]
        group = self._of_part(self._columns(opened, number, columns))
        if VALUE not in columns and pc.any(_maybe_packed(group)).as_py():
            group = self._of_part(self._columns(opened, number, [*columns, VALUE]))
        return group

    def _columns(self, opened: Any, number: int, columns: list[str]) -> Any:
        try:
            # Spark runs as many tasks as there are cores.
            return opened.read_row_group(number, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise self._store.failure(self._file, error) from None

    def _of_part(self, group: Any) -> Any:
        offsets = group.column(OFFSET)
        before = pc.sum(pc.less(offsets, self._start)).as_py() or 0
        until = pc.sum(pc.less(offsets, self._end)).as_py() or 0
        return group.slice(before, until - before)

    def _of_group(self, group: Any) -> Iterator[RecordBatch]:
        if not group.num_rows:
            return
        packed = _maybe_packed(group)
        at = 0
        for place in pc.indices_nonzero(packed).to_pylist():
            yield from self._plain(group.slice(at, place - at))
            yield from self._of_packed(group.slice(place, 1))
            at = place + 1
        yield from self._plain(group.slice(at))
        offsets = group.column(OFFSET)
        last = offsets[-1].as_py()
        count = pc.sum(pc.equal(offsets, last)).as_py()
        self.taken = count + (self.taken if self.next == last else 0)
        self.next = last

    def _plain(self, rows: Any) -> Iterator[RecordBatch]:
        for batch in rows.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH):
            yield self._made(self._as_columns(batch))

    def _of_packed(self, row: Any) -> Iterator[RecordBatch]:
        """Yield the rows of a message that the table's writer has not unpacked: they were too many, or did
        not fit its columns. Raises BadMessage if they cannot be read, as for messages from the broker.
        """
        batches = packed_rows(row.column(VALUE)[0].as_py())
        if batches is None:
            yield from self._plain(row)
            return
        (message,) = row.combine_chunks().to_batches()
        columns = self._as_columns(message)
        for rows in batches:
            yield self._made(of_packed(columns, rows, self._repeats))

    def _as_columns(self, batch: RecordBatch) -> dict[str, Column]:
        count = batch.num_rows

        def of_table(name: str) -> Column:
            found = batch.column(_NAMES.get(name, name))
            return lambda kind: found if found.type == kind else found.cast(kind)

        def repeated(value: object) -> Column:
            return lambda kind: pa.repeat(pa.scalar(value, kind), count)

        return {
            name: repeated(self._same[name]) if name in self._same else of_table(name)
            for name in self._schema.names
        }

    def _made(self, columns: Mapping[str, Column]) -> RecordBatch:
        return pa.RecordBatch.from_arrays(
            [columns[field.name](field.type) for field in self._schema], schema=self._schema
        )


def _maybe_packed(group: Any) -> Any:
    found = pc.and_(
        pc.equal(group.column(TYPE), CONTENT_TYPE), pc.equal(group.column(ENCODING), CONTENT_ENCODING)
    )
    return found.fill_null(False).combine_chunks() if group.num_rows else pa.array([], pa.bool_())


def last_offset(store: TableStore, file: TableFile, low: int, stop: int) -> int | None:
    """Return the last offset of a file from `low` on and before `stop`. Raises NoFile, StoreFails."""
    opened = store.opened(file)
    for number in reversed(range(opened.metadata.num_row_groups)):
        try:
            offsets = opened.read_row_group(number, columns=[OFFSET]).column(OFFSET)
        except (OSError, pa.ArrowException) as error:
            raise store.failure(file, error) from None
        found = pc.max(offsets.filter(pc.less(offsets, stop))).as_py()
        if found is not None:
            return int(found) if found >= low else None
    return None


__all__ = ["NoFile", "TableRows", "last_offset"]
