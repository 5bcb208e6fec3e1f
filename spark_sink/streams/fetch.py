"""A range of offsets of one partition, as a task reads it: from a consumer of its own, which begins at the
first offset.

An ack only makes room for more messages. So a lost connection does no harm: the next one begins where this
one was.
"""

from __future__ import annotations

import socket
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from pika import spec

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, ConnectionLost, LoginRefused
from spark_sink.client.frames import method_frame
from spark_sink.client.login import Host
from spark_sink.options import SourceOptions
from spark_sink.source.consumer import (
    CONSUMER_TAG,
    HOLD_BACK_S,
    RECONNECT_MAX_S,
    RECONNECT_PAUSE_MAX_S,
    RECONNECT_PAUSE_S,
    log,
)
from spark_sink.source.deliveries import Run
from spark_sink.source.intake import RunIntake
from spark_sink.source.loss import DataLoss
from spark_sink.source.patience import Patience
from spark_sink.source.stored import StoredRun, batches_of
from spark_sink.streams.offsets import Range
from spark_sink.streams.placed import OFFSET, offset_at
from spark_sink.streams.probe import CAPABILITY, TIMES_CAPABILITY, Bounds, NotKnown, count_from, refusal

PREFETCH = 20_000
#: Maximum number of bytes received and not yet decoded; beyond it the socket is not read.
BUFFER_BYTES_MAX = 64 << 20
#: The argument of a consumer that wants to know when the broker took each message.
TIMES = "x-stream-timestamps"
#: The argument of a consumer that wants batches as they are stored, and the capability of brokers that have
#: it.
BATCHES, BATCHES_CAPABILITY = "x-stream-batches", "stream_batches"
#: The option prefetch is a number of messages. Batches of fast publishers have more than this many; how many
#: batches a task gets ahead, at most and at least.
MESSAGES_PER_BATCH, BATCHES_AHEAD_MAX, BATCHES_AHEAD_MIN = 500, 40, 2
#: A batch costs a task as much as so many messages. If the first batches have fewer than that on average, the
#: task asks for messages.
MESSAGES_PER_BATCH_MIN, BATCHES_LOOKED_AT = 24, 20
#: For that, so many bytes count as a message more.
LARGE_BYTES = 4096
#: Of one Arrow batch.
ROWS_PER_BATCH, BATCH_BYTES_MAX = 20_000, 16 << 20
#: How often to ask the broker about expected messages.
LOOK_S = 0.2


def nearest_host(hosts: Sequence[Host], number: int) -> int:
    """Return the host to begin with: one on this machine if there is any; tasks begin with different ones."""
    local = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    near = [index for index, host in enumerate(hosts) if host.name in local] or range(len(hosts))
    return near[number % len(near)]


