"""No client's work makes a turn long: it is done a part at a time, and others have their turns in between.

Here time goes on with each look at the clock, so a turn is over after a fixed number of looks.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from pamqp import base, commands, header

from amqp_server.config import Config
from amqp_server.connection.state import State
from amqp_server.turn import SCHEDULED_MAX, NoPeers, Turn
from amqp_server.wire import frames
from tests.amqp_server.connection.node import Commits, Delivery, MemoryNode, Peer, make_broker
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment
from tests.work import steps

#: Looks at the clock within one turn.
LOOKS = 5
#: Instructions of the longest turn, however much a client asks for.
TURN_MAX = 100_000


class SlicedNode(MemoryNode):
    """A node whose turns are over after some looks at the clock. The driver's turns come when the test says
    so.
    """

    def __init__(self, looks: int = LOOKS, **options: Any) -> None:
        self.environment = environment = MemoryEnvironment()
        self.clock = ManualClock(5_000_000, 1_700_000_000_000)
        commits = Commits(environment)
        self._looks = 0
        turn = Turn(commits, NoPeers(), lambda: None, now=self._now, lasts_s=looks)
        self.broker = make_broker(Config(**options), environment, self.clock, commits, turn=turn)
        self.turn = turn
        self.broker.add_vhost("/")
        self.broker.access.permissions.set("guest", "/", ".*", ".*", ".*")
        self.peers: list[Peer] = []
        #: Instructions of each turn of `drive`.
        self.turns: list[int] = []

    def _now(self) -> float:
        self._looks += 1
        return self._looks

    def drive(self, *, between: Any = lambda: None, most: int = 100_000) -> int:
        """Run the driver's turns until nothing is left; return how many there were."""
        count = 0
        while self.turn.behind:
            self.turns.append(steps(self.turn.run, self.turn.catch_up))
            between()
            count += 1
            assert count < most
        self.sync()
        return count

    def sync(self) -> None:
        self.turn.run(self.environment.flush)
        for peer in self.peers:
            peer.collect()

    def feed(self, peer: Peer, data: bytes) -> None:
        """Send one read, and count it among the turns."""
        self.turns.append(steps(peer.send, data))


def method(channel: int, *methods: base.Frame) -> bytes:
    return b"".join(frames.method_frame(channel, each) for each in methods)


def message(exchange: str, routing_key: str, body: bytes = b"m", *, persistent: bool = False) -> bytes:
    head = commands.Basic.Publish(exchange=exchange, routing_key=routing_key)
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + (b"\x10\0\2" if persistent else b"\0\0")
    return (
        method(1, head) + frames.raw_frame(frames.HEADER, 1, header) + frames.raw_frame(frames.BODY, 1, body)
    )


@pytest.fixture
def sliced() -> SlicedNode:
    return SlicedNode()


def opened(sliced: SlicedNode) -> Peer:
    peer = sliced.peer()
    called(peer, commands.Channel.Open())
    return peer


def called(peer: Peer, *methods: base.Frame) -> list[base.Frame | Delivery]:
    assert isinstance(peer.node, SlicedNode)
    peer.send(method(1, *methods))
    peer.node.drive()
    return [answer for _, answer in peer.answers()]


def declared(peer: Peer, count: int, exchange: str = "amq.fanout", **arguments: Any) -> list[str]:
    names = [f"q{number}" for number in range(count)]
    called(peer, *(commands.Queue.Declare(queue=name, arguments=arguments) for name in names))
    called(peer, *(commands.Queue.Bind(queue=name, exchange=exchange) for name in names))
    return names


def bystander(sliced: SlicedNode) -> Any:
    """Return a call by which another client publishes, and gets its message in the same turn."""
    other = opened(sliced)
    called(other, commands.Queue.Declare(queue="bystander"))
    called(other, commands.Basic.Consume(queue="bystander", no_ack=True))

    def publish() -> None:
        other.send(message("", "bystander", b"hello"))
        (_, delivery), *more = other.answers()
        assert isinstance(delivery, Delivery) and delivery.body == b"hello" and not more

    return publish


def depths(sliced: SlicedNode) -> dict[str, int]:
    """Return how many ready messages queues have, also of a transaction that nobody sees yet."""
    hosts: dict[str, Any] = {queue.name: queue.host for queue in sliced.broker.all_queues()}
    return {name: host.machine.ready.count for name, host in hosts.items()}


