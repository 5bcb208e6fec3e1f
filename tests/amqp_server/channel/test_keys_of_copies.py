"""The permission for very many keys in CC, which another server knows: some questions at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import body, commands, frame, header

from amqp_server.broker.access.http_permissions import ASKED, BackendAnswers, Question, RemoteGrant
from amqp_server.channel.publish import KEYS_ASKED_MAX
from tests.amqp_server.connection.node import Delivery, MemoryNode, Peer

KEYS = 1_000


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


class Server:
    """The other server: it answers when it is told to."""

    def __init__(self, node: MemoryNode, peer: Peer, refused: str = "") -> None:
        self.asked: list[tuple[Question, Callable[[bool], None]]] = []
        self.counts: list[int] = []
        self._refused = refused
        self._node = node
        self._answers = BackendAnswers(lambda: 0, 60_000, 100_000)
        self._answers.asks = lambda question, done: self.asked.append((question, done))
        grant = RemoteGrant(self._answers, "guest", (ASKED, "127.0.0.1"))
        permissions = node.broker.access.permissions
        permissions._grants[peer.session.client.access] = grant

    def answer(self) -> None:
        """Answer everything that is asked, and that is asked then."""
        while self.asked:
            asked, self.asked = self.asked, []
            keys = [question for question, _ in asked if question.path == "topic"]
            self.counts.append(len(keys))
            for question, done in asked:
                allowed = dict(question.parameters).get("routing_key") != self._refused
                self._answers.remember(question, allowed)
                self._node.turn.run(done, allowed)
        while self._node.turn.behind:
            self._node.turn.run(self._node.turn.catch_up)


def opened(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(
        1,
        commands.Channel.Open(),
        commands.Queue.Declare(queue="q"),
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"k{KEYS - 1}"),
        commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True),
    )
    return peer


def publish(peer: Peer) -> None:
    keys: Any = [f"k{number}" for number in range(KEYS)]
    properties = commands.Basic.Properties(headers={"CC": keys})
    peer.send(
        frame.marshal(commands.Basic.Publish(exchange="amq.topic", routing_key="k"), 1),
        frame.marshal(header.ContentHeader(0, 1, properties), 1),
        frame.marshal(body.ContentBody(b"x"), 1),
    )


def test_keys_are_asked_for_some_at_a_time_and_each_once(node: MemoryNode) -> None:
    peer = opened(node)
    server = Server(node, peer)
    publish(peer)
    assert server.asked
    server.answer()
    peer.collect()
    assert [type(each.method) for _, each in peer.answers() if isinstance(each, Delivery)] == [
        commands.Basic.Deliver
    ]
    assert max(server.counts) <= KEYS_ASKED_MAX
    assert sum(server.counts) == KEYS + 1


def test_a_key_that_is_refused_ends_the_questions(node: MemoryNode) -> None:
    peer = opened(node)
    server = Server(node, peer, refused="k100")
    publish(peer)
    server.answer()
    peer.collect()
    (close,) = [each for _, each in peer.answers()]
    assert isinstance(close, commands.Channel.Close) and close.reply_code == 403
    assert "topic 'k100'" in close.reply_text
    assert sum(server.counts) <= 100 + 1 + KEYS_ASKED_MAX
