"""What became of a message: an extension of mqd's. See docs/message-status.md."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from conformance_tests.api import Api
from conformance_tests.broker import Broker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import expect_channel_close
from conformance_tests.inbox import wait_get
from conformance_tests.status_client import Asker

TYPES = pytest.mark.parametrize("kind", ["classic", "transient", "quorum"])
ON: dict[str, Any] = {"x-message-status": True}


def declare(ch: BlockingChannel, queue: str, kind: str, **arguments: Any) -> str:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    if kind == "transient":
        ch.queue_declare(queue, exclusive=True, arguments={**ON, **given})
    else:
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **ON, **given})
    return queue


def send(ch: BlockingChannel, queue: str, id: str, *, mode: int = 2, **more: Any) -> None:
    ch.basic_publish("", queue, b"body", BasicProperties(message_id=id, delivery_mode=mode, **more))


@pytest.fixture
def asker(connect: Connect) -> Asker:
    return Asker(connect().channel())


@TYPES
def test_the_way_of_a_message(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    if kind == "transient":
        asker = Asker(ch.connection.channel())
    ch.confirm_delivery()
    for id in ("m1", "m2", "m3", "m4"):
        send(ch, queue, id)
        assert asker.state(id, queue) == ("queued", "")
    first, second = wait_get(ch, queue, auto_ack=False), wait_get(ch, queue, auto_ack=False)
    asker.becomes("m1", queue, "delivered")
    ch.basic_ack(first.tag)
    asker.becomes("m1", queue, "acknowledged")
    ch.basic_nack(second.tag, requeue=True)
    asker.becomes("m2", queue, "queued")
    again = wait_get(ch, queue, auto_ack=False)
    ch.basic_reject(again.tag, requeue=False)
    asker.becomes("m2", queue, "dropped", "rejected")
    told = asker.ask("m2", queue)["queues"][0]["messages"][0]
    assert told["deliveries"] == 2
    assert told["queued_ms"] <= told["changed_ms"]
    assert told["consumer"]["channel"] == ch.channel_number and told["consumer"]["consumer_tag"] is None
    wait_get(ch, queue, auto_ack=True)
    asker.becomes("m3", queue, "acknowledged")
    ch.queue_purge(queue)
    asker.becomes("m4", queue, "dropped", "purged")
    answer = asker.ask("never", queue)
    assert not answer["known"] and answer["queues"][0]["state"] == "unknown"


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_dead_letters_and_limits(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    target = declare(ch, name("dead"), kind)
    queue = declare(ch, name("q"), kind, x_dead_letter_exchange="", x_dead_letter_routing_key=target)
    limited = declare(ch, name("l"), kind, x_max_length=1)
    full = declare(ch, name("f"), kind, x_max_length=1, x_overflow="reject-publish")
    ch.confirm_delivery()
    send(ch, queue, "old", expiration="1")
    asker.becomes("old", queue, "dead-lettered", "expired")
    told = asker.ask("old", queue)["queues"][0]["messages"][0]
    assert (told["dead_letter_exchange"], told["dead_letter_routing_key"]) == ("", target)
    # The dead letter keeps its id, and the target records it.
    asker.becomes("old", target, "queued")
    answer = asker.ask("old")
    assert {each["queue"] for each in answer["queues"]} == {queue, target}
    send(ch, limited, "one")
    send(ch, limited, "two")
    asker.becomes("one", limited, "dropped", "max-length")
    assert asker.state("two", limited) == ("queued", "")
    send(ch, full, "one")
    with pytest.raises(NackError):
        send(ch, full, "two")
    assert asker.state("two", full) == ("dropped", "refused: max-length")


@TYPES
def test_expired_without_a_target(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    if kind == "transient":
        asker = Asker(ch.connection.channel())
    send(ch, queue, "m", expiration="1")
    asker.becomes("m", queue, "expired", "expired")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_duplicates(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    queue = declare(ch, name("q"), kind, x_deduplication=True)
    ch.confirm_delivery()
    for id in ("m", "m", "again"):
        send(ch, queue, id, headers={"x-deduplication-id": "d"})
    (told,) = asker.ask("m", queue)["queues"]
    assert told["state"] == "queued" and len(told["messages"]) == 1
    assert (told["not_taken"]["state"], told["not_taken"]["times"]) == ("duplicate", 1)
    assert asker.state("again", queue) == ("duplicate", "")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_id_twice(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    ch.confirm_delivery()
    send(ch, queue, "m")
    wait_get(ch, queue, auto_ack=True)
    send(ch, queue, "m")
    states = [each["state"] for each in asker.ask("m", queue)["queues"][0]["messages"]]
    assert states == ["queued", "acknowledged"]


def test_the_window(ch: BlockingChannel, name: Name, asker: Asker) -> None:
    by_count = declare(ch, name("c"), "quorum", x_message_status_count=2)
    by_time = declare(ch, name("t"), "quorum", x_message_status_window_ms=1)
    ch.confirm_delivery()
    for id in ("m1", "m2", "m3"):
        send(ch, by_count, id)
    assert [asker.state(id, by_count)[0] for id in ("m1", "m2", "m3")] == ["unknown", "queued", "queued"]
    assert asker.ask("m1", by_count)["queues"][0]["recorded_since_ms"] > 0
    send(ch, by_time, "m")
    asker.becomes("m", by_time, "unknown")


def test_questions_that_are_wrong(ch: BlockingChannel, name: Name, asker: Asker) -> None:
    plain = name("plain")
    ch.queue_declare(plain, durable=True)
    for question, code in (
        (b"no json", 406),
        (b"{}", 406),
        (b'{"message_id": 5}', 406),
        (b'{"message_id": ""}', 406),
        (b'{"message_id": "' + b"x" * 10_000 + b'"}', 406),
        (b"x" * 100_000, 406),
        (b'{"message_id": "zz", "hex": true}', 406),
        (b'{"message_id": "m", "queue": "%s"}' % plain.encode(), 406),
        (b'{"message_id": "m", "queue": "%s"}' % name("none").encode(), 404),
    ):
        assert asker.raw(question)["error"] == code
    assert asker.ask("ff00", hex=True)["message_id_hex"] == "ff00"


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-status-window-ms": 0},
        {"x-message-status-count": 0},
        {"x-message-status-count": 1_000_001},
        {"x-message-status": "yes"},
        {"x-queue-type": "stream", "x-message-status": True},
    ],
)
def test_arguments_that_are_wrong(ch: BlockingChannel, name: Name, arguments: dict[str, Any]) -> None:
    with expect_channel_close(406, "x-message-status"):
        ch.queue_declare(name("q"), durable=True, arguments=arguments)


def test_an_id_that_is_no_text(ch: BlockingChannel, name: Name, asker: Asker) -> None:
    queue = declare(ch, name("q"), "classic")
    ch.confirm_delivery()
    send(ch, queue, "é")
    assert asker.state("é", queue) == ("queued", "")
    assert asker.ask("é".encode().hex(), queue, hex=True)["known"]


def test_over_http(ch: BlockingChannel, name: Name, api: Api, broker: Broker) -> None:
    one, two = declare(ch, name("one"), "quorum"), declare(ch, name("two"), "classic")
    ch.confirm_delivery()
    for queue in (one, two):
        send(ch, queue, "a/b é")
    path = f"messages/%2F/{quote('a/b é', safe='')}"
    answer = api.ask("GET", path).json
    assert {each["queue"] for each in answer["queues"]} >= {one, two}
    (told,) = api.ask("GET", f"{path}?queue={one}").json["queues"]
    assert (told["queue"], told["state"], told["type"]) == (one, "queued", "quorum")
    assert api.ask("GET", f"messages/%2F/{'x' * 300}").status == 400
    assert api.ask("GET", f"{path}?queue={name('none')}").status == 404


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_delayed_and_grouped_messages(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    delayed = declare(ch, name("d"), kind, x_delayed=True)
    grouped = declare(ch, name("g"), kind, x_message_groups=True)
    ch.confirm_delivery()
    send(ch, delayed, "late", headers={"x-delay": 600_000})
    send(ch, delayed, "soon", headers={"x-delay": 1})
    assert asker.state("late", delayed) == ("queued", "")
    assert wait_get(ch, delayed, auto_ack=True).body == b"body"
    asker.becomes("soon", delayed, "acknowledged")
    ch.queue_purge(delayed)
    asker.becomes("late", delayed, "dropped", "purged")
    for id in ("g1", "g2"):
        send(ch, grouped, id, headers={"x-group": "a"})
    first = wait_get(ch, grouped, auto_ack=False)
    asker.becomes("g1", grouped, "delivered")
    assert asker.state("g2", grouped) == ("queued", "")
    ch.basic_reject(first.tag, requeue=False)
    asker.becomes("g1", grouped, "dropped", "rejected")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_dead_letters_over_several_queues(ch: BlockingChannel, name: Name, asker: Asker, kind: str) -> None:
    last = declare(ch, name("last"), kind)
    between = declare(
        ch,
        name("between"),
        kind,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=last,
        x_message_ttl=1,
    )
    first = declare(ch, name("first"), kind, x_dead_letter_exchange="", x_dead_letter_routing_key=between)
    ch.confirm_delivery()
    send(ch, first, "m")
    ch.basic_reject(wait_get(ch, first, auto_ack=False).tag, requeue=False)
    asker.becomes("m", first, "dead-lettered", "rejected")
    asker.becomes("m", between, "dead-lettered", "expired")
    asker.becomes("m", last, "queued")
    assert {each["queue"] for each in asker.ask("m")["queues"]} == {first, between, last}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_of_a_transaction(
    ch: BlockingChannel, name: Name, asker: Asker, connect: Connect, kind: str
) -> None:
    queue = declare(ch, name("q"), kind)
    channel = connect().channel()
    channel.tx_select()
    send(channel, queue, "kept")
    channel.tx_commit()
    send(channel, queue, "forgotten")
    channel.tx_rollback()
    assert asker.state("kept", queue) == ("queued", "")
    assert asker.state("forgotten", queue) == ("unknown", "")
    tag = wait_get(channel, queue, auto_ack=False).tag
    channel.basic_ack(tag)
    assert asker.state("kept", queue) == ("delivered", "")
    channel.tx_commit()
    assert asker.state("kept", queue) == ("acknowledged", "")
