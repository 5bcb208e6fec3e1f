"""Messages that wait are cancelled, moved and purged: an extension of mqd."""

from __future__ import annotations

import json
from time import time
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from conformance_tests.api import Api
from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import eventually
from conformance_tests.inbox import get, publish, wait_depth
from conformance_tests.test_delays import LONG_MS, declare
from conformance_tests.test_looking import ask, drained

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
REPLIES = "amq.rabbitmq.reply-to"
CANCELS = "amq.mqd.cancel"


def fill(ch: BlockingChannel, queue: str, ids: str, wait_ms: int = LONG_MS) -> None:
    for each in ids:
        publish(
            ch, queue, each.encode(), message_id=each, headers={"x-delay": wait_ms}, delivery_mode=2
        )  # fmt: skip


def cancel(ch: BlockingChannel, queue: str, message_id: str, **more: Any) -> bool:
    """Ask for it on a channel with confirms; return whether something was cancelled."""
    try:
        body = json.dumps({"queue": queue, "message_id": message_id, **more}).encode()
        ch.basic_publish("", CANCELS, body, BasicProperties(), mandatory=True)
    except NackError:
        return False
    return True


def waiting(api: Api, queue: str) -> list[str]:
    told = ask(api, "GET", queue, "peek?count=1000&waiting=true")
    return [row["payload"] for row in told["messages"]]


