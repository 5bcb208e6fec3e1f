"""Consumer groups on three nodes: members come and go while the stream grows, and while nodes and members
have faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance_tests.patience import open_connection
from tests.cluster.links import isolate
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.group_members import Crowd, Message, Process, Publisher, Record

PARTITIONS = 3
EACH = 150
TIMEOUT_MS = 2_000
HEARTBEAT_S = 1


@pytest.fixture(scope="module")
def three() -> Iterator[MqdCluster]:
    with MqdCluster() as started:
        yield started
        for name in started.names:
            assert "Traceback" not in started.log(name), (name, started.log(name)[-6000:])


class Scene:
    """A super stream with a group, and the record of its members."""

    def __init__(self, cluster: MqdCluster, name: str, **arguments: int) -> None:
        self.cluster = cluster
        self.name = name
        self.group = f"{name}-group"
        self.record = Record()
        self.publisher = Publisher(name)
        self.partitions = PARTITIONS
        table: dict[str, Any] = {
            "x-queue-type": "stream-group",
            "x-stream": name,
            "x-stream-offset": "first",
        }
        table |= {key.replace("_", "-"): value for key, value in arguments.items()}
        connection = open_connection(self.url("n1"))
        channel = connection.channel()
        channel.exchange_declare(name, "x-super-stream", durable=True, arguments={"x-partitions": PARTITIONS})
        channel.queue_declare(self.group, durable=True, arguments=table)
        connection.close()

    def url(self, name: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.cluster.port(name)}/"

    def urls(self) -> list[str]:
        return [self.url(name) for name in self.cluster.names]

    def crowd(self, seed: int) -> Crowd:
        return Crowd(self.urls, self.group, self.record, seed)

    def publish(self, name: str = "n1", count: int = EACH) -> None:
        self.publisher.publish(self.url(name), count)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        wait_for(what, lambda: bool(self.record.errors) or holds(), state=self.record.state)
        assert not self.record.errors, self.record.errors

    def seen_all(self) -> None:
        self.wait("the members have seen all", lambda: self.record.count == self.publisher.count)

    def grow(self, name: str, count: int) -> None:
        self.cluster.mqctl(name, "add_partitions", self.name, str(count))
        self.partitions += count

    def member_count(self, name: str) -> int:
        return len(self.cluster.mqctl(name, "-q", "list_group_members", self.group).splitlines())

    def lag(self, name: str) -> int:
        count: int = self.cluster.row(name, self.group)["messages"]
        return count

    def judge(self) -> None:
        """Members ack the rest; then no message is left, and all copies of the group are equal."""
        with self.crowd(0):
            self.wait("nothing is left", lambda: all(self.lag(name) == 0 for name in self.cluster.names))
        assert not self.record.errors, self.record.errors
        assert self.record.count == self.publisher.count
        assert set(self.record.next) == {f"{self.name}-{number}" for number in range(self.partitions)}
        assert self.record.done, "nothing was acked for good"

        def equal() -> bool:
            found = self.cluster.members(self.group)
            return len(found) == 3 and len({(each.applied, each.digest) for each in found}) == 1

        wait_for("the copies are equal", equal, state=lambda: str(self.cluster.members(self.group)))


@pytest.mark.parametrize("seed", range(3))
def test_a_super_stream_grows_while_members_come_and_go(three: MqdCluster, seed: int) -> None:
    scene = Scene(three, f"growing-{seed}")
    with scene.crowd(seed):
        for place, name in enumerate(three.names):
            scene.publish(name)
            scene.grow(three.names[place - 1], 2)
            scene.publish(name)
        scene.seen_all()
    scene.judge()


def test_a_coordinator_is_killed_while_members_come_and_go(three: MqdCluster) -> None:
    scene = Scene(three, "killed")
    with scene.crowd(2):
        for _ in range(2):
            scene.publish()
            leader = three.leader(scene.group)
            three.kill(leader)
            scene.publish(next(name for name in three.names if name != leader))
            three.restart(leader)
        scene.seen_all()
    scene.judge()


def test_a_coordinator_is_cut_off_while_members_come_and_go(three: MqdCluster) -> None:
    scene = Scene(three, "cut")
    with scene.crowd(3):
        scene.publish()
        leader = three.leader(scene.group)
        isolate(three.links, leader, three.names, hold=True)
        others = [name for name in three.names if name != leader]

        def another() -> bool:
            told = three.queue(others[0], scene.group)["leader"]
            return bool(told) and told != leader

        wait_for("another one leads", another)
        scene.publish(others[0])
        isolate(three.links, leader, three.names)
        scene.seen_all()
    scene.judge()


@pytest.mark.parametrize("how", ["its time is up", "no heartbeats"])
def test_a_frozen_member_loses_its_partitions_and_comes_again(three: MqdCluster, how: str) -> None:
    slow = how == "its time is up"
    scene = Scene(
        three, "frozen" if slow else "silent", **({"x_consumer_timeout": TIMEOUT_MS} if slow else {})
    )
    process = Process(
        scene.url("n2"), scene.group, scene.record, prefetch=20, heartbeat_s=0 if slow else HEARTBEAT_S
    )
    try:
        scene.publish(count=60)
        scene.wait("it has all", lambda: process.deliveries == 60)
        process.freeze()
        # The process holds some of these, and does not know.
        scene.publish(count=90)
        with scene.crowd(4):
            scene.seen_all()
        assert process.cancels == 0
        process.thaw()
        scene.wait("it is told", lambda: process.cancels == 1 or process.code is not None)
        wait_for("it is a member again", lambda: scene.member_count("n1") == 1)
        scene.publish(count=60)
        scene.seen_all()
        assert process.code is None and process.since >= 60
    finally:
        process.close()
    scene.judge()


class Held:
    """A member that acks only when the test says so, and notes all deliveries."""

    def __init__(self, scene: Scene, at: str, prefetch: int) -> None:
        self._connection = open_connection(scene.url(at))
        self.channel: Any = self._connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.tags: list[int] = []
        self.messages: list[Message] = []
        self.group = scene.group
        self.channel.basic_consume(scene.group, self._take)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.tags.append(method.delivery_tag)
        self.messages.append((properties.headers["x-stream"], properties.headers["x-stream-offset"]))

    def listen(self) -> None:
        self._connection.process_data_events(0.02)

    def ack_all(self) -> None:
        """The answer comes when the group has the acks, and only if the channel is open."""
        for tag in self.tags:
            self.channel.basic_ack(tag)
        self.tags = []
        self.channel.queue_declare(self.group, passive=True)

    def close(self) -> None:
        self._connection.close()


def test_a_group_is_reset_by_force_at_a_node_that_leads_nothing(three: MqdCluster) -> None:
    scene = Scene(three, "reset")
    asked = next(name for name in three.names if name != three.topology_leader())
    other = next(name for name in three.names if name != asked)
    for queue in (scene.group, *(f"reset-{number}" for number in range(PARTITIONS))):
        three.transfer(queue, other)
    members = [Held(scene, name, 10) for name in three.names]

    def listen() -> None:
        for member in members:
            member.listen()

    def have(count: int) -> bool:
        listen()
        return sum(len(member.messages) for member in members) >= count

    def state() -> str:
        return str([len(member.messages) for member in members])

    try:
        scene.publish()
        wait_for("all hold something", lambda: have(30) and scene.member_count(asked) == 3, state=state)
        for member in members:
            member.ack_all()
        wait_for("all hold more", lambda: have(60), state=state)
        so_far = committed(scene, asked)
        assert so_far >= 30
        with pytest.raises(AssertionError, match="has 3 members"):
            three.mqctl(asked, "reset_group", scene.group, "--to", "first")
        assert committed(scene, asked) == so_far
        before = [list(member.tags) for member in members]
        for member in members:
            member.messages.clear()
            member.tags.clear()
        three.mqctl(asked, "reset_group", scene.group, "--to", "first", "--force")
        wait_for("all are at the beginning", lambda: not any(committed(scene, name) for name in three.names))
        # The group has forgotten what they hold: acks of it neither move the group nor end the channel.
        for member, tags in zip(members, before, strict=True):
            assert tags
            for tag in tags:
                member.channel.basic_ack(tag)
            member.channel.queue_declare(scene.group, passive=True)
        assert committed(scene, asked) == 0
        seen: list[Message] = []
        while len(seen) < EACH:
            wait_for("more comes", lambda: have(1), state=state)
            for member in members:
                seen += member.messages
                member.messages.clear()
                member.ack_all()
        # The same members get each message once more, in order.
        for number in range(PARTITIONS):
            offsets = [offset for name, offset in seen if name == f"reset-{number}"]
            assert offsets == list(range(len(offsets)))
        assert len(seen) == EACH and scene.member_count(asked) == 3
        wait_for("nothing is left", lambda: all(scene.lag(name) == 0 for name in three.names))
    finally:
        for member in members:
            member.close()


def committed(scene: Scene, name: str) -> int:
    """Return how many messages of all partitions are behind the group, as a node reports it."""
    rows = scene.cluster.mqctl(name, "-q", "list_group_partitions", scene.group).splitlines()
    return sum(int(row.split("\t")[2]) for row in rows)
