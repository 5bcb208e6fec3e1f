"""Limits of virtual hosts and users, for each way to make what they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from conformance_tests.api import Answer, Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import check_close

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def vhost(api: Api, name: Name) -> Iterator[str]:
    """A separate vhost that guest may open."""
    vhost = name("vhost")
    assert api.ask("PUT", f"vhosts/{vhost}", {}).status == 201
    assert api.ask("PUT", f"permissions/{vhost}/guest", ALL).status in (201, 204)
    yield vhost
    api.ask("DELETE", f"vhosts/{vhost}")


def of_type(type_: str) -> dict[str, Any]:
    return {"durable": True, "arguments": {"x-queue-type": type_}}


WAYS: dict[str, dict[str, Any]] = {
    "transient": {},
    "durable": {"durable": True},
    "exclusive": {"exclusive": True},
    "auto-delete": {"auto_delete": True},
    "quorum": of_type("quorum"),
    "stream": of_type("stream"),
    "named by the server": {"queue": ""},
}


def refusal(vhost: str, queue: str, limit: int = 1) -> str:
    return f"cannot declare queue '{queue}': queue limit in vhost '{vhost}' ({limit}) is reached"


@pytest.mark.parametrize("way", WAYS)
def test_no_more_queues_by_clients(api: Api, connect: Connect, vhost: str, way: str) -> None:
    connection = connect(vhost=vhost)
    connection.channel().queue_declare("there", durable=True)
    assert api.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 1}).status == 204
    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare(**({"queue": "new"} | WAYS[way]))
    name = refused.value.reply_text.split("'")[1]
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406,
        f"PRECONDITION_FAILED - {refusal(vhost, name)}",
    )
    assert name == "new" or name.startswith("amq.gen-")
    channel = connection.channel()
    channel.queue_declare("there", durable=True)
    assert [row["name"] for row in api.ask("GET", f"queues/{vhost}").json] == ["there"]
    channel.queue_delete("there")
    connection.channel().queue_declare(**({"queue": "new"} | WAYS[way]))


def test_no_more_queues_by_the_management_api(api: Api, connect: Connect, vhost: str) -> None:
    channel = connect(vhost=vhost).channel()
    channel.queue_declare("there", durable=True)
    assert api.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 1}).status == 204
    answer = api.ask("PUT", f"queues/{vhost}/new", {"durable": True})
    assert (answer.status, answer.json["reason"]) == (400, refusal(vhost, "new"))
    assert api.ask("PUT", f"queues/{vhost}/there", {"durable": True}).status == 204


def _whole(api: Api, vhost: str, queue: dict[str, Any]) -> Answer:
    return api.ask("POST", "definitions", {"queues": [{"vhost": vhost, **queue}]})


def _of_vhost(api: Api, vhost: str, queue: dict[str, Any]) -> Answer:
    return api.ask("POST", f"definitions/{vhost}", {"queues": [queue]})


@pytest.mark.parametrize("post", [_whole, _of_vhost])
def test_no_more_queues_by_definitions(
    api: Api, connect: Connect, vhost: str, post: Callable[[Api, str, dict[str, Any]], Answer]
) -> None:
    channel = connect(vhost=vhost).channel()
    channel.queue_declare("there", durable=True)
    assert api.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 1}).status == 204
    there = {"name": "there", "durable": True, "auto_delete": False, "arguments": {}}
    assert post(api, vhost, there).status == 204
    answer = post(api, vhost, there | {"name": "new"})
    assert answer.status == 400
    # RabbitMQ counts the queues of the file first, 3.10 only for one virtual host.
    counted = f'Adding 1 queue(s) to virtual host "{vhost}" would exceed the limit of 1 queue(s).'
    assert any(text in answer.json["reason"] for text in (refusal(vhost, "new"), counted))
    with pytest.raises(ChannelClosedByBroker, match="no queue 'new'"):
        channel.queue_declare("new", passive=True)


def test_a_limit_of_zero(api: Api, connect: Connect, vhost: str) -> None:
    channel: BlockingChannel = connect(vhost=vhost).channel()
    assert api.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 0}).status == 204
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("new")
    assert refused.value.reply_text == f"PRECONDITION_FAILED - {refusal(vhost, 'new', 0)}"


def test_no_channel_for_a_user(api: Api, connect: Connect, vhost: str, name: Name) -> None:
    user = name("user")
    assert api.ask("PUT", f"users/{user}", {"password": user, "tags": ""}).status == 201
    try:
        assert api.ask("PUT", f"permissions/{vhost}/{user}", ALL).status == 201
        assert api.ask("PUT", f"user-limits/{user}/max-channels", {"value": 0}).status == 204
        connection = connect(user=user, vhost=vhost)
        with pytest.raises(ConnectionClosedByBroker) as refused:
            connection.channel()
        text = f"number of channels opened for user '{user}' has reached the maximum allowed user limit of"
        check_close(
            refused.value.reply_code, refused.value.reply_text, 530, rf"^NOT_ALLOWED - {text} (\(0\)|0)$"
        )
    finally:
        api.ask("DELETE", f"users/{user}")
