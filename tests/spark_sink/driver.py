"""A Spark driver that can be killed: text files in, messages out, one file a micro-batch.

`python -m tests.spark_sink.driver DIRECTORY URL QUEUE DELIVERY`; ends when all files are written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark_sink import session


def main() -> int:
    directory, url, queue, delivery = sys.argv[1:]
    spark = session.start(Path(directory))
    lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{directory}/in")
    query = (
        lines.repartition(2)
        .writeStream.format("amqp")
        .options(url=url, routingKey=queue, delivery=delivery)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
