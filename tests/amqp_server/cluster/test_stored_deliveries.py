"""Consumers that get batches as they are stored, on three real nodes."""

from __future__ import annotations

import threading

import pytest
from pika.exceptions import ChannelClosedByBroker

from conformance_tests.patience import PATIENCE_S
from conformance_tests.stored_batch import messages_of
from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, Ring
from tests.amqp_server.cluster.test_streams import (
    PADDING,
    append,
    declare,
    files,
    pairs,
    replay,
    stored,
)
from tests.reliability.node import wait_until


@pytest.fixture
def ring(small: Ring) -> Ring:
    small.heal()
    return small


def replay_batches(
    ring: Ring, at: str, stream: str, stop: int, offset: object = "first", **more: object
) -> list[tuple[int, int]]:
    """Return offsets and numbers of messages, up to the offset `stop`, as a consumer of a node gets them."""
    found: list[tuple[int, int]] = []
    arguments = {"x-stream-offset": offset, "x-stream-batches": True}
    arguments |= {key.replace("_", "-"): value for key, value in more.items()}
    with ring.channel(at, confirm=False) as channel:
        channel.basic_qos(prefetch_count=2)
        for method, properties, body in channel.consume(
            stream, arguments=arguments, inactivity_timeout=PATIENCE_S
        ):
            assert method is not None, f"{at} has given {len(found)} messages"
            headers = properties.headers
            messages = messages_of(body, headers["x-stream-skip"])
            found += [(each.offset, int(each.body.split()[0])) for each in messages]
            channel.basic_ack(method.delivery_tag)
            if headers["x-stream-next-offset"] >= stop:
                break
        channel.cancel()
    return found


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_every_node_gives_batches_whether_it_is_a_member_or_not(ring: Ring, codec: str) -> None:
    name = f"batches-{codec}"
    declare(ring, name, x_initial_cluster_size=1, x_stream_compression=codec)
    append(ring, "n1", name, 0, 400)
    for node in NAMES:
        for offset in (0, 5, 213, 399):
            assert replay_batches(ring, node, name, 400, offset) == pairs(offset, 400), node
        assert replay_batches(ring, node, name, 400, "1h") == pairs(0, 400), node
    # From memory and from segments, and in the middle of what is published meanwhile.
    for node in NAMES:
        read: list[tuple[int, int]] = []
        reader = threading.Thread(
            target=lambda node=node, read=read: read.extend(replay_batches(ring, node, name, 900, 17)),
            daemon=True,
        )
        reader.start()
        if node == NAMES[0]:
            for low in range(400, 900, 100):
                append(ring, "n2", name, low, low + 100)
        reader.join(PATIENCE_S)
        assert read == pairs(17, 900), node


def test_a_consumer_outside_follows_the_end(ring: Ring) -> None:
    declare(ring, "followed", x_initial_cluster_size=1)
    (member,) = ring.queue("n1", "followed")["placed"]
    outside = next(name for name in NAMES if name != member)
    with ring.channel(outside, confirm=False) as reader, ring.channel(member) as writer:
        reader.basic_qos(prefetch_count=1)
        got: list[int] = []

        def take(channel: object, method: object, properties: object, body: bytes) -> None:
            skip = properties.headers["x-stream-skip"]  # type: ignore[attr-defined]
            got.extend(int(each.body.split()[0]) for each in messages_of(body, skip))
            reader.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

        arguments = {"x-stream-offset": "next", "x-stream-batches": True}
        reader.basic_consume("followed", take, arguments=arguments)
        for number in range(100):
            writer.basic_publish("", "followed", b"%d " % number + PADDING, PERSISTENT)
            reader.connection.process_data_events(0)
        wait_until("all come", lambda: reader.connection.process_data_events(0) or got == [*range(100)])


def test_consumers_of_batches_do_not_notice_that_the_leader_is_killed(ring: Ring) -> None:
    declare(ring, "led")
    append(ring, "n1", "led", 0, 500)
    leader = ring.leader("led")
    other = next(name for name in NAMES if name != leader)
    read: list[tuple[int, int]] = []
    reader = threading.Thread(
        target=lambda: read.extend(replay_batches(ring, other, "led", 700, 123)), daemon=True
    )
    reader.start()
    ring.nodes[leader].kill()
    append(ring, other, "led", 500, 700)
    ring.start(leader)
    reader.join(PATIENCE_S)
    assert read == pairs(123, 700)


def test_damaged_batches_are_mended_before_they_come(ring: Ring) -> None:
    declare(ring, "damaged")
    append(ring, "n1", "damaged", 0, 400)
    stored(ring, "damaged")
    queue_id = max(int(path.parent.name) for path in files(ring.nodes["n2"]))
    paths = [path for path in files(ring.nodes["n2"]) if path.parent.name == str(queue_id)]
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2] ^= 4
    paths[1].write_bytes(data)
    assert replay_batches(ring, "n2", "damaged", 400, 30) == pairs(30, 400)


def test_names_are_shared_by_consumers_of_batches_and_of_messages(ring: Ring) -> None:
    declare(ring, "named", x_initial_cluster_size=1)
    append(ring, "n1", "named", 0, 60)
    named: dict[str, object] = {"offset": "committed", "x_group": "g", "x_stream_offset_default": "first"}
    assert replay_batches(ring, "n3", "named", 40, **named) == pairs(0, 40)
    wait_until("the log has it", lambda: "40" in ring.mqctl("n2", "list_stream_offsets", "named"))
    assert replay(ring, "n2", "named", 20, **named) == pairs(40, 60)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queues_have_no_batches_on_any_node(ring: Ring, kind: str) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare(f"plain-{kind}", durable=True, arguments={"x-queue-type": kind})
    for name in NAMES:
        with ring.channel(name, confirm=False) as channel:
            with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-stream-batches'") as refused:
                channel.basic_consume(f"plain-{kind}", lambda *_: None, arguments={"x-stream-batches": True})
            assert refused.value.reply_code == 406
