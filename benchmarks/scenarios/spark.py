"""Spark writes: the connector's sink on mqd beside the best writer made of pika on RabbitMQ."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from spark_sink.options import sink_options
from spark_sink.sink.target import Mechanism
from spark_sink.sink.task import Plan, Task, write

from ..brokers import Broker
from ..client import HOST, Connection, Unexpected
from ..pump import Pace
from ..spark_session import spark
from .scenario import CPU_US, Figure, Figures, Scenario, at_least, mqd_at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 1_000_000
WARM_ROWS = 10_000
CLIENT_ROWS = 200_000
BODY_BYTES = 120
PARTITIONS = 2
ARROW_BATCH = 10_000
#: Least number of rows of a quick run; if there is a target, fewer rows would measure the cost of a Spark job
#: without rows.
LEAST_ROWS = 20_000
COMPARED_ROWS = 200_000
#: The two ways of delivery take turns, because a machine is not equally fast all the time.
TURNS = 3


def url(broker: Broker) -> str:
    return f"amqp://guest:guest@{HOST}:{broker.port}/"


def frame(rows: int) -> DataFrame:
    source = spark().range(0, rows, 1, PARTITIONS)
    return source.selectExpr(f"cast(rpad(cast(id as string), {BODY_BYTES}, 'x') as binary) as value")


def count_of(pace: Pace, rows: int) -> int:
    return max(LEAST_ROWS, int(rows * pace.share))


def written_to(broker: Broker, pace: Pace, rows: int) -> int:
    """RabbitMQ takes 10,000 to 20,000 rows a second: a fifth of the rows takes many seconds, too."""
    return count_of(pace, rows if broker.name == "mqd" else rows // 5)


def arrow_batches(rows: int) -> list[Any]:
    """Arrow batches in the form in which Spark gives them to a task."""
    values = [b"%d" % number + b"x" * (BODY_BYTES - len(str(number))) for number in range(ARROW_BATCH)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    return [batch] * (rows // ARROW_BATCH)


class Queue:
    """A durable queue for one run; with deduplication only if the scenario uses it and the broker has it."""

    def __init__(self, broker: Broker, delivery: str) -> None:
        self._broker = broker
        self._arguments = {"x-deduplication": True} if delivery == "exactly-once" else {}
        self.name = f"spark-{uuid4().hex[:8]}"

    def __enter__(self) -> str:
        with Connection(self._broker.port) as connection:
            connection.queue(self.name, durable=True, **self._arguments)
        return self.name

    def __exit__(self, *_: object) -> None:
        with Connection(self._broker.port) as connection:
            connection.sock.settimeout(60)
            connection.delete_queue(self.name)


def timed(broker: Broker, form: str, rows: int, **options: str) -> float:
    """Write that many rows to a new queue; return rows a second. Raises Unexpected if some are lost."""
    with Queue(broker, options.get("delivery", "confirm")) as queue:
        target = {"queue": queue} if form == "amqp_pika" else {"routingKey": queue}
        writer = frame(rows).write.format(form).options(url=url(broker), **target, **options).mode("append")
        began = time.perf_counter()
        writer.save()
        seconds = time.perf_counter() - began
        with Connection(broker.port) as connection:
            deadline = time.perf_counter() + 20
            while (queued := connection.queued(queue)) != rows:
                if time.perf_counter() > deadline:
                    raise Unexpected(f"{rows} rows were written, {queued} messages are there")
                time.sleep(0.05)
    return rows / seconds


class SparkWrite(Scenario):
    name = "spark-write"
    title = "Spark: rows of 120 B written, two partitions, durable, confirms; on RabbitMQ by pika"
    figures = (Figure("rate", "rows/s", at_least(1.5)),)
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        form = "amqp_pika" if broker.name.startswith("rabbitmq") else "amqp"
        timed(broker, form, WARM_ROWS)
        broker.settle()
        rows = written_to(broker, pace, ROWS)
        cpu = broker.cpu_seconds()
        rate = timed(broker, form, rows)
        return {"rate": rate, CPU_US: (broker.cpu_seconds() - cpu) / rows * 1e6}


def _delivery(delivery: str) -> dict[str, str]:
    if delivery != "exactly-once":
        return {"delivery": delivery}
    return {"delivery": delivery, "txnAppId": f"benchmark-{uuid4().hex[:8]}", "txnVersion": "1"}


class SparkExactlyOnce(Scenario):
    name = "spark-exactly-once"
    title = "Spark: what exactly-once costs of confirm's rate, on the same broker"
    figures = (
        Figure("cost", "% of confirm", mqd_at_most(25)),
        Figure("exactly_once", "rows/s"),
        Figure("confirm", "rows/s, confirm"),
    )
    quick = False

    def run(self, broker: Broker, pace: Pace) -> Figures:
        rows = max(COMPARED_ROWS if broker.name == "mqd" else 0, written_to(broker, pace, ROWS // 2))
        rates: dict[str, list[float]] = {"confirm": [], "exactly-once": []}
        for delivery in rates:
            timed(broker, "amqp", WARM_ROWS, **_delivery(delivery))
        for _ in range(TURNS):
            for delivery, found in rates.items():
                broker.settle()
                found.append(timed(broker, "amqp", rows, **_delivery(delivery)))
        confirm, exactly_once = median(rates["confirm"]), median(rates["exactly-once"])
        return {
            "cost": 100 * (1 - exactly_once / confirm),
            "exactly_once": exactly_once,
            "confirm": confirm,
        }


class SparkClient(Scenario):
    """A task's work without Spark around it: encoding, sending, confirms, in this process, whose CPU is
    counted.
    """

    name = "spark-client"
    title = "Spark: the client's own CPU for a row of 120 B, durable"
    figures = (
        Figure("confirm_us", "µs/row, confirm", mqd_at_most(5)),
        Figure("exactly_once_us", "µs/row, exactly-once"),
    )

    def run(self, broker: Broker, pace: Pace) -> Figures:
        rows = count_of(pace, CLIENT_ROWS)
        return {
            "confirm_us": self._cpu_us(broker, rows, "confirm"),
            "exactly_once_us": self._cpu_us(broker, rows, "broker" if broker.name == "mqd" else "ledger"),
        }

    def _cpu_us(self, broker: Broker, rows: int, mechanism: Mechanism) -> float:
        delivery = "exactly-once" if mechanism in ("broker", "ledger") else mechanism
        with Queue(broker, delivery) as queue:
            options = sink_options({"url": url(broker), "routingKey": queue, "delivery": delivery})
            batches = arrow_batches(rows)
            task = Task(uuid4().hex, 0, 0)
            cpu = time.process_time()
            write(Plan(options, mechanism, None), task, batches)
            return (time.process_time() - cpu) / (rows // ARROW_BATCH * ARROW_BATCH) * 1e6


SPARK_SCENARIOS: tuple[Scenario, ...] = (SparkWrite(), SparkExactlyOnce(), SparkClient())
