"""The order of what one turn sends: answers to publishers, returns, and deliveries."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.wire import frames

from .node import Delivery, MemoryNode, Peer
from .test_slices import message, method


def unroutable() -> bytes:
    publish = commands.Basic.Publish(routing_key="nowhere", mandatory=True)
    header = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0"
    return (
        method(1, publish)
        + frames.raw_frame(frames.HEADER, 1, header)
        + frames.raw_frame(frames.BODY, 1, b"m")
    )


def confirming(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Confirm.Select(), commands.Queue.Declare(queue="q"))
    return peer


def said(answer: base.Frame | Delivery) -> Any:
    if isinstance(answer, Delivery):
        return answer.method.name.removeprefix("Basic.")
    assert isinstance(answer, commands.Basic.Ack)
    return (answer.delivery_tag, answer.multiple)


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ("r", [(1, False)]),
        ("u", ["Return", (1, False)]),
        ("ru", [(1, False), "Return", (2, False)]),
        ("ur", ["Return", (1, False), (2, False)]),
        ("rrru", [(3, True), "Return", (4, False)]),
        ("uuu", ["Return", (1, False), "Return", (2, False), "Return", (3, False)]),
        ("rr", [(2, True)]),
    ],
)
def test_returns_and_acks(published: str, expected: list[Any]) -> None:
    peer = confirming(MemoryNode())
    peer.send(b"".join(message("", "q") if kind == "r" else unroutable() for kind in published))
    assert [said(answer) for _, answer in peer.answers()] == expected


@pytest.mark.parametrize("published", ["rur", "ruru", "urrurur"])
def test_no_ack_of_a_returned_message_counts_for_others(published: str) -> None:
    peer = confirming(MemoryNode())
    peer.send(b"".join(message("", "q") if kind == "r" else unroutable() for kind in published))
    answers = [said(answer) for _, answer in peer.answers()]
    returned = [number for number, kind in enumerate(published, 1) if kind == "u"]
    assert answers.count("Return") == len(returned)
    for number in returned:
        assert (number, True) not in answers
    # Everything is answered once.
    answered: dict[int, None] = {}
    for tag, multiple in (each for each in answers if each != "Return"):
        for each in range(1, tag + 1) if multiple else (tag,):
            answered[each] = None
    assert sorted(answered) == list(range(1, len(published) + 1))


def test_the_ack_of_a_transient_message_leaves_before_its_delivery() -> None:
    """To another connection: a test of a client may look at one after the other."""
    node = MemoryNode()
    publisher, consumer = confirming(node), node.peer()
    consumer.call(1, commands.Channel.Open(), commands.Basic.Consume(queue="q", no_ack=True))
    order: list[Peer] = []
    for peer in (publisher, consumer):
        peer.flush = lambda peer=peer: order.append(peer)  # type: ignore[method-assign, misc]
    publisher.send(message("", "q"))
    assert order == [publisher, consumer]
