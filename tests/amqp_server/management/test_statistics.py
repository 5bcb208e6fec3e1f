"""The counters, and how the management API shows them."""

from __future__ import annotations

import gc
import time
from typing import Any

import httpx
import pytest
import trio
from pamqp import commands

from amqp_server.management.parts import ManagedParts
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.serving.http import Api
from amqp_server.management.serving.metrics_app import Metrics
from amqp_server.management.statistics.metric_values import Measures
from amqp_server.management.statistics.sampler import NODE_FIELDS, VHOST_FIELDS, Sampler, Sum
from tests.work import steps as instructions

from ..connection.node import Peer
from .conftest import BODY_BYTES_MAX, Connect, ManagedNode, published

pytestmark = pytest.mark.trio


@pytest.fixture
def peer(node: ManagedNode) -> Peer:
    found = node.peer(name="127.0.0.1:1 -> 127.0.0.1:5672")
    found.session.opened()
    found.call(1, commands.Channel.Open())
    found.call(1, commands.Queue.Declare(queue="q"))
    return found


def publish(peer: Peer, count: int, exchange: str = "", key: str = "q", **options: Any) -> None:
    peer.send(*(published(1, exchange, key, b"body", **options) for _ in range(count)))
    peer.node.sync()


async def stats(connect: Connect, path: str) -> dict[str, Any]:
    told = (await connect("admin").get(path)).json()
    found = told.get("message_stats", {})
    return {name: value for name, value in found.items() if value and not name.endswith("_details")}


CHANNEL = "channels/127.0.0.1%3A1%20-%3E%20127.0.0.1%3A5672%20(1)"


async def test_publishes_are_counted_once_wherever_they_go(connect: Connect, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="r"))
    for queue in ("q", "r"):
        peer.call(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""))
    publish(peer, 3, "amq.fanout", "")
    publish(peer, 2)
    assert await stats(connect, "exchanges/%2F/amq.fanout") == {"publish_in": 3, "publish_out": 6}
    assert await stats(connect, "exchanges/%2F/amq.default") == {"publish_in": 2, "publish_out": 2}
    assert await stats(connect, "queues/%2F/q") == {"publish": 5}
    assert await stats(connect, "queues/%2F/r") == {"publish": 3}
    assert await stats(connect, CHANNEL) == {"publish": 5}


async def test_messages_of_two_exchanges_to_the_same_queue_in_one_read(connect: Connect, peer: Peer) -> None:
    for exchange in ("amq.fanout", "amq.direct"):
        peer.call(1, commands.Queue.Bind(queue="q", exchange=exchange, routing_key="k"))
    frames = [published(1, exchange, "k", b"x") for exchange in ("amq.fanout", "amq.direct", "amq.fanout")]
    # Once so that the routes are known, and then again.
    for _ in range(2):
        peer.send(*frames)
    assert await stats(connect, "exchanges/%2F/amq.fanout") == {"publish_in": 4, "publish_out": 4}
    assert await stats(connect, "exchanges/%2F/amq.direct") == {"publish_in": 2, "publish_out": 2}


async def test_messages_that_nobody_gets(connect: Connect, peer: Peer) -> None:
    publish(peer, 3, "amq.direct", "nobody")
    publish(peer, 2, "amq.direct", "nobody", mandatory=True)
    assert await stats(connect, CHANNEL) == {"publish": 5, "drop_unroutable": 3, "return_unroutable": 2}


async def test_confirms_are_counted_when_they_are_sent(
    connect: Connect, node: ManagedNode, peer: Peer
) -> None:
    peer.call(1, commands.Queue.Declare(queue="d", durable=True))
    peer.call(1, commands.Confirm.Select())
    peer.send(*(published(1, "", "d", b"x", delivery_mode=b"\x02") for _ in range(4)))
    assert (await stats(connect, CHANNEL)) == {"publish": 4}
    node.sync()
    assert (await stats(connect, CHANNEL)) == {"publish": 4, "confirm": 4}


async def test_deliveries_acks_and_redeliveries(connect: Connect, peer: Peer) -> None:
    publish(peer, 5)
    peer.call(1, commands.Basic.Qos(prefetch_count=3), commands.Basic.Consume(queue="q", consumer_tag="c"))
    peer.call(1, commands.Basic.Ack(2, True))
    wanted = {"ack": 2, "deliver": 5, "deliver_get": 5}
    assert await stats(connect, CHANNEL) == {"publish": 5} | wanted
    assert await stats(connect, "queues/%2F/q") == {"publish": 5} | wanted
    # The message comes back, which is no ack.
    peer.call(1, commands.Basic.Nack(5, False, True))
    told = await stats(connect, "queues/%2F/q")
    assert (told["ack"], told["deliver"], told["redeliver"]) == (2, 6, 1)


