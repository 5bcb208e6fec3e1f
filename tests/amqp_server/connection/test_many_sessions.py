"""Whatever concerns all connections at once is done in parts."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.access.users import User
from amqp_server.broker.declared.operations import DeleteUser
from amqp_server.connection.state import State
from tests.work import steps

from .node import Peer
from .test_slices import SlicedNode, bystander, message, method

SESSIONS = 120
#: Instructions of the longest turn: a few connections.
TURN_MAX = 60_000


def crowd(sliced: SlicedNode, user: str = "crowd") -> list[Peer]:
    sliced.broker.access.permissions.set(user, "/", ".*", ".*", ".*")
    peers = [sliced.peer(user=user, name=f"{user}{number}") for number in range(SESSIONS)]
    for number, peer in enumerate(peers):
        peer.send(method(1, commands.Channel.Open()))
        peer.send(method(1, commands.Queue.Declare(queue=f"q{number % 7}")))
    sliced.drive()
    return peers


@pytest.mark.parametrize("what", ["user", "vhost", "memory"])
def test_many_connections_are_closed_in_parts(what: str, caplog: pytest.LogCaptureFixture) -> None:
    sliced = SlicedNode(looks=12)
    broker = sliced.broker
    broker.access.users.store(User("crowd", "", ()))
    broker.access.users.store(User("admin", "", ("administrator",)))
    peers = crowd(sliced)
    between = bystander(sliced) if what != "vhost" else lambda: None
    sliced.turns.clear()
    if what == "user":
        sliced.turns.append(steps(sliced.turn.run, broker.propose, DeleteUser("crowd")))
        text = "user 'crowd' is deleted"
    elif what == "vhost":
        broker.vhost_records.store(broker.vhost_records.prepare("/", "", (), ""))
        sliced.turns.append(steps(sliced.turn.run, broker.delete_vhost, "/"))
        text = "vhost '/' is deleted"
        # A connection that is still open can use nothing there, and harms nobody.
        late = [peer for peer in peers if peer.session.state is State.RUNNING][-1]
        late.send(method(1, commands.Queue.Declare(queue="late")) + message("amq.fanout", "", b""))
        late.send(method(1, commands.Basic.Get(queue="q1")))
    else:
        sliced.turns.append(
            steps(sliced.turn.run, broker.close_sessions, [peer.session for peer in peers], "planted")
        )
        text = "planted"
    assert sliced.drive(between=between) > 3
    assert max(sliced.turns) < TURN_MAX
    sliced.sync()
    told = 0
    for peer in peers:
        closes = [answer for _, answer in peer.answers() if isinstance(answer, commands.Connection.Close)]
        told += sum(text in close.reply_text for close in closes)
        assert closes and peer.session.state is not State.RUNNING
    assert told >= len(peers) - 1
    if what == "vhost":
        assert "/" not in broker.vhosts
    assert "internal error" not in caplog.text


def test_many_connections_hear_of_the_end_of_an_alarm_in_parts() -> None:
    sliced = SlicedNode(looks=12)
    peers = crowd(sliced)
    between = bystander(sliced)
    alarms = sliced.broker.alarms
    sliced.turn.run(alarms.set, "memory", True)
    sliced.drive()
    for number, peer in enumerate(peers):
        peer.send(message("", f"q{number % 7}", b"held"))
    sliced.drive()
    assert not any(
        queue.host.ready_count for queue in sliced.broker.all_queues() if queue.name != "bystander"
    )
    sliced.turns.clear()
    sliced.turns.append(steps(alarms.set, "memory", False))
    assert sliced.drive(between=between) > 3
    assert max(sliced.turns) < TURN_MAX
    assert sum(queue.host.ready_count for queue in sliced.broker.all_queues()) == SESSIONS
    kinds: set[Any] = {type(answer) for peer in peers for _, answer in peer.answers()}
    assert {commands.Connection.Blocked, commands.Connection.Unblocked} <= kinds
