"""A batch job for a cluster: `job.py URL QUEUE DELIVERY ROWS`. Rows come slowly, so that there is time to
kill something.
"""

from __future__ import annotations

import sys
import time

ROW_PAUSE_S = 0.005


def slowly(value: str) -> str:
    time.sleep(ROW_PAUSE_S)
    return value


def main() -> int:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    url, queue, delivery, rows = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    slow = udf(slowly, "string", useArrow=False)
    numbers = spark.range(0, int(rows), 1, 2).selectExpr("cast(id as string) as value")
    frame = numbers.select(slow("value").alias("value"))
    options = {"url": url, "routingKey": queue, "delivery": delivery}
    if delivery == "exactly-once":
        options |= {"txnAppId": queue, "txnVersion": "1"}
    frame.write.format("amqp").options(**options).mode("append").save()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
