"""Streams of one node that are tables, too: files of Parquet beside the segments in the object store."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outcome import Outcome, capture
from pamqp import commands

from amqp_server.broker.declared.operations import PutParameter
from amqp_server.startup.stream_remotes import StreamRemote
from amqp_server.streams.local_host import StreamServices
from persistence.streams.remote.checking import compare
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import Find, Job, Write, table_directory
from quorum_queue.local_host import NodeServices
from stream_tables.work import Tables
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import declare, opened, publish
from tests.amqp_server.streams.test_tiers import LOCAL, TieredNode, fill

TABLE = {"x-stream-table": "parquet"}


class TableNode(TieredNode):
    """A node whose tables are written in this process."""

    def _stream_services(self, services: NodeServices) -> StreamServices:
        self.table_jobs: list[Job] = []
        self.table_alarm = ""
        found = super()._stream_services(services)
        tables = Tables(
            {"archive": StreamRemote("archive", "file:///nowhere")},
            lambda remote: self.store_objects,
            1 << 20,
        )

        def do(job: Job) -> int:
            self.table_jobs.append(job)
            return tables.do(job)

        self.stores.tables = do
        found.remotes._on_tables = self._table_alarm
        return found

    def _table_alarm(self, text: str) -> None:
        self.table_alarm = text

    def rows(self, name: str = "s") -> pa.Table:
        found = [pq.read_table(io.BytesIO(data)) for _, data in sorted(self.table_files(name).items())]
        return pa.concat_tables(found)

    def table_files(self, name: str = "s") -> dict[str, bytes]:
        directory = table_directory("/", name) + "/"
        return {key: data for key, data in self.store_objects.objects.items() if key.startswith(directory)}


@pytest.fixture
def node() -> TableNode:
    return TableNode()


def with_table(node: TieredNode, **arguments: object) -> Peer:
    peer = opened(node)
    table: dict[str, Any] = {"x-stream-remote": "archive"} | LOCAL | TABLE | arguments
    answers = declare(peer, **table)
    assert isinstance(answers[-1][1], commands.Queue.DeclareOk), answers
    return peer


def check(node: TableNode) -> None:
    """The table has what the manifest has, each message once."""
    tier = node.host().tier
    assert tier is not None and tier.manifest is not None
    ranges = tier.ranges
    assert len(node.table_files()) == len(ranges)
    rows = node.rows()
    assert rows.column("offset").to_pylist() == list(range(ranges[0].first, ranges[-1].stop))
    for offset, value in zip(
        rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True
    ):
        assert value == b"%06d" % offset * 20


def test_a_stream_is_a_table(node: TableNode) -> None:
    peer = with_table(node)
    fill(node, peer, 0, 60)
    tier = node.host().tier
    assert tier is not None and len(tier.ranges) > 10
    check(node)
    keys = sorted(node.table_files())
    assert keys[0].startswith("tables/@2f/s/00000000000000000000-00000")
    rows = node.rows()
    assert set(rows.column("routing_key").to_pylist()) == {"s"}
    assert node.host().table_figures() == ("tables/@2f/s", tier.stop)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_compressed_segments_and_those_without_duplicates_are_tables(node: TableNode, codec: str) -> None:
    peer = with_table(node, **{"x-stream-compression": codec, "x-deduplication": True})
    for number in range(40):
        for _ in range(2):
            # The second one is a duplicate, and takes no offset.
            publish(peer, [b"%06d" % number * 20], more=[{"x-deduplication-id": f"m{number}"}])
            node.work()
    tier = node.host().tier
    assert tier is not None and len(tier.ranges) > 2 and node.host().next_offset == 40
    check(node)


def pass_minutes(node: TableNode, minutes: int) -> None:
    for _ in range(minutes):
        node.pass_time(60_000)
        node.work()


def refuse(job: Job) -> int:
    raise Unavailable("the library pyarrow is missing")


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_restart_goes_on_where_the_files_end(node: TableNode, lost_power: bool) -> None:
    peer = with_table(node)
    fill(node, peer, 0, 60)
    before = node.table_files()
    node.restart(lost_power=lost_power)
    node.work()
    # It asks how far the table is, and writes no file again.
    assert [type(job) for job in node.table_jobs] == [Find]
    fill(node, opened(node), 60, 90)
    assert before.items() < node.table_files().items()
    check(node)
    assert not node.store_objects.replaced


def test_what_cannot_be_written_is_written_later_and_nothing_waits_for_it(node: TableNode) -> None:
    peer = with_table(node)
    do = node.stores.tables
    node.stores.tables = refuse
    fill(node, peer, 0, 60)
    tier = node.host().tier
    assert tier is not None and len(tier.ranges) > 10 and node.host().local_first_offset > 40
    assert node.table_files() == {} and node.alarm == ""
    assert node.table_alarm == "stream 's' in vhost '/': the library pyarrow is missing"
    pass_minutes(node, 2)
    assert node.table_alarm
    node.stores.tables = do
    pass_minutes(node, 2)
    assert node.table_alarm == ""
    check(node)


@pytest.mark.parametrize("fault", ["away", "halves", "deaf"])
def test_a_store_that_fails_leaves_no_half_file(node: TableNode, fault: str) -> None:
    peer = with_table(node)
    do = node.stores.tables

    def fail(job: Job) -> int:
        setattr(node.store_objects, fault, True)
        try:
            return do(job)
        finally:
            setattr(node.store_objects, fault, False)

    node.stores.tables = fail
    fill(node, peer, 0, 40)
    assert node.table_alarm
    node.stores.tables = do
    pass_minutes(node, 10)
    assert node.table_alarm == ""
    check(node)


def test_retention_deletes_files_with_their_objects(node: TableNode) -> None:
    peer = with_table(node, **{"x-max-length-bytes": 4000})
    fill(node, peer, 0, 80)
    assert node.host().first_offset > 40
    check(node)


def test_a_file_that_is_written_while_its_messages_are_deleted_goes_too(node: TableNode) -> None:
    peer = with_table(node, **{"x-max-length-bytes": 4000})
    fill(node, peer, 0, 20)
    jobs: list[tuple[Job, Callable[[Outcome[int]], None]]] = []
    node.stores.table = lambda job, done: jobs.append((job, done))  # type: ignore[method-assign]
    # Retention deletes the messages of the job, which is not done yet.
    fill(node, peer, 20, 100)
    tier = node.host().tier
    ((job, done),) = jobs
    assert tier is not None and isinstance(job, Write) and job.range.first < tier.ranges[0].first
    del node.stores.table
    node.stores.table(job, done)
    node.work()
    assert node.table_alarm == ""
    check(node)


def test_a_file_in_progress_does_not_stay_of_a_deleted_stream(node: TableNode) -> None:
    peer = with_table(node)
    fill(node, peer, 0, 20)
    jobs: list[tuple[Job, Callable[[Outcome[int]], None]]] = []
    node.stores.table = lambda job, done: jobs.append((job, done))  # type: ignore[method-assign]
    fill(node, peer, 20, 40)
    del node.stores.table
    ((job, done),) = jobs
    before = set(node.store_objects.objects)
    outcome = capture(node.stores.tables, job)
    stored = node.store_objects.objects
    node.store_objects.objects = {key: stored[key] for key in before}
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.store_objects.objects == {} and isinstance(job, Write) and len(stored) == len(before) + 1
    # It arrives after the others were deleted.
    node.store_objects.objects = {key: data for key, data in stored.items() if key not in before}
    node.turn.run(done, outcome)
    node.work()
    assert node.store_objects.objects == {}


def test_a_deleted_stream_has_no_alarm(node: TableNode) -> None:
    peer = with_table(node)
    node.stores.tables = refuse
    fill(node, peer, 0, 30)
    assert node.table_alarm
    jobs: list[tuple[Job, Callable[[Outcome[int]], None]]] = []
    node.stores.table = lambda job, done: jobs.append((job, done))  # type: ignore[method-assign]
    pass_minutes(node, 2)
    ((job, done),) = jobs
    assert isinstance(job, Find)
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.table_alarm == ""
    # A job in progress fails when the stream is gone.
    node.turn.run(done, capture(refuse, job))
    pass_minutes(node, 2)
    assert node.table_alarm == "" and len(jobs) == 1


def test_a_policy_begins_and_ends_a_table(node: TableNode) -> None:
    peer = opened(node)
    declare(peer)
    fill(node, peer, 0, 30)
    assert not node.store_objects.objects
    _policy(node, {"stream-remote": "archive"})
    pass_minutes(node, 1)
    assert node.store_objects.objects and not node.table_files()
    _policy(node, {"stream-remote": "archive", "stream-table": "parquet"})
    pass_minutes(node, 1)
    check(node)
    _policy(node, {"stream-remote": "archive", "max-length-bytes": 1000})
    count = len(node.table_files())
    fill(node, peer, 30, 60)
    # No new files, and retention deletes the old ones.
    assert len(node.table_files()) < count
    tier = node.host().tier
    assert tier is not None and tier.manifest is not None
    found = list(node.store_objects.found(""))
    assert compare(tier.manifest, 0, found, table_directory("/", "s")).orphans == []


def _policy(node: TableNode, definition: dict[str, Any]) -> None:
    broker = node.broker
    record = broker.runtime.policies.prepare(
        "/", "p", pattern="", definition=definition, priority=0, apply_to="streams", operator=False
    )
    broker.propose(PutParameter(record))
    node.work()


def test_a_deleted_stream_deletes_its_table_and_leaves_others(node: TableNode) -> None:
    peer = with_table(node)
    fill(node, peer, 0, 30)
    table: dict[str, Any] = {"x-stream-remote": "archive"} | LOCAL | TABLE
    declare(peer, "other", **table)
    fill(node, peer, 0, 30, "other")
    before = node.table_files("other")
    assert before and node.table_files()
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.table_files() == {} and node.table_files("other") == before
    declare(peer, **table)
    fill(node, peer, 0, 30)
    check(node)


def test_damage_before_the_upload_is_left_out(node: TableNode) -> None:
    peer = with_table(node)
    node.store_objects.away = True
    fill(node, peer, 0, 30)
    host = node.host()
    node.files.now[host._log.path(host._log.segments[1].base, ".segment")][60] ^= 1
    node.store_objects.away = False
    pass_minutes(node, 20)
    assert host.tier is not None and [each.damaged for each in host.tier.ranges][:3] == [False, True, False]
    offsets = node.rows().column("offset").to_pylist()
    assert len(offsets) == host.tier.stop - host.lost_count and offsets == sorted(set(offsets))
    damaged = sorted(node.table_files().items())[1][1]
    metadata = pq.read_metadata(io.BytesIO(damaged)).metadata
    assert metadata[b"mqd.damaged"] == b"true" and metadata[b"mqd.stream"] == b"s"


def test_a_damaged_object_is_no_empty_file(node: TableNode) -> None:
    peer = with_table(node)
    do = node.stores.tables
    node.stores.tables = refuse
    fill(node, peer, 0, 30)
    objects = dict(node.store_objects.objects)
    key = sorted(objects)[0]
    node.store_objects.objects[key] = b"x" * len(objects[key])
    node.stores.tables = do
    pass_minutes(node, 2)
    assert "damaged" in node.table_alarm and node.table_files() == {}
    node.store_objects.objects[key] = objects[key]
    pass_minutes(node, 2)
    check(node)


def test_check_tells_orphans_and_missing_files(node: TableNode) -> None:
    peer = with_table(node)
    fill(node, peer, 0, 40)
    tier = node.host().tier
    assert tier is not None and tier.manifest is not None
    directory, stop = node.host().table_figures()
    assert directory is not None and stop is not None

    def compared() -> Any:
        assert tier is not None and tier.manifest is not None
        return compare(tier.manifest, 0, node.store_objects.found(""), directory, stop)

    assert compared() == ([], [], [], len(tier.ranges))
    gone = sorted(node.table_files())[3]
    del node.store_objects.objects[gone]
    orphan = f"{directory}/{3:020}-{4:010}-{tier.manifest.identity}.parquet"
    node.store_objects.objects[orphan] = b"x"
    node.store_objects.objects[f"{directory}/{3:020}-{4:010}-another.parquet"] = b"x"
    assert compared() == ([gone], [orphan], [], len(tier.ranges) - 1)


REFUSED = [
    (TABLE, "table_but_no_remote"),
    ({"x-stream-remote": "archive", "x-stream-table": "orc"}, "use 'parquet'"),
    ({"x-stream-remote": "archive", "x-stream-table": 5}, "x-stream-table"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED)
def test_refused_declares(node: TableNode, arguments: dict[str, Any], named: str) -> None:
    answer = declare(opened(node), **arguments)[-1][1]
    assert isinstance(answer, commands.Channel.Close)
    assert answer.reply_code == 406 and named in answer.reply_text


@pytest.mark.pure
def test_a_declare_on_a_node_without_the_library_says_what_to_install(
    node: TableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_server.broker.topology.vhost.can_write_tables", lambda: False)
    answer = declare(opened(node), **{"x-stream-remote": "archive"}, **TABLE)[-1][1]
    assert isinstance(answer, commands.Channel.Close)
    assert "pip install 'mqd[table]'" in answer.reply_text
