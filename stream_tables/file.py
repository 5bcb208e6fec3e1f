"""One file of a table: the messages of a range, from the segments on the disk or from their object, as
Parquet.

The file goes to the store while it is made, row group by row group, so the memory that it takes is that of a
row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from persistence.streams.batch import Batch
from persistence.streams.reading import SegmentReader
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.manifest import Manifest
from persistence.streams.remote.objects import Objects, put_whole
from persistence.streams.remote.reading import RemoteSegments
from persistence.streams.remote.table import Write
from stream_tables.ahead import Ahead
from stream_tables.read_only import ReadOnlyFiles
from stream_tables.rows import SCHEMA, Rows

#: Rows of a row group, at most.
GROUP_ROWS_MAX: Final = 122_880
#: Memory for parts of an object that is read.
CACHE_BYTES: Final = 16 << 20
COMPRESSION: Final = "zstd"


class TableFile:
    """The file of a range."""

    def __init__(self, objects: Objects, job: Write, group_bytes: int) -> None:
        """`group_bytes` is the number of bytes after which a row group ends."""
        self._objects = objects
        self._job = job
        self._group_bytes = group_bytes
        self.key = job.table.key(job.range.first, job.range.stop)

    def write(self) -> None:
        """Write it, unless the store has it. Raises Unavailable."""
        if self._objects.size(self.key) is None:
            parts = Ahead(self._parts())
            try:
                put_whole(self._objects, self.key, iter(parts))
            finally:
                parts.close()

    def _parts(self) -> Iterator[bytes]:
        sink = _Sink()
        range, table = self._job.range, self._job.table
        metadata = {
            "mqd.vhost": table.vhost,
            "mqd.stream": table.stream,
            "mqd.identity": table.identity,
            "mqd.first_offset": str(range.first),
            "mqd.next_offset": str(range.stop),
            "mqd.damaged": "true" if range.damaged else "false",
        }
        writer = pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"), SCHEMA.with_metadata(metadata), compression=COMPRESSION
        )
        for group in self._groups():
            writer.write_table(group, row_group_size=max(group.num_rows, 1))
            yield from sink.take()
        writer.close()
        yield from sink.take()

    def _groups(self) -> Iterator[Any]:
        range, rows = self._job.range, Rows()
        held: list[Any] = []
        count = size = 0
        for batch in self._batches():
            for part in rows.of(batch, range.first, range.stop):
                held.append(part)
                count += part.num_rows
                size += part.nbytes
                if count >= GROUP_ROWS_MAX or size >= self._group_bytes:
                    yield pa.Table.from_batches(held, SCHEMA)
                    held, count, size = [], 0, 0
        if held:
            yield pa.Table.from_batches(held, SCHEMA)

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches of the range: what the disk has whole is not fetched from the store. Raises
        Unavailable.
        """
        job, offset = self._job, self._job.range.first
        if job.segments:
            local = SegmentReader(ReadOnlyFiles(), Path(job.directory))
            local.segments = job.segments
            local.stop = job.segments[-1].stop
            for batch in _read(local, offset, job.range.stop, whole=True):
                yield batch
                offset = batch.stop
        if offset < job.range.stop:
            remote = RemoteSegments(self._objects, ObjectCache(CACHE_BYTES))
            remote.show(Manifest(job.table.identity, job.table.remote, (job.range,)))
            yield from _read(remote, offset, job.range.stop, whole=False)


def _read(reader: SegmentReader, offset: int, stop: int, *, whole: bool) -> Iterator[Batch]:
    """Yield the batches from an offset to another one; if `whole`, up to the first one that is lost."""
    place = None
    while offset < stop:
        try:
            read = reader.read(offset, place)
        except OSError:
            if whole:
                return
            raise
        if read.lost and whole:
            return
        for batch in read.batches:
            if batch.base >= stop or (whole and batch.base > offset):
                return
            yield batch
            offset = batch.stop
        if read.place.base < 0:
            return
        offset, place = read.place.offset, read.place


class _Sink:
    """The file that Arrow writes to, as bytes that were not taken yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def take(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return [b"".join(parts)] if parts else []

    def tell(self) -> int:
        return self._size

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


__all__ = ["TableFile"]
