"""Consumer groups on simulated nodes; each test causes the faults itself, none come by chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp_server.broker.declared.operations import DeclareQueue
from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.errors import Unavailable
from amqp_server.management.changes import answers
from amqp_server.management.resources import groups
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import offsets_of
from amqp_server.wire import content
from quorum_queue.consumer_groups import snapshot
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.ports import Got, Refused
from tests.amqp_server.cluster.simulation import waiting
from tests.amqp_server.cluster.simulation.node import TICK_MS
from tests.amqp_server.cluster.simulation.streams import HEADER
from tests.amqp_server.cluster.simulation.waiting import Task
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

MEMBERS: tuple[str, ...] = ("a", "b", "c")


class Accepted:
    """The origin of a publish."""

    def confirmed(self, first: int, last: int) -> None: ...

    def refused(self, first: int, last: int) -> None:
        raise AssertionError("a publish is refused")

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Member:
    """A consumer that notes the messages it gets. See amqp_server.streams.local_host.Sink."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def deliver_batch(self, taker: Any, reader: BatchReader, count: int, first_id: int, again: bool) -> None:
        self.offsets += offsets_of(reader, count)


TIMEOUT_MS = 5_000


class GroupScene(Scene):
    stream_members = MEMBERS

    def __init__(self, **more: int) -> None:
        super().__init__()
        self.declare_as("s", **{"x-queue-type": "stream"})
        self.declare_as("dead", **{"x-queue-type": "quorum"})
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.declare_as(
            "g",
            **{"x-queue-type": "stream-group", "x-stream": "s", "x-stream-offset": "first"},
            **dead,
            **more,
        )

    def declare_as(self, name: str, **arguments: Any) -> None:
        record = QueueRecord(
            "/",
            name,
            0,
            False,
            encoded(arguments),
            type=arguments["x-queue-type"],
            members=self.stream_members if name == "s" else MEMBERS,
            leader="a",
        )
        self.propose("a", DeclareQueue(record))
        self.settle()

    def host(self, node: str, name: str) -> Any:
        return self.nodes[node].broker.vhost("/").queues[name].host

    def append(self, count: int) -> None:
        bodies = [b"%d" % number for number in range(count)]
        contents = [content.build(HEADER, body, 1, 4096) for body in bodies]
        run = Run(range(count), contents, b"\x00\x01s", Attributes(True, 0, None, 1, 4096))
        host = self.host("a", "s")
        stop = host.end_offset + count
        self.nodes["a"].turn.run(host.submit, ("enqueue", run, Accepted(), 0))
        self.wait(lambda: host.end_offset == stop)

    def join(self, node: str, key: tuple[Any, ...], prefetch: int = 10) -> Member:
        member, refusals = Member(), list[str | None]()
        consumer = Consumer(key, prefetch=prefetch, sink=member)
        self.nodes[node].turn.run(self.host(node, "g").attach, consumer, refusals.append)
        self.wait(lambda: bool(refusals))
        assert refusals == [None]
        return member

    def get(self, node: str) -> int:
        """Get the next message of the group, and return its delivery id."""
        found: list[Any] = []
        consumer = Consumer((1, 1, None, False), sink=object())
        self.nodes[node].turn.run(self.host(node, "g").get, consumer, found.append)
        self.wait(lambda: bool(found))
        assert isinstance(found[0], Got)
        return found[0].first_id

    def reject(self, node: str, delivery: int) -> None:
        self.nodes[node].turn.run(
            self.host(node, "g").submit, ("discard", (1, 1, None, False), delivery, delivery)
        )
        self.settle()

    def reset(self, node: str, to: str, told: list[dict[str, Any]]) -> Task:
        """Have a node reset the group, and add its answer to `told`."""

        async def reset() -> None:
            broker = self.nodes[node].broker
            group = broker.vhost("/").groups["g"]
            told.extend(
                await groups.reset_group(broker, group, to, partition=None, dry_run=False, force=False)
            )

        return self.nodes[node].run(reset())


class SceneWithStreamElsewhere(GroupScene):
    """One member of the group has no copy of the stream."""

    stream_members = ("a", "b")


