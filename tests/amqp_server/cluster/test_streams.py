"""Streams on three real nodes: nodes are killed, wiped or damaged, and clients notice nothing of it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from conformance_tests.patience import PATIENCE_S
from conformance_tests.wire import RawClient, raw_method, short_string, table_bytes
from tests.amqp_server.cluster.conftest import SMALL
from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, QUORUM, Ring, publish
from tests.reliability.node import Node, wait_until

#: Uncompressed, so that there are several segments.
STREAM = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 16_384, "x-stream-compression": "none"}
PADDING = bytes(200)


@pytest.fixture
def ring(small: Ring) -> Ring:
    small.heal()
    return small


def declare(ring: Ring, name: str, at: str = "n1", **arguments: object) -> None:
    table = STREAM | {key.replace("_", "-"): value for key, value in arguments.items()}
    with ring.channel(at) as channel:
        channel.queue_declare(name, durable=True, arguments=table)


def numbers(low: int, stop: int) -> list[bytes]:
    return [b"%d " % number + PADDING for number in range(low, stop)]


def append(ring: Ring, at: str, stream: str, low: int, stop: int) -> None:
    """Publish numbers in a few batches, each committed."""
    with ring.channel(at, confirm=False) as channel:
        channel.tx_select()
        for first in range(low, stop, 20):
            for body in numbers(first, min(first + 20, stop)):
                channel.basic_publish("", stream, body, PERSISTENT)
            channel.tx_commit()


def replay(
    ring: Ring, at: str, stream: str, count: int, offset: object = "first", **more: object
) -> list[tuple[int, int]]:
    """Return this many offsets and numbers, as a consumer of a node gets them."""
    found: list[tuple[int, int]] = []
    arguments = {"x-stream-offset": offset} | {key.replace("_", "-"): value for key, value in more.items()}
    with ring.channel(at, confirm=False) as channel:
        channel.basic_qos(prefetch_count=100)
        for method, properties, body in channel.consume(
            stream, arguments=arguments, inactivity_timeout=PATIENCE_S
        ):
            assert method is not None, f"{at} has given {len(found)} of {count} messages"
            found.append((properties.headers["x-stream-offset"], int(body.split()[0])))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
    return found


def pairs(low: int, stop: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(low, stop)]


def files(node: Node) -> list[Path]:
    # A stream that leaves the node meanwhile takes its directory with it, which ends a glob.
    return sorted(
        Path(directory) / name
        for directory, _, names in os.walk(node.data / "streams")
        for name in names
        if name.endswith(".segment")
    )


def row(ring: Ring, at: str, stream: str) -> dict[str, Any]:
    told: dict[str, Any] = ring.get(at, f"/api/queues/%2F/{stream}")
    return told


def stored(ring: Ring, stream: str, names: tuple[str, ...] = NAMES) -> None:
    """Wait until the segments of these nodes have all of a stream."""

    def same() -> bool:
        told = [ring.queue(name, stream) for name in names]
        return len(
            {(one.get("stored_offset"), one.get("next_offset"), one["leader"]) for one in told}
        ) == 1 and (all(one["stored_offset"] == one["next_offset"] and not one["missing"] for one in told))

    wait_until(
        f"{stream} is in segments on {names}",
        same,
        state=lambda: str([ring.queue(name, stream) for name in names]),
    )


def test_every_node_counts_from_an_offset_on(ring: Ring) -> None:
    """Nodes that are no members ask a member each time."""
    declare(ring, "counted", x_initial_cluster_size=1)
    for stop in (40, 100):
        append(ring, "n1", "counted", stop - 40 if stop == 40 else 40, stop)
        for name in NAMES:
            with ring.channel(name, confirm=False) as channel:
                declared = channel.queue_declare("counted", passive=True, arguments={"x-stream-offset": 30})
                assert (name, declared.method.message_count) == (name, stop - 30)


def test_every_node_knows_when_messages_were_taken(ring: Ring) -> None:
    """Nodes that are no members get the time with the messages, and ask a member for the offset of a time."""
    declare(ring, "timed", x_initial_cluster_size=1)
    append(ring, "n1", "timed", 0, 10)
    # The nodes' time may differ somewhat from the wall clock.
    time.sleep(0.2)
    moment = int(time.time() * 1_000)
    time.sleep(0.2)
    append(ring, "n2", "timed", 10, 20)
    for name in NAMES:
        with ring.channel(name, confirm=False) as channel:
            counts = []
            for until in (0, moment, 1 << 60):
                arguments = {"x-stream-offset": 5, "x-stream-until": until}
                counts.append(
                    channel.queue_declare("timed", passive=True, arguments=arguments).method.message_count
                )
            assert (name, counts) == (name, [0, 5, 15])
            channel.basic_qos(prefetch_count=50)
            wanted = {"x-stream-offset": "first", "x-stream-timestamps": True}
            for method, properties, _ in channel.consume("timed", arguments=wanted):
                assert method is not None and properties is not None
                offset = properties.headers["x-stream-offset"]
                taken = properties.headers["x-stream-timestamp"]
                assert (name, offset, taken >= moment) == (name, offset, offset >= 10)
                channel.basic_ack(method.delivery_tag)
                if offset == 19:
                    break
            channel.cancel()


class Flow(threading.Thread):
    """Publishes numbers at one node, each confirmed, and reads the stream from its first message on at
    another one.
    """

    def __init__(self, ring: Ring, stream: str, to: str, at: str) -> None:
        super().__init__(daemon=True)
        self._ring, self._stream, self._to, self._at = ring, stream, to, at
        self._end = threading.Event()
        self._time_ms = 0
        self.sent = 0
        self.received: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._ring.channel(self._to) as writer, self._ring.channel(self._at) as reader:
                reader.basic_qos(prefetch_count=50)
                arguments = {"x-stream-offset": "first", "x-stream-timestamps": True}
                reader.basic_consume(self._stream, self._take, arguments=arguments)
                while not self._end.is_set() or len(self.received) < self.sent:
                    if not self._end.is_set():
                        body = b"%d " % self.sent + PADDING
                        writer.basic_publish("", self._stream, body, PERSISTENT, mandatory=True)
                        self.sent += 1
                    reader.connection.process_data_events(0)
        except Exception as error:  # noqa: BLE001  # the test shows it
            self.error = error

    def _take(self, channel: object, method: object, properties: object, body: bytes) -> None:
        self.received.append((properties.headers["x-stream-offset"], int(body.split()[0])))  # type: ignore[attr-defined]
        time_ms = properties.headers["x-stream-timestamp"]  # type: ignore[attr-defined]
        assert time_ms >= self._time_ms, "time goes back"
        self._time_ms = time_ms
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    def __enter__(self) -> Flow:
        self.start()
        self.moved()
        return self

    def moved(self, count: int = 50) -> None:
        """Wait until some more messages have come through."""
        goal = len(self.received) + count
        wait_until(
            "messages flow",
            lambda: self.error or len(self.received) >= goal,
            state=lambda: f"{self.error} {self.sent} {len(self.received)}",
        )
        assert self.error is None, self.error

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join(60)
        assert self.error is None, self.error
        assert not self.is_alive(), (self.sent, len(self.received))
        assert self.received == pairs(0, self.sent)


def test_all_nodes_append_and_have_the_same(ring: Ring) -> None:
    declare(ring, "all", x_max_length_bytes=10_000_000)
    low = 0
    for name in NAMES:
        append(ring, name, "all", low, low + 20)
        low += 20
    for name in NAMES:
        assert replay(ring, name, "all", 60) == pairs(0, 60)
        assert replay(ring, name, "all", 5, 55) == pairs(55, 60)
        assert replay(ring, name, "all", 20, "last") == pairs(40, 60)
    stored(ring, "all")
    for told in [row(ring, name, "all") for name in NAMES]:
        assert (told["first_offset"], told["next_offset"]) == (0, 60)
        assert (told["leader"], sorted(told["members"])) == (ring.leader("all"), [*NAMES])
    queue_id = max(int(path.parent.name) for path in files(ring.nodes["n1"]))
    one, two, three = (
        b"".join(path.read_bytes() for path in files(ring.nodes[name]) if path.parent.name == str(queue_id))
        for name in NAMES
    )
    assert one and one == two == three


def test_a_node_that_is_no_member(ring: Ring) -> None:
    declare(ring, "two", at="n1", x_initial_cluster_size=2)
    (outside,) = {*NAMES} - {*ring.queue("n1", "two")["placed"]}
    append(ring, outside, "two", 0, 200)
    assert replay(ring, outside, "two", 200) == pairs(0, 200)
    assert replay(ring, outside, "two", 20, "last") == pairs(180, 200)
    assert replay(ring, outside, "two", 200, "1h") == pairs(0, 200)
    wait_until(
        "it shows how far the stream is",
        lambda: row(ring, outside, "two")["next_offset"] == 200,
        state=lambda: str(row(ring, outside, "two")),
    )
    # A node that still has messages to read goes, and a reader that follows the end reads on.
    with ring.channel(outside, confirm=False) as reader, ring.channel(outside) as writer:
        reader.basic_qos(prefetch_count=10)
        got: list[int] = []

        def take(channel: object, method: object, properties: object, body: bytes) -> None:
            got.append(int(body.split()[0]))
            reader.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

        reader.basic_consume("two", take, arguments={"x-stream-offset": "next"})
        publish(writer, "two", *numbers(200, 230))
        wait_until("they come", lambda: reader.connection.process_data_events(0) or got == [*range(200, 230)])
        ring.mqctl("n1", "cluster", "grow", outside)
        wait_until("it is a member", lambda: len(ring.queue("n1", "two")["placed"]) == 3)
        stored(ring, "two")
        publish(writer, "two", *numbers(230, 260))
        wait_until("they come", lambda: reader.connection.process_data_events(0) or got == [*range(200, 260)])
    assert replay(ring, outside, "two", 260) == pairs(0, 260)


def test_the_leader_is_killed_and_consumers_do_not_notice(ring: Ring) -> None:
    declare(ring, "led")
    leader = ring.leader("led")
    one, two = [name for name in NAMES if name != leader]
    with Flow(ring, "led", one, two) as flow:
        ring.nodes[leader].kill()
        flow.moved()
        ring.start(leader)
        flow.moved()
        sent = flow.sent
        wait_until(
            "it has caught up", lambda: int(str(ring.queue(leader, "led").get("next_offset", 0))) >= sent
        )
    assert replay(ring, leader, "led", sent) == pairs(0, sent)


def test_all_nodes_are_killed(ring: Ring) -> None:
    declare(ring, "killed")
    confirmed = 0
    with suppress(AMQPError), ring.channel("n1") as channel:
        for number in range(300):
            publish(channel, "killed", b"%d " % number + PADDING)
            confirmed = number + 1
            if number == 250:
                break
    for name in NAMES:
        ring.nodes[name].kill()
    ring.start(*NAMES)
    for name in NAMES:
        assert replay(ring, name, "killed", confirmed) == pairs(0, confirmed)


def test_a_wiped_node_is_filled_while_the_stream_grows(ring: Ring) -> None:
    declare(ring, "filled")
    leader = ring.leader("filled")
    wiped = next(name for name in NAMES if name != leader)
    append(ring, leader, "filled", 0, 3000)
    node = ring.nodes[wiped]
    node.kill()
    shutil.rmtree(node.data)
    ring.start(wiped)
    append(ring, leader, "filled", 3000, 3300)
    stored(ring, "filled")
    assert replay(ring, wiped, "filled", 3300) == pairs(0, 3300)
    number = _id(ring, leader)
    one, two = (
        [path.read_bytes() for path in files(ring.nodes[name]) if path.parent.name == number]
        for name in (wiped, leader)
    )
    assert one == two


def test_damages_are_mended_from_other_nodes(ring: Ring) -> None:
    declare(ring, "damaged")
    append(ring, "n1", "damaged", 0, 400)
    stored(ring, "damaged")
    queue_id = max(int(path.parent.name) for path in files(ring.nodes["n2"]))
    node = ring.nodes["n2"]
    sound = [path for path in files(node) if path.parent.name == str(queue_id)]
    assert len(sound) > 3
    before = [path.read_bytes() for path in sound]
    # While the node runs a bit flips; no reader gets a damaged message, and none misses one.
    data = bytearray(before[1])
    data[len(data) // 2] ^= 4
    sound[1].write_bytes(data)
    assert replay(ring, "n2", "damaged", 400) == pairs(0, 400)
    wait_until("it is mended", lambda: sound[1].read_bytes() == before[1])
    # While the node is down a segment is lost, and another one is cut.
    node.kill()
    sound[2].unlink()
    sound[-1].write_bytes(before[-1][: len(before[-1]) // 2])
    ring.start("n2")
    assert replay(ring, "n2", "damaged", 400) == pairs(0, 400)
    stored(ring, "damaged")
    assert row(ring, "n2", "damaged")["lost_messages"] == 0
    assert "cannot be read, fetching them from another node" in node.log()


def test_operators_move_streams(ring: Ring) -> None:
    declare(ring, "moved")
    leader = ring.leader("moved")
    one, two = [name for name in NAMES if name != leader]
    with Flow(ring, "moved", one, two) as flow:
        ring.mqctl("n1", "cluster", "transfer-leader", "moved", one)
        wait_until("it leads", lambda: ring.leader("moved") == one)
        flow.moved()
        ring.mqctl("n1", "cluster", "shrink", two)
        wait_until("it is out", lambda: two not in ring.queue("n1", "moved")["placed"])
        wait_until(
            "its segments are gone",
            lambda: not [path for path in files(ring.nodes[two]) if path.parent.name == _id(ring, one)],
        )
        flow.moved()
        ring.mqctl("n1", "cluster", "grow", two)
        wait_until("it is back", lambda: two in ring.queue("n1", "moved")["placed"])
        flow.moved()
    stored(ring, "moved")
    number = _id(ring, one)
    with ring.channel("n3") as channel:
        channel.queue_delete("moved")
    wait_until(
        "the disks are free",
        lambda: (
            not [path for name in NAMES for path in files(ring.nodes[name]) if path.parent.name == number]
        ),
    )


def _id(ring: Ring, at: str) -> str:
    """Return the newest stream's directory."""
    return str(max(int(path.parent.name) for path in files(ring.nodes[at])))


