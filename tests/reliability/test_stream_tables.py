"""Streams of a real node that are tables, too, read by DuckDB: kill -9 in the middle of writing, a process
that is killed, workers, and an Iceberg catalog.
"""

from __future__ import annotations

import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pika
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from conformance_tests.patience import open_connection
from tests.reliability.node import Node, wait_until
from tests.reliability.test_streams import noise, url
from tests.reliability.test_tiered_streams import OPTIONS, STREAM, publish, publish_and_kill, read, row

ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "stream",
    "x-stream-remote": "archive",
    "x-stream-table": "parquet",
    "x-stream-local-max-length-bytes": 200_000,
    "x-stream-max-segment-size-bytes": 65_536,
}


def node_with(directory: Path, *options: str, **settings: str) -> Node:
    file = directory / "mqd.toml"
    lines = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
    file.write_text(f'[stream_remotes.archive]\nurl = "file://{directory}/store"\n{lines}')
    return Node(directory, "--config", str(file), *OPTIONS, *options)


def files(directory: Path) -> str:
    """Return what DuckDB and Spark read, as docs/tables.md has it."""
    return f"{directory}/store/tables/@2f/{STREAM}/*.parquet"


def offsets(directory: Path) -> list[int]:
    found = duckdb.execute(
        f"SELECT \"offset\" FROM read_parquet('{files(directory)}') ORDER BY ALL"
    ).fetchall()
    return [offset for (offset,) in found]


def wait_for_table(node: Node) -> int:
    """Wait until the table has all that the store has, and return where it ends. More may come at any time:
    messages go to segments later than they are confirmed.
    """
    stops: list[int] = []

    def complete() -> bool:
        found = row(node)
        stops.append(found["table_next_offset"] or 0)
        return bool(found["remote_segments"]) and stops[-1] == _stop(node)

    wait_until("the table has what the store has", complete)
    return stops[-1]


def check(stop: int, found: list[int]) -> None:
    """Check that these are the offsets of all messages, each once, up to `stop` at least."""
    assert found == list(range(len(found))) and len(found) >= stop > 0


def _stop(node: Node) -> int:
    """Return the offset behind the last message in the store."""
    store = Path(node.data).parent / "store"
    keys = [path.name for path in store.rglob("*.segment")]
    return max(int(name.split("-")[1]) + 1 for name in keys)


def process_of_tables(node: Node) -> list[int]:
    """Return the processes that write tables for this node. A thread has started them."""
    children: list[str] = []
    for task in Path(f"/proc/{node.pid}/task").iterdir():
        children += (task / "children").read_text().split()
    return [int(pid) for pid in children if b"stream_tables" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_stream_is_read_by_duckdb(tmp_path: Path) -> None:
    with node_with(tmp_path) as node:
        assert publish(node.port, 0, 600, ARGUMENTS) == 600
        stop = wait_for_table(node)
        check(stop, offsets(tmp_path))
        assert stop > 400
        query = f"""
            SELECT count(*) = count(DISTINCT value), count(*) >= {stop}, min("offset"), bool_and(routing_key = '{STREAM}'),
                   max("timestamp") - min("timestamp") < INTERVAL 1 HOUR
            FROM read_parquet('{files(tmp_path)}')
        """
        assert duckdb.execute(query).fetchall() == [(True, True, 0, True, True)]
        # The rest is in the stream, from there on.
        assert [offset for offset, _ in read(node.port, stop, 600)] == list(range(stop, 600))
        told = node.mqctl("list_queues", "name", "table", "table_next_offset")
        assert f"tables/@2f/{STREAM}" in told and int(told.split()[-1]) >= stop
        told = node.mqctl("remote", "check")
        assert "table_files" in told
        # It ends with the node.
        (pid,) = process_of_tables(node)
        node.kill()
        wait_until("the process that writes tables has ended", lambda: not Path(f"/proc/{pid}").exists())


HEADERS: dict[str, Any] = {
    "text": "a",
    "number": 5,
    "decimal": Decimal("1.5"),
    "flag": True,
    "bytes": b"\xff",
    "nothing": None,
    "nested": {"a": [1, "x"]},
}


def test_values_come_as_the_page_says(tmp_path: Path) -> None:
    name = "odd *?[name]/ü'"
    with node_with(tmp_path) as node:
        connection = open_connection(url(node.port))
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=ARGUMENTS)
        channel.confirm_delivery()
        large = os.urandom(30 << 20)
        channel.basic_publish("", name, b"", pika.BasicProperties(headers=HEADERS, message_id="m1", type="t"))
        channel.basic_publish("", name, large, pika.BasicProperties(timestamp=1_764_547_200))
        for number in range(100):
            channel.basic_publish("", name, b"%d" % number + noise())
        connection.close()
        directory = tmp_path / "store" / "tables" / "@2f" / "odd@20@2a@3f@5bname@5d@2f@c3@bc@27"
        glob = f"{directory}/*.parquet"
        wait_until("there is a table", lambda: len(list(directory.glob("*.parquet"))) > 1)
    found = duckdb.execute(
        "SELECT headers['number'], headers['decimal'], headers['nested'], headers['nothing'], message_id, type, "
        f"octet_length(value), raw_properties IS NULL FROM read_parquet('{glob}') ORDER BY \"offset\" LIMIT 2"
    ).fetchall()
    assert found[0] == ("5", "1.5", '{"a": [1, "x"]}', None, "m1", "t", 0, False)
    assert found[1][6] == len(large)
    (value,) = duckdb.execute(f"SELECT value FROM read_parquet('{glob}') WHERE \"offset\" = 1").fetchall()[0]
    assert value == large


