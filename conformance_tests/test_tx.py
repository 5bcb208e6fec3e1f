"""tx.select, commit, rollback: publishes and acks of a channel happen together or not at all."""

from __future__ import annotations

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.conftest import Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, drain, get, numbered, publish, sync, wait_drain, wait_get
from conformance_tests.wire import RawClient, method_bytes

Basic, Tx = commands.Basic, commands.Tx


@pytest.fixture
def queue(ch: BlockingChannel, name: Name) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    return queue


@pytest.fixture
def tx(ch: BlockingChannel) -> BlockingChannel:
    channel = ch.connection.channel()
    channel.tx_select()
    return channel


def test_publishes_appear_at_commit_in_order(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(tx, queue, *numbered(5))
    sync(tx)
    assert get(ch, queue) is None
    tx.tx_commit()
    assert drain(ch, queue) == numbered(5)


def test_rollback_forgets_publishes(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(tx, queue, b"forgotten")
    tx.tx_rollback()
    publish(tx, queue, b"kept")
    tx.tx_commit()
    assert drain(ch, queue) == [b"kept"]


def test_a_channel_closed_without_commit_forgets(
    ch: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    publish(tx, queue, b"forgotten")
    tx.close()
    assert drain(ch, queue) == []


def test_a_broken_connection_without_commit_forgets(ch: BlockingChannel, raw: Raw, queue: str) -> None:
    client = raw()
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"forgotten", routing_key=queue)
    client.call(Basic.Qos(), Basic.QosOk)
    client.abort()
    assert drain(ch, queue) == []


def test_commit_spans_queues(ch: BlockingChannel, tx: BlockingChannel, queue: str, name: Name) -> None:
    other = name("q")
    ch.queue_declare(other, durable=True)
    publish(tx, queue, b"1")
    publish(tx, other, b"2", delivery_mode=2)
    tx.tx_commit()
    assert drain(ch, queue) + drain(ch, other) == [b"1", b"2"]


def test_acks_count_at_commit(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"1", b"2")
    sync(ch)
    first, second = (wait_get(tx, queue, auto_ack=False) for _ in range(2))
    tx.basic_ack(first.tag)
    tx.tx_commit()
    tx.basic_ack(second.tag)
    tx.close()
    assert wait_drain(ch, queue, 1) == [b"2"]


def test_rollback_restores_acks(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    sync(ch)
    delivery = wait_get(tx, queue, auto_ack=False)
    tx.basic_ack(delivery.tag)
    tx.tx_rollback()
    assert get(ch, queue) is None  # still with the channel, not redelivered
    tx.basic_ack(delivery.tag)
    tx.tx_commit()
    tx.close()
    assert drain(ch, queue) == []


def test_rollback_restores_rejects(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    sync(ch)
    delivery = wait_get(tx, queue, auto_ack=False)
    tx.basic_reject(delivery.tag, requeue=False)
    tx.tx_rollback()
    tx.close()
    assert wait_drain(ch, queue, 1) == [b"m"]


@pytest.mark.parametrize("method", ["basic_nack", "basic_reject"])
def test_requeue_happens_at_commit(ch: BlockingChannel, tx: BlockingChannel, queue: str, method: str) -> None:
    publish(ch, queue, b"m")
    sync(ch)
    delivery = wait_get(tx, queue, auto_ack=False)
    getattr(tx, method)(delivery.tag, requeue=True)
    sync(tx)
    assert get(ch, queue) is None
    tx.tx_commit()
    again = wait_get(ch, queue)
    assert (again.body, again.redelivered) == (b"m", True)


def test_ack_multiple_in_a_transaction(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(ch, queue, *numbered(4))
    sync(ch)
    held = [wait_get(tx, queue, auto_ack=False) for _ in range(4)]
    tx.basic_ack(held[2].tag, multiple=True)
    tx.tx_commit()
    tx.close()
    assert wait_drain(ch, queue, 1) == [b"3"]
    assert drain(ch, queue) == []


def test_publish_and_ack_together(ch: BlockingChannel, tx: BlockingChannel, queue: str, name: Name) -> None:
    target = name("q")
    ch.queue_declare(target)
    publish(ch, queue, b"work")
    inbox = Inbox(tx, queue)
    delivery = inbox.one()
    publish(tx, target, b"result")
    tx.basic_ack(delivery.tag)
    tx.tx_rollback()
    assert drain(ch, target) == []
    publish(tx, target, b"result")
    tx.basic_ack(delivery.tag)
    tx.tx_commit()
    tx.close()
    assert drain(ch, target) == [b"result"]
    assert drain(ch, queue) == []


def test_settling_twice_in_a_transaction(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(ch, queue, b"m")
    sync(ch)
    tag = wait_get(tx, queue, auto_ack=False).tag
    tx.basic_ack(tag)
    with expect_channel_close(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        tx.basic_ack(tag)
        sync(tx)


def test_a_mandatory_message_comes_back_at_commit(raw: Raw, name: Name) -> None:
    client = raw()
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", routing_key=name("nowhere"), mandatory=True)
    client.expect_answer_first()
    client.send_method(Tx.Commit())
    assert client.read_content(Basic.Return).body == b"m"
    client.read(Tx.CommitOk)


def test_a_missing_exchange_is_refused_before_commit(
    ch: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    publish(tx, queue, b"forgotten")
    with expect_channel_close(404, "NOT_FOUND - no exchange"):
        publish(tx, "k", b"m", exchange="never-declared")
        sync(tx)
    assert drain(ch, queue) == []


@pytest.mark.parametrize("method", ["tx_commit", "tx_rollback"])
def test_without_select(ch: BlockingChannel, method: str) -> None:
    with expect_channel_close(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(ch, method)()


def test_select_twice_and_empty_commit_and_rollback(tx: BlockingChannel) -> None:
    tx.tx_select()
    tx.tx_commit()
    tx.tx_rollback()
    tx.tx_commit()


def test_a_transaction_is_the_channels_own(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(tx, queue, b"waits")
    sync(tx)
    publish(ch, queue, b"at once")
    assert drain(ch, queue) == [b"at once"]


def test_large_transaction(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(tx, queue, *numbered(2000))
    tx.tx_commit()
    assert Inbox(ch, queue, auto_ack=True).bodies(2000) == numbered(2000)


# -- a queue or a binding that changes before the commit


def test_a_queue_declared_again_gets_what_is_committed(
    ch: BlockingChannel, tx: BlockingChannel, queue: str
) -> None:
    publish(tx, queue, *numbered(10))
    sync(tx)
    ch.queue_delete(queue)
    ch.queue_declare(queue)
    tx.tx_commit()
    assert drain(ch, queue) == numbered(10)


def test_a_queue_deleted_before_the_commit(ch: BlockingChannel, tx: BlockingChannel, queue: str) -> None:
    publish(tx, queue, *numbered(10))
    sync(tx)
    ch.queue_delete(queue)
    tx.tx_commit()
    ch.queue_declare(queue)
    assert drain(ch, queue) == []


def test_a_mandatory_message_comes_back_if_its_queue_was_deleted(
    ch: BlockingChannel, raw: Raw, queue: str
) -> None:
    client = raw()
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", routing_key=queue, mandatory=True)
    client.expect_answer_first()
    ch.queue_delete(queue)
    client.send_method(Tx.Commit())
    returned = client.read_content(Basic.Return)
    assert isinstance(returned.method, Basic.Return)
    assert (returned.method.reply_code, returned.body) == (312, b"m")
    client.read(Tx.CommitOk)


def test_bindings_count_when_a_message_is_published(
    ch: BlockingChannel, tx: BlockingChannel, queue: str, name: Name
) -> None:
    other = name("q")
    ch.queue_declare(other)
    ch.queue_bind(queue, "amq.direct", queue)
    publish(tx, queue, b"before", exchange="amq.direct")
    sync(tx)
    ch.queue_unbind(queue, "amq.direct", queue)
    ch.queue_bind(other, "amq.direct", queue)
    publish(tx, queue, b"after", exchange="amq.direct")
    tx.tx_commit()
    assert drain(ch, queue) == [b"before"]
    assert drain(ch, other) == [b"after"]


@pytest.mark.parametrize("method", ["basic_ack", "basic_nack", "basic_reject"])
def test_a_queue_deleted_before_its_deliveries_are_settled(
    ch: BlockingChannel, tx: BlockingChannel, queue: str, method: str, name: Name
) -> None:
    other = name("q")
    ch.queue_declare(other)
    publish(ch, queue, b"m")
    sync(ch)
    delivery = wait_get(tx, queue, auto_ack=False)
    ch.queue_delete(queue)
    getattr(tx, method)(delivery.tag)
    publish(tx, other, b"result")
    tx.tx_commit()
    assert drain(ch, other) == [b"result"]


# --- mandatory ---


def expect_returned(client: RawClient, *bodies: bytes) -> None:
    for body in bodies:
        returned = client.read_content(Basic.Return)
        assert isinstance(returned.method, Basic.Return)
        assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
        assert returned.body == body


def test_mandatory_without_a_route_comes_back_at_commit(raw: Raw) -> None:
    client = raw()
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"1", routing_key="no-such-queue", mandatory=True)
    client.publish(b"2", routing_key="no-such-queue", mandatory=True)
    client.expect_answer_first()
    client.send_method(Tx.Commit())
    expect_returned(client, b"1", b"2")
    client.read(Tx.CommitOk)


def test_mandatory_rolled_back_does_not_come_back(raw: Raw) -> None:
    client = raw()
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"1", routing_key="no-such-queue", mandatory=True)
    client.call(Tx.Rollback(), Tx.RollbackOk)
    client.call(Tx.Commit(), Tx.CommitOk)


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.headers"])
def test_mandatory_to_a_queue_deleted_before_the_commit(raw: Raw, name: Name, exchange: str) -> None:
    client = raw().open_channel(2)
    queue = client.declare(name("q"), channel=2)
    if exchange:
        bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=queue)
        client.call(bind, commands.Queue.BindOk, 2)
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", exchange=exchange, routing_key=queue, mandatory=True)
    client.expect_answer_first()
    client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk, 2)
    client.send_method(Tx.Commit())
    expect_returned(client, b"m")
    client.read(Tx.CommitOk)


def test_mandatory_among_others_to_a_queue_deleted_before_the_commit(raw: Raw, name: Name) -> None:
    """Each message comes back by itself, with its own key, whatever was published with it."""
    client = raw().open_channel(2)
    queue, exchange = client.declare(name("q"), channel=2), name("x")
    declare = commands.Exchange.Declare(exchange=exchange, exchange_type="topic")
    client.call(declare, commands.Exchange.DeclareOk, 2)
    bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key="#")
    client.call(bind, commands.Queue.BindOk, 2)
    client.call(Tx.Select(), Tx.SelectOk)
    published = b"".join(
        client.publish_bytes(key.encode(), exchange=exchange, routing_key=key, mandatory=mandatory)
        for key, mandatory in [("a", False), ("b", True), ("c", True), ("d", False), ("e", True)]
    ) + client.publish_bytes(b"f", routing_key=queue, mandatory=True)
    # Once more: a broker may have cached the route by then, and handle them together.
    for _ in range(2):
        client.call(Tx.Commit(), Tx.CommitOk)
        client.send(published)
    client.expect_answer_first()
    client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk, 2)
    client.send_method(Tx.Commit())
    returned = [client.read_content(Basic.Return) for _ in range(4)]
    keys = [(content.method.exchange, content.method.routing_key, content.body) for content in returned]  # type: ignore[attr-defined]
    assert keys == [(exchange, "b", b"b"), (exchange, "c", b"c"), (exchange, "e", b"e"), ("", queue, b"f")]
    client.read(Tx.CommitOk)


def test_a_cc_that_comes_before_the_commit(raw: Raw, name: Name) -> None:
    """The default exchange routes to names, whether such queues exist or not."""
    client = raw().open_channel(2)
    first, second = name("q"), name("q")
    client.declare(first, channel=2)
    client.call(Tx.Select(), Tx.SelectOk)
    properties = Basic.Properties(headers={"CC": [second]})
    client.publish(b"m", routing_key=first, properties=properties)
    client.expect_answer_first()
    client.declare(second, channel=2)
    client.call(Tx.Commit(), Tx.CommitOk)
    for queue in (first, second):
        client.send_method(Basic.Get(queue=queue, no_ack=True), 2)
        assert client.read_content(Basic.GetOk, 2).body == b"m"


def test_mandatory_to_a_queue_deleted_in_the_same_read_as_the_commit(raw: Raw, name: Name) -> None:
    client = raw().open_channel(2)
    queue = client.declare(name("q"), channel=2)
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", routing_key=queue, mandatory=True)
    client.expect_answer_first()
    client.call(commands.Queue.Delete(queue=queue, nowait=False), commands.Queue.DeleteOk, 2)
    client.send(client.publish_bytes(b"n", routing_key=queue, mandatory=True) + method_bytes(Tx.Commit(), 1))
    expect_returned(client, b"m", b"n")
    client.read(Tx.CommitOk)


def test_mandatory_to_a_queue_that_comes_before_the_commit(raw: Raw, name: Name) -> None:
    """A message is routed when it is published, and its queue is looked up at the commit."""
    client = raw().open_channel(2)
    queue = name("q")
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", routing_key=queue, mandatory=True)
    client.publish(b"d", exchange="amq.direct", routing_key=queue, mandatory=True)
    client.expect_answer_first()
    client.declare(queue, channel=2)
    bind = commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=queue)
    client.call(bind, commands.Queue.BindOk, 2)
    client.send_method(Tx.Commit())
    expect_returned(client, b"d")
    client.read(Tx.CommitOk)
    client.send_method(Basic.Get(queue=queue, no_ack=True), 2)
    assert client.read_content(Basic.GetOk, 2).body == b"m"


def test_one_of_two_queues_is_enough_for_mandatory(raw: Raw, name: Name) -> None:
    client = raw().open_channel(2)
    first, second, exchange = (name(kind) for kind in ("q", "q", "x"))
    client.call(
        commands.Exchange.Declare(exchange=exchange, exchange_type="fanout"), commands.Exchange.DeclareOk, 2
    )
    for queue in (first, second):
        client.declare(queue, channel=2)
        client.call(commands.Queue.Bind(queue=queue, exchange=exchange), commands.Queue.BindOk, 2)
    client.call(Tx.Select(), Tx.SelectOk)
    client.publish(b"m", exchange=exchange, mandatory=True)
    client.expect_answer_first()
    client.call(commands.Queue.Delete(queue=first), commands.Queue.DeleteOk, 2)
    client.call(Tx.Commit(), Tx.CommitOk)
    client.publish(b"n", exchange=exchange, mandatory=True)
    client.expect_answer_first()
    client.call(commands.Queue.Delete(queue=second), commands.Queue.DeleteOk, 2)
    client.send_method(Tx.Commit())
    expect_returned(client, b"n")
    client.read(Tx.CommitOk)
