"""The cost of a page of queues is that of its rows, and of one column of each other queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.topology.queue import Queue
from amqp_server.errors import Unavailable
from amqp_server.management.parts import ManagedParts
from amqp_server.management.request.columns import at
from amqp_server.management.resources import queues
from amqp_server.management.statistics.history import Series
from amqp_server.management.statistics.sampler import Sampler
from amqp_server.management.statistics.stats import Stats

from ..connection.node import Peer
from .conftest import Connect, ManagedNode, before_whole_rows, published

pytestmark = pytest.mark.trio
RATE = "message_stats.publish_details.rate"
SORTS = ["name", "messages", "memory", "consumers", "state", "node", "type", "messages_details.rate", RATE]


@pytest.fixture
async def busy(node: ManagedNode, sampler: Sampler) -> Peer:
    """The client of 30 queues: queue `q07` got 7 messages before a sample, and 7 before another one."""
    peer = node.peer()
    peer.session.opened()
    peer.call(1, commands.Channel.Open())
    for number in range(30):
        peer.call(1, commands.Queue.Declare(queue=f"q{number:02}"))
    for _ in range(2):
        await sampler.sample()
        for number in range(1, 30):
            peer.send(*(published(1, "", f"q{number:02}", b"x" * number) for _ in range(number)))
    peer.call(1, commands.Basic.Get(queue="q29", no_ack=True))
    peer.call(1, commands.Basic.Get(queue="q28"))
    peer.call(1, commands.Basic.Consume(queue="q27"))
    await sampler.sample()
    return peer


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the names of the queues for which the API made whole rows."""
    counted: Counter[str] = Counter()
    before_whole_rows(monkeypatch, lambda queue: counted.update([queue.name]))
    return counted


@pytest.mark.parametrize(
    "more", ["", "&name=[0-9]$&use_regex=true", "&sort_reverse=true", "&disable_stats=true"]
)
@pytest.mark.parametrize("sort", SORTS)
async def test_whole_rows_are_made_of_a_page_only(
    busy: Peer, connect: Connect, made: Counter[str], sort: str, more: str
) -> None:
    told = (await connect("admin").get(f"queues?page=2&page_size=7&sort={sort}{more}")).json()
    assert (told["total_count"], told["filtered_count"], told["item_count"]) == (30, 30, 7)
    assert made == {row["name"]: 1 for row in told["items"]}


