"""When the broker took the messages of a stream: in a header, and as a question for the offset of a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pamqp import commands

from tests.amqp_server.connection.node import Delivery, Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, opened, publish

Headers = dict[str, Any]
NAME = "x-stream-timestamp"


def headers(peer: Peer, answers: list[tuple[int, Any]]) -> list[Headers]:
    deliveries = [each for _, each in [*answers, *peer.answers()] if isinstance(each, Delivery)]
    return [dict(each.properties.headers or {}) for each in deliveries]


def at_each_time(node: StreamNode, peer: Peer, times: int, count: int = 3, **more: Any) -> list[int]:
    """Publish some messages at each of these times; return the times, ms since 1970."""
    found: list[int] = []
    for number in range(times):
        node.pass_time(1_000)
        publish(peer, [b"%d" % (number * count + each) for each in range(count)], **more)
        node.sync()
        found.append(node.broker.services.queue_time.now_ms())
    return found


def test_a_consumer_that_asks_gets_the_time_of_each_message(node: StreamNode, peer: Peer) -> None:
    times = at_each_time(node, peer, 4)
    node.work()
    reader = opened(node)
    answers = consume(reader, 1, x_stream_timestamps=True)
    node.work()
    found = headers(reader, answers)
    assert found == [{NAME: times[n // 3], "x-stream-offset": n} for n in range(1, 12)]
    # And those that come now.
    (now,) = at_each_time(node, peer, 1)
    assert headers(reader, []) == [{NAME: now, "x-stream-offset": n} for n in range(12, 15)]


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_times_need_no_more_credit_than_other_messages(node: StreamNode, peer: Peer, prefetch: int) -> None:
    times = at_each_time(node, peer, 3)
    node.work()
    reader = opened(node)
    found = headers(reader, consume(reader, prefetch=prefetch, x_stream_timestamps=True))
    for _ in range(9):
        node.work()
        found += headers(reader, reader.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True)))
    assert found == [{NAME: times[n // 3], "x-stream-offset": n} for n in range(9)]


def test_other_consumers_get_the_messages_as_before(node: StreamNode, peer: Peer) -> None:
    at_each_time(node, peer, 2)
    node.work()
    for wanted in (None, False):
        reader = opened(node)
        answers = consume(reader) if wanted is None else consume(reader, x_stream_timestamps=wanted)
        node.work()
        assert headers(reader, answers) == [{"x-stream-offset": n} for n in range(6)]


def test_the_brokers_time_replaces_one_that_a_publisher_has_set(node: StreamNode, peer: Peer) -> None:
    (time,) = at_each_time(node, peer, 1, more=[{NAME: 5, "n": 0}, {"n": 1}, {NAME: "x", "n": 2}])
    node.work()
    reader = opened(node)
    answers = consume(reader, x_stream_timestamps=True)
    node.work()
    assert headers(reader, answers) == [{NAME: time, "n": n, "x-stream-offset": n} for n in range(3)]


def test_times_and_filters_go_together(node: StreamNode, peer: Peer) -> None:
    times = at_each_time(node, peer, 3, filters=["red", "blue", "red"])
    node.work()
    reader = opened(node)
    answers = consume(reader, x_stream_timestamps=True, x_stream_filter="red")
    node.work()
    found = [(each["x-stream-offset"], each[NAME]) for each in headers(reader, answers)]
    assert found == [(n, times[n // 3]) for n in range(9) if n % 3 != 1]


def test_times_outlive_a_restart(node: StreamNode, peer: Peer) -> None:
    times = at_each_time(node, peer, 3)
    node.work()
    node.restart()
    reader = opened(node)
    answers = consume(reader, x_stream_timestamps=True)
    node.work()
    assert [each[NAME] for each in headers(reader, answers)] == [time for time in times for _ in range(3)]


@pytest.mark.parametrize("value", ["yes", 1, None, []])
def test_a_value_that_means_nothing_is_refused(node: StreamNode, peer: Peer, value: Any) -> None:
    close = consume(peer, x_stream_timestamps=value)[-1][1]
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert "invalid arg 'x-stream-timestamps' for queue 's' in vhost '/'" in close.reply_text
    assert node.host().consumer_count == 0


def test_queues_and_groups_have_no_times(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Queue.Declare(queue="plain"))
    arguments: dict[str, Any] = {"x-queue-type": "stream-group", "x-stream": "s"}
    peer.call(1, commands.Queue.Declare(queue="group", durable=True, arguments=arguments))
    for queue, text in (("plain", "of queue type rabbit_classic_queue"), ("group", "is a consumer group")):
        reader = opened(node)
        close = consume(reader, None, name=queue, x_stream_timestamps=True)[-1][1]
        assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
        assert "invalid arg 'x-stream-timestamps'" in close.reply_text and text in close.reply_text


# -- the offset of a time ------------------------------------------------------------------------------------


def count_until(node: StreamNode, peer: Peer, offset: int, until: Any, queue: str = "s") -> Any:
    """Return the answer to a passive declare that counts from an offset on, before a time."""
    arguments = {"x-stream-offset": offset, "x-stream-until": until}
    answers = peer.call(1, commands.Queue.Declare(queue=queue, passive=True, arguments=arguments))
    node.work()
    [(_, answer)] = answers or peer.answers()
    if isinstance(answer, commands.Channel.Close):
        peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())
        return answer.reply_text
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count


def test_a_passive_declare_counts_the_messages_before_a_time(node: StreamNode, peer: Peer) -> None:
    times = at_each_time(node, peer, 5)
    node.work()

    def places(offset: int, until: int) -> Any:
        return count_until(node, peer, offset, until)

    assert places(0, 0) == 0
    for number, time in enumerate(times):
        assert (places(0, time - 1), places(0, time), places(0, time + 1)) == (
            3 * number,
            3 * number,
            3 * number + 3,
        )
    assert places(4, times[2]) == 2
    assert places(9, times[2]) == 0
    assert places(0, times[-1] + 10**15) == 15
    assert places(15, 2**62) == 0
    # AMQP's timestamps are seconds.
    second = datetime.fromtimestamp(times[2] // 1_000, UTC) + timedelta(seconds=1)
    assert count_until(node, peer, 0, second) == 9


def test_a_time_before_what_retention_has_deleted_is_the_first_offset(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_max_length_bytes=1500, x_stream_max_segment_size_bytes=500)
    for _ in range(40):
        at_each_time(node, peer, 1, 10)
        node.work()
    first = node.host().first_offset
    assert first > 0
    assert count_until(node, peer, first, 0) == 0
    assert "its first is" in count_until(node, peer, 0, 0)


@pytest.mark.parametrize("value", ["1h", -1, True, None, []])
def test_a_time_that_means_nothing_is_refused(node: StreamNode, peer: Peer, value: Any) -> None:
    assert "invalid arg 'x-stream-until' for queue 's'" in count_until(node, peer, 0, value)


def test_a_time_needs_an_offset_and_a_stream(node: StreamNode, peer: Peer) -> None:
    arguments: dict[str, Any] = {"x-queue-type": "stream-group", "x-stream": "s", "x-stream-offset": "first"}
    peer.call(1, commands.Queue.Declare(queue="group", durable=True, arguments=arguments))
    more: tuple[tuple[str, dict[str, Any]], ...] = (
        ("s", {}),
        ("group", {"x-stream-offset": "first"}),
    )
    for queue, offset in more:
        given = {"x-stream-until": 5} | offset
        close = peer.call(1, commands.Queue.Declare(queue=queue, passive=True, arguments=given))[-1][1]
        assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
        assert f"invalid arg 'x-stream-until' for queue '{queue}'" in close.reply_text
        peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())


def test_times_filters_and_headers_of_the_same_name_go_together(node: StreamNode, peer: Peer) -> None:
    """Such messages are encoded again, some at a time."""
    more = [{NAME: number} if number % 7 == 0 else {"n": number} for number in range(700)]
    filters = [["red", "blue", None][number // 5 % 3] for number in range(700)]
    (time,) = at_each_time(node, peer, 1, 700, more=more, filters=filters)
    node.work()
    reader = opened(node)
    found = headers(reader, consume(reader, prefetch=13, x_stream_timestamps=True, x_stream_filter="red"))
    for _ in range(40):
        node.work()
        found += headers(reader, reader.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True)))
    assert [each["x-stream-offset"] for each in found] == [n for n in range(700) if filters[n] == "red"]
    assert all(each[NAME] == time for each in found)


def test_times_come_with_messages_that_compaction_has_left(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_stream_compaction="header:key", x_stream_max_segment_size_bytes=500)
    times: list[int] = []
    for number in range(40):
        keys = [{"key": f"k{each % 2}"} for each in range(number, number + 3)]
        times += at_each_time(node, peer, 1, 3, more=keys)
        node.work()
    reader = opened(node)
    answers = consume(reader, x_stream_timestamps=True)
    node.work()
    found = [(each["x-stream-offset"], each[NAME]) for each in headers(reader, answers)]
    assert len(found) < 120 and found[-1] == (119, times[-1])
    assert [time for _, time in found] == sorted(time for _, time in found)
    # Joined batches have the time of the latest one.
    assert all(time in times and time >= times[offset // 3] for offset, time in found)