def test_retention_is_the_same_on_all_nodes(ring: Ring) -> None:
    declare(ring, "short", x_max_length_bytes=50_000)
    append(ring, "n2", "short", 0, 600)
    stored(ring, "short")

    def firsts() -> list[object]:
        return [row(ring, name, "short")["first_offset"] for name in NAMES]

    wait_until(
        "old segments are gone",
        lambda: len({*firsts()}) == 1 and firsts()[0] != 0,
        state=lambda: str(firsts()),
    )
    first = int(str(firsts()[0]))
    for name in NAMES:
        assert replay(ring, name, "short", 600 - first, 0) == pairs(first, 600)


def test_a_policy_shortens_a_stream_on_all_nodes(ring: Ring) -> None:
    declare(ring, "long")
    append(ring, "n2", "long", 0, 600)
    stored(ring, "long")

    def firsts() -> list[object]:
        return [row(ring, name, "long")["first_offset"] for name in NAMES]

    assert firsts() == [0, 0, 0]
    ring.mqctl("n3", "set_policy", "short", "^long$", '{"max-length-bytes": 50000}')
    wait_until(
        "old segments are gone",
        lambda: len({*firsts()}) == 1 and firsts()[0] != 0,
        state=lambda: str(firsts()),
    )
    ring.mqctl("n1", "clear_policy", "short")
    first = firsts()
    append(ring, "n1", "long", 600, 900)
    stored(ring, "long")
    assert firsts() == first


