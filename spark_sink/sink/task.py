"""One Spark task: it sends its partition's batches with the mechanism that the driver has chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pika import spec
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_sink.arrow import nulls
from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, MessagesRefused
from spark_sink.client.publisher import Publisher, Terms, connect, returned_text
from spark_sink.client.window import Returned
from spark_sink.options import SinkOptions
from spark_sink.rows import SINK_COLUMNS
from spark_sink.sink.encoder import BadRow, Encoder, Identity
from spark_sink.sink.ledger import Ledger, Marker
from spark_sink.sink.packing import Packer
from spark_sink.sink.placing import Placer
from spark_sink.sink.target import Mechanism

#: A batch has fewer rows in one partition than this; so a sequence is the batch's number and the row's, side
#: by side.
ROWS_MAX_BITS = 32
DIGEST_BYTES = 16
PRECONDITION_FAILED = 406


@dataclass(frozen=True, slots=True)
class Plan:
    """The driver's decisions, sent to the tasks."""

    options: SinkOptions
    mechanism: Mechanism
    #: None: a streaming query, known by its id; the batch by its number.
    application: str | None
    version: int = 0
    #: Partitions of a super stream, among which the task distributes packed messages.
    partitions: tuple[str, ...] = ()


@dataclass
class Written(WriterCommitMessage):
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class Task:
    """Which part of which write this is."""

    application: str
    batch: int
    partition: int

    @property
    def producer(self) -> str:
        return f"{self.application}/{self.partition}"

    @property
    def where(self) -> str:
        return f"partition {self.partition}"

    @property
    def first_sequence(self) -> int:
        return (self.batch << ROWS_MAX_BITS) + 1

    @property
    def id_prefix(self) -> str:
        return f"{self.application}/{self.batch}/{self.partition}/"


def current_task(plan: Plan) -> Task:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not in a Spark task")
    if plan.application is not None:
        return Task(plan.application, plan.version, context.partitionId())
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise RuntimeError(
            "Spark told neither the query's id nor the batch's number: pyspark 4.2 or later is needed"
        )
    return Task(query, int(batch), context.partitionId())


def write(plan: Plan, task: Task, batches: Iterable[Any]) -> Written:
    """Raises BadRow, AmqpError."""
    options = plan.options
    placer = Placer(options, task.where)
    if options.packing == "arrow":
        rows = placer.checked(_checked(batches, task), plan.partitions)
        batches = Packer(options.pack_rows, plan.partitions, task.partition).packed(rows)
        if plan.partitions:
            plan = replace(plan, options=replace(options, exchange=""))
    else:
        batches = placer.placed(batches)
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(task.partition, 0)  # without a connection
    run = {"ledger": _LedgerRun, "broker": _BrokerRun, "tx": _TxRun}.get(plan.mechanism, _Run)
    return Written(task.partition, run(plan, task).write(_chain(first, filled)))


def _checked(batches: Iterable[Any], task: Task) -> Iterator[Any]:
    """The columns for the encoder, if each row is a message. Raises BadRow."""
    rows = 0
    for batch in batches:
        if missing := nulls(batch.column("value")):
            row = rows + missing[0]
            raise BadRow(
                f"column 'value' in row {row} of {task.where} is null: every message needs a body, if only an empty one",
                "value",
                row,
            )
        rows += batch.num_rows
        yield batch.select([name for name in batch.schema.names if name in SINK_COLUMNS])


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


