"""Batch reads: the messages that are in the queue when the read begins.

Spark does not tell a batch reader what happens to the rows, so there are two honest ways: `ack=none` reads
the messages and leaves them in the queue; `ack=onRead` removes them once they are read, whatever happens to
the rows then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_sink.options import SourceOptions
from spark_sink.source.columns import Decoder, check_schema
from spark_sink.source.consumer import PREFETCH_MAX, Consumer, QueueRefused
from spark_sink.source.deliveries import Run
from spark_sink.source.patience import Patience

#: How long the queue may have messages without delivering them.
STALLED_AFTER_S = 60.0
#: Rows and bytes of one Arrow batch.
ROWS_PER_BATCH = 10_000
PIECE_BYTES_MAX = 16 << 20


class Everything(InputPartition):
    """There is only one: two consumers of a queue would share its messages, and miss its end."""

    def __init__(self, count: int) -> None:
        super().__init__(0)
        self.count = count


class AmqpReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Check the queue on the driver, so that errors are raised before any task runs."""
        consumer = Consumer(self._options, "spark read", 1)
        try:
            found = consumer.look()
        finally:
            consumer.close()
        most = self._options.max_messages
        return [Everything(found if most is None else min(found, most))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Everything)
        return self._read(partition.count)

    def _read(self, count: int) -> Iterator[pa.RecordBatch]:
        keep = self._options.ack == "none"
        if not count:
            return
        # Messages are not acked in this mode, so all of them have to fit into the window: 0 means an
        # unlimited window.
        prefetch = (0 if count > PREFETCH_MAX else count) if keep else min(PREFETCH_MAX, 4 * ROWS_PER_BATCH)
        options = replace(self._options, exclusive=False) if keep else self._options
        consumer = Consumer(options, f"spark read {options.queue}", prefetch)
        decoder = Decoder(self._schema, options.queue)
        read = 0
        try:
            consumer.open()
            if options.exclusive:
                # Another evaluation of the same frame may have taken the messages.
                count = min(count, consumer.found)
            while read < count:
                if not self._more(consumer, min(ROWS_PER_BATCH, count - read)):
                    break
                with consumer.changed:
                    batch = consumer.window.plan(read, min(ROWS_PER_BATCH, count - read), PIECE_BYTES_MAX)
                    consumer.changed.notify_all()
                if batch is None:
                    break
                yield from decoder.batches(Run.joined(batch.runs), read)
                read = batch.end
                if keep:
                    with consumer.changed:
                        consumer.window.forget()
                else:
                    with consumer.changed:
                        settlement = consumer.window.settle(read)
                    consumer.settle(settlement)
        finally:
            consumer.close()

    def _more(self, consumer: Consumer, wanted: int) -> bool:
        """Wait for messages; false when there are no more."""
        window = consumer.window
        began = time.monotonic()
        patience = Patience(self._options.redelivery_timeout_ms / 1_000)
        empty = 0
        while not consumer.wait(lambda: window.buffered >= wanted, 0.1):
            if not consumer.alive:
                raise consumer.failure()
            if time.monotonic() - consumer.arrived_at > 0.1 and window.buffered:
                return True
            ready, consumers = consumer.counts()
            if ready or window.buffered:
                empty = 0
                patience.sign()
            else:
                empty += 1
                # Another consumer, if there is one, has taken the missing messages; otherwise they may be on
                # their way.
                if (consumers > 1 and empty > 1) or patience.over():
                    return False
            if ready and time.monotonic() - began > STALLED_AFTER_S and not window.buffered:
                raise QueueRefused(
                    f"queue '{self._options.queue}' holds {ready} messages and delivers none: "
                    "is another consumer active?"
                )
        return True
