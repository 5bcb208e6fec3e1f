"""Times of messages in streams: where reads begin and end by time, and the column with the broker's time."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.sql.functions import window

from spark_sink.option_values import BadOption
from tests.reliability.node import wait_until
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_streams import (
    QUERY_S,
    Driver,
    batch_rows,
    numbered,
    published,
    stream_of,
    super_stream,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRATEGY = "startingOffsetsByTimestampStrategy"
#: How far the broker's clock may be from this one, s.
NEAR_S = 0.1


def now_ms() -> int:
    """A time between messages before and messages after, whose clock may differ somewhat from this one."""
    time.sleep(0.2)
    now = int(time.time() * 1_000)
    time.sleep(0.2)
    return now


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


def in_two_parts(peer: Peer, name: Name) -> tuple[str, int]:
    """A stream of ten messages and ten later ones; and a time between them."""
    stream = stream_of(peer, name())
    published(peer, stream, numbered(10))
    moment = now_ms()
    published(peer, stream, numbered(10, 10))
    return stream, moment


def test_reads_begin_and_end_at_times_of_milliseconds(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream, moment = in_two_parts(mqd_peer, name)
    sent = numbered(20)
    assert bodies(batch_rows(mqd_url, stream, startingTimestamp=moment)) == sent[10:]
    assert bodies(batch_rows(mqd_url, stream, endingTimestamp=moment)) == sent[:10]
    after = now_ms()
    for start, end, expected in (
        (1, after, sent),
        (moment, after, sent[10:]),
        (moment, moment, []),
        (1, 1, []),
    ):
        assert bodies(batch_rows(mqd_url, stream, startingTimestamp=start, endingTimestamp=end)) == expected
    both = {"startingOffsets": '{"0": 5}', "endingTimestamp": moment}
    assert bodies(batch_rows(mqd_url, stream, **both)) == sent[5:10]
    with pytest.raises(
        BadOption, match="'endingTimestamp': partition 0 .* ends at 10, before it begins at 15"
    ):
        batch_rows(mqd_url, stream, startingOffsets='{"0": 15}', endingTimestamp=moment)
    with Driver(mqd_url, stream, startingTimestamp=moment) as driver:
        assert driver.reader.initialOffset() == {stream: {"0": 10}}


def test_each_partition_may_have_its_own_time(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = super_stream(mqd_peer, name("super"), 2)
    moments = []
    for number in range(3):
        for partition in range(2):
            published(mqd_peer, f"{stream}-{partition}", [b"%d" % number])
        moments.append(now_ms())
    given = {stream: {"0": moments[0], "1": moments[1]}}
    rows = batch_rows(mqd_url, stream, startingOffsetsByTimestamp=json.dumps(given))
    assert [(row["partition"], row["value"]) for row in rows] == [(0, b"1"), (0, b"2"), (1, b"2")]
    rows = batch_rows(mqd_url, stream, endingOffsetsByTimestamp=json.dumps(given))
    assert [(row["partition"], row["value"]) for row in rows] == [(0, b"0"), (1, b"0"), (1, b"1")]
    with pytest.raises(BadOption, match="'startingOffsetsByTimestamp' does not name partition 1 of stream"):
        batch_rows(mqd_url, stream, startingOffsetsByTimestamp='{"0": 5}')
    mqd_peer.channel.exchange_delete(stream)


def test_a_partition_without_later_messages_is_an_error_or_begins_with_the_next(
    url: str, peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.MOMENT_MAX_S", 1.0)
    stream = super_stream_by_hand(peer, name("super"), 3)
    for partition in range(2):
        published(peer, f"{stream}-{partition}", numbered(5))
    time.sleep(1.1)
    moment = int(time.time() * 1_000) // 1_000 * 1_000
    published(peer, f"{stream}-1", numbered(5, 5))
    # Partition 0 has only older messages, and partition 2 has none.
    refusal = f"partition 0 of stream '{stream}' has no message at or after"
    with Driver(url, stream, startingTimestamp=moment) as driver, pytest.raises(BadOption, match=refusal):
        driver.reader.initialOffset()
    with Driver(url, stream, startingTimestamp=moment, **{STRATEGY: "latest"}) as driver:
        start = driver.reader.initialOffset()
        assert start == {stream: {"0": 5, "1": 5, "2": 0}}
        published(peer, f"{stream}-0", [b"new"])
        published(peer, f"{stream}-2", [b"newer"])
        end = driver.until(start, 5 + 1 + 10 + 1)
        assert driver.bodies(start, end) == [b"new", *numbered(5, 5), b"newer"]


def super_stream_by_hand(peer: Peer, name: str, partitions: int) -> str:
    """Streams with the names of partitions, which any broker has."""
    for number in range(partitions):
        stream_of(peer, f"{name}-{number}")
    return name


def test_while_others_publish_a_time_has_one_offset(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    """Each question meets another end of the stream."""
    stream, stop, found = stream_of(mqd_peer, name()), threading.Event(), list[tuple[int, int]]()

    def publish() -> None:
        with Peer(mqd_url) as peer:
            while not stop.is_set():
                published(peer, stream, numbered(3))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_until("it has messages", lambda: len(batch_rows(mqd_url, stream)) > 50)
        for number in range(60):
            moment = int(time.time() * 1_000) - number % 7
            with Driver(mqd_url, stream, startingTimestamp=moment, **{STRATEGY: "latest"}) as driver:
                found.append((moment, driver.reader.initialOffset()[stream]["0"]))
    finally:
        stop.set()
        thread.join()
    taken = [int(row["broker_timestamp"].timestamp() * 1_000 + 0.5) for row in batch_rows(mqd_url, stream)]
    for moment, offset in found:
        assert all(each < moment for each in taken[:offset])
        # With the strategy `latest` a few older ones may follow that came with the question.
        early = bisect_left(taken, moment) - offset
        assert 0 <= early < 100, (early, offset)
    assert any(bisect_left(taken, moment) == offset for moment, offset in found)


def test_a_broker_that_does_not_know_times_yet_is_asked_with_consumers(
    mqd_url: str, mqd_peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier mqd, perhaps as one node of several."""
    monkeypatch.setattr("spark_sink.streams.probe.TIMES_CAPABILITY", "none")
    monkeypatch.setattr("spark_sink.streams.fetch.TIMES_CAPABILITY", "none")
    monkeypatch.setattr("spark_sink.streams.fetch.BATCHES_CAPABILITY", "none")
    monkeypatch.setattr("spark_sink.streams.probe.MOMENT_MAX_S", 1.0)
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(10))
    time.sleep(1.1)
    second = int(time.time()) * 1_000
    published(mqd_peer, stream, numbered(10, 10))
    # Whole seconds: too many messages rather than too few.
    assert bodies(batch_rows(mqd_url, stream, startingTimestamp=second + 1)) == numbered(10, 10)
    assert len(batch_rows(mqd_url, stream, endingTimestamp=second)) == 10
    assert len(batch_rows(mqd_url, stream, endingTimestamp=second + 1)) >= 10
    with pytest.raises(BadOption, match="has no message at or after"):
        batch_rows(mqd_url, stream, startingTimestamp=second + 3_600_000)
    assert {row["broker_timestamp"] for row in batch_rows(mqd_url, stream)} == {None}


