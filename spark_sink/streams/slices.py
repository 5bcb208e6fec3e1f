"""What a task reads of a stream: a range of offsets of one partition, from files of its table where they have
them, else from the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

from spark_sink.options import SourceOptions
from spark_sink.rows import TAKEN
from spark_sink.source.columns import Decoder
from spark_sink.source.consumer import log
from spark_sink.source.stored import StoredRun
from spark_sink.source.stream_reader import freeze_modules
from spark_sink.streams.fetch import Fetch
from spark_sink.streams.offsets import Range
from spark_sink.streams.table_files import Part, TableFile, parts
from spark_sink.streams.table_rows import OFFSET, TableRows
from spark_sink.streams.table_store import NoFile, open_store


class Slice(InputPartition):
    """The range that one task reads."""

    def __init__(self, queue: str, wanted: Range, number: int, files: Sequence[TableFile] = ()) -> None:
        """`files` are those of the table that have any of its offsets."""
        super().__init__(number)
        self.queue = queue
        self.wanted = wanted
        self.number = number
        self.files = files


def rows(options: SourceOptions, schema: StructType, piece: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(piece, Slice):
        # Spark's own value, if there is nothing to read.
        return
    freeze_modules()
    for part in parts(piece.wanted.start, piece.wanted.end, piece.files):
        if part.file is None:
            yield from _of_broker(options, schema, piece, part.start, part.end)
        else:
            yield from _of_file(options, schema, piece, part)


def _of_broker(
    options: SourceOptions, schema: StructType, piece: Slice, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    decoder = Decoder(schema, piece.queue)
    stream, number = partition = piece.wanted.partition
    wanted = Range(partition, start, end)
    fetch = Fetch(options, piece.queue, wanted, piece.number, times=TAKEN in schema.names)
    for run in fetch:
        if isinstance(run, StoredRun):
            yield from decoder.stored_batches(run, stream, number)
        else:
            yield from decoder.log_batches(run, stream, number, fetch.timed)


def _of_file(
    options: SourceOptions, schema: StructType, piece: Slice, part: Part
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; if retention deletes it meanwhile, the broker says what has become of the
    others.
    """
    assert options.history is not None
    found = TableRows(open_store(options.history), schema, piece.queue, piece.wanted.partition, part)
    try:
        yield from found
    except NoFile as gone:
        log.warning(
            "stream '%s': file '%s' was deleted; reading offsets %d to %d from the broker",
            piece.queue,
            gone,
            found.next,
            part.end - 1,
        )
    else:
        return
    names = schema.names
    whole = schema if OFFSET in names else StructType([*schema.fields]).add(OFFSET, LongType())
    batches = _of_broker(options, whole, piece, found.next, part.end)
    for batch in without_first(batches, found.next, found.taken):
        yield batch if OFFSET in names else batch.select(names)


def without_first(batches: Iterator[pa.RecordBatch], offset: int, count: int) -> Iterator[pa.RecordBatch]:
    """Leave out so many rows of the message at an offset, which is the first one if it is there."""
    for batch in batches:
        here = min(count, pc.sum(pc.equal(batch.column(OFFSET), offset)).as_py() or 0) if count else 0
        count -= here
        if here < batch.num_rows:
            yield batch.slice(here)
