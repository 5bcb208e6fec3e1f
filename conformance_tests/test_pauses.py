"""Queues that an operator pauses: an extension, so a broker without it has a deviation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from conformance_tests.api import Answer, Api
from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import Inbox, get, publish, sync, wait_depth, wait_for, wait_get

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
BOTH: dict[str, bool] = {}
DELIVERIES, PUBLISHES = {"deliveries": True}, {"publishes": True}


class Operator:
    def __init__(self, api: Api) -> None:
        self._api = api

    def ask(self, verb: str, queue: str, body: object = None, **more: Any) -> Answer:
        return self._api.ask("PUT", f"queues/%2F/{queue}/{verb}", body, **more)

    def pause(self, queue: str, what: dict[str, bool] = BOTH) -> None:
        assert self.ask("pause", queue, what).status == 204

    def resume(self, queue: str, what: dict[str, bool] = BOTH) -> None:
        assert self.ask("resume", queue, what).status == 204

    def row(self, queue: str, *columns: str) -> list[Any]:
        row = self._api.ask("GET", f"queues/%2F/{queue}").json
        return [row.get(column) for column in columns]


@pytest.fixture
def operator(api: Api) -> Operator:
    return Operator(api)


@pytest.fixture
def ch(ch: BlockingChannel) -> Iterator[BlockingChannel]:
    ch.confirm_delivery()
    yield ch


def declare(ch: BlockingChannel, queue: str, kind: str, **arguments: Any) -> str:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **given})
    return queue


@KINDS
def test_consumers_get_nothing_until_deliveries_are_resumed(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    inbox = Inbox(ch, queue)
    publish(ch, queue, b"before")
    held = inbox.one()
    operator.pause(queue, DELIVERIES)
    publish(ch, queue, b"while")
    inbox.nothing_more()
    assert not inbox.cancelled
    assert get(ch, queue) is None
    # What it holds it may settle, and what comes back waits.
    ch.basic_nack(held.tag)
    inbox.nothing_more()
    assert operator.row(queue, "state", "deliveries_paused", "publishes_paused") == ["paused", True, False]
    operator.resume(queue, DELIVERIES)
    assert inbox.bodies(2) == [b"before", b"while"]
    assert operator.row(queue, "state", "deliveries_paused", "publishes_paused") == ["running", False, False]


@KINDS
def test_publishes_are_nacked_until_they_are_resumed(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    publish(ch, queue, b"before")
    operator.pause(queue, PUBLISHES)
    with pytest.raises(NackError):
        publish(ch, queue, b"while", mandatory=True)
    assert operator.row(queue, "state", "deliveries_paused", "publishes_paused") == ["paused", False, True]
    # Consumers empty it.
    assert Inbox(ch, queue).one().body == b"before"
    operator.resume(queue)
    publish(ch, queue, b"after", mandatory=True)


@KINDS
def test_both_are_paused_unless_one_is_named(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    publish(ch, queue, b"before")
    operator.pause(queue)
    operator.pause(queue)
    with pytest.raises(NackError):
        publish(ch, queue, b"while")
    assert get(ch, queue) is None
    operator.resume(queue, PUBLISHES)
    publish(ch, queue, b"now")
    assert get(ch, queue) is None
    operator.resume(queue)
    operator.resume(queue)
    assert [wait_get(ch, queue).body for _ in range(2)] == [b"before", b"now"]


@KINDS
def test_one_queue_of_several_refuses(ch: BlockingChannel, operator: Operator, name: Name, kind: str) -> None:
    exchange, paused, other = name("x"), declare(ch, name("p"), kind), declare(ch, name("o"), kind)
    ch.exchange_declare(exchange, "fanout")
    for queue in (paused, other):
        ch.queue_bind(queue, exchange)
    operator.pause(paused, PUBLISHES)
    with pytest.raises(NackError):
        publish(ch, "", b"m", exchange=exchange)
    assert wait_get(ch, other).body == b"m"
    operator.resume(paused)
    assert get(ch, paused) is None


@KINDS
@pytest.mark.parametrize("other", ["classic", "quorum"])
def test_a_transaction_is_refused_as_a_whole(
    connect: Connect, operator: Operator, name: Name, kind: str, other: str
) -> None:
    connection = connect()
    ch = connection.channel()
    paused, second = declare(ch, name("p"), kind), declare(ch, name("o"), other)
    source = declare(ch, name("s"), kind)
    publish(ch, source, b"source")
    delivery = wait_get(ch, source, auto_ack=False)
    operator.pause(paused, PUBLISHES)
    ch.tx_select()
    publish(ch, second, b"m")
    publish(ch, paused, b"m")
    ch.basic_ack(delivery.tag)
    with expect_channel_close(406, f"nothing was done, because publishes to queue '{paused}' are paused"):
        ch.tx_commit()
    ch = connection.channel()
    assert wait_get(ch, source).redelivered
    assert get(ch, second) is None
    operator.resume(paused)
    assert get(ch, paused) is None


@KINDS
def test_a_paused_queue_takes_part_in_transactions_that_only_ack(
    connect: Connect, operator: Operator, name: Name, kind: str
) -> None:
    ch = connect().channel()
    paused = declare(ch, name("p"), kind)
    publish(ch, paused, b"m")
    delivery = wait_get(ch, paused, auto_ack=False)
    operator.pause(paused)
    ch.tx_select()
    ch.basic_ack(delivery.tag)
    ch.tx_commit()
    operator.resume(paused)
    assert get(ch, paused) is None


@KINDS
def test_messages_expire_meanwhile(ch: BlockingChannel, operator: Operator, name: Name, kind: str) -> None:
    dead = declare(ch, name("dead"), kind)
    queue = declare(
        ch, name("q"), kind, message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=dead
    )
    inbox = Inbox(ch, queue)
    operator.pause(queue, DELIVERIES)
    publish(ch, queue, b"m")
    assert wait_get(ch, dead).body == b"m"
    inbox.nothing_more(0.05)


@KINDS
def test_dead_letters_that_are_sent_once_still_come(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    """Their queue has forgotten them."""
    dead = declare(ch, name("dead"), kind)
    queue = declare(ch, name("q"), kind, dead_letter_exchange="", dead_letter_routing_key=dead)
    operator.pause(dead)
    publish(ch, queue, b"m")
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    wait_depth(ch, dead, 1)
    with pytest.raises(NackError):
        publish(ch, dead, b"by hand")
    operator.resume(dead)
    assert wait_get(ch, dead).body == b"m"


@KINDS
def test_dead_letters_that_are_sent_until_they_are_taken_wait(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    dead = declare(ch, name("dead"), kind)
    queue = declare(
        ch, name("q"), "quorum", dead_letter_exchange="", dead_letter_routing_key=dead,
        dead_letter_strategy="at-least-once", overflow="reject-publish",
    )  # fmt: skip
    operator.pause(dead, PUBLISHES)
    publish(ch, queue, b"m")
    ch.basic_reject(wait_get(ch, queue, auto_ack=False).tag, requeue=False)
    sync(ch)
    assert get(ch, dead) is None
    operator.resume(dead)
    assert wait_get(ch, dead, timeout=20).body == b"m"
    assert get(ch, dead) is None


@KINDS
def test_a_message_moves_to_no_paused_queue(
    ch: BlockingChannel, api: Api, operator: Operator, name: Name, kind: str
) -> None:
    source, paused = declare(ch, name("s"), kind), declare(ch, name("p"), kind)
    publish(ch, source, b"m")
    operator.pause(paused)
    moved = api.ask("POST", f"queues/%2F/{source}/move", {"destination": paused})
    assert moved.json == {"moved": 0, "refused": 1}
    wait_depth(ch, source, 1)
    # An operator takes from one what clients do not get.
    operator.pause(source)
    operator.resume(paused)
    moved = api.ask("POST", f"queues/%2F/{source}/move", {"destination": paused})
    assert moved.json == {"moved": 1, "refused": 0}
    wait_depth(ch, paused, 1)


@KINDS
def test_the_wait_of_a_message_goes_on(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind, delayed=True)
    publish(ch, queue, b"m", headers={"x-delay": 100})
    operator.pause(queue)
    wait_for(lambda: operator.row(queue, "messages_ready", "messages_delayed") == [1, 0], "its end")
    assert get(ch, queue) is None
    operator.resume(queue)
    assert wait_get(ch, queue).body == b"m"


@KINDS
def test_a_full_queue_drops_its_head_while_deliveries_are_paused(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind, max_length=2)
    inbox = Inbox(ch, queue)
    operator.pause(queue, DELIVERIES)
    publish(ch, queue, b"1", b"2", b"3")
    operator.resume(queue)
    assert inbox.bodies(2) == [b"2", b"3"]


@KINDS
def test_a_refused_message_is_no_duplicate(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind, deduplication=True)
    operator.pause(queue, PUBLISHES)
    with pytest.raises(NackError):
        publish(ch, queue, b"m", headers={"x-deduplication-id": "a"})
    operator.resume(queue)
    for _ in range(2):
        publish(ch, queue, b"m", headers={"x-deduplication-id": "a"})
    assert wait_get(ch, queue).body == b"m"
    assert get(ch, queue) is None


@KINDS
def test_what_became_of_a_refused_message(
    ch: BlockingChannel, api: Api, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind, message_status=True)
    operator.pause(queue)
    with pytest.raises(NackError):
        publish(ch, queue, b"m", message_id="one")
    told = api.ask("GET", f"messages/%2F/one?queue={queue}")
    assert "refused: paused" in told.body.decode(), told


@KINDS
def test_the_active_consumer_stays_active(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind, single_active_consumer=True)
    active, other = Inbox(ch, queue), Inbox(ch, queue)
    operator.pause(queue)
    operator.resume(queue)
    publish(ch, queue, b"m")
    assert active.one().body == b"m"
    other.nothing_more(0.05)


@KINDS
def test_a_new_declaration_is_not_paused(
    ch: BlockingChannel, operator: Operator, name: Name, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    operator.pause(queue)
    declare(ch, queue, kind)
    with pytest.raises(NackError):
        publish(ch, queue, b"m")
    ch.queue_delete(queue, if_unused=True, if_empty=True)
    declare(ch, queue, kind)
    publish(ch, queue, b"m")
    assert wait_get(ch, queue).body == b"m"


def test_other_kinds_of_queues_are_refused(ch: BlockingChannel, operator: Operator, name: Name) -> None:
    stream = declare(ch, name("s"), "stream")
    answer = operator.ask("pause", stream)
    assert answer.status == 400
    assert f"queue '{stream}' in vhost '/' is a stream: only classic and quorum" in answer.body.decode()
    publish(ch, stream, b"m")


def test_what_can_not_be_asked(ch: BlockingChannel, operator: Operator, name: Name) -> None:
    queue = declare(ch, name("q"), "classic")
    assert operator.ask("pause", name("none"), BOTH).status == 404
    for verb in ("pause", "resume"):
        assert operator.ask(verb, queue).status == 204
    for body in ({"deliveries": False, "publishes": False}, {"deliveries": "x"}, [1], b"{"):
        assert operator.ask("pause", queue, body).status == 400, body
    assert operator.row(queue, "state") == ["running"]


@KINDS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_queue_stays_paused_through_a_restart(
    broker: Broker, operator: Operator, connect: Connect, name: Name, kind: str, how: str
) -> None:
    if not isinstance(broker, OwnBroker):
        pytest.skip("only for a broker that the suite started itself")
    ch = connect().channel()
    ch.confirm_delivery()
    queue, other = declare(ch, name("q"), kind), declare(ch, name("o"), kind)
    for each in (queue, other):
        publish(ch, each, b"m", delivery_mode=2)
        operator.pause(each)
    operator.resume(other)
    broker.restart(kill=how == "kill")
    ch = connect().channel()
    ch.confirm_delivery()
    assert wait_get(ch, other).body == b"m"
    assert get(ch, queue) is None
    with pytest.raises(NackError):
        publish(ch, queue, b"m")
    assert operator.row(queue, "state", "messages") == ["paused", 1]
    operator.resume(queue)
    assert wait_get(ch, queue).body == b"m"
    publish(ch, queue, b"m")


def test_who_may_pause_a_queue(ch: BlockingChannel, api: Api, operator: Operator, name: Name) -> None:
    queue, user = declare(ch, name("q"), "classic"), name("user")
    api.ask("PUT", f"users/{user}", {"password": "x", "tags": "management"})
    api.ask("PUT", f"permissions/%2F/{user}", {"configure": "^other", "write": ".*", "read": ".*"})
    try:
        refused = operator.ask("pause", queue, BOTH, login=f"{user}:x")
        assert refused.status in (401, 403)
        api.ask("PUT", f"permissions/%2F/{user}", {"configure": f"^{queue}$", "write": "", "read": ""})
        assert operator.ask("pause", queue, BOTH, login=f"{user}:x").status == 204
    finally:
        api.ask("DELETE", f"users/{user}")


def test_an_unconfirmed_message_for_a_paused_queue_is_dropped(
    connect: Connect, operator: Operator, name: Name
) -> None:
    ch = connect().channel()
    queue = declare(ch, name("q"), "classic")
    operator.pause(queue, PUBLISHES)
    publish(ch, queue, b"m")
    sync(ch)
    operator.resume(queue)
    publish(ch, queue, b"after")
    assert wait_get(ch, queue).body == b"after"
    with pytest.raises(ChannelClosedByBroker):
        ch.queue_declare(name("none"), passive=True)