def test_a_flood_of_methods_is_answered_in_parts_and_in_order(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    sliced.turns.clear()
    flood = b"".join(
        method(1, commands.Queue.Declare(queue="q", passive=True)) + message("", "q") for _ in range(200)
    )
    sliced.feed(peer, flood)
    assert peer.session.unfinished
    assert sliced.drive(between=publish) > 10
    counts = [answer.message_count for _, answer in peer.answers()]  # type: ignore[union-attr]
    assert counts == list(range(200))
    assert depths(sliced)["q"] == 200
    assert not peer.session.unfinished
    assert max(sliced.turns) < TURN_MAX


def test_messages_for_many_queues_are_handed_over_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    names = declared(peer, 400)
    publish = bystander(sliced)
    called(peer, commands.Confirm.Select())
    sliced.turns.clear()
    sliced.feed(peer, message("amq.fanout", "a") * 30 + message("amq.fanout", "b", b"last") * 20)
    assert peer.session.unfinished
    assert sliced.drive(between=publish) > 10
    found = depths(sliced)
    assert {found[name] for name in names} == {50}
    bodies = [content[1] for content in sliced.contents()["q7"]]
    assert [body[-5:-1] for body in bodies[-20:]] == [b"last"] * 20
    confirmed = [answer.delivery_tag for _, answer in peer.answers()]  # type: ignore[union-attr]
    assert confirmed[-1] == 50
    assert max(sliced.turns) < TURN_MAX


def test_who_shares_a_turn_with_a_wide_fanout_waits_for_few_of_its_queues(sliced: SlicedNode) -> None:
    peer, other = opened(sliced), opened(sliced)
    names = declared(peer, 600)
    called(other, commands.Queue.Declare(queue="bystander"))
    called(other, commands.Basic.Consume(queue="bystander", no_ack=True))
    other.answers()
    turn = sliced.turn

    def both() -> None:
        # This is how the poller serves light connections.
        for each, data in (
            (peer, message("amq.fanout", "a") * 20),
            (other, message("", "bystander", b"hello")),
        ):
            turn.take(each.session, data, alone=False)
        turn.extend()
        turn.apply()

    turn.run(both)
    busy: list[int] = []

    def between() -> None:
        other.collect()
        if not busy and other.answers():
            now = depths(sliced)
            busy.append(sum(1 for name in names if now[name]))

    sliced.drive(between=between)
    assert busy and busy[0] <= 2 * SCHEDULED_MAX
    assert set(depths(sliced).values()) == {0, 20}


def with_headers(count: int, number: int) -> bytes:
    """A message with this many headers, whose values no other message has."""
    properties: Any = commands.Basic.Properties(headers={f"k{each}": f"{number}" for each in range(count)})
    content = header.ContentHeader(0, 0, properties).marshal()
    publish = commands.Basic.Publish(exchange="amq.headers", routing_key="")
    return method(1, publish) + frames.raw_frame(frames.HEADER, 1, content)


def test_messages_with_many_headers_are_taken_in_parts(sliced: SlicedNode) -> None:
    """Each message has a shape of its own."""
    peer = opened(sliced)
    declared(peer, 1, exchange="amq.headers")
    publish = bystander(sliced)
    sliced.turns.clear()
    sliced.feed(peer, b"".join(with_headers(1_500 + number, number) for number in range(40)))
    assert peer.session.unfinished
    assert sliced.drive(between=publish) > 3
    assert depths(sliced)["q0"] == 40
    one = SlicedNode()
    alone = opened(one)
    declared(alone, 1, exchange="amq.headers")
    assert max(sliced.turns) < 10 * steps(alone.send, with_headers(1_539, 39))


def test_messages_that_many_bindings_may_be_about_are_routed_in_parts(sliced: SlicedNode) -> None:
    """All messages have one shape, and its bindings are walked once."""
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    bind = commands.Queue.Bind(queue="q", exchange="amq.headers", arguments={"k0": "common"})
    called(peer, bind)
    read = []
    for number in range(100):
        properties: Any = commands.Basic.Properties(headers={"k0": "common", "own": f"{number:04}"})
        content = header.ContentHeader(0, 0, properties).marshal()
        publish = commands.Basic.Publish(exchange="amq.headers", routing_key="")
        read.append(method(1, publish) + frames.raw_frame(frames.HEADER, 1, content))
    sliced.feed(peer, b"".join(read))
    found = [depths(sliced)["q"]]
    sliced.drive(between=lambda: found.append(depths(sliced)["q"]))
    assert found[-1] == 100
    assert max(after - before for before, after in pairwise([0, *found])) <= LOOKS + 1


def test_a_long_read_of_publishes_is_taken_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    declared(peer, 1)
    publish = bystander(sliced)
    bodies = [b"%06d" % number + bytes(number) for number in (*range(3_000), 131_000, 262_143, 7)]
    frame_max = peer.session.limits.frame_max - 8
    contents = [
        message("amq.fanout", "a", body) if len(body) <= frame_max else message("amq.fanout", "b")
        for body in bodies
    ]
    sliced.feed(peer, b"".join(contents))
    assert peer.session.unfinished
    assert sliced.drive(between=publish) > 3
    stored = [content[1] for content in sliced.contents()["q0"]]
    assert len(stored) == len(bodies)
    for body, framed in zip(bodies, stored, strict=True):
        assert body in framed or len(body) > frame_max


@pytest.mark.parametrize(
    "error",
    [
        method(1, commands.Queue.Declare(queue="missing", passive=True)),
        method(1, commands.Basic.Ack(delivery_tag=77)),
        message("missing", ""),
        method(1, commands.Basic.Publish(exchange="amq.fanout", routing_key=""))
        + frames.raw_frame(frames.HEADER, 1, b"\0\x3c\0\0" + (1 << 60).to_bytes(8, "big") + b"\0\0"),
        b"\x01\0\1\0\0\0\4\0\0\0\0!",
        method(0, commands.Connection.Close(0, "", 0, 0)),
    ],
    ids=["method", "ack", "publish", "too large", "frame", "close"],
)
def test_what_was_published_before_an_error_is_handed_over_in_parts_too(
    sliced: SlicedNode, error: bytes
) -> None:
    peer = opened(sliced)
    names = declared(peer, 200)
    sliced.turns.clear()
    sliced.feed(peer, message("amq.fanout", "") * 20 + message("amq.fanout", "b") * 20 + error)
    assert peer.session.unfinished
    sliced.drive()
    found = depths(sliced)
    assert {found[name] for name in names} == {40}
    answers = [answer for _, answer in peer.answers()]
    assert [type(answer).__name__ for answer in answers] in (["Close"], ["CloseOk"])
    assert peer.session.state is not State.RUNNING or peer.session.channels[1].closing
    assert max(sliced.turns) < TURN_MAX


def test_a_client_that_waits_for_its_queues_is_not_read(sliced: SlicedNode) -> None:
    """Otherwise it would fill the memory with commands that queues have not applied yet."""
    peer = opened(sliced)
    declared(peer, 60)
    sliced.feed(peer, message("amq.fanout", ""))
    assert peer.session.unfinished
    assert sliced.drive() > 1
    assert not peer.session.unfinished


def test_a_transaction_is_applied_as_a_whole(sliced: SlicedNode) -> None:
    """So all of it reaches the disk at once."""
    peer = opened(sliced)
    names = declared(peer, 100)
    called(peer, commands.Tx.Select())
    peer.send(message("amq.fanout", ""))
    sliced.drive()
    peer.send(method(1, commands.Tx.Commit()))
    found = depths(sliced)
    assert {found[name] for name in names} == {1}


def test_dead_letters_leave_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    arguments: Any = {"x-dead-letter-exchange": "amq.fanout"}
    called(peer, commands.Queue.Declare(queue="source", durable=True, arguments=arguments))
    names = declared(peer, 5)
    called(peer, commands.Basic.Consume(queue="source"))
    for _ in range(10):
        peer.send(message("", "source") * 100)
        sliced.drive()
    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    assert sliced.drive(between=publish) > 10
    found = depths(sliced)
    assert {found[name] for name in names} == {1_000}
    assert max(sliced.turns) < 2 * TURN_MAX


def test_a_dead_letter_to_many_queues_goes_in_parts(sliced: SlicedNode) -> None:
    """The disk gets the dead letter in the same commit that settles the message."""
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="first", durable=True))
    called(peer, commands.Queue.Bind(queue="first", exchange="amq.fanout"))
    names = declared(peer, 800)
    called(peer, commands.Queue.Declare(queue="last", durable=True))
    called(peer, commands.Queue.Bind(queue="last", exchange="amq.fanout"))
    arguments: Any = {"x-dead-letter-exchange": "amq.fanout"}
    called(peer, commands.Queue.Declare(queue="source", durable=True, arguments=arguments))
    called(peer, commands.Basic.Consume(queue="source"))
    # More than one step takes.
    peer.send(message("", "source", persistent=True) * 10)
    sliced.drive()
    on_disk: list[tuple[int, ...]] = []
    queues = sliced.broker.vhost("/").queues

    def messages(queue_id: int) -> int:
        found = sliced.environment.queues.get(queue_id)
        if found is None:
            return 0
        return sum(count for count, *_ in found.records.values()) - sum(map(len, found.gone.values()))

    def between() -> None:
        publish()
        sliced.turn.run(sliced.environment.flush)
        on_disk.append(tuple(messages(queues[name].queue_id) for name in ("source", "first", "last")))

    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    while depths(sliced)["last"] < 10:
        # Each dead letter waits until the disk has the one before.
        assert sliced.drive(between=between) > 5
    assert {depths(sliced)[name] for name in [*names, "first", "last"]} == {10}
    assert set(on_disk) <= {(10 - sent, sent, sent) for sent in range(11)} and len(set(on_disk)) > 2
    assert max(sliced.turns) < 2 * TURN_MAX


