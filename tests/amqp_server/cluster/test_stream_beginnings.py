"""Where consumers of a replicated stream begin, on simulated nodes that are behind."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.broker.declared.operations import DeclareQueue, PutParameter, SetMembers
from amqp_server.broker.declared.parameters import ParameterRecord
from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.management.changes import answers as answers_module
from amqp_server.management.messages import by_hand
from amqp_server.management.resources import explained
from amqp_server.streams.beginnings import NO_MAJORITY, Beginnings
from amqp_server.streams.layout.consumer_start import NEXT, Start
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import offsets_of
from amqp_server.streams.members.host import StreamMemberHost
from amqp_server.streams.remote_host import StreamRemoteHost
from amqp_server.wire import content
from quorum_queue.cluster import read_index
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Attributes, Run
from tests.amqp_server.cluster.simulation import waiting
from tests.amqp_server.cluster.simulation.clients import Client
from tests.amqp_server.cluster.simulation.node import TICK_MS
from tests.amqp_server.cluster.simulation.streams import HEADER
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")

LAST = Start("last")
LONG_TICKS = 12_000 // TICK_MS


class Origin:
    """The origin of a publish."""

    def __init__(self) -> None:
        self.count = 0

    def confirmed(self, first: int, last: int) -> None:
        self.count += last - first + 1

    def refused(self, first: int, last: int) -> None:
        raise AssertionError("a publish is refused")

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Reader:
    """A client that consumes. See amqp_server.streams.local_host.Sink."""

    for_group = False
    timed = False
    batches = False
    user = "guest"
    wanted = None

    def __init__(self, number: int, start: Start) -> None:
        self.key = (number, 1, "c", 1)
        self.start = start
        self.offsets: list[int] = []
        #: The answers to basic.consume.
        self.answers: list[str | None] = []

    def deliver_batch(self, consumer: Any, reader: BatchReader, count: int, first_id: int) -> None:
        assert self.answers == [None], "a delivery before consume-ok"
        self.offsets += offsets_of(reader, count)
        reader.skip(count)

    def passed(self, offset: int) -> None: ...

    def began(self, offset: int) -> None: ...
    def let_go(self) -> None: ...

    def failed(self, error: Exception) -> None:
        raise error


class StreamScene(Scene):
    def __init__(
        self, names: str = "abc", members: str = "abc", arguments: dict[str, object] | None = None
    ) -> None:
        super().__init__(names)
        record = QueueRecord(
            *("/", "s", 0, False, encoded({"x-queue-type": "stream"} | (arguments or {}))),
            type="stream",
            members=tuple(members),
            leader="a",
        )
        self.propose("a", DeclareQueue(record))
        self.settle()
        self.lead("a", self.host("a").queue_id)
        self.number = 0

    def host(self, node: str) -> Any:
        return self.nodes[node].broker.vhost("/").queues["s"].host

    def read_stream(self, client: Client, name: str, queue_id: int) -> None:
        """What is published here is in no books, and the tests' own readers look at it."""

    def publish_at(self, node: str, count: int) -> Origin:
        bodies = [b"%d" % number for number in range(count)]
        contents = [content.build(HEADER, body, 1, 4096) for body in bodies]
        run = Run(range(count), contents, b"\x00\x01s", Attributes(True, 0, None, 1, 4096))
        origin = Origin()
        self.nodes[node].turn.run(self.host(node).submit, ("enqueue", run, origin, 0))
        return origin

    def confirmed(self, count: int, node: str = "a") -> None:
        """Publish, and wait for the confirms."""
        origin = self.publish_at(node, count)
        self.wait(lambda: origin.count == count)

    def consume(self, node: str, start: Start, prefetch: int = 100) -> Reader:
        self.number += 1
        reader = Reader(self.number, start)
        consumer = Consumer(reader.key, prefetch=prefetch, sink=reader)
        self.nodes[node].turn.run(self.host(node).attach, consumer, reader.answers.append)
        return reader

    def hold(self, to: str) -> None:
        """From now on this node hears nothing from the others."""
        for other in self.nodes:
            if other != to:
                self.network.blocked[other, to] = None

    def let(self, to: str) -> None:
        for other in self.nodes:
            self.network.blocked.pop((other, to), None)


