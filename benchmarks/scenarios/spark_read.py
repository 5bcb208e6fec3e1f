"""Spark reads: from one queue into Spark's noop sink; and the speed of each part of that way by itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_sink.options import source_options
from spark_sink.rows import source_schema
from spark_sink.source.columns import Decoder
from spark_sink.source.pieces import Deliveries
from spark_sink.source.stream_reader import AmqpStreamReader

from ..brokers import Broker
from ..client import Connection, Unexpected
from ..frames import message
from ..pump import Pace
from ..spark_session import spark
from ..streams import properties
from .scenario import CPU_US, Figure, Figures, Scenario
from .spark import BODY_BYTES, count_of, url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS = 1_000_000
PART_ROWS = 200_000
#: Spark compiles code that runs often: it reads its first half million rows at half the rate of later ones.
WARM_ROWS = 500_000
TRIGGER_ROWS = 50_000
PARTITIONS = 2
BLOCK = 500
END_S = 300


class Filled:
    """A durable queue with so many persistent messages, deleted afterwards."""

    def __init__(self, broker: Broker, rows: int) -> None:
        self._broker, self._rows = broker, rows
        self.name = f"spark-{uuid4().hex[:8]}"

    def __enter__(self) -> str:
        block = message("", self.name, b"x" * BODY_BYTES, properties(persistent=True)) * BLOCK
        with Connection(self._broker.port) as connection:
            connection.sock.settimeout(END_S)
            connection.queue(self.name, durable=True)
            for _ in range(self._rows // BLOCK):
                connection.sock.sendall(block)
            deadline = time.perf_counter() + END_S
            while (queued := connection.queued(self.name)) < self._rows // BLOCK * BLOCK:
                if time.perf_counter() > deadline:
                    raise Unexpected(f"{self._rows} messages were to be queued, {queued} are")
                time.sleep(0.02)
        self._broker.settle()
        return self.name

    def __exit__(self, *_: object) -> None:
        with Connection(self._broker.port) as connection:
            connection.sock.settimeout(END_S)
            connection.delete_queue(self.name)


class SparkRead(Scenario):
    name = "spark-read"
    title = "Spark: 120 B messages of one durable queue into the noop sink, 50,000 a trigger"
    figures = (
        Figure("steady", "rows/s, from the second batch on"),
        Figure("whole", "rows/s, with the start of the query"),
        Figure("narrow", "rows/s, of column value alone"),
    )
    quick = False

    def __init__(self) -> None:
        self._warm = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        self._read(
            broker, 2 * TRIGGER_ROWS if self._warm else max(2 * TRIGGER_ROWS, count_of(pace, WARM_ROWS))
        )
        self._warm = True
        rows = max(4 * TRIGGER_ROWS, count_of(pace, ROWS))
        cpu = broker.cpu_seconds()
        figures = self._read(broker, rows)
        cpu = (broker.cpu_seconds() - cpu) / rows * 1e6
        narrow = self._read(broker, rows, "value binary")
        return {**figures, "narrow": narrow["steady"], CPU_US: cpu}

    def _read(self, broker: Broker, rows: int, schema: str | None = None) -> Figures:
        with Filled(broker, rows) as queue, tempfile.TemporaryDirectory() as directory:
            reader = spark().readStream.format("amqp")
            if schema is not None:
                reader = reader.schema(schema)
            frame = reader.options(url=url(broker), queue=queue, maxMessagesPerTrigger=TRIGGER_ROWS).load()
            began = time.perf_counter()
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", f"{directory}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(END_S):
                query.stop()
                raise Unexpected(f"{rows} rows were not read within {END_S} s")
            seconds = time.perf_counter() - began
            batches = [one for one in query.recentProgress if one.numInputRows]
        read = sum(one.numInputRows for one in batches)
        if read != rows:
            raise Unexpected(f"{rows} messages were queued, {read} rows were read")
        later = batches[1:]
        busy_s = sum(one.durationMs["triggerExecution"] for one in later) / 1_000
        return {"whole": rows / seconds, "steady": sum(one.numInputRows for one in later) / busy_s}


class SparkReadParts(Scenario):
    """The upper limits: the reader beside the driver, the decoding in a task, and Spark with Arrow batches
    that cost nothing.
    """

    name = "spark-read-parts"
    title = "Spark: the parts of reading by themselves, one core each"
    figures = (
        Figure("reader", "rows/s, reader without Spark"),
        Figure("reader_us", "µs CPU/row, reader"),
        Figure("decode_us", "µs CPU/row, decoding in a task"),
        Figure("spark", "rows/s, Spark with ready Arrow batches"),
    )
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        rows = max(TRIGGER_ROWS, count_of(pace, PART_ROWS))
        return {**self._reader(broker, rows), "spark": self._spark(max(TRIGGER_ROWS, count_of(pace, ROWS)))}

    def _reader(self, broker: Broker, rows: int) -> Figures:
        decode_s = 0.0
        with Filled(broker, rows) as queue:
            options = source_options(
                {"url": url(broker), "queue": queue, "maxMessagesPerTrigger": str(TRIGGER_ROWS)}
            )
            reader = AmqpStreamReader(options, source_schema())
            reader.prepareForTriggerAvailableNow()
            began, cpu = time.perf_counter(), time.process_time()
            start = reader.initialOffset()
            pieces: list[InputPartition] = []
            while (end := reader.latestOffset(start, ReadMaxRows(TRIGGER_ROWS))) != start:
                pieces += reader.partitions(start, end)
                start = end
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            reader.stop()
        if start["count"] != rows:
            raise Unexpected(f"{rows} messages were queued, {start['count']} rows were read")
        decode = time.process_time()
        found = 0
        for piece in pieces:
            assert isinstance(piece, Deliveries)
            decoder = Decoder(source_schema(), queue)
            found += sum(batch.num_rows for batch in decoder.batches(piece.run, piece.offset))
        decode_s = time.process_time() - decode
        if found != rows:
            raise Unexpected(f"{rows} messages became {found} rows")
        return {"reader": rows / seconds, "reader_us": cpu / rows * 1e6, "decode_us": decode_s / rows * 1e6}

    def _spark(self, rows: int) -> float:
        session = spark()
        session.dataSource.register(ReadySource)
        seconds = 0.0
        for count in (rows, rows):
            frame = session.read.format("amqp_ready").option("rows", count).load()
            began = time.perf_counter()
            frame.write.format("noop").mode("append").save()
            seconds = time.perf_counter() - began
        return rows / seconds


class ReadySource(DataSource):
    """Rows as the source gives them, without a broker and without decoding: measures the cost of Spark
    itself.
    """

    @classmethod
    def name(cls) -> str:
        return "amqp_ready"

    def schema(self) -> StructType:
        return source_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from pyspark.sql.pandas.types import to_arrow_schema

        size, schema = 10_000, to_arrow_schema(source_schema(), timezone="UTC")
        values = {"value": pa.array([b"x" * BODY_BYTES] * size, pa.binary())}
        ready = pa.RecordBatch.from_arrays(
            [values.get(field.name, pa.nulls(size, field.type)) for field in schema], schema=schema
        )
        for _ in range(self._rows // PARTITIONS // size):
            yield ready


SPARK_READ_SCENARIOS: tuple[Scenario, ...] = (SparkRead(), SparkReadParts())
