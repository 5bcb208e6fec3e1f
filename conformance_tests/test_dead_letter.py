"""Dead-lettering: when, where to, what is written into x-death, and how cycles end."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from conformance_tests.api import Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import (
    Delivery,
    Inbox,
    depth,
    drain,
    get,
    numbered,
    publish,
    pump,
    pump_until,
    wait_depth,
    wait_drain,
    wait_get,
)


@pytest.fixture
def dead(ch: BlockingChannel, name: Name) -> str:
    """The queue of the dead letters, through the default exchange."""
    queue = name("dead")
    ch.queue_declare(queue)
    return queue


def to(dead: str, **arguments: Any) -> dict[str, Any]:
    return {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        **{f"x-{key.replace('_', '-')}": value for key, value in arguments.items()},
    }


def source(ch: BlockingChannel, name: Name, arguments: dict[str, Any]) -> str:
    queue = name("q")
    ch.queue_declare(queue, arguments=arguments)
    return queue


def reject(ch: BlockingChannel, queue: str) -> None:
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)


def deaths(delivery: Delivery) -> list[tuple[str, str, int]]:
    return [(death["queue"], death["reason"], death["count"]) for death in delivery.headers["x-death"]]


# --- reasons ---


@pytest.mark.parametrize("how", ["reject", "nack", "nack multiple"])
def test_rejected(ch: BlockingChannel, name: Name, dead: str, how: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"1", b"2")
    held = [get(ch, queue, auto_ack=False) for _ in range(2)]
    assert held[0] and held[1]
    if how == "nack multiple":
        ch.basic_nack(held[1].tag, multiple=True, requeue=False)
    else:
        for delivery in held:
            assert delivery
            getattr(ch, f"basic_{how}")(delivery.tag, requeue=False)
    got = [wait_get(ch, dead) for _ in range(2)]
    assert [delivery.body for delivery in got] == [b"1", b"2"]
    assert deaths(got[0]) == [(queue, "rejected", 1)]


def test_requeue_is_no_death(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m")
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=True)
    assert wait_get(ch, queue).body == b"m"
    assert get(ch, dead) is None


def test_expired_by_the_queue(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, message_ttl=30))
    publish(ch, queue, *numbered(3))
    got = [wait_get(ch, dead) for _ in range(3)]
    assert [delivery.body for delivery in got] == numbered(3)
    assert deaths(got[0]) == [(queue, "expired", 1)]


def test_expired_by_the_message(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", expiration="30")
    delivery = wait_get(ch, dead)
    assert deaths(delivery) == [(queue, "expired", 1)]
    assert delivery.properties.expiration is None
    assert delivery.headers["x-death"][0]["original-expiration"] == "30"


def test_the_expiration_of_a_rejected_message_is_removed_too(
    ch: BlockingChannel, name: Name, dead: str
) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", expiration="60000")
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert delivery.properties.expiration is None
    assert delivery.headers["x-death"][0]["original-expiration"] == "60000"


def test_dropped_by_length(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, max_length=2))
    publish(ch, queue, *numbered(5))
    got = [wait_get(ch, dead) for _ in range(3)]
    assert [delivery.body for delivery in got] == numbered(3)
    assert deaths(got[0]) == [(queue, "maxlen", 1)]
    assert drain(ch, queue) == [b"3", b"4"]


def test_dropped_by_bytes(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, max_length_bytes=10))
    publish(ch, queue, b"x" * 6, b"y" * 6)
    assert wait_get(ch, dead).body == b"x" * 6


def test_reject_publish_does_not_dead_letter(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, max_length=1, overflow="reject-publish"))
    ch.confirm_delivery()
    publish(ch, queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(ch, queue, b"2")
    pump(ch, 0.1)
    assert get(ch, dead) is None


def test_reject_publish_dlx_does(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, max_length=1, overflow="reject-publish-dlx"))
    ch.confirm_delivery()
    publish(ch, queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(ch, queue, b"2")
    delivery = wait_get(ch, dead)
    assert (delivery.body, deaths(delivery)) == (b"2", [(queue, "maxlen", 1)])
    assert drain(ch, queue) == [b"1"]


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_purge_and_delete_are_no_deaths(ch: BlockingChannel, name: Name, dead: str, how: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m")
    getattr(ch, f"queue_{how}")(queue)
    pump(ch, 0.1)
    assert get(ch, dead) is None


def test_queue_expiry_is_no_death(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead, expires=100))
    publish(ch, queue, b"m")
    pump(ch, 0.4)
    assert get(ch, dead) is None


# --- the way ---


def test_without_a_key_the_original_key_is_kept(ch: BlockingChannel, name: Name, dead: str) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "topic")
    ch.queue_bind(dead, exchange, "#")
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    ch.queue_bind(queue, "amq.topic", f"{queue}.*")
    publish(ch, f"{queue}.key", b"m", exchange="amq.topic")
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert (delivery.exchange, delivery.routing_key) == (exchange, f"{queue}.key")
    death = delivery.headers["x-death"][0]
    assert (death["exchange"], death["routing-keys"]) == ("amq.topic", [f"{queue}.key"])


def test_with_a_key_it_replaces_the_original(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m")
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert (delivery.exchange, delivery.routing_key) == ("", dead)
    death = delivery.headers["x-death"][0]
    assert (death["exchange"], death["routing-keys"]) == ("", [queue])


def test_a_missing_exchange_drops(ch: BlockingChannel, name: Name) -> None:
    queue = source(ch, name, {"x-dead-letter-exchange": name("never-declared")})
    publish(ch, queue, b"m")
    reject(ch, queue)
    assert drain(ch, queue) == []


def test_the_exchange_may_come_later(ch: BlockingChannel, name: Name, dead: str) -> None:
    exchange = name("x")
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    publish(ch, queue, b"lost", b"kept")
    reject(ch, queue)
    pump(ch, 0.1)
    ch.exchange_declare(exchange, "fanout")
    ch.queue_bind(dead, exchange)
    reject(ch, queue)
    assert wait_get(ch, dead).body == b"kept"


def test_the_exchanges_alternate_is_used(ch: BlockingChannel, name: Name, dead: str) -> None:
    alternate, exchange = name("x"), name("x")
    ch.exchange_declare(alternate, "fanout")
    ch.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    ch.queue_bind(dead, alternate)
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    publish(ch, queue, b"m")
    reject(ch, queue)
    assert wait_get(ch, dead).body == b"m"


def test_one_death_may_reach_many_queues(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "fanout")
    queues = [name("q") for _ in range(3)]
    for each in queues:
        ch.queue_declare(each)
        ch.queue_bind(each, exchange)
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    publish(ch, queue, b"m")
    reject(ch, queue)
    assert [wait_get(ch, each).body for each in queues] == [b"m"] * 3


# --- what is written ---


def test_headers_of_the_first_death(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", headers={"mine": 1}, message_id="id", delivery_mode=2)
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    headers = delivery.headers
    death = headers["x-death"][0]
    assert isinstance(death["time"], datetime.datetime)
    assert {key: value for key, value in death.items() if key != "time"} == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (queue, "rejected")
    assert headers["x-first-death-exchange"] == ""
    assert headers["mine"] == 1
    assert (delivery.properties.message_id, delivery.properties.delivery_mode) == ("id", 2)
    assert not delivery.redelivered


def test_two_queues_two_deaths_the_last_first(ch: BlockingChannel, name: Name, dead: str) -> None:
    second = source(ch, name, to(dead, message_ttl=20))
    first = source(ch, name, to(second))
    publish(ch, first, b"m")
    reject(ch, first)
    delivery = wait_get(ch, dead)
    assert deaths(delivery) == [(second, "expired", 1), (first, "rejected", 1)]
    assert delivery.headers["x-first-death-queue"] == first
    assert delivery.headers["x-first-death-reason"] == "rejected"


def test_the_count_goes_up(ch: BlockingChannel, name: Name) -> None:
    wait, work = name("wait"), name("work")
    ch.queue_declare(wait, arguments=to(work, message_ttl=10))
    ch.queue_declare(work, arguments=to(wait))
    publish(ch, work, b"m")
    for _ in range(3):
        reject(ch, work)
    delivery = wait_get(ch, work)
    assert deaths(delivery) == [(wait, "expired", 3), (work, "rejected", 3)]
    assert delivery.headers["x-first-death-queue"] == work


def test_each_reason_has_an_entry_of_its_own(ch: BlockingChannel, name: Name) -> None:
    wait, work = name("wait"), name("work")
    ch.queue_declare(wait, arguments=to(work))
    ch.queue_declare(work, arguments=to(wait))
    publish(ch, wait, b"m", expiration="20")
    reject(ch, work)
    reject(ch, wait)
    delivery = wait_get(ch, work)
    # Only the position of the newest entry is defined.
    assert deaths(delivery)[0] == (wait, "rejected", 1)
    assert sorted(deaths(delivery)) == sorted(
        [(wait, "rejected", 1), (work, "rejected", 1), (wait, "expired", 1)]
    )


def test_headers_that_were_there_stay(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", headers={"deep": {"a": [1, "b"]}, "x-custom": True})
    reject(ch, queue)
    headers = wait_get(ch, dead).headers
    assert headers["deep"] == {"a": [1, "b"]}
    assert headers["x-custom"] is True


# --- CC, BCC ---


def test_cc_is_kept_and_followed_without_a_key(ch: BlockingChannel, name: Name, dead: str) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    ch.queue_bind(dead, exchange, "copy")
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    publish(ch, queue, b"m", headers={"CC": ["copy"], "BCC": ["hidden"]})
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert delivery.headers["CC"] == ["copy"]
    assert "BCC" not in delivery.headers
    assert delivery.headers["x-death"][0]["routing-keys"] == [queue, "copy"]


def test_cc_is_removed_with_a_key(ch: BlockingChannel, name: Name, dead: str) -> None:
    copy = name("q")
    ch.queue_declare(copy)
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", headers={"CC": [copy]})
    assert wait_get(ch, copy).body == b"m"
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert "CC" not in delivery.headers
    assert delivery.headers["x-death"][0]["routing-keys"] == [queue, copy]
    pump(ch, 0.1)
    assert get(ch, copy) is None


# --- cycles ---


def test_a_cycle_without_a_reject_drops_the_message(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments=to(queue, message_ttl=30))
    publish(ch, queue, b"m")
    pump(ch, 0.2)
    assert get(ch, queue) is None


def test_a_longer_cycle_without_a_reject_drops_the_message(ch: BlockingChannel, name: Name) -> None:
    first, second = name("q"), name("q")
    ch.queue_declare(first, arguments=to(second, message_ttl=30))
    ch.queue_declare(second, arguments=to(first, message_ttl=30))
    publish(ch, first, b"m")
    pump(ch, 0.3)
    assert get(ch, first) is None
    assert get(ch, second) is None


def test_a_cycle_with_a_reject_goes_on(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments=to(queue))
    publish(ch, queue, b"m")
    for _ in range(3):
        reject(ch, queue)
    assert deaths(wait_get(ch, queue)) == [(queue, "rejected", 3)]


def test_maxlen_into_itself_ends(ch: BlockingChannel, name: Name) -> None:
    queue = name("q")
    ch.queue_declare(queue, arguments=to(queue, max_length=2))
    publish(ch, queue, *numbered(5))
    pump(ch, 0.2)
    wait_depth(ch, queue, 2)


def test_dead_letters_do_not_hold_up_the_rest(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, *numbered(300))
    held = [get(ch, queue, auto_ack=False) for _ in range(300)]
    last = held[-1]
    assert last is not None
    ch.basic_nack(last.tag, multiple=True, requeue=False)
    assert wait_drain(ch, dead, 300) == numbered(300)


# --- routing keys ---


def test_routing_key_of_255_bytes(ch: BlockingChannel, name: Name) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    ch.queue_bind(dead, "amq.fanout")
    arguments = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "k" * 255,
        "x-message-ttl": 0,
    }
    publish(ch, source(ch, name, arguments), b"one")
    assert wait_get(ch, dead).routing_key == "k" * 255


def test_routing_key_above_255_bytes_is_refused(ch: BlockingChannel, name: Name) -> None:
    arguments = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k" * 256}
    queue = name("q")
    with expect_channel_close(406, f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}'"):
        ch.queue_declare(queue, arguments=arguments)


@pytest.mark.parametrize("durable", [False, True])
def test_routing_key_above_255_bytes_harms_nobody_else(connect: Connect, name: Name, durable: bool) -> None:
    """A queue with such a key may be refused, or have dead letters that cannot be delivered; the broker
    continues to work.
    """
    queue, other = name("q"), name("other")
    arguments = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "k" * 300,
        "x-message-ttl": 10,
    }
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        ch = connect().channel()
        ch.queue_declare(queue, durable=durable, arguments=arguments)
        publish(ch, queue, b"one")
        wait_depth(ch, queue, 0)
    bystander = connect().channel()
    bystander.queue_declare(other, exclusive=True)
    publish(bystander, other, b"two")
    assert wait_get(bystander, other).body == b"two"
    bystander.queue_delete(queue)


@pytest.mark.parametrize("by", ["argument", "http", "policy", "definitions"])
def test_a_message_that_brings_its_expiration_to_a_routing_key_above_255_bytes(
    connect: Connect, api: Api, name: Name, by: str
) -> None:
    """In whatever way the queue gets the key: it may be refused, and the broker continues."""
    queue, other = name("q"), name("other")
    letters = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "k" * 300}
    arguments = {f"x-{key}": value for key, value in letters.items()}
    declared = {"durable": True, "auto_delete": False, "arguments": arguments}
    ch = connect().channel()
    if by == "argument":
        with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
            ch.queue_declare(queue, durable=True, arguments=arguments)
        ch = connect().channel()
    elif by == "http":
        assert api.ask("PUT", f"queues/%2F/{queue}", declared).status in (201, 400)
    elif by == "definitions":
        told = {"queues": [declared | {"name": queue, "vhost": "/"}]}
        assert api.ask("POST", "definitions", told).status in (204, 400)
    else:
        ch.queue_declare(queue, durable=True)
        policy = {"pattern": f"^{queue}$", "definition": letters, "apply-to": "queues"}
        assert api.ask("PUT", f"policies/%2F/{queue}", policy).status in (201, 400)
    try:
        # The queue may have been refused: then its messages reach no queue.
        publish(ch, queue, *numbered(3), expiration="10", delivery_mode=2)
        if by == "policy":
            wait_depth(ch, queue, 0)
        ch.queue_declare(other, exclusive=True)
        publish(ch, other, b"two")
        assert wait_get(ch, other).body == b"two"
        assert api.ask("GET", "overview").status == 200
    finally:
        api.ask("DELETE", f"policies/%2F/{queue}")
        connect().channel().queue_delete(queue)


@pytest.mark.parametrize(("count", "copies"), [(1, 2), (2, 5), (3, 16), (4, 65), (5, 326)])
def test_each_way_through_queues_that_dead_letter_to_each_other_is_gone_once(
    ch: BlockingChannel, name: Name, count: int, copies: int
) -> None:
    """A dead letter goes to all of these queues except those in which it has died, including this time."""
    exchange, end = name("x"), name("end")
    ch.exchange_declare(exchange, "fanout")
    queues = [name(f"q{number}") for number in range(count)]
    for queue in queues:
        ch.queue_declare(queue, arguments={"x-message-ttl": 1, "x-dead-letter-exchange": exchange})
    ch.queue_declare(end)
    for queue in [*queues, end]:
        ch.queue_bind(queue, exchange)
    publish(ch, "", b"m", exchange=exchange)
    wait_depth(ch, end, copies)
    for queue in queues:
        wait_depth(ch, queue, 0)
    pump(ch, 0.3)
    wait_depth(ch, end, copies)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_reject_before_the_last_death_does_not_let_the_message_go_round(
    ch: BlockingChannel, name: Name, count: int
) -> None:
    """A message rejected before it expires in the same queue has died there since."""
    queue, other = name("q"), name("other")
    ch.queue_declare(queue, arguments=to(queue, message_ttl=200))
    ch.queue_declare(other)
    publish(ch, queue, *numbered(count))
    for _ in range(count):
        reject(ch, queue)
    pump(ch, 0.6)
    assert get(ch, queue) is None


# --- cycles over one exchange for several queues ---


def wait_quiet(ch: BlockingChannel, queues: list[str]) -> list[int]:
    """Return the depths of these queues when they no longer change."""
    before: list[int] = []
    while (depths := [depth(ch, queue) for queue in queues]) != before:
        before = depths
        pump(ch, 0.3)
    return depths


@pytest.mark.parametrize(("count", "copies"), [(1, 2), (2, 5), (3, 16), (4, 65)])
def test_an_expired_message_does_not_come_back_to_its_queue(
    ch: BlockingChannel, name: Name, count: int, copies: int
) -> None:
    """Over one fanout exchange it passes each order of each subset of the queues once."""
    exchange, end = name("x"), name("end")
    ch.exchange_declare(exchange, "fanout")
    queues = [name("q") for _ in range(count)]
    ch.queue_declare(end)
    ch.queue_bind(end, exchange)
    for queue in queues:
        ch.queue_declare(queue, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 20})
        ch.queue_bind(queue, exchange)
    publish(ch, "", b"m", exchange=exchange)
    wait_depth(ch, end, copies)
    assert wait_quiet(ch, [*queues, end]) == [0] * count + [copies]


def test_a_dropped_message_does_not_come_back_to_its_queue(ch: BlockingChannel, name: Name) -> None:
    exchange, end = name("x"), name("end")
    ch.exchange_declare(exchange, "fanout")
    ch.queue_declare(end)
    queue = source(ch, name, {"x-dead-letter-exchange": exchange, "x-max-length": 1})
    for each in (queue, end):
        ch.queue_bind(each, exchange)
    publish(ch, queue, b"1", b"2")
    assert wait_get(ch, end).body == b"1"
    assert wait_quiet(ch, [queue, end]) == [1, 0]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_no_cycle_after_a_single_death(ch: BlockingChannel, name: Name, queue_type: str) -> None:
    """An expired message is dropped the first time that it would come back."""
    back, end = name("x"), name("end")
    ch.exchange_declare(back, "fanout")
    queue, waiting = name("q"), name("wait")
    ch.queue_declare(
        queue,
        durable=True,
        arguments={"x-queue-type": queue_type, "x-dead-letter-exchange": back},
    )
    ch.queue_declare(end)
    for each in (queue, end):
        ch.queue_bind(each, back)
    publish(ch, queue, b"m", expiration="20")
    assert deaths(wait_get(ch, end)) == [(queue, "expired", 1)]
    assert wait_quiet(ch, [queue, end]) == [0, 0]
    ch.queue_declare(waiting)
    ch.queue_bind(waiting, back)
    publish(ch, queue, b"rejected")
    reject(ch, queue)
    assert wait_get(ch, queue).body == b"rejected"
    assert wait_get(ch, waiting).body == b"rejected"


# --- x-death of others ---


def x_death(queue: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "exchange": "", "routing-keys": [queue], **more}


@pytest.mark.parametrize("known", [[{"count": long(5)}], [{"count": long(5)}, {}], [{}, {"count": long(7)}]])
def test_deaths_that_a_client_wrote_do_not_count(
    ch: BlockingChannel, name: Name, dead: str, known: list[dict[str, Any]]
) -> None:
    queue = source(ch, name, to(dead))
    entries = [x_death(queue, "rejected", **each) for each in known] + [x_death("other", "expired")]
    publish(ch, queue, b"m", headers={"x-death": entries, "x-first-death-queue": "other"})
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert deaths(delivery) == [(queue, "rejected", 1)]
    assert delivery.headers["x-first-death-queue"] == queue


def test_an_x_death_is_delivered_as_the_client_wrote_it(ch: BlockingChannel, name: Name) -> None:
    queue = source(ch, name, {})
    headers = {"x-death": [x_death("a", "expired", count=long(3))], "x-first-death-queue": "a"}
    publish(ch, queue, b"m", headers=headers)
    assert wait_get(ch, queue).headers == headers


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_retry_with_the_headers_of_the_last_one_comes_back(
    ch: BlockingChannel, name: Name, kind: str
) -> None:
    """Celery publishes a task again with its headers, through a chain of queues where it expires."""
    work, last, first = name("work"), name("last"), name("first")
    typed = {"x-queue-type": kind}
    ch.queue_declare(work, durable=True, arguments=typed)
    ch.queue_declare(last, durable=True, arguments={**typed, **to(work), "x-message-ttl": 1})
    ch.queue_declare(first, durable=True, arguments={**typed, **to(last), "x-message-ttl": 1})
    headers: dict[str, Any] = {}
    for _ in range(4):
        publish(ch, first, b"task", headers=headers)
        delivery = wait_get(ch, work)
        assert deaths(delivery) == [(last, "expired", 1), (first, "expired", 1)]
        headers = delivery.headers
    for queue in (work, last, first):
        ch.queue_delete(queue)


@pytest.mark.parametrize("value", ["a string", 1, {"a": "b"}, []])
def test_an_x_death_that_is_no_list_begins_anew(
    ch: BlockingChannel, name: Name, dead: str, value: Any
) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", headers={"x-death": value})
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert deaths(delivery) == [(queue, "rejected", 1)]


def test_the_dead_letter_exchange_sees_the_new_headers(ch: BlockingChannel, name: Name, dead: str) -> None:
    """A headers exchange may select dead letters by their first death."""
    exchange = name("x")
    ch.exchange_declare(exchange, "headers")
    queue = source(ch, name, {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "k"})
    ch.queue_bind(dead, exchange, "", arguments={"x-match": "all-with-x", "x-first-death-queue": queue})
    publish(ch, queue, b"m")
    reject(ch, queue)
    assert wait_get(ch, dead).body == b"m"


def test_the_bcc_of_a_dead_letter(ch: BlockingChannel, name: Name, dead: str) -> None:
    """The dead letter has no BCC any more, but goes there nevertheless."""
    exchange = name("x")
    ch.exchange_declare(exchange, "direct")
    ch.queue_bind(dead, exchange, "hidden")
    queue = source(ch, name, {"x-dead-letter-exchange": exchange})
    publish(ch, queue, b"m", headers={"BCC": ["hidden"]})
    reject(ch, queue)
    delivery = wait_get(ch, dead)
    assert "BCC" not in delivery.headers
    assert delivery.headers["x-death"][0]["routing-keys"] == [queue]


def test_an_expiration_is_kept_in_the_death(ch: BlockingChannel, name: Name, dead: str) -> None:
    queue = source(ch, name, to(dead))
    publish(ch, queue, b"m", expiration="20")
    delivery = wait_get(ch, dead)
    assert delivery.properties.expiration is None
    assert delivery.headers["x-death"][0]["original-expiration"] == "20"


# --- TTL 0 ---


@pytest.mark.parametrize("where", ["queue", "message"])
@pytest.mark.parametrize("how", ["requeue", "recover", "close"])
def test_ttl_zero_that_comes_back_is_dead(
    ch: BlockingChannel, name: Name, dead: str, where: str, how: str
) -> None:
    """It may be delivered when it is published, but to no consumer after the first one returns it."""
    queue = source(ch, name, to(dead, **({"message_ttl": 0} if where == "queue" else {})))
    consuming = ch.connection.channel()
    inbox = Inbox(consuming, queue)
    other = Inbox(ch.connection.channel(), queue) if how == "close" else None
    properties: dict[str, Any] = {"expiration": "0"} if where == "message" else {}
    for number in range(20):
        # The second consumer's turn comes, too.
        publish(ch, queue, b"%d" % number, **properties)
    if other is not None:
        pump_until(ch, lambda: len(inbox.deliveries) + len(other.deliveries) == 20)
        consuming.close()
        other.ch.close()
    elif how == "recover":
        inbox.take(20)
        consuming.basic_recover(requeue=True)
    else:
        for delivery in inbox.take(20):
            consuming.basic_nack(delivery.tag, requeue=True)
    assert sorted(wait_drain(ch, dead, 20), key=int) == numbered(20)
    assert len(inbox.deliveries) + (len(other.deliveries) if other else 0) == 20
