"""queue.declare, bind, unbind, purge and delete: names, flags,
equivalence, exclusive and auto-delete life.
"""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from conformance_tests.conftest import Connect, Name, Raw
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, drain, get, publish, queue_exists, sync, wait_depth, wait_for
from conformance_tests.wire import raw_method, short_string, table_bytes

LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. "
    "It could be originally declared on another connection or the exclusive property value "
    "does not match that of the original declaration"
)


def test_declare_answers_name_and_counts(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ok = ch.queue_declare(queue).method
    assert (ok.queue, ok.message_count, ok.consumer_count) == (queue, 0, 0)
    publish(ch, queue, b"1", b"2")
    wait_depth(ch, queue, 2)
    ok = ch.queue_declare(queue).method
    assert (ok.queue, ok.message_count, ok.consumer_count) == (queue, 2, 0)


def test_declare_counts_consumers_and_only_ready_messages(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"1", b"2", b"3")
    ch.basic_qos(prefetch_count=2)
    Inbox(ch, queue).take(2)
    ok = ch.queue_declare(queue).method
    assert (ok.message_count, ok.consumer_count) == (1, 1)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
def test_declare_with_each_flag_is_idempotent(
    ch: BlockingChannel, name: Name, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    queue = name("q")
    for _ in range(2):
        ch.queue_declare(queue, durable=durable, exclusive=exclusive, auto_delete=auto_delete)


def test_server_named_queues_differ(ch: BlockingChannel) -> None:
    first = ch.queue_declare("", exclusive=True).method.queue
    second = ch.queue_declare("", exclusive=True).method.queue
    assert first.startswith("amq.gen-")
    assert second.startswith("amq.gen-")
    assert first != second


def test_a_server_named_queue_is_known_only_to_a_passive_declare(ch: BlockingChannel) -> None:
    queue = ch.queue_declare("", exclusive=True).method.queue
    assert ch.queue_declare(queue, passive=True).method.queue == queue
    with expect_channel_close(
        403, rf"ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq\.\*'"
    ):
        ch.queue_declare(queue, exclusive=True)


def test_reserved_name_is_refused(ch: BlockingChannel) -> None:
    with expect_channel_close(
        403, r"ACCESS_REFUSED - queue name 'amq\.mine' contains reserved prefix 'amq\.\*'"
    ):
        ch.queue_declare("amq.mine")


def test_passive_declare_of_a_missing_reserved_name_says_not_found(ch: BlockingChannel) -> None:
    with expect_channel_close(404, r"NOT_FOUND - no queue 'amq\.mine' in vhost '/'"):
        ch.queue_declare("amq.mine", passive=True)


def test_passive_declare_of_a_missing_queue(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    with expect_channel_close(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        ch.queue_declare(queue, passive=True)


def test_passive_declare_compares_nothing(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, durable=True)
    ch.queue_declare(queue, passive=True, durable=False, auto_delete=True, arguments={"x-message-ttl": 1})


def test_an_empty_name_means_the_queue_declared_last(ch: BlockingChannel, name: Name) -> None:
    first, last = name("q"), name("q")
    ch.queue_declare(first)
    ch.queue_declare(last)
    ch.queue_bind("", "amq.direct", "alias-" + last)
    publish(ch, "alias-" + last, b"1", b"2", b"3", exchange="amq.direct")
    publish(ch, first, b"not this")
    delivery = get(ch, "")
    assert delivery is not None and delivery.body == b"1"
    inbox = Inbox(ch, "", auto_ack=True)
    assert inbox.bodies(2) == [b"2", b"3"]
    assert ch.queue_purge("").method.message_count == 0
    ch.queue_unbind("", "amq.direct", "alias-" + last)
    ch.queue_delete("")
    assert not queue_exists(ch, last)
    assert queue_exists(ch, first)


def test_an_empty_routing_key_with_an_empty_queue_name_binds_by_queue_name(
    ch: BlockingChannel, raw: Raw, name: Name
) -> None:
    queue = name("q")
    client = raw()
    client.call(commands.Queue.Declare(queue=queue), commands.Queue.DeclareOk)
    client.call(commands.Queue.Bind(queue="", exchange="amq.direct", routing_key=""), commands.Queue.BindOk)
    publish(ch, queue, b"m", exchange="amq.direct")
    assert drain(ch, queue) == [b"m"]


@pytest.mark.parametrize("operation", ["bind", "unbind", "consume", "get", "purge", "delete"])
def test_an_empty_name_before_any_declare(ch: BlockingChannel, operation: str) -> None:
    operations: dict[str, Any] = {
        "bind": lambda: ch.queue_bind("", "amq.direct", "k"),
        "unbind": lambda: ch.queue_unbind("", "amq.direct", "k"),
        "consume": lambda: Inbox(ch, ""),
        "get": lambda: ch.basic_get(""),
        "purge": lambda: ch.queue_purge(""),
        "delete": lambda: ch.queue_delete(""),
    }
    with expect_channel_close(404, "NOT_FOUND - no previously declared queue"):
        operations[operation]()


def test_an_empty_name_in_a_passive_declare_means_no_queue(ch: BlockingChannel, name: Name) -> None:
    ch.queue_declare(name("q"))
    with expect_channel_close(404, "NOT_FOUND - no queue '' in vhost '/'"):
        ch.queue_declare("", passive=True)


def test_line_breaks_are_removed_from_a_name(raw: Raw, name: Name) -> None:
    # Not with pika, which waits for an answer that repeats the name it sent.
    queue = name("q")
    declare = raw_method(
        50, 10, b"\0\0" + short_string(f"{queue[:-2]}\r\n{queue[-2:]}".encode()) + b"\0" + table_bytes({})
    )
    client = raw()
    client.send(declare)
    assert client.read(commands.Queue.DeclareOk).queue == queue


def test_a_name_may_be_any_utf8(ch: BlockingChannel, name: Name) -> None:
    queue = name("Warteschlange für ☂ ")
    assert ch.queue_declare(queue).method.queue == queue


def test_a_name_of_255_bytes(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    long_name = queue + "y" * (255 - len(queue))
    assert ch.queue_declare(long_name).method.queue == long_name
    publish(ch, long_name, b"m")
    assert drain(ch, long_name) == [b"m"]
    ch.queue_delete(long_name)


def test_no_wait_methods_are_answered_by_nothing(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    queue = name("q")
    client = raw()
    client.send_method(commands.Queue.Declare(queue=queue, nowait=True))
    client.send_method(commands.Queue.Bind(queue=queue, exchange="amq.fanout", nowait=True))
    client.publish(b"1", routing_key=queue)
    client.send_method(commands.Queue.Purge(queue=queue, nowait=True))
    client.publish(b"2", routing_key=queue)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    got = client.read_content(commands.Basic.GetOk)
    assert got.body == b"2"
    client.send_method(commands.Queue.Delete(queue=queue, nowait=True))
    client.expect_answer_first()
    wait_for(lambda: not queue_exists(ch, queue), "the queue to be deleted")


def test_an_empty_name_follows_a_no_wait_declare(raw: Raw, name: Name) -> None:
    queue = name("q")
    client = raw()
    client.send_method(commands.Queue.Declare(queue=queue, nowait=True))
    client.publish(b"m", routing_key=queue)
    client.send_method(commands.Basic.Get(queue="", no_ack=True))
    assert client.read_content(commands.Basic.GetOk).body == b"m"


# --- equivalence ---


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"durable": True}, "'durable' for Q: received 'true' but current is 'false'"),
        ({"durable": True}, {}, "'durable' for Q: received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "'auto_delete' for Q: received 'true' but current is 'false'"),
        ({"auto_delete": True}, {}, "'auto_delete' for Q: received 'false' but current is 'true'"),
    ],
)
def test_inequivalent_flags(
    ch: BlockingChannel, name: Name, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    queue = name("q")
    ch.queue_declare(queue, **first)
    text = text.replace("Q", f"queue '{queue}' in vhost '/'")
    with expect_channel_close(406, f"PRECONDITION_FAILED - inequivalent arg {text}"):
        ch.queue_declare(queue, **second)


@pytest.mark.parametrize(
    ("argument", "value", "other"),
    [
        ("x-message-ttl", 10, 20),
        ("x-expires", 60_000, 70_000),
        ("x-max-length", 10, 20),
        ("x-max-length-bytes", 10, 20),
        ("x-max-priority", 5, 6),
        ("x-dead-letter-exchange", "a", "b"),
        ("x-overflow", "drop-head", "reject-publish"),
        ("x-single-active-consumer", True, False),
    ],
)
def test_inequivalent_argument(
    ch: BlockingChannel, name: Name, argument: str, value: Any, other: Any
) -> None:
    queue = name("q")
    kind = {int: "signedint", str: "longstr", bool: "bool"}[type(value)]
    shown, shown_other = (str(v).lower() if isinstance(v, bool) else v for v in (value, other))
    where = f"for queue '{queue}' in vhost '/'"
    ch.queue_declare(queue, arguments={argument: value})
    ch.queue_declare(queue, arguments={argument: value})
    with expect_channel_close(
        406, f"inequivalent arg '{argument}' {where}: received '{shown_other}' but current is '{shown}'"
    ):
        ch.queue_declare(queue, arguments={argument: other})
    ch = ch.connection.channel()
    with expect_channel_close(
        406,
        f"inequivalent arg '{argument}' {where}: received none but current is the value '{shown}' of type '{kind}'",
    ):
        ch.queue_declare(queue)
    ch = ch.connection.channel()
    ch.queue_delete(queue)
    ch.queue_declare(queue)
    with expect_channel_close(
        406,
        f"inequivalent arg '{argument}' {where}: received the value '{shown}' of type '{kind}' but current is none",
    ):
        ch.queue_declare(queue, arguments={argument: value})


def test_inequivalent_dead_letter_routing_key(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    with expect_channel_close(
        406,
        f"inequivalent arg 'x-dead-letter-routing-key' for queue '{queue}' in vhost '/': "
        "received 'b' but current is 'a'",
    ):
        ch.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires", "x-max-length", "x-max-priority"])
def test_integers_of_different_width_are_equivalent(ch: BlockingChannel, name: Name, argument: str) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={argument: 100})
    ch.queue_declare(queue, arguments={argument: long(100)})


def test_arguments_that_the_broker_does_not_know_are_not_compared(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments={"my-key": ["a", 1], "x-unheard-of": {"b": True}})
    ch.queue_declare(queue, arguments={"my-key": 1})
    ch.queue_declare(queue)


# --- bind, unbind ---


def test_bind_of_a_missing_queue(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    with expect_channel_close(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        ch.queue_bind(queue, "amq.direct", "k")


def test_bind_to_a_missing_exchange(ch: BlockingChannel, name: Name) -> None:
    queue, exchange = name("q"), name("x")
    ch.queue_declare(queue)
    with expect_channel_close(404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"):
        ch.queue_bind(queue, exchange, "k")


def test_unbind_of_what_is_missing_is_no_error(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    ch.queue_unbind(queue, "amq.direct", "never bound")
    ch.queue_unbind(queue, name("no-such-exchange"), "k")
    ch.queue_unbind(name("no-such-queue"), "amq.direct", "k")


def test_bind_twice_is_one_binding(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    ch.queue_bind(queue, "amq.direct", queue)
    ch.queue_bind(queue, "amq.direct", queue)
    publish(ch, queue, b"1", exchange="amq.direct")
    ch.queue_unbind(queue, "amq.direct", queue)
    publish(ch, queue, b"2", exchange="amq.direct")
    assert drain(ch, queue) == [b"1"]


# --- purge, delete ---


def test_purge_answers_the_count_and_spares_the_unacked(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"1", b"2", b"3")
    unacked = get(ch, queue, auto_ack=False)
    assert unacked is not None
    assert ch.queue_purge(queue).method.message_count == 2
    ch.basic_reject(unacked.tag, requeue=True)
    assert drain(ch, queue) == [b"1"]


def test_purge_of_a_missing_queue(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    with expect_channel_close(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        ch.queue_purge(queue)


def test_delete_answers_the_count(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"1", b"2", b"3")
    assert ch.queue_delete(queue).method.message_count == 3
    assert not queue_exists(ch, queue)


def test_delete_of_a_missing_queue_is_no_error(ch: BlockingChannel, name: Name) -> None:
    assert ch.queue_delete(name("q")).method.message_count == 0


def test_delete_if_empty(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"1")
    with expect_channel_close(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        ch.queue_delete(queue, if_empty=True)
    ch = ch.connection.channel()
    ch.queue_purge(queue)
    ch.queue_delete(queue, if_empty=True)
    assert not queue_exists(ch, queue)


def test_delete_if_empty_counts_what_others_have_confirmed(
    ch: BlockingChannel, connect: Connect, name: Name
) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    other = connect().channel()
    other.confirm_delivery()
    for count in range(1, 6):
        publish(other, queue, b"m")
        assert ch.queue_declare(queue, passive=True).method.message_count == count
        with expect_channel_close(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
            ch.queue_delete(queue, if_empty=True)
        ch = ch.connection.channel()


def test_what_is_published_behind_a_delete_if_empty_goes_nowhere(
    ch: BlockingChannel, connect: Connect, name: Name
) -> None:
    """In whatever order the broker takes them: the delete is refused, or the message went to no queue."""
    queue = name("q")
    deleter = ch.connection.channel()
    other = connect().channel()
    other.confirm_delivery()
    ch.queue_declare(queue)
    deleter.queue_delete(queue, if_empty=True)
    publish(other, queue, b"m")
    ch.queue_declare(queue)
    assert drain(ch, queue) == []


def test_delete_if_unused(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    consumer = ch.connection.channel()
    inbox = Inbox(consumer, queue)
    with expect_channel_close(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        ch.queue_delete(queue, if_unused=True)
    consumer.basic_cancel(inbox.tag)
    ch = ch.connection.channel()
    ch.queue_delete(queue, if_unused=True)
    assert not queue_exists(ch, queue)


def test_a_deleted_queue_leaves_no_bindings_and_no_messages(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    ch.queue_bind(queue, "amq.direct", queue)
    publish(ch, queue, b"1")
    ch.queue_delete(queue)
    ch.queue_declare(queue)
    publish(ch, queue, b"2", exchange="amq.direct")
    assert drain(ch, queue) == []


def test_an_ack_after_the_queue_was_deleted_is_fine(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, b"1", b"2")
    first, second = (get(ch, queue, auto_ack=False) for _ in range(2))
    assert first and second
    ch.queue_delete(queue)
    ch.basic_ack(first.tag)
    ch.basic_reject(second.tag, requeue=True)
    sync(ch)


# --- exclusive ---


@pytest.mark.parametrize(
    "operation",
    ["declare", "declare not exclusive", "passive", "bind", "unbind", "consume", "get", "purge", "delete"],
)
def test_exclusive_queue_is_locked_to_others(
    ch: BlockingChannel, connect: Connect, name: Name, operation: str
) -> None:
    queue = name("q")
    ch.queue_declare(queue, exclusive=True)
    ch.queue_bind(queue, "amq.direct", "k")
    other = connect().channel()
    operations: dict[str, Any] = {
        "declare": lambda: other.queue_declare(queue, exclusive=True),
        "declare not exclusive": lambda: other.queue_declare(queue),
        "passive": lambda: other.queue_declare(queue, passive=True),
        "bind": lambda: other.queue_bind(queue, "amq.direct", "k"),
        "unbind": lambda: other.queue_unbind(queue, "amq.direct", "k"),
        "consume": lambda: Inbox(other, queue),
        "get": lambda: other.basic_get(queue),
        "purge": lambda: other.queue_purge(queue),
        "delete": lambda: other.queue_delete(queue),
    }
    expected = LOCKED.format(queue)
    with expect_channel_close(405, f"^{expected[:230]}"):
        operations[operation]()


def test_exclusive_queue_takes_messages_of_others(ch: BlockingChannel, connect: Connect, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, exclusive=True)
    other = connect().channel()
    publish(other, queue, b"m")
    sync(other)
    assert drain(ch, queue) == [b"m"]


def test_exclusive_queue_is_open_to_all_channels_of_its_connection(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, exclusive=True)
    other = ch.connection.channel()
    other.queue_declare(queue, exclusive=True)
    publish(other, queue, b"m")
    assert drain(other, queue) == [b"m"]


@pytest.mark.parametrize("declared", [True, False])
def test_exclusive_must_be_declared_as_it_is(ch: BlockingChannel, name: Name, declared: bool) -> None:
    queue = name("q")
    ch.queue_declare(queue, exclusive=declared)
    with expect_channel_close(405, f"^{LOCKED.format(queue)[:230]}"):
        ch.queue_declare(queue, exclusive=not declared)


@pytest.mark.parametrize("durable", [False, True])
def test_exclusive_queue_goes_with_its_connection(
    ch: BlockingChannel, connect: Connect, name: Name, durable: bool
) -> None:
    queue = name("q")
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True, durable=durable)
    owner.close()
    wait_for(lambda: not queue_exists(ch, queue), "the exclusive queue to go")


def test_exclusive_queue_goes_when_the_socket_breaks(ch: BlockingChannel, raw: Raw, name: Name) -> None:
    queue = name("q")
    owner = raw()
    owner.call(commands.Queue.Declare(queue=queue, exclusive=True), commands.Queue.DeclareOk)
    owner.abort()
    wait_for(lambda: not queue_exists(ch, queue), "the exclusive queue to go")


def test_exclusive_queue_stays_when_its_channel_closes(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    channel = ch.connection.channel()
    channel.queue_declare(queue, exclusive=True)
    channel.close()
    assert queue_exists(ch, queue)


# --- auto-delete ---


def test_auto_delete_queue_goes_with_its_last_consumer(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, auto_delete=True)
    first, second = Inbox(ch, queue), Inbox(ch, queue)
    ch.basic_cancel(first.tag)
    assert queue_exists(ch, queue)
    ch.basic_cancel(second.tag)
    wait_for(lambda: not queue_exists(ch, queue), "the queue to go")


def test_auto_delete_queue_stays_until_it_had_a_consumer(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, auto_delete=True)
    publish(ch, queue, b"1")
    assert drain(ch, queue) == [b"1"]
    assert queue_exists(ch, queue)


@pytest.mark.parametrize("ending", ["channel", "connection", "socket"])
def test_auto_delete_queue_goes_when_its_consumer_goes(
    ch: BlockingChannel, raw: Raw, name: Name, ending: str
) -> None:
    queue = name("q")
    consumer = raw()
    consumer.call(commands.Queue.Declare(queue=queue, auto_delete=True), commands.Queue.DeclareOk)
    consumer.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    if ending == "channel":
        consumer.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    elif ending == "connection":
        consumer.close()
    else:
        consumer.abort()
    wait_for(lambda: not queue_exists(ch, queue), "the queue to go")