async def test_deliveries_without_acks(connect: Connect, peer: Peer) -> None:
    publish(peer, 4)
    peer.call(1, commands.Basic.Consume(queue="q", no_ack=True))
    wanted = {"publish": 4, "deliver_no_ack": 4, "deliver_get": 4}
    assert await stats(connect, "queues/%2F/q") == wanted
    assert await stats(connect, CHANNEL) == wanted


async def test_gets(connect: Connect, peer: Peer) -> None:
    publish(peer, 2)
    peer.call(1, commands.Basic.Get(queue="q"))
    peer.call(1, commands.Basic.Get(queue="q", no_ack=True))
    peer.call(1, commands.Basic.Get(queue="q"))
    wanted = {"publish": 2, "get": 1, "get_no_ack": 1, "get_empty": 1, "deliver_get": 2}
    assert await stats(connect, "queues/%2F/q") == wanted
    assert await stats(connect, CHANNEL) == wanted


async def test_a_rolled_back_transaction_counts_nothing(connect: Connect, peer: Peer) -> None:
    peer.call(1, commands.Tx.Select())
    publish(peer, 3)
    peer.call(1, commands.Tx.Rollback())
    assert await stats(connect, "queues/%2F/q") == {}
    publish(peer, 2)
    peer.call(1, commands.Tx.Commit())
    assert await stats(connect, "queues/%2F/q") == {"publish": 2}


async def test_totals_do_not_fall_when_channels_queues_and_connections_go(
    connect: Connect, peer: Peer, sampler: Sampler
) -> None:
    publish(peer, 5)
    peer.call(1, commands.Basic.Consume(queue="q", no_ack=True))
    before = await stats(connect, "overview")
    assert before["publish"] == 5 and before["deliver_no_ack"] == 5
    peer.call(1, commands.Channel.Close(200, "", 0, 0))
    assert await stats(connect, "overview") == before
    await sampler.sample()
    assert await stats(connect, "vhosts/%2F") == before
    peer.node.turn.run(peer.session.lost)
    assert await stats(connect, "overview") == before
    churn = (await connect("admin").get("overview")).json()["churn_rates"]
    assert (churn["connection_created"], churn["connection_closed"]) == (1, 1)
    assert churn["channel_created"] == churn["channel_closed"] == 1
    assert (churn["queue_declared"], churn["queue_created"]) == (1, 1)


async def test_rates(connect: Connect, peer: Peer, sampler: Sampler) -> None:
    await sampler.sample()
    publish(peer, 5)
    await sampler.sample()
    publish(peer, 10)
    await sampler.sample()
    for path in ("queues/%2F/q", CHANNEL, "vhosts/%2F", "overview"):
        told = (await connect("admin").get(path)).json()
        assert told["message_stats"]["publish_details"] == {"rate": 2.0}, path
    told = (await connect("admin").get("queues/%2F/q")).json()
    assert (told["messages"], told["messages_details"]) == (15, {"rate": 2.0})
    told = (await connect("admin").get("queues/%2F/q?msg_rates_age=10&msg_rates_incr=5")).json()
    details = told["message_stats"]["publish_details"]
    assert [each["sample"] for each in details["samples"]] == [15, 5, 0]
    assert (details["avg_rate"], details["rate"]) == (1.5, 2.0)
    # The request did not ask for the others.
    assert told["messages_details"] == {"rate": 2.0}


@pytest.mark.parametrize("hours", [1, -1])
async def test_setting_the_wall_clock_changes_no_rate(
    connect: Connect, peer: Peer, sampler: Sampler, hours: int
) -> None:
    for count in (5, 10, 10):
        publish(peer, count)
        await sampler.sample()
        peer.node.clock.shift_ms += hours * 3_600_000
    for path in ("queues/%2F/q", CHANNEL, "vhosts/%2F", "overview"):
        told = (await connect("admin").get(f"{path}?msg_rates_age=10&msg_rates_incr=5")).json()
        details = told["message_stats"]["publish_details"]
        assert (details["rate"], details["avg_rate"]) == (2.0, 2.0), path
        # The samples are shown by the clock of today.
        stamps = [each["timestamp"] for each in details["samples"]]
        assert [stamps[0] - stamp for stamp in stamps] == [0, 5_000, 10_000], path
        now_ms = peer.node.clock.wall_ms() - hours * 3_600_000
        assert 0 <= now_ms - stamps[0] < 5_000, path


