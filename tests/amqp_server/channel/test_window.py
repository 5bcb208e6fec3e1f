"""The global prefetch of a channel: which queue is served when there is room again."""

from __future__ import annotations

import pytest
from pamqp import base, commands

from amqp_server.wire import frames
from quorum_queue.freeing import Leftover

from ..connection.node import Delivery, MemoryNode, Peer
from ..wire.published import message

Basic = commands.Basic


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def peer(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), Basic.Qos(prefetch_count=4, global_=True))
    return peer


def filled(peer: Peer, *queues: str, count: int = 100, no_ack: bool = False) -> list[str]:
    """Fill the queues, consume from each, and return the queues of the deliveries."""
    peer.call(1, *(commands.Queue.Declare(queue=queue) for queue in queues))
    peer.send(*(message(routing_key=queue).encode(1) * count for queue in queues))
    consumers = [Basic.Consume(queue=queue, consumer_tag=queue, no_ack=no_ack) for queue in queues]
    return called(peer, *consumers)


def called(peer: Peer, *methods: base.Frame) -> list[str]:
    """Send methods; return the consumer tags of the deliveries that follow."""
    deliveries = [each.method for _, each in peer.call(1, *methods) if isinstance(each, Delivery)]
    return [str(each.consumer_tag) for each in deliveries if isinstance(each, Basic.Deliver)]


def acks(*tags: int) -> list[base.Frame]:
    return [Basic.Ack(tag) for tag in tags]


def test_each_queue_gets_the_room_in_turn(peer: Peer) -> None:
    assert filled(peer, "a", "b", "c") == ["a"] * 4
    got = [tag for number in range(1, 31) for tag in called(peer, *acks(number))]
    assert len(got) == 30
    assert [got.count(queue) for queue in "abc"] == [10, 10, 10]


@pytest.mark.parametrize("step", [1, 2, 4])
def test_acks_of_several_leave_the_queues_even(peer: Peer, step: int) -> None:
    """No queue is ahead of another one by more than the room of one ack and the first queue's lead at the
    beginning.
    """
    got = filled(peer, "a", "b", "c")
    for number in range(step, 151, step):
        got += called(peer, Basic.Ack(number, True))
        shares = [got.count(queue) for queue in "abc"]
        assert max(shares) - min(shares) <= step + 4, shares
    assert len(got) >= 150


def test_acks_of_one_read_make_one_offer(peer: Peer) -> None:
    """However many ack methods the read has."""
    filled(peer, "a", "b", "c")
    before = peer.session.channels[1].window._offers
    got = called(peer, *acks(1, 3, 2), Basic.Ack(4, True))
    assert len(set(got)) == 1 and len(got) == 4
    assert peer.session.channels[1].window._offers == before + 1


def test_room_is_not_left_over(peer: Peer) -> None:
    """The first queue does not need all of the room."""
    filled(peer, "a", count=5)
    assert filled(peer, "b", count=2) == []
    got = called(peer, Basic.Ack(4, True))
    assert sorted(got) == ["a", "b", "b"]


def delivered(peer: Peer) -> int:
    return len([each for _, each in peer.answers() if isinstance(each, Delivery)])


@pytest.mark.parametrize("how", ["deleted", "failed", "revived"])
@pytest.mark.parametrize("verb", [Basic.Ack, Basic.Nack])
def test_deliveries_of_a_queue_that_is_gone_keep_their_room(
    node: MemoryNode, peer: Peer, how: str, verb: type[Basic.Ack | Basic.Nack]
) -> None:
    assert filled(peer, "a", "b") == ["a"] * 4
    window = peer.session.channels[1].window
    queue = node.broker.vhost("/").queues["a"]
    if how == "deleted":
        node.peer().call(1, commands.Channel.Open(), commands.Queue.Delete(queue="a"))
    else:
        node.turn.run(queue.host_failed, ValueError("a defect"))
        if how == "revived":
            node.turn.run(node.broker.failures.retry, queue)
    assert delivered(peer) == 0
    assert window.used == 4
    assert called(peer, verb(2)) == ["b"]
    assert window.used == 4
    assert called(peer, verb(4, True)) == ["b"] * 3
    # The consumer of the other queue gets its own room back.
    assert called(peer, Basic.Ack(8, True)) == ["b"] * 4
    assert window.used == 4
    peer.call(1, Basic.Cancel("b"))
    assert window.used == 4
    peer.call(1, Basic.Ack(0, True))
    assert window.used == 0


@pytest.mark.pure
def test_an_ack_between_a_deletion_and_its_parts_makes_room_once(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a deleted queue held is freed in parts."""
    filled(peer, "a", "b")
    window = peer.session.channels[1].window
    postponed: list[Leftover] = []
    with monkeypatch.context() as patched:
        patched.setattr(Leftover, "free", lambda self: postponed.append(self))
        node.peer().call(1, commands.Channel.Open(), commands.Queue.Delete(queue="a"))
    assert called(peer, Basic.Ack(1)) == []
    node.turn.run(postponed[0].free)
    assert window.used == 3
    assert called(peer, Basic.Ack(2)) == ["b"] * 2
    assert called(peer, Basic.Ack(4, True)) == ["b"] * 2
    assert window.used == 4


def test_consumers_without_acks_wait_for_room_and_take_none(peer: Peer) -> None:
    assert filled(peer, "a", count=4) == ["a"] * 4
    assert filled(peer, "free", count=50, no_ack=True) == []
    assert called(peer, Basic.Ack(1)) == ["free"] * 50
    peer.send(message(routing_key="a").encode(1), message(routing_key="free").encode(1))
    assert len([each for _, each in peer.answers() if isinstance(each, Delivery)]) == 1
    assert called(peer, Basic.Ack(2)) == ["free"]


def test_a_channel_that_closes_meanwhile(node: MemoryNode, peer: Peer) -> None:
    filled(peer, "a", "b")
    peer.send(
        frames.method_frame(1, Basic.Ack(4, True)),
        frames.method_frame(1, commands.Channel.Close(0, "", 0, 0)),
    )
    assert {len(found) for found in node.contents().values()} == {96, 100}
