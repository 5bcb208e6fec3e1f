"""A producer of transactions that begins again ends what its earlier starts left open, idle or not."""

from __future__ import annotations

import pytest
from pamqp import commands, encode

from amqp_server.broker import open_transactions
from amqp_server.wire.frames import method_frame

from ..wire.published import message
from .node import Delivery, Peer
from .test_tx_timeout import Node, closed, opened, publish

OVER = "PRECONDITION_FAILED - x-producer-epoch 1 of producer '//billing' is over: another start of it has epoch 2"


def begin(peer: Peer, epoch: int, *, name: str = "billing", channel: int = 1) -> None:
    """Publish as this producer."""
    headers = encode.field_table({"x-producer": name, "x-producer-epoch": epoch})
    peer.send(message("", "q", b"body", headers=headers).encode(channel))


@pytest.mark.parametrize("timeout_ms", [0, 10_000])
def test_what_the_predecessor_left_open_is_rolled_back_at_once(timeout_ms: int) -> None:
    node = Node(tx_timeout_ms=timeout_ms)
    plain, old, new = node.peer(), opened(node), opened(node)
    plain.call(1, commands.Channel.Open())
    publish(plain)
    old.call(1, commands.Basic.Get(queue="q"))
    begin(old, 1)
    old.call(1, commands.Basic.Ack(delivery_tag=1))
    begin(new, 2)
    node.passes(0)
    ((number, said),) = closed(old)
    assert (number, said.reply_code, said.reply_text) == (1, 406, OVER)
    # The message that it acked is there again, for its successor.
    assert node.ready == 1 and len(node.open) == 1
    ((_, got),) = new.call(1, commands.Basic.Get(queue="q"))
    assert isinstance(got, Delivery) and getattr(got.method, "redelivered", False)
    new.call(1, commands.Basic.Ack(delivery_tag=1))
    assert any(isinstance(each, commands.Tx.CommitOk) for _, each in new.call(1, commands.Tx.Commit()))
    assert node.ready == 1 and len(node.open) == 0


def test_also_if_its_name_comes_from_an_earlier_transaction() -> None:
    node = Node()
    old, new = opened(node), opened(node)
    begin(old, 1)
    old.call(1, commands.Tx.Commit())
    old.call(1, commands.Basic.Get(queue="q"))
    old.call(1, commands.Basic.Ack(delivery_tag=1))
    begin(new, 2)
    node.passes(0)
    assert [said.reply_text for _, said in closed(old)] == [OVER]
    assert node.ready == 1


def test_no_others_end() -> None:
    """Not those of the same epoch, of other producers, of none, and what its own channel goes on with."""
    node = Node()
    new = opened(node)
    names = ("same epoch", "later", "another", "none", "committed", "named at the end")
    others = {name: opened(node) for name in names}
    begin(new, 1)
    begin(others["committed"], 1)
    others["committed"].call(1, commands.Tx.Commit())
    new.call(1, commands.Tx.Commit())
    begin(new, 2)
    begin(others["same epoch"], 2)
    begin(others["another"], 1, name="other")
    publish(others["none"])
    begin(others["named at the end"], 2)
    begin(others["later"], 3, name="billing/")
    node.passes(0)
    for name, peer in {"new": new, **others}.items():
        assert closed(peer) == [], name
    assert len(node.open) == 6


@pytest.mark.pure
def test_one_whose_client_waits_for_an_answer_ends_afterwards() -> None:
    node = Node()
    old, new = opened(node), opened(node)
    begin(old, 1)
    old.session.suspended = object()  # type: ignore[assignment]
    begin(new, 2)
    node.passes(0)
    assert closed(old) == [] and len(node.open) == 2
    old.session.suspended = None
    node.passes(open_transactions.AGAIN_MS)
    assert [said.reply_text for _, said in closed(old)] == [OVER]
    assert len(node.open) == 1


def test_very_many_end_in_parts() -> None:
    node = Node(channels_max=1_000)
    old, new = node.peer(), opened(node)
    old.session.tuned(131_072, 1_000, 0)
    count = 5 * open_transactions.ENDED_AT_ONCE
    for channel in range(1, count + 1):
        opened(node, channel, peer=old)
        begin(old, 1, channel=channel)
    begin(new, 2)
    parts = 0
    while len(node.open) > 1:
        before = len(node.open)
        node.turn.run(node.broker.timers.run, node.clock.now_ms)
        assert 0 < before - len(node.open) <= open_transactions.ENDED_AT_ONCE
        while node.turn.behind:
            node.turn.run(node.turn.catch_up)
        node.clock.now_ms += open_transactions.NEXT_MS
        parts += 1
    assert parts >= 5
    node.sync()
    assert len(closed(old)) == count
    # Nothing of them is left to look at.
    begin(new, 2)
    new.send(method_frame(1, commands.Tx.Commit()))
    assert not node.open._of_producers and not node.open._shut_out


@pytest.mark.parametrize("how", ["commit", "rollback", "close", "lost"])
def test_one_that_ends_by_itself_meanwhile(how: str) -> None:
    node = Node()
    old, new = opened(node), opened(node)
    begin(old, 1)
    begin(new, 2)
    if how == "commit":
        old.send(method_frame(1, commands.Tx.Commit()))
    elif how == "rollback":
        old.call(1, commands.Tx.Rollback())
    elif how == "close":
        old.call(1, commands.Channel.Close(200, "", 0, 0))
    else:
        node.turn.run(old.session.lost)
    node.passes(0)
    assert [said.reply_text for _, said in closed(old)] == ([OVER] if how == "commit" else [])
    assert len(node.open) == 1 and list(node.open._of_producers) == ["//billing"]
