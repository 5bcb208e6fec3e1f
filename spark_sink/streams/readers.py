"""Streams and super streams, as Spark reads them: a partition is a task, or several, and offsets are Spark's
own.

The driver finds the end of each partition (`probe`) and the files of its table (`history`), and tasks read
ranges of offsets (`slices`). Reading removes nothing, so a repeated task or query can read any range again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
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

from spark_sink import option_values
from spark_sink.option_values import BadOption, ByPartition
from spark_sink.options import SourceOptions
from spark_sink.source.columns import check_schema
from spark_sink.source.consumer import log
from spark_sink.source.loss import DataLoss
from spark_sink.source.offsets import BadCheckpoint
from spark_sink.streams.fetch import lost
from spark_sink.streams.history import History
from spark_sink.streams.offsets import (
    RANGE_MAX,
    Offsets,
    Partition,
    Range,
    available,
    began_at,
    cut,
    from_json,
    limited,
    of_all,
    resolved,
    to_json,
)
from spark_sink.streams.probe import Bounds, Probe
from spark_sink.streams.slices import Slice, rows

#: A trigger that finds nothing waits so long before it returns; otherwise an idle query would ask all the
#: time.
IDLE_S = 0.05
#: The same if each check costs a connection and a consumer for each partition.
IDLE_LOOK_S = 1.0


def slices(probe: Probe, history: History, ranges: Sequence[Range]) -> list[InputPartition]:
    return [
        Slice(probe.queue(each.partition), each, number, history.files(each.partition, each.start, each.end))
        for number, each in enumerate(ranges)
    ]


def starts(
    options: SourceOptions, probe: Probe, history: History, usual: option_values.Offsets
) -> tuple[Offsets, Offsets]:
    """Where a read begins, as its options say, and where each partition ends now."""
    first, following = probe.bounds()
    history.check(first)
    option, moments = _moments(
        first,
        ("startingTimestamp", options.starting_timestamp),
        ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
    )
    if moments is not None:
        places = probe.at(moments, first, following, whole=False)
        late = [each for each, place in places.items() if place is None]
        if late and options.starting_offsets_by_timestamp_strategy == "error":
            time = datetime.fromtimestamp(moments[late[0]] / 1_000, UTC).isoformat()
            raise BadOption(
                f"option '{option}': {late[0]} has no message at or after {time}. To begin with its next message, set "
                "option startingOffsetsByTimestampStrategy=latest"
            )
        return {
            each: following[each] if place is None else place for each, place in places.items()
        }, following
    given = resolved("startingOffsets", options.starting_offsets or usual, first, following)
    for partition, offset in given.items():
        if offset < first[partition]:
            gaps = history.missing(partition, offset, first[partition])
            for low, stop in gaps:
                lost(options, probe.queue(partition), low, stop)
            if gaps and gaps[0][0] == offset:
                given[partition] = gaps[0][1]
    return given, following


def ends(options: SourceOptions, probe: Probe, start: Offsets, following: Offsets) -> Offsets:
    """Where a batch read ends, as its options say. Raises BadOption, AmqpError."""
    option, moments = _moments(
        start,
        ("endingTimestamp", options.ending_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
    )
    if moments is not None:
        first, _ = probe.bounds()
        places = probe.at(moments, first, following, whole=True)
        end = {each: following[each] if place is None else place for each, place in places.items()}
    elif options.ending_offsets is not None:
        option = "endingOffsets"
        end = resolved(option, options.ending_offsets, start, following)
    else:
        return following
    for each in start:
        if end[each] < start[each]:
            raise BadOption(
                f"option '{option}': {each} ends at {end[each]}, before it begins at {start[each]}"
            )
    return end


def _moments(
    known: Offsets, one: tuple[str, int | None], each: tuple[str, ByPartition | None]
) -> tuple[str, dict[Partition, int] | None]:
    """Return the times of the partitions, ms since 1970, and the option that says them; None if none does."""
    if one[1] is not None:
        return one[0], dict.fromkeys(known, one[1])
    return each[0], None if each[1] is None else of_all(each[0], each[1], known)


class LogReader(DataSourceReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, of_stream=True)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        probe = Probe(options, "spark read")
        history = History(options, probe)
        try:
            start, following = starts(options, probe, history, "earliest")
            end = ends(options, probe, start, following)
            longest = options.max_records_per_partition or RANGE_MAX
            return slices(probe, history, cut(start, end, options.min_partitions, longest))
        finally:
            probe.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, self._schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. Copies of it are pickled to the tasks, where only `read` is called; so nothing is
    opened here.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, of_stream=True)
        self._options = options
        self._schema = schema
        self._opened: Probe | None = None
        self._tables: History | None = None
        #: Where the query began; None if it goes on from a checkpoint.
        self._initial: Offsets | None = None
        #: `availableNow`: where to stop.
        self._target: Offsets | None = None
        #: Since when a partition ends before offsets that were read from it.
        self._short_since: dict[Partition, float] = {}
        #: Since when fewer messages than minOffsetsPerTrigger wait.
        self._few_since: float | None = None
        #: Where the partitions ended at the last look, for the figures of the query.
        self._latest: Offsets = {}
        #: Losses that were reported already.
        self._told: set[tuple[Partition, int]] = set()

    @property
    def _probe(self) -> Probe:
        if self._opened is None:
            options = self._options
            what = ", ".join(options.streams) or options.streams_pattern
            self._opened = Probe(options, f"spark source {what}")
        return self._opened

    @property
    def _history(self) -> History:
        if self._tables is None:
            self._tables = History(self._options, self._probe)
        return self._tables

    # Methods that Spark calls beside the driver.

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice, for the first plan and for its tasks; what came in between belongs to the query.
        if self._initial is None:
            self._initial = starts(self._options, self._probe, self._history, "latest")[0]
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._probe.bounds()[1]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = set(self._probe.partitions())
        before = self._checked(from_json(start), known)
        # A new partition is read from its beginning.
        begin = {partition: before.get(partition, 0) for partition in known}
        end = self._ends(begin)
        while self._target is not None and self._short_since and self._options.fail_on_data_loss:
            # This query ends with what there is, so it waits now for what was read before.
            time.sleep(IDLE_LOOK_S)
            end = self._ends(begin)
        self._latest = dict(end)
        begin = {partition: begin[partition] for partition in end}
        if self._target is not None:
            end = {
                partition: max(begin[partition], min(offset, self._target.get(partition, 0)))
                for partition, offset in end.items()
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = limited(begin, end, most)
        gone = before.keys() - end.keys()
        if not gone and (end == begin or self._waits_for_more(available(begin, self._latest))):
            if self._target is None:
                time.sleep(IDLE_S if self._probe.counts else IDLE_LOOK_S)
            return start
        self._few_since = None
        # A query that dies in its first micro-batch has nothing else in its checkpoint.
        return to_json(end, before if before == self._initial else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before = began_at(end)
        if before is None:
            before = from_json(start)
        after = self._checked(from_json(end), set(self._probe.partitions()))
        begin = {partition: before.get(partition, 0) for partition in after}
        options = self._options
        ranges = cut(begin, after, options.min_partitions, options.max_records_per_partition)
        return slices(self._probe, self._history, ranges) or [InputPartition(None)]

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint has it; the broker keeps nothing."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # Methods that a task calls.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, self._schema, partition)

    # The parts of the above.

    def _ends(self, begin: Offsets) -> Offsets:
        found = self._probe.behind(begin)
        self._gone({partition: begin[partition] for partition in begin.keys() - found.keys()})
        return {
            partition: self._end(partition, begin[partition], bounds) for partition, bounds in found.items()
        }

    def _waits_for_more(self, count: int) -> bool:
        """Whether so few messages wait for others. With `availableNow` nothing waits."""
        least = self._options.min_offsets_per_trigger
        if least is None or count >= least or self._target is not None:
            return False
        if self._few_since is None:
            self._few_since = time.monotonic()
        return (time.monotonic() - self._few_since) * 1_000 < self._options.max_trigger_delay

    def _checked(self, offsets: Offsets, known: Collection[Partition]) -> Offsets:
        """Return the offsets of a checkpoint, of partitions that exist. Raises BadCheckpoint, DataLoss."""
        for partition in offsets:
            if not self._probe.may_read(partition):
                raise BadCheckpoint(
                    f"the checkpoint has an offset of {partition}, which the options do not name: name it, or use a new "
                    "checkpointLocation for other streams"
                )
        self._gone({partition: offset for partition, offset in offsets.items() if partition not in known})
        return {partition: offset for partition, offset in offsets.items() if partition in known}

    def _gone(self, offsets: Offsets) -> None:
        """Report partitions that do not exist any more. Raises DataLoss."""
        for partition in sorted(offsets):
            text = (
                f"stream '{partition.stream}' no longer has partition {partition.number}, of which the checkpoint has "
                f"offset {offsets[partition]}"
            )
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{text}: use a new checkpointLocation for a stream that was declared again, or set option "
                    "failOnDataLoss=false to go on without it"
                )
            if (partition, -1) not in self._told:
                log.error("%s; going on without it (failOnDataLoss=false)", text)
                self._told.add((partition, -1))

    def _end(self, partition: Partition, begin: int, found: Bounds) -> int:
        """How far a partition can be read. Raises DataLoss."""
        queue = self._probe.queue(partition)
        if found.next >= begin:
            self._short_since.pop(partition, None)
            if found.first > begin and (partition, found.first) not in self._told:
                for low, stop in self._history.missing(partition, begin, min(found.first, found.next)):
                    lost(self._options, queue, low, stop)
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
