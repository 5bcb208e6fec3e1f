"""Rows out of a table's files equal those out of the messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.wire import content, tables
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.run import Run as QueueRun
from spark_sink.option_values import BadOption, StoreUrl
from spark_sink.options import read_options
from spark_sink.rows import source_schema
from spark_sink.sink.packing import CONTENT_TYPE, Packer
from spark_sink.source.columns import Decoder
from spark_sink.source.properties import BadMessage
from spark_sink.streams import slices
from spark_sink.streams.offsets import Partition, Range
from spark_sink.streams.slices import Slice, without_first
from spark_sink.streams.table_files import Part, TableFile
from spark_sink.streams.table_rows import NoFile, TableRows, last_offset
from spark_sink.streams.table_store import StoreFails, TableStore
from stream_tables.rows import SCHEMA as TABLE_SCHEMA
from stream_tables.rows import Rows
from tests.amqp_server.wire.published import field_tables
from tests.spark_sink.test_stored import stored
from tests.stream_tables.test_rows import PACKED, TYPES, head, packed, payload, short

SCHEMA = source_schema(of_stream=True)
FIRST, TIME_MS = 1 << 40, 1_764_547_200_123
QUEUE, PARTITION = "s-4", Partition("s", 4)
#: Routing, properties and body.
Message = tuple[bytes, dict[str, bytes], bytes]
numbers = count()


def encoded(sent: Sequence[Message], frame_max: int = 131_072) -> list[Encoded]:
    encoder = Encoder(Layouts(), FIRST, TIME_MS)
    for routing, properties, body in sent:
        built = content.build(payload(properties, len(body)), body, 1, frame_max)
        encoder.add(QueueRun(range(1), [bytes(built)], routing, Attributes(True, 0, None, 1, 0)))
    return encoder.finish()


def file_of(directory: Path, made: Sequence[Encoded], group_rows: int = 100) -> TableFile:
    """Write a file of a table, as the broker does but for the number of rows in a group."""
    batches = [rows for each in made for rows in Rows().of(each.batch, 0, 1 << 62)]
    path = directory / f"{next(numbers)}.parquet"
    pq.write_table(pa.Table.from_batches(batches, TABLE_SCHEMA), path, row_group_size=group_rows)
    return TableFile(str(path), made[0].batch.base, made[-1].batch.stop, "i")


def schema_of(names: Sequence[str]) -> StructType:
    return StructType([field for field in SCHEMA if field.name in names or not names])


def of_messages(made: list[Encoded], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows as they come from the broker."""
    found = Decoder(schema_of(names), QUEUE).stored_batches(stored(made), *PARTITION)
    return [row for batch in found for row in batch.to_pylist()]


def of_file(
    store: TableStore, file: TableFile, names: Sequence[str] = (), start: int = 0, end: int = 1 << 62
) -> list[dict[str, Any]]:
    part = Part(max(start, file.first), min(end, file.stop), file)
    found: list[dict[str, Any]] = []
    for batch in TableRows(store, schema_of(names), QUEUE, PARTITION, part):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def store(directory: Path) -> TableStore:
    return TableStore(StoreUrl("file", str(directory)))


def packed_rows(columns: dict[str, Any]) -> bytes:
    # To a super stream: rows with and without a key are in one message.
    (batch,) = Packer(1_000, ("s-0",)).packed([pa.record_batch(columns)])
    body: bytes = batch.column("value")[0].as_py()
    return body


KEYS = {
    "value": ["a", "b", "c"],
    "routing_key": pa.array(["k", None, "k"]),
    "priority": pa.array([1, None, 3]),
}
HEADERS = {"value": ["a"], "headers": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))}

messages = st.tuples(
    st.binary(max_size=5).map(lambda raw: head(b"x", raw)),
    st.fixed_dictionaries(
        {},
        optional={
            "headers": field_tables,
            "content_type": st.sampled_from([b"text/plain", CONTENT_TYPE.encode()]).map(short),
            "content_encoding": st.sampled_from([b"gzip", b"utf-8"]).map(short),
            "message_id": st.binary(max_size=6).map(short),
            "timestamp": st.integers(0, (1 << 64) - 1).map(lambda number: struct.pack(">Q", number)),
            "delivery_mode": st.integers(0, 255).map(lambda number: bytes((number,))),
            "cluster_id": st.just(short(b"c")),
        },
    ),
    st.binary(max_size=9),
) | st.sampled_from([KEYS, HEADERS]).map(lambda columns: (head(), PACKED, packed_rows(columns)))


