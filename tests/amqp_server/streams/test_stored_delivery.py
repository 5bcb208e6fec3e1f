"""Consumers that get batches as they are stored (x-stream-batches)."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.streams.layout.stored_delivery import StoredReader
from amqp_server.streams.local_host import StreamOptions
from conformance_tests.stored_batch import Stored, messages_of
from persistence.streams import batch as batches
from persistence.streams.batch import Shape
from persistence.streams.compression import CODECS
from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, opened, publish

BATCHES: dict[str, Any] = {"x_stream_batches": True}


def deliveries(peer: Peer, answers: list[tuple[int, Any]] | None = None) -> list[Delivery]:
    return [each for _, each in [*(answers or []), *peer.answers()] if isinstance(each, Delivery)]


def headers(delivery: Delivery) -> dict[str, Any]:
    return dict(delivery.properties.headers or {})


def decoded(found: list[Delivery]) -> list[Stored]:
    """Return the messages of batches, after checking what their headers say."""
    messages: list[Stored] = []
    for delivery in found:
        table = headers(delivery)
        every = messages_of(delivery.body)
        assert table["x-stream-count"] == len(every) > table["x-stream-skip"]
        assert table["x-stream-offset"] <= every[0].offset
        assert every[-1].offset < table["x-stream-next-offset"]
        assert isinstance(delivery.method, commands.Basic.Deliver) and not delivery.method.redelivered
        assert (delivery.method.exchange, delivery.method.routing_key) in (("", "s"), ("", "once"))
        messages += every[table["x-stream-skip"] :]
    return messages


def appended(node: StreamNode, peer: Peer, low: int, stop: int, **more: Any) -> None:
    publish(peer, [b"%d" % number for number in range(low, stop)], **more)
    node.sync()


def numbered(messages: list[Stored]) -> list[tuple[int, bytes]]:
    return [(each.offset, each.body) for each in messages]


def expected(low: int, stop: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(low, stop)]


def test_each_batch_is_one_delivery(node: StreamNode, peer: Peer) -> None:
    for low, stop in ((0, 3), (3, 10), (10, 11)):
        appended(node, peer, low, stop)
    node.work()
    reader = opened(node)
    answers = consume(reader, **BATCHES)
    node.work()
    found = deliveries(reader, answers)
    assert [headers(each)["x-stream-offset"] for each in found] == [0, 3, 10]
    assert [headers(each)["x-stream-next-offset"] for each in found] == [3, 10, 11]
    assert [each.properties.content_type for each in found] == ["application/x-mqd-batch"] * 3
    assert numbered(decoded(found)) == expected(0, 11)
    # And those that come now.
    appended(node, peer, 11, 20)
    assert numbered(decoded(deliveries(reader))) == expected(11, 20)
    assert {each.routing_key for each in decoded(found)} == {"s"}


@pytest.mark.parametrize("offset", range(12))
def test_a_start_within_a_batch_says_how_many_messages_to_skip(
    node: StreamNode, peer: Peer, offset: int
) -> None:
    appended(node, peer, 0, 5)
    appended(node, peer, 5, 12)
    node.work()
    reader = opened(node)
    answers = consume(reader, offset, **BATCHES)
    node.work()
    found = deliveries(reader, answers)
    first = headers(found[0])
    assert (first["x-stream-offset"], first["x-stream-skip"]) == (
        (0, offset) if offset < 5 else (5, offset - 5)
    )
    assert [headers(each)["x-stream-skip"] for each in found[1:]] == [0] * (len(found) - 1)
    assert numbered(decoded(found)) == expected(offset, 12)


def test_credit_counts_deliveries(node: StreamNode, peer: Peer) -> None:
    for low in range(0, 30, 3):
        appended(node, peer, low, low + 3)
    node.work()
    reader = opened(node)
    answers = consume(reader, prefetch=2, **BATCHES)
    node.work()
    found = deliveries(reader, answers)
    assert [headers(each)["x-stream-offset"] for each in found] == [0, 3]
    for verb in (
        commands.Basic.Ack(delivery_tag=1),
        commands.Basic.Nack(delivery_tag=2, requeue=True),
        commands.Basic.Reject(delivery_tag=3, requeue=False),
        commands.Basic.Ack(delivery_tag=0, multiple=True),
    ):
        answers = reader.call(1, verb)
        node.work()
        found += deliveries(reader, answers)
    assert [headers(each)["x-stream-offset"] for each in found] == list(range(0, 21, 3))
    assert node.host().consumers()[0].prefetch == 2


def test_a_name_continues_after_the_acked_batches(node: StreamNode, peer: Peer) -> None:
    for low in (0, 4, 8):
        appended(node, peer, low, low + 4)
    node.work()
    named = BATCHES | {"x_group": "g", "x_stream_offset_default": 1}
    reader = opened(node)
    answers = consume(reader, "committed", **named)
    node.work()
    assert numbered(decoded(deliveries(reader, answers))) == expected(1, 12)
    reader.call(1, commands.Basic.Ack(delivery_tag=1))
    # The second one is missing: the name does not pass it.
    reader.call(1, commands.Basic.Ack(delivery_tag=3))
    for wanted in (named, {"x_group": "g"}):
        reader = opened(node)
        answers = consume(reader, "committed", **wanted)
        node.work()
        if wanted is named:
            assert numbered(decoded(deliveries(reader, answers))) == expected(4, 12)
        else:
            assert got(reader, answers) == expected(4, 12)
    reader.call(1, commands.Basic.Ack(delivery_tag=2, multiple=True))
    reader = opened(node)
    answers = consume(reader, "committed", **named)
    node.work()
    assert numbered(decoded(deliveries(reader, answers))) == expected(6, 12)
    reader.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
    node.sync()
    assert node.host()._names.offsets == {"g": 12}


@pytest.mark.parametrize("frame_max", [4096, 131_072])
@pytest.mark.parametrize("size", [0, 100, 5_000, 300_000, 2_000_000])
def test_large_messages_come_in_frames_that_the_client_takes(
    node: StreamNode, peer: Peer, size: int, frame_max: int
) -> None:
    bodies = [bytes([number]) * size for number in range(3)]
    publish(peer, bodies)
    node.work()
    reader = node.peer(frame_max=frame_max)
    for channel in (1, 7):
        reader.call(channel, commands.Channel.Open())
    for channel in (1, 7):
        reader.call(channel, commands.Basic.Qos(prefetch_count=10))
        arguments: Any = {"x-stream-batches": True, "x-stream-offset": "first"}
        answers = reader.call(channel, commands.Basic.Consume(queue="s", arguments=arguments))
        node.work()
        found = deliveries(reader, answers)
        assert [each.body for each in decoded(found)] == bodies
    assert max(frame_sizes(reader)) <= frame_max


def frame_sizes(peer: Peer) -> list[int]:
    sizes: list[int] = []
    at = 0
    while at < len(peer.output):
        sizes.append(int.from_bytes(peer.output[at + 3 : at + 7], "big") + 8)
        at += sizes[-1]
    return sizes


@pytest.mark.parametrize("codec", CODECS)
def test_batches_come_compressed_as_they_lie_on_the_disk(codec: str) -> None:
    node = StreamNode()
    peer = opened(node)
    declare(peer, x_stream_compression=codec)
    for low in (0, 100):
        publish(peer, [b"%d" % number + b"x" * 90 for number in range(low, low + 100)])
        node.work()
    reader = opened(node)
    answers = consume(reader, 150, **BATCHES)
    node.work()
    (found,) = deliveries(reader, answers)
    assert headers(found)["x-stream-codec"] == codec
    assert (len(found.body) < 10_000) == (codec != "none")
    assert any(found.body in data for data in node.files.now.values())
    assert [each.offset for each in decoded([found])] == list(range(150, 200))


def test_filters_are_in_the_batch_and_none_goes_with_batches(node: StreamNode, peer: Peer) -> None:
    appended(node, peer, 0, 4, filters=["red", None, "blue", "red"])
    node.work()
    for more in ({"x_stream_filter": "red"}, {"x_stream_timestamps": True}):
        reader = opened(node)
        close = consume(reader, **BATCHES, **more)[-1][1]
        assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
        (argument,) = more
        assert f"invalid arg '{argument.replace('_', '-')}' for queue 's'" in close.reply_text
        assert "'x-stream-batches'" in close.reply_text
    reader = opened(node)
    answers = consume(reader, **BATCHES)
    node.work()
    assert [each.headers.get("x-stream-filter-value") for each in decoded(deliveries(reader, answers))] == [
        "red",
        None,
        "blue",
        "red",
    ]


def test_names_of_deduplicated_messages_do_not_disturb(node: StreamNode, peer: Peer) -> None:
    declare(peer, "once", x_deduplication=True)
    for low in (0, 3):
        more = [{"x-deduplication-id": f"m{number}"} for number in range(low, low + 5)]
        publish(peer, [b"%d" % number for number in range(low, low + 5)], "once", more=more)
        node.sync()
    node.work()
    reader = opened(node)
    answers = consume(reader, name="once", **BATCHES)
    node.work()
    assert numbered(decoded(deliveries(reader, answers))) == expected(0, 8)


def test_batches_outlive_a_restart(node: StreamNode, peer: Peer) -> None:
    appended(node, peer, 0, 7)
    node.restart()
    reader = opened(node)
    answers = consume(reader, 2, **BATCHES)
    node.work()
    assert numbered(decoded(deliveries(reader, answers))) == expected(2, 7)


def test_nothing_comes_before_the_sync(node: StreamNode, peer: Peer) -> None:
    reader = opened(node)
    answers = consume(reader, **BATCHES)
    publish(peer, [b"0"])
    assert deliveries(reader, answers) == []
    node.sync()
    assert numbered(decoded(deliveries(reader))) == expected(0, 1)


def test_compacted_batches_say_which_offsets_they_have() -> None:
    node = StreamNode(StreamOptions(segment_bytes=20_000, flush_bytes=1, compaction_dirty_percent=1))
    peer = opened(node)
    declare(peer, x_stream_compaction="header:k")
    for low in range(0, 400, 20):
        more = [{"k": number % 7 if number % 20 > 9 else number} for number in range(low, low + 20)]
        publish(peer, [b"%d" % number for number in range(low, low + 20)], more=more)
        node.work()
    node.pass_time(60_000)
    node.work()
    reader = opened(node)
    answers = consume(reader, 0)
    node.work()
    plain = got(reader, answers)
    sparse: list[bool] = []
    for offset in range(400):
        reader = opened(node)
        answers = consume(reader, offset, **BATCHES)
        node.work()
        found = deliveries(reader, answers)
        assert numbered(decoded(found)) == [each for each in plain if each[0] >= offset]
        sparse += [
            table["x-stream-next-offset"] - table["x-stream-offset"] > table["x-stream-count"]
            for table in map(headers, found)
        ]
    assert any(sparse) and not all(sparse)


def test_a_start_behind_the_last_message_of_a_compacted_batch_skips_the_batch() -> None:
    shapes = [Shape(3, 50, 10, 20, 0)]
    parts = batches.encode(100, 5, shapes, bytes(150), [None], (), span=40, offsets=[3, 7, 20])
    for offset, first in ((90, 103), (100, 103), (103, 103), (104, 107), (120, 120), (121, 140), (139, 140)):
        reader = StoredReader(batches.stored_of(parts), "s")
        reader.skip_to(offset)
        assert (reader.offset, reader.left) == (first, int(first < 140))
        assert reader.skipped == sum(100 + number < offset for number in (3, 7, 20))


def test_retention_leaves_the_batches_behind_it() -> None:
    node = StreamNode(StreamOptions(segment_bytes=500, flush_bytes=1))
    peer = opened(node)
    declare(peer, x_max_length_bytes=1_000)
    for low in range(0, 60, 3):
        publish(peer, [b"%d" % number for number in range(low, low + 3)])
        node.work()
    first = node.host().first_offset
    assert first > 10
    reader = opened(node)
    answers = consume(reader, 5, **BATCHES)
    node.work()
    found = deliveries(reader, answers)
    assert headers(found[0])["x-stream-skip"] == 0
    assert numbered(decoded(found)) == expected(first, 60)


def test_damaged_batches_are_left_out_and_counted() -> None:
    node = StreamNode(StreamOptions(segment_bytes=100_000, flush_bytes=1))
    peer = opened(node)
    declare(peer)
    for low in range(0, 30, 10):
        publish(peer, [b"%d!" % number for number in range(low, low + 10)])
        node.work()
    (data,) = [data for path, data in node.files.now.items() if path.suffix == ".segment"]
    data[data.index(b"15!")] = 0
    reader = opened(node)
    answers = consume(reader, 3, **BATCHES)
    node.work()
    offsets = [each.offset for each in decoded(deliveries(reader, answers))]
    assert offsets == [*range(3, 10), *range(20, 30)]
    assert node.host().lost_count == 10


@pytest.mark.parametrize("value", ["yes", 1, None, []])
def test_a_value_that_means_nothing_is_refused(node: StreamNode, peer: Peer, value: Any) -> None:
    close = consume(peer, x_stream_batches=value)[-1][1]
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert "invalid arg 'x-stream-batches' for queue 's' in vhost '/'" in close.reply_text
    assert node.host().consumer_count == 0


def test_false_means_messages(node: StreamNode, peer: Peer) -> None:
    appended(node, peer, 0, 5)
    node.work()
    reader = opened(node)
    answers = consume(reader, x_stream_batches=False, x_stream_timestamps=True)
    node.work()
    assert got(reader, answers) == expected(0, 5)


def test_queues_and_groups_have_no_batches(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="plain"))
    arguments: dict[str, Any] = {"x-queue-type": "stream-group", "x-stream": "s"}
    peer.call(1, commands.Queue.Declare(queue="group", durable=True, arguments=arguments))
    for queue, text in (("plain", "of queue type rabbit_classic_queue"), ("group", "is a consumer group")):
        reader = opened(node)
        close = consume(reader, None, name=queue, **BATCHES)[-1][1]
        assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
        assert "invalid arg 'x-stream-batches'" in close.reply_text and text in close.reply_text


def test_a_slow_client_gets_what_it_has_room_for() -> None:
    node = StreamNode(outbox_high_bytes=200_000, outbox_low_bytes=100_000)
    peer = opened(node)
    declare(peer)
    for number in range(40):
        publish(peer, [b"%d" % number + b"x" * 50_000])
        node.sync()
    node.work()
    reader = opened(node)
    reader.reads = False
    consume(reader, **BATCHES)
    node.work()
    assert reader.outbox.size < 300_000
    reader.reads = True
    reader.collect()
    node.work()
    reader.collect()
    assert [each.offset for each in decoded(deliveries(reader))] == list(range(40))
