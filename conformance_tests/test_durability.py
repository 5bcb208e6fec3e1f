"""The state after a restart: after an orderly one and (for a broker that the suite starts) after kill -9.

One restart serves the whole module: a fixture makes everything, restarts, and each test looks at its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import delete_named
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import (
    Inbox,
    depth,
    drain,
    exchange_exists,
    get,
    numbered,
    publish,
    pump,
    queue_exists,
    sync,
    wait_drain,
    wait_get,
)
from conformance_tests.patience import open_connection

QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
PERSISTENT: dict[str, Any] = {"delivery_mode": 2}


class Names:
    """The names of one run: `names.queue` → "queue-<mark>"."""

    def __init__(self) -> None:
        self._mark = uuid4().hex[:12]
        self.made: set[str] = set()

    def __getattr__(self, noun: str) -> str:
        self.made.add(f"{noun}-{self._mark}")
        return f"{noun}-{self._mark}"


def set_up(ch: BlockingChannel, names: Names) -> None:
    ch.confirm_delivery()

    def durable(queue: str, **arguments: Any) -> str:
        ch.queue_declare(
            queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()}
        )
        return queue

    publish(
        ch, durable(names.plain), *numbered(50), headers={"kept": [1, "a"]}, message_id="id", **PERSISTENT
    )
    publish(ch, durable(names.mixed), b"transient")
    publish(ch, names.mixed, b"persistent", **PERSISTENT)
    publish(ch, durable(names.large), b"x" * 300_000, **PERSISTENT)

    publish(ch, durable(names.acked), *numbered(6), **PERSISTENT)
    held = [get(ch, names.acked, auto_ack=False) for _ in range(4)]
    for delivery in (held[0], held[2]):
        assert delivery is not None
        ch.basic_ack(delivery.tag)
    sync(ch)
    publish(ch, durable(names.emptied), *numbered(5), **PERSISTENT)
    drain(ch, names.emptied)
    publish(ch, durable(names.purged), *numbered(5), **PERSISTENT)
    ch.queue_purge(names.purged)
    publish(ch, durable(names.deleted), b"m", **PERSISTENT)
    ch.queue_delete(names.deleted)

    durable(names.priority, x_max_priority=5)
    for priority in (1, 5, 3, 5):
        publish(ch, names.priority, b"%d" % priority, priority=priority, **PERSISTENT)
    publish(ch, durable(names.limited, x_max_length=2), *numbered(4), **PERSISTENT)
    durable(names.dead)
    durable(names.dying, x_dead_letter_exchange="", x_dead_letter_routing_key=names.dead, x_message_ttl=700)
    publish(ch, names.dying, b"m", **PERSISTENT)

    ch.queue_declare(names.transient_queue)
    ch.queue_declare(names.auto_delete, durable=True, auto_delete=True)
    ch.exchange_declare(names.exchange, "topic", durable=True)
    ch.exchange_declare(names.second, "fanout", durable=True, internal=True)
    ch.exchange_declare(names.transient_exchange, "fanout")
    durable(names.bound)
    ch.queue_bind(names.bound, names.exchange, "a.*")
    ch.queue_bind(names.bound, names.exchange, "gone")
    ch.queue_unbind(names.bound, names.exchange, "gone")
    ch.exchange_bind(names.second, names.exchange, "via.second")
    ch.queue_bind(names.bound, names.second)
    durable(names.headers_bound)
    ch.queue_bind(
        names.headers_bound, "amq.headers", "", arguments={"x-match": "any", names.headers_bound: 1}
    )

    ch.exchange_declare(names.fanout, "fanout", durable=True)
    for queue in (names.copy_a, names.copy_b):
        ch.queue_bind(durable(queue), names.fanout)
    publish(ch, "", *numbered(5), exchange=names.fanout, **PERSISTENT)
    drain(ch, names.copy_a)

    ch.queue_declare(names.quorum, durable=True, arguments=QUORUM)
    publish(ch, names.quorum, *numbered(10))
    returned = wait_get(ch, names.quorum, auto_ack=False)
    ch.basic_ack(wait_get(ch, names.quorum, auto_ack=False).tag)
    sync(ch)
    assert returned.body == b"0"

    tx = ch.connection.channel()
    tx.tx_select()
    publish(tx, durable(names.committed), b"committed", **PERSISTENT)
    tx.tx_commit()
    publish(tx, names.committed, b"not committed", **PERSISTENT)
    sync(tx)


def open_channel(url: str) -> BlockingChannel:
    return open_connection(url).channel()


@pytest.fixture(scope="module", params=["orderly", "kill"])
def names(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Names]:
    if not broker.has_ctl:
        pytest.skip("needs a control command (--ctl) to restart the broker behind --amqp-url")
    if request.param == "kill" and not isinstance(broker, OwnBroker):
        pytest.skip("kill -9 only of a broker that the suite started itself")
    names = Names()
    try:
        set_up(open_channel(broker.url), names)
        broker.restart(kill=request.param == "kill")
        yield names
    finally:
        delete_named(broker.url, sorted(names.made))


@pytest.fixture
def after(names: Names, broker: Broker) -> Iterator[BlockingChannel]:
    ch = open_channel(broker.url)
    yield ch
    if ch.connection.is_open:
        ch.connection.close()


def test_persistent_messages_are_there_once_and_in_order(after: BlockingChannel, names: Names) -> None:
    got = [get(after, names.plain) for _ in range(50)]
    assert [delivery.body for delivery in got if delivery] == numbered(50)
    assert get(after, names.plain) is None
    first = got[0]
    assert first is not None
    assert first.headers == {"kept": [1, "a"]}
    assert (first.properties.message_id, first.properties.delivery_mode) == ("id", 2)


def test_transient_messages_of_a_durable_queue_are_gone(after: BlockingChannel, names: Names) -> None:
    assert drain(after, names.mixed) == [b"persistent"]


def test_a_large_message_is_whole(after: BlockingChannel, names: Names) -> None:
    delivery = get(after, names.large)
    assert delivery is not None and delivery.body == b"x" * 300_000


def test_unacked_messages_return_flagged_and_acked_ones_do_not(after: BlockingChannel, names: Names) -> None:
    got = [get(after, names.acked) for _ in range(4)]
    assert [delivery.body for delivery in got if delivery] == [b"1", b"3", b"4", b"5"]
    assert [delivery.redelivered for delivery in got[:2] if delivery] == [True, True]
    assert get(after, names.acked) is None


def test_what_was_taken_or_purged_stays_away(after: BlockingChannel, names: Names) -> None:
    assert drain(after, names.emptied) == []
    assert drain(after, names.purged) == []


def test_a_deleted_queue_stays_deleted(after: BlockingChannel, names: Names) -> None:
    assert not queue_exists(after, names.deleted)


def test_priorities_still_order(after: BlockingChannel, names: Names) -> None:
    assert drain(after, names.priority) == [b"5", b"5", b"3", b"1"]


def test_limits_still_hold(after: BlockingChannel, names: Names) -> None:
    assert depth(after, names.limited) == 2
    after.confirm_delivery()
    publish(after, names.limited, b"new", **PERSISTENT)
    assert drain(after, names.limited) == [b"3", b"new"]


def test_ttl_goes_on_and_dead_letters(after: BlockingChannel, names: Names) -> None:
    delivery = wait_get(after, names.dead)
    assert (delivery.body, delivery.headers["x-death"][0]["reason"]) == (b"m", "expired")


def test_transient_queues_and_exchanges_are_gone(after: BlockingChannel, names: Names) -> None:
    assert not queue_exists(after, names.transient_queue)
    assert not exchange_exists(after, names.transient_exchange)


def test_a_durable_auto_delete_queue_without_consumers_stays(after: BlockingChannel, names: Names) -> None:
    assert queue_exists(after, names.auto_delete)


def test_durable_declarations_are_equivalent(after: BlockingChannel, names: Names) -> None:
    after.queue_declare(names.priority, durable=True, arguments={"x-max-priority": 5})
    after.exchange_declare(names.exchange, "topic", durable=True)
    after.exchange_declare(names.second, "fanout", durable=True, internal=True)
    with expect_channel_close(406, "PRECONDITION_FAILED - inequivalent arg 'x-max-priority'"):
        after.queue_declare(names.priority, durable=True, arguments={"x-max-priority": 6})


def test_durable_bindings_route(after: BlockingChannel, names: Names) -> None:
    publish(after, "a.b", b"1", exchange=names.exchange)
    publish(after, "gone", b"2", exchange=names.exchange)
    publish(after, "via.second", b"3", exchange=names.exchange)
    assert drain(after, names.bound) == [b"1", b"3"]
    publish(after, "", b"4", exchange="amq.headers", headers={names.headers_bound: 1})
    assert drain(after, names.headers_bound) == [b"4"]


def test_each_copy_of_a_message_lives_for_itself(after: BlockingChannel, names: Names) -> None:
    assert drain(after, names.copy_a) == []
    assert drain(after, names.copy_b) == numbered(5)


def test_a_quorum_queue_continues(after: BlockingChannel, names: Names) -> None:
    got = [wait_get(after, names.quorum) for _ in range(9)]
    bodies = [delivery.body for delivery in got]
    assert sorted(bodies, key=int) == [b"0", *numbered(8, start=2)]
    returned = got[bodies.index(b"0")]
    assert returned.redelivered
    assert returned.headers.get("x-delivery-count") == 1
    assert get(after, names.quorum) is None


def test_a_transaction_is_there_if_it_was_committed(after: BlockingChannel, names: Names) -> None:
    assert drain(after, names.committed) == [b"committed"]


def test_the_broker_works_on(after: BlockingChannel, names: Names) -> None:
    after.confirm_delivery()
    publish(after, names.emptied, *numbered(20), **PERSISTENT)
    inbox = Inbox(after, names.emptied, auto_ack=True)
    assert inbox.bodies(20) == numbered(20)
    pump(after, 0.05)
    inbox.nothing_more(0.05)


def test_a_second_restart_brings_nothing_back(names: Names, broker: Broker) -> None:
    ch = open_channel(broker.url)
    ch.confirm_delivery()
    publish(ch, names.purged, b"1", b"2", **PERSISTENT)
    assert wait_drain(ch, names.purged, 1) == [b"1"]
    ch.connection.close()
    broker.restart()
    ch = open_channel(broker.url)
    assert drain(ch, names.purged) == [b"2"]
    ch.connection.close()
