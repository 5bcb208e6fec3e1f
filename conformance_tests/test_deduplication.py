"""Publisher deduplication: an extension, so a broker without it has a deviation. See docs/confirms.md."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import depth, drain, get, publish, wait_depth, wait_drain, wait_get

ON: dict[str, Any] = {"x-deduplication": True}
TYPES = pytest.mark.parametrize("queue_type", ["classic", "quorum"])


def declare(ch: BlockingChannel, queue: str, queue_type: str = "classic", **arguments: Any) -> str:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type, **ON, **given})
    return queue


def with_id(ch: BlockingChannel, queue: str, body: bytes, id: str) -> None:
    publish(ch, queue, body, headers={"x-deduplication-id": id}, delivery_mode=2)


def in_sequence(ch: BlockingChannel, queue: str, body: bytes, producer: str, sequence: int) -> None:
    publish(ch, queue, body, headers={"x-producer": producer, "x-sequence": sequence}, delivery_mode=2)


@TYPES
def test_an_id_is_taken_once(ch: BlockingChannel, name: Name, queue_type: str) -> None:
    queue = declare(ch, name("q"), queue_type)
    ch.confirm_delivery()
    for body, id in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b" * 300), (b"5", "b" * 300)):
        with_id(ch, queue, body, id)
    publish(ch, queue, b"6")
    publish(ch, queue, b"7", headers={"x-deduplication-id": 5})
    publish(ch, queue, b"8", headers={"x-deduplication-id": 5})
    assert wait_drain(ch, queue, 6) == [b"1", b"2", b"4", b"6", b"7", b"8"]
    with_id(ch, queue, b"late", "a")
    assert depth(ch, queue) == 0


@TYPES
def test_a_sequence_only_rises(ch: BlockingChannel, name: Name, queue_type: str) -> None:
    queue = declare(ch, name("q"), queue_type)
    ch.confirm_delivery()
    for body, producer, sequence in (
        (b"1", "p", 5), (b"2", "p", 5), (b"3", "p", 4), (b"4", "p", 9), (b"5", "q", 1), (b"6", "p", 10), (b"7", "q", -1)
    ):  # fmt: skip
        in_sequence(ch, queue, body, producer, sequence)
    assert wait_drain(ch, queue, 4) == [b"1", b"4", b"5", b"6"]
    assert depth(ch, queue) == 0


def test_duplicates_in_one_batch(ch: BlockingChannel, name: Name) -> None:
    """The publisher does not wait for confirms in between."""
    queue = declare(ch, name("q"))
    for number in range(100):
        with_id(ch, queue, b"%d" % number, str(number % 10))
    wait_depth(ch, queue, 10)
    assert drain(ch, queue) == [b"%d" % number for number in range(10)]


def test_the_count_is_a_bound(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), x_deduplication_count=2)
    ch.confirm_delivery()
    for body, id in ((b"1", "a"), (b"2", "b"), (b"3", "c"), (b"4", "b"), (b"5", "a")):
        with_id(ch, queue, body, id)
    assert wait_drain(ch, queue, 4) == [b"1", b"2", b"3", b"5"]


def test_a_queue_that_was_not_asked_takes_everything(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), x_deduplication=False, x_deduplication_count=5)
    for _ in range(2):
        with_id(ch, queue, b"m", "a")
    wait_depth(ch, queue, 2)


def test_each_queue_has_its_own(ch: BlockingChannel, name: Name) -> None:
    exchange, one, other = name("x"), declare(ch, name("q")), name("q")
    ch.queue_declare(other)
    ch.exchange_declare(exchange, "fanout")
    for queue in (one, other):
        ch.queue_bind(queue, exchange)
    ch.confirm_delivery()
    for body in (b"1", b"2"):
        publish(ch, "", body, exchange=exchange, headers={"x-deduplication-id": "a"})
    assert wait_drain(ch, other, 2) == [b"1", b"2"]
    assert wait_drain(ch, one, 1) == [b"1"]
    assert get(ch, one) is None


def test_what_is_refused_may_come_again(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"), x_max_length=1, x_overflow="reject-publish")
    ch.confirm_delivery()
    with_id(ch, queue, b"1", "a")
    with pytest.raises(NackError):
        with_id(ch, queue, b"2", "b")
    with_id(ch, queue, b"again", "a")
    assert wait_get(ch, queue).body == b"1"
    with_id(ch, queue, b"2", "b")
    assert wait_get(ch, queue).body == b"2"


def test_what_is_requeued_or_dead_lettered_is_no_duplicate(ch: BlockingChannel, name: Name) -> None:
    target = declare(ch, name("q"))
    queue = declare(ch, name("q"), x_dead_letter_exchange="", x_dead_letter_routing_key=target)
    ch.confirm_delivery()
    with_id(ch, target, b"there", "a")
    with_id(ch, queue, b"m", "a")
    delivery = wait_get(ch, queue, auto_ack=False)
    ch.basic_nack(delivery.tag, requeue=True)
    delivery = wait_get(ch, queue, auto_ack=False)
    assert delivery.redelivered
    ch.basic_nack(delivery.tag, requeue=False)
    assert wait_drain(ch, target, 2) == [b"there", b"m"]


def test_a_transaction_is_deduplicated_too(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"))
    ch.tx_select()
    with_id(ch, queue, b"1", "a")
    ch.tx_rollback()
    with_id(ch, queue, b"2", "a")
    with_id(ch, queue, b"3", "a")
    ch.tx_commit()
    assert wait_drain(ch, queue, 1) == [b"2"]
    assert depth(ch, queue) == 0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-deduplication", "yes"),
        ("x-deduplication-window-ms", 0),
        ("x-deduplication-window-ms", "long"),
        ("x-deduplication-count", 0),
        ("x-deduplication-count", 1_000_001),
    ],
)
def test_refused_arguments(ch: BlockingChannel, name: Name, argument: str, value: Any) -> None:
    with expect_channel_close(406, f"invalid arg '{argument}'"):
        ch.queue_declare(name("q"), arguments={argument: value})


def test_a_second_declare_must_say_the_same(ch: BlockingChannel, name: Name) -> None:
    queue = declare(ch, name("q"))
    declare(ch, queue)
    with expect_channel_close(406, "inequivalent arg 'x-deduplication'"):
        ch.queue_declare(queue, durable=True)


@pytest.mark.parametrize("how", ["orderly", "kill"])
def test_ids_outlive_the_broker(broker: Broker, connect: Connect, name: Name, how: str) -> None:
    """Whether their messages are still there or long gone."""
    if not broker.has_ctl:
        pytest.skip("needs a control command (--ctl) to restart the broker behind --amqp-url")
    if how == "kill" and not isinstance(broker, OwnBroker):
        pytest.skip("kill -9 only of a broker that the suite started itself")
    ch = connect().channel()
    queue = declare(ch, name("q"))
    ch.confirm_delivery()
    with_id(ch, queue, b"gone", "a")
    in_sequence(ch, queue, b"gone too", "p", 7)
    assert wait_drain(ch, queue, 2) == [b"gone", b"gone too"]
    with_id(ch, queue, b"there", "b")
    broker.restart(kill=how == "kill")
    ch = connect().channel()
    ch.confirm_delivery()
    for id in ("a", "b", "c"):
        with_id(ch, queue, id.encode(), id)
    for sequence in (7, 8):
        in_sequence(ch, queue, b"%d" % sequence, "p", sequence)
    assert wait_drain(ch, queue, 3) == [b"there", b"c", b"8"]
    assert depth(ch, queue) == 0