def test_dead_letters_to_many_queues_wait_until_those_have_taken_the_last_ones(sliced: SlicedNode) -> None:
    """To hand a dead letter to a queue is quick; the work of the queue takes the time."""
    peer = opened(sliced)
    names = declared(peer, 400)
    arguments: Any = {"x-dead-letter-exchange": "amq.fanout"}
    called(peer, commands.Queue.Declare(queue="source", arguments=arguments))
    called(peer, commands.Basic.Consume(queue="source"))
    peer.send(message("", "source") * 5)
    sliced.drive()
    sliced.turns.clear()
    sliced.turn.now = lambda: 0.0
    sliced.feed(peer, method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    while depths(sliced)[names[-1]] < 5:
        assert sliced.drive() > 5
    assert {depths(sliced)[name] for name in names} == {5}
    assert max(sliced.turns) < 2 * TURN_MAX


def test_many_dead_letters_to_some_queues_wait_until_those_have_taken_the_last_ones(
    sliced: SlicedNode,
) -> None:
    peer = opened(sliced)
    names = declared(peer, 10)
    arguments: Any = {"x-dead-letter-exchange": "amq.fanout"}
    called(peer, commands.Queue.Declare(queue="source", arguments=arguments))
    called(peer, commands.Basic.Consume(queue="source"))
    peer.send(message("", "source") * 100)
    sliced.drive()
    sliced.turn.now = lambda: 0.0
    counts = [0]

    def between() -> None:
        counts.append(depths(sliced)[names[-1]])

    sliced.feed(peer, method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    between()
    sliced.drive(between=between)
    assert {depths(sliced)[name] for name in names} == {100}
    parts = [after - before for before, after in zip(counts, counts[1:], strict=False)]
    assert max(parts) * len(names) < 2 * SCHEDULED_MAX


def test_queues_that_dead_letter_to_each_other_do_it_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="end"))
    called(peer, commands.Queue.Bind(queue="end", exchange="amq.fanout"))
    arguments: dict[str, Any] = {"x-message-ttl": 1, "x-dead-letter-exchange": "amq.fanout"}
    declared(peer, 5, **arguments)
    peer.send(message("amq.fanout", ""))
    sliced.drive()
    sliced.turns.clear()
    for _ in range(10):
        sliced.clock.now_ms += 5
        sliced.turns.append(steps(sliced.turn.run, sliced.broker.timers.run, sliced.clock.now_ms))
        sliced.drive(between=publish)
    assert depths(sliced)["end"] == 326
    # Twenty dead letters with long histories, of some 1,600.
    assert max(sliced.turns) < 10 * TURN_MAX


def test_a_queue_that_is_deleted_has_sent_its_dead_letters(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="end"))
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}
    called(peer, commands.Queue.Declare(queue="source", arguments=arguments))
    called(peer, commands.Basic.Consume(queue="source"))
    peer.send(message("", "source") * 200)
    sliced.drive()
    peer.send(
        method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)),
        method(1, commands.Queue.Delete(queue="source")),
    )
    sliced.drive()
    assert depths(sliced) == {"end": 200}