class _Run:
    """delivery=confirm and none; the others differ in what they do around the rows."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.options = plan.options
        self.task = task

    def identity(self) -> Identity:
        return Identity(self.task.id_prefix.encode() if self.options.message_id == "auto" else None)

    def connect(self) -> Connection:
        options = self.options
        return connect(options.login, f"spark_sink {self.task.producer}", options.confirm_timeout_ms)

    def publisher(self, connection: Connection, confirms: bool) -> Publisher:
        options = self.options
        terms = Terms(options.max_in_flight, options.confirm_timeout_ms, confirms)
        return Publisher(options.login, f"spark_sink {self.task.producer}", terms, connection)

    def encoder(self, connection: Connection, identity: Identity) -> Encoder:
        return Encoder(self.options, identity, self.task.where, connection.frame_max)

    def write(self, batches: Iterable[Any]) -> int:
        """Return how many rows there were."""
        connection = self.connect()
        publisher = self.publisher(connection, self.options.delivery != "none")
        try:
            rows = send_all(publisher, self.encoder(connection, self.identity()), batches)
            publisher.flush()
        finally:
            publisher.close()
        return rows


def send_all(publisher: Publisher, encoder: Encoder, batches: Iterable[Any]) -> int:
    rows = 0
    for batch in batches:
        messages = encoder.encode(batch, rows)
        publisher.send(messages, rows)
        rows += len(messages)
    return rows


def superseded(run: _Run, marker: Marker, encoder: Encoder, batches: Iterable[Any]) -> int:
    """The producer has written a later batch already. Raises AmqpError."""
    if run.options.txn_app_id is not None:
        return _drain(encoder, batches)[0]  # a version that is not above the last was written before
    raise AmqpError(
        f"the ledger of {run.task.producer} is at batch {marker.batch}, and this is batch {run.task.batch}: "
        "was an older checkpoint put back? A query that starts over needs a new checkpoint directory"
    )


def check_replay(task: Task, marker: Marker, rows: int, digest: str) -> None:
    """Raises AmqpError if a batch that was written before has other rows now."""
    if (rows, digest) != (marker.rows, marker.digest):
        raise AmqpError(
            f"the replay of batch {marker.batch} gives other rows in {task.producer} than were written "
            f"({rows}, then {marker.rows}): exactly-once needs a plan that gives the same rows in the same order. "
            "Sort within partitions, keep the number of partitions, and use no random or time functions"
        )


class _TxRun(_Run):
    """All rows of the attempt become visible at once, or none."""

    def write(self, batches: Iterable[Any]) -> int:
        with self.connect() as connection:
            connection.call(spec.Tx.Select(), spec.Tx.SelectOk)
            publisher = self.publisher(connection, confirms=False)
            rows = send_all(publisher, self.encoder(connection, self.identity()), batches)
            connection.call(
                spec.Tx.Commit(), spec.Tx.CommitOk, timeout_s=self.options.confirm_timeout_ms / 1000
            )
            publisher.check_refused()
        return rows


class _LedgerRun(_Run):
    """Rows and marker in one transaction."""

    def write(self, batches: Iterable[Any]) -> int:
        options, task = self.options, self.task
        with self.connect() as connection:
            ledger = Ledger(connection, task.producer, options.ledger_expires_ms)
            ledger.lock(options.confirm_timeout_ms)
            ledger.declare()
            marker = ledger.read()
            encoder = self.encoder(connection, self.identity())
            if marker is None or marker.batch < task.batch:
                return self._first_time(connection, ledger, encoder, batches)
            if marker.batch > task.batch:
                return superseded(self, marker, encoder, batches)
            return self._again(connection, ledger, encoder, marker, batches)

    def _first_time(
        self, connection: Connection, ledger: Ledger, encoder: Encoder, batches: Iterable[Any]
    ) -> int:
        ledger.begin()
        publisher = self.publisher(connection, confirms=False)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        rows = 0
        for batch in batches:
            messages = encoder.encode(batch, rows)
            digest.update(b"".join(messages))
            publisher.send(messages, rows)
            rows += len(messages)
        marker = Marker(self.task.batch, rows, digest.hexdigest())
        self._commit(connection, ledger, marker, publisher)
        return rows

    def _commit(self, connection: Connection, ledger: Ledger, marker: Marker, publisher: Publisher) -> None:
        """Raises Refused when some committed rows reached no queue; the marker then says which."""
        timeout_ms = self.options.confirm_timeout_ms
        try:
            ledger.commit(marker, timeout_ms)
        except ChannelClosed as error:
            if error.code != PRECONDITION_FAILED:
                raise
            # RabbitMQ's "partial tx completion": queues with x-overflow=reject-publish were full. The marker
            # was sent.
            connection.open_channel()
            ledger.begin()
            ledger.commit(replace(marker, refused=None), timeout_ms)
            raise MessagesRefused(f"a queue rejected rows of the transaction (x-overflow): {error}") from None
        if returned := publisher.window.returned:
            ledger.commit(replace(marker, refused=self._rows_of(returned)), timeout_ms)
            raise MessagesRefused(returned_text(returned))

    def _rows_of(self, returned: list[Returned]) -> tuple[int, ...] | None:
        prefix = self.task.id_prefix
        rows = set()
        for each in returned:
            if each.message_id is None or not each.message_id.startswith(prefix):
                return None
            rows.add(int(each.message_id.removeprefix(prefix)))
        return tuple(sorted(rows))

    def _again(
        self,
        connection: Connection,
        ledger: Ledger,
        encoder: Encoder,
        marker: Marker,
        batches: Iterable[Any],
    ) -> int:
        """The batch was committed before; only rows that reached no queue are left to send."""
        if marker.refused is None:
            raise MessagesRefused(
                f"an attempt before this one has committed batch {marker.batch} of {self.task.producer}, and the broker "
                "took only a part of it, which cannot be told from the rest. Make room in the queue, see what is missing, "
                f"and delete the queue '{ledger.queue}' to write the whole partition again"
            )
        wanted = set(marker.refused)
        rows, digest, refused = _drain(encoder, batches, wanted)
        check_replay(self.task, marker, rows, digest)
        if refused:
            ledger.begin()
            publisher = self.publisher(connection, confirms=False)
            publisher.send(refused, 0)
            self._commit(connection, ledger, replace(marker, refused=()), publisher)
        return rows


def _drain(
    encoder: Encoder, batches: Iterable[Any], wanted: Iterable[int] = ()
) -> tuple[int, str, list[bytes]]:
    """Return how many rows there are, their digest, and the messages of those that are wanted."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    rows, kept, numbers = 0, [], sorted(wanted)
    for batch in batches:
        messages = encoder.encode(batch, rows)
        digest.update(b"".join(messages))
        kept += [messages[number - rows] for number in numbers if rows <= number < rows + len(messages)]
        rows += len(messages)
    return rows, digest.hexdigest(), kept


