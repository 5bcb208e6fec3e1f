"""basic.qos: prefetch per consumer and per channel."""

from __future__ import annotations

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from conformance_tests.conftest import Name, Raw
from conformance_tests.inbox import Inbox, depth, get, numbered, publish, pump_until


def filled(ch: BlockingChannel, name: Name, count: int) -> str:
    queue = name("q")
    ch.queue_declare(queue)
    publish(ch, queue, *numbered(count))
    return queue


@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetch_limits_the_unacked_of_a_consumer(ch: BlockingChannel, name: Name, prefetch: int) -> None:
    queue = filled(ch, name, 10)
    ch.basic_qos(prefetch_count=prefetch)
    inbox = Inbox(ch, queue)
    got = inbox.take(prefetch)
    inbox.nothing_more()
    ch.basic_ack(got[0].tag)
    assert inbox.bodies(1) == [b"%d" % prefetch]
    inbox.nothing_more()


def test_prefetch_zero_is_no_limit(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 2000)
    ch.basic_qos(prefetch_count=0)
    assert Inbox(ch, queue).bodies(2000) == numbered(2000)


def test_prefetch_does_not_limit_a_consumer_without_acks(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 20)
    ch.basic_qos(prefetch_count=1)
    assert Inbox(ch, queue, auto_ack=True).bodies(20) == numbered(20)


def test_get_ignores_the_prefetch(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 3)
    ch.basic_qos(prefetch_count=1)
    assert all(get(ch, queue, auto_ack=False) for _ in range(3))


def test_each_consumer_has_a_prefetch_of_its_own(ch: BlockingChannel, name: Name) -> None:
    first_queue, second_queue = filled(ch, name, 5), filled(ch, name, 5)
    ch.basic_qos(prefetch_count=2)
    first, second = Inbox(ch, first_queue), Inbox(ch, second_queue)
    first.take(2)
    second.take(2)
    first.nothing_more()
    second.nothing_more()


def test_qos_after_consume_holds_for_later_consumers_only(ch: BlockingChannel, name: Name) -> None:
    first_queue, second_queue = filled(ch, name, 5), filled(ch, name, 5)
    ch.basic_qos(prefetch_count=1)
    first = Inbox(ch, first_queue)
    ch.basic_qos(prefetch_count=3)
    second = Inbox(ch, second_queue)
    first.take(1)
    second.take(3)
    first.nothing_more()
    second.nothing_more()


def test_global_qos_is_shared_by_the_consumers_of_the_channel(ch: BlockingChannel, name: Name) -> None:
    queues = [filled(ch, name, 5) for _ in range(2)]
    ch.basic_qos(prefetch_count=3, global_qos=True)
    first, second = (Inbox(ch, queue) for queue in queues)
    got = first.take(3)
    second.nothing_more()
    ch.basic_ack(got[0].tag)
    ch.basic_ack(got[1].tag)
    ch.connection.process_data_events(0.2)
    ch.connection.process_data_events(0.1)
    assert len(first.deliveries) + len(second.deliveries) == 5


def test_global_qos_holds_at_once(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 10)
    ch.basic_qos(prefetch_count=2, global_qos=True)
    inbox = Inbox(ch, queue)
    inbox.take(2)
    inbox.nothing_more()
    ch.basic_qos(prefetch_count=5, global_qos=True)
    inbox.take(3)
    inbox.nothing_more()
    ch.basic_qos(prefetch_count=0, global_qos=True)
    inbox.take(5)


def test_both_limits_hold(ch: BlockingChannel, name: Name) -> None:
    queues = [filled(ch, name, 10) for _ in range(3)]
    ch.basic_qos(prefetch_count=2)
    ch.basic_qos(prefetch_count=5, global_qos=True)
    inboxes = [Inbox(ch, queue) for queue in queues]
    inboxes[0].take(2)
    inboxes[1].take(2)
    inboxes[2].take(1)
    for inbox in inboxes:
        inbox.nothing_more(0.1)


def ends(ch: BlockingChannel, queue: str, first: Inbox, how: str) -> None:
    """Wait until the queue is gone, whose deliveries stay unacked."""
    other = ch.connection.channel()
    if how == "is deleted":
        other.queue_delete(queue)
        first.await_cancel()
    else:
        # It goes when it has no consumers, at once or some time later.
        ch.basic_cancel(first.tag)
    pump_until(ch, lambda: not exists(ch, queue))