@pytest.mark.parametrize(("to", "offset"), [("next", 20), ("15", 15)])
def test_a_reset_at_a_node_that_is_behind_goes_by_the_end_of_the_stream(
    to: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "trio", waiting)
    scene = GroupScene()
    told = list[dict[str, Any]]()
    for other in "ab":
        scene.cut("c", other)
    scene.append(20)
    assert scene.host("c", "s").end_offset == 0
    task = scene.reset("c", to, told)
    scene.ticks(10)
    scene.doubt_all()
    scene.mend()
    scene.wait(lambda: task.done)
    assert task.error is None
    assert told == [{"stream": "s", "from": 0, "to": offset}]
    for name in MEMBERS:
        (partition,) = scene.host(name, "g").replica.group.partitions.values()
        assert partition.cursor == offset


@pytest.mark.parametrize(
    ("to", "offset"), [("first", 0), ("next", 20), ("last", 0), ("15", 15), ("99", 20), ("-1h", 0)]
)
def test_a_member_of_the_group_that_has_no_copy_of_the_stream_resets_it(
    to: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "trio", waiting)
    scene, told = SceneWithStreamElsewhere(), list[dict[str, Any]]()
    scene.append(20)
    task = scene.reset("c", to, told)
    scene.wait(lambda: task.done)
    assert task.error is None
    assert told == [{"stream": "s", "from": 0, "to": offset}]


def test_a_member_of_the_group_that_has_no_copy_of_the_stream_purges_it() -> None:
    scene, purged = SceneWithStreamElsewhere(), list[Any]()
    scene.append(20)
    scene.nodes["c"].turn.run(scene.host("c", "g").purge, purged.append)
    scene.wait(lambda: bool(purged))
    assert purged == [20]


def test_a_reset_says_so_if_nobody_knows_the_end_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "trio", waiting)
    scene = GroupScene()
    for other in "ab":
        scene.cut("c", other)
    task = scene.reset("c", "next", [])
    for _ in range(1000):
        scene.ticks(10)
        if task.done:
            break
    assert isinstance(task.error, Unavailable)
    assert "no majority of the stream's members answers" in str(task.error)


def test_a_member_that_lacks_messages_does_not_say_where_a_time_is() -> None:
    scene = GroupScene()
    scene.append(20)
    host, found = scene.host("c", "s"), list[int | Refused]()
    # Offset 5 is damaged, and another member has not sent it yet. Entries that were committed before are
    # applied.
    host.filling.missing[0] = 5
    host._find_place(Start(time_ms=0), found.append)
    assert isinstance(found[0], Refused) and "fetches" in found[0].text


def test_a_purge_at_a_node_that_is_behind_goes_by_the_end_of_the_stream() -> None:
    scene = GroupScene()
    purged = list[Any]()
    for other in "ab":
        scene.cut("c", other)
    scene.append(20)
    scene.nodes["c"].turn.run(scene.host("c", "g").purge, purged.append)
    scene.ticks(10)
    scene.doubt_all()
    scene.mend()
    scene.wait(lambda: bool(purged))
    assert purged == [20]


def test_a_dead_letter_that_the_next_leader_sends_again_is_taken_once() -> None:
    scene = GroupScene()
    scene.append(3)
    queue_id = scene.host("a", "g").queue_id
    leader: ConsumerGroupMemberHost = scene.lead("a", queue_id).machine  # type: ignore[assignment]
    submit = leader.submit
    # The leader fails before the others hear that the dead letters have arrived.
    leader.submit = lambda *commands: submit(*[each for each in commands if each[0] != "buried"])  # type: ignore[method-assign]
    for _ in range(3):
        scene.reject("b", scene.get("b"))
    assert scene.host("b", "dead").ready_count == 3
    assert sum(each.span.stop - each.span.low for each in scene.host("b", "g").replica.dead) == 3
    scene.crash(scene.nodes["a"])
    scene.wait(lambda: not scene.host("b", "g").replica.dead)
    scene.doubt_all()
    scene.settle()
    assert {scene.host(name, "dead").ready_count for name in "bc"} == {3}


