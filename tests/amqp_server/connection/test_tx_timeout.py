"""A transaction that stays open for too long is rolled back, and its channel closed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
from pamqp import base, commands

from amqp_server.broker import open_transactions
from amqp_server.broker.open_transactions import OpenTransactions
from amqp_server.broker.transactions import Producer
from amqp_server.wire.frames import method_frame
from tests.work import steps

from ..wire.published import message
from .node import MemoryNode, Peer

TIMEOUT_MS = 10_000


class Node(MemoryNode):
    def __init__(self, **options: Any) -> None:
        super().__init__(**({"tx_timeout_ms": TIMEOUT_MS} | options))

    @property
    def open(self) -> OpenTransactions:
        return self.broker.open_transactions

    def passes(self, ms: int) -> None:
        """Let time pass, and run the timers until none is due."""
        self.clock.now_ms += ms
        timers = self.broker.timers
        while (due_ms := timers.next_ms) is not None and due_ms <= self.clock.now_ms:
            self.turn.run(timers.run, self.clock.now_ms)
            while self.turn.behind:
                self.turn.run(self.turn.catch_up)
        self.sync()

    @property
    def ready(self) -> int:
        return self.broker.vhost("/").queues["q"].host.ready_count


def opened(node: MemoryNode, channel: int = 1, *, peer: Peer | None = None) -> Peer:
    peer = peer or node.peer()
    peer.call(channel, commands.Channel.Open())
    peer.call(channel, commands.Queue.Declare(queue="q"))
    peer.call(channel, commands.Tx.Select())
    return peer


def publish(peer: Peer, channel: int = 1) -> None:
    peer.send(b"".join(message("", "q", b"body").frames(channel)))


def closed(peer: Peer) -> list[tuple[int, commands.Channel.Close]]:
    return [(number, each) for number, each in peer.answers() if isinstance(each, commands.Channel.Close)]


def test_a_transaction_that_stays_open_is_rolled_back_and_its_channel_closed() -> None:
    node = Node()
    peer = opened(node)
    publish(peer)
    node.passes(TIMEOUT_MS - 1)
    # The age counts from the first publish.
    publish(peer)
    assert closed(peer) == []
    node.passes(1)
    ((number, said),) = closed(peer)
    assert (number, said.reply_code, said.class_id, said.method_id) == (1, 406, 0, 0)
    assert said.reply_text == (
        "PRECONDITION_FAILED - the transaction has been open for 10000 ms, and is rolled back: it may stay "
        "open for 10000 ms (tx_timeout_ms)"
    )
    assert node.ready == 0 and len(node.open) == 0
    # The connection goes on.
    peer.call(1, commands.Channel.CloseOk())
    opened(node, peer=peer)
    publish(peer)
    assert any(isinstance(each, commands.Tx.CommitOk) for _, each in peer.call(1, commands.Tx.Commit()))
    assert node.ready == 1


def test_acks_of_a_transaction_that_is_too_old_are_undone() -> None:
    node = Node()
    plain = node.peer()
    plain.call(1, commands.Channel.Open())
    peer = opened(node)
    publish(plain)
    peer.call(1, commands.Basic.Get(queue="q"))
    peer.call(1, commands.Basic.Ack(delivery_tag=1))
    node.passes(TIMEOUT_MS)
    assert len(closed(peer)) == 1
    assert node.ready == 1


@pytest.mark.parametrize("end", [commands.Tx.Commit, commands.Tx.Rollback])
def test_the_age_begins_anew_after_each_end(end: Callable[[], base.Frame]) -> None:
    node = Node()
    peer = opened(node)
    for _ in range(5):
        publish(peer)
        assert len(node.open) == 1
        node.passes(TIMEOUT_MS - 1)
        peer.call(1, end())
        assert len(node.open) == 0
    # A channel in tx mode has no transaction before it publishes or acks.
    node.passes(10 * TIMEOUT_MS)
    assert closed(peer) == []


def test_without_a_limit_a_transaction_may_stay_open() -> None:
    node = Node(tx_timeout_ms=0)
    peer = opened(node)
    publish(peer)
    node.passes(1_000_000_000)
    assert closed(peer) == [] and len(node.open) == 1


def test_a_commit_that_waits_for_the_disk_is_not_ended() -> None:
    node = Node()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q", durable=True))
    peer.call(1, commands.Tx.Select())
    peer.answers()
    peer.send(b"".join(message("", "q", b"body", delivery_mode=b"\x02").frames(1)))
    peer.send(method_frame(1, commands.Tx.Commit()))
    node.clock.now_ms += 2 * TIMEOUT_MS
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    assert peer.answers() == []
    node.sync()
    assert [type(each) for _, each in peer.answers()] == [commands.Tx.CommitOk]
    assert node.ready == 1


@pytest.mark.pure
def test_a_client_that_waits_for_an_answer_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ack timeouts do: the channel closes when the method that came before is answered."""
    node = Node()
    waiting, other = opened(node), opened(node)
    publish(waiting)
    publish(other)
    waiting.session.suspended = object()  # type: ignore[assignment]
    node.passes(TIMEOUT_MS)
    # The younger one does not wait for the older one.
    assert closed(waiting) == [] and len(closed(other)) == 1
    assert len(node.open) == 1
    (late,) = node.open.all()
    assert node.open.find(node.open.name_of(late)) is late
    waiting.session.suspended = None
    node.passes(open_transactions.AGAIN_MS)
    ((_, said),) = closed(waiting)
    assert "open for 11000 ms" in said.reply_text
    assert len(node.open) == 0


