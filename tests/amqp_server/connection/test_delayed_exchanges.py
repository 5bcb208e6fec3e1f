"""An exchange of type x-delayed-message has the rules of the type by which it routes."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands, encode

from amqp_server.wire import frames
from tests.amqp_server.connection.node import MemoryNode, Peer
from tests.amqp_server.wire.published import message


def delaying(kind: str, **options: object) -> Peer:
    """A channel, with queue q and an exchange e that delays and routes like this."""
    peer = MemoryNode(**options).peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))
    arguments: dict[str, Any] = {"x-delayed-type": kind}
    peer.call(
        1, commands.Exchange.Declare(exchange="e", exchange_type="x-delayed-message", arguments=arguments)
    )
    return peer


def bind(key: str) -> base.Frame:
    return commands.Queue.Bind(queue="q", exchange="e", routing_key=key)


def refusal(peer: Peer) -> str:
    [(_, closed)] = peer.answers()
    assert isinstance(closed, commands.Channel.Close)
    return closed.reply_text


@pytest.mark.parametrize("headers", [{}, {"CC": ["secret"]}, {"BCC": ["secret"]}])
def test_topic_permissions_of_publishers(headers: dict[str, Any]) -> None:
    peer = delaying("topic")
    permissions = peer.node.broker.access.permissions
    permissions.store_topic(permissions.prepare_topic("guest", "/", "e", "^open$", "^open$"))
    key = "open" if headers else "secret"
    peer.send(message("e", key, headers=encode.field_table(headers)).encode(1))
    assert "write access to topic 'secret' in exchange 'e'" in refusal(peer)


def test_topic_permissions_of_bindings() -> None:
    peer = delaying("topic")
    permissions = peer.node.broker.access.permissions
    permissions.store_topic(permissions.prepare_topic("guest", "/", "e", "^open$", "^open$"))
    [(_, bound)] = peer.call(1, bind("open"))
    assert isinstance(bound, commands.Queue.BindOk)
    peer.send(frames.method_frame(1, bind("#")))
    assert "read access to topic '#' in exchange 'e'" in refusal(peer)


def test_the_hashes_of_one_exchange() -> None:
    peer = delaying("topic", topic_extra_hashes_max=1)
    peer.call(1, bind("#.a.#"))
    peer.send(frames.method_frame(1, bind("#.b.#")))
    assert "at most 1 are allowed" in refusal(peer)


def test_only_queues_without_a_key_are_bound_to_one_of_local_queues() -> None:
    peer = delaying("x-local-random")
    peer.send(frames.method_frame(1, bind("k")))
    assert "Non empty binding 'k' key not permitted" in refusal(peer)