def lagging(**more: Any) -> StreamScene:
    """Three messages are confirmed, and node c does not know of the last two."""
    scene = StreamScene(**more)
    scene.confirmed(1)
    scene.settle()
    scene.hold("c")
    scene.confirmed(2)
    return scene


@pytest.mark.parametrize(
    ("start", "first"), [(NEXT, 3), (LAST, 1), (Start(time_ms=1 << 60), 3), (Start("first"), 0)]
)
def test_a_consumer_on_a_member_that_is_behind(start: Start, first: int) -> None:
    scene = lagging()
    assert isinstance(scene.host("c"), StreamMemberHost)
    assert scene.host("c").end_offset == 1
    reader = scene.consume("c", start)
    scene.work_off()
    # Its client has no consume-ok yet, unless it gets whatever comes.
    assert reader.answers == ([None] if start.name == "first" else [])
    scene.let("c")
    scene.wait(lambda: reader.answers == [None])
    # What is published after consume-ok is not skipped.
    scene.confirmed(2)
    scene.wait(lambda: len(reader.offsets) == 5 - first)
    assert reader.offsets == list(range(first, 5))
    scene.finish()


@pytest.mark.parametrize(
    ("start", "first"), [(NEXT, 3), (LAST, 1), (Start(time_ms=1 << 60), 3), (Start("first"), 0)]
)
def test_a_consumer_on_a_node_without_a_copy_that_asks_such_a_member(start: Start, first: int) -> None:
    scene = lagging(names="abcd")
    assert isinstance(scene.host("d"), StreamRemoteHost)
    scene.host("d")._home = lambda avoid: "c"
    reader = scene.consume("d", start)
    scene.work_off()
    assert reader.answers == ([None] if start.name == "first" else [])
    scene.let("c")
    scene.wait(lambda: reader.answers == [None])
    scene.confirmed(2)
    scene.wait(lambda: len(reader.offsets) == 5 - first)
    assert reader.offsets == list(range(first, 5))
    scene.finish()


def test_messages_after_consume_ok_are_not_skipped_while_a_member_fetches_others() -> None:
    """Times and `last` need messages that this member lacks."""
    for start, first in ((LAST, 2), (Start(time_ms=1 << 60), 3)):
        scene = lagging()
        scene.let("c")
        scene.settle()
        host = scene.host("c")
        host.filling.missing[0] = 1
        reader = scene.consume("c", start)
        scene.wait(lambda: reader.answers == [None])  # noqa: B023
        assert not reader.offsets
        scene.confirmed(2)
        host.filling.missing.clear()
        scene.confirmed(1)
        scene.wait(lambda: len(reader.offsets) == 6 - first)  # noqa: B023
        assert reader.offsets == list(range(first, 6))
        scene.finish()


@pytest.mark.parametrize("node", ["c", "d"])
def test_without_a_majority_a_consumer_is_refused_in_time(node: str) -> None:
    scene = StreamScene(names="abcd")
    scene.confirmed(1)
    for name in "ab":
        scene.crash(scene.nodes[name])
    readers = [scene.consume(node, start) for start in (NEXT, LAST, Start(time_ms=1))]
    at_once = [scene.consume(node, Start(offset=0)), scene.consume(node, Start("first"))]
    scene.ticks(3)
    assert [reader.answers for reader in readers] == [[], [], []]
    assert [reader.answers for reader in at_once] == [[None], [None]]
    scene.ticks(LONG_TICKS)
    assert [reader.answers for reader in readers] == [[NO_MAJORITY]] * 3
    assert scene.host(node).consumer_count == 2
    scene.mend()
    scene.settle()
    # A later one begins.
    reader = scene.consume(node, NEXT)
    scene.wait(lambda: reader.answers == [None])
    scene.confirmed(1, "c")
    scene.wait(lambda: reader.offsets == [1])
    assert not readers[0].offsets
    scene.finish()


