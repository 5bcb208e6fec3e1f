"""The query: orders → revenue of each product and minute → a table that is kept up to date; and the table,
read.

As a program it is the driver that is killed: `python -m examples.shop.query URL CHECKPOINT MESSAGES`, with so
many messages in a micro-batch at most.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.shop.names import ORDERS, REVENUE
from examples.shop.orders import WINDOW_S, Total
from examples.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Later orders are not counted any more, and Spark forgets the sums of their minute.
LATE = "2 minutes"
APPLICATION = "shop"


def revenue(spark: SparkSession, url: str, most: int) -> DataFrame:
    from pyspark.sql import functions as f

    orders = (
        spark.readStream.format("amqp")
        .options(url=url, stream=ORDERS, startingOffsets="earliest", maxOffsetsPerTrigger=most)
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), "product string, at timestamp, cents long").alias("o")
        )
        .select("o.*")
    )
    windows = orders.withWatermark("at", LATE).groupBy(f.window("at", f"{WINDOW_S} seconds"), "product")
    return windows.agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))


def start(
    spark: SparkSession, url: str, checkpoint: Path, most: int, *, available_now: bool
) -> StreamingQuery:
    """Mode `update`: rows that have changed in a micro-batch go to the table, under their keys."""

    def write(changed: DataFrame, batch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        written = Observation()
        rows = changed.select(
            f.concat_ws("/", "product", f.date_format("window.start", "yyyy-MM-dd'T'HH:mm")).alias(
                "routing_key"
            ),
            f.to_json(f.struct("product", f.col("window.start").alias("start"), "orders", "cents")).alias(
                "value"
            ),
            f.lit("application/json").alias("content_type"),
        ).observe(written, f.count(f.lit(1)).alias("rows"))
        # A repeated batch has to have the same rows in the same order, so that the broker recognises the rows
        # that it has.
        (
            rows.repartition(1)
            .sortWithinPartitions("routing_key")
            .write.format("amqp")
            .options(url=url, stream=REVENUE, delivery="exactly-once", txnAppId=APPLICATION, txnVersion=batch)
            .mode("append")
            .save()
        )
        print(f"batch {batch:3}: {written.get['rows']:3} rows of the table are new or others", flush=True)

    writer = (
        revenue(spark, url, most)
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .queryName(APPLICATION)
    )
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def messages(spark: SparkSession, url: str) -> DataFrame:
    """All remaining updates of the table: compaction leaves the last one of each key, and some others."""
    return spark.read.format("amqp").options(url=url, stream=REVENUE).load()


def table(updates: DataFrame) -> DataFrame:
    """Read the table: all updates of a key are in one partition, so the highest offset is the valid one."""
    from pyspark.sql import functions as f

    latest = updates.groupBy("routing_key").agg(f.max_by("value", "offset").alias("value"))
    schema = "product string, start timestamp, orders long, cents long"
    return latest.select(f.from_json(f.col("value").cast("string"), schema).alias("r")).select("r.*")


def rows(found: DataFrame) -> list[Total]:
    from pyspark.sql import functions as f

    collected = found.select(
        "product", f.unix_timestamp("start").alias("start_s"), "orders", "cents"
    ).collect()
    return [Total(row.product, row.start_s, row.orders, row.cents) for row in collected]


def main() -> int:
    url, checkpoint, most = sys.argv[1:]
    spark = session(APPLICATION)
    start(spark, url, Path(checkpoint), int(most), available_now=False).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