@pytest.mark.parametrize("ready", [0, 1], ids=["not begun", "begun"])
def test_a_queue_that_is_deleted_has_sent_a_dead_letter_to_all_of_many_queues(
    sliced: SlicedNode, ready: int
) -> None:
    peer = opened(sliced)
    names = declared(peer, 400)
    arguments: Any = {"x-dead-letter-exchange": "amq.fanout"}
    called(peer, commands.Queue.Declare(queue="source", durable=True, arguments=arguments))
    called(peer, commands.Basic.Consume(queue="source"))
    peer.send(message("", "source", persistent=True))
    sliced.drive()
    if not ready:
        sliced.broker.services.commits.hold(lambda: None)
    peer.send(method(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
    source = sliced.broker.vhost("/").queues["source"]
    sliced.turn.run(sliced.broker.propose, source.deletion)
    if not ready:
        sliced.broker.services.commits.release()
    for _ in range(3):
        sliced.drive()
    assert depths(sliced) == dict.fromkeys(names, 1)
    # Nothing holds back the commits of the store any more.
    assert not sliced.environment.pending.held


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_a_large_rollback_and_a_large_commit_are_short(sliced: SlicedNode, order: int) -> None:
    """However many deliveries were acked one by one."""
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    peer.send(message("", "q") * 2_000)
    sliced.drive()
    called(peer, commands.Basic.Consume(queue="q"))
    called(peer, commands.Tx.Select())
    acks = b"".join(method(1, commands.Basic.Ack(tag)) for tag in range(1, 2_001)[::order])
    for end in (commands.Tx.Rollback(), commands.Tx.Commit()):
        peer.send(acks)
        sliced.drive()
        sliced.turns.clear()
        sliced.feed(peer, method(1, end))
        sliced.drive()
        assert max(sliced.turns) < TURN_MAX
    assert peer.session.channels[1].unacked.count == 0
    assert sliced.broker.vhost("/").queues["q"].host.unacked_count == 0


def held(sliced: SlicedNode, peer: Peer, count: int = 4_000) -> Any:
    """Have the channel hold messages of two queues in turn, never two in a row from the same queue; return
    the queues' hosts.
    """
    called(peer, *(commands.Queue.Declare(queue=name) for name in "qr"))
    called(peer, *(commands.Basic.Consume(queue=name, consumer_tag=f"c{n}") for n, name in enumerate("qr")))
    for number in range(count):
        peer.send(message("", "qr"[number % 2]))
    sliced.drive()
    assert len(peer.session.channels[1].unacked) == count
    peer.answers()
    queues = sliced.broker.vhost("/").queues
    return [queues[name].host for name in "qr"]


def test_a_rollback_of_acks_without_a_row_goes_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    held(sliced, peer)
    called(peer, commands.Tx.Select())
    peer.send(method(1, commands.Basic.Ack(0, multiple=True)))
    sliced.drive()
    assert peer.session.channels[1].unacked.count == 0
    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Tx.Rollback(), commands.Basic.Ack(3_999)))
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < TURN_MAX
    assert [type(answer).__name__ for _, answer in peer.answers()] == ["RollbackOk"]
    assert peer.session.channels[1].unacked.count == 3_999


@pytest.mark.parametrize("how", ["rolled back", "channel closed", "connection lost"])
def test_a_transaction_that_comes_to_nothing_is_forgotten_in_parts(sliced: SlicedNode, how: str) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    hosts = held(sliced, peer)
    called(peer, commands.Tx.Select())
    peer.send(method(1, commands.Basic.Ack(0, multiple=True)))
    sliced.drive()
    for _ in range(20):
        peer.send(message("", "q") * 500)
        sliced.drive()
    sliced.turns.clear()
    if how == "connection lost":
        sliced.turns.append(steps(sliced.turn.run, peer.session.lost))
    else:
        end = commands.Tx.Rollback() if how == "rolled back" else commands.Channel.Close(200, "", 0, 0)
        sliced.feed(peer, method(1, end))
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < TURN_MAX
    unfinished = peer.session.incoming.unfinished
    assert unfinished.bytes == 0
    if how == "rolled back":
        assert [host.unacked_count for host in hosts] == [2_000, 2_000]
    else:
        assert [(host.ready_count, host.unacked_count, host.consumer_count) for host in hosts] == [
            (2_000, 0, 0)
        ] * 2
        assert [len(host.machine.ready.levels[0].returned) for host in hosts] == [1, 1]


def test_one_ack_of_what_consumers_got_in_turn_is_one_command_for_each_queue(sliced: SlicedNode) -> None:
    """Each command goes through lists of the messages that the consumer holds."""
    for end, most in ((commands.Basic.Ack(0, multiple=True), 250), (commands.Basic.Nack(0, True, True), 520)):
        peer = opened(sliced)
        hosts = held(sliced, peer, 500)
        work = steps(peer.send, method(1, commands.Basic.Cancel("c0"), commands.Basic.Cancel("c1"), end))
        sliced.drive()
        assert [host.unacked_count for host in hosts] == [0, 0]
        assert work < 500 * most


ALL = {
    "ack": commands.Basic.Ack(0, multiple=True),
    "ack of a tag": commands.Basic.Ack(1_999, multiple=True),
    "nack": commands.Basic.Nack(0, multiple=True, requeue=True),
    "discard": commands.Basic.Nack(0, multiple=True, requeue=False),
    "recover": commands.Basic.Recover(requeue=True),
}


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("tx", [False, True], ids=["", "tx"])
def test_very_many_deliveries_are_settled_at_once_in_parts(how: str, tx: bool) -> None:
    """Later frames of the client wait until all of them are settled."""
    sliced = SlicedNode(looks=1)
    peer = opened(sliced)
    publish = bystander(sliced)
    hosts = held(sliced, peer, 2_000)
    channel = peer.session.channels[1]
    if tx:
        called(peer, commands.Tx.Select())
    sliced.turns.clear()
    left = 1 if how == "ack of a tag" else 0
    counted = commands.Queue.Declare(queue="q", passive=True)
    ends = [commands.Tx.Commit()] if tx else []
    sliced.feed(peer, method(1, ALL[how], *ends, counted))
    assert not peer.answers() and peer.session.suspended is not None
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < 3 * TURN_MAX
    answers = [answer for _, answer in peer.answers()]
    again = [each for each in answers if isinstance(each, Delivery)]
    names = [type(each).__name__ for each in answers if not isinstance(each, Delivery)]
    assert names == ["RecoverOk"] * (how == "recover") + ["CommitOk"] * tx + ["DeclareOk"]
    if how in ("nack", "recover"):
        assert [each.method.delivery_tag for each in again] == list(range(2_001, 4_001))  # type: ignore[attr-defined]
        assert channel.unacked.count == 2_000
        assert [host.unacked_count for host in hosts] == [1_000] * 2
    else:
        assert not again and channel.unacked.count == left
        assert [host.unacked_count for host in hosts] == [0, left]
    if how == "ack":
        assert channel.counted().ack == 2_000


