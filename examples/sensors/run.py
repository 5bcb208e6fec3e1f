"""Sensor readings in a queue → averages of windows of time → a topic exchange, by Spark; and a picture of it.

    python examples/sensors/run.py [--available-now] [--url amqp://guest:guest@127.0.0.1:5672/]

It needs a running broker (`make run`) and what `pip install -e '.[spark,example]'` installs. A publisher in
this process sends readings into the queue `sensors.readings`. Spark averages them by sensor and window, and
publishes each average to the exchange `sensors`, routing key `average.<sensor>`, from where the queue
`sensors.averages` gets it. At the end the averages are compared with the readings, one by one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a tree that is not installed will do

from examples.sensors.names import AVERAGES, EXCHANGE, READINGS
from examples.sensors.readings import WINDOW_S, averages, differences, readings
from examples.spark import all_is_there, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SENSORS, SECONDS, PER_SECOND = 4, 120, 5
#: How late a reading may come, in the time of the readings.
LATE = "5 seconds"
END_S = 300.0


def pipeline(spark: SparkSession, url: str) -> DataFrame:
    from pyspark.sql import functions as f

    readings = (
        spark.readStream.format("amqp")
        .option("url", url)
        .option("queue", READINGS)
        .option("maxMessagesPerTrigger", 1_000)
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), "sensor string, at timestamp, value double").alias("r")
        )
        .select("r.*")
    )
    windows = readings.withWatermark("at", LATE).groupBy(f.window("at", f"{WINDOW_S} seconds"), "sensor")
    return windows.agg(f.avg("value").alias("average"), f.count("*").alias("count")).select(
        f.to_json(f.struct("sensor", f.col("window.start").alias("start"), "average", "count")).alias(
            "value"
        ),
        f.concat(f.lit("average."), f.col("sensor")).alias("routing_key"),
        f.lit("application/json").alias("content_type"),
    )


def write(averages: DataFrame, url: str, checkpoint: Path, available_now: bool) -> StreamingQuery:
    writer = (
        averages.writeStream.format("amqp")
        .outputMode("append")  # a window goes out once, when no more of it can come
        .option("url", url)
        .option("exchange", EXCHANGE)
        .option("checkpointLocation", str(checkpoint))
        .queryName("sensors")
    )
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="1 second")
    return writer.start()


def watch(query: StreamingQuery, until_rows: int) -> None:
    """Print one line for each micro-batch, until the query ends or has read so many messages."""
    read, shown = 0, -1
    deadline = time.monotonic() + END_S
    while True:
        active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > shown and (progress.numInputRows or progress.batchId == shown + 1):
                shown = progress.batchId
                read += progress.numInputRows
                rate = progress.processedRowsPerSecond or 0
                print(
                    f"batch {shown:3}: {progress.numInputRows:5} readings, {rate:7,.0f} a second", flush=True
                )
        if not active:
            if (failure := query.exception()) is not None:
                raise failure
            return
        if read >= until_rows and not query.status["isTriggerActive"]:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{read} of {until_rows} readings came within {END_S:.0f} s")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="amqp://guest:guest@127.0.0.1:5672/", help="the broker (%(default)s)"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="publish first, then read to the end and stop"
    )
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of readings (%(default)s)")
    parser.add_argument(
        "--picture", type=Path, default=Path("sensors.png"), help="where it goes (%(default)s)"
    )
    options = parser.parse_args()
    if not all_is_there():
        return 2

    # They need the packages that were checked above.
    from examples.sensors.broker import collect, publish, set_up
    from examples.sensors.picture import draw

    set_up(options.url)
    sent = list(readings(SENSORS, options.seconds, PER_SECOND))
    directory = Path(tempfile.mkdtemp(prefix="sensors-"))
    print(f"{len(sent)} readings go to the queue '{READINGS}'", flush=True)
    # Live, a reading is sent when it would be measured, ten times faster.
    pace = 0.0 if options.available_now else PER_SECOND * SENSORS * 10.0
    publisher = threading.Thread(target=publish, args=(options.url, sent, pace), daemon=True)
    if options.available_now:
        publisher.start()
        publisher.join()
    spark = session("sensors")
    try:
        query = write(
            pipeline(spark, options.url), options.url, directory / "checkpoint", options.available_now
        )
        if not options.available_now:
            publisher.start()
        watch(query, len(sent))
        due = averages(sent)
        found = collect(options.url, AVERAGES, len(due), END_S)
        query.stop()
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    wrong = differences(due, found)
    for line in wrong[:10]:
        print(f"WRONG {line}", file=sys.stderr)
    if wrong:
        return 1
    draw(options.picture, sent, found)
    count = sum(each.count for each in found)
    print(
        f"{len(found)} averages of {count} readings are in the queue '{AVERAGES}', and right; {options.picture}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