@pytest.mark.pure
def test_a_transaction_that_waited_may_be_committed_meanwhile() -> None:
    node = Node()
    peer = opened(node)
    publish(peer)
    peer.session.suspended = object()  # type: ignore[assignment]
    node.passes(TIMEOUT_MS)
    peer.session.suspended = None
    peer.call(1, commands.Tx.Commit())
    node.passes(open_transactions.AGAIN_MS)
    assert closed(peer) == [] and node.ready == 1 and len(node.open) == 0


@pytest.mark.parametrize("how", ["channel", "connection", "lost", "too much"])
def test_nothing_keeps_a_channel_that_has_closed(how: str) -> None:
    node = Node(tx_bytes_max=2_000)
    peer = opened(node)
    publish(peer)
    channel = weakref.ref(peer.session.channels[1])
    if how == "channel":
        peer.call(1, commands.Channel.Close(200, "", 0, 0))
    elif how == "connection":
        peer.call(0, commands.Connection.Close(200, "", 0, 0))
    elif how == "lost":
        node.turn.run(peer.session.lost)
    else:
        peer.send(b"".join(message("", "q", bytes(3_000)).frames(1)))
        assert len(closed(peer)) == 1
    assert len(node.open) == 0
    peer.call(1, commands.Channel.CloseOk()) if how == "too much" else None
    del peer
    node.peers.clear()
    gc.collect()
    assert channel() is None
    node.passes(2 * TIMEOUT_MS)


# -- very many ---------------------------------------------------------------------------------------------

MANY = 10_000