@KINDS
def test_a_cancelled_message_never_comes(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    dead = name("dead")
    ch.queue_declare(dead)
    queue = declare(ch, name("q"), kind, dead_letter_exchange="", dead_letter_routing_key=dead)
    ch.confirm_delivery()
    fill(ch, queue, "abc", 600)
    fill(ch, queue, "b", LONG_MS)
    assert cancel(ch, queue, "b")
    assert waiting(api, queue) == ["a", "c"]
    assert not cancel(ch, queue, "b")
    wait_depth(ch, queue, 2)
    assert [body for body, again in drained(ch, queue) if not again] == [b"a", b"c"]
    assert get(ch, dead) is None


@KINDS
def test_only_messages_that_wait_are_cancelled(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    publish(ch, queue, b"ready", message_id="a", delivery_mode=2)
    fill(ch, queue, "ab")
    told = ask(api, "POST", queue, "cancel", {"message_id": "a"})
    assert told == {"cancelled": 1, "looked_at": 2, "next": None}
    assert ask(api, "POST", queue, "cancel", {"message_id": "a"})["cancelled"] == 0
    assert ask(api, "POST", queue, "cancel", {"message_id": "62", "hex": True})["cancelled"] == 1
    assert waiting(api, queue) == ["ready"]


def test_the_reply_says_how_many(ch: BlockingChannel, connect: Connect, name: Name) -> None:
    queue = declare(ch, name("q"))
    fill(ch, queue, "aab")
    asker = connect().channel()
    answers: list[tuple[str, dict[str, Any]]] = []
    asker.basic_consume(
        REPLIES,
        lambda _, method, properties, body: answers.append((properties.correlation_id, json.loads(body))),
        auto_ack=True,
    )
    bodies = [
        json.dumps({"queue": queue, "message_id": "a"}),
        json.dumps({"queue": name("nowhere"), "message_id": "a"}),
        json.dumps({"queue": queue}),
        json.dumps({"queue": queue, "message_id": "z"}),
        "no JSON",
    ]
    for number, body in enumerate(bodies):
        asked = BasicProperties(reply_to=REPLIES, correlation_id=str(number))
        asker.basic_publish("", CANCELS, body.encode(), asked)

    def come() -> bool:
        asker.connection.process_data_events(0.02)
        return len(answers) == len(bodies)

    eventually(come)
    told = dict(answers)
    assert (told["0"]["cancelled"], told["0"]["queue"], told["0"]["message_id"]) == (2, queue, "a")
    assert [told[number].get("error") for number in "1234"] == [404, 406, None, 406]
    assert told["3"]["cancelled"] == 0


@KINDS
def test_a_retry_is_cancelled(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind, delayed_retry_type="all", delayed_retry_min=LONG_MS)
    ch.confirm_delivery()
    publish(ch, queue, b"x", message_id="x", delivery_mode=2)
    held = get(ch, queue, auto_ack=False)
    assert held is not None
    ch.basic_reject(held.tag, requeue=True)
    eventually(lambda: waiting(api, queue) == ["x"])
    assert cancel(ch, queue, "x")
    assert waiting(api, queue) == []


def test_who_may_not_read_the_queue_cancels_nothing(
    ch: BlockingChannel, connect: Connect, api: Api, name: Name
) -> None:
    queue = declare(ch, name("q"))
    fill(ch, queue, "a")
    user = name("writer")
    assert api.ask("PUT", f"users/{user}", {"password": "x", "tags": ""}).status < 300
    try:
        rights = {"configure": "", "write": ".*", "read": ""}
        assert api.ask("PUT", f"permissions/%2F/{user}", rights).status < 300
        writer = connect(user=user, password="x").channel()
        writer.confirm_delivery()
        assert not cancel(writer, queue, "a")
        rights = {"configure": "", "write": ".*", "read": ".*"}
        assert api.ask("PUT", f"permissions/%2F/{user}", rights).status < 300
        eventually(lambda: cancel(writer, queue, "a"))
    finally:
        api.ask("DELETE", f"users/{user}")
    assert waiting(api, queue) == []


def test_a_transaction_asks_when_it_is_committed(ch: BlockingChannel, api: Api, name: Name) -> None:
    queue = declare(ch, name("q"))
    fill(ch, queue, "ab")
    ch.tx_select()
    body = json.dumps({"queue": queue, "message_id": "a"}).encode()
    ch.basic_publish("", CANCELS, body)
    ch.tx_rollback()
    assert waiting(api, queue) == ["a", "b"]
    ch.basic_publish("", CANCELS, body)
    ch.tx_commit()
    eventually(lambda: waiting(api, queue) == ["b"])
    # That there is nothing to cancel refuses no transaction.
    ch.basic_publish("", CANCELS, body)
    ch.tx_commit()
    other = name("other")
    ch.queue_declare(other, durable=True, arguments={"x-queue-type": "quorum"})
    publish(ch, other, b"beside", delivery_mode=2)
    ch.basic_publish("", CANCELS, body)
    publish(ch, queue, b"beside", delivery_mode=2)
    ch.tx_commit()
    assert [get(ch, each).body for each in (other, queue)] == [b"beside"] * 2  # type: ignore[union-attr]


@KINDS
def test_waiting_messages_are_moved_and_purged_if_asked_for(
    ch: BlockingChannel, api: Api, name: Name, kind: str
) -> None:
    queue, other = declare(ch, name("q"), kind), name("other")
    ch.queue_declare(other, durable=True, arguments={"x-queue-type": kind})
    ch.confirm_delivery()
    fill(ch, queue, "abcab")
    publish(ch, queue, b"a", message_id="a", delivery_mode=2)
    what = {"destination": other, "message_id": "a"}
    assert ask(api, "POST", queue, "move", what)["moved"] == 1
    assert ask(api, "POST", queue, "move", {**what, "waiting": True})["moved"] == 2
    assert waiting(api, queue) == ["b", "c", "b"]
    # They wait in the other queue, which asks for no delays, until the same time.
    assert drained(ch, other) == [(b"a", False)]
    rows = ask(api, "GET", other, "peek?waiting=true")["messages"]
    assert [row["payload"] for row in rows] == ["a", "a"]
    assert all(abs(row["due"] / 1000 - time() - LONG_MS / 1000) < 30 for row in rows)
    assert ask(api, "POST", queue, "purge", {"contains": "b"})["purged"] == 0
    assert ask(api, "POST", queue, "purge", {"contains": "b", "waiting": True})["purged"] == 2
    assert waiting(api, queue) == ["c"]


def test_what_waits_is_in_a_stream_at_once(ch: BlockingChannel, api: Api, name: Name) -> None:
    queue, log = declare(ch, name("q")), name("log")
    ch.queue_declare(log, durable=True, arguments={"x-queue-type": "stream"})
    ch.confirm_delivery()
    fill(ch, queue, "ab")
    assert ask(api, "POST", queue, "move", {"destination": log, "waiting": True})["moved"] == 2
    assert [row["payload"] for row in ask(api, "GET", log, "peek?since=1h")["messages"]] == ["a", "b"]


@KINDS
def test_waiting_dead_letters_are_redriven(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    dead = declare(ch, name("dead"), kind, delayed_retry_type="all", delayed_retry_min=600)
    queue = name("q")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-queue-type": kind}
    ch.queue_declare(queue, durable=True, arguments=arguments)
    ch.confirm_delivery()
    publish(ch, queue, b"x", delivery_mode=2)
    for each, requeue in ((queue, False), (dead, True)):
        wait_depth(ch, each, 1)
        held = get(ch, each, auto_ack=False)
        assert held is not None
        ch.basic_reject(held.tag, requeue=requeue)
    eventually(lambda: waiting(api, dead) == ["x"])
    assert ask(api, "POST", dead, "redrive", {}) == {"moved": 0, "kept": 0}
    assert ask(api, "POST", dead, "redrive", {"waiting": True}) == {"moved": 1, "kept": 0}
    assert waiting(api, dead) == []
    wait_depth(ch, queue, 1)


@KINDS
def test_only_messages_that_came_since_then(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    began = int(time() * 1000) - 2000
    publish(ch, queue, b"a", delivery_mode=2)
    for since, count in ((str(began), 1), ("1h", 1), (str(began + 600_000), 0), ("2001-01-01T00:00:00Z", 1)):
        assert len(ask(api, "GET", queue, f"peek?since={since}")["messages"]) == count, since
    assert ask(api, "POST", queue, "purge", {"since": str(began + 600_000)})["purged"] == 0
    assert ask(api, "POST", queue, "purge", {"since": "1h"})["purged"] == 1
    assert api.ask("GET", f"queues/%2F/{queue}/peek?since=yesterday").status == 400


@KINDS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_cancelled_messages_stay_away_after_a_restart(
    broker: Broker, connect: Connect, name: Name, kind: str, how: str
) -> None:
    if not isinstance(broker, OwnBroker):
        pytest.skip("only for a broker that the suite started itself")
    ch = connect().channel()
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    fill(ch, queue, "abc", 5000)
    assert cancel(ch, queue, "b")
    broker.restart(kill=how == "kill")
    ch = connect().channel()
    ch.confirm_delivery()
    assert not cancel(ch, queue, "b")
    wait_depth(ch, queue, 2)
    assert [body for body, _ in drained(ch, queue)] == [b"a", b"c"]
    ch.queue_delete(queue)
