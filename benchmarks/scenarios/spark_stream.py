"""Spark on a super stream of two partitions: read into the noop sink, a message for each row, or rows packed
into messages.

And the work of a task by itself, without Spark, in this process, whose CPU is counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

from spark_sink.options import read_options, sink_options
from spark_sink.rows import source_schema
from spark_sink.sink.task import Plan, Task, write
from spark_sink.streams.readers import LogReader

from ..brokers import Broker
from ..client import Connection, Unexpected
from ..frames import message
from ..pump import READ_BYTES, Pace
from ..settled import Settled
from ..spark_session import spark
from ..streams import properties
from .scenario import CPU_US, Figure, Figures, Scenario, mqd_at_least
from .spark import BODY_BYTES, PARTITIONS, arrow_batches, count_of, frame, url

if TYPE_CHECKING:
    from types import TracebackType

ROWS = 2_000_000
PACKED_ROWS = 8_000_000
PART_ROWS = 400_000
#: Spark compiles code that runs often; the first read of a session says little.
WARM_ROWS = 400_000
BLOCK = 500
WINDOW = 20_000
#: RabbitMQ reports the number of messages of a stream late.
READABLE_S = 60


class Log:
    """A super stream, deleted afterwards."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.name = f"spark-{uuid4().hex[:8]}"
        self.partitions = [f"{self.name}-{number}" for number in range(PARTITIONS)]

    def __enter__(self) -> Log:
        kind = "x-super-stream" if self._broker.name.startswith("mqd") else "direct"
        with Connection(self._broker.port) as connection:
            connection.exchange(self.name, kind)
            for number, partition in enumerate(self.partitions):
                connection.queue(partition, durable=True, **{"x-queue-type": "stream"})
                connection.bind(partition, self.name, str(number), **{"x-stream-partition-order": number})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with Connection(self._broker.port) as connection:
            connection.sock.settimeout(60)
            connection.delete_exchange(self.name)
            for partition in self.partitions:
                connection.delete_queue(partition)

    def fill(self, rows: int) -> int:
        """A message for each row, confirmed; return how many there are."""
        each = rows // PARTITIONS // BLOCK * BLOCK
        for partition in self.partitions:
            block = message("", partition, b"x" * BODY_BYTES, properties(persistent=True)) * BLOCK
            with Connection(self._broker.port) as connection:
                connection.sock.settimeout(READABLE_S)
                connection.confirms()
                settled = Settled(each)
                sent = 0
                while settled.count < each:
                    while sent < each and sent - settled.count < WINDOW:
                        connection.sock.sendall(block)
                        sent += BLOCK
                    settled.feed(connection.sock.recv(READ_BYTES))
        self._broker.settle()
        return each * PARTITIONS

    def pack(self, rows: int) -> float:
        """Rows packed by Spark; return how many a second."""
        began = time.perf_counter()
        frame(rows).write.format("amqp").options(
            url=url(self._broker), stream=self.name, packing="arrow"
        ).mode("append").save()
        seconds = time.perf_counter() - began
        self._broker.settle()
        return rows / seconds

    @staticmethod
    def drop(rows: int) -> float:
        """The same rows to a writer that drops them: no sink can be faster than that."""
        began = time.perf_counter()
        frame(rows).write.format("drop").mode("append").save()
        return rows / (time.perf_counter() - began)

    def read(self, rows: int, schema: str | None = None) -> float:
        """Rows a second of a batch read. Raises Unexpected unless all rows were read."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        reader = spark().read.format("amqp")
        if schema is not None:
            reader = reader.schema(schema)
        seen = Observation()
        found = reader.options(url=url(self._broker), stream=self.name).load()
        began = time.perf_counter()
        found.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("append").save()
        seconds = time.perf_counter() - began
        if seen.get["rows"] != rows:
            raise Unexpected(f"{rows} rows were written, {seen.get['rows']} were read")
        return rows / seconds


class SparkStream(Scenario):
    name = "spark-stream"
    title = (
        "Spark: a super stream of two partitions, rows of 120 B, into the noop sink; written and read packed"
    )
    figures = (
        Figure("read", "rows/s, a message each, all columns", mqd_at_least(400_000)),
        Figure("narrow", "rows/s, of value and partition"),
        Figure("write_packed", "rows/s, written packed", mqd_at_least(1_500_000)),
        Figure("dropped", "rows/s, the same rows to a writer that drops them"),
        Figure("packed", "rows/s, packed, all columns", mqd_at_least(2_000_000)),
        Figure("packed_narrow", "rows/s, packed, of value and partition"),
    )
    quick = False
    NARROW = "value binary, partition int"

    def __init__(self) -> None:
        self._warm = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        if not self._warm:
            with Log(broker) as log:
                log.read(log.fill(WARM_ROWS))
                log.pack(WARM_ROWS)
                log.drop(WARM_ROWS)
            self._warm = True
        with Log(broker) as log:
            rows = log.fill(count_of(pace, ROWS))
            cpu = broker.cpu_seconds()
            read = log.read(rows)
            cpu = (broker.cpu_seconds() - cpu) / rows * 1e6
            narrow = log.read(rows, self.NARROW)
        with Log(broker) as log:
            rows = count_of(pace, PACKED_ROWS)
            written = log.pack(rows)
            dropped = log.drop(rows)
            packed = log.read(rows)
            packed_narrow = log.read(rows, self.NARROW)
        return {
            "read": read,
            "narrow": narrow,
            "write_packed": written,
            "dropped": dropped,
            "packed": packed,
            "packed_narrow": packed_narrow,
            CPU_US: cpu,
        }


class SparkStreamParts(Scenario):
    name = "spark-stream-parts"
    title = "Spark: the work of a task on a stream, without Spark, rows of 120 B"
    figures = (
        Figure("read_us", "µs CPU/row, read and decoded"),
        Figure("pack_us", "µs CPU/row, packed and sent"),
        Figure("unpack_us", "µs CPU/row, read and unpacked"),
    )
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        with Log(broker) as log:
            rows = log.fill(count_of(pace, PART_ROWS))
            read_us = self._read_us(broker, log, rows)
        with Log(broker) as log:
            rows = count_of(pace, PACKED_ROWS) // PARTITIONS
            options = sink_options({"url": url(broker), "stream": log.name, "packing": "arrow"})
            batches = arrow_batches(rows)
            rows = sum(batch.num_rows for batch in batches)
            cpu = time.process_time()
            plan = Plan(options, "confirm", None, 0, tuple(log.partitions))
            write(plan, Task(uuid4().hex, 0, 0), batches)
            pack_us = (time.process_time() - cpu) / rows * 1e6
            unpack_us = self._read_us(broker, log, rows)
        return {"read_us": read_us, "pack_us": pack_us, "unpack_us": unpack_us}

    def _read_us(self, broker: Broker, log: Log, rows: int) -> float:
        schema = source_schema(of_stream=True)
        reader = LogReader(read_options({"url": url(broker), "stream": log.name}), schema)
        pieces = reader.partitions()
        cpu = time.process_time()
        found = sum(batch.num_rows for piece in pieces for batch in reader.read(piece))
        cpu = time.process_time() - cpu
        if found != rows:
            raise Unexpected(f"{rows} rows were written, {found} were read")
        return cpu / rows * 1e6


SPARK_STREAM_SCENARIOS: tuple[Scenario, ...] = (SparkStream(), SparkStreamParts())
