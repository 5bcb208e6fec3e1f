"""Streaming from queues, against mqd and RabbitMQ: all rows, once, and no message left unacked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from conformance_tests.ports import free_port
from spark_sink.options import source_options
from spark_sink.source.consumer import Consumer, QueueRefused
from tests.reliability.node import Node, wait_until
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY_S = 150
#: Spark gives the reader's process 10 s to start and has no option for this. On a machine with little CPU
#: that may be too short, and then nothing of the query has begun.
NOT_STARTED = "Python worker failed to connect back"
STARTS_MAX = 5


class Reading:
    """One query after another on a checkpoint, and the rows of their batches."""

    def __init__(self, spark: SparkSession, directory: Path, url: str, queue: str, **options: Any) -> None:
        self.spark = spark
        self.checkpoint = directory / "checkpoint"
        self.options = {"url": url, "queue": queue, **options}
        self.batches: dict[int, list[bytes]] = {}
        self.fail_in: int | None = None
        #: Calls to make in the middle of a batch.
        self.before: dict[int, Callable[[], None]] = {}

    def start(self, available_now: bool = True, **options: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("amqp").options(**{**self.options, **options}).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(self, **options: Any) -> StreamingQuery:
        for attempt in count(1):
            query = self.start(**options)
            try:
                assert query.awaitTermination(QUERY_S)
                return query
            except StreamingQueryException as error:
                if attempt == STARTS_MAX or NOT_STARTED not in str(error):
                    raise
        raise AssertionError("unreachable")

    def _take(self, frame: DataFrame, batch: int) -> None:
        if batch in self.before:
            self.before.pop(batch)()
        rows = frame.select("offset", "value").orderBy("offset").collect()
        if self.fail_in == batch:
            self.fail_in = None
            raise RuntimeError("this batch was to fail")
        self.batches[batch] = [bytes(row.value) for row in rows]
        first = sum(len(self.batches[number]) for number in range(batch))
        assert [row.offset for row in rows] == list(range(first, first + len(rows)))

    @property
    def rows(self) -> list[bytes]:
        return [body for batch in sorted(self.batches) for body in self.batches[batch]]

    def offset(self, batch: int) -> dict[str, Any]:
        offset: dict[str, Any] = json.loads(
            (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
        )
        return offset

    def settled(self, query: StreamingQuery, batch: int) -> bool:
        """Return whether the batch is in the commit log and Spark has asked for more since, which acks it."""
        committed = (self.checkpoint / "commits" / str(batch)).exists()
        return committed and query.status["message"] == "Waiting for data to arrive"


def numbered(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


@pytest.fixture(params=["classic", "quorum"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_available_now_reads_to_the_end_and_leaves_nothing_unacked(
    spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path, kind: str
) -> None:
    queue = peer.queue(name(), x_queue_type=kind)
    sent = numbered(500)
    peer.publish(queue, sent, delivery_mode=2)
    wait_until("all are queued", lambda: peer.count(queue) == len(sent))
    reading = Reading(spark, tmp_path, url, queue, maxMessagesPerTrigger=200)
    reading.run()
    assert reading.rows == sent
    assert [len(reading.batches[batch]) for batch in range(3)] == [200, 200, 100]
    # Unacked messages would come back now that the consumer is gone.
    assert peer.take(queue) == []
    peer.publish(queue, [b"more"], delivery_mode=2)
    wait_until("it is queued", lambda: peer.count(queue) == 1)
    reading.run()
    assert reading.rows == [*sent, b"more"] and peer.take(queue) == []


def test_a_query_that_runs_on(spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path) -> None:
    queue = peer.queue(name())
    reading = Reading(spark, tmp_path, url, queue)
    query = reading.start(available_now=False)
    try:
        for prefix in ("a", "b", "c"):
            before = len(reading.rows)
            peer.publish(queue, numbered(50, prefix))
            wait_until("the rows came", lambda before=before: len(reading.rows) == before + 50, QUERY_S)
        wait_until("they are acked", lambda: reading.settled(query, max(reading.batches)), QUERY_S)
    finally:
        query.stop()
    assert reading.rows == [*numbered(50, "a"), *numbered(50, "b"), *numbered(50, "c")]
    # Spark asked for more after the last batch, which acked that batch.
    assert peer.take(queue) == []


def test_a_failed_batch_is_read_again_with_the_same_messages(
    spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path, kind: str
) -> None:
    queue = peer.queue(name(), x_queue_type=kind)
    sent = numbered(500)
    peer.publish(queue, sent, delivery_mode=2)
    wait_until("all are queued", lambda: peer.count(queue) == len(sent))
    reading = Reading(spark, tmp_path, url, queue, maxMessagesPerTrigger=200)
    reading.fail_in = 1
    with pytest.raises(Exception, match="this batch was to fail"):
        reading.run()
    planned = reading.offset(1)
    assert (planned["count"], planned["batch"], sorted(reading.batches)) == (400, 200, [0])
    # A new limit does not change a batch that is repeated.
    reading.run(maxMessagesPerTrigger=150)
    assert reading.offset(1) == planned
    assert reading.rows == sent and len(reading.batches[1]) == 200
    assert peer.take(queue) == []


def test_a_first_batch_without_rows_may_fail(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    """A query that begins on an empty queue, and fails before its first batch is committed, goes on."""
    queue = mqd_peer.queue(name())
    reading = Reading(spark, tmp_path, mqd_url, queue)
    reading.fail_in = 0
    query = reading.start(available_now=False)
    with pytest.raises(StreamingQueryException, match="this batch was to fail"):
        query.awaitTermination(QUERY_S)
    assert not (reading.checkpoint / "commits" / "0").exists()
    sent = numbered(20)
    mqd_peer.publish(queue, sent, delivery_mode=2)
    wait_until("all are queued", lambda: mqd_peer.count(queue) == len(sent))
    reading.run()
    assert reading.batches[0] == [] and reading.rows == sent
    assert mqd_peer.take(queue) == []


def test_messages_that_were_committed_and_not_acked_are_recognised_by_their_ids(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    """The driver dies between Spark's commit and the ack."""
    queue = mqd_peer.queue(name())
    sent = numbered(40)
    for number, body in enumerate(sent):
        mqd_peer.publish(queue, [body], message_id=str(number))
    reading = Reading(spark, tmp_path, mqd_url, queue, maxMessagesPerTrigger=20)
    reading.fail_in = 1
    with pytest.raises(Exception, match="this batch was to fail"):
        reading.run()
    # As if batch 1 were complete: it is in the commit log, and its messages are in the queue, flagged.
    (reading.checkpoint / "commits" / "1").write_bytes((reading.checkpoint / "commits" / "0").read_bytes())
    reading.batches[1] = sent[20:]
    reading.run()
    assert reading.rows == sent and mqd_peer.take(queue) == []


