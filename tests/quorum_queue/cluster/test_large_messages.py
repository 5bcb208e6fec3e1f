"""A message that is larger than an entry, a frame or a piece never stops a queue: it is taken or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.events import Events
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import ATTRIBUTES, MAJORITY
from quorum_queue.machine.run import Run
from tests.quorum_queue.cluster.node import RAFT, REPLICATION
from tests.quorum_queue.cluster.scene import Scene

LIMIT = 5000
EARLIER = 2000


def limited(*, version: int = versions.NEWEST, names: str = "abc", members: str = "abc") -> Scene:
    scene = Scene(names=names, members=members)
    scene.network.version = version
    for node in scene.nodes.values():
        node.replicas.options = replace(
            node.replicas.options, message_bytes_max=LIMIT, earlier_message_bytes_max=EARLIER
        )
        node.roster.version = version
    return scene


def padding(publisher: Any, size: int) -> int:
    """Return the padding of the next body, so that it has this size."""
    return size - len(publisher.body(0))


@pytest.mark.parametrize("home", ["a", "b", "d"])
@pytest.mark.parametrize(
    ("version", "limit"), [(versions.NEWEST, LIMIT), (versions.LARGE_ENTRIES - 1, EARLIER)]
)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_around_the_limit(home: str, version: int, limit: int, more: int) -> None:
    """From the leader, a follower, and a node that is no member."""
    scene = limited(version=version, names="abcd")
    publisher = scene.publisher(home)
    holder = scene.consume("c", prefetch=0)
    scene.publish(home, publisher, size=1)
    scene.publish(home, publisher, size=padding(publisher, limit + more))
    scene.publish(home, publisher, size=1)
    scene.work(40)
    assert not publisher.waiting
    assert publisher.refusals == ([publisher.bodies[2]] if more > 0 else [])
    assert len(holder.unacked) == (2 if more > 0 else 3)
    scene.finish()


def test_only_the_large_message_of_a_read_is_refused() -> None:
    """Many messages of one read are one command: the others are taken, in order."""
    scene = limited()
    publisher = scene.publisher("b")
    holder = scene.consume("c", prefetch=0)
    for size in (10, LIMIT + 1, 20, LIMIT, LIMIT + 1):
        body = publisher.body(padding(publisher, size) if size > 100 else size)
        publisher.waiting[len(publisher.bodies)] = None
        publisher.bodies.append(body)
        publisher.ledger.published[body] = None
    run = Run(range(5), publisher.bodies[1:], b"head", ATTRIBUTES[MAJORITY](persistent=True))
    scene.host("b").submit(("enqueue", run, publisher, 1))
    scene.nodes["b"].end_turn()
    scene.work(40)
    assert not publisher.waiting
    assert publisher.refusals == [publisher.bodies[2], publisher.bodies[5]]
    assert len(holder.unacked) == 3
    scene.finish()


@pytest.mark.parametrize(
    "bound",
    [
        REPLICATION.entry_bytes, REPLICATION.batch_bytes, REPLICATION.piece_bytes, REPLICATION.unsent_bytes_max,
        REPLICATION.transfer_bytes_max, RAFT.append_bytes_max, RAFT.inflight_bytes_max,
    ],
)  # fmt: skip
def test_around_the_other_bounds(bound: int) -> None:
    """With a member that is away, gets the messages afterwards, and has lost its disk."""
    scene = Scene()
    publisher = scene.publisher("b")
    for more in (-1, 0, 1):
        scene.publish("b", publisher, size=padding(publisher, bound + more))
    scene.work(40)
    assert not publisher.waiting and not publisher.refusals
    scene.isolate("c")
    for more in (-1, 0, 1):
        scene.publish("b", publisher, size=padding(publisher, bound + more))
    scene.work(40)
    assert not publisher.waiting and not publisher.refusals
    scene.heal()
    scene.work(80)
    holder = scene.consume("c", prefetch=0)
    scene.work(40)
    assert len(holder.unacked) == 6
    scene.finish()


def test_deliveries_of_one_turn_are_cut_into_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer on another node may get many large messages at once."""
    monkeypatch.setattr(events, "FRAME_BYTES", 1000)
    sizes = [10, 400, 600, 999, 1000, 1001, 2500, 5, 5]
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]
    heads = [b"head %d" % number for number in range(len(sizes))]
    run = Run(range(20, 38, 2), contents, b"head")
    run.heads = heads
    gathered = Events()
    gathered.add(events.CONFIRMED, 1, 1, 1)
    gathered.deliver((1, 2, "c", 3), 7, run)
    gathered.deliver((1, 2, "c", 3), 16, Run(range(1), [b"x"], b"last"))
    gathered.add(events.DONE, 1, 0, 0, 0, 0)
    got: list[tuple[int, int, bytes, bytes]] = []
    kinds: list[int] = []
    for parts in gathered.encode(4):
        _, head, bodies = frames.parse_events(memoryview(b"".join(parts)))
        found = events.decode(head, bodies)
        delivered = [event[3] for event in found if event[0] == events.DELIVERED]
        count = sum(len(each.contents) for each in delivered)
        assert count <= 1 or sum(each.size for each in delivered) <= 1000
        for event in found:
            kinds.append(event[0])
            if event[0] == events.DELIVERED:
                for index, content in enumerate(event[3].contents):
                    got.append((event[2] + index, event[3].seqs[index], event[3].head_of(index), content))
    assert got[:-1] == list(zip(range(7, 16), range(20, 38, 2), heads, contents, strict=True))
    assert got[-1] == (16, 0, b"last", b"x")
    assert kinds[0] == events.CONFIRMED and kinds[-1] == events.DONE