def test_transactions_and_dead_letters(ring: Ring) -> None:
    declare(ring, "sink")
    with ring.channel("n2", confirm=False) as channel:
        channel.tx_select()
        for body in numbers(0, 3):
            channel.basic_publish("", "sink", body)
        channel.tx_commit()
        for body in numbers(90, 92):
            channel.basic_publish("", "sink", body)
        channel.tx_rollback()
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "sink"}
    with ring.channel("n3") as channel:
        channel.queue_declare("dying", durable=True, arguments=QUORUM | dying)
        publish(channel, "dying", *numbers(3, 4))
        method, _, _ = channel.basic_get("dying")
        channel.basic_nack(method.delivery_tag, requeue=False)
    for name in NAMES:
        assert replay(ring, name, "sink", 4) == pairs(0, 4)


def test_what_is_published_again_is_there_once(ring: Ring) -> None:
    declare(ring, "once", x_deduplication=True)
    declare(ring, "far", x_deduplication=True, x_initial_cluster_size=1)

    def publish_all(at: str, stream: str, low: int, stop: int) -> None:
        with ring.channel(at) as channel:
            for number in range(low, stop):
                headers: dict[str, Any] = {"x-producer": "till", "x-sequence": number}
                if number % 3 == 0:
                    headers = {"x-deduplication-id": f"receipt {number}"}
                properties = pika.BasicProperties(headers=headers)
                channel.basic_publish("", stream, numbers(number, number + 1)[0], properties)

    for stream in ("once", "far"):
        publish_all("n1", stream, 0, 24)
        publish_all("n2", stream, 8, 32)
        wait_until("n3 knows", lambda stream=stream: row(ring, "n3", stream)["next_offset"] == 32)
    stored(ring, "once")
    leader = ring.leader("once")
    ring.nodes[leader].kill()
    publish_all(next(name for name in NAMES if name != leader), "once", 0, 40)
    ring.start(leader)
    publish_all(leader, "once", 0, 40)
    for name in NAMES:
        assert replay(ring, name, "once", 40) == pairs(0, 40)
    # The other members tell a member that has lost its disk which messages were taken.
    stored(ring, "once")
    ring.nodes["n1"].kill()
    shutil.rmtree(ring.nodes["n1"].data)
    ring.start("n1")
    stored(ring, "once")
    # Until it votes again, n3 is needed for a majority.
    ring.equal("once", *NAMES)
    ring.expendable("n3", "once")
    ring.nodes["n3"].kill()
    publish_all("n1", "once", 32, 44)
    ring.start("n3")
    assert replay(ring, "n1", "once", 44) == pairs(0, 44)


