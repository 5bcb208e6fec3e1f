"""Iceberg catalogs of tables: names, secrets, and commits that come twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from amqp_server.startup.stream_remotes import StreamRemote
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import TableName
from stream_tables.catalog import Catalog, open_catalog, table_name
from stream_tables.rows import SCHEMA
from tests.stores.s3 import BUCKET, s3_server, write_keys

TABLE = TableName("archive", "/", "events", "identity")


def catalog_file(directory: Path, text: str) -> str:
    file = directory / "catalog.toml"
    file.touch(0o600)
    file.write_text(text)
    return str(file)


def catalog_of(directory: Path) -> Catalog:
    file = catalog_file(
        directory, f'type = "sql"\nuri = "sqlite:///{directory}/c.db"\nwarehouse = "file://{directory}/w"\n'
    )
    (directory / "w").mkdir(exist_ok=True)
    return open_catalog(StreamRemote("archive", f"file://{directory}/store", catalog_file=file))


def put(directory: Path, low: int, stop: int) -> str:
    """Write a file with these offsets; return its key."""
    key = TABLE.key(low, stop)
    path = directory / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"offset": each, "row": 0, "timestamp": each, "exchange": "", "routing_key": "", "value": b"x"}
        for each in range(low, stop)
    ]
    pq.write_table(SCHEMA.empty_table().from_pylist(rows, SCHEMA), path)
    return key


def offsets(catalog: Catalog) -> list[int]:
    found = catalog._catalog.load_table(("mqd", "events")).scan().to_arrow()
    return sorted(found.column("offset").to_pylist())


def test_a_file_is_added_once(tmp_path: Path) -> None:
    first, second = catalog_of(tmp_path), catalog_of(tmp_path)
    assert first.next_offset(TABLE) == -1
    for low, stop in ((0, 5), (5, 9)):
        key = put(tmp_path, low, stop)
        for catalog in (first, second, first):
            catalog.add(TABLE, key, stop)
            assert catalog.next_offset(TABLE) == stop
    assert offsets(first) == list(range(9))


def test_of_two_commits_at_the_same_time_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = catalog_of(tmp_path), catalog_of(tmp_path)
    first.add(TABLE, put(tmp_path, 0, 5), 5)
    key = put(tmp_path, 5, 9)
    commit = SqlCatalog.commit_table
    others: list[Catalog] = [second]

    def late(self: Any, *arguments: Any) -> Any:
        if others:
            others.pop().add(TABLE, key, 9)
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    with pytest.raises(Unavailable, match="CommitFailed"):
        first.add(TABLE, key, 9)
    assert not others
    first.add(TABLE, key, 9)
    assert offsets(first) == list(range(9))


def test_deleted_messages_leave_the_table_file_by_file(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    catalog.cut(TABLE, 5)
    for low, stop in ((0, 5), (5, 9), (9, 12)):
        catalog.add(TABLE, put(tmp_path, low, stop), stop)
    catalog.cut(TABLE, 9)
    catalog.cut(TABLE, 9)
    assert offsets(catalog) == [9, 10, 11]
    # No file was written anew.
    files = catalog._catalog.load_table(("mqd", "events")).inspect.files().column("file_path").to_pylist()
    assert files == [f"file://{tmp_path}/store/{TABLE.key(9, 12)}"]
    catalog.drop(TABLE)
    catalog.drop(TABLE)
    assert catalog.next_offset(TABLE) == -1


def test_names_are_different_and_plain() -> None:
    pairs = [
        ("/", "events"),
        ("/", "Events"),
        ("/", "e vents"),
        ("/", "e-vents"),
        ("a", "events"),
        ("/", "a__events"),
        ("a__events", "x"),
        ("a", "events__x"),
        ("/", "x" * 200),
        ("/", "x" * 201),
        ("/", "ü"),
    ]
    names = [table_name(*pair) for pair in pairs]
    assert names[0] == "events" and names[4] == "a__events"
    assert len(set(names)) == len(pairs) and all(name.isascii() and name.lower() == name for name in names)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("type = 5", "must have lines"),
        ("type", "is no TOML file"),
        ('type = "sql"\nuri = "nothing://a:pass1234word@b"', "the Iceberg catalog"),
        ('type = "unknown"\ntoken = "pass1234word"', "the Iceberg catalog"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_without_its_secrets(tmp_path: Path, text: str, told: str) -> None:
    file = catalog_file(tmp_path, text)
    with pytest.raises(Unavailable, match=told) as failed:
        open_catalog(StreamRemote("archive", "file:///store", catalog_file=file))
    assert "pass1234word" not in str(failed.value)


def test_other_users_must_not_read_the_file(tmp_path: Path) -> None:
    file = catalog_file(tmp_path, "")
    Path(file).chmod(0o644)
    with pytest.raises(Unavailable, match="chmod"):
        open_catalog(StreamRemote("archive", "file:///store", catalog_file=file))


def test_azure_has_no_iceberg_tables(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="s3://"):
        open_catalog(StreamRemote("archive", "az://a/b", catalog_file=catalog_file(tmp_path, "")))


def test_a_table_in_s3_is_read_with_the_keys_of_the_store(tmp_path: Path) -> None:
    file = catalog_file(
        tmp_path, f'type = "sql"\nuri = "sqlite:///{tmp_path}/c.db"\nwarehouse = "s3://{BUCKET}/warehouse"\n'
    )
    with s3_server() as server:
        remote = StreamRemote(
            "archive",
            f"s3://{BUCKET}/prefix",
            region="us-east-1",
            endpoint=server.endpoint,
            allow_http=True,
            credentials_file=str(write_keys(tmp_path)),
            catalog_file=file,
        )
        catalog, key = open_catalog(remote), put(tmp_path, 0, 5)
        data = (tmp_path / "store" / key).read_bytes()
        server.objects("prefix").put(key, iter([data]), len(data))
        catalog.add(TABLE, key, 5)
        assert offsets(catalog) == list(range(5))
        catalog.cut(TABLE, 5)
        assert offsets(catalog) == []
