"""Messages seen, moved, purged, copied and exported where they lie: an extension of mqd's management API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.conftest import Name
from conformance_tests.inbox import get, publish
from conformance_tests.test_management import quoted

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def declare(ch: BlockingChannel, queue: str, kind: str) -> str:
    ch.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    ch.confirm_delivery()
    return queue


def ask(api: Api, method: str, queue: str, what: str, body: Any = None) -> Any:
    answer = api.ask(method, f"queues/%2F/{quoted(queue)}/{what}", body)
    assert answer.status == 200, answer
    return answer.json


def drained(ch: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    found = []
    while (delivery := get(ch, queue, auto_ack=True)) is not None:
        found.append((delivery.body, delivery.redelivered))
    return found


def fill(ch: BlockingChannel, queue: str, count: int = 9) -> None:
    for number in range(count):
        publish(ch, queue, b"%d" % number, headers={"third": number % 3}, delivery_mode=2)


@KINDS
def test_a_look_changes_nothing(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue = declare(ch, name("q"), kind)
    fill(ch, queue)
    told = ask(api, "GET", queue, "peek?count=4")
    assert [row["payload"] for row in told["messages"]] == list("0123")
    told = ask(api, "GET", queue, f"peek?count=100&after={told['next']}&header=third%3D2")
    assert [row["payload"] for row in told["messages"]] == ["5", "8"]
    assert drained(ch, queue) == [(b"%d" % number, False) for number in range(9)]


@KINDS
def test_only_messages_that_match_are_moved_and_purged(
    ch: BlockingChannel, api: Api, name: Name, kind: str
) -> None:
    queue, other = declare(ch, name("q"), kind), declare(ch, name("other"), kind)
    fill(ch, queue)
    told = ask(api, "POST", queue, "move", {"destination": other, "header": "third=1"})
    assert (told["moved"], told["refused"], told["looked_at"]) == (3, 0, 9)
    assert ask(api, "POST", queue, "purge", {"contains": "5"})["purged"] == 1
    assert drained(ch, queue) == [(body, False) for body in (b"0", b"2", b"3", b"6", b"8")]
    assert drained(ch, other) == [(body, False) for body in (b"1", b"4", b"7")]


@KINDS
def test_a_consumer_keeps_what_it_holds(ch: BlockingChannel, api: Api, name: Name, kind: str) -> None:
    queue, other = declare(ch, name("q"), kind), declare(ch, name("other"), kind)
    fill(ch, queue, 3)
    held = get(ch, queue, auto_ack=False)
    assert held is not None and held.body == b"0"
    told = ask(api, "POST", queue, "move", {"destination": other, "routing_key": "."})
    assert told["moved"] == 2
    ch.basic_reject(held.tag, requeue=True)
    assert drained(ch, other) == [(b"1", False), (b"2", False)]
    assert drained(ch, queue) == [(b"0", True)]


@KINDS
def test_copies_and_imports_have_all_that_the_messages_had(
    ch: BlockingChannel, api: Api, name: Name, kind: str
) -> None:
    queue, copies, again = (declare(ch, name(each), kind) for each in ("q", "copies", "again"))
    publish(
        ch, queue, b"\xff\x00", headers={"n": 1 << 40, "in": {"a": [None, "é"]}}, delivery_mode=2, type="t"
    )
    assert ask(api, "POST", queue, "copy", {"destination": copies})["copied"] == 1
    rows = ask(api, "GET", queue, "peek?encoding=typed")["messages"]
    lines = "\n".join(map(json.dumps, rows))
    assert ask(api, "POST", again, "import", {"lines": lines}) == {"imported": 1, "refused": []}
    for each in (queue, copies, again):
        delivery = get(ch, each)
        assert delivery is not None and delivery.body == b"\xff\x00"
        assert delivery.properties.headers == {"n": 1 << 40, "in": {"a": [None, "é"]}}
        assert (delivery.properties.type, delivery.properties.delivery_mode) == ("t", 2)
    answer = api.ask("POST", f"queues/%2F/{quoted(again)}/import", {"lines": lines + "\n{"})
    assert answer.status == 400 and "line 2: " in answer.json["reason"]
