"""A client that fills the memory with messages that it never finishes loses its connection, and the alarm
ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from amqp_server.connection.session import State
from amqp_server.connection.unfinished_publishes import PASSES_MAX, UnfinishedWatch

from ..wire.published import Message, header_payload, message, method, raw
from .node import MemoryNode, Peer

FRAME = 100_000
TIMEOUT_S = 10.0
MIB = 1 << 20


class Watched:
    """A node with a watch, whose memory alarm stands from now on."""

    def __init__(self, **options: Any) -> None:
        given = {
            "unfinished_timeout_s": TIMEOUT_S,
            "unfinished_bytes_kept": 2 * FRAME,
            "blocked_input_bytes_max": 2 * FRAME,
            "memory_limit": str(512 * MIB),
        }
        self.node = MemoryNode(**(given | options))
        self.behind = False
        self.watch = UnfinishedWatch(self.node.broker, lambda: self.behind)

    def peer(self, name: str = "peer", channels: int = 3) -> Peer:
        peer = self.node.peer(name=name)
        for channel in range(1, channels + 1):
            peer.call(channel, commands.Channel.Open())
        peer.call(1, commands.Queue.Declare(queue="q"))
        peer.answers()
        return peer

    def alarm(self, raised: bool = True) -> None:
        self.node.turn.run(self.node.broker.alarms.set, "memory", raised)

    def passes(self, seconds: float) -> None:
        node = self.node
        node.clock.now_ms += int(1000 * seconds)
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
        for peer in node.peers:
            peer.collect()

    def ready(self) -> int:
        return self.node.broker.vhost("/").queues["q"].host.ready_count


def begun(channel: int, count: int = 10) -> bytes:
    """A message of this many frames, none of which has come yet."""
    publish = Message(b"", b"q", 0, header_payload({}, count * FRAME), b"", ())
    return b"".join(publish.frames(channel))


def part(channel: int, count: int = 1) -> bytes:
    return raw(3, channel, b"x" * FRAME) * count


def closed(peer: Peer) -> commands.Connection.Close | None:
    for _, each in peer.answers():
        if isinstance(each, commands.Connection.Close):
            return each
    return None


def contents(peer: Peer) -> None:
    for channel in (1, 2, 3):
        peer.send(begun(channel) + part(channel, 9))


def transactions(peer: Peer) -> None:
    for channel in (1, 2, 3):
        peer.call(channel, commands.Tx.Select())
        peer.send(message("", "q", b"x" * FRAME).encode(channel) * 9)
    peer.answers()


@pytest.mark.parametrize("fill", [contents, transactions])
def test_a_silent_connection_is_closed_and_others_stay(
    fill: Callable[[Peer], None], caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    silent, other = watched.peer("silent"), watched.peer("other")
    fill(silent)
    # Less than a connection may keep for any time.
    other.send(begun(1) + part(1))
    watched.alarm()
    watched.passes(TIMEOUT_S - 0.1)
    assert silent.session.state is State.RUNNING
    watched.passes(0.1)
    # From now on the client must make progress.
    assert silent.session.state is State.RUNNING
    with caplog.at_level(logging.ERROR):
        watched.passes(TIMEOUT_S)
    said = closed(silent)
    assert said is not None and said.reply_code == 506
    assert "unfinished messages" in said.reply_text and "memory alarm" in said.reply_text
    assert [record for record in caplog.records if "unfinished messages" in record.getMessage()]
    assert silent.session.incoming.unfinished.bytes == 0
    for _ in range(3):
        watched.passes(TIMEOUT_S)
    assert other.session.state is State.RUNNING
    watched.alarm(False)
    other.send(part(1, 9))
    assert watched.ready() == 1


def test_a_client_that_the_alarm_stopped_is_read_and_finishes() -> None:
    watched = Watched()
    peer = watched.peer()
    for channel in (1, 2, 3):
        peer.send(begun(channel) + part(channel, 3))
    watched.alarm()
    for _ in range(3):
        peer.send(*(part(channel) for channel in (1, 2, 3)))
    incoming = peer.session.incoming
    assert incoming.stalled
    watched.passes(TIMEOUT_S)
    assert not incoming.stalled
    for _ in range(4):
        peer.send(*(part(channel) for channel in (1, 2, 3)))
    # The message is in the queue, and can leave memory from there, though the alarm stands.
    assert watched.ready() == 3
    watched.passes(TIMEOUT_S)
    assert peer.session.state is State.RUNNING
    # But no new message gets as far.
    peer.send(begun(1) + part(1, 10))
    peer.send(begun(1) + part(1, 10))
    assert incoming.stalled and watched.ready() <= 4


def test_a_transaction_is_committed_under_an_alarm() -> None:
    watched = Watched()
    peer = watched.peer()
    transactions(peer)
    watched.alarm()
    peer.send(message("", "q", b"x" * FRAME).encode(1), method(1, commands.Tx.Commit()))
    assert watched.ready() == 0
    watched.passes(TIMEOUT_S)
    assert watched.ready() == 10


def test_nobody_goes_on_for_ever() -> None:
    """A frame now and then is progress, but it does not count forever."""
    watched = Watched()
    peer = watched.peer(channels=2)
    peer.send(begun(1, 30) + part(1, 3))
    watched.alarm()
    watched.passes(TIMEOUT_S)
    rounds = 0
    while peer.session.state is State.RUNNING:
        # The client finishes other messages.
        peer.send(part(1), begun(2, 3), part(2, 2))
        peer.send(part(2))
        watched.passes(TIMEOUT_S)
        rounds += 1
        assert rounds <= PASSES_MAX + 1
    assert rounds > 3


def test_what_all_of_them_may_send_is_bounded() -> None:
    """When the allowance is used up, the largest are closed."""
    watched = Watched(memory_limit=str(128 * FRAME), message_bytes_max=64 * FRAME)
    peers = [watched.peer(f"{number}") for number in range(4)]
    for peer in peers:
        peer.send(begun(1, 60) + part(1, 3))
    watched.alarm()
    watched.passes(TIMEOUT_S)

    def unfinished() -> int:
        return sum(peer.session.incoming.unfinished.bytes for peer in peers)

    before, most = unfinished(), 0
    for _ in range(30):
        for peer in peers:
            while peer.session.state is State.RUNNING and not peer.session.incoming.stalled:
                peer.send(part(1))
        most = max(most, unfinished() - before)
        watched.passes(TIMEOUT_S)
    assert most <= 128 * FRAME // 4 + 4 * 5 * FRAME
    # The alarm has not ended.
    assert not any(peer.session.state is State.RUNNING for peer in peers) or unfinished() < before


def test_a_connection_that_waits_for_the_disk_is_not_judged() -> None:
    watched = Watched()
    peer = watched.peer()
    contents(peer)
    watched.alarm()
    watched.passes(TIMEOUT_S)
    watched.behind = True
    watched.passes(TIMEOUT_S)
    assert peer.session.state is State.RUNNING
    watched.behind = False
    watched.passes(TIMEOUT_S)
    assert peer.session.state is not State.RUNNING


def test_the_time_begins_anew_with_each_alarm() -> None:
    watched = Watched()
    peer = watched.peer()
    contents(peer)
    for _ in range(4):
        watched.alarm()
        watched.passes(TIMEOUT_S + 1)
        watched.alarm(False)
        watched.passes(TIMEOUT_S + 1)
    assert peer.session.state is State.RUNNING
    # A full disk does not concern them.
    watched.node.turn.run(watched.node.broker.alarms.set, "disk", True)
    for _ in range(4):
        watched.passes(TIMEOUT_S + 1)
    assert peer.session.state is State.RUNNING


def test_zero_turns_it_off() -> None:
    watched = Watched(unfinished_timeout_s=0)
    peer = watched.peer()
    contents(peer)
    watched.alarm()
    for _ in range(4):
        watched.passes(3_600)
    assert peer.session.state is State.RUNNING


@pytest.mark.parametrize("piece", [FRAME, 70_000], ids=["frames", "pieces"])
def test_without_an_alarm_a_connection_has_a_limit(piece: int) -> None:
    watched = Watched(unfinished_bytes_max=20 * FRAME)
    peer = watched.peer()
    for _ in range(3):
        # A finished message does not count any more.
        peer.send(begun(1) + part(1, 10))
    assert watched.ready() == 3
    data = b"".join(begun(channel) + part(channel, 9) for channel in (1, 2, 3))
    for at in range(0, len(data), piece):
        peer.send(data[at : at + piece])
    said = closed(peer)
    assert said is not None and said.reply_code == 506 and "unfinished_bytes_max" in said.reply_text
    assert watched.node.broker.services.memory.used == 3 * (
        10 * FRAME + 10 * 8 + 8 + len(header_payload({}, 1))
    )


def test_transactions_count_in_this_limit() -> None:
    watched = Watched(unfinished_bytes_max=20 * FRAME)
    peer = watched.peer()
    for channel in (1, 2, 3):
        peer.call(channel, commands.Tx.Select())
        peer.send(message("", "q", b"x" * FRAME).encode(channel) * 9)
    closes = [each for _, each in peer.answers() if isinstance(each, commands.Channel.Close)]
    assert [each.reply_code for each in closes] == [406]
    assert "unfinished_bytes_max" in closes[0].reply_text
    # The two other messages are whole.
    peer.call(1, commands.Tx.Commit())
    peer.call(2, commands.Tx.Rollback())
    assert watched.ready() == 9
    assert peer.session.incoming.unfinished.bytes == 0
