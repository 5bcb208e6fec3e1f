"""Streams whose history is read from the files of their tables, and the rest from a real mqd."""

from __future__ import annotations

import logging
import os
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.sql.types import StructType

from spark_sink.option_values import BadOption, StoreUrl
from spark_sink.options import read_options
from spark_sink.source.loss import DataLoss
from spark_sink.streams import history, slices
from spark_sink.streams.history import OtherStream
from spark_sink.streams.readers import LogReader
from spark_sink.streams.slices import Slice
from spark_sink.streams.table_files import TableFile, directory_of
from spark_sink.streams.table_store import TableStore
from tests.reliability.node import wait_until
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_streams import (
    QUERY_S,
    SCHEMA,
    Driver,
    batch_rows,
    published,
    read_all,
    stream_of,
    super_stream,
)
from tests.stores.s3 import BUCKET, KEYS, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES, BATCH = 16_384, 10
TABLE: dict[str, Any] = {
    "x_stream_remote": "archive",
    "x_stream_table": "parquet",
    "x_stream_max_segment_size_bytes": SEGMENT_BYTES,
}
HEADERS: dict[str, Any] = {
    "text": "ä",
    "number": -5,
    "large": 1 << 40,
    "decimal": Decimal("-1.50"),
    "flag": True,
    "bytes": b"\xff",
    "time": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "nothing": None,
    "table": {"a": [1, None, "x", {"b": 2}]},
}
Asked = list[tuple[str, int, int]]


