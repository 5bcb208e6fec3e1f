"""A stream of three real nodes that is a table in an S3 server on this machine: kill -9 of leaders in the
middle of writing.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance_tests.patience import PATIENCE_S, open_connection
from persistence.streams.remote.table import offsets_of_table
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.cluster.test_tiered_streams import publish
from tests.reliability.test_stream_tables import ARGUMENTS
from tests.reliability.test_streams import url
from tests.reliability.test_tiered_streams import OPTIONS, STREAM
from tests.stores.s3 import S3Server, s3_server

NODES = ("n1", "n2", "n3")


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def cluster(s3: S3Server, tmp_path: Path) -> Iterator[MqdCluster]:
    remote = s3.remote("cluster", tmp_path)
    with MqdCluster(NODES, "--stream-remotes", remote, *OPTIONS) as started:
        yield started


def keys(s3: S3Server, end: str) -> list[str]:
    return sorted(key for key in s3.all_keys("cluster") if key.endswith(end))


def complete(s3: S3Server) -> bool:
    """Return whether the table has as many files as the store has segments."""
    files = keys(s3, ".parquet")
    return bool(files) and len(files) == len(keys(s3, ".segment"))


def check(s3: S3Server, confirmed: int) -> None:
    """Check that the files have each message once, and those that were confirmed."""
    objects, files = s3.objects("cluster"), keys(s3, ".parquet")
    assert all(key.startswith(f"tables/@2f/{STREAM}/") for key in files)
    tables = [pq.read_table(io.BytesIO(objects.read(key, 0, objects.size(key) or 0))) for key in files]
    rows = pa.concat_tables(tables)
    stop = offsets_of_table(files[-1])[1]
    assert rows.column("offset").to_pylist() == list(range(stop))
    numbers = {int(value.split()[0]) for value in rows.column("value").to_pylist()}
    assert numbers == set(range(max(numbers) + 1)) and max(numbers) < confirmed


def wait_until_complete(cluster: MqdCluster, s3: S3Server) -> None:
    # The process that writes has a low priority, and others use the machine.
    wait_for(
        "the table is complete",
        lambda: complete(s3),
        3 * PATIENCE_S,
        state=lambda: f"{s3.all_keys('cluster')} {cluster.log(cluster.leader(STREAM))[-2000:]}",
    )


@pytest.mark.long
def test_a_table_has_each_message_once_whoever_leads(cluster: MqdCluster, s3: S3Server) -> None:
    reached = publish(cluster, "n1", 0, 300, ARGUMENTS)
    wait_until_complete(cluster, s3)
    check(s3, reached)
    for _ in range(3):
        leader = cluster.leader(STREAM)
        timer = threading.Timer(1.0, cluster.kill, [leader])
        timer.start()
        other = next(name for name in NODES if name != leader)
        reached = publish(cluster, other, reached, reached + 250, ARGUMENTS)
        timer.join()
        cluster.restart(leader)
    wait_until_complete(cluster, s3)
    check(s3, reached)
    leader = cluster.leader(STREAM)
    assert f"tables/@2f/{STREAM}" in cluster.mqctl(leader, "list_queues", "name", "table")
    told = cluster.mqctl(leader, "remote", "check", "--delete-orphans")
    assert "0 orphans were deleted" in told
    connection = open_connection(url(cluster.port("n1")))
    connection.channel().queue_delete(STREAM)
    connection.close()
    wait_for("the objects are deleted", lambda: not s3.all_keys("cluster"))
