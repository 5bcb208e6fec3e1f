"""Compacted streams: by routing key and by header, tombstones, consumers
that read meanwhile, and restarts.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from pamqp import commands, header

from amqp_server.streams.local_host import StreamOptions
from amqp_server.wire import content, frames
from persistence.streams import compaction
from persistence.streams.log import StreamLog
from persistence.streams.retention import RetentionLimits
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, opened
from tests.amqp_server.streams.test_stream import ACK_ALL

#: Key, body, and headers.
Message = tuple[str, bytes, dict[str, Any]]


def make(by: str = "key", segment_bytes: int = 600, **arguments: Any) -> tuple[StreamNode, Peer]:
    node = StreamNode(StreamOptions(segment_bytes=segment_bytes, flush_bytes=1))
    peer = opened(node)
    declare(peer, x_stream_compaction=by, **arguments)
    peer.call(1, commands.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True))
    peer.call(1, commands.Queue.Bind(queue="s", exchange="x"))
    return node, peer


def publish(peer: Peer, *messages: Message) -> None:
    """Publish messages as one read."""
    parts: list[bytes] = []
    for key, body, headers in messages:
        properties = commands.Basic.Properties(headers=headers or None)
        payload = header.ContentHeader(0, len(body), properties).marshal()
        parts.append(frames.method_frame(1, commands.Basic.Publish(exchange="x", routing_key=key)))
        parts.append(content.build(payload, body, 1, 131_072))
    peer.send(*parts)


def some(seed: int, count: int) -> list[Message]:
    chance = random.Random(seed)
    return [(chance.choice("abcdef"), b"%d" % chance.randint(0, 10**5), {}) for _ in range(count)]


def read(node: StreamNode, **more: Any) -> dict[int, bytes]:
    node.work()
    reader = opened(node)
    answers = consume(reader, **more)
    node.work()
    found = got(reader, answers)
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    return dict(found)


def expected(messages: list[Message], sealed: int) -> dict[int, bytes]:
    latest = {key: offset for offset, (key, _, _) in enumerate(messages[:sealed])}
    return {
        offset: body
        for offset, (key, body, _) in enumerate(messages)
        if offset >= sealed or latest[key] == offset
    }


def sealed(node: StreamNode) -> int:
    log = node.host()._log
    assert isinstance(log, StreamLog)
    return log.sealed[-1].stop


def test_a_consumer_from_first_sees_the_latest_of_each_key_and_everything_since() -> None:
    node, peer = make()
    messages: list[Message] = []
    for seed in range(8):
        more = some(seed, 20)
        messages += more
        publish(peer, *more)
        node.work()
    host = node.host()
    assert host.compacting is not None and host.compacting.passes >= 1
    stop = host.compacting.stop
    assert 0 < stop <= sealed(node)
    found = read(node)
    assert found.items() >= expected(messages, sealed(node)).items()
    assert found.items() <= expected(messages, stop).items()
    assert len(found) < 100
    assert {offset: body for offset, body in found.items() if offset >= 70} == read(node, offset=70)
    node.restart(lost_power=True)
    assert read(node) == found
    assert node.host().lost_count == 0
    # Compaction goes on after the restart.
    peer = opened(node)
    for seed in range(8, 16):
        more = some(seed, 20)
        messages += more
        publish(peer, *more)
        node.work()
    found = read(node)
    assert (
        expected(messages, sealed(node)).items()
        <= found.items()
        <= dict(enumerate(b for _, b, _ in messages)).items()
    )
    assert len(found) < 120


@pytest.mark.parametrize("value", ["text", 5, True, 1.5, ["a", 1], "x" * 300])
def test_by_a_header(value: object) -> None:
    node, peer = make("header:id")
    publish(peer, ("k", b"1", {"id": value}), ("k", b"no header", {}), ("l", b"2", {"other": 1, "id": value}))
    publish(peer, ("m", b"3", {"id": value, "other": 2}), ("m", b"other", {"id": "other"}))
    node.work()
    for number in range(20):
        publish(peer, ("z", b"%d" % number * 50, {"id": "z"}))
        node.work()
    found = read(node)
    assert [found.get(offset) for offset in range(5)] == [None, b"no header", None, b"3", b"other"]


def test_tombstones_go_when_they_are_old() -> None:
    node, peer = make(x_stream_tombstone_age="1m")
    publish(peer, ("a", b"1", {}), ("b", b"1", {}))
    publish(peer, ("a", b"", {}))

    def more(first: int) -> None:
        for number in range(first, first + 20):
            publish(peer, ("z", b"%d" % number * 50, {}))
            node.work()

    more(0)
    found = read(node)
    assert 0 not in found and (found[1], found[2]) == (b"1", b"")
    node.clock.now_ms += 61_000
    more(20)
    found = read(node)
    assert 0 not in found and found[1] == b"1" and 2 not in found


def test_a_slow_consumer_misses_nothing_while_it_reads() -> None:
    node, peer = make()
    messages = some(1, 300)
    reader = opened(node)
    seen: list[tuple[int, bytes]] = []
    for first in range(0, 300, 10):
        publish(peer, *messages[first : first + 10])
        node.work()
        if not first:
            seen += got(reader, consume(reader, prefetch=3))
        seen += got(reader, reader.call(1, ACK_ALL))
        node.work()
        seen += got(reader)
    assert node.host().compacting.passes > 1  # type: ignore[union-attr]
    for _ in range(200):
        seen += got(reader, reader.call(1, ACK_ALL))
        node.work()
        seen += got(reader)
    offsets = [offset for offset, _ in seen]
    assert offsets == sorted(set(offsets)) and offsets[-1] == 299
    assert dict(seen).items() <= dict(enumerate(body for _, body, _ in messages)).items()
    assert expected(messages, sealed(node)).items() <= dict(seen).items()


def test_what_is_sealed_while_a_pass_runs_is_compacted_after_it() -> None:
    """No client publishes any more, so nothing else begins the next pass."""
    node, peer = make()
    steps = node.store.compactions
    for seed in range(20):
        publish(peer, *some(seed, 20))
        node.sync()
        if seed == 10:
            # The pass has read which segments are sealed by now; the rest of its work takes long.
            node.turn.run(steps.pop())
            assert steps
        while node.store.writes:
            node.turn.run(node.store.writes.pop(0))
    node.work()
    assert node.host().compacting.stop == sealed(node)  # type: ignore[union-attr]


def test_a_pass_whose_segments_go_meanwhile_is_followed_by_another_one() -> None:
    """No client publishes any more, so nothing else begins the next pass."""
    node, peer = make()
    for seed in range(20):
        publish(peer, *some(seed, 20))
        node.sync()
        while node.store.writes:
            node.turn.run(node.store.writes.pop(0))
    for _ in ("plan", "rewrite"):
        (step,) = node.store.compactions
        node.store.compactions.clear()
        node.turn.run(step)
    log, compacting = node.host()._log, node.host().compacting
    assert isinstance(log, StreamLog) and compacting is not None
    # Retention was faster, as the mending of damage may be.
    log.trim(1)
    node.work()
    assert compacting.stop == sealed(node) and not compacting.running


def test_a_stream_that_is_deleted_meanwhile() -> None:
    node, peer = make()
    for seed in range(4):
        publish(peer, *some(seed, 20))
        node.sync()
        # Steps of a pass wait for their threads while the stream goes.
        for jobs in (node.store.writes, node.store.compactions):
            if jobs:
                node.turn.run(jobs.pop(0))
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert not node.files.now


def test_what_fails_is_told_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, peer = make()
    real = compaction.rewrite

    def failing(*args: Any) -> Any:
        raise ValueError("for the test")

    monkeypatch.setattr(compaction, "rewrite", failing)
    messages = some(1, 80)
    publish(peer, *messages[:40])
    node.work()
    publish(peer, *messages[40:])
    node.work()
    assert (
        "stream 's' in vhost '/': compaction failed, the next try is when another segment is closed"
        in caplog.text
    )
    assert len(read(node)) == 80
    monkeypatch.setattr(compaction, "rewrite", real)
    more = some(2, 80)
    for first in range(0, 80, 20):
        publish(peer, *more[first : first + 20])
        node.work()
    assert len(read(node)) < 100


def test_a_full_disk_stops_compaction_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The files that it has begun to write take no room from others, and it goes on when there is room."""
    node, peer = make()
    host = node.host()
    for seed in range(8):
        publish(peer, *some(seed, 20))
        node.sync()
        while node.store.writes:
            node.store.writes.pop(0)()
    (begun,) = node.store.compactions
    node.store.compactions.clear()
    begun()
    # There is room for only a part of the pass' files.
    node.files.room = node.files.used + 100
    node.work()
    assert "stream 's' in vhost '/': compaction failed, the next try is in 60 s: OSError(28" in caplog.text
    assert host.compacting is not None and not host.compacting.passes
    assert not [path for path in node.files.now if path.suffix == ".new"]
    assert {path.stem for path in node.files.now if path.suffix == ".index"} == {
        path.stem for path in node.files.now if path.suffix == ".segment"
    }
    assert len(read(node)) == 160
    node.files.room = None
    publish(peer, *some(8, 1))
    node.work()
    assert not host.compacting.passes
    node.pass_time(60_000)
    publish(peer, *some(9, 1))
    node.work()
    assert host.compacting.passes and len(read(node)) < 100


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x_stream_compaction": "keys"}, "invalid arg 'x-stream-compaction' for queue 's'"),
        ({"x_stream_compaction": "header:"}, "expected key or header:NAME"),
        ({"x_stream_compaction": 1}, "{unacceptable_type,"),
        (
            {"x_stream_compaction": "key", "x_stream_tombstone_age": "old"},
            "invalid arg 'x-stream-tombstone-age'",
        ),
        ({"x_stream_tombstone_age": "1h"}, "tombstone_age_but_no_compaction"),
    ],
)
def test_a_compaction_that_cannot_be_is_refused(arguments: dict[str, Any], why: str) -> None:
    node = StreamNode()
    ((_, close),) = declare(opened(node), **arguments)
    assert close.reply_code == 406 and why in close.reply_text
    assert not node.broker.vhost("/").queues


def test_retention_deletes_no_more_than_it_wanted_before_a_pass() -> None:
    """The oldest segment is to go, and a pass has merged it with younger ones before the disk deletes it."""
    node, peer = make()
    host, store = node.host(), node.store
    # A first pass leaves small segments, which a second one puts together.
    for seed in range(20):
        publish(peer, *some(seed, 4))
        node.work()
    for seed in range(20, 40):
        publish(peer, *some(seed, 4))
        node.sync()
        while store.writes:
            store.writes.pop(0)()
    log = host._log
    assert isinstance(log, StreamLog)
    for _ in ("plan", "rewrite"):
        (step,) = store.compactions
        store.compactions.clear()
        step()
    (replace,) = store.writes
    store.writes.clear()
    oldest = log.segments[0]
    size = sum(segment.size for segment in log.segments)
    host._limits = RetentionLimits(max_age_ms=None, max_bytes=size - 1)
    host._retain()
    (delete,) = store.writes
    store.writes.clear()
    replace()
    assert log.segments[0].stop > oldest.stop
    delete()
    assert log.segments[0].base <= oldest.stop
