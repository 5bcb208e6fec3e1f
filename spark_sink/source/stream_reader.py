"""The streaming source: at least once from a classic or quorum queue.

One reader lives beside the driver for as long as the query. It holds the only consumer, because a delivery
can be acked only where it arrived, and only this process learns from Spark that a micro-batch is done: it
acks a batch when Spark asks for the next one, which Spark does once the batch is in its commit log. The rows
are sent to the tasks as the received bytes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_sink.client.errors import AmqpError
from spark_sink.options import SourceOptions
from spark_sink.source.columns import Decoder, check_schema
from spark_sink.source.consumer import PREFETCH_MAX, Consumer, log
from spark_sink.source.deliveries import digest, fingerprint
from spark_sink.source.loss import DataLoss
from spark_sink.source.offsets import Position, position
from spark_sink.source.patience import Patience
from spark_sink.source.pieces import Deliveries, cut
from spark_sink.source.window import Batch

#: A micro-batch passes through the driver's memory.
BATCH_BYTES_MAX = 64 << 20
UNLIMITED = 1 << 62
#: A trigger that finds nothing waits so long for a first message; without this wait an idle query would ask
#: every 12 ms.
FIRST_MESSAGE_S = 0.05
#: A trigger that finds some waits for more while they keep coming.
QUIET_S = 0.02
FILL_MAX_S = 1.0
#: How often to ask the broker about expected messages.
LOOK_S = 0.2
#: `availableNow`: how long the queue may have messages without delivering them.
STALLED_AFTER_S = 60.0
#: Connections in a row that may be lost before a trigger makes progress.
ATTEMPTS_MAX = 10

__all__ = ["AmqpStreamReader", "DataLoss", "freeze_modules"]


def freeze_modules() -> None:
    """Spark's worker collects all garbage after each task, and looks through all modules for it: 15 to 30 ms,
    as long as decoding takes. Objects from before the first task's rows are not checked again.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Copies of it are pickled to the tasks, where only `read` is called; so nothing is opened here."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._consumer: Consumer | None = None
        #: `availableNow`: how many messages may still be planned.
        self._allowance: int | None = None
        #: Whether the checkpoint has been compared with the queue.
        self._resumed = False

    # Methods that Spark calls beside the driver.

    def initialOffset(self) -> dict[str, Any]:
        return Position(self._options.queue).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._allowance = self._opened(0).found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = position(start, self._options.queue)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else PREFETCH_MAX
        for attempt in range(ATTEMPTS_MAX):
            consumer = self._opened(done.batch)
            try:
                self._finish(consumer, done)
                batch = self._next(consumer, done.count, most)
                return start if batch is None else self._end(batch).json()
            except AmqpError:
                # Planned batches are still known after a lost connection, and the rest comes again.
                if consumer.alive or attempt + 1 == ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = position(start, self._options.queue), position(end, self._options.queue)
        if after.count == before.count:
            # Spark runs batches without data, too: the first one of a query, and some for its own state.
            return cut([], before.count)
        batch = None
        if self._consumer is not None:
            with self._consumer.changed:
                batch = self._consumer.window.batch(after.count)
        if batch is None:
            batch = self._replay(before, after)
        return cut(batch.runs, before.count)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this late, and never for the last batch; so `latestOffset` acks."""

    def stop(self) -> None:
        """Called after an error only. For the broker, the end of the process means the same."""
        if self._consumer is not None:
            self._consumer.close()

    # Methods that a task calls.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Deliveries)
        freeze_modules()
        run = partition.run
        if len(run):
            yield from Decoder(self._schema, self._options.queue).batches(run, partition.offset)

    # The parts of the above.

    def _opened(self, replay: int) -> Consumer:
        """The consumer, connected. A batch of `replay` messages fits into its window."""
        options = self._options
        usual = options.prefetch or 2 * options.max_messages_per_trigger
        prefetch = min(PREFETCH_MAX, max(usual, replay))
        if self._consumer is None:
            consumer = Consumer(options, f"spark source {options.queue}", prefetch)
            consumer.open()
            self._consumer = consumer
        else:
            self._consumer.widen(prefetch)
            self._consumer.ensure()
        return self._consumer

    def _patience(self) -> Patience:
        return Patience(self._options.redelivery_timeout_ms / 1_000)

    def _end(self, batch: Batch) -> Position:
        return Position(
            self._options.queue, batch.end, batch.count, batch.digest, batch.first, batch.identified
        )

    def _finish(self, consumer: Consumer, done: Position) -> None:
        """Ack the messages that Spark has committed: everything up to `done`."""
        if not self._resumed:
            self._resumed = True
            if done.batch and done.identified:
                self._skip_what_is_done(consumer, done)
        self._settle(consumer, done.count)
        if consumer.window.expecting:
            # There was a reconnect meanwhile: some messages of that batch may still be on their way back.
            patience = self._patience()
            self._buffer(consumer, PREFETCH_MAX, patience, lambda: not consumer.window.expecting)
            self._settle(consumer, done.count)
            with consumer.changed:
                consumer.window.expect_no_more()

    def _settle(self, consumer: Consumer, count: int) -> None:
        with consumer.changed:
            settlement = consumer.window.settle(count)
        consumer.settle(settlement)

    def _skip_what_is_done(self, consumer: Consumer, done: Position) -> None:
        """The driver may have died after Spark's commit and before the ack. Then the messages of that batch
        are at the head of the queue again. Only messages with ids are recognised: without ids, a new message
        could have the same content.
        """
        consumer.wait(lambda: consumer.window.buffered > 0, FIRST_MESSAGE_S)
        if not consumer.found or not consumer.window.redelivered(1):
            # The queue was empty, or begins with messages that were never delivered: there is nothing to wait
            # for.
            return
        begins = self._begins_with(consumer, done, self._patience())
        if not begins or not consumer.window.redelivered(done.batch):
            return
        log.warning("queue '%s': %d messages were committed and not acked", done.queue, done.batch)
        with consumer.changed:
            consumer.window.plan(done.count - done.batch, done.batch, UNLIMITED)
        self._spend(done.batch)

    def _buffer(
        self,
        consumer: Consumer,
        count: int,
        patience: Patience,
        enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until so many messages are buffered, or `enough`; false if the queue does not have them."""
        window = consumer.window
        seen = window.unacked
        while not consumer.wait(lambda: window.buffered >= count or enough(), LOOK_S):
            if not consumer.alive:
                raise consumer.failure()
            if consumer.full:
                # The received messages may still be enough.
                return window.buffered >= count or enough()
            ready, before, seen = consumer.ready(), seen, window.unacked
            if ready or seen != before:
                patience.sign()
            elif patience.over():
                return window.buffered >= count or enough()
        return True

    def _next(self, consumer: Consumer, count: int, limit: int) -> Batch | None:
        window = consumer.window
        if self._allowance is not None:
            limit = min(limit, self._allowance)
        if limit <= 0:
            return None
        consumer.wait(lambda: window.buffered > 0, FIRST_MESSAGE_S)
        if not window.buffered and self._allowance is not None:
            self._wait_for_the_rest(consumer)
        deadline = time.monotonic() + FILL_MAX_S
        while 0 < window.buffered < limit and window.buffered_bytes < BATCH_BYTES_MAX:
            seen = window.buffered
            consumer.wait(lambda seen=seen: window.buffered > seen, QUIET_S)  # type: ignore[misc]
            if window.buffered == seen or time.monotonic() > deadline:
                break
        with consumer.changed:
            batch = window.plan(count, limit, BATCH_BYTES_MAX)
            # The connection's thread may wait for free memory.
            consumer.changed.notify_all()
        if batch is not None:
            self._spend(batch.count)
        return batch

    def _wait_for_the_rest(self, consumer: Consumer) -> None:
        """`availableNow`: some messages that were in the queue have not come. Either they are on their way or
        they are gone.
        """
        window = consumer.window
        began = time.monotonic()
        patience = self._patience()
        while not consumer.wait(lambda: window.buffered > 0, LOOK_S):
            if not consumer.alive:
                raise consumer.failure()
            ready = consumer.ready()
            if ready:
                patience.sign()
            elif patience.over():
                log.info(
                    "queue '%s': %s messages expired or were taken", self._options.queue, self._allowance
                )
                self._allowance = 0
                return
            if ready and time.monotonic() - began > STALLED_AFTER_S:
                raise AmqpError(
                    f"queue '{self._options.queue}' holds {ready} messages and delivers none: "
                    "is another consumer active, or does x-single-active-consumer prefer another one?"
                )

    def _spend(self, count: int) -> None:
        if self._allowance is not None:
            self._allowance = max(0, self._allowance - count)

    def _replay(self, before: Position, after: Position) -> Batch:
        """Find the messages of a batch that was planned before a restart. Raises DataLoss."""
        for attempt in range(ATTEMPTS_MAX):
            consumer = self._opened(max(before.batch, after.batch))
            self._resumed = True
            # One limit for the whole replay: it includes the wait for messages that never come.
            patience = self._patience()
            try:
                same = self._begins_with(consumer, after, patience)
                if not same and self._begins_with(consumer, before, patience):
                    # Its acks were lost with the broker.
                    with consumer.changed:
                        consumer.window.plan(before.count - before.batch, before.batch, UNLIMITED)
                    self._spend(before.batch)
                    self._settle(consumer, before.count)
                    same = self._begins_with(consumer, after, patience)
                if not same and (found := self._found_behind(consumer, before, after, patience)):
                    return found
                break
            except AmqpError:
                if consumer.alive or attempt + 1 == ATTEMPTS_MAX:
                    raise
        with consumer.changed:
            if not same:
                self._lost(after.batch, consumer.window.buffered)
            batch = consumer.window.plan(before.count, after.batch, UNLIMITED)
            if batch is None:
                return Batch(after.count, [], "", False, None)
            # Fewer may be left of it.
            batch.end = after.count
        self._spend(batch.count)
        return batch

    def _found_behind(
        self, consumer: Consumer, before: Position, after: Position, patience: Patience
    ) -> Batch | None:
        """RabbitMQ's quorum queues put returned messages behind those that were returned before: search all
        of them.
        """
        window = consumer.window
        index = 0
        while True:
            with consumer.changed:
                start = window.find(after.first, after.digest, after.batch, index)
                if start is not None:
                    batch = window.extract(before.count, start, after.batch)
                    break
                seen = window.buffered
                index = max(index, seen - after.batch + 1)
            if self._buffer(consumer, seen + 1, patience):
                continue
            if not consumer.full or consumer.prefetch == PREFETCH_MAX:
                return None
            # The messages may be in the rest of the queue. Buffered messages come again, too.
            consumer.widen(PREFETCH_MAX)
            consumer.ensure()
            index, patience = 0, self._patience()
        self._spend(after.batch)
        return batch

    def _begins_with(self, consumer: Consumer, batch: Position, patience: Patience) -> bool:
        """Whether the queue has the messages of a batch, and has them first."""
        if not batch.batch or not self._buffer(consumer, 1, patience):
            return False
        with consumer.changed:
            if fingerprint(next(consumer.window.first(1)[0].contents())) != batch.first:
                return False
        if not self._buffer(consumer, batch.batch, patience):
            return False
        with consumer.changed:
            return digest(consumer.window.first(batch.batch)) == batch.digest

    def _lost(self, size: int, available: int) -> None:
        queue = self._options.queue
        text = (
            f"queue '{queue}': the batch to be repeated had {size} messages, and the queue "
            + (f"now holds {available}" if available < size else "now begins with others")
            + ". They expired, were purged, dead-lettered or taken by another consumer, or priorities have changed "
            "their order"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. To go on with what is there, set option failOnDataLoss=false")
        log.error("%s; going on (failOnDataLoss=false)", text)