def exists(ch: BlockingChannel, queue: str) -> bool:
    asking = ch.connection.channel()
    try:
        asking.queue_declare(queue, passive=True)
    except ChannelClosedByBroker:
        return False
    asking.close()
    return True


@pytest.mark.parametrize("how", ["is deleted", "auto-delete", "expires"])
def test_global_qos_counts_deliveries_of_a_queue_that_is_gone(
    ch: BlockingChannel, name: Name, how: str
) -> None:
    first_queue, second_queue = name("q"), filled(ch, name, 5)
    arguments: dict[str, object] = {"x-expires": 300} if how == "expires" else {}
    ch.queue_declare(first_queue, auto_delete=how == "auto-delete", arguments=arguments)
    publish(ch, first_queue, *numbered(5))
    ch.basic_qos(prefetch_count=3, global_qos=True)
    first = Inbox(ch, first_queue)
    held = first.take(3)
    ends(ch, first_queue, first, how)
    second = Inbox(ch, second_queue)
    second.nothing_more()
    # Each ack makes room for one, whatever the verb is.
    ch.basic_ack(held[0].tag)
    got = second.take(1)
    second.nothing_more()
    ch.basic_nack(held[2].tag, multiple=True, requeue=True)
    got += second.take(2)
    second.nothing_more()
    ch.basic_ack(got[-1].tag, multiple=True)
    second.take(2)


def test_global_qos_counts_deliveries_of_cancelled_consumers(ch: BlockingChannel, name: Name) -> None:
    queues = [filled(ch, name, 5) for _ in range(2)]
    ch.basic_qos(prefetch_count=3, global_qos=True)
    first = Inbox(ch, queues[0])
    held = first.take(2)
    first.take(1)
    ch.basic_cancel(first.tag)
    ch.queue_purge(queues[0])
    second = Inbox(ch, queues[1])
    second.nothing_more()
    ch.basic_ack(held[1].tag, multiple=True)
    second.take(2)
    second.nothing_more()


def test_channels_have_their_own_global_limit(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 10)
    other = ch.connection.channel()
    for channel in (ch, other):
        channel.basic_qos(prefetch_count=2, global_qos=True)
    Inbox(ch, queue).take(2)
    Inbox(other, queue).take(2)


def test_ack_multiple_gives_all_the_credit_back(ch: BlockingChannel, name: Name) -> None:
    queue = filled(ch, name, 10)
    ch.basic_qos(prefetch_count=4)
    inbox = Inbox(ch, queue)
    got = inbox.take(4)
    ch.basic_ack(got[-1].tag, multiple=True)
    assert inbox.bodies(4) == numbered(4, start=4)


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_refused_message_gives_its_credit_back(ch: BlockingChannel, name: Name, how: str) -> None:
    queue = filled(ch, name, 2)
    ch.basic_qos(prefetch_count=1)
    inbox = Inbox(ch, queue)
    tag = inbox.one().tag
    if how == "reject":
        ch.basic_reject(tag, requeue=False)
    else:
        ch.basic_nack(tag, requeue=False)
    assert inbox.bodies(1) == [b"1"]


def test_a_cancelled_consumer_keeps_its_share_of_the_global_limit(
    ch: BlockingChannel, raw: Raw, name: Name
) -> None:
    queue = filled(ch, name, 4)
    client = raw()
    client.call(commands.Basic.Qos(prefetch_count=1, global_=True), commands.Basic.QosOk)
    client.call(commands.Basic.Consume(queue=queue, consumer_tag="a"), commands.Basic.ConsumeOk)
    first = client.read_content()
    client.call(commands.Basic.Cancel(consumer_tag="a"), commands.Basic.CancelOk)
    client.call(commands.Basic.Consume(queue=queue, consumer_tag="b"), commands.Basic.ConsumeOk)
    client.expect_silence()
    assert isinstance(first.method, commands.Basic.Deliver) and first.method.delivery_tag is not None
    client.send_method(commands.Basic.Ack(first.method.delivery_tag))
    assert client.read_content().body == b"1"