def test_compressed_streams_are_read_and_mended(ring: Ring) -> None:
    """Members compress for themselves: one may store a message in a batch of another size than the others
    do.
    """
    for codec in ("zstd", "lz4"):
        stream = f"packed-{codec}"
        declare(ring, stream, x_stream_compression=codec)
        append(ring, "n2", stream, 0, 300)
        stored(ring, stream)
        plain = 300 * len(PADDING)
        sizes = {name: row(ring, name, stream)["message_bytes"] for name in NAMES}
        assert all(size < plain / 2 for size in sizes.values()), sizes
        for name in NAMES:
            assert replay(ring, name, stream, 300) == pairs(0, 300)
            assert row(ring, name, stream)["compression"] == codec


def test_each_member_compacts_and_the_offsets_stay(ring: Ring) -> None:
    declare(ring, "table", x_stream_compaction="header:room", x_stream_max_segment_size_bytes=8_192)
    rooms = 5

    def publish_all(at: str, stream: str, low: int, stop: int) -> None:
        with ring.channel(at, confirm=False) as channel:
            channel.tx_select()
            for number in range(low, stop):
                properties = pika.BasicProperties(headers={"room": f"r{number % rooms}"})
                channel.basic_publish("", stream, numbers(number, number + 1)[0], properties)
                if number % 20 == 19:
                    channel.tx_commit()
            channel.tx_commit()

    publish_all("n1", "table", 0, 400)
    wait_until(
        "all have compacted",
        lambda: all((row(ring, name, "table").get("compacted_offset") or 0) > 300 for name in NAMES),
        state=lambda: str([row(ring, name, "table") for name in NAMES]),
    )
    for name in NAMES:
        with ring.channel(name, confirm=False) as channel:
            channel.basic_qos(prefetch_count=100)
            found: list[tuple[int, int]] = []
            for method, properties, body in channel.consume(
                "table", arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_S
            ):
                assert method is not None, found
                found.append((properties.headers["x-stream-offset"], int(body.split()[0])))
                channel.basic_ack(method.delivery_tag)
                if found[-1][0] == 399:
                    break
            channel.cancel()
        assert all(offset == number for offset, number in found)
        assert found == sorted(found)
        assert len(found) < 200, (name, row(ring, name, "table"), found)
        assert {number for _, number in found} >= set(range(395, 400))
    # A member that begins empty gets the messages that the others still have, and continues with them.
    ring.nodes["n2"].kill()
    shutil.rmtree(ring.nodes["n2"].data)
    ring.start("n2")
    publish_all("n2", "table", 400, 420)
    stored(ring, "table")
    assert replay(ring, "n2", "table", 20, 400) == pairs(400, 420)


