"""A Spark driver that can be killed: it reads a queue and writes to another one.

`python -m tests.spark_sink.source_driver DIRECTORY URL FROM TO DELIVERY STOP`; ends when the queue FROM is
read to the end, or, if STOP is not empty, when a file of that name exists. Also for spark-submit, which
provides the session.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIGGER_MESSAGES = 250
IDLE = "Waiting for data to arrive"
#: The file for --py-files.
ARCHIVE = "spark_sink.zip"
#: Enough that each executor has some.
TASKS = 8


def main() -> int:
    directory, url, source, sink, delivery, stop = sys.argv[1:]
    spark = started(Path(directory))
    rows = (
        spark.readStream.format("amqp")
        .options(url=url, queue=source, maxMessagesPerTrigger=TRIGGER_MESSAGES)
        .load()
        .select("value")
    )
    writer = (
        rows.writeStream.format("amqp")
        .options(url=url, routingKey=sink, delivery=delivery)
        .option("checkpointLocation", f"{directory}/checkpoint")
    )
    if stop:
        query = writer.start()
        # The last batch is acked when Spark asks for the next.
        while query.isActive and not (Path(stop).exists() and query.status["message"] == IDLE):
            time.sleep(0.2)
        if (failure := query.exception()) is not None:
            raise failure
        query.stop()
    else:
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    return 0


def started(directory: Path) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        from tests.spark_sink import session

        return session.start(directory)
    # Under spark-submit no module of the tests is there, and the connector comes from --py-files only.
    from pyspark.sql import SparkSession

    from spark_sink import AmqpDataSource

    submitted = SparkSession.builder.getOrCreate()
    submitted.dataSource.register(AmqpDataSource)
    found = submitted.sparkContext.parallelize(range(TASKS), TASKS).map(place).collect()
    if not all(ARCHIVE in each for each in found):
        raise RuntimeError(f"the connector came from elsewhere: {found}")
    return submitted


def place(_: int) -> str:
    """Return the place from which a worker has loaded the connector."""
    import spark_sink

    return str(spark_sink.__file__)


if __name__ == "__main__":
    sys.exit(main())
