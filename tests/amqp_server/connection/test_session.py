"""The frames that a session sends, and must not send, around the end of its channels."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.connection.session import State

from ..wire.published import message, method
from .node import Delivery, MemoryNode, Peer

DURABLE: dict[str, Any] = {"delivery_mode": b"\x02"}


def names(answers: list[tuple[int, base.Frame | Delivery]]) -> list[str]:
    return [answer.name if isinstance(answer, base.Frame) else answer.method.name for _, answer in answers]


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def node(request: pytest.FixtureRequest) -> MemoryNode:
    return MemoryNode(switch_fast_path=request.param)


def confirming(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(
        1, commands.Channel.Open(), commands.Confirm.Select(), commands.Queue.Declare(queue="q", durable=True)
    )
    peer.answers()
    return peer


def test_no_confirm_after_close_ok(node: MemoryNode) -> None:
    """The client does not know the channel any more, and some clients close the connection when they get a
    frame on it.
    """
    peer = confirming(node)
    peer.send(message(**DURABLE).encode(1), method(1, commands.Channel.Close(200, "", 0, 0)))
    node.sync()
    assert names(peer.answers()) == ["Channel.CloseOk"]
    assert len(node.contents()["q"]) == 1


def test_no_confirm_after_an_error(node: MemoryNode) -> None:
    peer = confirming(node)
    peer.send(message(**DURABLE).encode(1), method(1, commands.Basic.Ack(77)))
    node.sync()
    assert names(peer.answers()) == ["Channel.Close"]


def test_a_number_that_is_opened_again_starts_anew(node: MemoryNode) -> None:
    peer = confirming(node)
    peer.send(
        message(**DURABLE).encode(1),
        method(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Confirm.Select()),
        message().encode(1),
    )
    node.sync()
    answers = peer.answers()
    assert names(answers) == ["Channel.CloseOk", "Channel.OpenOk", "Confirm.SelectOk", "Basic.Ack"]
    ack = answers[-1][1]
    assert isinstance(ack, commands.Basic.Ack) and ack.delivery_tag == 1


def test_an_error_in_the_same_read_rolls_back(node: MemoryNode) -> None:
    """Whatever closed the channel, the messages published in its transaction are gone."""
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"), commands.Tx.Select())
    peer.answers()
    too_large = message().frames(1)
    too_large[1] = too_large[1].replace((4).to_bytes(8, "big"), (1 << 40).to_bytes(8, "big"))
    peer.send(message().encode(1), too_large[0], too_large[1])
    node.sync()
    assert names(peer.answers()) == ["Channel.Close"]
    assert node.contents()["q"] == []


def test_an_error_during_an_alarm_rolls_back(node: MemoryNode) -> None:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"), commands.Tx.Select())
    peer.answers()
    node.broker.alarms.set("memory", True)
    peer.send(message().encode(1), method(1, commands.Basic.Ack(77)))
    node.broker.alarms.set("memory", False)
    node.turn.run(peer.session.alarm_changed)
    node.sync()
    assert names(peer.answers()) == ["Connection.Blocked", "Channel.Close", "Connection.Unblocked"]
    assert node.contents()["q"] == []


def test_content_on_two_channels_may_alternate(node: MemoryNode) -> None:
    """A method of another channel is answered although a content is incomplete (spec 4.2.6: no channel
    waits).
    """
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    peer.answers()
    publish, *content = message().frames(1)
    peer.send(publish)
    peer.send(method(2, commands.Channel.Open()))
    assert names(peer.answers()) == ["Channel.OpenOk"]
    peer.send(content[0])
    peer.send(method(2, commands.Queue.Declare(queue="q", passive=True)))
    assert names(peer.answers()) == ["Queue.DeclareOk"]
    peer.send(content[1])
    assert len(node.contents()["q"]) == 1


@pytest.mark.parametrize("reads", [1, 2])
def test_a_close_behind_an_error_is_answered(node: MemoryNode, reads: int) -> None:
    """Both sides close at the same time; the client must not wait for an answer until it gives up."""
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.answers()
    parts = [
        method(1, commands.Basic.Publish(0, "", "q", False, True)),
        method(0, commands.Connection.Close(200, "", 0, 0)),
    ]
    for part in parts if reads == 2 else [b"".join(parts)]:
        peer.send(part)
    assert names(peer.answers()) == ["Connection.Close", "Connection.CloseOk"]
    assert peer.session.state is State.CLOSED


def test_a_closed_session_leaves_nothing(node: MemoryNode) -> None:
    broker = node.broker
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="mine", exclusive=True))
    peer.call(
        1,
        commands.Basic.Consume(queue="mine"),
        commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True),
    )
    peer.send(message(routing_key="mine").encode(1))
    assert (len(broker.sessions), len(broker.replies), broker.counts.queues, broker.counts.channels) == (
        1,
        1,
        1,
        1,
    )
    node.turn.run(peer.session.lost)
    assert (len(broker.sessions), len(broker.replies), broker.counts.queues, broker.counts.channels) == (
        0,
        0,
        0,
        0,
    )
    assert broker.services.memory.used == 0
    assert not broker.turn.scheduled