def test_nothing_is_kept_of_a_client_that_goes_while_it_gets_a_message() -> None:
    scene = GroupScene()
    scene.append(1)
    key, found, host = (1, 1, None, False), list[Any](), scene.host("c", "g")
    scene.nodes["c"].turn.run(host.get, Consumer(key, sink=object()), found.append)
    scene.nodes["c"].turn.run(host.submit, ("detach", key, True))
    scene.settle()
    assert not found and not host.asking.getting
    # No member has seen the message.
    got = list[Any]()
    scene.nodes["b"].turn.run(
        scene.host("b", "g").get, Consumer((2, 1, None, False), sink=object()), got.append
    )
    scene.wait(lambda: bool(got))
    assert isinstance(got[0], Got) and not got[0].run.redelivered


KEY = (1, 1, "c", 1)


def test_a_member_whose_acks_are_on_their_way_is_not_stuck() -> None:
    scene = GroupScene(**{"x-consumer-timeout": TIMEOUT_MS})
    scene.append(3)
    scene.lead("a", scene.host("a", "g").queue_id)
    member, host = scene.join("c", KEY), scene.host("c", "g")
    scene.wait(lambda: member.offsets == [0, 1, 2])
    scene.ticks((TIMEOUT_MS - 500) // TICK_MS)
    # The member acks in time, and its node reaches the leader a little too late.
    scene.network.blocked["c", "a"] = None
    scene.nodes["c"].turn.run(host.submit, ("settle", KEY, 0, 2))
    scene.ticks(700 // TICK_MS)
    del scene.network.blocked["c", "a"]
    scene.settle()
    scene.append(1)
    scene.wait(lambda: bool(member.offsets[3:]))
    assert member.offsets == [0, 1, 2, 3]
    assert {scene.host(name, "g").consumer_count for name in MEMBERS} == {1}


def test_a_leader_asks_once_whether_members_are_stuck_while_nothing_gets_through() -> None:
    scene = GroupScene(**{"x-consumer-timeout": TIMEOUT_MS})
    scene.append(3)
    scene.lead("a", scene.host("a", "g").queue_id)
    member, host = scene.join("a", KEY), scene.host("a", "g")
    scene.wait(lambda: member.offsets == [0, 1, 2])
    before = host.group.next_number
    for other in "bc":
        scene.cut("a", other)
    for _ in range(2000):
        # A leader that has lost its majority may take a while to know.
        scene.nodes["a"].clock.now_ms += TIMEOUT_MS // 100
        scene.nodes["a"].turn.run(scene.nodes["a"].broker.timers.run, scene.nodes["a"].now_ms)
    assert host.group.next_number - before <= 2
    scene.doubt_all()
    scene.mend()
    scene.wait(lambda: scene.host("b", "g").consumer_count == 0)


def test_a_snapshot_is_made_and_read_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = GroupScene()
    scene.append(2_000)
    member = scene.join("a", KEY, prefetch=0)
    scene.wait(lambda: len(member.offsets) == 2_000)
    for other in "ab":
        scene.cut("c", other)
    leader = scene.host("a", "g")
    # No entries are kept for a node that is not there.
    leader.replicas.options = replace(leader.replicas.options, log_bytes_max=0)
    for number in range(0, 2_000, 2):
        scene.nodes["a"].turn.run(leader.submit, ("settle", KEY, number, number))
        if number % 100 == 0:
            # Otherwise they would all be in one entry.
            scene.ticks(1)
    (partition,) = leader.replica.group.partitions.values()
    scene.wait(lambda: partition.span_count == 1_000)
    turns: dict[str, set[float]] = {"made": set(), "read": set()}
    for what, kind, name in (("made", snapshot.View, "a"), ("read", snapshot.Reading, "c")):
        go_on: Any = kind.go_on

        def noted(self: Any, go_on: Any = go_on, what: str = what, name: str = name) -> Any:
            # Each turn ends at another time.
            turns[what].add(scene.nodes[name].turn.ends)
            return go_on(self)

        monkeypatch.setattr(kind, "go_on", noted)
    for node in scene.nodes.values():
        node.turn._lasts_s = 3
    scene.mend()
    scene.wait(lambda: scene.host("c", "g").replica.applied == leader.replica.applied)
    assert min(map(len, turns.values())) > 2, turns
    assert scene.host("c", "g").replica.digest() == leader.replica.digest()