def test_prefetch_size_is_refused(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Basic.Qos(prefetch_size=1000))
    client.expect_connection_close(540, r"NOT_IMPLEMENTED - prefetch_size!=0 \(1000\)", (60, 10))


# --- global prefetch: whose turn it is ---


@pytest.mark.parametrize("step", [1, 2, 4])
def test_queues_share_a_global_prefetch(ch: BlockingChannel, name: Name, step: int) -> None:
    """Free prefetch goes to three queues about evenly: RabbitMQ chooses the first one at random each time, so
    that after 150 choices each has between a sixth and a half of it (4 standard deviations).
    """
    prefetch, rounds = 4, 150
    queues = [filled(ch, name, 100 * step) for _ in range(3)]
    ch.basic_qos(prefetch_count=prefetch, global_qos=True)
    inboxes = [Inbox(ch, queue) for queue in queues]
    for done in range(step, rounds * step + 1, step):
        wait_for_deliveries(ch, inboxes, done + prefetch - step)
        ch.basic_ack(done, multiple=True)
    shares = [len(inbox.deliveries) for inbox in inboxes]
    assert sum(shares) / 6 <= min(shares) and max(shares) <= sum(shares) / 2, shares


def wait_for_deliveries(ch: BlockingChannel, inboxes: list[Inbox], count: int) -> None:
    pump_until(ch, lambda: sum(len(inbox.deliveries) for inbox in inboxes) >= count)


def test_a_queue_that_has_nothing_takes_no_turn(ch: BlockingChannel, name: Name) -> None:
    empty, full = filled(ch, name, 0), filled(ch, name, 50)
    ch.basic_qos(prefetch_count=1, global_qos=True)
    nobody, inbox = Inbox(ch, empty), Inbox(ch, full)
    for number in range(50):
        delivery = inbox.one()
        assert delivery.body == b"%d" % number
        ch.basic_ack(delivery.tag)
    nobody.nothing_more(0.1)


def test_a_consumer_without_acks_waits_for_a_full_global_prefetch(ch: BlockingChannel, name: Name) -> None:
    # No more than the limit: the prefetch that an ack frees goes to the first one that asks.
    acked, free = filled(ch, name, 2), filled(ch, name, 5)
    ch.basic_qos(prefetch_count=2, global_qos=True)
    held = Inbox(ch, acked).take(2)
    unacked = Inbox(ch, free, auto_ack=True)
    unacked.nothing_more()
    assert depth(ch, free) == 5
    ch.basic_ack(held[-1].tag, multiple=True)
    unacked.take(1)


def test_a_consumer_without_acks_takes_no_room(ch: BlockingChannel, name: Name) -> None:
    acked, free = filled(ch, name, 3), filled(ch, name, 20)
    ch.basic_qos(prefetch_count=3, global_qos=True)
    assert Inbox(ch, free, auto_ack=True).bodies(20) == numbered(20)
    Inbox(ch, acked).take(3)


def test_messages_published_to_a_consumer_without_acks_wait_too(ch: BlockingChannel, name: Name) -> None:
    acked, free = filled(ch, name, 1), filled(ch, name, 0)
    ch.basic_qos(prefetch_count=1, global_qos=True)
    held = Inbox(ch, acked).one()
    unacked = Inbox(ch, free, auto_ack=True)
    publish(ch, free, *numbered(3))
    unacked.nothing_more()
    ch.basic_ack(held.tag)
    assert unacked.bodies(3) == numbered(3)


@pytest.mark.parametrize("how", ["nack", "recover", "lift"])
def test_room_comes_free_for_all(ch: BlockingChannel, name: Name, how: str) -> None:
    first, second = filled(ch, name, 2), filled(ch, name, 2)
    ch.basic_qos(prefetch_count=2, global_qos=True)
    got, waiting = Inbox(ch, first), Inbox(ch, second)
    held = got.take(2)
    waiting.nothing_more()
    if how == "nack":
        ch.basic_nack(held[-1].tag, multiple=True, requeue=False)
    elif how == "recover":
        ch.basic_cancel(got.tag)
        ch.basic_recover(requeue=True)
    else:
        ch.basic_qos(prefetch_count=0, global_qos=True)
    assert waiting.bodies(2) == numbered(2)
