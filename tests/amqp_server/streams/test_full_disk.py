"""A stream on a disk without room: nothing is lost, and the stream goes on by itself as soon as there is
room.
"""

from __future__ import annotations

import random

import pytest

from amqp_server.streams.local_host import StreamOptions
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, publish
from tests.amqp_server.streams.test_super_streams import opened

HOUR_MS = 3_600_000


def bodies(low: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(low, stop)]


def replay(node: StreamNode, low: int = 0) -> list[tuple[int, bytes]]:
    peer = opened(node)
    answers = consume(peer)
    node.work()
    return got(peer, answers)


def pairs(low: int, stop: int) -> list[tuple[int, bytes]]:
    return list(enumerate(bodies(low, stop), low))


def test_retention_makes_room_for_what_waits_for_it() -> None:
    node = StreamNode()
    peer = opened(node)
    declare(peer, x_max_age="1h")
    for low in range(0, 40, 10):
        publish(peer, bodies(low, low + 10))
        node.work()
    host = node.host()
    segments = host.segment_count
    assert segments > 2
    node.files.room = node.files.used
    node.pass_time(HOUR_MS - 1)
    publish(peer, bodies(40, 45))
    node.work()
    assert node.store.refused and host._tail, "there was room"
    assert host.segment_count == segments
    node.pass_time(1)
    node.work()
    # The thread tries again now and then.
    node.work()
    assert not node.store.refused and not host._tail
    assert replay(node) == pairs(40, 45)


@pytest.mark.parametrize("seed", range(8))
def test_a_start_without_room_serves_what_is_there(seed: int) -> None:
    """After a crash some files must be mended, which may need more room than there is."""
    node = StreamNode(StreamOptions(segment_bytes=1500, flush_bytes=300))
    node.files.random = chance = random.Random(seed)
    peer = opened(node)
    declare(peer)
    stop = 0
    for _ in range(12):
        count = chance.choice((1, 3, 10))
        publish(peer, bodies(stop, stop + count))
        stop += count
        node.sync()
        if chance.random() < 0.7:
            node.work()
    for path in [path for path in node.files.now if path.suffix == ".index"]:
        if chance.random() < 0.5:
            del node.files.now[path]
    node.files.room = 0
    node.restart(lost_power=True)
    assert not node.host().ended
    assert replay(node) == pairs(0, stop)
    assert node.host().lost_count == 0
    node.files.room = None
    publish(opened(node), bodies(stop, stop + 30))
    node.work()
    assert not node.host()._tail
    for _ in range(2):
        assert replay(node) == pairs(0, stop + 30)
        node.restart(lost_power=True)
