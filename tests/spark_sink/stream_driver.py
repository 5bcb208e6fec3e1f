"""A Spark driver that can be killed: from a stream into files.

`python -m tests.spark_sink.stream_driver DIRECTORY URL STREAM`; ends when the stream is read to the end.
"""

from __future__ import annotations

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


class StreamDriver(Driver):
    """A process of this module."""

    def __init__(self, directory: Path, url: str, stream: str) -> None:
        session.environment()
        self._commits = directory / "checkpoint" / "commits"
        self._output = directory / "driver.log"
        command = [sys.executable, "-m", "tests.spark_sink.stream_driver", str(directory), url, stream]
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


def start(spark: SparkSession, directory: Path, url: str, stream: str) -> StreamingQuery:
    rows = (
        spark.readStream.format("amqp")
        .options(url=url, stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger=TRIGGER_MESSAGES)
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


def main() -> int:
    directory, url, stream = sys.argv[1:]
    spark = session.start(Path(directory))
    start(spark, Path(directory), url, stream).awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
