"""The type of a queue that is declared without one: the default of the node, or of the vhost."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from ..connection.node import MemoryNode, Peer

QUORUM, CLASSIC = {"x-queue-type": "quorum"}, {"x-queue-type": "classic"}


def declared(node: MemoryNode, name: str = "q") -> str:
    return node.broker.vhost("/").queues[name].type.name


def answer(peer: Peer, name: str = "q", **fields: Any) -> str:
    """Declare; return the refusal's text, or an empty one."""
    ((_, found),) = peer.call(1, commands.Queue.Declare(queue=name, **fields))
    if isinstance(found, commands.Channel.Close):
        peer.call(1, commands.Channel.CloseOk(), commands.Channel.Open())
        return found.reply_text
    assert isinstance(found, commands.Queue.DeclareOk)
    return ""


def client(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    return peer


@pytest.mark.parametrize("of_vhost", [False, True])
def test_durable_queues_get_it(of_vhost: bool) -> None:
    node = MemoryNode(default_queue_type="classic" if of_vhost else "quorum")
    if of_vhost:
        node.broker.add_vhost("/", default_queue_type="quorum")
    peer = client(node)
    assert answer(peer, durable=True) == ""
    assert declared(node) == "quorum"
    # A second declare succeeds with and without the type.
    for arguments in ({}, QUORUM):
        assert answer(peer, durable=True, arguments=arguments) == ""
    assert "inequivalent arg 'x-queue-type' for queue 'q'" in answer(peer, durable=True, arguments=CLASSIC)
    assert answer(peer, "explicit", durable=True, arguments=QUORUM) == ""
    assert answer(peer, "explicit", durable=True) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"durable": False},
        {"durable": True, "exclusive": True},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": CLASSIC},
    ],
)
def test_others_stay_classic(fields: dict[str, Any]) -> None:
    node = MemoryNode(default_queue_type="quorum")
    peer = client(node)
    for _ in range(2):
        assert answer(peer, **fields) == ""
    assert declared(node) == "classic"


def test_a_vhost_goes_before_the_node() -> None:
    node = MemoryNode(default_queue_type="quorum")
    node.broker.add_vhost("/", default_queue_type="classic")
    peer = client(node)
    assert answer(peer, durable=True) == ""
    assert declared(node) == "classic"


def test_a_queue_keeps_its_type_when_the_default_changes() -> None:
    node = MemoryNode(default_queue_type="quorum")
    peer = client(node)
    assert answer(peer, durable=True) == ""
    node.broker.add_vhost("/", default_queue_type="classic")
    assert answer(peer, durable=True) == ""
    assert answer(peer, durable=True, arguments=QUORUM) == ""
    assert declared(node) == "quorum"
    assert "x-queue-type" in answer(peer, durable=True, arguments=CLASSIC)


def test_without_a_default_the_type_has_to_be_repeated() -> None:
    node = MemoryNode()
    peer = client(node)
    assert answer(peer, durable=True, arguments=QUORUM) == ""
    assert answer(peer, durable=True) == (
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
        "received none but current is the value 'quorum' of type 'longstr'"
    )


def test_arguments_have_to_fit_the_default_type() -> None:
    node = MemoryNode(default_queue_type="quorum")
    peer = client(node)
    text = answer(peer, durable=True, arguments={"x-max-priority": 5})
    assert "invalid arg 'x-max-priority'" in text and "rabbit_quorum_queue" in text


def test_sizes_and_places_of_groups_are_read() -> None:
    node = MemoryNode()
    peer = client(node)
    wanted: dict[str, Any] = {
        "x-quorum-initial-group-size": 3,
        "x-quorum-target-group-size": 5,
        "x-queue-leader-locator": "client-local",
    }
    assert answer(peer, durable=True, arguments=QUORUM | wanted) == ""
    parsed = node.broker.vhost("/").queues["q"].parsed
    assert (parsed.initial_group_size, parsed.target_group_size, parsed.leader_locator) == (
        3,
        5,
        "client-local",
    )
    for name, value in (
        ("x-quorum-initial-group-size", 0),
        ("x-quorum-target-group-size", "3"),
        ("x-quorum-target-group-size", -1),
        ("x-queue-leader-locator", "moon"),
    ):
        assert f"invalid arg '{name}'" in answer(peer, "r", durable=True, arguments=QUORUM | {name: value})
    for name, value in wanted.items():
        text = answer(peer, "r", durable=True, arguments={name: value})
        assert f"invalid arg '{name}'" in text and "rabbit_classic_queue" in text