def test_what_comes_back_in_parts_is_handed_out_in_its_old_order(sliced: SlicedNode) -> None:
    """Though their tags are in another order."""
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    called(peer, commands.Basic.Consume(queue="q"))
    for number in range(2_000):
        peer.send(message("", "q", b"%d" % number))
    called(peer, commands.Basic.Reject(1, requeue=True))
    peer.answers()
    peer.send(method(1, commands.Basic.Nack(0, multiple=True, requeue=True)))
    sliced.drive()
    bodies = [each.body for _, each in peer.answers() if isinstance(each, Delivery)]
    assert bodies == [b"%d" % number for number in range(2_000)]


def test_acks_behind_one_of_very_many_in_the_same_read(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    hosts = held(sliced, peer, 2_000)
    every = commands.Basic.Ack(1_500, multiple=True)
    peer.send(method(1, commands.Basic.Ack(1), every, commands.Basic.Ack(1_501), commands.Basic.Ack(0, True)))
    sliced.drive()
    assert [host.unacked_count for host in hosts] == [0, 0] and not peer.answers()
    called(peer, commands.Channel.Close(200, "", 0, 0))
    hosts = held(sliced, other := opened(sliced), 2_000)
    other.send(method(1, commands.Basic.Ack(1_500, multiple=True), commands.Basic.Ack(1_499)))
    sliced.drive()
    [(_, closed)] = [each for each in other.answers() if not isinstance(each[1], Delivery)]
    assert isinstance(closed, commands.Channel.Close) and closed.reply_code == 406
    assert closed.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1499"
    assert (closed.class_id, closed.method_id) == (60, 80)


def test_an_unknown_tag_beyond_very_many(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    held(sliced, peer, 2_000)
    peer.send(method(1, commands.Basic.Ack(2_001, multiple=True)))
    sliced.drive()
    [(_, closed)] = [each for each in peer.answers() if not isinstance(each[1], Delivery)]
    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_text == "PRECONDITION_FAILED - unknown delivery tag 2001"


@pytest.mark.parametrize("how", ["lost", "closed"])
def test_very_many_acks_count_though_their_client_goes(sliced: SlicedNode, how: str) -> None:
    peer = opened(sliced)
    hosts = held(sliced, peer, 2_000)
    sliced.feed(peer, method(1, commands.Basic.Ack(1_500, multiple=True)))
    if how == "lost":
        sliced.turn.run(peer.session.lost)
    else:
        peer.send(method(1, commands.Channel.Close(200, "", 0, 0)))
    sliced.drive()
    assert [(host.ready_count, host.unacked_count, host.consumer_count) for host in hosts] == [
        (250, 0, 0)
    ] * 2
    assert [type(answer).__name__ for _, answer in peer.answers()] == ["CloseOk"] * (how == "closed")


@pytest.mark.parametrize("how", ["channel closed", "channel failed", "connection lost"])
def test_very_many_unacked_deliveries_go_back_in_parts(sliced: SlicedNode, how: str) -> None:
    """And they go in front of messages that arrive meanwhile."""
    peer, other = opened(sliced), opened(sliced)
    publish = bystander(sliced)
    hosts = held(sliced, peer)
    sliced.turns.clear()
    if how == "connection lost":
        sliced.turns.append(steps(sliced.turn.run, peer.session.lost))
    elif how == "channel failed":
        sliced.feed(peer, method(1, commands.Basic.Ack(9_999)))
    else:
        sliced.feed(peer, method(1, commands.Channel.Close(200, "", 0, 0)))
        assert peer.answers() == []
    other.send(message("", "q", b"later"))
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < TURN_MAX
    if how != "connection lost":
        [(_, answer)] = peer.answers()
        assert type(answer).__name__ == ("CloseOk" if how == "channel closed" else "Close")
    assert [host.ready_count for host in hosts] == [2_001, 2_000]
    assert [(host.unacked_count, host.consumer_count) for host in hosts] == [(0, 0)] * 2
    assert [redelivered for *_, redelivered in sliced.contents()["q"]] == [True] * 2_000 + [False]


def test_the_number_of_a_channel_is_used_again_when_nothing_of_it_is_left(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    held(sliced, peer, 2_000)
    peer.send(method(1, commands.Basic.Ack(9_999)))
    again = commands.Basic.Consume(queue="q", consumer_tag="c0", no_ack=True)
    peer.send(method(1, commands.Channel.CloseOk(), commands.Channel.Open(), again))
    sliced.drive()
    closed, opened_, consuming, *deliveries = [answer for _, answer in peer.answers()]
    kinds = [type(each).__name__ for each in (closed, opened_, consuming)]
    assert kinds == ["Close", "OpenOk", "ConsumeOk"]
    redelivered = [each.method.redelivered for each in deliveries]  # type: ignore[union-attr]
    assert redelivered == [True] * 1_000


def test_very_many_messages_for_one_queue_are_committed_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="q", durable=True), commands.Tx.Select())
    for _ in range(60):
        peer.send(message("", "q", b"x" * 60, persistent=True) * 500)
        sliced.drive()
    on_disk: list[int] = []

    def between() -> None:
        publish()
        on_disk.append(stored(sliced))

    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Tx.Commit()))
    assert sliced.drive(between=between) > 2
    assert set(on_disk) <= {0, 30_000} and on_disk == sorted(on_disk) and stored(sliced) == 30_000
    assert on_disk.count(0) > 1
    assert max(sliced.turns) < 3 * TURN_MAX


def large_transaction(sliced: SlicedNode, peer: Peer) -> None:
    """Open a transaction with 300 acks of 600 messages, no two in a row, and 1,000 messages for 20 queues in
    turn.
    """
    names = [f"q{number}" for number in range(20)]
    called(peer, *(commands.Queue.Declare(queue=name, durable=True) for name in names))
    called(peer, commands.Queue.Declare(queue="source"))
    peer.send(message("", "source") * 600)
    sliced.drive()
    called(peer, commands.Basic.Consume(queue="source"))
    called(peer, commands.Tx.Select())
    peer.send(b"".join(method(1, commands.Basic.Ack(tag)) for tag in range(1, 601, 2)))
    sliced.drive()
    for _ in range(50):
        peer.send(b"".join(message("", name, persistent=True) for name in names))
        sliced.drive()