async def test_a_rate_that_sorts_is_the_only_one_that_is_computed(
    busy: Peer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    rate, rate_alone = Series.rate, Series.rate_alone

    def counting(self: Series, field: int) -> float:
        counted["rate"] += 1
        return rate(self, field)

    def counting_alone(self: Series, field: int) -> float:
        counted["rate_alone"] += 1
        return rate_alone(self, field)

    monkeypatch.setattr(Series, "rate", counting)
    monkeypatch.setattr(Series, "rate_alone", counting_alone)
    told = (await connect("admin").get(f"queues?page=1&page_size=2&sort={RATE}&sort_reverse=true")).json()
    assert [row["name"] for row in told["items"]] == ["q29", "q28"]
    # q00 has got no messages.
    assert counted["rate_alone"] == 29
    assert counted["rate"] < 60


async def test_columns_need_no_whole_rows(busy: Peer, connect: Connect, made: Counter[str]) -> None:
    client = connect("admin")
    for query in ("", "&sort=memory", "&name=2"):
        rows = (await client.get(f"queues?columns=name,messages,message_stats.publish{query}")).json()
        assert {"name": "q20", "messages": 40, "message_stats": {"publish": 40}} in rows
        assert not made
    assert (await client.get("queues?columns=name,arguments")).json()[0] == {"name": "q00", "arguments": {}}
    assert not made


def leaves(row: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in row.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from leaves(value, (*before, name))


@pytest.mark.parametrize("query", [{}, {"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "60"}])
async def test_a_column_is_what_whole_rows_have_there(
    parts: ManagedParts, busy: Peer, query: dict[str, str]
) -> None:
    arguments = {"x-queue-type": "quorum"}
    await queues.declare(parts.broker, "/", "quorum", durable=True, auto_delete=False, arguments=arguments)
    busy.send(published(1, "", "quorum", b"x"))
    # This node has no store for the stream, so the stream fails.
    arguments = {"x-queue-type": "stream"}
    with pytest.raises(Unavailable):
        await queues.declare(
            parts.broker, "/", "stream", durable=True, auto_delete=False, arguments=arguments
        )
    busy.call(1, commands.Queue.Declare(queue="mine", exclusive=True))
    stats = Stats(parts.sampler, query)

    reads = queues.QueueReads(parts, stats)
    row, found = queues.COLUMNS.rows(reads), list(queues.queues_of(parts.broker, ["/"]))

    def whole(queue: Queue) -> dict[str, Any]:
        made = row(queue)
        assert made is not None
        return made

    paths = {path for queue in found for path in leaves(whole(queue))}
    assert {("message_stats", "publish_details", "rate"), ("leader",)} <= paths
    assert {queues.read_one(reads, ["state"])(queue) for queue in found} == {"running", "crashed"}
    for path in (*paths, ("nothing",), ("name", "nothing"), ("message_stats", "nothing"), ("",)):
        read = queues.read_one(reads, path)
        for queue in found:
            assert read(queue) == at(whole(queue), path), (path, queue.name)


async def test_the_first_place_of_the_ring_is_behind_its_last(parts: ManagedParts, busy: Peer) -> None:
    sampler = parts.sampler
    series = sampler.histories.get(parts.broker.vhost("/").queues["q05"])
    assert series is not None
    for _ in range(2 * sampler.histories.timeline.length):
        busy.send(published(1, "", "q05", b"x"))
        await sampler.sample()
        alone = [series.rate_alone(field) for field in range(4)]
        assert alone[0] == alone[1] == alone[3] > 0
        assert [series.rate(field) for field in range(4)] == alone


async def test_a_queue_that_goes_meanwhile_is_left_out(
    parts: ManagedParts, busy: Peer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleting(_: Queue) -> None:
        if "q28" in parts.broker.vhost("/").queues:
            busy.call(1, commands.Queue.Delete(queue="q28"))

    before_whole_rows(monkeypatch, deleting)
    told = (await connect("admin").get("queues?page=1&page_size=3&sort=name&sort_reverse=true")).json()
    assert [row["name"] for row in told["items"]] == ["q29", "q27"]


async def test_a_page_is_in_the_order_that_its_rows_show(
    busy: Peer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue got messages after it was sorted, and before its row was made."""

    def publishing(queue: Queue) -> None:
        if queue.name == "q01" and queue.host.ready_count == 2:
            busy.send(*(published(1, "", "q01", b"x") for _ in range(100)))

    before_whole_rows(monkeypatch, publishing)
    told = (await connect("admin").get("queues?page=1&page_size=3&sort=messages")).json()
    assert [(row["name"], row["messages"]) for row in told["items"]] == [("q00", 0), ("q02", 4), ("q01", 102)]


async def test_the_oldest_message_has_its_age(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for name, type_ in (("a", "classic"), ("b", "quorum"), ("empty", "classic")):
        await client.put(f"queues/%2F/{name}", json={"arguments": {"x-queue-type": type_}})
        if name != "empty":
            body = {"routing_key": name, "payload": "x", "payload_encoding": "string", "properties": {}}
            await client.post("exchanges/%2F/amq.default/publish", json=body)
    node.clock.now_ms += 5_000
    rows = {row["name"]: row for row in (await client.get("queues")).json()}
    assert [rows[name]["oldest_message_age_ms"] for name in ("a", "b", "empty")] == [5_000, 5_000, None]
    rows = (await client.get("queues?sort=oldest_message_age_ms&sort_reverse=true")).json()
    assert rows[-1]["name"] == "empty"
    await client.delete("queues/%2F/a/contents")
    assert (await client.get("queues/%2F/a")).json()["oldest_message_age_ms"] is None
