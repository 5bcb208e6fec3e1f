"""A Spark driver that can be killed: it reads a stream into files.

`python -m tests.spark_sink.stream_driver DIRECTORY URL STREAM MESSAGES [OPTION=VALUE...]`, with this many
messages in a micro-batch, and more options of the source; ends when the stream is read to the end. Also for
spark-submit, which provides the session.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark_sink import session
from tests.spark_sink.chaos import Driver, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER_MESSAGES = 750
NOT_STARTED = "Python worker failed to connect back"
STARTS_MAX = 5


class StreamDriver(Driver):
    """A process that runs this module."""

    def __init__(
        self, directory: Path, url: str, stream: str, most: int = TRIGGER_MESSAGES, **options: str
    ) -> None:
        session.environment()
        self._commits = directory / "checkpoint" / "commits"
        self._output = directory / "driver.log"
        command = [sys.executable, "-m", "tests.spark_sink.stream_driver", str(directory), url, stream]
        command += [str(most), *[f"{name}={value}" for name, value in options.items()]]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=session.ROOT, stdout=output, stderr=subprocess.STDOUT
            )

    def reach(self, batch: int) -> None:
        """Wait until a batch is committed."""

        def reached() -> bool:
            assert self.process.poll() is None, self._output.read_text(errors="replace")[-3000:]
            return (self._commits / str(batch)).exists()

        until(f"batch {batch} is committed", reached)


def start(
    spark: SparkSession,
    directory: Path,
    url: str,
    stream: str,
    most: int = TRIGGER_MESSAGES,
    **options: str,
) -> StreamingQuery:
    rows = (
        spark.readStream.format("amqp")
        .options(url=url, stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger=most, **options)
        .load()
    )
    return (
        rows.selectExpr("cast(value as string) as value", "partition", "offset")
        .writeStream.format("json")
        .option("path", f"{directory}/out")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def run(
    spark: SparkSession,
    directory: Path,
    url: str,
    stream: str,
    most: int = TRIGGER_MESSAGES,
    **options: str,
) -> None:
    """Run to the end of the stream. Spark gives the reader's process 10 s to start, which may be too short on
    a busy machine.
    """
    from pyspark.errors import StreamingQueryException

    for attempt in range(STARTS_MAX):
        try:
            start(spark, directory, url, stream, most, **options).awaitTermination()
            return
        except StreamingQueryException as error:
            if attempt + 1 == STARTS_MAX or NOT_STARTED not in str(error):
                raise


def main() -> int:
    directory, url, stream, most, *options = sys.argv[1:]
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
    else:
        spark = session.start(Path(directory))
    run(spark, Path(directory), url, stream, int(most), **dict(each.split("=", 1) for each in options))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
