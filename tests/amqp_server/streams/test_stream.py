"""A stream on a node that stands alone: publish, replay, credit, filters, retention, restarts, damage."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from amqp_server.streams.local_host import StreamOptions
from amqp_server.turn import Turn
from amqp_server.wire import frames
from persistence.streams.retention import RetentionLimits
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, opened, publish

ACK_ALL = commands.Basic.Ack(delivery_tag=0, multiple=True)


def bodies(first: int, count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(first, first + count)]


def messages(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(number, b"m%d" % number) for number in range(first, first + count)]


@pytest.fixture
def node() -> StreamNode:
    return StreamNode()


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    peer = opened(node)
    declare(peer)
    return peer


def confirms(answers: list[tuple[int, Any]]) -> list[Any]:
    return [each for _, each in answers if isinstance(each, commands.Basic.Ack)]


# -- publish -------------------------------------------------------------------------------------------------


def test_a_confirm_means_synced(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Confirm.Select())
    publish(peer, bodies(0, 3))
    assert peer.answers() == []
    node.sync()
    assert [(each.delivery_tag, each.multiple) for each in confirms(peer.answers())] == [(3, True)]
    # The message is in the journal, and in no segment yet.
    assert node.host().segment_count == 0
    node.restart()
    reader = opened(node)
    assert got(reader, consume(reader)) == messages(0, 3)


def test_what_is_not_synced_is_not_delivered(node: StreamNode, peer: Peer) -> None:
    reader = opened(node)
    consume(reader)
    publish(peer, bodies(0, 3))
    assert got(reader) == []
    node.sync()
    assert got(reader) == messages(0, 3)


def test_messages_stay_after_they_were_acked(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 30))
    node.work()
    for _ in range(3):
        reader = opened(node)
        answers = consume(reader)
        node.work()
        assert got(reader, answers) == messages(0, 30)
        reader.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
    assert node.host().ready_count == 30


def test_the_journal_forgets_what_the_segments_have(node: StreamNode, peer: Peer) -> None:
    for base in range(0, 100, 10):
        publish(peer, bodies(base, 10))
        node.work()
    host = node.host()
    assert host.segment_count > 3
    assert (host.resident_bytes, host._services.tail_bytes, node.broker.services.memory.used) == (0, 0, 0)
    found = node.environment.recover_queue(host.queue_id)
    assert found is not None and list(found.records) == []


# -- where a consumer begins ---------------------------------------------------------------------------------


def filled(node: StreamNode, peer: Peer, *, flushed: bool) -> list[int]:
    """Publish 30 messages in ten batches a second apart; return their times."""
    times = []
    for base in range(0, 30, 3):
        times += [node.broker.services.queue_time.now_ms()] * 3
        publish(peer, bodies(base, 3))
        node.sync()
        if flushed:
            node.work()
        node.clock.now_ms += 1000
    return times


@pytest.mark.parametrize("flushed", [True, False])
def test_where_consumers_begin(flushed: bool) -> None:
    node = StreamNode(None if flushed else StreamOptions())
    peer = opened(node)
    declare(peer)
    times = filled(node, peer, flushed=flushed)
    assert (node.host().segment_count > 0) is flushed

    def begins(offset: object) -> int | None:
        reader = opened(node)
        answers = consume(reader, offset)
        node.work()
        found = got(reader, answers)
        assert found == messages(found[0][0], 30 - found[0][0]) if found else True
        reader.call(1, commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
        return found[0][0] if found else None

    assert begins("first") == 0
    assert begins("last") == 27
    assert begins("next") is None
    assert begins(None) is None
    for offset in (0, 1, 14, 29):
        assert begins(offset) == offset
    assert begins(30) is None
    assert begins(10**12) is None
    for index in range(0, 30, 7):
        second = times[index] // 1000
        wanted = next((number for number, time in enumerate(times) if time >= second * 1000), None)
        assert begins(datetime.fromtimestamp(second, UTC)) == wanted
    assert begins(datetime(1971, 1, 1, tzinfo=UTC)) == 0
    assert begins(datetime(2100, 1, 1, tzinfo=UTC)) is None
    assert begins("3s") == 21
    assert begins("1h") == 0


def test_an_offset_that_is_still_to_come(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 3))
    reader = opened(node)
    assert got(reader, consume(reader, 7)) == []
    publish(peer, bodies(3, 10))
    node.work()
    assert got(reader) == messages(7, 6)


@pytest.mark.parametrize(
    "offset",
    ["", "zzz", "5", "0s", "-1h", "5 m", "FIRST", -1, True, 2.5, None, ["first"], {"a": 1}],
)
def test_a_start_that_means_nothing(node: StreamNode, peer: Peer, offset: Any) -> None:
    answers = peer.call(
        1,
        commands.Basic.Qos(prefetch_count=5),
        commands.Basic.Consume(queue="s", arguments={"x-stream-offset": offset}),
    )
    close = answers[-1][1]
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert "invalid arg 'x-stream-offset' for queue 's' in vhost '/'" in close.reply_text
    assert node.host().consumer_count == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-stream-filter", 5),
        ("x-stream-filter", []),
        ("x-stream-filter", ["a", 1]),
        ("x-stream-filter", "x" * 256),
        ("x-stream-match-unfiltered", "yes"),
    ],
)
def test_filters_that_mean_nothing(node: StreamNode, peer: Peer, name: str, value: Any) -> None:
    answers = peer.call(
        1,
        commands.Basic.Qos(prefetch_count=5),
        commands.Basic.Consume(queue="s", arguments={name: value}),
    )
    close = answers[-1][1]
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 406
    assert f"invalid arg '{name}'" in close.reply_text


# -- credit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ack", "nack", "nack-requeue", "reject", "reject-requeue", "recover"])
@pytest.mark.parametrize("flushed", [True, False])
def test_whatever_settles_is_credit(how: str, flushed: bool) -> None:
    node = StreamNode(None if flushed else StreamOptions())
    peer = opened(node)
    declare(peer)
    publish(peer, bodies(0, 20))
    node.work()
    reader = opened(node)
    answers = consume(reader, prefetch=4)
    node.work()
    assert got(reader, answers) == messages(0, 4)
    if how == "ack":
        reader.call(1, commands.Basic.Ack(delivery_tag=3, multiple=True))
        seen = 3
    elif how.startswith("nack"):
        reader.call(1, commands.Basic.Nack(delivery_tag=2, multiple=True, requeue="requeue" in how))
        seen = 2
    elif how.startswith("reject"):
        reader.call(1, commands.Basic.Reject(delivery_tag=4, requeue="requeue" in how))
        seen = 1
    else:
        reader.call(1, commands.Basic.Recover(requeue=True))
        seen = 4
    node.work()
    # No message comes a second time.
    node.work()
    reader.call(1, commands.Basic.Qos(prefetch_count=4))
    assert [each.prefetch - each.credit for each in node.host()._consumers.values()] == [4]
    assert node.host().unacked_count == 0, "what is held is in the stream"
    reader2 = opened(node)
    later = consume(reader2, prefetch=1000)
    node.work()
    assert got(reader2, later) == messages(0, 20)
    assert node.host().offset_of(next(iter(node.host()._consumers))) == 4 + seen


def test_every_consumer_has_its_own_place(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 50))
    node.work()
    readers = [opened(node) for _ in range(5)]
    found: list[list[tuple[int, bytes]]] = []
    for number, reader in enumerate(readers):
        found.append(got(reader, consume(reader, number * 10, prefetch=number + 1)))
    for _ in range(200):
        node.work()
        for reader, its in zip(readers, found, strict=True):
            its += got(reader)
            its += got(reader, reader.call(1, ACK_ALL))
    assert [its == messages(10 * number, 50 - 10 * number) for number, its in enumerate(found)] == [True] * 5


def test_a_consumer_that_is_cancelled_gets_nothing_more(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 50))
    node.work()
    reader = opened(node)
    consume(reader, prefetch=5)
    reader.call(1, commands.Basic.Cancel(consumer_tag="t"))
    node.work()
    assert got(reader) == []
    assert node.host().consumer_count == 0
    reader.call(1, commands.Basic.Ack(delivery_tag=0, multiple=True))
    assert got(reader) == []


def test_a_slow_reader_is_paused_and_goes_on() -> None:
    node = StreamNode(outbox_high_bytes=8192, outbox_low_bytes=4096)
    peer = opened(node)
    declare(peer)
    publish(peer, [b"%06d" % number + b"x" * 500 for number in range(500)])
    node.work()
    reader = opened(node)
    answers = consume(reader, prefetch=1000)
    node.work()
    found = [offset for offset, _ in got(reader, answers)]
    assert found == list(range(500))


def test_what_was_read_ahead_is_bounded() -> None:
    options = StreamOptions(segment_bytes=20_000, flush_bytes=1, read_bytes_max=30_000)
    node = StreamNode(options)
    peer = opened(node)
    declare(peer)
    for base in range(0, 200, 10):
        publish(peer, [b"%04d" % number + b"x" * 1000 for number in range(base, base + 10)])
        node.work()
    readers = [opened(node) for _ in range(10)]
    found: list[list[int]] = [[] for _ in readers]
    for reader, its in zip(readers, found, strict=True):
        its += [offset for offset, _ in got(reader, consume(reader, prefetch=3))]
    services = node.host()._services
    for _ in range(300):
        node.work()
        # One consumer may always hold the data of one read.
        assert services.held_bytes <= 30_000 + 20_000
        for reader, its in zip(readers, found, strict=True):
            its += [offset for offset, _ in got(reader)]
            its += [offset for offset, _ in got(reader, reader.call(1, ACK_ALL))]
    assert [its == list(range(200)) for its in found] == [True] * 10
    for reader in readers:
        reader.call(1, commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert (services.held_bytes, services.held) == (0, {})


# -- filters -------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8), min_size=1, max_size=12
    ),
    st.lists(st.sampled_from(["a", "b", "d"]), min_size=1, max_size=2),
    st.booleans(),
    st.integers(1, 5),
    st.booleans(),
)
def test_filters_are_exact(
    batches: list[list[str | None]], wanted: list[str], unfiltered: bool, prefetch: int, flushed: bool
) -> None:
    node = StreamNode(None if flushed else StreamOptions())
    peer = opened(node)
    declare(peer)
    expected: list[tuple[int, bytes]] = []
    offset = 0
    early = opened(node)
    more: dict[str, Any] = {"x_stream_filter": wanted, "x_stream_match_unfiltered": unfiltered}
    found = [got(early, consume(early, "next", prefetch, **more))]
    for values in batches:
        for number, value in enumerate(values):
            if value in wanted or (value is None and unfiltered):
                expected.append((offset + number, b"m%d" % (offset + number)))
        publish(peer, bodies(offset, len(values)), filters=values)
        offset += len(values)
        node.work()
    late = opened(node)
    found.append(got(late, consume(late, "first", prefetch, **more)))
    for _ in range(len(expected) + 2):
        node.work()
        for reader, its in ((early, found[0]), (late, found[1])):
            its += got(reader)
            its += got(reader, reader.call(1, ACK_ALL))
    assert found == [expected, expected]


# -- retention -----------------------------------------------------------------------------------------------


def test_age_deletes_segments_of_a_stream_that_nobody_writes_to(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_max_age="1h")
    publish(peer, bodies(0, 50))
    node.work()
    assert node.files.now
    node.pass_time(3_599_000)
    node.work()
    assert node.host().ready_count == 50
    node.pass_time(2_000)
    node.work()
    host = node.host()
    assert (host.ready_count, host.first_offset, host.ready_bytes) == (0, 50, 0)
    assert [path.suffix for path, data in node.files.now.items() if data and path.suffix == ".segment"] == []
    publish(peer, bodies(50, 3))
    node.work()
    reader = opened(node)
    answers = consume(reader, 5)
    node.work()
    assert got(reader, answers) == messages(50, 3)
    node.restart()
    assert (node.host().first_offset, node.host().next_offset) == (50, 53)


def test_size_deletes_the_oldest_segments(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_max_length_bytes=3000, x_stream_max_segment_size_bytes=1000)
    for base in range(0, 400, 10):
        publish(peer, bodies(base, 10))
        node.work()
        assert node.host().ready_bytes < 3000 + 2 * 1500
    host = node.host()
    assert 0 < host.first_offset < 400
    reader = opened(node)
    answers = consume(reader, "first")
    node.work()
    assert got(reader, answers) == messages(host.first_offset, 400 - host.first_offset)


def test_the_node_has_limits_for_streams_declared_without() -> None:
    node = StreamNode(StreamOptions(segment_bytes=500, flush_bytes=1, limits=RetentionLimits(60_000, None)))
    peer = opened(node)
    declare(peer, "short")
    declare(peer, "long", x_max_age="1Y")
    for name in ("short", "long"):
        publish(peer, bodies(0, 10), name)
    node.work()
    node.pass_time(61_000)
    node.work()
    assert [node.host(name).ready_count for name in ("short", "long")] == [0, 10]


def test_a_consumer_whose_offset_fell_off_goes_on_at_the_first_one(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_max_length_bytes=1500, x_stream_max_segment_size_bytes=500)
    reader = opened(node)
    found = got(reader, consume(reader, "first", prefetch=2))
    for base in range(0, 200, 10):
        publish(peer, bodies(base, 10))
        node.work()
        found += got(reader)
    host = node.host()
    first = host.first_offset
    for _ in range(200):
        found += got(reader, reader.call(1, ACK_ALL))
        node.work()
        found += got(reader)
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert offsets[:2] == [0, 1] and offsets[-1] == 199
    assert set(range(first, 200)) <= set(offsets)
    assert all(body == b"m%d" % offset for offset, body in found)


def count_from(peer: Peer, offset: Any, queue: str = "s") -> Any:
    """Return the answer to a passive declare that counts from an offset on."""
    declare_passive = commands.Queue.Declare(queue=queue, passive=True, arguments={"x-stream-offset": offset})
    [(_, answer)] = peer.call(1, declare_passive)
    if isinstance(answer, commands.Channel.Close):
        peer.call(1, commands.Channel.CloseOk())
        peer.call(1, commands.Channel.Open())
        return answer.reply_text
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count


def test_a_passive_declare_counts_from_an_offset_on(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_max_length_bytes=3000, x_stream_max_segment_size_bytes=1000)
    assert count_from(peer, 0) == 0
    publish(peer, bodies(0, 10))
    # No client can read a message before it is synced.
    assert count_from(peer, 0) == 0
    node.work()
    assert [count_from(peer, offset) for offset in (0, 7, 10)] == [10, 3, 0]
    for base in range(10, 400, 10):
        publish(peer, bodies(base, 10))
        node.work()
    first = node.host().first_offset
    assert 0 < first < 400
    assert (count_from(peer, first), count_from(peer, 399)) == (400 - first, 1)
    there = f"in queue 's' in vhost '/': its first is {first} and its next is 400"
    for gone in (0, first - 1, 401):
        assert count_from(peer, gone) == f"PRECONDITION_FAILED - no offset {gone} {there}"


def test_what_a_passive_declare_cannot_count_from(peer: Peer) -> None:
    assert "must be a number in a passive declare" in count_from(peer, "first")
    assert "invalid arg 'x-stream-offset'" in count_from(peer, -1)
    peer.call(1, commands.Queue.Declare(queue="plain"))
    assert "of queue type rabbit_classic_queue" in count_from(peer, 0, "plain")
    assert count_from(peer, 0, "missing").startswith("NOT_FOUND")


# -- deletion ------------------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_nothing(node: StreamNode, peer: Peer) -> None:
    for base in range(0, 100, 10):
        publish(peer, bodies(base, 10))
        node.work()
    publish(peer, bodies(100, 3))
    reader = opened(node)
    consume(reader, prefetch=5)
    queue_id = node.host().queue_id
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.files.now == {}
    assert node.environment.recover_queue(queue_id) is None
    assert node.broker.services.memory.used == 0
    assert [type(each) for _, each in reader.answers()][-1] is commands.Basic.Cancel
    declare(peer)
    assert node.host().next_offset == 0


def test_a_stream_whose_deletion_is_not_on_the_disk_is_whole(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 50))
    node.work()
    peer.send(frames.method_frame(1, commands.Queue.Delete(queue="s")))
    assert node.store.writes == []
    node.restart()
    reader = opened(node)
    answers = consume(reader)
    node.work()
    assert got(reader, answers) == messages(0, 50)


def test_a_stream_that_is_deleted_while_it_is_written(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 10))
    node.sync()
    assert node.store.writes
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.files.now == {}


# -- restarts ------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_no_confirmed_message_is_lost_and_no_offset_changes(seed: int) -> None:
    """Publishes, flushes and crashes in any order; after each crash a replay has every confirmed message in
    its place.
    """
    chance = random.Random(seed)
    node = StreamNode()
    node.files.random = chance
    peer = opened(node)
    declare(peer)
    published: dict[int, bytes] = {}
    number = 0
    for _ in range(chance.randint(3, 25)):
        what = chance.random()
        if what < 0.5:
            count = chance.randint(1, 5)
            publish(peer, [b"b%d" % each for each in range(number, number + count)])
            number += count
        elif what < 0.65:
            node.sync()
            published = dict(enumerate(_all(node)))
        elif what < 0.8 and node.store.writes:
            node.turn.run(node.store.writes.pop(0))
        elif what < 0.88:
            node.pass_time(10_000)
        else:
            node.restart(lost_power=chance.random() < 0.5)
            peer = opened(node)
            replay = _all(node)
            assert replay[: len(published)] == list(published.values())
            number = int(replay[-1][1:]) + 1 if replay else 0
    node.work()
    assert _all(node) == [b"b%d" % each for each in range(number)]


def _all(node: StreamNode) -> list[bytes]:
    """Replay everything that is synced, without a flush."""
    reader = opened(node)
    answers = consume(reader, prefetch=10_000)
    for _ in range(100):
        if not node.store.reads:
            break
        node.turn.run(node.store.reads.pop(0))
        node.turn.end()
    reader.collect()
    found = got(reader, answers)
    reader.call(1, commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert [offset for offset, _ in found] == list(range(len(found)))
    return [body for _, body in found]


def test_damage_is_told_and_passed_over(node: StreamNode, caplog: pytest.LogCaptureFixture) -> None:
    peer = opened(node)
    declare(peer)
    for base in range(0, 60, 10):
        publish(peer, bodies(base, 10))
        node.work()
    path = sorted(path for path in node.files.now if path.suffix == ".segment")[2]
    node.files.now[path][-1] ^= 1
    reader = opened(node)
    answers = consume(reader)
    node.work()
    offsets = [offset for offset, _ in got(reader, answers)]
    assert offsets == [offset for offset in range(60) if not 20 <= offset < 30]
    assert "lost messages 20 to 29" in caplog.text
    assert node.host().lost_count == 10


def test_a_read_that_raises_stops_the_stream_and_it_comes_back(node: StreamNode, peer: Peer) -> None:
    publish(peer, bodies(0, 20))
    node.work()
    reader = opened(node)
    read = node.files.read

    def broken(path: Path, position: int, size: int) -> bytes:
        raise OSError(5, "input/output error")

    node.files.read = broken  # type: ignore[method-assign]
    consume(reader, prefetch=5)
    node.work()
    assert type(node.broker.vhost("/").queues["s"].host).__name__ == "FailedHost"
    node.files.read = read  # type: ignore[method-assign]
    node.pass_time(600)
    node.work()
    late = opened(node)
    answers = consume(late)
    node.work()
    assert got(late, answers) == messages(0, 20)
    publish(peer, bodies(20, 5))
    node.work()
    assert got(late) == messages(20, 5)


def test_a_dead_letter_can_go_to_a_stream(node: StreamNode, peer: Peer) -> None:
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "s",
        "x-max-length": 1,
    }
    peer.call(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    publish(peer, bodies(0, 5), "q")
    node.work()
    reader = opened(node)
    answers = consume(reader)
    node.work()
    assert got(reader, answers) == messages(0, 4)


def test_a_transaction_is_one_batch(node: StreamNode, peer: Peer) -> None:
    peer.call(1, commands.Tx.Select())
    publish(peer, bodies(0, 5))
    node.work()
    assert node.host().next_offset == 0
    answers = peer.call(1, commands.Tx.Commit())
    node.work()
    assert commands.Tx.CommitOk in [type(each) for _, each in answers + peer.answers()]
    assert node.host().next_offset == 5


# -- segments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [StreamOptions(flush_batches=10), StreamOptions(flush_bytes=2_500)],
    ids=["batches", "bytes"],
)
def test_what_comes_one_by_one_is_moved_to_the_segments_early(options: StreamOptions) -> None:
    """A thread that writes very many batches at once would make others wait for the interpreter."""
    node = StreamNode(options)
    peer = opened(node)
    declare(peer)
    for number in range(1, 10):
        publish(peer, [b"%02d" % number])
        node.sync()
        assert not node.store.writes, number
    publish(peer, [b"10" + b"x" * 2_000])
    node.sync()
    assert len(node.store.writes) == 1
    node.work()
    assert node.host()._log.stop == 10


def test_commands_are_applied_of_a_stream_whose_consumers_were_left(
    node: StreamNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = opened(node)
    declare(peer)
    for tag in "ab":
        consume(peer, tag=tag)
    node.work()
    peer.answers()
    with monkeypatch.context() as patch:
        patch.setattr(Turn, "overdue", lambda turn: True)
        publish(peer, bodies(0, 1))
        node.sync()
        assert got(peer) == []
        # A turn that has no time for its clients' scheduled work does the same.
        stream = node.host()
        stream.pending.append(("detach", next(iter(stream._consumers)), True))
        node.turn.later(stream, stream.apply_pending)
    node.turn.run(node.turn.catch_up)
    assert not stream.pending
    assert stream.consumer_count == 1
    peer.collect()
    assert got(peer) == messages(0, 1) * 2
