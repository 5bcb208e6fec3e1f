"""Streams of one node whose older segments go to an object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from outcome import capture
from pamqp import commands

from amqp_server.streams.local_host import StreamOptions, StreamServices
from amqp_server.streams.tiers.remotes import Remotes
from quorum_queue.local_host import NodeServices
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, opened, publish
from tests.stores.objects import SimulatedObjects, SimulatedStores

LOCAL = {"x-stream-local-max-length-bytes": 1500}


class TieredNode(StreamNode):
    """A node with a store `archive`, whose threads work with all others."""

    def __init__(self, options: StreamOptions | None = None) -> None:
        self.store_objects = SimulatedObjects()
        self.alarm = ""
        self.starts = 0
        self.configured = True
        super().__init__(options, stream_remotes=("archive=file:///nowhere",))

    def _stream_services(self, services: NodeServices) -> StreamServices:
        self.starts += 1
        stores = {"archive": self.store_objects} if self.configured else {}
        self.stores = SimulatedStores(stores, f"start-{self.starts}")
        found = super()._stream_services(services)
        found.remotes = Remotes(self.stores, self._alarm)
        return found

    def _alarm(self, text: str) -> None:
        self.alarm = text

    def work(self) -> None:
        for _ in range(1000):
            super().work()
            jobs, self.stores.jobs = self.stores.jobs, []
            if not jobs:
                return
            for job in jobs:
                self.turn.run(job)
        raise AssertionError("it does not come to an end")


@pytest.fixture
def node() -> TieredNode:
    return TieredNode()


def fill(node: TieredNode, peer: Peer, low: int, stop: int, name: str = "s") -> None:
    for number in range(low, stop):
        publish(peer, [b"%06d" % number * 20], name)
        node.work()


def read_all(node: TieredNode, peer: Peer, offset: object = "first", tag: str = "t") -> list[int]:
    """Return the offsets that a new consumer gets; each has its own message."""
    answers = consume(peer, offset, tag=tag)
    node.work()
    found = got(peer, answers)
    for number, body in found:
        assert body == b"%06d" % number * 20
    peer.call(1, commands.Basic.Cancel(consumer_tag=tag))
    node.work()
    got(peer)
    return [number for number, _ in found]


def tiered(node: TieredNode, **arguments: object) -> Peer:
    peer = opened(node)
    table: dict[str, Any] = {"x-stream-remote": "archive"} | LOCAL | arguments
    answers = declare(peer, **table)
    assert isinstance(answers[-1][1], commands.Queue.DeclareOk), answers
    return peer


def test_sealed_segments_go_to_the_store_and_leave_the_disk(node: TieredNode) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 60)
    host = node.host()
    tier = host.tier
    assert tier is not None and len(tier.ranges) > 10
    assert tier.ranges[0].first == 0
    # Without gap or overlap, and each with its object.
    stops = [each.stop for each in tier.ranges]
    assert [each.first for each in tier.ranges] == [0, *stops[:-1]]
    assert tier.manifest is not None
    sizes = {tier.manifest.key(each): each.object_bytes for each in tier.ranges}
    assert {key: len(data) for key, data in node.store_objects.objects.items()} == sizes
    assert host.local_first_offset > 40
    assert host.first_offset == 0
    assert read_all(node, peer) == list(range(60))


@pytest.mark.parametrize("offset", [0, 1, 7, 30, 44, 45, 46, 50, 59])
def test_a_consumer_begins_anywhere(node: TieredNode, offset: int) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 60)
    assert read_all(node, peer, offset) == list(range(offset, 60))


def test_a_consumer_follows_from_the_store_to_the_tip(node: TieredNode) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 40)
    answers = consume(peer, "first", prefetch=5)
    seen: list[int] = []
    published = 40
    while len(seen) < 70:
        node.work()
        new = got(peer, answers)
        assert new
        seen += [number for number, _ in new]
        if published < 70:
            fill(node, peer, published, published + 3)
            published += 3
        answers = peer.call(1, commands.Basic.Ack(delivery_tag=len(seen), multiple=True))
    assert seen == list(range(70))


def test_times_are_found_in_the_store(node: TieredNode) -> None:
    peer = tiered(node)
    times: list[int] = []
    for number in range(40):
        node.pass_time(60_000)
        times.append(node.host()._services.queue_time.now_ms())
        fill(node, peer, number, number + 1)
    node.pass_time(60_000)
    for wanted in (0, 3, 17, 30, 39):
        minutes = 40 - wanted
        found = read_all(node, peer, f"{minutes}m")
        assert found == list(range(wanted, 40)), wanted


def test_filters_and_whole_batches(node: TieredNode) -> None:
    peer = tiered(node)
    for number in range(40):
        publish(peer, [b"x" * 100], filters=["a" if number % 4 == 0 else "b"])
        node.work()
    answers = consume(peer, "first", x_stream_filter="a")
    node.work()
    assert [number for number, _ in got(peer, answers)] == list(range(0, 40, 4))
    batches = opened(node)
    answers = consume(batches, "first", x_stream_batches=True)
    node.work()
    assert [number for number, _ in got(batches, answers)] == list(range(40))


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_restart_knows_what_the_store_has(node: TieredNode, lost_power: bool) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 60)
    objects = dict(node.store_objects.objects)
    node.restart(lost_power=lost_power)
    node.work()
    peer = opened(node)
    assert read_all(node, peer) == list(range(60))
    assert node.store_objects.objects == objects
    fill(node, peer, 60, 80)
    assert read_all(node, peer) == list(range(80))
    assert not node.store_objects.replaced


def test_the_disk_keeps_what_the_store_lacks(node: TieredNode) -> None:
    node.store_objects.away = True
    peer = tiered(node)
    fill(node, peer, 0, 60)
    host = node.host()
    assert host.local_first_offset == 0 and host.tier is not None and not host.tier.ranges
    assert "archive" in node.alarm and "away" in node.alarm
    assert read_all(node, peer) == list(range(60))
    node.store_objects.away = False
    for _ in range(20):
        node.pass_time(60_000)
        node.work()
    assert node.alarm == ""
    assert host.local_first_offset > 40
    assert read_all(node, peer) == list(range(60))


@pytest.mark.parametrize("fault", ["halves", "deaf"])
def test_an_object_that_is_not_whole_does_not_count(node: TieredNode, fault: str) -> None:
    setattr(node.store_objects, fault, True)
    peer = tiered(node)
    fill(node, peer, 0, 30)
    host = node.host()
    assert host.tier is not None and not host.tier.ranges and host.local_first_offset == 0
    assert node.alarm
    setattr(node.store_objects, fault, False)
    for _ in range(20):
        node.pass_time(60_000)
        node.work()
    assert host.tier.ranges and not node.alarm
    assert read_all(node, peer) == list(range(30))


def _away(node: TieredNode) -> None:
    node.store_objects.away = True


def _lies(node: TieredNode) -> None:
    node.store_objects.lies = True


def _absent(node: TieredNode) -> None:
    node.store_objects.objects = {}


@pytest.mark.parametrize("fault", [_away, _lies, _absent])
def test_a_reader_waits_and_then_is_cancelled(node: TieredNode, fault: Callable[[TieredNode], None]) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 60)
    objects = dict(node.store_objects.objects)
    fault(node)
    tip = opened(node)
    assert [number for number, _ in got(tip, consume(tip, "next"))] == []
    answers = consume(peer, 3)
    node.work()
    assert got(peer, answers) == []
    assert node.alarm
    # The tip is not held up.
    publish(peer, [b"%06d" % 60 * 20])
    node.work()
    assert [number for number, _ in got(tip)] == [60]
    node.store_objects.away = node.store_objects.lies = False
    node.store_objects.objects = objects
    node.pass_time(30_000)
    node.work()
    assert [number for number, _ in got(peer)] == list(range(3, 61))
    assert node.alarm == ""
    peer.call(1, commands.Basic.Cancel(consumer_tag="t"))
    for start in (3, "first"):
        reader = opened(node)
        _forget(node)
        fault(node)
        answers = consume(reader, start)
        node.work()
        for _ in range(30):
            node.pass_time(5_000)
            node.work()
            answers += reader.answers()
        # A store that lies may give some of them, and none is left out.
        found = got(reader, answers)
        assert [number for number, _ in found] == [*range(3 if start == 3 else 0, 60)][: len(found)]
        assert len(found) < 50
        assert type(answers[-1][1]) is commands.Basic.Cancel
        node.store_objects.away = node.store_objects.lies = False
        node.store_objects.objects = objects


def _forget(node: TieredNode) -> None:
    for key in list(node.store_objects.objects):
        node.stores.cache.forget(key)
    host = node.host()
    assert host.tier is not None and host.tier.reader is not None
    cache = host.tier.reader._remote._objects._cache
    for key in list(node.store_objects.objects):
        cache.forget(key)


def test_total_retention_counts_both_and_deletes_both(node: TieredNode) -> None:
    peer = tiered(node, **{"x-max-length-bytes": 4000})
    fill(node, peer, 0, 80)
    host = node.host()
    assert host.tier is not None and host.tier.manifest is not None
    assert 40 < host.first_offset < host.local_first_offset
    keys = {host.tier.manifest.key(each) for each in host.tier.ranges}
    assert set(node.store_objects.objects) == keys
    assert read_all(node, peer) == list(range(host.first_offset, 80))
    node.restart()
    node.work()
    peer = opened(node)
    assert read_all(node, peer) == list(range(host.first_offset, 80))


def test_total_retention_by_age(node: TieredNode) -> None:
    peer = tiered(node, **{"x-max-age": "1h"})
    fill(node, peer, 0, 30)
    node.pass_time(1_800_000)
    fill(node, peer, 30, 60)
    first = node.host().first_offset
    assert first == 0
    node.pass_time(1_800_000)
    node.work()
    first = node.host().first_offset
    assert 25 < first <= 30
    node.pass_time(1_800_000)
    node.work()
    assert read_all(node, peer) == [] and node.store_objects.objects == {}
    fill(node, peer, 60, 80)
    assert read_all(node, peer) == list(range(60, 80))


def test_total_retention_goes_on_while_the_store_is_away(node: TieredNode) -> None:
    peer = tiered(node, **{"x-max-length-bytes": 4000})
    fill(node, peer, 0, 40)
    node.store_objects.away = True
    fill(node, peer, 40, 100)
    host = node.host()
    assert host.first_offset > 60
    assert read_all(node, peer, max(host.local_first_offset, host.first_offset))[-1] == 99
    node.store_objects.away = False
    for _ in range(20):
        node.pass_time(60_000)
        node.work()
    assert host.tier is not None and host.tier.manifest is not None
    assert set(node.store_objects.objects) == {host.tier.manifest.key(each) for each in host.tier.ranges}
    assert read_all(node, peer) == list(range(host.first_offset, 100))


def test_local_age_alone(node: TieredNode) -> None:
    peer = opened(node)
    declare(peer, **{"x-stream-remote": "archive", "x-stream-local-max-age": "1h"})
    fill(node, peer, 0, 30)
    host = node.host()
    assert host.local_first_offset == 0 and host.tier is not None and host.tier.ranges
    node.pass_time(3_600_000)
    node.work()
    # The segment that is being written stays.
    assert 20 < host.local_first_offset < 30
    assert read_all(node, peer) == list(range(30))


def test_a_deleted_stream_deletes_its_objects_and_leaves_others(node: TieredNode) -> None:
    peer = tiered(node)
    fill(node, peer, 0, 30)
    table: dict[str, Any] = {"x-stream-remote": "archive"} | LOCAL
    declare(peer, "other", **table)
    fill(node, peer, 0, 30, "other")
    both = len(node.store_objects.objects)
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert 0 < len(node.store_objects.objects) < both
    before = set(node.store_objects.objects)
    declare(peer, **table)
    fill(node, peer, 0, 30)
    assert before < set(node.store_objects.objects)
    assert read_all(node, peer) == list(range(30))
    assert not node.store_objects.replaced


def test_an_upload_in_progress_leaves_no_object_of_a_deleted_stream(node: TieredNode) -> None:
    peer = tiered(node)
    held: list[tuple[Any, Any]] = []
    node.stores.write = lambda call, done: held.append((call, done))  # type: ignore[method-assign]
    fill(node, peer, 0, 30)
    del node.stores.write
    ((call, done),) = held
    before = set(node.store_objects.objects)
    outcome = capture(call)
    stored = node.store_objects.objects
    node.store_objects.objects = {key: stored[key] for key in before}
    peer.call(1, commands.Queue.Delete(queue="s"))
    node.work()
    assert node.store_objects.objects == {} and len(stored) == len(before) + 1
    # It arrives after the others were deleted.
    node.store_objects.objects = {key: data for key, data in stored.items() if key not in before}
    node.turn.run(done, outcome)
    node.work()
    assert node.store_objects.objects == {}


def test_damage_on_the_disk_is_not_uploaded_unnoticed(node: TieredNode) -> None:
    peer = tiered(node)
    node.store_objects.away = True
    fill(node, peer, 0, 30)
    host = node.host()
    path = host._log.path(host._log.segments[1].base, ".segment")
    node.files.now[path][60] ^= 1
    node.store_objects.away = False
    for _ in range(20):
        node.pass_time(60_000)
        node.work()
    assert host.tier is not None and [each.damaged for each in host.tier.ranges][:3] == [False, True, False]
    assert host.lost_count > 0
    found = read_all(node, peer)
    assert len(found) == 30 - host.lost_count and found[-1] == 29
    assert node.alarm == ""


REFUSED = [
    ({"x-stream-remote": "elsewhere"}, "x-stream-remote"),
    ({"x-stream-remote": "a/b"}, "x-stream-remote"),
    ({"x-stream-remote": 5}, "x-stream-remote"),
    ({"x-stream-local-max-age": "1h"}, "x-stream-local-max-age"),
    ({"x-stream-local-max-length-bytes": 1000}, "x-stream-local-max-length-bytes"),
    ({"x-stream-remote": "archive", "x-stream-local-max-length-bytes": 0}, "x-stream-local-max-length-bytes"),
    ({"x-stream-remote": "archive", "x-stream-local-max-age": "1x"}, "x-stream-local-max-age"),
    ({"x-stream-remote": "archive", "x-stream-compaction": "key"}, "x-stream-remote"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED)
def test_refused_declares(node: TieredNode, arguments: dict[str, Any], named: str) -> None:
    peer = opened(node)
    answer = declare(peer, **arguments)[-1][1]
    assert isinstance(answer, commands.Channel.Close)
    assert answer.reply_code == 406 and named in answer.reply_text


def test_a_store_that_is_not_configured_any_more_is_not_tried(node: TieredNode) -> None:
    """An upload reads a whole segment before it meets the store; a node without stores has no threads for
    that.
    """
    peer = tiered(node)
    fill(node, peer, 0, 30)
    before = node.host().tier_figures()[1]
    node.configured = False
    node.restart()
    peer = opened(node)
    asked: list[object] = []
    node.stores.write = lambda call, done: asked.append(call)  # type: ignore[method-assign]
    fill(node, peer, 30, 60)
    node.pass_time(120_000)
    node.work()
    assert not asked
    assert node.alarm == "remote 'archive': this node has no remote 'archive' (stream_remotes)"
    assert node.host().tier_figures()[1] == before
    assert read_all(node, peer, 59) == [59]
    node.configured = True
    node.restart()
    node.work()
    assert read_all(node, opened(node)) == list(range(60))
    assert node.host().tier_figures()[1] > before