def test_filters_and_times_hold_on_every_node(ring: Ring) -> None:
    """Members read their own segments, and other nodes ask a member. When duplicates are cut out, the filter
    values of the other messages stay.
    """
    declare(ring, "rooms", x_deduplication=True)
    declare(ring, "far rooms", x_initial_cluster_size=1, x_deduplication=True)

    def publish_all(stream: str, low: int, stop: int) -> None:
        with ring.channel("n2", confirm=False) as channel:
            channel.tx_select()
            for number in range(low, stop):
                headers: dict[str, Any] = {"x-deduplication-id": f"{number}"}
                if number % 4:
                    headers["x-stream-filter-value"] = f"room {number % 4}"
                properties = pika.BasicProperties(headers=headers)
                channel.basic_publish("", stream, numbers(number, number + 1)[0], properties)
            channel.tx_commit()

    for stream in ("rooms", "far rooms"):
        publish_all(stream, 0, 60)
    between = int(time.time()) + 2
    time.sleep(between + 0.5 - time.time())
    for stream in ("rooms", "far rooms"):
        publish_all(stream, 40, 100)
    stored(ring, "rooms")
    for stream in ("rooms", "far rooms"):
        for name in NAMES:
            one = [number for number in range(100) if number % 4 == 1]
            assert replay(ring, name, stream, 25, x_stream_filter="room 1") == [(each, each) for each in one]
            others = [number for number in range(100) if number % 4 in (0, 2)]
            wanted = {"x_stream_filter": ["room 2"], "x_stream_match_unfiltered": True}
            found = replay(ring, name, stream, 50, **wanted)
            assert found == [(each, each) for each in others]
            at = datetime.fromtimestamp(between, tz=UTC)
            assert replay(ring, name, stream, 40, at) == pairs(60, 100)


