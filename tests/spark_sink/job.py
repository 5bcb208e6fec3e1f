"""A batch job for a cluster: `job.py URL QUEUE DELIVERY ROWS`. Rows come slowly, so that there is time to kill something."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

ROW_PAUSE_S = 0.005
ARROW_BATCH = 100


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(batch.num_rows * ROW_PAUSE_S)
        yield batch


def main() -> int:
    from pyspark.sql import SparkSession

    url, queue, delivery, rows = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_BATCH)
    frame = spark.range(0, int(rows), 1, 2).selectExpr("cast(id as string) as value")
    frame.mapInArrow(slowly, "value string").write.format("amqp").options(
        url=url, routingKey=queue, delivery=delivery
    ).mode("append").save()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
