"""A queue with many times more data than the memory budget works in both directions, and memory stays
bounded.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from amqp_server.resources import INTERVAL_S
from conformance_tests.patience import PATIENCE_S
from tests.attacks.scenes import frames
from tests.reliability.bodies import number
from tests.reliability.client import Client, Delivery
from tests.reliability.different import Different
from tests.reliability.flow import Flow, limited, through
from tests.reliability.node import Node, memory

MIB = 1 << 20
BUDGET = 40 * MIB
TOTAL = 300 * MIB
#: Data that waits for the disk may take a quarter of the budget.
UNSYNCED = BUDGET // 4
OPTIONS = ("--memory-budget-bytes", str(BUDGET))
#: An idle node has about 60 MiB. Mapped pages of the store may take 64 and a quarter more. A transaction that
#: is being written is in memory twice. Data on its way to clients is not counted.
RESIDENT_MAX = BUDGET + 2 * UNSYNCED + 60 * MIB + 80 * MIB


@pytest.mark.parametrize("persistent", [True, False], ids=["durable", "transient"])
def test_300_mb_under_a_40_mb_budget(tmp_path: Path, persistent: bool) -> None:
    """Memory is bounded, every byte comes back once and in order, and the room on the disk is used again."""
    with limited(tmp_path, *OPTIONS) as (node, watch):
        first = through(node, "first", TOTAL, persistent=persistent, watch=watch, backlog_share=0.7)
        disk = node.disk_bytes()
        second = through(node, "second", TOTAL, persistent=persistent, watch=watch, backlog_share=0.3)
        print(first.text, second.text, sep="\n")
        assert watch.peak.samples > 10
        assert watch.peak.resident < RESIDENT_MAX, f"{watch.peak.resident >> 20} MiB resident"
        assert node.disk_bytes() < disk * 1.3, "the space of what was consumed is not used again"


@pytest.mark.parametrize("persistent", [True, False], ids=["durable", "transient"])
def test_what_a_consumer_holds_unacked_does_not_stay_in_memory(tmp_path: Path, persistent: bool) -> None:
    """The consumer has no prefetch and acks nothing: the next one gets all messages again, in order."""
    total = 200 * MIB
    with limited(tmp_path, *OPTIONS) as (node, watch):
        holder, taker = Client(node.port), Client(node.port)
        holder.declare("flow")
        flow = Flow(node.port, "flow", total, persistent=persistent)
        flow.publish()
        holder.consume("flow", 0)
        received = 0
        while not (flow.published.is_set() and received == flow.sent):
            for event in holder.receive(0.2):
                assert isinstance(event, Delivery)
                assert number(event.body) == received
                received += 1
            assert not flow.errors
        assert taker.count("flow") == 0
        holder.close()
        taker.consume("flow", 0)
        for seq, delivery in enumerate(taker.deliveries(received)):
            assert number(delivery.body) == seq and delivery.redelivered
        taker.ack(0, multiple=True)
        taker.sync(0)
        assert watch.peak.resident < RESIDENT_MAX, f"{watch.peak.resident >> 20} MiB resident"
        taker.close()


def test_a_start_does_not_bring_the_bodies_into_memory(tmp_path: Path) -> None:
    with Node(tmp_path, *OPTIONS) as node:
        client = Client(node.port)
        client.declare("flow")
        flow = Flow(node.port, "flow", TOTAL, persistent=True)
        flow.publish()
        assert flow.published.wait(200) and not flow.errors
        client.close()
        node.kill()
        node.start()
        started = peak_resident_bytes(node.pid)
        assert started < 60 * MIB + 80 * MIB, f"{started >> 20} MiB resident"
        client = Client(node.port)
        client.consume("flow", 10)
        assert [number(delivery.body) for delivery in client.deliveries(10)] == list(range(10))
        assert client.count("flow") == flow.sent - 10
        client.close()


def peak_resident_bytes(pid: int) -> int:
    """The kernel's own high-water mark, mapped pages included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_memory_of_messages_that_have_gone_is_given_back(tmp_path: Path) -> None:
    """Memory of large messages that are in no queue any more, and of those between others that stay."""
    with Node(tmp_path) as node:
        client = Client(node.port)
        for queue in ("large", "gone", "stays"):
            client.declare(queue, durable=False)
        before = anonymous_bytes(node)
        client.send(frames.message("", "large", bytes(64 * MIB)))
        pair = frames.message("", "gone", bytes(60_000)) + frames.message("", "stays", bytes(60_000))
        for _ in range(1_500):
            client.send(pair)
        assert (client.count("large"), client.count("gone"), client.count("stays")) == (1, 1_500, 1_500)
        assert anonymous_bytes(node) > before + 220 * MIB
        client.method(commands.Basic.Get(queue="large", no_ack=True))
        taken = 0
        while taken < 64 * MIB:
            taken += len(client.sock.recv(MIB))
        purger = Client(node.port)
        purger.call(commands.Queue.Purge(queue="gone"), commands.Queue.PurgeOk)
        until_given_back(node, before + 120 * MIB)
        client.close()
        purger.close()


