"""Transactions over queues, streams and groups of three nodes: all or nothing, and one producer at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.amqp_server.cluster.ring import PERSISTENT, QUORUM, Ring
from tests.reliability.node import wait_until


def ready(channel: BlockingChannel, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


@pytest.mark.parametrize("pause_s", [0, 0.004], ids=str)
def test_a_commit_of_a_dead_node_is_decided_while_it_is_down(ring: Ring, pause_s: float) -> None:
    """Its parts may be prepared and undecided, or decided and not done."""
    queues = ["tx doubt 1", "tx doubt 2", "tx doubt 3"]
    with ring.connection("n1") as connection:
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments=QUORUM)
    connection = ring.connect("n2")
    channel = connection.channel()
    channel.tx_select()
    for queue in queues:
        channel.basic_publish("", queue, b"in doubt", PERSISTENT)
    # Without waiting for the answer.
    channel._impl._send_method(pika.spec.Tx.Commit())
    connection._flush_output()
    time.sleep(pause_s)
    ring.nodes["n2"].kill()
    # Meanwhile others commit to the same queues.
    with ring.connection("n1") as connection:
        channel = connection.channel()
        channel.tx_select()
        for queue in queues:
            channel.basic_publish("", queue, b"of others", PERSISTENT)
        channel.tx_commit()

    def is_decided() -> bool:
        return not any(row["state"] == "undecided" for row in ring.get("n3", "/api/transactions"))

    wait_until("the transaction is decided", is_decided, state=ring.logs)
    with ring.connection("n3") as connection:
        channel = connection.channel()
        wait_until("all queues have it or none", lambda: len({ready(channel, each) for each in queues}) == 1)
        assert ready(channel, queues[0]) in (1, 2)
        for queue in queues:
            channel.queue_delete(queue)


def named(producer: str, epoch: Any) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, headers={"x-producer": producer, "x-producer-epoch": epoch})


@pytest.fixture
def places(ring: Ring) -> Iterator[tuple[Ring, list[str]]]:
    """Queues of all kinds, declared at different nodes: a name for each."""
    declared = {
        "quorum": ("n1", QUORUM),
        "classic here": ("n2", {"x-queue-type": "classic"}),
        "classic there": ("n3", {"x-queue-type": "classic"}),
        "stream": ("n1", {"x-queue-type": "stream"}),
        "tight": ("n3", {**QUORUM, "x-max-length": 2, "x-overflow": "reject-publish"}),
    }
    for name, (node, arguments) in declared.items():
        with ring.connection(node) as connection:
            connection.channel().queue_declare(f"tx {name}", durable=True, arguments=arguments)
    yield ring, [f"tx {name}" for name in declared]
    with ring.connection("n1") as connection:
        for name in declared:
            connection.channel().queue_delete(f"tx {name}")


def test_what_a_client_commits_it_sees(places: tuple[Ring, list[str]]) -> None:
    ring, queues = places
    with ring.connection("n2") as connection:
        channel = connection.channel()
        channel.tx_select()
        for queue in queues:
            channel.basic_publish("", queue, b"one", PERSISTENT)
        assert [ready(channel, queue) for queue in queues] == [0, 0, 0, 0, 0]
        channel.tx_commit()
        assert [ready(channel, queue) for queue in queues] == [1, 1, 1, 1, 1]
        # The channel goes on, with acks and a requeue.
        moved = [channel.basic_get(queue)[0].delivery_tag for queue in queues[:3]]
        channel.basic_ack(moved[0])
        channel.basic_nack(moved[1], requeue=True)
        channel.basic_publish("", queues[3], b"two", PERSISTENT)
        channel.tx_commit()
        assert [ready(channel, queue) for queue in queues] == [0, 1, 0, 2, 1]
        channel.tx_rollback()
        channel.basic_ack(moved[2])
        channel.tx_commit()
        assert ready(channel, queues[2]) == 0


def test_a_full_queue_refuses_all_of_it(places: tuple[Ring, list[str]]) -> None:
    ring, queues = places
    with ring.connection("n2") as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", queues[0], b"first", PERSISTENT)
        channel.tx_commit()
        tag = channel.basic_get(queues[0])[0].delivery_tag
        for queue in queues:
            for _ in range(3):
                channel.basic_publish("", queue, b"too many", PERSISTENT)
        channel.basic_ack(tag)
        with pytest.raises(ChannelClosedByBroker, match="partial tx completion: nothing was done") as closed:
            channel.tx_commit()
        assert closed.value.reply_code == 406 and "'tx tight' is full" in closed.value.reply_text
        again = connection.channel()
        assert [ready(again, queue) for queue in queues] == [1, 0, 0, 0, 0]
        method, _, body = again.basic_get(queues[0], auto_ack=True)
        assert (method.redelivered, body) == (True, b"first")


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_of_the_clients_own_node_refuses_all_of_it(
    places: tuple[Ring, list[str]], overflow: str
) -> None:
    """Its messages and acks are in one journal."""
    ring, _ = places
    name = f"tx own {overflow}"
    with ring.connection("n2") as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-max-length": 2, "x-overflow": overflow})
        channel.tx_select()
        channel.basic_publish("", name, b"first", PERSISTENT)
        channel.tx_commit()
        tag = channel.basic_get(name)[0].delivery_tag
        for _ in range(3):
            channel.basic_publish("", name, b"too many", PERSISTENT)
        channel.basic_ack(tag)
        with pytest.raises(ChannelClosedByBroker, match="partial tx completion: nothing was done") as closed:
            channel.tx_commit()
        assert closed.value.reply_code == 406
        again = connection.channel()
        assert ready(again, name) == 1
        method, _, body = again.basic_get(name, auto_ack=True)
        assert (method.redelivered, body) == (True, b"first")


def test_a_group_reads_each_message_once(places: tuple[Ring, list[str]]) -> None:
    ring, queues = places
    group = {"x-queue-type": "stream-group", "x-stream": queues[3], "x-stream-offset": "first"}
    with ring.connection("n3") as connection:
        channel = connection.channel()
        channel.queue_declare("tx group", durable=True, arguments=group)
        channel.confirm_delivery()
        for number in range(20):
            channel.basic_publish("", queues[3], b"%d" % number, PERSISTENT)
    for commits in (False, True):
        with ring.connection("n2") as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            channel.tx_select()
            messages = channel.consume("tx group", inactivity_timeout=20)
            for taken, (method, _, body) in enumerate(messages, 1):
                channel.basic_publish("", queues[0], body, PERSISTENT)
                channel.basic_ack(method.delivery_tag)
                if taken % 5 == 0 and commits:
                    channel.tx_commit()
                if taken == (20 if commits else 10):
                    break
    with ring.connection("n1") as connection:
        channel = connection.channel()
        bodies = [channel.basic_get(queues[0], auto_ack=True)[2] for _ in range(21)]
        assert bodies == [*(b"%d" % number for number in range(20)), None]
        channel.queue_delete("tx group")


def test_a_later_start_of_a_producer_shuts_out_the_earlier_one(places: tuple[Ring, list[str]]) -> None:
    ring, queues = places
    with ring.connection("n1") as earlier, ring.connection("n3") as later:
        old, new = earlier.channel(), later.channel()
        for channel, epoch in ((old, 1), (new, 2)):
            channel.tx_select()
            channel.basic_publish("", queues[0], b"%d" % epoch, named("billing", epoch))
            channel.basic_publish("", queues[1], b"%d" % epoch, PERSISTENT)
        new.tx_commit()
        with pytest.raises(ChannelClosedByBroker, match="epoch 1 of producer '//billing' is over") as closed:
            old.tx_commit()
        assert closed.value.reply_code == 406
        assert [ready(new, queue) for queue in queues[:2]] == [1, 1]
        # A producer with another name is another one.
        third = earlier.channel()
        third.tx_select()
        third.basic_publish("", queues[0], b"1", named("other", 1))
        third.tx_commit()
        third.basic_publish("", queues[0], b"1", named("other", 0))
        with pytest.raises(ChannelClosedByBroker, match="cannot become"):
            third.tx_commit()

        def is_known() -> bool:
            late = earlier.channel()
            late.tx_select()
            late.basic_publish("", queues[0], b"1", named("billing", 1))
            try:
                late.tx_commit()
            except ChannelClosedByBroker:
                return True
            return False

        wait_until("all nodes know the epoch", is_known)
        wait_until("both are there", lambda: ready(new, queues[0]) == 2)


def test_a_later_attempt_that_came_to_nothing_hides_no_message(ring: Ring) -> None:
    """A publisher that lost its commit-ok tries again, then asks what became of its message."""
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    arguments = {**QUORUM, **limits, "x-deduplication": True, "x-message-status": True}

    def attempt(message_id: str, name: str) -> None:
        headers = {"x-deduplication-id": name}
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
        with ring.connection("n2") as connection:
            channel = connection.channel()
            channel.tx_select()
            channel.basic_publish("", "tx record", b"", properties)
            channel.tx_commit()

    def state(message_id: str) -> tuple[str, list[str]]:
        told = ring.get("n3", f"/api/messages/%2F/{message_id}?queue=tx%20record")["queues"][0]
        return told["state"], [message["state"] for message in told["messages"]]

    with ring.connection("n1") as connection:
        connection.channel().queue_declare("tx record", durable=True, arguments=arguments)
    attempt("one", "1")
    attempt("one", "1")
    assert state("one") == ("queued", ["duplicate", "queued"])
    attempt("two", "2")
    for message_id in ("two", "three"):
        with pytest.raises(ChannelClosedByBroker, match="is full"):
            attempt(message_id, "3")
    assert state("two") == ("queued", ["aborted", "queued"])
    assert state("three") == ("aborted", ["aborted"])
    with ring.connection("n1") as connection:
        connection.channel().queue_delete("tx record")


@pytest.mark.parametrize("epoch", [-1, "7", True, None], ids=str)
def test_an_epoch_is_a_number(ring: Ring, epoch: Any) -> None:
    with ring.connection("n1") as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", "nowhere", b"", named("billing", epoch))
        with pytest.raises(ChannelClosedByBroker, match="x-producer-epoch"):
            channel.tx_commit()
