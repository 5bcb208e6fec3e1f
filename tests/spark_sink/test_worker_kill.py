"""A Python worker of Spark dies in the middle of a range that it reads from a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.reliability.node import Node
from tests.spark_sink import stream_driver
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_streams import QUERY_S, super_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 120_000
#: More than one batch, so that a slow look at the workers finds one that still reads.
BATCHES = 4
#: Workers are forks of this module. The process that plans next to the driver runs another module.
DAEMON = ["pyspark.daemon", "pyspark.worker"]


def workers() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            parent = process.parent()
            if parent is not None and all(each.cmdline()[-2:] == DAEMON for each in (process, parent)):
                yield process


def reads(worker: psutil.Process, port: int) -> bool:
    """Return whether a worker is connected to the broker."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(each.raddr and each.raddr.port == port for each in worker.net_connections("tcp"))
    return False


def readers(port: int) -> list[int]:
    return [worker.pid for worker in workers() if reads(worker, port)]


def killed_while_it_reads(worker: psutil.Process, port: int) -> bool:
    """Stop a worker, so that it does not end its range meanwhile, and kill -9 it if it reads."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        worker.suspend()
        if reads(worker, port):
            worker.kill()
            return True
        worker.resume()
    return False


def kill_one(port: int, out: Path) -> None:
    """Kill -9 a worker that reads, when the first rows are in a file."""
    deadline = time.monotonic() + QUERY_S
    while not any(path.stat().st_size for path in out.glob("part-*")):
        assert time.monotonic() < deadline, "nobody writes"
        time.sleep(0.005)
    while not any(killed_while_it_reads(worker, port) for worker in workers()):
        assert time.monotonic() < deadline, "nobody reads"
        time.sleep(0.005)


def failed_tasks(spark: SparkSession, query: StreamingQuery) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def test_a_worker_that_is_killed_in_a_read_loses_no_row_and_repeats_none(
    spark: SparkSession, node: Node, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    stream = super_stream(mqd_peer, name("super"), 2)
    rows = spark.range(0, ROWS, 1, 2).selectExpr(
        "cast(id as string) as value", "'k' || id % 50 as routing_key"
    )
    rows.write.format("amqp").options(url=mqd_url, stream=stream).mode("append").save()
    query = stream_driver.start(spark, tmp_path, mqd_url, stream, ROWS // BATCHES)
    try:
        kill_one(node.port, tmp_path / "out")
        assert query.awaitTermination(QUERY_S)
    finally:
        query.stop()
    assert failed_tasks(spark, query) == 1
    found = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in found) == list(range(ROWS))
    assert len({(row.partition, row.offset) for row in found}) == ROWS
    mqd_peer.channel.exchange_delete(stream)
