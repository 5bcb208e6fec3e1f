"""The age of the oldest message that a group has not worked off: threads look it up in segments, never the
loop.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from amqp_server.broker.broker import Broker
from amqp_server.management.changes.answers import ANSWER_S
from amqp_server.management.request.listing import Rows
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.resources.groups import (
    COLUMNS,
    Ages,
    GroupReads,
    groups_listed,
    groups_of,
    reset_group,
    shown,
)
from tests.amqp_server.streams.node import StreamNode, publish
from tests.amqp_server.streams.node import declare as declare_stream
from tests.amqp_server.streams.test_consumer_groups import declare
from tests.amqp_server.streams.test_super_streams import opened

STREAMS = ("s", "t")
#: Milliseconds between two batches of each stream.
STEP_MS = 1_000
BATCHES = 8


class CountedReads:
    """Counts reads of files."""

    def __init__(self, node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = node.files.read

        def counted(path: Path, position: int, size: int) -> bytes:
            self.count += 1
            return read(path, position, size)

        monkeypatch.setattr(node.files, "read", counted)


@pytest.fixture
def node() -> StreamNode:
    """Return a node with groups over two streams, each of which has one batch in each second, three in a
    segment.
    """
    node = StreamNode()
    peer = opened(node)
    for name in STREAMS:
        declare_stream(peer, name)
    for _ in range(BATCHES):
        for name in STREAMS:
            publish(peer, [b"x" * 100], name)
        node.work()
        node.pass_time(STEP_MS)
    for name in STREAMS:
        declare(peer, f"over-{name}", name)
    node.work()
    return node


async def put(node: StreamNode, broker: Broker, name: str, offset: int) -> None:
    """Let a group continue at an offset."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reset, broker, name, offset)
        await trio.testing.wait_all_tasks_blocked()
        node.work()


async def reset(broker: Broker, name: str, offset: int) -> None:
    group = broker.vhost("/").groups[name]
    await reset_group(broker, group, str(offset), partition=None, dry_run=False, force=False)


async def find(broker: Broker, name: str, told: list[dict[str, Any]]) -> None:
    found = await shown(broker, broker.vhost("/").groups[name])
    told.append(found)


async def found_by(node: StreamNode, name: str, reads: CountedReads) -> dict[str, Any]:
    """Return the API's row of a group, while threads work as long as any request waits for them."""
    told: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(find, node.broker, name, told)
        while not told:
            count = reads.count
            await trio.testing.wait_all_tasks_blocked()
            assert reads.count == count, "the loop has read a file"
            node.work()
    return told[0]


async def test_threads_look_for_times_in_segments(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = node.host()._log.segments
    (within,) = (each for each in segments if each.base <= 4 < each.stop)
    assert within.base < 4 and within != segments[-1]
    await put(node, node.broker, "over-s", 4)
    reads = CountedReads(node, monkeypatch)
    found = await found_by(node, "over-s", reads)
    assert reads.count
    # The index has no entry for each batch: the time is near the message's, and at worst that of its segment.
    now_ms = node.broker.services.queue_time.now_ms()
    (partition,) = found["partition_details"]
    assert now_ms - partition["oldest_unread_ms"] == within.first_ms
    assert found["oldest_unread_ms"] == partition["oldest_unread_ms"]


async def test_what_is_in_memory_is_not_read(node: StreamNode, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = opened(node)
    await put(node, node.broker, "over-s", BATCHES)
    publish(peer, [b"last"])
    node.sync()
    node.clock.now_ms += 77
    reads = CountedReads(node, monkeypatch)
    told: list[dict[str, Any]] = []
    await find(node.broker, "over-s", told)
    assert told[0]["oldest_unread_ms"] == 77 and not reads.count


async def test_a_disk_that_does_not_answer_leaves_ages_untold(
    node: StreamNode, autojump_clock: trio.testing.MockClock
) -> None:
    await put(node, node.broker, "over-s", 4)
    await put(node, node.broker, "over-t", 4)
    began = trio.current_time()
    ages = Ages(node.broker)
    queues = groups_of(node.broker, "/")
    for queue in queues:
        await ages.look_up([queue])
    row = COLUMNS.rows(GroupReads(ages.of))
    told = [row(queue) or {} for queue in queues]
    assert [(each["messages"], each["oldest_unread_ms"]) for each in told] == [(4, None), (4, None)]
    # All groups of one request wait together.
    assert trio.current_time() - began == ANSWER_S


async def test_a_stream_that_goes_meanwhile_has_no_age(node: StreamNode) -> None:
    await put(node, node.broker, "over-s", 4)
    told: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(find, node.broker, "over-s", told)
        await trio.testing.wait_all_tasks_blocked()
        assert node.store.reads
        node.turn.run(node.host().close)
        node.work()
    assert told[0]["oldest_unread_ms"] is None


@pytest.mark.parametrize("query", [{}, {"page": "1"}, {"sort": "messages"}])
async def test_many_groups_are_looked_up_at_once_and_each_place_once(
    node: StreamNode, query: dict[str, str]
) -> None:
    peer = opened(node)
    for number in range(10):
        for stream in STREAMS:
            declare(peer, f"{stream}-{number}", stream)
    node.work()
    names = list(node.broker.vhost("/").groups)
    for name in names:
        # In each stream, half of the groups are at one place, and half at another.
        await put(node, node.broker, name, 1 + 3 * (names.index(name) // 2 % 2))
    told: list[Any] = []
    waits = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listed, node.broker, query, told)
        while not told:
            await trio.testing.wait_all_tasks_blocked()
            if told:
                break
            waits += 1
            assert len(node.store.reads) == 4
            node.work()
    assert waits == 1
    assert sorted(row["name"] for row in told) == sorted(names)
    assert all(row["oldest_unread_ms"] is not None for row in told)


async def listed(broker: Broker, query: dict[str, str], told: list[Any]) -> None:
    """Add the rows that a request for all groups gets."""
    call: Any = SimpleNamespace(query=query, slices=Slices(1_000), filter_ms=1_000, broker=broker)
    rows = await groups_listed(call, groups_of(broker, "/"))
    if isinstance(rows, Rows):
        found = [row async for part in rows.parts(1 << 20) for row in msgspec.json.decode(part)]
    else:
        found = [msgspec.json.decode(row) for row in rows.body["items"]]
    told += found
