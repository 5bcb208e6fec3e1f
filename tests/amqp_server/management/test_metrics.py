"""The metrics for Prometheus, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
from pamqp import commands
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import wait_all_tasks_blocked

from amqp_server.management.request.time_slices import Slices
from amqp_server.management.serving.metrics_app import SCRAPES_MAX, SCRAPES_PER_ADDRESS_MAX, Metrics
from amqp_server.management.statistics import metrics_text
from amqp_server.management.statistics.metric_values import Measures

from ..connection.node import Peer
from ..wire.published import method
from .conftest import ManagedNode, published

pytestmark = pytest.mark.trio


@pytest.fixture
def peer(node: ManagedNode) -> Peer:
    found = node.peer(name="127.0.0.1:1 -> 127.0.0.1:5672")
    found.session.opened()
    found.call(1, commands.Channel.Open())
    for queue in ("q", "r"):
        found.call(1, commands.Queue.Declare(queue=queue))
        found.send(*(published(1, "", queue, b"body") for _ in range(3)))
    found.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.Consume(queue="q"))
    found.call(1, commands.Basic.Ack(1, False))
    return found


async def ask(node: ManagedNode, path: str, *, objects_max: int = 1_000) -> httpx.Response:
    app = Metrics(Measures(node.parts), Slices(1_000), objects_max).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
        return await client.get(path)


async def scrape(node: ManagedNode, path: str, **options: Any) -> list[Metric]:
    answer = await ask(node, path, **options)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == metrics_text.CONTENT_TYPE
    return list(text_string_to_metric_families(answer.text))


def values(families: Iterable[Metric], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


async def test_sums(node: ManagedNode, peer: Peer) -> None:
    found = await scrape(node, "/metrics")
    assert values(found, "rabbitmq_queue_messages_ready") == {(): 3 + 0}
    assert values(found, "rabbitmq_queue_messages_unacked") == {(): 2}
    (ready,), (held,), (both,) = (
        values(found, f"rabbitmq_queue_messages_{name}").values()
        for name in ("ready_bytes", "unacked_bytes", "bytes")
    )
    assert ready > 0 and held > 0 and both == ready + held
    protocols = {(("protocol", "amqp091"),), (("protocol", "http"),)}
    assert values(found, "rabbitmq_auth_attempts_total").keys() == protocols
    assert values(found, "rabbitmq_queues") == {(): 2}
    assert values(found, "rabbitmq_connections") == values(found, "rabbitmq_channels") == {(): 1}
    assert values(found, "rabbitmq_channel_messages_published_total") == {(): 6}
    assert values(found, "rabbitmq_queue_messages_published_total") == {(): 6}
    assert values(found, "rabbitmq_global_messages_received_total") == {(("protocol", "amqp091"),): 6}
    acknowledged = values(found, "rabbitmq_global_messages_acknowledged_total")
    assert acknowledged[("protocol", "amqp091"), ("queue_type", "rabbit_classic_queue")] == 1
    assert acknowledged[("protocol", "amqp091"), ("queue_type", "rabbit_stream_queue")] == 0
    ((identity, value),) = values(found, "rabbitmq_identity_info").items()
    assert value == 1 and {"rabbitmq_node", "rabbitmq_cluster"} <= dict(identity).keys()


async def test_sizes_of_messages(node: ManagedNode, peer: Peer) -> None:
    """Each message once, however many queues it goes to, and in whatever way it is published."""
    bounds = ("100", "1000", "10000", "100000", "1000000", "10000000", "50000000", "100000000", "+Inf")

    async def counted() -> tuple[list[float], float, float]:
        found = await scrape(node, "/metrics")
        name, protocol = "rabbitmq_message_size_bytes", ("protocol", "amqp091")
        buckets = values(found, f"{name}_bucket")
        ((total,), (count,)) = (values(found, f"{name}_{part}").values() for part in ("sum", "count"))
        return [buckets[("le", bound), protocol] for bound in bounds], total, count

    assert await counted() == ([6.0] * 9, 24, 6)
    # In one batch with others, unroutable, of several frames, and at the limits of a bucket.
    sizes = [0, 100, 101, 1_000, 1_001, 1_001, 100_001]
    peer.send(*(published(1, "", "q" if size % 2 else "nowhere", bytes(size)) for size in sizes))
    before = [8.0, 10.0, 12.0, 12.0, 13.0, 13.0, 13.0, 13.0, 13.0]
    assert await counted() == (before, 24 + sum(sizes), 13)
    peer.call(2, commands.Channel.Open())
    peer.call(2, commands.Tx.Select())
    peer.send(published(2, "amq.fanout", "", bytes(50)), published(2, "", "r", bytes(150)))
    assert (await counted())[2] == 13
    peer.call(2, commands.Tx.Commit())
    assert await counted() == ([9.0] + [each + 2 for each in before[1:]], 24 + sum(sizes) + 200, 15)


async def test_every_name_is_there(node: ManagedNode, peer: Peer) -> None:
    """Another test compares the board and the alerts with this list."""
    families = await scrape(node, "/metrics")
    found = {sample.name for family in families for sample in family.samples}
    # Except metrics of quorum queues in a cluster, and those that can't be summed.
    absent = {name for name in metrics_text.names() if name.startswith("rabbitmq_raft_")}
    absent |= {
        metric.shown("rabbitmq_") for metric in metrics_text.QUEUE if metric.name in metrics_text.NOT_SUMMED
    }
    assert set(metrics_text.names()) - absent <= found
    assert {"mqd_commit_seconds_bucket", "mqd_body_memory_bytes", "mqd_streams"} <= found


async def test_no_family_comes_twice(node: ManagedNode, peer: Peer) -> None:
    for path in ("/metrics", "/metrics/per-object"):
        heads = [line for line in (await ask(node, path)).text.splitlines() if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads)) > 50


async def test_objects_one_by_one(node: ManagedNode, peer: Peer) -> None:
    found = await scrape(node, "/metrics/per-object")
    ready = values(found, "rabbitmq_queue_messages_ready")
    assert ready == {
        (("queue", "q"), ("vhost", "/")): 0,
        (("queue", "r"), ("vhost", "/")): 3,
    }
    (unacked,) = values(found, "rabbitmq_channel_messages_unacked").items()
    assert unacked == ((("channel", "127.0.0.1:1 -> 127.0.0.1:5672 (1)"),), 2)


class ClusterOfOneGroup:
    """The questions about the queue `q`."""

    def __init__(self, node: ManagedNode) -> None:
        self.roster = SimpleNamespace(nodes=())
        self.founded = None
        core = SimpleNamespace(term=2, commit=9, leader="n1", log=SimpleNamespace(stable_index=11))
        group = SimpleNamespace(core=core, snapshot_index=4, applied=8)
        queue = node.broker.vhost("/").queues["q"]
        self.hosts = SimpleNamespace(grouped={queue.queue_id: SimpleNamespace(group=group)})


async def test_raft_under_the_names_of_two_releases(node: ManagedNode, peer: Peer) -> None:
    node.cluster = cast(Any, ClusterOfOneGroup(node))
    found = await scrape(node, "/metrics/detailed?family=ra_metrics")
    told = {
        name.removeprefix("rabbitmq_detailed_raft_"): values(found, name)
        for name in (f"rabbitmq_detailed_{metric.name}" for metric in metrics_text.RAFT)
    }
    assert {labels for rows in told.values() for labels in rows} == {(("queue", "q"), ("vhost", "/"))}
    assert {name: value for name, rows in told.items() for value in rows.values()} == {
        "term_total": 2,
        "log_snapshot_index": 4,
        "log_last_applied_index": 8,
        "log_commit_index": 9,
        "log_last_written_index": 11,
        "term": 2,
        "snapshot_index": 4,
        "last_applied": 8,
        "commit_index": 9,
        "last_written_index": 11,
    }


async def test_labels_are_escaped() -> None:
    name = 'odd "name"\\ of\ntwo lines, {é}'
    text = f"# TYPE x gauge\nx{metrics_text.labels(queue=name)} 1\n"
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"queue": name}


async def test_families_and_vhosts_that_are_asked_for(node: ManagedNode, peer: Peer) -> None:
    found = await scrape(node, "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status&vhost=/")
    names = {family.name for family in found}
    assert names == {
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_cluster_vhost_status",
    }
    assert set(values(found, "rabbitmq_cluster_vhost_status")) == {(("vhost", "/"),)}
    other = await scrape(node, "/metrics/detailed?family=queue_coarse_metrics&vhost=other")
    assert values(other, "rabbitmq_detailed_queue_messages") == {}
    alone = await scrape(node, "/metrics/detailed")
    assert {family.name for family in alone} == {"rabbitmq_build_info", "rabbitmq_identity_info"}


async def test_every_family_can_be_asked_for(node: ManagedNode, peer: Peer) -> None:
    for family in metrics_text.FAMILIES - {"ra_metrics"}:
        found = await scrape(node, f"/metrics/detailed?family={family}")
        assert len(found) > 2, family


async def test_the_number_of_objects_is_bounded(node: ManagedNode, peer: Peer) -> None:
    found = await scrape(node, "/metrics/per-object", objects_max=1)
    assert len(values(found, "rabbitmq_queue_messages_ready")) == 1
    assert values(found, "mqd_metrics_objects_left_out")[()] >= 1
    assert values(await scrape(node, "/metrics", objects_max=1), "rabbitmq_queue_messages_ready") == {(): 3}


async def test_no_counter_falls_when_clients_and_queues_go(node: ManagedNode, peer: Peer) -> None:
    before = await scrape(node, "/metrics")
    node.turn.run(peer.session.lost)
    for name in list(node.broker.vhost("/").queues):
        node.broker.vhost("/").remove_queue(node.broker.vhost("/").queues[name])
    after = await scrape(node, "/metrics")
    counted = [family.name for family in before if family.type == "counter"]
    assert len(counted) > 40
    moved = 0
    for name in counted:
        was, now = (values(found, f"{name}_total") for found in (before, after))
        assert was.keys() == now.keys(), name
        assert all(now[told] >= value for told, value in was.items()), name
        moved += any(was.values())
    assert moved > 10
    assert (
        "rabbitmq_queue_messages_published" in counted and "rabbitmq_connection_outgoing_packets" in counted
    )


async def test_other_paths(node: ManagedNode) -> None:
    answer = await ask(node, "/metrics/nosuch")
    assert (answer.status_code, answer.text) == (404, "Unknown registry")
    assert (await ask(node, "/api/overview")).status_code == 404


async def test_scrapes_of_one_address_leave_some_to_others(node: ManagedNode) -> None:
    """Nobody logs in to this listener, and a client may read its scrape slowly."""
    metrics_ = Metrics(Measures(node.parts), Slices(1_000), 1_000)
    app, hold, statuses = metrics_.app(), trio.Event(), list[int]()

    async def get(peer: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if message["status"] == 200:
                    await hold.wait()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics"}
        scope |= {"query_string": b"", "headers": [], "client": (peer, 1)}
        await app(scope, receive, send)

    async with trio.open_nursery() as nursery:
        for _ in range(SCRAPES_PER_ADDRESS_MAX):
            nursery.start_soon(get, "192.0.2.1")
        await wait_all_tasks_blocked()
        await get("192.0.2.1")
        assert statuses == [200] * SCRAPES_PER_ADDRESS_MAX + [503]
        for number in range(2, 2 + SCRAPES_MAX - SCRAPES_PER_ADDRESS_MAX):
            nursery.start_soon(get, f"192.0.2.{number}")
        await wait_all_tasks_blocked()
        await get("192.0.2.200")
        assert statuses.count(200) == SCRAPES_MAX and statuses[-1] == 503
        hold.set()
    assert metrics_._by_source == {}


async def test_dead_letters_by_reason(node: ManagedNode, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="target", durable=True))
    letters: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}
    peer.call(1, commands.Queue.Declare(queue="short", durable=True, arguments=letters | {"x-max-length": 1}))
    held = {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    peer.call(1, commands.Queue.Declare(queue="held", durable=True, arguments=letters | held))
    for body in (b"a", b"b", b"c"):
        peer.send(published(1, "", "short", body))
    peer.send(published(1, "", "held", b"d"))
    node.sync()
    peer.call(2, commands.Channel.Open())
    peer.send(method(2, commands.Basic.Get(queue="held")))
    peer.answers()
    peer.send(method(2, commands.Basic.Reject(1, requeue=False)))
    for _ in range(3):
        node.sync()
    found = await scrape(node, "/metrics")

    def told(name: str) -> dict[tuple[str, str], float]:
        counts = values(found, f"rabbitmq_global_messages_dead_lettered_{name}_total")
        return {
            (dict(key)["queue_type"], dict(key)["dead_letter_strategy"]): each for key, each in counts.items()
        }

    classic, quorum = "rabbit_classic_queue", "rabbit_quorum_queue"
    assert told("maxlen")[classic, "at_most_once"] == 2
    assert told("rejected") == {
        (classic, "at_most_once"): 0,
        (quorum, "at_most_once"): 0,
        (quorum, "at_least_once"): 1,
    }
    assert told("confirmed") == {(quorum, "at_least_once"): 1}
    assert set(told("expired").values()) == set(told("delivery_limit").values()) == {0}


async def test_the_time_of_the_first_message(node: ManagedNode, peer: Peer) -> None:
    peer.send(published(1, "", "r", b"x", timestamp=(1_700_000_000).to_bytes(8, "big")))
    node.sync()
    peer.call(1, commands.Queue.Purge(queue="r"))
    peer.send(published(1, "", "r", b"x", timestamp=(1_700_000_000).to_bytes(8, "big")))
    node.sync()
    found = values(await scrape(node, "/metrics/per-object"), "rabbitmq_queue_head_message_timestamp")
    assert found == {(("queue", "r"), ("vhost", "/")): 1_700_000_000}
