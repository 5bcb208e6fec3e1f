"""Message groups, an extension: messages of one group go to one consumer at a time, and in order."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Delivery, Inbox, get, numbered, publish, pump, pump_until, sync, wait_get

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def declare(ch: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> str:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    arguments = {"x-queue-type": kind, "x-message-groups": True, **given}
    ch.queue_declare(queue, durable=True, arguments=arguments)
    # A broker without groups takes what it does not know, and fails here.
    with expect_channel_close(406, "inequivalent arg 'x-message-groups'"):
        other = ch.connection.channel()
        other.queue_declare(queue, durable=True, arguments={**arguments, "x-message-groups": False})
    return queue


def send(ch: BlockingChannel, queue: str, groups: str, *, first: int = 0, exchange: str = "") -> None:
    """Send numbered messages, each of the group with this letter; a dot is for none."""
    for number, group in enumerate(groups, first):
        headers = {} if group == "." else {"x-group-id": group}
        publish(ch, queue, b"%d" % number, exchange=exchange, headers=headers, delivery_mode=2)


def group_of(delivery: Delivery) -> str:
    return str(delivery.headers.get("x-group-id", "."))


@KINDS
def test_a_group_is_with_one_consumer_at_a_time(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=3)
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(3)]
    send(ch, queue, "abcdefgh" * 6)
    holding: dict[str, str] = {}
    unacked: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    done = 0
    while done < 48:
        # What is left may be of groups that consumers without room have.
        pump_until(ch, lambda: bool(unacked) or any(inbox.deliveries for inbox in inboxes))
        sync(ch)
        for inbox in inboxes:
            for delivery in inbox.deliveries:
                group, number = group_of(delivery), int(delivery.body)
                assert holding.setdefault(group, inbox.tag) == inbox.tag
                assert number > last.get(group, -1)
                last[group] = number
                unacked.setdefault(group, []).append(delivery.tag)
            inbox.deliveries.clear()
        # Ack all of one group: it is free then.
        group = next(iter(unacked))
        for tag in unacked.pop(group):
            ch.basic_ack(tag)
            done += 1
        del holding[group]


@KINDS
def test_a_long_group_keeps_no_others_waiting(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=1)
    send(ch, queue, "a" * 200 + "b.c")
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(4)]
    pump_until(ch, lambda: all(inbox.deliveries for inbox in inboxes))
    assert sorted(inbox.one().body for inbox in inboxes) == [b"0", b"200", b"201", b"202"]


@KINDS
def test_messages_come_back_in_order(connect: Connect, name: Name, kind: str) -> None:
    """To one consumer, when the one that had their groups is gone."""
    ch, gone = connect().channel(), connect().channel()
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    gone.basic_qos(prefetch_count=6)
    lost = Inbox(gone, queue)
    send(ch, queue, "ab" * 5)
    assert lost.bodies(6) == numbered(6)
    ch.basic_qos(prefetch_count=100)
    inbox = Inbox(ch, queue)
    sync(ch)
    inbox.nothing_more()
    gone.connection.close()
    found = inbox.take(10)
    for group in "ab":
        mine = [int(delivery.body) for delivery in found if group_of(delivery) == group]
        assert mine == sorted(mine) and len(mine) == 5
    assert [delivery.redelivered for delivery in found] == [int(delivery.body) < 6 for delivery in found]


@KINDS
def test_a_requeued_message_comes_before_the_next_of_its_group(
    ch: BlockingChannel, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=1)
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(2)]
    send(ch, queue, "aaa")
    for number in (0, 0, 0, 1, 2):
        pump_until(ch, lambda: any(inbox.deliveries for inbox in inboxes))
        (delivery,) = [each for inbox in inboxes for each in inbox.deliveries]
        for inbox in inboxes:
            inbox.deliveries.clear()
        assert delivery.body == b"%d" % number
        if number == 0 and delivery.tag < 3:
            ch.basic_nack(delivery.tag)
        else:
            ch.basic_ack(delivery.tag)


@KINDS
def test_a_header_of_another_name(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind, message_group_header="customer")
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=1)
    for number, customer in enumerate(("Ä", "Ä", "b")):
        publish(ch, queue, b"%d" % number, headers={"x-group-id": "same", "customer": customer})
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(3)]
    pump_until(ch, lambda: sum(len(inbox.deliveries) for inbox in inboxes) == 2)
    pump(ch, 0.2)
    assert sorted(each.body for inbox in inboxes for each in inbox.deliveries) == [b"0", b"2"]


@KINDS
def test_gets_leave_groups_to_those_who_have_them(connect: Connect, name: Name, kind: str) -> None:
    ch, other = connect().channel(), connect().channel()
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    send(ch, queue, "aab")
    assert wait_get(ch, queue, auto_ack=False).body == b"0"
    # Another channel may not have the rest of the group.
    assert wait_get(other, queue, auto_ack=False).body == b"2"
    assert get(other, queue) is None
    assert wait_get(ch, queue, auto_ack=False).body == b"1"


@pytest.mark.parametrize("how", ["stop", "kill"])
@KINDS
def test_groups_outlive_the_broker(broker: Broker, connect: Connect, name: Name, kind: str, how: str) -> None:
    if not isinstance(broker, OwnBroker):
        pytest.skip("only for a broker that the suite started itself")
    ch = connect().channel()
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=2)
    inbox = Inbox(ch, queue)
    send(ch, queue, "aaaabbbb")
    assert inbox.bodies(2) == [b"0", b"1"]
    broker.restart(kill=how == "kill")
    ch = connect().channel()
    ch.basic_qos(prefetch_count=1)
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(3)]
    pump_until(ch, lambda: sum(len(inbox.deliveries) for inbox in inboxes) == 2)
    pump(ch, 0.2)
    assert sorted(each.body for inbox in inboxes for each in inbox.deliveries) == [b"0", b"4"]
    ch.queue_delete(queue)


@KINDS
def test_dead_letters_keep_their_groups(ch: BlockingChannel, name: Name, kind: str) -> None:
    dead = declare(ch, name("dead"), kind)
    queue = declare(ch, name("q"), kind, dead_letter_exchange="", dead_letter_routing_key=dead)
    ch.confirm_delivery()
    ch.basic_qos(prefetch_count=1)
    send(ch, queue, "aab")
    for _ in range(3):
        ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    inboxes = [Inbox(ch, dead, tag=f"c{number}") for number in range(3)]
    pump_until(ch, lambda: sum(len(inbox.deliveries) for inbox in inboxes) == 2)
    pump(ch, 0.2)
    found = [each for inbox in inboxes for each in inbox.deliveries]
    assert sorted(each.body for each in found) == [b"0", b"2"]
    assert {(each.exchange, each.routing_key) for each in found} == {("", dead)}


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (7, "it must be a text"),
        (True, "it must be a text"),
        (["a"], "it must be a text"),
        ("x" * 256, "it has 256 bytes, and a group's id has at most 255"),
    ],
)
def test_groups_that_are_refused(ch: BlockingChannel, name: Name, group: object, why: str) -> None:
    queue = declare(ch, name("q"))
    other = ch.connection.channel()
    other.basic_publish("", queue, b"before")
    with expect_channel_close(
        406, f"invalid header 'x-group-id', the group of a message for queue '{queue}'"
    ):
        publish(other, queue, b"bad", headers={"x-group-id": group})
        publish(other, queue, b"behind")
        sync(other)
    assert wait_get(ch, queue).body == b"before"
    assert get(ch, queue) is None


def test_other_queues_do_not_look(ch: BlockingChannel, name: Name) -> None:
    declare(ch, name("grouped"))
    queue = name("q")
    ch.queue_declare(queue)
    ch.confirm_delivery()
    for group in (7, "x" * 300):
        publish(ch, queue, b"m", headers={"x-group-id": group})
        assert wait_get(ch, queue).headers["x-group-id"] == group


@pytest.mark.parametrize(
    ("arguments", "argument", "why"),
    [
        ({"max_priority": 5}, "x-message-groups", "has no message groups"),
        ({"single_active_consumer": True}, "x-message-groups", "one consumer has all messages"),
        ({"message_group_header": ""}, "x-message-group-header", "a header has a name"),
        ({"message_group_header": "x" * 256}, "x-message-group-header", "too_long"),
        ({"message_groups": "yes"}, "x-message-groups", "unacceptable_type"),
        (
            {"message_groups": False, "message_group_header": "a"},
            "x-message-group-header",
            "x-message-groups is false",
        ),
    ],
)
def test_arguments_that_are_refused(
    ch: BlockingChannel, name: Name, arguments: dict[str, Any], argument: str, why: str
) -> None:
    queue = name("q")
    with expect_channel_close(406, f"invalid arg '{argument}' for queue '{queue}' in vhost '/': .*{why}"):
        given = {f"x-{each.replace('_', '-')}": value for each, value in arguments.items()}
        ch.queue_declare(queue, durable=True, arguments={"x-message-groups": True, **given})


@KINDS
@pytest.mark.parametrize("first", ["a", "ab"])
def test_groups_of_what_a_transaction_publishes(connect: Connect, name: Name, kind: str, first: str) -> None:
    ch, other = connect().channel(), connect().channel()
    queue = declare(ch, name("q"), kind)
    other.tx_select()
    send(other, queue, first)
    # The rest comes by another read.
    sync(other)
    send(other, queue, "cba", first=len(first))
    other.tx_commit()
    ch.basic_qos(prefetch_count=1)
    inboxes = [Inbox(ch, queue, tag=f"c{number}") for number in range(5)]
    pump_until(ch, lambda: sum(len(inbox.deliveries) for inbox in inboxes) == 3)
    pump(ch, 0.2)
    assert sorted(group_of(each) for inbox in inboxes for each in inbox.deliveries) == ["a", "b", "c"]


@KINDS
def test_a_transaction_holds_the_groups_that_it_acks(connect: Connect, name: Name, kind: str) -> None:
    ch, other = connect().channel(), connect().channel()
    queue = declare(ch, name("q"), kind)
    send(ch, queue, "aa")
    ch.tx_select()
    first = wait_get(ch, queue, auto_ack=False)
    ch.basic_ack(first.tag)
    assert get(other, queue) is None
    ch.tx_commit()
    assert wait_get(other, queue).body == b"1"
