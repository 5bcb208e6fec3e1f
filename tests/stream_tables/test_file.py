"""Files of tables, made of segments on the disk and of objects in a store."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqp_server.streams.layout.encode import Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.wire import content
from persistence.streams.files import DiskFiles
from persistence.streams.log import Stored, StreamLog
from persistence.streams.remote.file_objects import FileObjects
from persistence.streams.remote.manifest import Range
from persistence.streams.remote.objects import Objects, Unavailable
from persistence.streams.remote.table import TableName, Write
from persistence.streams.remote.upload import Upload
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.run import Run
from stream_tables.ahead import AHEAD_MAX, Ahead
from stream_tables.file import TableFile
from tests.stores.s3 import s3_server

TABLE = TableName("archive", "/", "s", "identity")
#: A batch has a message of this size.
BODY_BYTES = 50_000


@pytest.fixture(scope="module", params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    if request.param == "directory":
        yield FileObjects(tmp_path_factory.mktemp("store"))
    else:
        with s3_server() as server:
            yield server.objects("tables")


def log_of(directory: Path) -> StreamLog:
    """Return a log with a full segment of 40 messages, and another one."""
    log = StreamLog(DiskFiles(), directory, 40 * BODY_BYTES)
    log.open(0)
    for number in range(45):
        encoder = Encoder(Layouts(), number, 1_764_547_200_000 + number)
        body = b"%d " % number * (BODY_BYTES // len(b"%d " % number))
        built = content.build(content.Properties({}).encode(len(body)), body, 1, 131_072)
        encoder.add(
            Run(range(number, number + 1), [bytes(built)], b"\x00\x01s", Attributes(True, 0, None, 1, 0))
        )
        (encoded,) = encoder.finish()
        batch = encoded.batch
        log.append([Stored(batch.base, batch.stop, batch.time_ms, encoded.parts, batch.size)])
    return log


def uploaded(log: StreamLog, objects: Objects, identity: str) -> Range:
    segment = log.sealed[0]
    found = Upload(log, objects, identity, segment, 0, threading.Event(), with_damage=False).run().range
    assert found is not None
    return found


def offsets(objects: Objects, key: str) -> list[int]:
    data = objects.read(key, 0, objects.size(key) or 0)
    rows = pq.read_table(io.BytesIO(data))
    for offset, value in zip(
        rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True
    ):
        assert value.startswith(b"%d " % offset)
    found: list[int] = rows.column("offset").to_pylist()
    return found


@pytest.mark.parametrize("place", ["disk", "store", "both", "damaged"])
def test_a_range_is_read_where_it_is(place: str, objects: Objects, tmp_path: Path) -> None:
    log = log_of(tmp_path / "log")
    table = TABLE._replace(identity=f"identity of {place}")
    range_ = uploaded(log, objects, table.identity)
    segments = log.segments[:1]
    path = log.path(segments[0].where, ".segment")
    if place == "store":
        segments = ()
    elif place == "both":
        path.unlink()
    elif place == "damaged":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    file = TableFile(objects, Write(table, range_, str(tmp_path / "log"), segments), 300_000)
    file.write()
    assert offsets(objects, file.key) == list(range(range_.first, range_.stop))
    assert range_.stop > 30
    written = objects.read(file.key, 0, objects.size(file.key) or 0)
    # Row groups keep the memory that a file takes small.
    assert 4 <= pq.ParquetFile(io.BytesIO(written)).num_row_groups <= 10
    # Another writer makes the same rows of the store alone.
    again = TABLE._replace(identity=table.identity, stream="again")
    other = TableFile(objects, Write(again, range_, str(tmp_path / "log"), ()), 300_000)
    other.write()
    assert offsets(objects, other.key) == offsets(objects, file.key)


def test_a_missing_object_leaves_no_file(objects: Objects, tmp_path: Path) -> None:
    log = log_of(tmp_path / "log")
    table = TABLE._replace(identity="missing")
    range_ = uploaded(log, objects, table.identity)
    objects.delete([each.key for each in objects.found(table.identity)])
    file = TableFile(objects, Write(table, range_, "", ()), 300_000)
    with pytest.raises(Unavailable, match="missing"):
        file.write()
    assert objects.size(file.key) is None


def test_parts_are_made_a_few_ahead() -> None:
    made: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(100):
            made.append(number)
            yield b"%d" % number

    ahead = Ahead(parts())
    taken = iter(ahead)
    assert [next(taken), next(taken)] == [b"0", b"1"]
    assert len(made) <= 2 + AHEAD_MAX + 2
    ahead.close()
    assert len(made) < 100
    assert b"".join(Ahead(parts())) == b"".join(b"%d" % number for number in range(100))


def test_what_the_parts_raise_is_raised_where_they_are_taken() -> None:
    def parts() -> Iterator[bytes]:
        yield b"a"
        raise Unavailable("gone")

    ahead = Ahead(parts())
    taken = iter(ahead)
    assert next(taken) == b"a"
    with pytest.raises(Unavailable, match="gone"):
        next(taken)
    ahead.close()