def test_the_brokers_time_is_a_column_that_is_never_null(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    stream = stream_of(mqd_peer, name())
    before = datetime.now(UTC)
    own = pika.BasicProperties(timestamp=1_000_000_000, headers={"a": "b"})
    mqd_peer.channel.tx_select()
    for number in range(100):
        properties = own if number % 2 else pika.BasicProperties()
        mqd_peer.channel.basic_publish("", stream, b"%d" % number, properties)
        if number % 30 == 0:
            mqd_peer.channel.tx_commit()
            time.sleep(0.01)
    mqd_peer.channel.tx_commit()
    after = datetime.now(UTC)
    rows = batch_rows(mqd_url, stream)
    taken = [row["broker_timestamp"] for row in rows]
    assert len(set(taken)) >= 4 and taken == sorted(taken)
    # The broker's clock runs evenly from its start, and is told in milliseconds: it is near to this one.
    assert before.timestamp() - NEAR_S <= taken[0].timestamp()
    assert taken[-1].timestamp() <= after.timestamp() + NEAR_S
    # The message's own time, and its headers, are as they were published.
    for number, row in enumerate(rows):
        own_time = datetime.fromtimestamp(1_000_000_000, UTC) if number % 2 else None
        assert (row["timestamp"], row["headers"]) == (own_time, [("a", "b")] if number % 2 else None)


def test_a_broker_that_does_not_tell_leaves_the_column_empty(rabbitmq: int, name: Name) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{rabbitmq}/"
    with Peer(url) as peer:
        stream = stream_of(peer, name())
        published(peer, stream, numbered(50))
        wait_until("they can be read", lambda: len(batch_rows(url, stream)) == 50)
        assert {row["broker_timestamp"] for row in batch_rows(url, stream)} == {None}


# With Spark.


def test_event_time_and_watermarks_work_without_a_time_of_the_publishers(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    stream = stream_of(mqd_peer, name())
    rows = spark.range(0, 200, 1, 1).selectExpr("cast(id as string) as value")
    for packing in ("none", "arrow"):
        options = {"url": mqd_url, "stream": stream, "packing": packing}
        rows.write.format("amqp").options(**options).mode("append").save()
    # A watermark of seconds, and a last message that moves it.
    time.sleep(2.5)
    published(mqd_peer, stream, [b"last"])
    source = spark.readStream.format("amqp").options(
        url=mqd_url, stream=stream, startingOffsets="earliest", maxOffsetsPerTrigger=150
    )
    counts = (
        source.load()
        .withWatermark("broker_timestamp", "1 second")
        .groupBy(window("broker_timestamp", "1 second"))
        .count()
    )
    query = (
        counts.selectExpr("count")
        .writeStream.format("json")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S)
    found = spark.read.json(str(tmp_path / "out")).collect()
    # The windows before the watermark have come out; the one of the last message has not.
    assert sum(row["count"] for row in found) == 400
    assert all(row["min"] is not None for row in _times(spark, mqd_url, stream))


def _times(spark: SparkSession, url: str, stream: str) -> list[Any]:
    frame = spark.read.format("amqp").options(url=url, stream=stream).load()
    assert frame.where("broker_timestamp is null").count() == 0
    return frame.selectExpr("min(broker_timestamp) as min").collect()