@pytest.mark.parametrize("node", ["c", "d"])
def test_a_client_goes_while_its_consumer_waits(node: str) -> None:
    scene = lagging(names="abcd")
    scene.hold("d")
    reader = scene.consume(node, NEXT)
    scene.work_off()
    assert not reader.answers
    scene.nodes[node].turn.run(scene.host(node).submit, ("detach", reader.key, True))
    scene.work_off()
    assert reader.answers == ["the consumer is gone"]
    scene.let("c")
    scene.let("d")
    scene.settle()
    assert scene.host(node).consumer_count == 0
    scene.confirmed(1)
    assert not reader.offsets
    scene.finish()


def test_many_consumers_share_a_question_and_begin_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = lagging()
    node = scene.nodes["c"]
    asked = 0
    begin = read_index.begin

    def counted(group: Any, done: Any) -> None:
        nonlocal asked
        asked += group.id == scene.host("a").queue_id
        begin(group, done)

    monkeypatch.setattr(read_index, "begin", counted)
    readers = [scene.consume("c", NEXT) for _ in range(300)]
    # Each turn has the time for some of them.
    node.turn._lasts_s = 3.0
    most = 0
    begin_ready = Beginnings._begin_ready

    def some(self: Beginnings) -> None:
        nonlocal most
        before = sum(bool(reader.answers) for reader in readers)
        begin_ready(self)
        most = max(most, sum(bool(reader.answers) for reader in readers) - before)

    monkeypatch.setattr(Beginnings, "_begin_ready", some)
    scene.let("c")
    scene.wait(lambda: all(reader.answers == [None] for reader in readers))
    assert 0 < asked <= 3
    assert 0 < most < 20
    scene.confirmed(1)
    scene.wait(lambda: all(reader.offsets == [3] for reader in readers))
    scene.finish()


def test_a_consumer_with_a_new_name_begins_behind_what_was_confirmed() -> None:
    scene = lagging()
    reader = scene.consume("c", Start("committed", group="n", otherwise=NEXT))
    scene.work_off()
    assert not reader.answers
    scene.let("c")
    scene.wait(lambda: reader.answers == [None])
    scene.confirmed(1)
    scene.wait(lambda: reader.offsets == [3])
    scene.finish()


def test_a_consumer_that_waits_moves_with_its_node_to_another_host() -> None:
    """The node stops being a member while a consumer waits there."""
    scene = lagging()
    reader = scene.consume("c", NEXT)
    scene.work_off()
    assert not reader.answers
    scene.propose("a", SetMembers("/", "s", scene.host("a").queue_id, ("a", "b"), "a"))
    scene.let("c")
    scene.settle()
    assert reader.answers == [None]
    assert isinstance(scene.host("c"), StreamRemoteHost)
    scene.confirmed(1)
    scene.wait(lambda: reader.offsets == [3])


# -- the management API at a node that is behind -------------------------------------------------------------


def test_a_read_through_the_api_knows_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "trio", waiting)
    scene = lagging()
    node, found = scene.nodes["c"], list[range | None]()

    async def ask() -> None:
        found.append(await by_hand._offsets(node.broker, scene.host("c")))

    task = node.run(ask())
    scene.work_off()
    assert not found
    scene.let("c")
    scene.wait(lambda: task.done)
    assert found == [range(3)]
    scene.finish()


def test_an_explanation_knows_the_policy_that_was_set_through_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers_module, "trio", waiting)
    scene = StreamScene()
    scene.lead("a")
    scene.settle()
    scene.hold("c")
    policy = '{"pattern": ".*", "definition": {"max-age": "1h"}, "apply-to": "all", "priority": 0}'
    answers = list[object]()
    change = PutParameter(ParameterRecord("/", "policy", "old", policy))
    scene.nodes["a"].turn.run(scene.nodes["a"].broker.propose, change, answers.append)
    scene.wait(lambda: bool(answers))
    node = scene.nodes["c"]
    queue = node.broker.vhost("/").queues["s"]
    assert queue.policies.policy is None
    known: list[bool] = []

    async def ask() -> None:
        await explained.catch_up(node.broker)
        known.append(queue.policies.policy is not None)

    task = node.run(ask())
    scene.ticks(2)
    assert not known
    scene.let("c")
    scene.mend()
    scene.wait(lambda: task.done)
    assert known == [True]
    scene.finish()