async def test_what_rests_has_a_rate_of_zero(connect: Connect, peer: Peer, sampler: Sampler) -> None:
    for count in (5, 0, 0):
        publish(peer, count)
        await sampler.sample()
    told = (await connect("admin").get("queues/%2F/q")).json()
    assert told["message_stats"]["publish_details"] == {"rate": 0.0}


async def test_the_memory_of_samples_is_bounded(node: ManagedNode, peer: Peer) -> None:
    sampler = Sampler(node.broker, lambda: (0,) * 6, interval_s=5.0, bytes_max=60_000)
    for number in range(30):
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
        publish(peer, 1, key=f"q{number}")
    await sampler.sample()
    assert 0 < sampler.histories.used_bytes <= 60_000
    peer.node.turn.run(peer.session.lost)
    for name in list(node.broker.vhost("/").queues):
        node.broker.vhost("/").remove_queue(node.broker.vhost("/").queues[name])
    await sampler.sample()
    # Only the exchange and the vhost are left.
    assert len(sampler.histories) <= 2


async def test_samples_cost_little(node: ManagedNode, peer: Peer) -> None:
    for number in range(1_000):
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
        publish(peer, 1, key=f"q{number}")
    sampler = Sampler(node.broker, lambda: (0,) * 6, interval_s=5.0, bytes_max=64 << 20)
    await sampler.sample()
    began = time.thread_time()
    await sampler.sample()
    took = time.thread_time() - began
    # A hundredth of five seconds would be 50 ms.
    assert took < 0.05, took


# -- a thousand of everything --------------------------------------------------------------------------------

#: CPU time that an answer may take, in seconds. One step of it may take 5 ms.
COSTS = {
    "api/overview": 0.05,
    "api/queues?page=1&page_size=100&sort=name": 0.1,
    "api/queues?page=1&page_size=100&sort=message_stats.publish_details.rate": 0.1,
    "api/connections?page=1&page_size=100": 0.1,
    "metrics": 0.2,
    "metrics/per-object": 0.2,
}


async def test_looking_at_a_thousand_of_everything_is_cheap(node: ManagedNode, parts: ManagedParts) -> None:
    for number in range(1_000):
        peer = node.peer(name=f"127.0.0.1:{number} -> 127.0.0.1:5672")
        # Peers that get nothing need not be asked for new output.
        node.peers.clear()
        peer.session.opened()
        peer.call(1, commands.Channel.Open())
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
        peer.send(published(1, "", f"q{number}", b"x"))
        peer.call(1, commands.Basic.Consume(queue=f"q{number}"))
    sampler = node.sampler
    await sampler.sample()
    await sampler.sample()
    api = Api(parts, BODY_BYTES_MAX, slices=Slices(2)).app(8)
    metrics = Metrics(Measures(node.parts), Slices(2), 10_000).app()
    for path, cost in COSTS.items():
        transport = httpx.ASGITransport(
            metrics if path.startswith("metrics") else api, client=("127.0.0.1", 1)
        )
        auth = httpx.BasicAuth("admin", "admin")
        async with httpx.AsyncClient(transport=transport, base_url="http://broker", auth=auth) as client:
            await client.get(path)
            # Noise only adds time.
            looked = [await steps(client, path) for _ in range(4)]
        whole, longest = min(all_ for all_, _ in looked), min(longest for _, longest in looked)
        print(f"{path}: {whole * 1000:.1f} ms, longest step {longest * 1000:.1f} ms")
        assert whole < cost, path
        assert longest < 0.005, path


async def steps(client: httpx.AsyncClient, path: str) -> tuple[float, float]:
    """Return the CPU time of a request, and of its longest step."""
    found: list[float] = []

    async def bystander() -> None:
        while True:
            began = time.thread_time()
            await trio.lowlevel.checkpoint()
            found.append(time.thread_time() - began)

    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander)
            assert (await client.get(path)).status_code == 200
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()
    return sum(found), max(found)


async def test_a_look_at_queues_that_nobody_uses_costs_next_to_nothing(peer: Peer, sampler: Sampler) -> None:
    await sampler.sample()

    def look() -> int:
        sums = {name: Sum(len(VHOST_FIELDS)) for name in peer.node.broker.vhosts}
        return instructions(list, sampler._objects(sums, Sum(len(NODE_FIELDS))))

    before = look()
    peer.call(1, *(commands.Queue.Declare(queue=f"unused-{number}") for number in range(200)))
    assert look() - before < 200 * 100
    publish(peer, 1, key="unused-7")
    await sampler.sample()
    await sampler.sample()
    assert len(sampler.histories) >= 1
    [used] = [queue for queue in peer.node.broker.all_queues() if queue.name == "unused-7"]
    series = sampler.histories.get(used)
    assert series is not None and series.value(series.last, 0) == 1
