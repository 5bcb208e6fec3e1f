"""One suite for all object stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistence.streams.remote.cache import BLOCK_BYTES, ObjectCache
from persistence.streams.remote.cloud_objects import CloudObjects
from persistence.streams.remote.file_objects import FileObjects
from persistence.streams.remote.objects import Absent, Objects, Unavailable
from tests.stores.objects import SimulatedObjects
from tests.stores.s3 import BUCKET, KEYS, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["memory", "directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return SimulatedObjects()
    if request.param == "directory":
        return FileObjects(tmp_path / "not" / "yet")
    return cloud(request.getfixturevalue("s3").endpoint, tmp_path.name)


def cloud(endpoint: str, prefix: str = "p") -> CloudObjects:
    settings = {**KEYS, "region": "us-east-1", "endpoint": endpoint}
    return CloudObjects(f"s3://{BUCKET}/{prefix}", settings, allow_http=True)


def put(objects: Objects, key: str, data: bytes, step: int = 1 << 20) -> None:
    objects.put(key, (data[at : at + step] for at in range(0, len(data), step)), len(data))


def test_what_is_put_is_read(objects: Objects) -> None:
    data = os.urandom(100_000)
    put(objects, "a/x.segment", data, 30_000)
    assert objects.size("a/x.segment") == len(data)
    assert objects.read("a/x.segment", 0, 100) == data[:100]
    assert objects.read("a/x.segment", 99_950, 100) == data[99_950:]
    put(objects, "a/x.segment", data)
    assert objects.read("a/x.segment", 5, 100_000) == data[5:]


def test_an_object_in_many_parts(objects: Objects) -> None:
    data = os.urandom(1 << 20) * 20
    put(objects, "a/large.segment", data)
    assert objects.size("a/large.segment") == len(data)
    assert objects.read("a/large.segment", 9 << 20, 1 << 20) == data[: 1 << 20]


def test_absent_ones(objects: Objects) -> None:
    assert objects.size("a/none") is None
    with pytest.raises(Absent):
        objects.read("a/none", 0, 10)
    objects.delete(["a/none", "b/none"])
    assert list(objects.found("a")) == []


def test_found_and_deleted(objects: Objects) -> None:
    for key in ("a/1", "a/2", "ab/3"):
        put(objects, key, key.encode())
    assert [(each.key, each.size) for each in objects.found("a")] == [("a/1", 3), ("a/2", 3)]
    assert sorted(each.key for each in objects.found("")) == ["a/1", "a/2", "ab/3"]
    objects.delete(["a/1", "a/2", "a/1"])
    assert [each.key for each in objects.found("")] == ["ab/3"]


def test_an_object_that_is_gone_keeps_no_other_one(objects: Objects) -> None:
    """Two threads may delete what one stream leaves, and the first takes the directory with it."""
    put(objects, "b/1", b"x")
    objects.delete(["a/gone", "b/1"])
    assert [each.key for each in objects.found("")] == []


def test_an_object_that_is_deleted_while_others_are_found_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FileObjects(tmp_path)
    for key in ("a/1", "a/2", "b/3"):
        put(objects, key, b"x")
    found = Path.stat

    def too_late(path: Path, **arguments: Any) -> Any:
        """Another thread deletes it before the second look."""
        status = found(path, **arguments)
        if path.name == "2":
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", too_late)
    assert [each.key for each in objects.found("")] in (["a/1", "b/3"], ["a/1", "a/2", "b/3"])
    assert [each.key for each in objects.found("")] == ["a/1", "b/3"]


def test_a_put_that_fails_leaves_nothing(objects: Objects) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 1000
        raise FileNotFoundError("the segment was deleted")

    with pytest.raises((Unavailable, FileNotFoundError)):
        objects.put("a/half", parts(), 2000)
    assert objects.size("a/half") is None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    objects = FileObjects(tmp_path / "file")
    with pytest.raises(Unavailable):
        put(objects, "a/1", b"x")
    with pytest.raises(Unavailable):
        objects.read("a/1", 0, 1)


def test_a_server_that_is_gone_and_no_key_in_its_text(s3: S3Server) -> None:
    objects = cloud("http://127.0.0.1:1")
    for call in (
        lambda: put(objects, "a/1", b"x"),
        lambda: objects.read("a/1", 0, 1),
        lambda: objects.size("a/1"),
        lambda: objects.delete(["a/1"]),
        lambda: list(objects.found("a")),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert not any(secret in str(raised.value) for secret in KEYS.values())
    with pytest.raises(Unavailable):
        CloudObjects("s3://x/y", {"no_such_setting": "1"})


class TestCache:
    def test_it_reads_each_block_once_and_ahead(self) -> None:
        store, cache = SimulatedObjects(), ObjectCache(64 * BLOCK_BYTES)
        data = os.urandom(1 << 16) * 64
        store.objects["k"] = data
        for at in range(0, len(data), 10_000):
            assert cache.read(store, "k", at, 10_000, len(data)) == data[at : at + 10_000]
        # 1, 2, 4, 8 and the last block.
        assert store.reads == 5
        assert cache.read(store, "k", 5, len(data), len(data)) == data[5:]
        assert store.reads == 5

    def test_it_has_a_bound(self) -> None:
        store, cache = SimulatedObjects(), ObjectCache(3 * BLOCK_BYTES)
        data = os.urandom(1 << 16) * 64
        store.objects["k"] = data
        for at in (0, 1_000_000, 300_000, len(data) - 50, 0):
            assert cache.read(store, "k", at, 700_000, len(data)) == data[at : at + 700_000]
            assert cache.bytes <= 3 * BLOCK_BYTES
        cache.forget("k")
        assert cache.bytes == 0

    def test_nothing_is_kept_of_a_short_answer(self) -> None:
        store, cache = SimulatedObjects(), ObjectCache(1 << 20)
        store.objects["k"] = b"short"
        assert cache.read(store, "k", 0, 100, 100) == b"short"
        store.objects["k"] = b"x" * 100
        assert cache.read(store, "k", 0, 100, 100) == b"x" * 100
