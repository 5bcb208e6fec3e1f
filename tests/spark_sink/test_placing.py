"""Where rows go that name a stream, a partition or a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_sink.client.errors import AmqpError
from spark_sink.options import SinkOptions, sink_options
from spark_sink.rows import BadColumn
from spark_sink.sink.encoder import BadRow
from spark_sink.sink.packing import Packer, partition_of
from spark_sink.sink.placing import Place, Placer
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_streams import batch_rows, stream_of, super_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KNOWN = {"single": (["single"], True), "super": (["super-0", "super-1", "super-2"], False)}


class Asked:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, options: SinkOptions, name: str) -> Place:
        self.names.append(name)
        if name not in KNOWN:
            raise AmqpError(f"stream '{name}' is missing")
        return Place(name.encode(), *KNOWN[name])


def addresses(rows: dict[str, Any], **options: str) -> list[tuple[Any, ...]]:
    asked = Asked()
    count = len(next(iter(rows.values())))
    batch = pa.record_batch({"value": ["v"] * count, **rows})
    placed = list(Placer(sink_options(options), "partition 5", asked).placed([batch, batch]))
    assert len(asked.names) == len(set(asked.names))
    found = [[tuple(row.values())[1:] for row in each.to_pylist()] for each in placed]
    assert found[0] == found[1] and {tuple(each.schema.names)[0] for each in placed} == {"value"}
    return found[0]


def test_a_row_goes_to_its_stream_by_key_or_to_its_partition() -> None:
    rows = {
        "stream": ["super", "super", "super", "single", "single"],
        "partition": pa.array([None, 2, None, 0, None], pa.int64()),
        "key": [b"\xff", b"k", None, b"ignored by a partition", None],
    }
    assert addresses(rows) == [
        (b"super", b"\xff"),
        (b"", b"super-2"),
        (b"super", None),
        (b"", b"single"),
        (b"", b"single"),
    ]


def test_the_option_names_the_stream_of_partitions() -> None:
    rows = {"partition": pa.array([1, None], pa.int32()), "routing_key": ["a", "b"]}
    assert addresses(rows, stream="super") == [(b"", b"super-1"), (b"super", b"b")]


def test_a_key_alone_is_a_routing_key_and_asks_no_broker() -> None:
    assert addresses({"key": [b"a", None]}, exchange="x") == [(b"a",), (None,)]
    assert addresses({"priority": [1]}, exchange="x") == [(1,)]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"stream": ["super", None]}, "column 'stream' in row 1 of partition 5 is null"),
        (
            {"stream": ["nowhere"]},
            "column 'stream' in row 0 .* cannot be written to: stream 'nowhere' is missing",
        ),
        (
            {"stream": ["super"], "partition": [3]},
            "column 'partition' in row 0 .* is 3: the partitions are 0 to 2",
        ),
        ({"stream": ["super"], "partition": [-1]}, "is -1: the partitions are 0 to 2"),
        ({"stream": ["single"], "partition": [1]}, "is 1: the partitions are 0 to 0"),
        ({"stream": ["single"], "key": ["k"]}, "column 'key' in row 0 .* 'single' is a single stream"),
        ({"stream": ["super"], "key": ["é" * 128]}, "column 'key' in row 0 .* is longer than 255 bytes"),
    ],
)
def test_rows_that_go_nowhere(rows: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRow, match=text):
        addresses(rows)


def packed(rows: dict[str, Any]) -> dict[str, list[int]]:
    """The numbers of the rows that each partition gets."""
    names = KNOWN["super"][0]
    count = len(next(iter(rows.values())))
    batch = pa.record_batch({"value": [str(number) for number in range(count)], **rows})
    placer = Placer(sink_options({"stream": "super", "packing": "arrow"}), "partition 5", Asked())
    found: dict[str, list[int]] = {}
    for messages in Packer(1_000, names).packed(placer.checked([batch], names)):
        for row in messages.to_pylist():
            body = pa.CompressedInputStream(pa.BufferReader(row["value"]), "zstd")
            table = pa.ipc.open_stream(body.read()).read_all()
            assert "partition" not in table.schema.names and "key" not in table.schema.names
            found.setdefault(row["routing_key"], []).extend(map(int, table.column("value").to_pylist()))
    return found


def test_packed_rows_go_to_their_partition_or_to_that_of_their_key() -> None:
    keys = [f"k{number}" for number in range(60)]
    numbers = [None if number % 2 else number % 3 for number in range(60)]
    expected: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        place = numbers[number]
        partition = partition_of(key.encode(), 3) if place is None else place
        expected.setdefault(f"super-{partition}", []).append(number)
    assert packed({"partition": pa.array(numbers, pa.int64()), "key": keys}) == expected
    assert packed({"partition": pa.array([2, 1], pa.int8())}) == {"super-2": [0], "super-1": [1]}
    assert packed({"key": [b"k1"]}) == packed({"routing_key": ["k1"]})
    with pytest.raises(
        BadRow, match="column 'partition' in row 1 of partition 5 is 3: the partitions are 0 to 2"
    ):
        packed({"partition": [0, 3]})
    with pytest.raises(BadRow, match="column 'key' in row 0 of partition 5 is not UTF-8"):
        packed({"key": [b"\xff"]})


# With Spark.


def test_spark_writes_several_streams_by_column(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name
) -> None:
    single, several = stream_of(mqd_peer, name("a")), super_stream(mqd_peer, name("super"), 3)
    rows = spark.range(0, 300, 1, 2).selectExpr(
        "cast(id as string) as value",
        f"if(id % 3 = 0, '{single}', '{several}') as stream",
        "if(id % 3 = 1, cast(id % 2 as int), null) as partition",
        "if(id % 3 = 0, null, cast('k' || id % 7 as binary)) as key",
        "map('h', 'x') as headers",
        "timestamp'2026-01-31 12:00:00' as timestamp",
    )
    rows.write.format("amqp").options(url=mqd_url).mode("append").save()
    found = {int(row["value"]): row for row in batch_rows(mqd_url, streams=f"{single},{several}")}
    assert sorted(found) == list(range(300))
    for number, row in found.items():
        assert row["stream"] == (several if number % 3 else single)
        assert row["headers"] == [("h", "x")] and row["timestamp"].year == 2026
        if number % 3 == 1:
            assert row["partition"] == number % 2
        elif number % 3 == 2:
            key = f"k{number % 7}"
            assert (row["routing_key"], row["partition"]) == (key, partition_of(key.encode(), 3))
    # Exactly once: the rows say which queues they go to, so a ledger has to know.
    options = {"url": mqd_url, "delivery": "exactly-once", "txnAppId": name("app"), "txnVersion": "1"}
    for _ in range(2):
        rows.write.format("amqp").options(**options).mode("append").save()
    assert len(batch_rows(mqd_url, streams=f"{single},{several}")) == 600
    # Rows that were read go back only if nothing else says where they go.
    read = spark.read.format("amqp").options(url=mqd_url, stream=several).load()
    back = read.select("value", "stream", "partition").limit(1)
    with pytest.raises(Exception, match="column 'stream' and option 'stream' both say where"):
        back.write.format("amqp").options(url=mqd_url, stream=single).mode("append").save()
    with pytest.raises(Exception, match="column 'stream' cannot be used with packing"):
        back.write.format("amqp").options(url=mqd_url, packing="arrow").mode("append").save()
    back.write.format("amqp").options(url=mqd_url).mode("append").save()
    assert len(batch_rows(mqd_url, several)) == 401
    mqd_peer.channel.exchange_delete(several)


def test_partitions_are_chosen_on_both_brokers(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    stream = name("super")
    for number in range(2):
        stream_of(peer, f"{stream}-{number}")
    rows = spark.range(0, 20, 1, 1).selectExpr(
        "cast(id as string) as value", "cast(id % 2 as int) as partition"
    )
    rows.selectExpr("value", "partition", f"'{stream}' as stream").write.format("amqp").options(url=url).mode(
        "append"
    ).save()
    found = batch_rows(url, stream)
    assert sorted((int(row["value"]), row["partition"]) for row in found) == [(n, n % 2) for n in range(20)]


def test_a_packed_column_stream_is_refused_by_the_driver() -> None:
    from pyspark.sql.types import StringType, StructType

    from spark_sink.sink.packing import check_columns

    with pytest.raises(BadColumn, match="column 'stream' cannot be used with packing"):
        check_columns(StructType().add("value", StringType()).add("stream", StringType()))
