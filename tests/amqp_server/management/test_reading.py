"""Messages of a stream, read with the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amqp_server.testing import Broker, Vhost, start
from amqp_server.testing.api import ApiError


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start() as started:
        yield started


@pytest.fixture
def stream(broker: Broker) -> Iterator[Vhost]:
    """A virtual host with a stream `s` of ten messages."""
    with broker.vhost("reading") as vhost:
        vhost.api("PUT", "queues/s", {"arguments": {"x-queue-type": "stream"}})
        vhost.api("PUT", "queues/empty", {"arguments": {"x-queue-type": "stream"}})
        vhost.api("PUT", "queues/classic", {})
        for number in range(10):
            properties = {"headers": {"x-stream-filter-value": "even" if number % 2 == 0 else "odd"}}
            body = {
                "routing_key": "s",
                "payload": str(number),
                "payload_encoding": "string",
                "properties": properties,
            }
            assert vhost.api("POST", "exchanges/amq.default/publish", body) == {"routed": True}
        yield vhost


def read(vhost: Vhost, **asked: Any) -> list[tuple[int, str]]:
    rows = vhost.api("POST", "queues/s/read", asked)
    return [(row["offset"], row["payload"]) for row in rows]


def test_from_where_and_how_many(stream: Vhost) -> None:
    assert read(stream) == [(number, str(number)) for number in range(10)]
    assert read(stream, offset=7) == [(7, "7"), (8, "8"), (9, "9")]
    assert read(stream, offset="first", count=2) == [(0, "0"), (1, "1")]
    assert read(stream, offset="1h", count=1) == [(0, "0")]
    assert read(stream, offset=10) == []
    assert stream.api("POST", "queues/empty/read", {}) == []
    # Any number of reads: nothing is settled, and nothing counts as redelivered.
    (row, *_) = stream.api("POST", "queues/s/read", {"count": 1, "truncate": 0})
    assert (row["redelivered"], row["payload"], row["payload_bytes"]) == (False, "", 1)
    assert stream.api("GET", "queues/s")["messages"] == 10


def test_what_is_wanted_only(stream: Vhost) -> None:
    assert read(stream, filter="odd") == [(number, str(number)) for number in (1, 3, 5, 7, 9)]


@pytest.mark.parametrize(
    ("queue", "asked", "status"),
    [
        ("s", {"count": 0}, 400),
        ("s", {"count": 1_001}, 400),
        ("s", {"truncate": -1}, 400),
        ("s", {"offset": "never"}, 400),
        ("s", {"offset": -1}, 400),
        ("classic", {}, 400),
        ("nowhere", {}, 404),
    ],
)
def test_what_cannot_be_read(stream: Vhost, queue: str, asked: dict[str, Any], status: int) -> None:
    with pytest.raises(ApiError) as refused:
        stream.api("POST", f"queues/{queue}/read", asked)
    assert refused.value.status == status


def test_a_stream_is_looked_at_as_queues_are(stream: Vhost) -> None:
    def peek(query: str) -> tuple[list[str], int, str | None]:
        told = stream.api("GET", f"queues/s/peek?{query}")
        return [row["payload"] for row in told["messages"]], told["looked_at"], told["next"]

    assert peek("count=2") == (["0", "1"], 2, "1")
    assert peek("after=1&count=3") == (["2", "3", "4"], 3, "4")
    assert peek("after=7") == (["8", "9"], 2, "9")
    assert peek("after=9") == ([], 0, None)
    assert peek("header=x-stream-filter-value%3Dodd&count=4") == (["1", "3"], 4, "3")
    assert stream.api("GET", "queues/empty/peek") == {"messages": [], "looked_at": 0, "next": None}
    with pytest.raises(ApiError) as refused:
        stream.api("GET", "queues/s/peek?after=0.1")
    assert refused.value.status == 400


def test_a_group_has_no_messages_to_look_at(stream: Vhost) -> None:
    stream.api("PUT", "queues/g", {"arguments": {"x-queue-type": "stream-group", "x-stream": "s"}})
    with pytest.raises(ApiError) as refused:
        stream.api("GET", "queues/g/peek")
    assert refused.value.status == 400 and "look at its stream" in str(refused.value)
