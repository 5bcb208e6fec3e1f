"""Streams and super streams, as Spark reads them: a partition is a task, or several, and offsets are Spark's
own.

The driver finds the end of each partition (`probe`), and tasks read ranges of offsets (`fetch`). Reading
removes nothing, so a repeated task or query can read any range again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_sink.options import BadOption, SourceOptions, StartingOffsets
from spark_sink.source.columns import Decoder, check_schema
from spark_sink.source.consumer import log
from spark_sink.source.loss import DataLoss
from spark_sink.source.stream_reader import freeze_modules
from spark_sink.streams.fetch import Fetch, lost
from spark_sink.streams.offsets import RANGE_MAX, Offsets, Range, cut, from_json, limited, resolved, to_json
from spark_sink.streams.probe import Bounds, Probe

#: A trigger that finds nothing waits so long before it returns; otherwise an idle query would ask all the
#: time.
IDLE_S = 0.05
#: The same if each check costs a connection and a consumer for each partition.
IDLE_LOOK_S = 1.0


class Slice(InputPartition):
    """The range that one task reads."""

    def __init__(self, queue: str, wanted: Range, number: int) -> None:
        super().__init__(number)
        self.queue = queue
        self.wanted = wanted
        self.number = number


def slices(partitions: Mapping[int, str], ranges: Sequence[Range]) -> list[InputPartition]:
    return [Slice(partitions[each.partition], each, number) for number, each in enumerate(ranges)]


def rows(options: SourceOptions, schema: StructType, piece: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(piece, Slice):
        # Spark's own value, if there is nothing to read.
        return
    freeze_modules()
    decoder = Decoder(schema, piece.queue)
    for run in Fetch(options, piece.queue, piece.wanted, piece.number):
        yield from decoder.log_batches(run, piece.wanted.partition)


def starts(options: SourceOptions, probe: Probe, usual: StartingOffsets) -> tuple[Offsets, Offsets]:
    """Where a read begins, as its options say, and where each partition ends now."""
    first, following = probe.bounds()
    if options.starting_timestamp is not None:
        return probe.at(options.starting_timestamp), following
    given = resolved("startingOffsets", options.starting_offsets or usual, first, following)
    for partition, offset in given.items():
        if offset < first[partition]:
            lost(options, probe.partitions()[partition], offset, first[partition])
            given[partition] = first[partition]
    return given, following


class LogReader(DataSourceReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, partitions=True)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        assert options.stream is not None
        probe = Probe(options.login, options.stream, "spark read")
        try:
            start, following = starts(options, probe, "earliest")
            end = following
            if options.ending_offsets is not None:
                end = resolved("endingOffsets", options.ending_offsets, start, following)
            for partition in start:
                if end[partition] < start[partition] and options.ending_offsets is not None:
                    raise BadOption(
                        f"option 'endingOffsets': partition {partition} ends at {end[partition]}, before it begins at "
                        f"{start[partition]}"
                    )
            return slices(probe.partitions(), cut(start, end, options.min_partitions, RANGE_MAX))
        finally:
            probe.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, self._schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. Copies of it are pickled to the tasks, where only `read` is called; so nothing is
    opened here.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, partitions=True)
        assert options.stream is not None
        self._options = options
        self._stream: str = options.stream
        self._schema = schema
        self._opened: Probe | None = None
        #: `availableNow`: where to stop.
        self._target: Offsets | None = None
        #: Since when a partition ends before offsets that were read from it.
        self._short_since: dict[int, float] = {}
        #: Losses that were reported already.
        self._told: set[tuple[int, int]] = set()

    @property
    def _probe(self) -> Probe:
        if self._opened is None:
            self._opened = Probe(self._options.login, self._stream, f"spark source {self._stream}")
        return self._opened

    # Methods that Spark calls beside the driver.

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._stream, starts(self._options, self._probe, "latest")[0])

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._probe.bounds()[1]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._with_new(from_json(start, self._stream))
        end = {
            partition: self._end(partition, begin[partition], found) for partition, found in self._look(begin)
        }
        while self._target is not None and self._short_since and self._options.fail_on_data_loss:
            # This query ends with what there is, so it waits now for what was read before.
            time.sleep(IDLE_LOOK_S)
            end |= {
                partition: self._end(partition, begin[partition], found)
                for partition, found in self._look(begin)
            }
        if self._target is not None:
            end = {
                partition: max(begin[partition], min(offset, self._target.get(partition, 0)))
                for partition, offset in end.items()
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = limited(begin, end, most)
        found = to_json(self._stream, end)
        if all(end[partition] == begin[partition] for partition in end):
            if self._target is None:
                time.sleep(IDLE_S if self._probe.counts else IDLE_LOOK_S)
            return start
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = from_json(start, self._stream), from_json(end, self._stream)
        partitions = self._probe.partitions()
        self._check_there(after)
        begin = {partition: before.get(partition, 0) for partition in after}
        ranges = cut(begin, after, self._options.min_partitions)
        return slices(partitions, ranges) or [InputPartition(None)]

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint has it; the broker keeps nothing."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # Methods that a task calls.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, self._schema, partition)

    # The parts of the above.

    def _look(self, begin: Offsets) -> list[tuple[int, Bounds]]:
        return list(self._probe.behind(begin).items())

    def _check_there(self, offsets: Offsets) -> None:
        gone = sorted(offsets.keys() - self._probe.partitions().keys())
        if gone:
            raise DataLoss(
                f"stream '{self._stream}' no longer has partition {gone[0]}, of which the checkpoint has "
                f"offset {offsets[gone[0]]}: use a new checkpointLocation for a stream that was declared again"
            )

    def _with_new(self, offsets: Offsets) -> Offsets:
        """A new partition is read from its beginning."""
        self._check_there(offsets)
        return {partition: offsets.get(partition, 0) for partition in self._probe.partitions()}

    def _end(self, partition: int, begin: int, found: Bounds) -> int:
        """How far a partition can be read. Raises DataLoss."""
        queue = self._probe.partitions()[partition]
        if found.next >= begin:
            self._short_since.pop(partition, None)
            if found.first > begin and (partition, found.first) not in self._told:
                lost(self._options, queue, begin, min(found.first, found.next))
                self._told.add((partition, found.first))
            return found.next
        # A node of a cluster may be behind for a while; otherwise the stream is not the one that was read.
        since = self._short_since.setdefault(partition, time.monotonic())
        if (time.monotonic() - since) * 1_000 > self._options.redelivery_timeout_ms:
            text = (
                f"stream '{queue}' ends at offset {found.next}, but the query has reached {begin} before: the "
                "stream was deleted and declared again, or has lost messages"
            )
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{text}. Use a new checkpointLocation, or set option failOnDataLoss=false to wait"
                )
            if (partition, begin) not in self._told:
                log.error("%s; waiting for offset %d (failOnDataLoss=false)", text, begin)
                self._told.add((partition, begin))
        return begin
