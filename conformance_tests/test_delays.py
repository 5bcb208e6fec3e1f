"""Messages that wait before they are delivered first: an extension, so a broker without it has a deviation.

The exchange type is that of RabbitMQ's delayed message exchange plugin.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic, time
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from conformance_tests.api import Api
from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, get, publish, sync, wait_depth, wait_for, wait_get

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
LONG_MS = 60_000


def declare(ch: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> str:
    # A broker without delays fails here, and not after the patience of each test.
    ch.exchange_declare(queue, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    ch.exchange_delete(queue)
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, "x-delayed": True, **given})
    return queue


def send(ch: BlockingChannel, queue: str, body: bytes, *, exchange: str = "", **headers: Any) -> None:
    named = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    publish(ch, queue, body, exchange=exchange, headers=named, delivery_mode=2)


@KINDS
def test_messages_come_when_they_are_due(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    inbox, begun = Inbox(ch, queue), monotonic()
    for body, delay in ((b"third", 500), (b"second", 250), (b"first", 0)):
        send(ch, queue, body, delay=delay)
    came = []
    for _ in range(3):
        delivery = inbox.one()
        came.append((delivery.body, monotonic() - begun, delivery.redelivered))
    assert [(body, again) for body, _, again in came] == [
        (b"first", False),
        (b"second", False),
        (b"third", False),
    ]
    assert came[1][1] >= 0.25 and came[2][1] >= 0.5


@KINDS
def test_waiting_messages_are_counted(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    for number in range(3):
        send(ch, queue, b"%d" % number, delay=LONG_MS + number)
    send(ch, queue, b"ready")

    def shown() -> list[Any]:
        row = api.ask("GET", f"queues/%2F/{queue}").json
        return [row.get(key) for key in ("messages", "messages_ready", "messages_delayed")]

    wait_for(lambda: shown() == [4, 1, 3], "all to be shown")
    assert wait_get(ch, queue).body == b"ready"
    assert get(ch, queue) is None
    ch.queue_delete(queue, if_unused=True)


@pytest.mark.parametrize("form", ["ms", "timestamp"])
def test_until_a_time(ch: BlockingChannel, name: Name, form: str) -> None:
    queue = declare(ch, name("q"))
    ch.confirm_delivery()
    inbox = Inbox(ch, queue)
    if form == "ms":
        until: object = int((time() + 0.3) * 1000)
    else:
        until = datetime.now(UTC) + timedelta(seconds=2)
    begun = time()
    send(ch, queue, b"later", deliver_at=until)
    send(ch, queue, b"past", deliver_at=1_000_000_000_000)
    assert [inbox.one().body, inbox.one().body] == [b"past", b"later"]
    # A timestamp has no fractions of a second.
    assert time() - begun >= (0.3 if form == "ms" else 1) - 0.05


def test_other_queues_do_not_look(ch: BlockingChannel, name: Name) -> None:
    queue, delayed, exchange = name("plain"), declare(ch, name("q")), name("x")
    ch.queue_declare(queue)
    ch.exchange_declare(exchange, "fanout")
    for bound in (queue, delayed):
        ch.queue_bind(bound, exchange)
    ch.confirm_delivery()
    for value in (-1, "soon"):
        send(ch, queue, b"m", delay=value)
    send(ch, "", b"m", exchange=exchange, delay=LONG_MS)
    wait_depth(ch, queue, 3)
    assert get(ch, delayed) is None


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"delay": -1}, "it must not be negative"),
        ({"delay": "soon"}, "it must be the number of milliseconds"),
        ({"delay": True}, "it must be the number of milliseconds"),
        ({"delay": 10 * 367 * 24 * 3_600_000}, "no message waits longer than ten years"),
        ({"deliver_at": 1 << 60}, "no message waits longer than ten years"),
        ({"deliver_at": "tomorrow"}, "it must be a timestamp, or milliseconds"),
        ({"delay": 1, "deliver_at": 1}, "not both"),
    ],
)
def test_times_that_are_refused(ch: BlockingChannel, name: Name, headers: dict[str, Any], why: str) -> None:
    queue = declare(ch, name("q"))
    ch.confirm_delivery()
    with expect_channel_close(406, why):
        send(ch, queue, b"m", **headers)


def test_an_exchange_lets_messages_wait_in_every_queue(ch: BlockingChannel, name: Name) -> None:
    exchange, bound, other = name("x"), name("bound"), name("other")
    ch.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "topic"})
    ch.confirm_delivery()
    for queue, key in ((bound, "a.*"), (other, "#")):
        ch.queue_declare(queue)
        ch.queue_bind(queue, exchange, key)
    send(ch, "a.b", b"late", exchange=exchange, delay=300)
    send(ch, "c", b"now", exchange=exchange)
    assert wait_get(ch, other).body == b"now"
    assert get(ch, bound) is None
    inbox = Inbox(ch, bound)
    assert inbox.one().body == b"late"
    assert wait_get(ch, other).body == b"late"


def test_a_message_for_no_queue_is_returned_at_once(ch: BlockingChannel, name: Name) -> None:
    exchange = name("x")
    ch.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    ch.confirm_delivery()
    with pytest.raises(UnroutableError):
        publish(ch, "nowhere", b"m", exchange=exchange, mandatory=True, headers={"x-delay": LONG_MS})


@pytest.mark.parametrize("within", [None, "x-delayed-message", "nonsense", 5])
def test_an_exchange_routes_by_another_type(ch: BlockingChannel, name: Name, within: object) -> None:
    arguments = {} if within is None else {"x-delayed-type": within}
    with expect_channel_close(406, "x-delayed-type"):
        ch.exchange_declare(name("x"), "x-delayed-message", arguments=arguments)


@KINDS
def test_what_waits_counts_in_the_limit(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind, max_length=2, overflow="reject-publish")
    ch.confirm_delivery()
    for number in range(2):
        send(ch, queue, b"%d" % number, delay=LONG_MS)
    with pytest.raises(NackError):
        send(ch, queue, b"2", delay=LONG_MS)
    assert ch.queue_purge(queue).method.message_count == 2
    send(ch, queue, b"3", delay=LONG_MS)


@KINDS
def test_time_to_live_begins_when_the_wait_is_over(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind, message_ttl=200)
    ch.confirm_delivery()
    inbox = Inbox(ch, queue)
    send(ch, queue, b"m", delay=500)
    assert inbox.one().body == b"m"


@KINDS
def test_a_dead_letter_does_not_wait_again(ch: BlockingChannel, name: Name, kind: str) -> None:
    dead = declare(ch, name("dead"), kind)
    queue = declare(ch, name("q"), kind, dead_letter_exchange="", dead_letter_routing_key=dead)
    ch.confirm_delivery()
    send(ch, queue, b"m", delay=100)
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    assert wait_get(ch, dead).body == b"m"


@KINDS
def test_of_a_transaction(ch: BlockingChannel, name: Name, kind: str) -> None:
    first, second = declare(ch, name("one"), kind), declare(ch, name("two"), kind)
    ch.tx_select()
    for queue in (first, second):
        send(ch, queue, b"late", delay=400)
        send(ch, queue, b"now")
    ch.tx_commit()
    for queue in (first, second):
        assert wait_get(ch, queue).body == b"now"
    begun = monotonic()
    assert [wait_get(ch, queue).body for queue in (first, second)] == [b"late", b"late"]
    assert monotonic() - begun < 5


def burst(ch: BlockingChannel, queue: str, *delays_ms: int, **headers: Any) -> None:
    """Publish so that all of them come in one read."""
    properties = [
        BasicProperties(headers={"x-delay": delay_ms, **headers}, delivery_mode=2) for delay_ms in delays_ms
    ]
    for number, each in enumerate(properties):
        ch.basic_publish("", queue, b"%d" % number, each)


@KINDS
def test_of_many_messages_each_has_its_own_wait(connect: Connect, name: Name, kind: str) -> None:
    ch = connect().channel()
    queue = declare(ch, name("q"), kind)
    burst(ch, queue, 600, 0, 300, 300, LONG_MS, 0)
    inbox = Inbox(ch, queue)
    assert [inbox.one().body for _ in range(5)] == [b"1", b"5", b"2", b"3", b"0"]
    assert ch.queue_purge(queue).method.message_count == 1


@KINDS
@pytest.mark.parametrize("before", ["nothing", "plain"])
def test_a_queue_declared_before_the_commit_lets_messages_wait(
    ch: BlockingChannel, name: Name, kind: str, before: str
) -> None:
    declare(ch, name("other"), kind)
    queue, late = name("q"), 800
    if before == "plain":
        ch.queue_declare(queue)
    tx = ch.connection.channel()
    tx.tx_select()
    begun = monotonic()
    send(tx, queue, b"late", delay=late)
    send(tx, queue, b"now")
    sync(tx)
    if before == "plain":
        ch.queue_delete(queue)
    declare(ch, queue, kind)
    tx.tx_commit()
    assert wait_get(ch, queue).body == b"now"
    assert get(ch, queue) is None or monotonic() - begun >= late / 1000
    assert wait_get(ch, queue).body == b"late"
    # The wait begins with the publish.
    assert monotonic() - begun >= late / 1000


@KINDS
def test_a_wait_that_such_a_queue_refuses_refuses_the_transaction(
    ch: BlockingChannel, name: Name, kind: str
) -> None:
    other, queue = declare(ch, name("other"), kind), name("q")
    tx = ch.connection.channel()
    tx.tx_select()
    send(tx, other, b"m")
    send(tx, queue, b"m", delay="soon")
    sync(tx)
    declare(ch, queue, kind)
    with expect_channel_close(406, "nothing was done"):
        tx.tx_commit()
    assert get(ch, other) is None


@KINDS
def test_messages_before_one_that_is_refused_arrive(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    other = ch.connection.channel()
    with expect_channel_close(406, "it must not be negative"):
        burst(other, queue, 0, 0, -1, 0)
        sync(other)
    assert [wait_get(ch, queue).body for _ in range(2)] == [b"0", b"1"]
    assert get(ch, queue) is None


@KINDS
def test_a_duplicate_of_what_waits(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind, deduplication=True)
    ch.confirm_delivery()
    send(ch, queue, b"one", delay=200, deduplication_id="a")
    send(ch, queue, b"two", deduplication_id="a")
    assert get(ch, queue) is None
    assert wait_get(ch, queue).body == b"one"
    assert get(ch, queue) is None


@KINDS
def test_it_keeps_its_priority(ch: BlockingChannel, name: Name, kind: str) -> None:
    more = {"max_priority": 9} if kind == "classic" else {}
    queue = declare(ch, name("q"), kind, **more)
    ch.confirm_delivery()
    for priority in (3, 5):
        publish(ch, queue, b"%d" % priority, priority=priority, headers={"x-delay": 200})
    publish(ch, queue, b"4", priority=4)
    publish(ch, queue, b"6", priority=6)
    wait_depth(ch, queue, 4)
    assert [wait_get(ch, queue).body for _ in range(4)] == [b"6", b"5", b"4", b"3"]


@KINDS
def test_a_queue_in_which_messages_wait_is_not_empty(ch: BlockingChannel, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    send(ch, queue, b"m", delay=LONG_MS)
    sync(ch)
    with expect_channel_close(406, "not empty"):
        ch.queue_delete(queue, if_empty=True)


@KINDS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_waits_through_a_restart(
    broker: Broker, connect: Connect, name: Name, kind: str, how: str
) -> None:
    if not isinstance(broker, OwnBroker):
        pytest.skip("only for a broker that the suite started itself")
    queue, wait_s = name("q"), 8.0
    ch = connect().channel()
    declare(ch, queue, kind)
    ch.confirm_delivery()
    begun = time()
    send(ch, queue, b"late", delay=int(wait_s * 1000))
    for number in range(3):
        # Later messages have passed it.
        send(ch, queue, b"%d" % number)
        assert wait_get(ch, queue).body == b"%d" % number
    # Confirmed behind what was taken: that stays taken, also when the broker is killed.
    send(ch, queue, b"behind")
    broker.restart(kill=how == "kill")
    ch = connect().channel()
    assert wait_get(ch, queue).body == b"behind"
    assert get(ch, queue) is None or time() - begun >= wait_s
    delivery = wait_get(ch, queue, timeout=30)
    assert (delivery.body, delivery.redelivered) == (b"late", False)
    assert time() - begun >= wait_s
    ch.queue_delete(queue)