def test_super_streams_are_made_whole_and_spread(ring: Ring) -> None:
    # A node that leads more already leads as many partitions as the others.
    for number in range(4):
        declare(ring, f"beside.{number}", "n1", x_queue_leader_locator="client-local")
    with ring.channel("n1") as channel:
        arguments = {"x-partitions": 6, "x-stream-max-segment-size-bytes": 16_384}
        channel.exchange_declare("orders", "x-super-stream", durable=True, arguments=arguments)
    _orders_are(ring, 6)
    for name in NAMES:
        placed = [ring.queue(name, f"orders-{number}")["placed"] for number in range(6)]
        assert all(len(each) == 3 for each in placed)
        assert sorted(each[0] for each in placed) == sorted(NAMES * 2)
    for low, at in ((0, "n2"), (200, "n3")):
        with ring.channel(at) as channel:
            for number in range(low, low + 200):
                channel.basic_publish("orders", f"customer {number % 20}", numbers(number, number + 1)[0])
    ring.nodes["n1"].kill()
    with ring.channel("n2") as channel:
        for number in range(400, 600):
            channel.basic_publish("orders", f"customer {number % 20}", numbers(number, number + 1)[0])
    ring.start("n1")
    found: list[int] = []
    for number in range(6):
        count = row(ring, "n2", f"orders-{number}")["next_offset"]
        part = [each for _, each in replay(ring, "n1", f"orders-{number}", count)]
        for customer in range(20):
            one = [each for each in part if each % 20 == customer]
            assert one in ([], list(range(customer, 600, 20)))
        found += part
    assert sorted(found) == list(range(600))
    ring.mqctl("n3", "add_partitions", "orders", "2")
    _orders_are(ring, 8)
    assert row(ring, "n1", "orders-7")["type"] == "stream"
    _, definitions = ring.ask("GET", "n2", "/api/definitions")
    _delete_orders(ring)
    assert ring.ask("POST", "n3", "/api/definitions", definitions)[1] is None
    _orders_are(ring, 8)
    assert len(ring.queue("n1", "orders-7")["placed"]) == 3
    _delete_orders(ring)