class Many:
    """Open transactions without clients."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ended: list[int] = []

    def begin(self) -> One:
        one = One(self)
        self.node.open.add(one)
        return one


class One:
    number = since_ms = published_count = published_bytes = settled_count = 0
    channel: Any = None
    producer: Producer | None = None

    def __init__(self, many: Many) -> None:
        self._many = many

    def why_shut_out(self) -> None:
        return None

    def participants(self) -> list[str]:
        return []

    def end(self, error: Exception) -> bool:
        self._many.ended.append(self.number)
        return True


def work_with(count: int) -> list[int]:
    """Return how many instructions it takes with so many open transactions to begin one, to commit another
    one, to look when none is too old, and to end the first ones, in one step.
    """
    node = Node()
    many = Many(node)
    ones = [many.begin() for _ in range(count)]
    found = [steps(many.begin)]
    found.append(steps(node.open.remove, ones[count // 2]))
    # The oldest ones are gone: whoever looks for the oldest finds it at once.
    for one in ones[: count // 4]:
        node.open.remove(one)
    found.append(steps(node.open.wake))
    node.clock.now_ms += TIMEOUT_MS
    found.append(steps(node.open.wake))
    assert len(many.ended) == open_transactions.ENDED_AT_ONCE
    return found


@pytest.mark.pure
def test_no_step_grows_with_the_number_of_open_transactions() -> None:
    few, very_many = work_with(100), work_with(MANY)
    assert all(much <= little * 1.2 + 50 for little, much in zip(few, very_many, strict=True)), (
        few,
        very_many,
    )


def test_one_timer_serves_all_transactions() -> None:
    node = Node()
    many = Many(node)
    before = len(node.broker.timers)
    ones = [many.begin() for _ in range(MANY)]
    assert len(node.broker.timers) <= before + 1
    node.passes(TIMEOUT_MS // 2)
    for one in ones[:-1]:
        node.open.remove(one)
    node.passes(TIMEOUT_MS // 2 - 1)
    assert many.ended == []
    node.passes(1)
    assert many.ended == [MANY]


def test_very_many_that_are_too_old_end_in_many_turns_in_the_order_of_their_ages() -> None:
    node = Node()
    many = Many(node)
    for _ in range(1_000):
        many.begin()
    node.clock.now_ms += TIMEOUT_MS
    turns = 0
    while len(many.ended) < 1_000:
        before = len(many.ended)
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        assert len(many.ended) - before <= open_transactions.ENDED_AT_ONCE
        node.clock.now_ms += open_transactions.NEXT_MS
        turns += 1
        assert turns <= 1_000
    assert many.ended == list(range(1, 1_001))


def test_a_name_of_an_earlier_start_means_no_transaction_of_this_one() -> None:
    node = Node()
    one = Many(node).begin()
    name = node.open.name_of(one)
    assert cast(Any, node.open.find(name)) is one
    later = Node()
    later.clock.shift_ms += 1
    clock_moved = OpenTransactions("n", 1, later.clock, later.broker.timers, lambda: False)
    clock_moved.add(one)
    assert clock_moved.find(name) is None
    for wrong in ("", "1", name[:-1], f"{name}x", f"{name}²", name + "0" * 30):
        assert node.open.find(wrong) is None


def bystander_work(count: int) -> tuple[int, int]:
    """Return the instructions of a bystander's transaction beside so many open ones of another client, and
    the most that one turn takes when all of them are too old.
    """
    node = Node(channels_max=2 * MANY)
    peer = node.peer()
    peer.session.tuned(131_072, 2 * MANY, 0)
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    for first in range(2, count + 2, 500):
        channels = range(first, min(first + 500, count + 2))
        peer.send(
            *(
                method_frame(channel, each)
                for channel in channels
                for each in (commands.Channel.Open(), commands.Tx.Select())
            ),
            *(part for channel in channels for part in message("", "q", b"body").frames(channel)),
        )
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
    assert len(node.open) == count
    node.clock.now_ms += TIMEOUT_MS // 2
    bystander = opened(node)
    peer.reads = False

    def commits() -> None:
        publish(bystander)
        bystander.send(method_frame(1, commands.Tx.Commit()))

    commits()
    work = steps(commits)
    publish(bystander)
    node.clock.now_ms += TIMEOUT_MS // 2
    most = 0
    while len(node.open) > 1:
        before = len(node.open)
        most = max(most, steps(node.turn.run, node.broker.timers.run, node.clock.now_ms))
        assert 0 < before - len(node.open) <= open_transactions.ENDED_AT_ONCE
        while node.turn.behind:
            most = max(most, steps(node.turn.run, node.turn.catch_up))
        node.clock.now_ms += 1
    bystander.answers()
    assert any(isinstance(each, commands.Tx.CommitOk) for _, each in bystander.call(1, commands.Tx.Commit()))
    assert node.ready == 3
    return work, most


@pytest.mark.pure
def test_a_bystander_does_not_notice_very_many_open_transactions() -> None:
    few, very_many = bystander_work(64), bystander_work(MANY)
    assert all(much <= little * 1.2 for little, much in zip(few, very_many, strict=True)), (few, very_many)