@given(st.lists(messages, min_size=1, max_size=12), st.integers(1, 5), st.data())
def test_any_messages_give_the_same_rows(
    directory: Path, store: TableStore, sent: list[Message], group_rows: int, data: st.DataObject
) -> None:
    made = encoded(sent)
    file, due = file_of(directory, made, group_rows), of_messages(made)
    assert of_file(store, file) == due
    start, end = (FIRST + data.draw(st.integers(0, len(sent))) for _ in range(2))
    if start < end:
        assert of_file(store, file, (), start, end) == [row for row in due if start <= row["offset"] < end]
    for names in (("value",), ("offset",), ("broker_timestamp", "headers"), ("queue", "partition", "stream")):
        assert of_file(store, file, names) == [{name: row[name] for name in names} for row in due]
    Path(file.path).unlink()


@pytest.mark.parametrize(("field", "text"), TYPES)
def test_a_header_of_any_type_is_the_same(
    directory: Path, store: TableStore, field: bytes, text: str | None
) -> None:
    table = short(b"name") + field
    made = encoded([(head(), {"headers": len(table).to_bytes(4, "big") + table}, b"x")])
    found = of_file(store, file_of(directory, made))
    assert found == of_messages(made) and found[0]["headers"] == [("name", text)]


def test_properties_times_and_routes_are_the_same(directory: Path, store: TableStore) -> None:
    texts = "content_type content_encoding correlation_id reply_to expiration message_id type user_id app_id cluster_id"
    everything = {name: short(name.encode()) for name in texts.split()}
    everything |= {
        "delivery_mode": b"\x02",
        "priority": b"\xff",
        "timestamp": struct.pack(">Q", 1_764_547_200),
        "headers": tables.encode({"a": "b", "empty": ""}),
    }
    twice = b"".join(short(b"a") + b"S" + struct.pack(">I", 1) + text for text in (b"x", b"y"))
    made = encoded(
        [
            (head(b"amq.topic", b"a.b"), everything, b"1"),
            (head(), {}, b""),
            (head(), {"headers": bytes(4)}, b"2"),
            (head(), {"headers": len(twice).to_bytes(4, "big") + twice}, b"3"),
            (head(b"x", b"k\xff"), {"type": short(b"\xfe"), "timestamp": struct.pack(">Q", 1 << 60)}, b"4"),
        ]
    )
    found = of_file(store, file_of(directory, made))
    assert found == of_messages(made)
    one = found[0]
    assert (one["queue"], one["stream"], one["partition"], one["offset"]) == (QUEUE, "s", 4, FIRST)
    assert (one["redelivered"], one["type"], one["priority"]) == (False, "type", 255)
    assert one["timestamp"].timestamp() == 1_764_547_200
    assert one["broker_timestamp"].timestamp() == pytest.approx(TIME_MS / 1_000)


def test_messages_that_the_table_did_not_unpack_are_unpacked(directory: Path, store: TableStore) -> None:
    """They are rows when they come from the broker, or end the query."""
    other = packed(pa.table({"value": ["a"]}), {})
    none = packed(pa.table({"value": pa.array([], pa.string())}))
    made = encoded([(head(), {}, b"x"), (head(), PACKED, other), (head(), PACKED, none), (head(), {}, b"y")])
    file = file_of(directory, made)
    assert [row["value"] for row in of_file(store, file)] == [b"x", other, b"y"]
    assert of_file(store, file) == of_messages(made)
    assert of_file(store, file, ("offset",)) == of_messages(made, ("offset",))
    # As a table has it that does not take so many bytes of rows.
    rows = packed_rows(KEYS)
    made = encoded([(head(), {}, b"x"), (head(), {**PACKED, "content_type": short(b"?")}, rows)])
    file = file_of(directory, made)
    whole = pq.read_table(file.path)
    place = whole.schema.get_field_index("content_type")
    pq.write_table(
        whole.set_column(place, "content_type", pa.array([None, CONTENT_TYPE])),
        file.path,
    )
    due = of_messages(encoded([(head(), {}, b"x"), (head(), PACKED, rows)]))
    assert len(due) == 4 and of_file(store, file) == due
    for names in (("routing_key",), ("offset", "priority")):
        assert of_file(store, file, names) == [{name: row[name] for name in names} for row in due]
    made = encoded([(head(), PACKED, b"no rows")])
    with pytest.raises(BadMessage, match="the rows of a packed message cannot be read"):
        of_file(store, file_of(directory, made), ("offset",))
    with pytest.raises(BadMessage, match="the rows of a packed message cannot be read"):
        of_messages(made)


