"""What members of consumer groups hold is taken from them while a large transaction acks it: the transaction
is whole, or nothing of it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.broker import Broker
from amqp_server.config import Config
from amqp_server.turn import NoPeers, Turn
from tests.amqp_server.connection.node import Peer, make_broker
from tests.amqp_server.connection.test_slices import message, method
from tests.amqp_server.streams.node import StreamNode
from tests.amqp_server.streams.test_consumer_groups import consume, filled, got, host, offsets, tell
from tests.amqp_server.streams.test_super_streams import opened

#: Messages that one member holds; it acks every second one.
COUNT = 540
TIMEOUT_MS = 60_000


class SlicedStreamNode(StreamNode):
    """Each look at the clock takes a while, so that a turn is over after a few of them."""

    def __init__(self, **config: Any) -> None:
        self._looks = 0
        super().__init__(**config)

    def _now(self) -> float:
        self._looks += 1
        return self._looks

    def _broker(self) -> Broker:
        commits = self._commits()
        return make_broker(
            Config(),
            self.environment,
            self.clock,
            commits,
            marks=self.marks,
            streams=self._stream_services,
            turn=Turn(commits, NoPeers(), lambda: None, now=self._now, lasts_s=1),
        )

    def drive(self) -> None:
        while self.turn.behind:
            self.turn.run(self.turn.catch_up)

    def work(self) -> None:
        for _ in range(10):
            self.drive()
            super().work()
        self.drive()


def revoke(node: SlicedStreamNode) -> None:
    permissions = node.broker.access.permissions
    permissions.set("guest", "/", ".*", ".*", "^(result|s)$")
    for peer in node.peers:
        for channel in peer.session.channels.values():
            node.turn.run(channel.check_consumers)


def time_out(node: SlicedStreamNode) -> None:
    node.clock.now_ms += TIMEOUT_MS + 1
    node.turn.run(node.broker.timers.run, node.clock.now_ms)


def reset(node: SlicedStreamNode) -> None:
    group = host(node)
    node.turn.run(group.move, [(group.readers[0], 0)])


def delete(name: str) -> Callable[[SlicedStreamNode], None]:
    def deleted(node: SlicedStreamNode) -> None:
        tell(opened(node), commands.Queue.Delete(queue=name))

    return deleted


HOW: dict[str, Callable[[SlicedStreamNode], None]] = {
    "its permission is taken away": revoke,
    "it is stuck": time_out,
    "the group is reset": reset,
    "the stream is deleted": delete("s"),
    "the group is deleted": delete("g"),
}


def begun(node: SlicedStreamNode) -> Peer:
    """Return a member that has acks and messages in a transaction."""
    peer = opened(node)
    tell(peer, commands.Queue.Declare(queue="result", durable=True))
    filled(node, peer, COUNT, x_consumer_timeout=TIMEOUT_MS)
    consume(node, peer)
    node.work()
    assert len(got(peer)) == COUNT
    tell(peer, commands.Tx.Select())
    for tag in range(1, COUNT + 1, 2):
        peer.send(message("", "result", b"%d" % tag, persistent=True) + method(1, commands.Basic.Ack(tag)))
    node.drive()
    peer.answers()
    return peer


def outcome(peer: Peer) -> bool:
    """Return whether it was committed."""
    [found] = [
        each for _, each in peer.answers() if isinstance(each, commands.Tx.CommitOk | commands.Channel.Close)
    ]
    if isinstance(found, commands.Tx.CommitOk):
        return True
    assert found.reply_code == 406 and "nothing was done" in found.reply_text, found.reply_text
    return False


@pytest.mark.parametrize("how", HOW)
def test_it_is_whole_or_nothing_of_it_is_done(how: str) -> None:
    found: set[bool] = set()
    turns = 0
    while True:
        node = SlicedStreamNode()
        peer = begun(node)
        tell(peer, commands.Tx.Commit())
        for _ in range(turns):
            node.turn.run(node.turn.catch_up)
        over = not node.turn.behind
        HOW[how](node)
        node.work()
        committed = outcome(peer)
        found.add(committed)
        queues = node.broker.vhost("/").queues
        assert queues["result"].host.ready_count == (COUNT // 2 if committed else 0), turns
        if "g" in queues and "s" in queues:
            left = set(range(COUNT)) - (set(range(0, COUNT, 2)) if committed else set())
            left = set(range(COUNT)) if how == "the group is reset" else left
            node.broker.access.permissions.set("guest", "/", ".*", ".*", ".*")
            node.turn.run(peer.session.lost)
            node.work()
            other = opened(node)
            consume(node, other)
            node.work()
            assert set(offsets(got(other))) == left, turns
        if over:
            break
        turns += 4
    assert True in found and turns > 10
