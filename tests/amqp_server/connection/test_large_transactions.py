"""Consumers get nothing of a large transaction before all of it is in its queues and on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.reply import PSEUDO_QUEUE

from .node import Delivery, Peer
from .test_slices import SlicedNode, called, depths, message, method, opened, stored

#: Messages for "a" and "b" in turn, more parts than are committed at once.
COUNT = 400


def begun(sliced: SlicedNode, *, persistent: bool = True, arguments: dict[str, Any] | None = None) -> Peer:
    """Return a publisher that has COUNT messages for "a" and "b" each and one for "last" in a transaction."""
    peer = opened(sliced)
    for name in ("a", "b", "last"):
        more = arguments if name != "last" else None
        called(peer, commands.Queue.Declare(queue=name, durable=persistent, arguments=more))
    called(peer, commands.Tx.Select())
    for number in range(COUNT):
        body = b"%d" % number
        peer.send(
            message("", "a", body, persistent=persistent) + message("", "b", body, persistent=persistent)
        )
        sliced.drive()
    peer.send(message("", "last", b"end", persistent=persistent))
    sliced.drive()
    peer.answers()
    return peer


def consumer(sliced: SlicedNode, queue: str) -> Peer:
    peer = opened(sliced)
    peer.send(method(1, commands.Basic.Consume(queue=queue, no_ack=True)))
    sliced.drive()
    return peer


def bodies(peer: Peer) -> list[bytes]:
    peer.collect()
    return [answer.body for _, answer in peer.answers() if isinstance(answer, Delivery)]


def commit(sliced: SlicedNode, publisher: Peer, between: Callable[[], None] = lambda: None) -> None:
    publisher.send(method(1, commands.Tx.Commit()))
    assert sliced.drive(between=between) > 3
    sliced.sync()
    sliced.drive()


def names(peer: Peer) -> list[str]:
    return [type(answer).__name__ for _, answer in peer.answers()]


@pytest.mark.parametrize("persistent", [True, False])
def test_nothing_is_seen_before_all_is_there(persistent: bool) -> None:
    sliced = SlicedNode()
    publisher = begun(sliced, persistent=persistent)
    watcher = consumer(sliced, "a")
    early: list[bytes] = []

    def between() -> None:
        early.extend(bodies(watcher))

    publisher.send(method(1, commands.Tx.Commit()))
    turns = 0
    while sliced.turn.behind:
        sliced.turn.run(sliced.turn.catch_up)
        if depths(sliced)["last"]:
            break
        between()
        turns += 1
    assert early == [] and turns > 3
    if persistent:
        sliced.drive(between=between)
        assert early == [], "it is not on disk yet"
    sliced.sync()
    sliced.drive()
    assert early + bodies(watcher) == [b"%d" % number for number in range(COUNT)]
    assert names(publisher) == ["CommitOk"]
    assert depths(sliced) == {"a": 0, "b": COUNT, "last": 1}


def test_the_queue_goes_on_meanwhile() -> None:
    """Earlier messages are delivered and acked, others publish, and a get finds what was there before."""
    sliced = SlicedNode()
    publisher = begun(sliced)
    other, watcher = opened(sliced), opened(sliced)
    other.send(message("", "a", b"earlier") * 2 + message("", "b", b"earlier"))
    sliced.drive()
    publisher.send(method(1, commands.Tx.Commit()))
    sliced.turn.run(sliced.turn.catch_up)
    assert sliced.turn.behind
    other.send(message("", "a", b"meanwhile"))
    watcher.send(method(1, commands.Basic.Consume(queue="a"), commands.Basic.Ack(2, multiple=True)))
    watcher.send(method(1, commands.Basic.Get(queue="b", no_ack=True)))
    watcher.send(method(1, commands.Basic.Get(queue="b", no_ack=True)))
    for _ in range(3):
        sliced.turn.run(sliced.turn.catch_up)
    assert not depths(sliced)["last"]
    found = [answer for _, answer in watcher.answers()]
    assert [each.body for each in found if isinstance(each, Delivery)] == [b"earlier"] * 3
    assert [type(each).__name__ for each in found][-1] == "GetEmpty"
    sliced.drive()
    sliced.sync()
    sliced.drive()
    assert sorted(bodies(watcher)) == sorted([*(b"%d" % number for number in range(COUNT)), b"meanwhile"])
    assert names(publisher) == ["CommitOk"]


def letters_of(sliced: SlicedNode) -> Peer:
    """Return a consumer of dead letters."""
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="letters"))
    called(peer, commands.Basic.Consume(queue="letters", no_ack=True))
    peer.answers()
    return peer


DEAD: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}


@pytest.mark.parametrize("limits", [{"x-max-length": 10}, {"x-max-length-bytes": 30}, {"x-message-ttl": 0}])
def test_its_dead_letters_leave_when_it_is_complete(limits: dict[str, int]) -> None:
    sliced = SlicedNode()
    watcher = letters_of(sliced)
    publisher = begun(sliced, arguments={**limits, **DEAD})
    early: list[bytes] = []

    def between() -> None:
        if not stored(sliced):
            early.extend(bodies(watcher))

    commit(sliced, publisher, between)
    assert early == []
    left = depths(sliced)["a"]
    assert left <= 10
    assert sorted(bodies(watcher)) == sorted(2 * [b"%d" % number for number in range(COUNT - left)])
    assert names(publisher) == ["CommitOk"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_limit_counts_what_consumers_have_no_room_for(overflow: str) -> None:
    """What is handed to consumers at once never waited in the queue."""
    sliced = SlicedNode()
    publisher = begun(sliced, arguments={"x-max-length": 10, "x-overflow": overflow})
    watchers = consumer(sliced, "a"), consumer(sliced, "b")
    commit(sliced, publisher)
    for watcher in watchers:
        assert bodies(watcher) == [b"%d" % number for number in range(COUNT)]
    assert names(publisher) == ["CommitOk"]


def test_a_queue_refuses_in_the_middle() -> None:
    """The rest is committed, and consumers see it as a whole as well."""
    sliced = SlicedNode()
    publisher = begun(sliced, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    watcher = consumer(sliced, "last")
    early: list[bytes] = []

    def between() -> None:
        if not stored(sliced):
            early.extend(bodies(watcher))

    commit(sliced, publisher, between)
    assert early == [] and bodies(watcher) == [b"end"]
    assert depths(sliced) == {"a": 10, "b": 10, "last": 0}
    [(_, closed)] = publisher.answers()
    assert isinstance(closed, commands.Channel.Close) and "partial tx" in closed.reply_text
    # Later messages are handed out as ever.
    later = consumer(sliced, "a")
    other = opened(sliced)
    other.send(message("", "a", b"later"))
    sliced.drive()
    assert bodies(later) == [*(b"%d" % number for number in range(10)), b"later"]


def test_rejected_messages_become_dead_letters_together() -> None:
    sliced = SlicedNode()
    watcher = letters_of(sliced)
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="source", arguments=DEAD))
    peer.send(message("", "source") * COUNT * 2)
    sliced.drive()
    called(peer, commands.Basic.Consume(queue="source"), commands.Tx.Select())
    peer.send(
        b"".join(method(1, commands.Basic.Reject(tag, requeue=False)) for tag in range(1, 2 * COUNT, 2))
    )
    sliced.drive()
    peer.answers()
    early: list[bytes] = []
    source = sliced.broker.vhost("/").queues["source"].host

    def between() -> None:
        if source.unacked_count > COUNT:
            early.extend(bodies(watcher))

    commit(sliced, peer, between)
    assert early == [] and len(bodies(watcher)) == COUNT
    assert names(peer) == ["CommitOk"]


def test_counts_and_purges_see_all_of_it_or_nothing() -> None:
    sliced = SlicedNode()
    publisher, other = begun(sliced), opened(sliced)
    other.send(message("", "a", b"earlier", persistent=True))
    sliced.drive()
    publisher.send(method(1, commands.Tx.Commit()))
    for _ in range(5):
        sliced.turn.run(sliced.turn.catch_up)
    assert sliced.turn.behind and depths(sliced)["a"] > 1
    host = sliced.broker.vhost("/").queues["a"].host
    assert host.ready_count == host.counts()[1] == 1
    # The answers come after those of the transaction.
    passive = commands.Queue.Declare(queue="a", passive=True)
    other.send(method(1, passive, commands.Queue.Purge(queue="a")))
    sliced.drive()
    sliced.sync()
    sliced.drive()
    (_, declared), (_, purged) = other.answers()
    assert isinstance(declared, commands.Queue.DeclareOk) and declared.message_count == COUNT + 1
    assert isinstance(purged, commands.Queue.PurgeOk) and purged.message_count == COUNT + 1
    assert depths(sliced) == {"a": 0, "b": COUNT, "last": 1}
    assert names(publisher) == ["CommitOk"]


@pytest.mark.parametrize("how", ["purged", "deleted", "the client goes"])
def test_in_the_middle(how: str) -> None:
    sliced = SlicedNode()
    publisher = begun(sliced)
    watcher = consumer(sliced, "b")
    other = opened(sliced)
    publisher.send(method(1, commands.Tx.Commit()))
    for _ in range(5):
        sliced.turn.run(sliced.turn.catch_up)
    assert sliced.turn.behind and depths(sliced)["a"]
    if how == "purged":
        other.send(method(1, commands.Queue.Purge(queue="a")))
    elif how == "deleted":
        other.send(method(1, commands.Queue.Delete(queue="a")))
    else:
        sliced.turn.run(publisher.session.lost)
    sliced.drive()
    sliced.sync()
    sliced.drive()
    assert bodies(watcher) == [b"%d" % number for number in range(COUNT)]
    assert names(publisher) == ([] if how == "the client goes" else ["CommitOk"])
    assert depths(sliced)["last"] == 1
    for name in ("b", "last"):
        host: Any = sliced.broker.vhost("/").queues[name].host
        assert not host.machine.holds
    if how != "deleted":
        later = consumer(sliced, "a")
        other.send(message("", "a", b"later"))
        sliced.drive()
        assert bodies(later)[-1] == b"later"


def test_a_direct_reply_is_a_part() -> None:
    sliced = SlicedNode()
    client = opened(sliced)
    called(client, commands.Basic.Consume(queue=PSEUDO_QUEUE, no_ack=True))
    called(client, commands.Queue.Declare(queue="requests"))
    body = (
        b"\0\x3c\0\0"
        + (1).to_bytes(8, "big")
        + b"\x02\0"
        + bytes([len(PSEUDO_QUEUE)])
        + PSEUDO_QUEUE.encode()
    )
    client.send(
        method(1, commands.Basic.Publish(routing_key="requests"))
        + b"\2\0\1" + len(body).to_bytes(4, "big") + body + b"\xce\3\0\1\0\0\0\1x\xce"
    )  # fmt: skip
    sliced.drive()
    publisher = begun(sliced)
    asked = opened(sliced)
    [(_, request)] = called_get(sliced, asked)
    assert isinstance(request, Delivery)
    publisher.send(message("", str(request.properties.reply_to), b"reply"))
    publisher.send(b"".join(message("", name, b"x", persistent=True) for name in ("a", "b")) * 200)
    sliced.drive()
    client.answers()
    early: list[bytes] = []

    def between() -> None:
        if depths(sliced)["b"] < COUNT + 200:
            early.extend(bodies(client))

    commit(sliced, publisher, between)
    assert early == [] and bodies(client) == [b"reply"]


def called_get(sliced: SlicedNode, peer: Peer) -> list[Any]:
    peer.send(method(1, commands.Basic.Get(queue="requests", no_ack=True)))
    sliced.drive()
    return peer.answers()