def test_only_row_groups_of_the_range_are_read(
    directory: Path, store: TableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(directory, encoded([(head(), {}, b"%d" % number) for number in range(100)]), 10)
    read: list[int] = []
    columns = TableRows._columns

    def noted(self: TableRows, opened: Any, number: int, names: list[str]) -> Any:
        read.append(number)
        return columns(self, opened, number, names)

    monkeypatch.setattr(TableRows, "_columns", noted)
    assert len(of_file(store, file, ("value",), FIRST + 29, FIRST + 41)) == 12
    assert read == [2, 3, 4]


def test_the_last_offset_of_a_file_before_another_one(directory: Path, store: TableStore) -> None:
    file = file_of(directory, encoded([(head(), {}, b"x")] * 30), 10)
    assert last_offset(store, file, 0, 1 << 62) == FIRST + 29
    assert last_offset(store, file, 0, FIRST + 15) == FIRST + 14
    assert last_offset(store, file, FIRST + 15, FIRST + 15) is None
    assert last_offset(store, file, 0, FIRST) is None


@pytest.mark.parametrize("names", [(), ("value", "routing_key")])
@pytest.mark.parametrize("groups", range(6))
def test_a_file_that_is_deleted_while_it_is_read_is_read_on_from_the_broker(
    directory: Path, store: TableStore, monkeypatch: pytest.MonkeyPatch, groups: int, names: Sequence[str]
) -> None:
    """Row groups end in the middle of a packed message, too; each row comes once."""
    sent = [(head(), {}, b"1"), (head(), PACKED, packed_rows(KEYS)), (head(), {}, b"3"), (head(), {}, b"4")]
    sent += [(head(), PACKED, packed_rows(KEYS)), (head(), {}, b"6")]
    made = encoded(sent)
    file = file_of(directory, made, 2)
    read = 0
    columns = TableRows._columns
    asked: list[tuple[int, int]] = []

    def until_then(self: TableRows, opened: Any, number: int, names: list[str]) -> Any:
        nonlocal read
        read += 1
        if read > groups:
            Path(file.path).unlink(missing_ok=True)
            raise self._store.failure(self._file, OSError("gone"))
        return columns(self, opened, number, names)

    def of_broker(_: object, schema: StructType, piece: Slice, start: int, end: int) -> Any:
        asked.append((start, end))
        for batch in Decoder(schema, piece.queue).stored_batches(stored(made), *PARTITION):
            offsets = batch.column("offset").to_pylist() if "offset" in schema.names else ()
            yield batch.filter(pa.array([start <= offset < end for offset in offsets]))

    monkeypatch.setattr(TableRows, "_columns", until_then)
    monkeypatch.setattr(slices, "_of_broker", of_broker)
    options = read_options({"stream": "s", "history": str(directory)})
    piece = Slice(QUEUE, Range(PARTITION, FIRST, FIRST + 6), 0, (file,))
    found = [row for batch in slices.rows(options, schema_of(names), piece) for row in batch.to_pylist()]
    assert found == of_messages(made, names)
    assert len(asked) == (groups < 5)


def test_rows_are_left_out_only_of_the_message_that_was_read_in_part() -> None:
    batches = [pa.record_batch({"offset": pa.array([5, 5], pa.int64())}), pa.record_batch({"offset": [5, 6]})]

    def offsets(offset: int, count: int) -> list[int]:
        left = without_first(iter(batches), offset, count)
        return [each for batch in left for each in batch.column("offset").to_pylist()]

    assert [offsets(5, count) for count in range(4)] == [[5, 5, 5, 6], [5, 5, 6], [5, 6], [6]]
    # Retention was faster.
    assert offsets(4, 3) == [5, 5, 5, 6]


def test_what_is_wrong_with_a_file_is_said(directory: Path, store: TableStore) -> None:
    bad = directory / "bad.parquet"
    bad.write_bytes(b"PAR1 is not enough")
    with pytest.raises(StoreFails, match=r"bad\.parquet' cannot be read \(option 'history' is file:///"):
        of_file(store, TableFile(str(bad), 0, 1, "i"))
    with pytest.raises(NoFile):
        of_file(store, TableFile(str(directory / "none.parquet"), 0, 1, "i"))
    nowhere = TableStore(StoreUrl("file", str(directory / "nowhere")))
    for call in (
        lambda: of_file(nowhere, TableFile(str(directory / "nowhere/a.parquet"), 0, 1, "i")),
        lambda: nowhere.files("tables"),
    ):
        with pytest.raises(BadOption, match="there is no directory .*nowhere on this machine"):
            call()
    assert store.files("tables/@2f/s") == []
