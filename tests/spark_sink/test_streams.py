"""Streams and super streams, read and written, on mqd, and streams on RabbitMQ."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from conformance_tests.ports import free_port
from spark_sink.options import query_options, read_options
from spark_sink.rows import source_schema
from spark_sink.source.deliveries import Run
from spark_sink.source.loss import DataLoss
from spark_sink.source.offsets import BadCheckpoint
from spark_sink.source.stored import StoredRun
from spark_sink.streams import fetch
from spark_sink.streams.offsets import BEGAN, Partition, Range, from_json
from spark_sink.streams.placed import offset_at
from spark_sink.streams.readers import LogReader, LogStreamReader
from tests.reliability.node import Node, wait_until
from tests.spark_sink import stream_driver
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = source_schema(of_stream=True)
Offset = dict[str, Any]
QUERY_S = 150


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def published(peer: Peer, queue: str, bodies: Sequence[bytes], exchange: str = "", keys: int = 0) -> None:
    """All are confirmed at the end, so that they can be read."""
    peer.channel.tx_select()
    for number, body in enumerate(bodies):
        key = f"k{number % keys}" if keys else queue
        peer.channel.basic_publish(exchange, key, body, pika.BasicProperties(message_id=str(number)))
    peer.channel.tx_commit()


def stream_of(peer: Peer, name: str, **arguments: Any) -> str:
    return peer.queue(name, x_queue_type="stream", **arguments)


def super_stream(peer: Peer, name: str, partitions: int, **arguments: Any) -> str:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    peer.channel.exchange_declare(
        name, "x-super-stream", durable=True, arguments={"x-partitions": partitions, **table}
    )
    return name


class Driver:
    """The reader of a query, called as Spark calls it."""

    def __init__(self, url: str, stream: str | None = None, **options: Any) -> None:
        given = {"url": url, "startingOffsets": "earliest"} | ({} if stream is None else {"stream": stream})
        given |= {name: str(value) for name, value in options.items()}
        if any(name.startswith(("startingTimestamp", "startingOffsetsBy")) for name in options):
            del given["startingOffsets"]
        self.reader = LogStreamReader(query_options(given), SCHEMA)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self, start: Offset, most: int | None = None) -> Offset:
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        end = self.reader.latestOffset(start, limit)
        return {stream: numbers for stream, numbers in end.items() if stream != BEGAN}

    def rows(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        return read_all(self.reader, self.reader.partitions(start, end))

    def bodies(self, start: Offset, end: Offset) -> list[bytes]:
        return [row["value"] for row in self.rows(start, end)]

    def until(self, start: Offset, total: int) -> Offset:
        """Wait until the end has this many messages in all."""
        end = start

        def there() -> bool:
            nonlocal end
            end = self.plan(start)
            return sum(from_json(end).values()) == total

        wait_until(f"{total} messages", there)
        return end


def read_all(reader: LogReader | LogStreamReader, pieces: Sequence[InputPartition]) -> list[dict[str, Any]]:
    return [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]


def batch_rows(url: str, stream: str | None = None, **options: Any) -> list[dict[str, Any]]:
    given = {"url": url, **{name: str(value) for name, value in options.items()}}
    if stream is not None:
        given["stream"] = stream
    reader = LogReader(read_options(given), SCHEMA)
    return read_all(reader, reader.partitions())


def test_a_query_reads_a_stream_and_any_range_again(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    sent = numbered(500)
    published(peer, stream, sent)
    with Driver(url, stream) as driver:
        start = driver.reader.initialOffset()
        assert start == {stream: {"0": 0}}
        end = driver.until(start, 500)
        middle = driver.plan(start, 200)
        assert middle == {stream: {"0": 200}}
        assert driver.bodies(start, middle) == sent[:200] == driver.bodies(start, middle)
        rows = driver.rows(middle, end)
        assert [row["value"] for row in rows] == sent[200:]
        assert [row["offset"] for row in rows] == list(range(200, 500))
        assert [row["message_id"] for row in rows] == [str(number) for number in range(200, 500)]
        one = rows[0]
        assert (one["partition"], one["queue"], one["routing_key"], one["headers"]) == (
            0,
            stream,
            stream,
            None,
        )
        assert driver.plan(end) == end
        published(peer, stream, [b"more"])
        more = driver.until(end, 501)
        assert driver.bodies(end, more) == [b"more"]
    # Another process, with the checkpoint only.
    with Driver(url, stream) as driver:
        assert driver.bodies(start, middle) == sent[:200]


def test_batches_have_ends_and_more_tasks_than_partitions(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    sent = numbered(100)
    published(peer, stream, sent)
    with Driver(url, stream) as driver:
        driver.until(driver.reader.initialOffset(), 100)
    assert [row["value"] for row in batch_rows(url, stream)] == sent
    given = {"startingOffsets": '{"0": 10}', "endingOffsets": '{"0": 90}', "minPartitions": 3}
    assert [row["value"] for row in batch_rows(url, stream, **given)] == sent[10:90]
    options = read_options({"url": url, "stream": stream, "minPartitions": "3"})
    assert len(LogReader(options, SCHEMA).partitions()) == 3
    with pytest.raises(Exception, match="partition 0 of stream '.*' ends at 5, before it begins at 10"):
        batch_rows(url, stream, startingOffsets='{"0": 10}', endingOffsets='{"0": 5}')
    with pytest.raises(Exception, match="offset 101 of partition 0 of stream '.*' is beyond its end, 100"):
        batch_rows(url, stream, startingOffsets='{"0": 101}')


def test_latest_is_what_comes_from_now_on(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    published(peer, stream, numbered(30))
    with Driver(url, stream) as before:
        before.until(before.reader.initialOffset(), 30)
    with Driver(url, stream, startingOffsets="latest") as driver:
        start = driver.reader.initialOffset()
        published(peer, stream, [b"new"])
        driver.until(start, 31)
        end = driver.reader.latestOffset(start, ReadAllAvailable())
        assert end == {stream: {"0": 31}, BEGAN: {stream: {"0": 30}}}
        published(peer, stream, [b"newer"])
        # Spark asks again before it plans the tasks.
        start = driver.reader.initialOffset()
        assert driver.bodies(start, end) == [b"new"]
        newer = driver.until(end, 32)
        assert newer == {stream: {"0": 32}}
        assert driver.bodies(end, newer) == [b"newer"]
    # The query has died in its first micro-batch; its checkpoint has the end only.
    with Driver(url, stream, startingOffsets="latest") as driver:
        start = driver.reader.initialOffset()
        assert start == {stream: {"0": 32}}
        assert driver.bodies(start, end) == [b"new"]
        assert driver.bodies(end, driver.until(end, 32)) == [b"newer"]


def test_an_empty_stream(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    assert batch_rows(url, stream) == []
    with Driver(url, stream, startingOffsets="latest") as driver:
        start = driver.reader.initialOffset()
        assert driver.plan(start) == start
        assert driver.rows(start, start) == []


def test_a_time(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(10))
    # Times of AMQP are whole seconds.
    time.sleep(1.1)
    moment = int(time.time() * 1_000) // 1_000 * 1_000
    published(mqd_peer, stream, numbered(10, 10))
    assert [row["value"] for row in batch_rows(mqd_url, stream, startingTimestamp=moment)] == numbered(10, 10)
    assert len(batch_rows(mqd_url, stream, startingTimestamp=1)) == 20


def test_a_time_after_all_messages(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(10))
    with pytest.raises(
        Exception, match="partition 0 of stream '.*' has no message at or after 2100-01-01T00:00:00"
    ):
        batch_rows(mqd_url, stream, startingTimestamp="2100-01-01")
    later = {"startingTimestamp": "2100-01-01", "startingOffsetsByTimestampStrategy": "latest"}
    assert batch_rows(mqd_url, stream, **later) == []


def test_a_super_stream_and_its_new_partitions(
    mqd_url: str, mqd_peer: Peer, node: Node, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    stream = super_stream(mqd_peer, name("super"), 3)
    sent = numbered(300)
    published(mqd_peer, stream, sent, stream, keys=40)
    with Driver(mqd_url, stream, minPartitions=5) as driver:
        start = driver.reader.initialOffset()
        assert start == {stream: {"0": 0, "1": 0, "2": 0}}
        middle = driver.plan(start, 100)
        assert sum(middle[stream].values()) == 100 and min(middle[stream].values()) > 0
        end = driver.plan(middle)
        pieces = driver.reader.partitions(middle, end)
        assert len(pieces) >= 5
        rows = driver.rows(start, middle) + driver.rows(middle, end)
        assert sorted(int(row["value"]) for row in rows) == list(range(300))
        assert {(row["partition"], row["queue"]) for row in rows} == {(n, f"{stream}-{n}") for n in range(3)}
        # All messages of a key are in one partition, in order.
        by_key: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_key.setdefault(row["routing_key"], []).append(row)
        assert all(len({row["partition"] for row in one}) == 1 for one in by_key.values())
        assert all(
            [row["offset"] for row in one] == sorted(row["offset"] for row in one) for one in by_key.values()
        )
        node.mqctl("add_partitions", stream, "2")
        published(mqd_peer, stream, numbered(200, 300), stream, keys=40)
        more = driver.until(end, 500)
        assert sorted(more[stream]) == ["0", "1", "2", "3", "4"]
        rows = driver.rows(end, more)
        assert sorted(int(row["value"]) for row in rows) == list(range(300, 500))
        assert {row["partition"] for row in rows} == {0, 1, 2, 3, 4}
    mqd_peer.channel.exchange_delete(stream)


def test_what_retention_has_taken_is_an_error_or_a_jump(
    mqd_url: str, mqd_peer: Peer, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"x_max_length_bytes": 50_000, "x_stream_max_segment_size_bytes": 20_000}
    stream = stream_of(mqd_peer, name(), **limits)
    published(mqd_peer, stream, [b"%d " % number + bytes(1_000) for number in range(20)])
    with Driver(mqd_url, stream) as strict, Driver(mqd_url, stream, failOnDataLoss=False) as lenient:
        start = strict.reader.initialOffset()
        early = strict.plan(start, 15)
        assert early == {stream: {"0": 15}}
        only = Partition(stream, 0)
        rounds = 0
        while strict.reader._probe.bounds()[0][only] < 30:
            rounds += 1
            published(mqd_peer, stream, [bytes(1_000)] * 20)
            time.sleep(0.05)
            assert rounds < 400
        first, following = strict.reader._probe.bounds()
        with pytest.raises(
            DataLoss, match=f"no offsets 15 to {first[only] - 1} any more.*failOnDataLoss=false"
        ):
            strict.plan(early)
        # Also if it is a repeated batch that finds them gone.
        with pytest.raises(DataLoss, match="no offsets 0 to 14 any more"):
            strict.rows(start, early)
        with caplog.at_level(logging.ERROR):
            end = lenient.plan(early)
            offsets = [row["offset"] for row in lenient.rows(early, end)]
        assert offsets == list(range(first[only], following[only]))
        assert f"going on with offset {first[only]}" in caplog.text
        assert lenient.rows(start, early) == []
        assert batch_rows(mqd_url, stream, startingOffsets="earliest")[0]["offset"] == first[only]
        with pytest.raises(DataLoss, match=f"no offsets 5 to {first[only] - 1} any more"):
            batch_rows(mqd_url, stream, startingOffsets='{"0": 5}')


def test_a_stream_that_was_declared_anew(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(20))
    with Driver(mqd_url, stream, redeliveryTimeoutMs=200) as driver:
        end = driver.plan(driver.reader.initialOffset())
        mqd_peer.channel.queue_delete(stream)
        stream_of(mqd_peer, stream)
        assert driver.plan(end) == end
        time.sleep(0.3)
        with pytest.raises(DataLoss, match="ends at offset 0, but the query has reached 20 before"):
            driver.plan(end)


@pytest.mark.parametrize("comes_back", [False, True])
def test_with_available_now_a_stream_that_was_declared_anew_is_no_end(
    mqd_url: str, mqd_peer: Peer, name: Name, comes_back: bool
) -> None:
    """The query ends with this look, so it waits for what was read before, and says that it is gone."""
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(20))
    with Driver(mqd_url, stream) as driver:
        end = driver.plan(driver.reader.initialOffset())
    mqd_peer.channel.queue_delete(stream)
    stream_of(mqd_peer, stream)
    timeout_ms = 60_000 if comes_back else 200
    with Driver(mqd_url, stream, redeliveryTimeoutMs=timeout_ms) as driver:
        driver.reader.prepareForTriggerAvailableNow()
        if comes_back:
            # As a node of a cluster does that was behind.
            later = threading.Timer(0.5, lambda: published(mqd_peer, stream, numbered(20)))
            later.start()
            assert driver.plan(end) == end
            later.join()
        else:
            with pytest.raises(DataLoss, match="ends at offset 0, but the query has reached 20 before"):
                driver.plan(end)


def test_gaps_of_compaction_are_no_loss(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    arguments = {
        "x_stream_compaction": "header:key",
        "x_stream_max_segment_size_bytes": 20_000,
        "x_stream_compression": "none",
    }
    stream = stream_of(mqd_peer, name(), **arguments)
    mqd_peer.channel.tx_select()
    for number in range(400):
        properties = pika.BasicProperties(headers={"key": f"k{number % 3}"})
        mqd_peer.channel.basic_publish("", stream, b"%d" % number + bytes(300), properties)
        if number % 20 == 0:
            mqd_peer.channel.tx_commit()
    mqd_peer.channel.tx_commit()
    wait_until("it is compacted", lambda: len(batch_rows(mqd_url, stream)) < 350, 60)
    rows = batch_rows(mqd_url, stream, startingOffsets='{"0": 5}', minPartitions=4)
    assert rows[-1]["offset"] == 399 and len(rows) < 350
    assert {row["headers"][0][1] for row in rows} == {"k0", "k1", "k2"}


def offsets_in(run: Run | StoredRun) -> list[int]:
    if isinstance(run, StoredRun):
        return list(run.offsets)
    return [offset_at(run, index) for index in range(len(run))]


@pytest.mark.parametrize("batches", [True, False], ids=["batches", "messages"])
def test_a_task_goes_on_over_another_connection(
    mqd_url: str, mqd_peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    monkeypatch.setattr(fetch, "ROWS_PER_BATCH", 1)
    # These batches are small: a task would ask for messages soon.
    monkeypatch.setattr(fetch, "MESSAGES_PER_BATCH_MIN", 0 if batches else 1_000)
    stream = stream_of(mqd_peer, name())
    sent = numbered(2_000)
    for low in range(0, len(sent), 100):
        published(mqd_peer, stream, sent[low : low + 100])
    options = query_options({"url": mqd_url, "stream": stream, "prefetch": "100"})
    reading = fetch.Fetch(options, stream, Range(Partition(stream, 0), 3, 1_990), 0)
    offsets: list[int] = []
    cuts = 0
    for run in reading:
        offsets += offsets_in(run)
        if len(offsets) > 500 * (cuts + 1) and cuts < 3:
            cuts += 1
            assert reading._connection is not None
            reading._connection._transport._sock.shutdown(socket.SHUT_RDWR)
    assert cuts == 3 and offsets == list(range(3, 1_990))


@pytest.mark.parametrize("size", [1, 500])
def test_a_task_asks_for_messages_if_batches_are_small(
    mqd_url: str, mqd_peer: Peer, name: Name, size: int
) -> None:
    stream = stream_of(mqd_peer, name())
    sent = numbered(1_000)
    for low in range(0, len(sent), size):
        published(mqd_peer, stream, sent[low : low + size])
    options = query_options({"url": mqd_url, "stream": stream})
    reading = fetch.Fetch(options, stream, Range(Partition(stream, 0), 7, 900), 0)
    runs = list(reading)
    assert [offset for run in runs for offset in offsets_in(run)] == list(range(7, 900))
    kinds = [isinstance(run, StoredRun) for run in runs]
    assert kinds[0] and kinds == sorted(kinds, reverse=True)
    assert all(kinds) == (size > 1)


def test_a_broker_without_batches_gives_messages(
    mqd_url: str, mqd_peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(100))
    rows = batch_rows(mqd_url, stream)
    monkeypatch.setattr(fetch, "BATCHES_CAPABILITY", "nothing")
    assert batch_rows(mqd_url, stream) == rows and len(rows) == 100


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_streams(mqd_url: str, mqd_peer: Peer, name: Name, codec: str) -> None:
    stream = stream_of(mqd_peer, name(), x_stream_compression=codec)
    sent = [b"%d" % number + b"x" * 100 for number in range(3_000)]
    published(mqd_peer, stream, sent)
    assert [row["value"] for row in batch_rows(mqd_url, stream)] == sent


def test_messages_that_come_late_are_waited_for(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    """The batch was planned at a node that was ahead of this one."""
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(10))
    options = query_options({"url": mqd_url, "stream": stream, "redeliveryTimeoutMs": "1"})
    found: list[int] = []
    reading = fetch.Fetch(options, stream, Range(Partition(stream, 0), 0, 20), 0)
    thread = threading.Thread(target=lambda: found.extend(len(run) for run in reading))
    thread.start()
    time.sleep(3)
    assert thread.is_alive()
    published(mqd_peer, stream, numbered(10, 10))
    thread.join(60)
    assert sum(found) == 20


def test_what_cannot_be_read(url: str, peer: Peer, name: Name) -> None:
    missing, queue = name("missing"), peer.queue(name())
    with pytest.raises(
        Exception, match=f"stream '{missing}' is missing: there is neither .* nor '{missing}-0'"
    ):
        batch_rows(url, missing)
    with pytest.raises(Exception, match=f"'{queue}' is not a stream.*option 'queue'"):
        batch_rows(url, queue)


def test_nobody_listens() -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match="cannot connect to the broker"):
        batch_rows("amqp://127.0.0.1:1/", "s")
    assert time.monotonic() - began < 30


def test_a_checkpoint_of_another_stream_or_of_a_queue(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    with Driver(mqd_url, stream) as driver:
        with pytest.raises(
            BadCheckpoint, match="has an offset of partition 0 of stream 'other', which the options"
        ):
            driver.plan({"other": {"0": 1}})
        with pytest.raises(BadCheckpoint, match="written by another source"):
            driver.plan({"queue": stream, "count": 3})
        with pytest.raises(DataLoss, match="no longer has partition 4"):
            driver.plan({stream: {"0": 0, "4": 1}})


def test_executors_take_the_host_on_their_machine() -> None:
    def hosts(url: str) -> Any:
        return query_options({"url": url, "stream": "s"}).login.hosts

    assert fetch.nearest_host(hosts("amqp://a,b,127.0.0.1/"), 5) == 2
    assert fetch.nearest_host(hosts(f"amqp://a,{socket.gethostname()},c/"), 5) == 1
    assert [fetch.nearest_host(hosts("amqp://a,b,c/"), number) for number in range(4)] == [0, 1, 2, 0]
    # Several nodes on one machine share the tasks.
    near = hosts("amqp://a,localhost:1,localhost:2/")
    assert [fetch.nearest_host(near, number) for number in range(3)] == [1, 2, 1]


# With Spark.


def frame(spark: SparkSession, url: str, stream: str, **options: Any) -> DataFrame:
    return spark.read.format("amqp").options(url=url, stream=stream, **options).load()


@pytest.mark.parametrize("packing", ["none", "arrow"])
def test_spark_writes_a_super_stream_by_key_and_reads_it(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, packing: str
) -> None:
    stream = super_stream(mqd_peer, name("super"), 3)
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "cast(id as string) as value", "'key-' || id % 17 as routing_key", "cast(id % 10 as int) as priority"
    )
    options = {"url": mqd_url, "stream": stream, "packing": packing}
    rows.write.format("amqp").options(**options).mode("append").save()
    read = frame(spark, mqd_url, stream)
    assert read.columns == SCHEMA.fieldNames()
    found = read.select("value", "routing_key", "priority", "partition", "queue", "offset").collect()
    assert sorted(int(row.value) for row in found) == list(range(3_000))
    assert all(row.routing_key == f"key-{int(row.value) % 17}" for row in found)
    assert all(
        row.priority == int(row.value) % 10 and row.queue == f"{stream}-{row.partition}" for row in found
    )
    places = {(row.routing_key, row.partition) for row in found}
    assert len(places) == 17 and len({partition for _, partition in places}) == 3
    messages = {(row.partition, row.offset) for row in found}
    assert len(messages) == (3_000 if packing == "none" else 6)
    # Packed or not, a key has the same partition.
    mqd_peer.channel.basic_publish(stream, "key-3", b"9999")
    one = frame(spark, mqd_url, stream).where("cast(cast(value as string) as int) = 9999")
    wait_until("it can be read", lambda: one.count() == 1)
    [row] = one.collect()
    assert ("key-3", row.partition) in places
    mqd_peer.channel.exchange_delete(stream)


def test_packed_rows_through_a_queue(
    spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path
) -> None:
    queue = peer.queue(name())
    rows = spark.range(0, 2_500, 1, 1).selectExpr("cast(id as string) as value", "map('h', 'x') as headers")
    options = {"url": url, "routingKey": queue, "packing": "arrow", "packRows": "1000"}
    rows.write.format("amqp").options(**options).mode("append").save()
    wait_until("they are queued", lambda: peer.count(queue) == 3)
    source = spark.readStream.format("amqp").options(url=url, queue=queue).load()
    sink = source.select("value", "headers", "content_type").writeStream.format("parquet")
    query = (
        sink.option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in found) == list(range(2_500))
    assert all(row.headers == {"h": "x"} and row.content_type is None for row in found)
    assert peer.count(queue) == 0


def test_exactly_once_into_a_super_stream(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name
) -> None:
    stream = super_stream(mqd_peer, name("super"), 2, x_deduplication=True)
    rows = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) as value", "'k' || id % 9 as routing_key")
    for packing in ("none", "arrow"):
        options = {"url": mqd_url, "stream": stream, "packing": packing, "delivery": "exactly-once"}
        options |= {"txnAppId": f"app-{packing}", "txnVersion": "1"}
        for _ in range(2):
            rows.write.format("amqp").options(**options).mode("append").save()
    assert frame(spark, mqd_url, stream).count() == 1_000
    mqd_peer.channel.exchange_delete(stream)


def test_a_single_stream_has_no_keys(spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    keyed = spark.range(5).selectExpr("cast(id as string) as value", "'k' || id as routing_key")
    writer = keyed.write.format("amqp").options(url=mqd_url, stream=stream)
    with pytest.raises(Exception, match="is a single stream, and the rows have a column 'routing_key'"):
        writer.mode("append").save()
    with pytest.raises(Exception, match="option 'stream': stream 'nowhere' is missing"):
        keyed.write.format("amqp").options(url=mqd_url, stream="nowhere").mode("append").save()
    keyed.drop("routing_key").write.format("amqp").options(url=mqd_url, stream=stream).mode("append").save()
    writer.option("packing", "arrow").mode("append").save()
    found = frame(spark, mqd_url, stream).collect()
    assert sorted(bytes(row.value) for row in found) == sorted(2 * numbered(5))
    assert sorted(row.routing_key for row in found) == sorted([stream] * 5 + [f"k{n}" for n in range(5)])


def test_a_driver_that_is_killed_reads_each_row_once_into_files(
    spark: SparkSession, name: Name, tmp_path: Path
) -> None:
    """The driver and the broker die in the middle; a file sink shows nothing of a batch before its commit."""
    port = free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    commits = tmp_path / "checkpoint" / "commits"
    with Node(tmp_path, "--amqp", f"127.0.0.1:{port}") as node:
        with Peer(url) as peer:
            stream = super_stream(peer, name("super"), 2)
            published(peer, stream, numbered(3_000), stream, keys=50)
        with stream_driver.StreamDriver(tmp_path, url, stream) as driver:
            driver.reach(0)
            driver.kill()
        reading = threading.Thread(target=stream_driver.run, args=(spark, tmp_path, url, stream))
        reading.start()
        wait_until("the query goes on", lambda: (commits / "1").exists(), QUERY_S)
        node.kill()
        node.start()
        reading.join(QUERY_S)
        assert not reading.is_alive()
    found = [int(row.value) for row in spark.read.json(str(tmp_path / "out")).select("value").collect()]
    assert len(found) == 3_000 and sorted(found) == list(range(3_000))
