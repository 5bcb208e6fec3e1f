"""The firehose: copies of what clients publish and get, on the exchange amq.rabbitmq.trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.api import Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import eventually

ALL = {"configure": ".*", "write": ".*", "read": ".*"}

Trace = Callable[[bool], None]


@pytest.fixture
def vhost(api: Api, name: Name) -> Iterator[str]:
    vhost = name("vhost")
    assert api.ask("PUT", f"vhosts/{vhost}", {}).status == 201
    assert api.ask("PUT", f"permissions/{vhost}/guest", ALL).status in (201, 204)
    yield vhost
    api.ask("DELETE", f"vhosts/{vhost}")


@pytest.fixture
def channel(connect: Connect, vhost: str) -> BlockingChannel:
    channel = connect(vhost=vhost).channel()
    channel.confirm_delivery()
    channel.queue_declare("tap")
    channel.queue_bind("tap", "amq.rabbitmq.trace", "#")
    return channel


@pytest.fixture
def trace(api: Api, vhost: str) -> Iterator[Trace]:
    path = f"vhosts/{quote(vhost, safe='')}"

    def turn(on: bool) -> None:
        assert api.ask("PUT", path, {"tracing": on}).status in (201, 204)
        assert api.ask("GET", path).json["tracing"] is on

    yield turn
    turn(False)


def copy(channel: BlockingChannel) -> tuple[str, dict[str, Any], bytes]:
    """Return key, headers and body of the next copy."""
    got: list[Any] = []

    def comes() -> bool:
        got[:] = channel.basic_get("tap", auto_ack=True)
        return got[0] is not None

    eventually(comes)
    method, properties, body = got
    assert method.exchange == "amq.rabbitmq.trace"
    return method.routing_key, properties.headers, body


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}])
def test_what_is_published_and_delivered(
    channel: BlockingChannel, vhost: str, trace: Trace, arguments: dict[str, Any]
) -> None:
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.queue_bind("q", "amq.direct", "key")
    channel.basic_publish("amq.direct", "key", b"before")
    trace(True)
    told = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, priority=1, message_id="m", headers={"a": [1, {"b": "c"}]}
    )
    channel.basic_publish("amq.direct", "key", b"body", told)
    key, headers, body = copy(channel)
    assert (key, body) == ("publish.amq.direct", b"body")
    node, connection = headers.pop("node"), headers.pop("connection")
    assert node and " -> " in connection
    properties = headers.pop("properties")
    assert properties == {
        "content_type": "text/plain", "delivery_mode": 2, "priority": 1, "message_id": "m", "headers": {"a": [1, {"b": "c"}]},
    }  # fmt: skip
    assert headers == {
        "exchange_name": "amq.direct",
        "routing_keys": ["key"],
        "routed_queues": ["q"],
        "vhost": vhost,
        "channel": channel.channel_number,
        "user": "guest",
    }
    if arguments.get("x-queue-type") == "stream":
        channel.basic_qos(prefetch_count=10)
    got: list[bytes] = []

    def take(_: object, method: Any, properties: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    offset = {"x-stream-offset": "first"} if arguments.get("x-queue-type") == "stream" else {}
    channel.basic_consume("q", take, arguments=offset)
    eventually(lambda: channel.connection.process_data_events(0) or got == [b"before", b"body"])
    for expected in (b"before", b"body"):
        key, headers, body = copy(channel)
        assert (key, body) == ("deliver.q", expected)
        assert (headers["redelivered"], headers["routing_keys"], headers["user"]) == (0, ["key"], "guest")
        assert headers["exchange_name"] == "amq.direct"
    trace(False)
    channel.basic_publish("amq.direct", "key", b"after")
    eventually(lambda: channel.connection.process_data_events(0) or got[-1] == b"after")
    assert channel.basic_get("tap")[0] is None


def test_what_is_got_and_what_nobody_gets(channel: BlockingChannel, trace: Trace) -> None:
    trace(True)
    channel.basic_publish("amq.direct", "nowhere", b"lost")
    key, headers, body = copy(channel)
    assert (key, headers["routing_keys"], headers["routed_queues"], body) == (
        "publish.amq.direct",
        ["nowhere"],
        [],
        b"lost",
    )
    channel.queue_declare("q")
    channel.basic_publish("", "q", bytes(300_000), pika.BasicProperties(headers={"CC": ["copy"]}))
    key, headers, body = copy(channel)
    assert (key, headers["routing_keys"], body) == ("publish.", ["q", "copy"], bytes(300_000))
    method, _, _ = channel.basic_get("q")
    key, headers, body = copy(channel)
    assert (key, headers["redelivered"], len(body)) == ("deliver.q", 0, 300_000)
    channel.basic_nack(method.delivery_tag)
    channel.basic_get("q", auto_ack=True)
    assert copy(channel)[1]["redelivered"] == 1
    assert channel.basic_get("tap")[0] is None


def test_transactions_are_traced(
    channel: BlockingChannel, connect: Connect, vhost: str, trace: Trace
) -> None:
    trace(True)
    other = connect(vhost=vhost).channel()
    other.tx_select()
    other.basic_publish("", "nowhere", b"one")
    other.basic_publish("", "nowhere", b"two")
    other.tx_commit()
    assert [copy(channel)[2] for _ in range(2)] == [b"one", b"two"]
    assert channel.basic_get("tap")[0] is None