def test_kills_in_the_middle_of_writing_leave_each_message_once(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    confirmed = 0
    with node:
        for round in range(4):
            if round:
                confirmed = publish_and_kill(node, confirmed, 0.4 + 0.3 * round)
            else:
                confirmed = publish(node.port, 0, 200, ARGUMENTS)
                node.kill()
            node.start()
        confirmed = publish(node.port, confirmed, confirmed + 100, ARGUMENTS)
        check(wait_for_table(node), offsets(tmp_path))
        # The process that writes is killed: it is started again.
        (pid,) = process_of_tables(node)
        os.kill(pid, signal.SIGKILL)
        publish(node.port, confirmed, confirmed + 200, ARGUMENTS)
        check(wait_for_table(node), offsets(tmp_path))
        assert not list((tmp_path / "store" / "tables").rglob("*.partial"))


def test_retention_and_deletion_reach_the_table(tmp_path: Path) -> None:
    with node_with(tmp_path) as node:
        publish(node.port, 0, 600, ARGUMENTS | {"x-max-length-bytes": 500_000})
        stop = wait_for_table(node)
        found = offsets(tmp_path)
        assert found[0] == row(node)["first_offset"] > 50 and found[-1] >= stop - 1
        assert found == list(range(found[0], found[-1] + 1))
        connection = open_connection(url(node.port))
        connection.channel().queue_delete(STREAM)
        connection.close()
        store = tmp_path / "store"
        wait_until("the files are deleted", lambda: not [path for path in store.rglob("*") if path.is_file()])


def test_workers_write_the_tables_of_their_streams(tmp_path: Path) -> None:
    with node_with(tmp_path, "--workers", "2") as node:
        assert publish(node.port, 0, 300, ARGUMENTS) == 300
        check(wait_for_table(node), offsets(tmp_path))


NAMESPACE = "history"


def with_catalog(directory: Path) -> Node:
    file = directory / "catalog.toml"
    file.write_text(
        f"""type = "sql"
uri = "sqlite:///{directory}/catalog.db"
warehouse = "file://{directory}/warehouse"
namespace = "{NAMESPACE}"
"""
    )
    file.chmod(0o600)
    (directory / "warehouse").mkdir()
    return node_with(directory, catalog_file=str(file))


def open_catalog(directory: Path) -> Any:
    return load_catalog(
        "archive",
        type="sql",
        uri=f"sqlite:///{directory}/catalog.db",
        warehouse=f"file://{directory}/warehouse",
    )


def iceberg(directory: Path) -> Any:
    """Return the table, as the catalog has it."""
    return open_catalog(directory).load_table(f"{NAMESPACE}.{STREAM}")


def iceberg_offsets(directory: Path) -> list[int]:
    found = iceberg(directory).scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist()
    return sorted(found)


def test_each_file_is_in_the_iceberg_table_once(tmp_path: Path) -> None:
    node = with_catalog(tmp_path)
    with node:
        confirmed = publish(node.port, 0, 200, ARGUMENTS)
        for round in range(3):
            confirmed = publish_and_kill(node, confirmed, 2 + 0.3 * round)
            node.start()
        confirmed = publish(node.port, confirmed, confirmed + 100, ARGUMENTS)
        check(wait_for_table(node), iceberg_offsets(tmp_path))
        table = iceberg(tmp_path)
        stop = table.properties["mqd.next-offset"]
        assert table.current_snapshot().summary["mqd.next-offset"] == stop
        assert table.scan(selected_fields=("offset",)).to_arrow().num_rows == int(stop)
        found = table.scan(row_filter="offset = 5", selected_fields=("value", "routing_key")).to_arrow()
        assert found.num_rows == 1 and found.column("routing_key").to_pylist() == [STREAM]


def test_retention_and_deletion_reach_the_iceberg_table(tmp_path: Path) -> None:
    with with_catalog(tmp_path) as node:
        publish(node.port, 0, 600, ARGUMENTS | {"x-max-length-bytes": 500_000})
        wait_for_table(node)
        wait_until(
            "the table forgets what is deleted",
            lambda: (
                iceberg_offsets(tmp_path)
                == offsets(tmp_path)
                == list(range(row(node)["first_offset"], _stop(node)))
            ),
        )
        connection = open_connection(url(node.port))
        connection.channel().queue_delete(STREAM)
        connection.close()
        store = tmp_path / "store"
        wait_until("the files are deleted", lambda: not [path for path in store.rglob("*") if path.is_file()])
        with pytest.raises(NoSuchTableError):
            iceberg(tmp_path)


def test_an_iceberg_table_of_another_stream_is_left_alone(tmp_path: Path) -> None:
    with with_catalog(tmp_path) as node:
        catalog = open_catalog(tmp_path)
        catalog.create_namespace(NAMESPACE)
        catalog.create_table(f"{NAMESPACE}.{STREAM}", pa.schema([("a", pa.int64())]))
        publish(node.port, 0, 200, ARGUMENTS)
        wait_until("there is an alarm", lambda: "stream_table alarm set" in node.log())
        assert f"the Iceberg table {NAMESPACE}.{STREAM} is not that of this stream" in node.log()
        # Uploads go on, and so do the files.
        wait_until("the store has segments", lambda: row(node)["remote_segments"] > 2)
        assert iceberg(tmp_path).current_snapshot() is None
        catalog.drop_table(f"{NAMESPACE}.{STREAM}")
        stop = wait_for_table(node)
        check(stop, iceberg_offsets(tmp_path))
        check(stop, offsets(tmp_path))
        wait_until("the alarm ends", lambda: "stream_table alarm cleared" in node.log())