def test_a_replay_that_finds_messages_missing_fails(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    queue = mqd_peer.queue(name())
    mqd_peer.publish(queue, numbered(30))
    limits = {"maxMessagesPerTrigger": 20, "redeliveryTimeoutMs": 2_000}
    reading = Reading(spark, tmp_path, mqd_url, queue, **limits)
    reading.fail_in = 0
    with pytest.raises(Exception, match="this batch was to fail"):
        reading.run()
    wait_until("all are back", lambda: mqd_peer.count(queue) == 30)
    assert mqd_peer.channel.basic_get(queue, auto_ack=True)[2] == b"0"
    with pytest.raises(Exception, match="the queue now begins with others.*failOnDataLoss=false"):
        reading.run()
    reading.run(failOnDataLoss=False)
    assert reading.rows == numbered(30)[1:] and mqd_peer.take(queue) == []


def test_a_checkpoint_of_another_queue(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    queue, other = mqd_peer.queue(name()), mqd_peer.queue(name("other"))
    mqd_peer.publish(queue, [b"x"])
    reading = Reading(spark, tmp_path, mqd_url, queue)
    reading.run()
    with pytest.raises(Exception, match=f"belongs to queue '{queue}'.*'{other}'"):
        reading.run(queue=other)


def test_a_missing_queue(spark: SparkSession, url: str, name: Name, tmp_path: Path) -> None:
    queue = name("missing")
    with pytest.raises(Exception, match=f"queue '{queue}' is missing"):
        Reading(spark, tmp_path, url, queue).run()


def test_a_queue_with_another_consumer(
    url: str, peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.source.consumer.TAKEOVER_MAX_S", 0.5)
    queue = peer.queue(name())
    tag = peer.channel.basic_consume(queue, lambda *_: None)
    consumer = Consumer(source_options({"url": url, "queue": queue}), "test", 10)
    with pytest.raises(QueueRefused, match="has other consumers.*exclusive=false"):
        consumer.open()
    # The reader waits for a consumer that goes in time, such as that of a killed driver.
    monkeypatch.setattr("spark_sink.source.consumer.TAKEOVER_MAX_S", 30.0)
    waiting = threading.Thread(target=consumer.open)
    waiting.start()
    peer.channel.basic_cancel(tag)
    waiting.join(QUERY_S)
    assert consumer.alive
    consumer.close()


def test_a_stream_queue(spark: SparkSession, rabbitmq: int, name: Name, tmp_path: Path) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{rabbitmq}/"
    with Peer(url) as peer:
        queue = peer.queue(name("stream"), x_queue_type="stream")
        peer.publish(queue, [b"x"])
        with pytest.raises(Exception, match=f"queue '{queue}' is a stream"):
            Reading(spark, tmp_path, url, queue).run()


def test_a_broker_that_is_killed_comes_back(spark: SparkSession, name: Name, tmp_path: Path) -> None:
    """The query continues by itself: no message is read twice, none is missing, none stays unacked."""
    nobody, port = free_port(), free_port()
    with Node(tmp_path, "--amqp", f"127.0.0.1:{port}") as node:
        queue = name()
        with Peer(f"amqp://guest:guest@127.0.0.1:{port}/") as peer:
            peer.channel.queue_declare(queue, durable=True)
            peer.channel.confirm_delivery()
            peer.publish(queue, numbered(300), delivery_mode=2)
        url = f"amqp://guest:guest@127.0.0.1:{nobody},127.0.0.1:{port}/"
        reading = Reading(spark, tmp_path, url, queue, maxMessagesPerTrigger=100)

        def kill() -> None:
            node.kill()
            node.start()

        reading.before = {1: kill}
        query = reading.start(available_now=False)
        try:
            wait_until("all rows came", lambda: len(reading.rows) >= 300, QUERY_S)
            wait_until("they are acked", lambda: reading.settled(query, 2), QUERY_S)
        finally:
            query.stop()
        assert reading.rows == numbered(300) and not reading.before
        with Peer(f"amqp://guest:guest@127.0.0.1:{port}/") as peer:
            assert peer.take(queue) == []
