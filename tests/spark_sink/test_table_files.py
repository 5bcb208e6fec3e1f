"""Names of a table's files, and which of them a range is read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.streams.remote.table import table_directory, table_key
from spark_sink.option_values import BadOption, StoreUrl, store
from spark_sink.streams.table_files import TableFile, directory_of, file_of, parts, within

NAMES = (
    st.text("abzAZ09_.-/@ äß%\0", max_size=6) | st.text(max_size=200) | st.integers(100, 130).map("x".__mul__)
)


@given(NAMES, NAMES)
def test_directories_are_those_of_the_broker(vhost: str, queue: str) -> None:
    assert directory_of(vhost, queue) == table_directory(vhost, queue)


@given(st.integers(0, 2**62), st.integers(1, 10**11), st.uuids())
def test_names_of_files_are_those_of_the_broker(first: int, count: int, identity: object) -> None:
    key = table_key(table_directory("/", "s"), f"{identity}", first, first + count)
    assert file_of(f"/store/{key}") == TableFile(f"/store/{key}", first, first + count, f"{identity}")


@pytest.mark.parametrize(
    "name",
    ["", ".parquet", "1-2-a.parquet", f"{0:020}-{1:010}-a.parquet.1.partial", f"{0:020}-{1:010}-a.segment"],
)
def test_other_files_are_not_those_of_a_table(name: str) -> None:
    assert file_of(f"/store/{name}") is None


@st.composite
def tables(draw: st.DrawFn) -> list[TableFile]:
    """Files with gaps between some of them, in any order."""
    at, found = draw(st.integers(0, 9)), []
    for number in range(draw(st.integers(0, 6))):
        count = draw(st.integers(1, 9))
        found.append(TableFile(f"{number}", at, at + count, "i"))
        at += count + draw(st.sampled_from([0, 0, 3]))
    return draw(st.permutations(found))


@given(tables(), st.integers(0, 40), st.integers(0, 40))
def test_each_offset_has_one_place_and_a_file_if_there_is_one(
    files: list[TableFile], start: int, count: int
) -> None:
    found = parts(start, start + count, files)
    assert [offset for each in found for offset in range(each.start, each.end)] == [
        *range(start, start + count)
    ]
    for part in found:
        for offset in range(part.start, part.end):
            assert part.file == next((each for each in files if each.first <= offset < each.stop), None)
    # What has no file is one part.
    assert all(one.file or other.file for one, other in zip(found, found[1:], strict=False))
    named = [each.file for each in found if each.file is not None]
    assert list(within(start, start + count, files)) == named or not count


def test_stores_are_named_as_the_broker_names_them() -> None:
    assert store("history", "/mnt/archive/") == StoreUrl("file", "/mnt/archive")
    assert store("history", "file:///mnt/a b?c") == StoreUrl("file", "/mnt/a b?c")
    assert store("history", "s3://bucket/a/b/") == StoreUrl("s3", "bucket/a/b")
    assert store("history", "s3a://bucket") == StoreUrl("s3", "bucket")
    assert store("history", "gs://bucket/prefix") == StoreUrl("gs", "bucket/prefix")
    url = "s3://b/p?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1%3A9000&allow_http=true"
    assert store("history", url) == StoreUrl("s3", "b/p", "eu-central-1", "http://127.0.0.1:9000", True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "archive",
        "file://archive",
        "s3://",
        "s3://key:secret@bucket/p",
        "s3://bucket?key=secret",
        "s3://bucket?allow_http=yes",
        "gs://bucket?region=x",
        "az://container/prefix",
        "http://host/p",
    ],
)
def test_other_stores_are_refused(value: str) -> None:
    with pytest.raises(BadOption, match="option 'history' must be a store such as s3://bucket/prefix"):
        store("history", value)
