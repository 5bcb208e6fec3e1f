"""The node that leads a stream, and that tasks read from, dies during a query, while others publish."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark_sink.chaos import until
from tests.spark_sink.source_chaos import ThreeNodes
from tests.spark_sink.stream_chaos import STREAM, Publisher, fill, judge
from tests.spark_sink.test_streams import QUERY_S
from tests.spark_sink.test_worker_kill import readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rows that are there before the query begins. A small window makes its first task read for seconds.
ROWS = 20_000
PREFETCH = "5"


def wait(what: str, there: Callable[[], bool]) -> None:
    # A task is connected for moments only.
    deadline = time.monotonic() + QUERY_S
    while not there():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.005)


@pytest.mark.timeout(4 * QUERY_S)
def test_a_query_reads_a_stream_on_while_its_leader_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    with ThreeNodes() as nodes:
        fill(nodes.url, "stream", ROWS, **{"x-deduplication": True})
        publisher = Publisher(nodes.url, "stream", ROWS)
        publisher.start()
        rows = (
            spark.readStream.format("amqp")
            .options(url=nodes.url, stream=STREAM, startingOffsets="earliest", prefetch=PREFETCH)
            .load()
        )
        query = (
            rows.selectExpr("cast(value as string) as value", "partition", "offset")
            .writeStream.format("json")
            .option("path", f"{tmp_path}/out")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .start()
        )
        try:
            leader = nodes.leader(STREAM)
            wait("a task that reads from the leader", lambda: bool(readers(nodes.port(leader))))
            before = publisher.rows
            nodes.kill(leader)
            until("another leader", lambda: nodes.leader(STREAM) != leader)
            nodes.restart(leader)
            wait("rows of after the kill", lambda: publisher.rows > before)
            publisher.ends.set()
            publisher.join(QUERY_S)
            assert not publisher.is_alive()
            query.processAllAvailable()
        finally:
            query.stop()
    judge(tmp_path, "a stream, leader kill -9, three nodes", publisher.rows)