class _Intake(RunIntake):
    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.runs: deque[Run] = deque()
        self._bytes = 0

    def arrived(self, runs: list[Run]) -> None:
        with self.changed:
            self.runs.extend(runs)
            self._bytes += sum(len(run.data) for run in runs)
            self.changed.notify_all()
            if self._bytes > BUFFER_BYTES_MAX:
                self.changed.wait_for(lambda: self._bytes <= BUFFER_BYTES_MAX, HOLD_BACK_S)

    def ended(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def pop(self) -> Run | None:
        """Return received messages, as many as make a batch."""
        with self.changed:
            taken: list[Run] = []
            count = size = 0
            while self.runs and (not taken or (count < ROWS_PER_BATCH and size < BATCH_BYTES_MAX)):
                run = self.runs.popleft()
                taken.append(run)
                count += len(run)
                size += len(run.data)
            self._bytes -= size
            self.changed.notify_all()
        return Run.joined(taken) if taken else None


class Fetch:
    """Iterates over the runs of a range, in order. Raises AmqpError, DataLoss."""

    def __init__(
        self, options: SourceOptions, queue: str, wanted: Range, number: int, *, times: bool = False
    ) -> None:
        """`times`: ask the broker when it took each message."""
        self._options = options
        self._times = times
        #: Whether the latest run has times, if the broker was asked and knows them.
        self.timed = False
        #: Whether the latest consumer gets batches.
        self._of_batches = False
        #: Whether batches are worth it, and how many have come, with how many messages.
        self._likes_batches = True
        self._batches = self._messages = 0
        self._queue = queue
        self._wanted = wanted
        #: The next offset to come.
        self._next = wanted.start
        self._host = nearest_host(options.login.hosts, number)
        self._connection: Connection | None = None
        self._intake = _Intake()

    def __iter__(self) -> Iterator[Run | StoredRun]:
        try:
            while self._next < self._wanted.end:
                try:
                    self._consume()
                    yield from self._received()
                    self._close()
                except ChannelClosed as error:
                    if error.code:
                        raise refusal(error, self._queue) from None
                    self._lost(error)
                except LoginRefused:
                    raise
                except (ConnectionLost, NotKnown) as error:
                    self._lost(error)
        finally:
            self._close()

    def _consume(self) -> None:
        connection = self._connected()
        self._intake = _Intake()
        connection.set_intake(self._intake)
        self._of_batches = self._likes_batches and bool(connection.capabilities.get(BATCHES_CAPABILITY))
        prefetch = self._options.prefetch or PREFETCH
        if self._of_batches:
            prefetch = max(min(prefetch // MESSAGES_PER_BATCH, BATCHES_AHEAD_MAX), BATCHES_AHEAD_MIN)
        connection.call(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
        arguments: dict[str, object] = {OFFSET: self._next}
        self.timed = self._times and bool(connection.capabilities.get(TIMES_CAPABILITY))
        if self._of_batches:
            arguments[BATCHES] = True
        elif self.timed:
            arguments[TIMES] = True
        consume = spec.Basic.Consume(
            queue=self._queue, consumer_tag=CONSUMER_TAG, no_ack=False, arguments=arguments
        )
        connection.call(consume, spec.Basic.ConsumeOk)

    def _connected(self) -> Connection:
        deadline = time.monotonic() + RECONNECT_MAX_S
        pause_s = RECONNECT_PAUSE_S
        while True:
            try:
                self._connection = Connection.open(
                    self._options.login, f"spark read {self._queue}", self._host
                )
                return self._connection
            except LoginRefused:
                raise
            except AmqpError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_PAUSE_MAX_S)

    def _received(self) -> Iterator[Run | StoredRun]:
        """Yield the consumer's messages until the range or the connection ends."""
        connection, intake = self._connection, self._intake
        assert connection is not None
        patience = Patience(self._options.redelivery_timeout_ms / 1_000)
        while self._next < self._wanted.end:
            run = intake.pop()
            if run is None:
                with intake.changed:
                    came = intake.changed.wait_for(lambda: intake.runs or connection.error, LOOK_S)
                if not came and self._is_over(connection, patience):
                    return
                if connection.error is not None and not intake.runs:
                    raise connection.error
                continue
            patience.sign()
            if connection.error is None:
                connection.send(method_frame(1, spec.Basic.Ack(run.tag(-1), multiple=True)))
            if self._of_batches:
                yield from self._of_stored(run)
                if not self._likes_batches:
                    return
            elif (found := self._of_range(run)) is not None:
                yield found

    def _of_stored(self, deliveries: Run) -> Iterator[StoredRun]:
        """Yield the messages of batches that are in the range, and note the progress. Raises BadMessage."""
        group: list[StoredRun] = []
        rows = messages = 0
        for batch in batches_of(deliveries):
            group.append(batch)
            rows += len(batch)
            messages += len(batch)
            if rows >= ROWS_PER_BATCH:
                yield from self._within(StoredRun.joined(group))
                group, rows = [], 0
        if group:
            yield from self._within(StoredRun.joined(group))
        self._judge(len(deliveries), messages, len(deliveries.data))

    def _within(self, run: StoredRun) -> Iterator[StoredRun]:
        """Cut off messages before and after the range, and note the progress."""
        if run.base > self._next == self._wanted.start:
            self._begins_late(run.base)
        before = bisect_left(run.offsets, self._next)
        if before:
            # The consumer has begun with the batch that has the offset.
            run = run.split(before)[1]
        self._next = max(self._next, run.stop)
        if run.stop > self._wanted.end:
            run = run.split(bisect_left(run.offsets, self._wanted.end))[0]
        if len(run):
            yield run

    def _judge(self, batches: int, messages: int, size: int) -> None:
        """Decide after the first batches whether to go on with them. Large messages are batches of one, and
        no reason against them.
        """
        if self._batches < BATCHES_LOOKED_AT:
            self._batches += batches
            self._messages += messages + size // LARGE_BYTES
            if self._batches >= BATCHES_LOOKED_AT:
                self._likes_batches = self._messages >= MESSAGES_PER_BATCH_MIN * self._batches

    def _of_range(self, run: Run) -> Run | None:
        """Cut off messages before and after the range, and note the progress."""
        first, last = offset_at(run, 0), offset_at(run, len(run) - 1)
        if first < self._next:
            # RabbitMQ begins with the chunk that has the offset.
            before = bisect_left(range(len(run)), self._next, key=lambda index: offset_at(run, index))
            if before == len(run):
                return None
            run = run.split(before)[1]
            first = offset_at(run, 0)
        if first > self._next and self._next == self._wanted.start:
            self._begins_late(first)
        self._next = last + 1
        if last >= self._wanted.end:
            count = bisect_left(range(len(run)), self._wanted.end, key=lambda index: offset_at(run, index))
            if not count:
                return None
            run = run.split(count)[0]
        return run

    def _begins_late(self, found: int) -> None:
        """The first message has a later offset: either compaction left a gap, or retention deleted messages,
        which are lost for the query.
        """
        first = found
        if self._connection is not None and self._connection.capabilities.get(CAPABILITY):
            with Connection.open(self._options.login, f"spark read {self._queue}", self._host) as other:
                bounds = count_from(other, self._queue, self._wanted.start)
            if not isinstance(bounds, Bounds):
                return
            first = bounds.first
        gone = min(first, self._wanted.end)
        if gone > self._wanted.start:
            lost(self._options, self._queue, self._wanted.start, gone)

    def _is_over(self, connection: Connection, patience: Patience) -> bool:
        """After a while without messages: return whether no more will come. Raises AmqpError, DataLoss."""
        end = self._wanted.end
        if not connection.capabilities.get(CAPABILITY):
            connection.call(spec.Queue.Declare(queue=self._queue, passive=True), spec.Queue.DeclareOk)
            over = patience.over()
        else:
            with Connection.open(self._options.login, f"spark read {self._queue}", self._host) as other:
                found = count_from(other, self._queue, self._next)
            if isinstance(found, Bounds) and found.first > self._next:
                gone = min(found.first, end)
                lost(self._options, self._queue, self._next, gone)
                self._next = gone
                return gone == end
            if (found.next if isinstance(found, Bounds) else self._next + found) < end:
                # This node is behind the one that reported the end.
                patience.sign()
                return False
            over = patience.over()
        if over:
            log.warning(
                "stream '%s' has no more messages at the offsets %d to %d", self._queue, self._next, end - 1
            )
            self._next = end
        return over

    def _lost(self, error: AmqpError) -> None:
        log.warning("stream '%s': reconnecting at offset %d: %s", self._queue, self._next, error)
        self._close()
        hosts = self._options.login.hosts
        self._host = (self._host + 1) % len(hosts)
        time.sleep(RECONNECT_PAUSE_S)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def lost(options: SourceOptions, queue: str, low: int, stop: int) -> None:
    """Report lost messages. Raises DataLoss unless the query should continue."""
    text = (
        f"stream '{queue}' has no offsets {low} to {stop - 1} any more, and they were to be read: "
        "retention was faster (x-max-age, x-max-length-bytes)"
    )
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. To go on with offset {stop}, set option failOnDataLoss=false")
    log.error("%s; going on with offset %d (failOnDataLoss=false)", text, stop)