class _BrokerRun(_Run):
    """The queues drop duplicates: every row has a producer and an increasing sequence number.

    A refused number comes too late as soon as the queue has taken a later one. So an attempt that sees a
    refusal records these rows, and the next attempt sends them with an id of their own. An attempt that is
    done records the digest of its rows, because the queues would drop other rows of the same batch, too.
    """

    def write(self, batches: Iterable[Any]) -> int:
        task = self.task
        connection = self.connect()
        ledger = Ledger(connection, task.producer, self.options.ledger_expires_ms)
        refused: frozenset[int] | None = None
        try:
            ledger.declare()
            marker = ledger.read()
            if marker is not None and marker.batch > task.batch:
                return superseded(self, marker, self.encoder(connection, self.identity()), batches)
            before = marker if marker is not None and marker.batch == task.batch else None
            sent_anew = frozenset(before.refused or ()) if before is not None else frozenset()
            identity = replace(
                self.identity(),
                producer=task.producer.encode(),
                sequence=task.first_sequence,
                refused=sent_anew,
            )
            encoder = self.encoder(connection, identity)
            if before is not None and before.digest:
                rows, digest, _ = _drain(encoder, batches)
                check_replay(task, before, rows, digest)
                return rows
            publisher = self.publisher(connection, confirms=True)
            try:
                return self._send(publisher, encoder, batches, ledger, sorted(sent_anew))
            except MessagesRefused:
                publisher.settle()
                refused = sent_anew | self._rows_refused(publisher)
                raise
            finally:
                connection = publisher.connection
        finally:
            connection.close()
            if refused is not None:
                self._write_down(refused)

    def _send(
        self,
        publisher: Publisher,
        encoder: Encoder,
        batches: Iterable[Any],
        ledger: Ledger,
        sent_anew: Sequence[int],
    ) -> int:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        rows = 0
        for batch in batches:
            messages = encoder.encode(batch, rows)
            digest.update(b"".join(messages))
            publisher.send(messages, rows)
            rows += len(messages)
        publisher.flush()
        publisher.send([ledger.message(Marker(self.task.batch, rows, digest.hexdigest(), sent_anew))], rows)
        publisher.flush()
        ledger.forget(publisher.connection)
        return rows

    def _rows_refused(self, publisher: Publisher) -> set[int]:
        rows = set(publisher.nacked_rows())
        for each in publisher.window.returned:
            number = (
                each.headers.get("x-sequence")
                or str(each.headers.get("x-deduplication-id")).rpartition("/")[2]
            )
            rows.add(int(number) - self.task.first_sequence)
        return rows

    def _write_down(self, refused: frozenset[int]) -> None:
        with self.connect() as connection:
            ledger = Ledger(connection, self.task.producer, self.options.ledger_expires_ms)
            ledger.declare()
            ledger.read()
            ledger.begin()
            marker = Marker(self.task.batch, 0, "", sorted(refused))
            ledger.commit(marker, self.options.confirm_timeout_ms)