def noise(number: int, size: int = 1_800) -> bytes:
    """A body that does not get smaller by compression."""
    return b"%d " % number + os.urandom(size // 2).hex().encode()


def files(archive: Path, queue: str) -> list[TableFile]:
    found = TableStore(StoreUrl("file", str(archive))).files(directory_of("/", queue))
    return sorted(found, key=lambda each: each.first)


def stop_of(archive: Path, queue: str) -> int:
    """Return the offset behind the last one of a table."""
    found = files(archive, queue)
    return found[-1].stop if found else 0


def grown(peer: Peer, archive: Path, stream: str, count: int, first: int = 0) -> int:
    """Publish so many messages, from this offset on, and wait until all full segments are in the table;
    return the offset behind its last one.
    """
    # A transaction is a batch of the stream, and a segment has whole batches.
    for start in range(first, first + count, BATCH):
        published(peer, stream, [noise(number) for number in range(start, min(start + BATCH, first + count))])
    least = first + count - 2 * BATCH
    wait_until("the table grows", lambda: stop_of(archive, stream) >= least)
    return stop_of(archive, stream)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The ranges that the broker is asked for: queue, first offset, and the one behind the last."""
    found: Asked = []
    of_broker = slices._of_broker

    def noted(options: Any, schema: StructType, piece: Slice, start: int, end: int) -> Any:
        found.append((piece.queue, start, end))
        return of_broker(options, schema, piece, start, end)

    monkeypatch.setattr(slices, "_of_broker", noted)
    return found


def test_rows_are_the_same_from_files_and_from_the_broker(
    mqd_url: str, mqd_peer: Peer, archive: Path, name: Name, asked: Asked
) -> None:
    stream = stream_of(mqd_peer, name(), **TABLE)
    channel = mqd_peer.channel
    channel.tx_select()
    properties = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "100000000",
        "message_id": "m",
        "timestamp": 1_764_547_200,
        "type": "t",
        "app_id": "a",
        "cluster_id": "cl",
    }
    varied = [
        pika.BasicProperties(),
        pika.BasicProperties(headers={}),
        pika.BasicProperties(headers=HEADERS),
        pika.BasicProperties(headers={"a": "b"}, **properties),
        pika.BasicProperties(timestamp=1 << 50, message_id=""),
    ]
    for number in range(60):
        channel.basic_publish("", stream, noise(number), varied[number % len(varied)])
        if number % BATCH == 0:
            channel.tx_commit()
    channel.basic_publish("", stream, b"")
    channel.tx_commit()
    stop = grown(mqd_peer, archive, stream, 60, 61)
    due = batch_rows(mqd_url, stream)
    assert len(due) == 121 and {row["headers"] is None for row in due} == {True, False}
    asked.clear()
    found = batch_rows(mqd_url, stream, history=archive)
    assert found == due
    # One message is read from the broker, to see whether the files are the stream's.
    stop = asked[0][2]
    assert asked == [(stream, stop - 1, stop), (stream, stop, 121)] and stop > 50
    # Any range, cut anywhere.
    for start, end, tasks in ((0, 121, 7), (3, 40, 5), (stop - 1, stop + 1, 1), (stop, 121, 1), (10, 11, 1)):
        given = {"startingOffsets": f'{{"0": {start}}}', "endingOffsets": f'{{"0": {end}}}'}
        rows = batch_rows(mqd_url, stream, history=f"file://{archive}", minPartitions=tasks, **given)
        assert rows == due[start:end]
    moment = due[100]["broker_timestamp"].isoformat()
    assert batch_rows(mqd_url, stream, history=archive, startingTimestamp=moment) == batch_rows(
        mqd_url, stream, startingTimestamp=moment
    )
    # Without headers, and with columns that the user has chosen.
    for names in (("value", "routing_key"), ("broker_timestamp",), ("message_id", "offset", "partition")):
        schema = StructType([SCHEMA[each] for each in names])
        both = []
        for more in ({}, {"history": str(archive)}):
            reader = LogReader(read_options({"url": mqd_url, "stream": stream, **more}), schema)
            both.append(read_all(reader, reader.partitions()))
        assert both[0] == both[1] == [{each: row[each] for each in names} for row in due]


def test_partitions_have_tables_of_their_own_and_streams_may_have_none(
    mqd_url: str, mqd_peer: Peer, archive: Path, name: Name, asked: Asked
) -> None:
    stream = super_stream(mqd_peer, name("super"), 2, **TABLE)
    young = stream_of(mqd_peer, name("young"), **TABLE)
    published(mqd_peer, young, [b"1", b"2"])
    grown(mqd_peer, archive, f"{stream}-0", 60)
    grown(mqd_peer, archive, f"{stream}-1", 80)
    due = batch_rows(mqd_url, streams=f"{stream},{young}")
    asked.clear()
    assert batch_rows(mqd_url, streams=f"{stream},{young}", history=archive) == due
    assert len(due) == 142
    assert {queue for queue, _, _ in asked} == {f"{stream}-0", f"{stream}-1", young}
    assert sum(end - start for _, start, end in asked) < 100
    mqd_peer.channel.exchange_delete(stream)


def test_a_query_goes_through_the_files_to_the_broker_and_on_from_its_checkpoint(
    mqd_url: str,
    mqd_peer: Peer,
    archive: Path,
    name: Name,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "LISTED_S", 0.0)
    stream = stream_of(mqd_peer, name(), **TABLE)
    stop = grown(mqd_peer, archive, stream, 80)
    found: list[int] = []

    def step(driver: Driver, start: dict[str, Any], most: int) -> dict[str, Any]:
        end = driver.plan(start, most)
        rows = driver.rows(start, end)
        # A repeated batch has the same rows.
        assert driver.rows(start, end) == rows
        found.extend(row["offset"] for row in rows)
        return end

    with Driver(mqd_url, stream, history=archive) as driver:
        end = step(driver, driver.reader.initialOffset(), 30)
        assert asked == [(stream, asked[0][1], asked[0][1] + 1)]
        end = step(driver, end, 5)
    # Another process goes on, and the table grows while it does.
    with Driver(mqd_url, stream, history=archive) as driver:
        end = step(driver, end, 5)
        grown(mqd_peer, archive, stream, 80, 80)
        asked.clear()
        while len(found) < 160:
            end = step(driver, end, 25)
        assert found == list(range(160)) and end == {stream: {"0": 160}}
        # What was in no file came from the broker, twice because of the repetition.
        assert 0 < sum(high - low for _, low, high in asked) < 2 * (160 - stop)
        published(mqd_peer, stream, [noise(160)])
        end = step(driver, end, 25)
        # A query that has read its table to the end does not look at the store any more.
        monkeypatch.setattr(TableStore, "files", lambda *_: pytest.fail("it looks"))
        published(mqd_peer, stream, [noise(161)])
        step(driver, end, 25)
    assert found[-2:] == [160, 161]


def test_what_retention_has_taken_from_the_broker_is_read_while_its_file_is_there(
    mqd_url: str,
    mqd_peer: Peer,
    archive: Path,
    name: Name,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = stream_of(mqd_peer, name(), x_max_length_bytes=200_000, **TABLE)
    grown(mqd_peer, archive, stream, 60)
    before = batch_rows(mqd_url, stream)
    early = [each for each in files(archive, stream) if each.stop <= 50]
    # As a store has them whose files are deleted late.
    late = tmp_path / "late"
    shutil.copytree(archive / directory_of("/", stream), late / directory_of("/", stream))
    with Driver(mqd_url, stream, history=late) as driver, Driver(mqd_url, stream) as without:
        start = driver.reader.initialOffset()
        middle = driver.plan(start, 10)
        assert [row["offset"] for row in driver.rows(start, middle)] == list(range(10))
        only = next(iter(driver.reader._probe.partitions()))
        number = 60
        while driver.reader._probe.bounds()[0][only] < early[-1].stop:
            grown_to = grown(mqd_peer, archive, stream, 60, number)
            number += 60
            assert grown_to < 3_000
        first = driver.reader._probe.bounds()[0][only]
        with pytest.raises(DataLoss, match=f"no offsets 10 to {first - 1} any more"):
            without.plan(middle)
        # The files behind those that were copied.
        for each in files(archive, stream):
            shutil.copy(each.path, late / directory_of("/", stream))
        copied = files(late, stream)
        gaps = [
            (one.stop, other.first)
            for one, other in zip(copied, copied[1:], strict=False)
            if one.stop < other.first
        ]
        end = None
        if not gaps:
            end = driver.plan(middle)
            assert [row["offset"] for row in driver.rows(middle, end)] == list(range(10, number))
        # A file that is missing among those that the broker does not have any more.
        Path(early[1].path.replace(str(archive), str(late))).unlink()
        given = {"history": late, "startingOffsets": '{"0": 0}'}
        low, high = early[1].first, early[1].stop
        with pytest.raises(
            DataLoss, match=f"no offsets {low} to {high - 1} any more.*offset {high}, set option"
        ):
            batch_rows(mqd_url, stream, **given)
        with caplog.at_level(logging.ERROR):
            rows = batch_rows(mqd_url, stream, failOnDataLoss=False, **given)
        offsets = [row["offset"] for row in rows]
        lost = {*range(low, high)} | {offset for gap in gaps for offset in range(*gap) if offset < first}
        assert offsets == [offset for offset in range(number) if offset not in lost]
        assert rows[:low] == before[:low] and f"going on with offset {high}" in caplog.text
        # Without a word about offsets, a read begins where the broker does.
        assert batch_rows(mqd_url, stream, history=late)[0]["offset"] == first


def test_files_of_another_stream_are_told_from_those_of_the_stream(
    mqd_url: str, mqd_peer: Peer, archive: Path, name: Name, tmp_path: Path
) -> None:
    stream = stream_of(mqd_peer, name(), **TABLE)
    grown(mqd_peer, archive, stream, 60)
    old = tmp_path / "old"
    shutil.copytree(archive / directory_of("/", stream), old / directory_of("/", stream))
    mqd_peer.channel.queue_delete(stream)
    wait_until("its files are deleted", lambda: not files(archive, stream))
    stream_of(mqd_peer, stream, **TABLE)
    grown(mqd_peer, archive, stream, 90)
    due = batch_rows(mqd_url, stream)
    with pytest.raises(OtherStream, match=f"are not those of stream '{stream}'.*remove them"):
        batch_rows(mqd_url, stream, history=old)
    with Driver(mqd_url, stream, history=old) as driver:
        for _ in range(2):
            with pytest.raises(OtherStream):
                driver.rows({stream: {"0": 5}}, {stream: {"0": 9}})
    # Beside them, the stream's own ones are found.
    for each in files(archive, stream):
        shutil.copy(each.path, old / directory_of("/", stream))
    assert batch_rows(mqd_url, stream, history=old) == due


def test_a_store_without_a_file_of_the_stream_is_an_error(
    mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    stream = super_stream(mqd_peer, name("super"), 3, **TABLE)
    with pytest.raises(BadOption, match=f"tables/@2f/{stream}-0 nor in those of the other 2.*stream_remotes"):
        batch_rows(mqd_url, stream, history=tmp_path)
    with (
        Driver(mqd_url, stream, history=tmp_path) as driver,
        pytest.raises(BadOption, match="there is no file"),
    ):
        driver.reader.initialOffset()
    with pytest.raises(BadOption, match="there is no directory .*nowhere on this machine"):
        batch_rows(mqd_url, stream, history=tmp_path / "nowhere")
    mqd_peer.channel.exchange_delete(stream)


def test_a_store_in_s3_is_read(
    mqd_url: str,
    mqd_peer: Peer,
    archive: Path,
    name: Name,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    stream = stream_of(mqd_peer, name(), **TABLE)
    grown(mqd_peer, archive, stream, 60)
    due = batch_rows(mqd_url, stream)
    with s3_server() as server:
        objects = server.objects("production")
        for each in files(archive, stream):
            objects.put(str(Path(each.path).relative_to(archive)), iter([Path(each.path).read_bytes()]), None)
        url = f"s3://{BUCKET}/production?region=us-east-1&endpoint={server.endpoint}&allow_http=true"
        asked.clear()
        assert batch_rows(mqd_url, stream, history=url) == due
        assert sum(high - low for _, low, high in asked) < 60
        # Those that retention deletes while the job runs are read from the broker.
        options = read_options({"url": mqd_url, "stream": stream, "history": url})
        reader = LogReader(options, SCHEMA)
        pieces = reader.partitions()
        objects.delete([each.key for each in objects.found("")][::2])
        asked.clear()
        assert read_all(reader, pieces) == due
        assert len(asked) > 1


def test_spark_reads_history_and_the_rest_once(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, archive: Path, name: Name, tmp_path: Path
) -> None:
    """As batches, and as a query that stops and goes on; packed rows and others."""
    stream = super_stream(mqd_peer, name("super"), 2, **TABLE)
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "concat(cast(id as string), ' ', sha2(cast(id as string), 512)) as value",
        "if(id % 5 = 0, null, 'key-' || id % 17) as routing_key",
        "cast(id % 10 as int) as priority",
        "if(id % 3 = 0, null, map('h', cast(id as string))) as headers",
        "timestamp_micros(id * 1000001) as timestamp",
    )
    options = {"url": mqd_url, "stream": stream}
    for packing in ({}, {"packing": "arrow", "packRows": "100"}, {}):
        rows.write.format("amqp").options(**options, **packing).mode("append").save()
    for number in range(2):
        wait_until("there is a table", lambda: len(files(archive, f"{stream}-{number}")) > 5)  # noqa: B023

    def frame(**more: str) -> Any:
        return spark.read.format("amqp").options(**options, **more)

    due = frame().load()
    found = frame(history=str(archive), maxRecordsPerPartition="500").load()
    assert due.schema == found.schema and due.count() == 9_000 == found.count()
    # Spark compares no maps.
    text = [each if each != "headers" else "to_json(headers) as headers" for each in due.columns]
    assert not due.selectExpr(*text).exceptAll(found.selectExpr(*text)).count()
    own = (
        frame(history=str(archive), includeHeaders="false").schema("value binary, routing_key string").load()
    )
    chosen = due.select("value", "routing_key")
    assert own.count() == 9_000 and not own.exceptAll(chosen).count()

    def run(most: int) -> None:
        source = spark.readStream.format("amqp").options(
            **options, history=str(archive), startingOffsets="earliest", maxOffsetsPerTrigger=str(most)
        )
        sink = source.load().select("value", "offset", "partition", "priority").writeStream.format("parquet")
        sink = sink.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "ch"))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S)

    run(3_500)
    rows.write.format("amqp").options(**options).mode("append").save()
    run(100_000)
    columns = ("value", "offset", "partition", "priority")
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.count() == 12_000
    assert not frame().load().select(*columns).exceptAll(out.select(*columns)).count()
    mqd_peer.channel.exchange_delete(stream)