def anonymous_bytes(node: Node) -> int:
    return memory(Path(f"/proc/{node.pid}/status"))["RssAnon"]


def until_given_back(node: Node, but_bytes: int) -> None:
    """Wait until the process has no more memory than this."""
    deadline = time.monotonic() + PATIENCE_S
    while (has := anonymous_bytes(node)) > but_bytes:
        assert time.monotonic() < deadline, f"{(has - but_bytes) // MIB} MiB too much stay"
        time.sleep(0.1)


def test_memory_of_a_purge_is_given_back_though_other_messages_lie_between(tmp_path: Path) -> None:
    """Holes do not change the memory of the process, so only the heap shows them. Earlier, free heap was
    given back while all of it was in use.
    """
    with Node(tmp_path) as node:
        client = Client(node.port)
        for queue in ("gone", "stays"):
            client.declare(queue, durable=False)
        before = anonymous_bytes(node)
        pair = frames.message("", "gone", bytes(60_000)) + frames.message("", "stays", bytes(6_000))
        for _ in range(2_500):
            client.send(pair)
        assert (client.count("gone"), client.count("stays")) == (2_500, 2_500)
        # The first return comes as soon as memory grows no more; the second one only after some seconds.
        time.sleep(3 * INTERVAL_S)
        client.call(commands.Queue.Purge(queue="gone"), commands.Queue.PurgeOk)
        until_given_back(node, before + 60 * MIB)
        client.close()


#: By name: whether messages are persistent, and the arguments of their queue.
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "transient": (False, {}),
    "durable": (True, {}),
    "quorum": (True, {"x-queue-type": "quorum"}),
    "stream": (True, {"x-queue-type": "stream"}),
}
#: Messages until the node is warm, and after that.
WARM, COUNTED = 10_000, 30_000
#: What is remembered of frames comes and goes: at most memo_bytes_max, however many messages are queued.
NO_MEMO = ("--memo-entries-max", "16")
#: A queued message takes its frames and this much; see docs/sizing.md. The heap grows in steps.
BESIDE_MAX = 100


@pytest.mark.parametrize(
    "kind", ["transient", "quorum", pytest.param("durable", marks=pytest.mark.long), "stream"]
)
def test_what_messages_that_all_differ_take(tmp_path: Path, kind: str) -> None:
    persistent, arguments = KINDS[kind]
    different = Different(3, persistent=persistent)
    with Node(tmp_path, *NO_MEMO) as node:
        client = Client(node.port)
        client.declare("q", **arguments)
        client.confirms()
        taken: list[int] = []
        for count in (WARM, COUNTED):
            different.publish(client, count)
            taken.append(memory(Path(f"/proc/{node.pid}/status"))["RssAnon"])
    each = (taken[1] - taken[0]) / COUNTED
    # Those of a stream are in its segments, except the last ones.
    most = different.size / 2 if kind == "stream" else different.size + BESIDE_MAX
    print(f"{kind}: {each:.0f} bytes for a message of {different.size}")
    assert each < most, f"{each:.0f} bytes"


@pytest.mark.parametrize(
    "kind", ["quorum", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "quorum")]
)
def test_messages_that_all_differ_under_a_budget(tmp_path: Path, kind: str) -> None:
    """Their properties count as their bodies do, and here are much larger."""
    persistent, arguments = KINDS[kind]
    different = Different(12, persistent=persistent)
    with limited(tmp_path, *OPTIONS) as (node, watch):
        client = Client(node.port)
        client.declare("q", **arguments)
        client.confirms()
        count = 2 * BUDGET // different.size
        different.publish(client, count)
        assert watch.peak.resident < RESIDENT_MAX, f"{watch.peak.resident >> 20} MiB resident"
        consumer = Client(node.port)
        if kind == "stream":
            consumer.sync(200)
            method = commands.Basic.Consume(queue="q", arguments={"x-stream-offset": "first"})
            consumer.call(method, commands.Basic.ConsumeOk)
        else:
            consumer.consume("q", 200)
        received = 0
        while received < count:
            last = 0
            for event in consumer.receive():
                assert isinstance(event, Delivery)
                received += 1
                last = event.tag
            consumer.ack(last, multiple=True)
        assert watch.peak.resident < RESIDENT_MAX, f"{watch.peak.resident >> 20} MiB resident"