def _delete_orders(ring: Ring) -> None:
    with ring.channel("n2") as channel:
        channel.exchange_delete("orders")
    _orders_are(ring, 0)


def _orders_are(ring: Ring, count: int) -> None:
    """Wait until all nodes have this many partitions."""

    def there() -> list[list[str]]:
        told = [ring.get(name, "/api/queues") for name in NAMES]
        return [sorted(each["name"] for each in one if each["name"].startswith("orders-")) for one in told]

    expected = [f"orders-{number}" for number in range(count)]
    wait_until("the partitions are known", lambda: there() == [expected] * 3, state=lambda: str(there()))


def test_a_time_that_no_clock_shows_is_behind_the_end(ring: Ring) -> None:
    """Also where a node asks a member for it: a timestamp may have any 64 bits."""
    declare(ring, "late", x_initial_cluster_size=1)
    append(ring, "n1", "late", 0, 5)
    seconds = (1 << 54, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    for name in NAMES:
        peer = RawClient(f"amqp://guest:guest@127.0.0.1:{ring.nodes[name].port}/")
        peer.handshake().open_channel()
        peer.call(commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
        for each in seconds:
            arguments = table_bytes({"x-stream-offset": b"T" + each.to_bytes(8, "big")})
            tag = short_string(b"%d" % each)
            peer.send(raw_method(60, 20, b"\0\0" + short_string(b"late") + tag + b"\0" + arguments))
            peer.read(commands.Basic.ConsumeOk)

        def begun(name: str = name) -> bool:
            rows = [each for each in ring.get(name, "/api/consumers") if each["queue"]["name"] == "late"]
            return [each["offset"] for each in rows] == [5] * len(seconds)

        wait_until(f"they have begun at {name}", begun, state=ring.logs)
        peer.close()
        assert ring.mqctl(name, "-q", "list_failed") == ""


def test_readers_are_counted_by_the_nodes_that_serve_them(ring: Ring) -> None:
    declare(ring, "read")
    with ring.channel("n1") as plain, ExitStack() as stack:
        plain.queue_declare("not read", durable=True)
        plain.basic_consume("not read", lambda *_: None)
        for name in ("n1", "n2", "n2"):
            channel = stack.enter_context(ring.channel(name))
            channel.basic_qos(prefetch_count=10)
            channel.basic_consume("read", lambda *_: None)

        def told(at: str) -> set[int]:
            page = ring.get(at, "/api/queues?page=1&name=read&sort=consumers&sort_reverse=true")["items"]
            assert len(page) == 2 and page[0]["consumers"] >= page[1]["consumers"]
            rows = [*ring.get(at, "/api/queues"), *page, row(ring, at, "read")]
            return {each["consumers"] for each in rows if each["name"] == "read"}

        for at in NAMES:
            wait_until("each node counts its own", lambda at=at: told(at) == {3})
        total = ring.get("n3", "/api/overview")["object_totals"]["consumers"]
        assert total == sum(each["consumers"] for each in ring.get("n3", "/api/queues"))


def test_what_streams_do_not_have_is_refused(ring: Ring) -> None:
    declare(ring, "plain")
    for what in ("get", "purge", "delete", "declare"):
        with ring.channel("n2") as channel, pytest.raises(ConnectionClosedByBroker) as closed:
            if what == "get":
                channel.basic_get("plain")
            elif what == "purge":
                channel.queue_purge("plain")
            elif what == "declare":
                channel.queue_declare("other", durable=True, arguments=STREAM | {"x-stream-unheard-of": 1})
            else:
                channel.queue_delete("plain", if_unused=True)
        assert closed.value.reply_code == 540


def test_a_node_that_stood_alone_brings_its_streams(empty: Ring) -> None:
    for name in NAMES:
        empty.place(name, *SMALL)
    with Node(empty.directory / "n1", "--disk-free-min-bytes", "1MiB", *SMALL) as alone:
        where = pika.ConnectionParameters("127.0.0.1", alone.port, heartbeat=0)
        connection = pika.BlockingConnection(where)
        channel = connection.channel()
        channel.queue_declare("brought", durable=True, arguments=STREAM)
        channel.tx_select()
        for body in numbers(0, 300):
            channel.basic_publish("", "brought", body)
        channel.tx_commit()
        table: dict[str, Any] = {"x-partitions": 2, "x-deduplication": True, "x-stream-compression": "none"}
        channel.exchange_declare("orders", "x-super-stream", durable=True, arguments=table)
        orders = [
            (f"key {number}", numbers(number, number + 1)[0], {"x-deduplication-id": f"order {number}"})
            for number in range(20)
        ]
        for key, body, headers in orders:
            channel.basic_publish("orders", key, body, pika.BasicProperties(headers=headers))
        channel.tx_commit()
        channel.basic_qos(prefetch_count=100)
        by_name = {"x-stream-offset": "committed", "x-group": "reader", "x-stream-offset-default": "first"}
        for method, properties, _ in channel.consume("brought", arguments=by_name):
            channel.basic_ack(method.delivery_tag)
            if properties.headers["x-stream-offset"] == 59:
                break
        channel.tx_commit()
        connection.close()
        alone.kill()
    empty.start(*NAMES)
    with empty.channel("n3") as channel:
        channel.confirm_delivery()
        for key, body, headers in orders:
            channel.basic_publish("orders", key, body, pika.BasicProperties(headers=headers))
    partitions = [f"orders-{number}" for number in range(2)]
    for partition in partitions:
        # Members and leaders come one after another.
        wait_until("all keep it", lambda name=partition: len(empty.queue("n1", name)["placed"]) == 3)
        stored(empty, partition)
    counts = [empty.queue("n2", partition)["next_offset"] for partition in partitions]
    assert sum(counts) == 20 and all(counts)
    with empty.channel("n2") as channel:
        publish(channel, "brought", *numbers(300, 320))
    wait_until("all keep it", lambda: len(empty.queue("n1", "brought")["placed"]) == 3)
    stored(empty, "brought")
    for name in NAMES:
        assert replay(empty, name, "brought", 320) == pairs(0, 320)
    assert replay(empty, "n3", "brought", 9, "committed", x_group="reader") == pairs(60, 69)
    assert all(PADDING in path.read_bytes() for path in files(empty.nodes["n3"]) if path.stat().st_size)
    empty.mqctl("n2", "add_partitions", "orders", "1")
    assert row(empty, "n3", "orders-2")["type"] == "stream"