def stored(sliced: SlicedNode) -> int:
    """Return the number of messages on the disk."""
    sliced.turn.run(sliced.environment.flush)
    queues = sliced.environment.queues.values()
    return sum(count for queue in queues for count, *_ in queue.records.values())


def test_a_large_transaction_is_committed_in_parts_and_reaches_the_disk_at_once(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    large_transaction(sliced, peer)
    on_disk: list[int] = []

    def between() -> None:
        publish()
        on_disk.append(stored(sliced))

    sliced.turns.clear()
    sliced.feed(peer, method(1, commands.Tx.Commit(), commands.Queue.Declare(queue="q7", passive=True)))
    assert sliced.drive(between=between) > 3
    # Its consumers get it in the turns after that.
    assert set(on_disk) == {0, 1_000} and on_disk == sorted(on_disk) and stored(sliced) == 1_000
    assert on_disk.count(0) > 3
    commit_ok, counted = [answer for _, answer in peer.answers()]
    assert isinstance(commit_ok, commands.Tx.CommitOk)
    assert isinstance(counted, commands.Queue.DeclareOk) and counted.message_count == 50
    assert sliced.broker.vhost("/").queues["source"].host.unacked_count == 300
    assert max(sliced.turns) < 2 * TURN_MAX


def test_a_large_transaction_is_committed_though_its_client_goes(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    large_transaction(sliced, peer)
    sliced.feed(peer, method(1, commands.Tx.Commit()))
    sliced.turn.run(sliced.turn.catch_up)
    assert sliced.turn.behind
    sliced.turn.run(peer.session.lost)
    sliced.drive()
    assert stored(sliced) == 1_000
    source = sliced.broker.vhost("/").queues["source"].host
    assert (source.ready_count, source.unacked_count, source.consumer_count) == (300, 0, 0)


def test_large_transactions_are_committed_one_after_the_other(sliced: SlicedNode) -> None:
    first, second = opened(sliced), opened(sliced)
    publish = bystander(sliced)
    called(
        first, *(commands.Queue.Declare(queue=f"{name}{n}", durable=True) for name in "ab" for n in range(20))
    )
    for peer, name in ((first, "a"), (second, "b")):
        called(peer, commands.Tx.Select())
        for _ in range(50):
            peer.send(b"".join(message("", f"{name}{n}", persistent=True) for n in range(20)))
            sliced.drive()
    on_disk: list[int] = []

    def between() -> None:
        publish()
        on_disk.append(stored(sliced))

    first.send(method(1, commands.Tx.Commit()))
    second.send(method(1, commands.Tx.Commit()))
    while sliced.drive(between=between):
        pass
    assert sorted(set(on_disk)) in ([0, 1_000], [0, 1_000, 2_000])
    assert stored(sliced) == 2_000
    for peer in (first, second):
        assert [type(answer).__name__ for _, answer in peer.answers()] == ["CommitOk"]


def test_a_transaction_has_so_many_parts() -> None:
    """Other commits wait for a transaction, so the number of its parts is bounded."""
    sliced = SlicedNode(tx_parts_max=1_000)
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    called(peer, commands.Queue.Declare(queue="r"))
    called(peer, commands.Tx.Select())
    for _ in range(3):
        for _ in range(5):
            peer.send((message("", "q") + message("", "r")) * 100)
            sliced.drive()
        called(peer, commands.Tx.Commit())
    # Messages that go the same way are one part. If they alternate between several ways, there is one part
    # for each.
    peer.send(message("", "q") * 2_000 + (message("", "q") + message("", "r")) * 2_000)
    sliced.drive()
    called(peer, commands.Tx.Rollback())
    assert depths(sliced) == {"q": 1_500, "r": 1_500}
    peer.answers()
    peer.send((message("", "q") + message("", "r", persistent=True)) * 501)
    sliced.drive()
    [(_, closed)] = peer.answers()
    assert isinstance(closed, commands.Channel.Close)
    assert closed.reply_code == 406 and "tx_parts_max" in closed.reply_text
    assert depths(sliced) == {"q": 1_500, "r": 1_500}


@pytest.mark.parametrize("how", ["close", "lost"])
def test_many_exclusive_queues_go_in_parts_with_their_connection(sliced: SlicedNode, how: str) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, *(commands.Queue.Declare(queue=f"q{number}", exclusive=True) for number in range(300)))
    sliced.turns.clear()
    if how == "close":
        sliced.feed(peer, method(0, commands.Connection.Close(0, "", 0, 0)))
        # Clients expect that the queues are gone when they get the answer.
        assert len(depths(sliced)) > 200 and not peer.answers()
    else:
        sliced.turns.append(steps(sliced.turn.run, peer.session.lost))
    assert sliced.drive(between=publish) > 10
    assert list(depths(sliced)) == ["bystander"]
    assert len(peer.answers()) == (how == "close")
    assert max(sliced.turns) < TURN_MAX


def bound(peer: Peer, count: int) -> None:
    """Bind the queue "bound" to the exchange "x" this many times."""
    called(
        peer,
        commands.Exchange.Declare(exchange="x", durable=True),
        commands.Queue.Declare(queue="bound", durable=True),
        *(
            commands.Queue.Bind(queue="bound", exchange="x", routing_key=f"k{number}")
            for number in range(count)
        ),
    )


@pytest.mark.parametrize(
    "deletion", [commands.Exchange.Delete(exchange="x"), commands.Queue.Delete(queue="bound")]
)
def test_what_has_very_many_bindings_is_deleted_in_parts(sliced: SlicedNode, deletion: base.Frame) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    bound(peer, 700)
    sliced.turns.clear()
    sliced.feed(peer, method(1, deletion))
    assert not peer.answers()
    assert sliced.drive(between=publish) > 100
    assert [answer.name for _, answer in peer.answers() if isinstance(answer, base.Frame)] == [
        f"{deletion.name}Ok"
    ]
    vhost = sliced.broker.vhost("/")
    assert not vhost.router.bindings(source="x") and not vhost.router.bindings(
        destination="bound", kind="queue"
    )
    assert (vhost.router.get("x") is None) != ("bound" not in vhost.queues)
    assert max(sliced.turns) < TURN_MAX
    sliced.sync()
    assert not list(sliced.broker.metadata.items("bindings"))


def test_a_deletion_goes_on_when_its_client_is_lost(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    bound(peer, 700)
    sliced.feed(peer, method(1, commands.Exchange.Delete(exchange="x")))
    sliced.turn.run(peer.session.lost)
    sliced.drive()
    assert sliced.broker.vhost("/").router.get("x") is None
    assert sliced.broker.counts.bindings == 0


def test_others_may_change_what_is_being_deleted(sliced: SlicedNode) -> None:
    peer, other = opened(sliced), opened(sliced)
    bound(peer, 700)
    sliced.feed(peer, method(1, commands.Exchange.Delete(exchange="x")))
    others = (
        commands.Queue.Bind(queue="bound", exchange="x", routing_key="new"),
        commands.Queue.Unbind(queue="bound", exchange="x", routing_key="k699"),
        commands.Exchange.Delete(exchange="x"),
        commands.Queue.Delete(queue="bound"),
    )
    other.send(method(1, *others))
    sliced.drive()
    assert sliced.broker.vhost("/").router.get("x") is None
    assert not depths(sliced)
    assert sliced.broker.counts.bindings == 0
    assert len(other.answers()) == 4 and len(peer.answers()) == 1


def test_an_exchange_in_use_keeps_its_bindings(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    bound(peer, 600)
    [closed] = called(peer, commands.Exchange.Delete(exchange="x", if_unused=True))
    assert isinstance(closed, commands.Channel.Close) and closed.reply_code == 406
    assert sliced.broker.counts.bindings == 600


def test_a_vhost_is_deleted_in_parts(sliced: SlicedNode) -> None:
    publish = bystander(sliced)
    broker = sliced.broker
    broker.add_vhost("v")
    broker.access.permissions.set("guest", "v", ".*", ".*", ".*")
    peer = sliced.peer()
    peer.session.vhost = broker.vhost("v")
    called(peer, commands.Channel.Open())
    declared(peer, 300)
    peer.answers()
    sliced.turns = [steps(sliced.turn.run, broker.delete_vhost, "v")]
    assert sliced.drive(between=publish) > 50
    [(_, closed)] = peer.answers()
    assert isinstance(closed, commands.Connection.Close) and closed.reply_code == 320
    assert "v" not in broker.vhost_records and list(depths(sliced)) == ["bystander"]
    assert broker.counts.queues == 1 and broker.counts.bindings == 0
    assert max(sliced.turns) < TURN_MAX


def test_a_client_with_very_many_consumers_comes_and_goes(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))

    def attach(first: int) -> int:
        consumers = [commands.Basic.Consume(queue="q", consumer_tag=f"c{first + n}") for n in range(50)]
        return steps(called, peer, *consumers)

    few = attach(0)
    called(peer, *(commands.Basic.Consume(queue="q", consumer_tag=f"d{n}") for n in range(1_000)))
    assert attach(100) < 2 * few
    toggle = method(1, *(commands.Basic.Qos(prefetch_count=n % 2 + 1, global_=True) for n in range(4)))
    assert steps(peer.send, toggle) < 10_000
    began = time.thread_time()
    called(peer, commands.Channel.Close(200, "", 0, 0))
    assert time.thread_time() - began < 0.2


def test_very_many_consumers_go_in_parts(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    called(peer, *(commands.Basic.Consume(queue="q", consumer_tag=f"c{n}") for n in range(1_050)))
    peer.answers()
    sliced.turns = [steps(sliced.turn.run, peer.session.lost)]
    assert sliced.drive(between=publish) > 1
    queue = sliced.broker.vhost("/").queues["q"]
    assert queue.host.consumer_count == 0 and not queue.subscriptions
    assert max(sliced.turns) < TURN_MAX


def test_a_client_with_very_many_channels_goes(sliced: SlicedNode) -> None:
    """Messages of one channel are not given to a channel that goes next."""
    peer = opened(sliced)
    peer.session.limits.channel_max = 2_047
    called(peer, commands.Queue.Declare(queue="q"))
    numbers = range(2, 300)
    peer.send(b"".join(method(number, commands.Channel.Open()) for number in numbers))
    sliced.drive()
    peer.send(b"".join(method(number, commands.Basic.Consume(queue="q")) for number in numbers))
    sliced.drive()
    peer.send(message("", "q"))
    sliced.drive()
    assert steps(sliced.turn.run, peer.session.lost) < 300_000
    sliced.drive()
    assert [redelivered for *_, redelivered in sliced.contents()["q"]] == [True]


def consuming(
    sliced: SlicedNode, peer: Peer, channels: int, each: int, queue: str = "q", **more: Any
) -> None:
    """Open channels, each with this many consumers of one queue."""
    peer.session.limits.channel_max = 2_047
    called(peer, commands.Queue.Declare(queue=queue, **more))
    for number in range(2, channels + 2):
        peer.send(method(number, commands.Channel.Open()))
        peer.send(
            b"".join(
                method(number, commands.Basic.Consume(queue=queue, consumer_tag=f"{number}-{n}"))
                for n in range(each)
            )
        )
        sliced.drive()
    peer.answers()


@pytest.mark.parametrize("own", [0, 700], ids=["of others", "and of the channel"])
def test_very_many_consumers_are_told_in_parts_that_their_queue_is_gone(sliced: SlicedNode, own: int) -> None:
    """Consumers of the channel that deletes the queue are told after delete-ok."""
    peer = opened(sliced)
    publish = bystander(sliced)
    consuming(sliced, peer, 20, 100)
    other = opened(sliced)
    consumers = [commands.Basic.Consume(queue="q", consumer_tag=f"own{n}") for n in range(own)]
    called(other, *consumers)
    sliced.turns.clear()
    again = [commands.Queue.Declare(queue="q"), commands.Basic.Consume(queue="q", consumer_tag="own0")]
    sliced.feed(other, method(1, commands.Queue.Delete(queue="q"), *again))
    assert not other.answers()
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < 2 * TURN_MAX
    answers = [answer for _, answer in other.answers()]
    names = [type(answer).__name__ for answer in answers]
    assert names == ["DeleteOk", *["Cancel"] * own, "DeclareOk", "ConsumeOk"]
    assert [each.consumer_tag for each in answers if isinstance(each, commands.Basic.Cancel)] == [
        f"own{number}" for number in range(own)
    ]
    told = [(number, answer) for number, answer in peer.answers()]
    assert [number for number, _ in told] == [number for number in range(2, 22) for _ in range(100)]
    assert {type(answer).__name__ for _, answer in told} == {"Cancel"}
    assert not any(channel.subscriptions for channel in peer.session.channels.values())


def test_who_goes_before_it_is_told_that_its_queue_is_gone(sliced: SlicedNode) -> None:
    peer, other = opened(sliced), opened(sliced)
    consuming(sliced, peer, 20, 100)
    sliced.feed(other, method(1, commands.Queue.Delete(queue="q")))
    peer.send(method(21, commands.Basic.Cancel("21-99")), method(20, commands.Channel.Close(200, "", 0, 0)))
    sliced.drive()
    answers = peer.answers()
    assert [number for number, _ in answers].count(20) == 1
    of_last = [answer.consumer_tag for number, answer in answers if number == 21]  # type: ignore[union-attr]
    assert sorted(of_last) == sorted(f"21-{number}" for number in range(100))
    assert [type(answer).__name__ for _, answer in other.answers()] == ["DeleteOk"]


@pytest.mark.parametrize(
    ("kind", "how"),
    [("plain", "lost"), ("auto_delete", "closed"), ("exclusive", "closed"), ("exclusive", "lost")],
)
def test_a_connection_of_many_channels_ends_in_parts(sliced: SlicedNode, how: str, kind: str) -> None:
    """However little each channel has."""
    peer = opened(sliced)
    publish = bystander(sliced)
    arguments: Any = {} if kind == "plain" else {kind: True}
    consuming(sliced, peer, 53, 20, **arguments)
    peer.send(message("", "q") * 500)
    sliced.drive()
    assert sum(channel.unacked.count for channel in peer.session.channels.values()) == 500
    peer.answers()
    sliced.turns.clear()
    if how == "lost":
        sliced.turns.append(steps(sliced.turn.run, peer.session.lost))
    else:
        sliced.feed(peer, method(0, commands.Connection.Close(200, "", 0, 0)))
    assert sliced.drive(between=publish) > 2
    assert max(sliced.turns) < 2 * TURN_MAX
    queue = sliced.broker.vhost("/").queues.get("q")
    if kind == "plain":
        assert queue is not None
        assert (queue.host.ready_count, queue.host.unacked_count, queue.host.consumer_count) == (500, 0, 0)
        assert not queue.subscriptions
        assert not any(run.attempts for run in queue.host.machine.ready.runs())  # type: ignore[attr-defined]
    else:
        assert queue is None
    assert [type(answer).__name__ for _, answer in peer.answers()] == ["CloseOk"] * (how == "closed")
    assert not sliced.broker.counts.channels - 1


def test_deliveries_of_a_deleted_queue_still_count_for_its_consumers_in_parts(
    sliced: SlicedNode,
) -> None:
    peer, other = opened(sliced), opened(sliced)
    publish = bystander(sliced)
    called(peer, commands.Queue.Declare(queue="q"), commands.Queue.Declare(queue="r"))
    called(peer, commands.Basic.Qos(prefetch_count=600, global_=True))
    called(peer, *(commands.Basic.Consume(queue="q", consumer_tag=f"c{n}") for n in range(600)))
    called(peer, commands.Basic.Consume(queue="r", consumer_tag="r"))
    # Neighbours with different attributes do not form a run.
    for number in range(700):
        peer.send(message("", "q", persistent=bool(number % 2)))
        peer.send(message("", "r"))
    sliced.drive()
    window = peer.session.channels[1].window
    assert window.used == 600 and depths(sliced)["q"] + depths(sliced)["r"] == 800
    of_r = 700 - depths(sliced)["r"]
    sliced.turns.clear()
    sliced.feed(other, method(1, commands.Queue.Delete(queue="q")))
    assert sliced.drive(between=publish) > 1
    # Without parts, the turn of the deletion takes 101,000.
    assert max(sliced.turns) < 80_000
    # The client still holds them: there is no room for more of the other queue.
    assert depths(sliced)["r"] == 700 - of_r and window.used == 600


def test_consumers_of_one_channel_get_few_messages_in_one_turn(sliced: SlicedNode) -> None:
    """The consumers take turns, so each message is a delivery of its own."""
    peer, other = opened(sliced), opened(sliced)
    called(peer, commands.Queue.Declare(queue="q"))
    called(peer, *(commands.Basic.Consume(queue="q", consumer_tag=tag, no_ack=True) for tag in "ab"))
    publish = bystander(sliced)
    peer.answers()
    sliced.turns.clear()
    sliced.feed(other, message("", "q") * 3_000)
    for _ in range(10):
        sliced.turns.append(steps(sliced.turn.run, sliced.broker.timers.run, sliced.clock.now_ms))
        publish()
    # Each message takes about 1,500.
    assert max(sliced.turns) < 10 * TURN_MAX
    got = [each.method for _, each in peer.answers() if isinstance(each, Delivery)]
    assert [each.delivery_tag for each in got] == list(range(1, 3_001))  # type: ignore[attr-defined]
    assert {each.consumer_tag for each in got[:3]} == {"a", "b"}  # type: ignore[attr-defined]
