"""Definitions: one broker imports what another one exports; and limits that operators set."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
)

from conformance_tests.api import Api
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import check_close, eventually

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def rabbitmq_hash(password: str, digest: str) -> str:
    salt = b"salt"
    return base64.b64encode(salt + hashlib.new(digest, salt + password.encode()).digest()).decode()


@pytest.fixture
def vhost(api: Api, name: Name) -> Iterator[str]:
    """A separate vhost that guest may open."""
    vhost = name("vhost")
    assert api.ask("PUT", f"vhosts/{vhost}", {}).status == 201
    assert api.ask("PUT", f"permissions/{vhost}/guest", ALL).status in (201, 204)
    yield vhost
    api.ask("DELETE", f"vhosts/{vhost}")


@pytest.fixture
def user(api: Api, name: Name, vhost: str) -> Iterator[str]:
    """A user that may do anything in the vhost; its password is its name."""
    user = name("user")
    assert api.ask("PUT", f"users/{user}", {"password": user, "tags": "management"}).status == 201
    assert api.ask("PUT", f"permissions/{vhost}/{user}", ALL).status == 201
    yield user
    api.ask("DELETE", f"users/{user}")


def of(told: dict[str, Any], section: str, vhost: str) -> list[dict[str, Any]]:
    return [row for row in told[section] if row.get("vhost") == vhost]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_what_was_exported_is_imported_again(api: Api, connect: Connect, vhost: str, user: str) -> None:
    connection = connect(vhost=vhost)
    channel = connection.channel()
    channel.exchange_declare("x", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange_declare("passing", "fanout")
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5, "x-queue-type": "quorum"})
    channel.queue_declare("transient")
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("q", "x", "a.#", arguments={"n": 1})
    channel.queue_bind("mine", "x", "b")
    channel.exchange_bind("passing", "x", "c")
    policy = {"pattern": "^q", "definition": {"max-length": 3}, "apply-to": "queues", "priority": 2}
    assert api.ask("PUT", f"policies/{vhost}/p", policy).status == 201
    assert api.ask("PUT", f"operator-policies/{vhost}/o", policy).status == 201
    assert api.ask("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 50}).status == 204
    topic = {"exchange": "x", "write": "^a", "read": "^b"}
    assert api.ask("PUT", f"topic-permissions/{vhost}/{user}", topic).status == 201

    before = api.ask("GET", "definitions").json
    own = api.ask("GET", f"definitions/{vhost}").json
    assert {row["name"] for row in of(before, "queues", vhost)} == {"q", "transient"}
    assert {row["name"] for row in of(before, "exchanges", vhost)} == {"x", "passing"}
    assert sorted(row["destination"] for row in of(before, "bindings", vhost)) == ["passing", "q"]
    assert of(before, "policies", vhost) == [{"vhost": vhost, "name": "p"} | policy]
    components = {row["component"]: row["value"] for row in of(before, "parameters", vhost)}
    assert components == {"operator_policy": policy, "vhost-limits": {"max-queues": 50}}
    assert of(before, "topic_permissions", vhost) == [{"user": user, "vhost": vhost} | topic]
    for section in ("queues", "exchanges", "bindings"):
        assert [row | {"vhost": vhost} for row in own[section]] == of(before, section, vhost)
    assert own["policies"] == of(before, "policies", vhost)
    assert in_order(own["parameters"]) == in_order(of(before, "parameters", vhost))
    assert "users" not in own

    connection.close()
    assert api.ask("DELETE", f"vhosts/{vhost}").status == 204
    assert api.ask("DELETE", f"users/{user}").status == 204
    assert api.ask("POST", "definitions", before).status == 204
    after = api.ask("GET", "definitions").json
    for section in ("queues", "exchanges", "bindings", "policies", "parameters", "permissions"):
        assert in_order(of(after, section, vhost)) == in_order(of(before, section, vhost))
    assert of(after, "topic_permissions", vhost) == of(before, "topic_permissions", vhost)
    found = [row for row in after["users"] if row["name"] == user]
    assert found == [row for row in before["users"] if row["name"] == user]
    # It can log in as before.
    assert api.ask("GET", "whoami", login=f"{user}:{user}").json["name"] == user


def test_definitions_of_one_vhost_go_into_another_one(api: Api, connect: Connect, vhost: str) -> None:
    told: dict[str, list[dict[str, Any]]] = {
        "queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [
            {
                "name": "x",
                "type": "direct",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "bindings": [
            {
                "source": "x",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "k",
                "arguments": {},
            }
        ],
        "policies": [
            {
                "vhost": "elsewhere",
                "name": "p",
                "pattern": "q",
                "definition": {"max-length": 1},
                "apply-to": "all",
            }
        ],
    }
    assert api.ask("POST", f"definitions/{vhost}", told).status == 204
    assert api.ask("GET", f"queues/{vhost}/q").status == 200
    assert api.ask("GET", f"policies/{vhost}/p").status == 200
    assert len(api.ask("GET", f"bindings/{vhost}/e/x/q/q").json) == 1
    # Existing objects stay as they are.
    told["queues"][0]["durable"] = False
    assert api.ask("POST", f"definitions/{vhost}", told).status == 204
    assert api.ask("GET", f"queues/{vhost}/q").json["durable"] is True
    assert api.ask("POST", "definitions/no-such-vhost", told).status == 404


def test_a_form_of_a_page(api: Api, vhost: str) -> None:
    told = json.dumps({"queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}]})
    body = (
        '--X\r\nContent-Disposition: form-data; name="file"; filename="d.json"\r\n'
        f"Content-Type: application/json\r\n\r\n{told}\r\n--X--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=X"}
    assert api.ask("POST", f"definitions/{vhost}", body.encode(), headers=headers).status == 204
    assert api.ask("GET", f"queues/{vhost}/q").status == 200


def test_what_is_no_json(api: Api) -> None:
    answer = api.ask("POST", "definitions", b"{")
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api.ask("POST", "definitions", {}).status == 204


@pytest.mark.parametrize("digest", ["sha256", "sha512", "md5"])
def test_users_come_with_their_hashes(
    api: Api, connect: Connect, name: Name, vhost: str, digest: str
) -> None:
    user = name("user")
    told = {
        "users": [
            {
                "name": user,
                "password_hash": rabbitmq_hash("secret", digest),
                "hashing_algorithm": f"rabbit_password_hashing_{digest}",
                "tags": ["management"],
                "limits": {"max-connections": 7},
            }
        ],
        "permissions": [{"user": user, "vhost": vhost} | ALL],
    }
    try:
        assert api.ask("POST", "definitions", told).status == 204
        assert api.ask("GET", f"users/{user}").json["limits"] == {"max-connections": 7}
        for _ in range(2):
            connect(user=user, password="secret", vhost=vhost).close()
            assert api.ask("GET", "whoami", login=f"{user}:secret").status == 200
            assert api.ask("GET", "whoami", login=f"{user}:wrong").status == 401
    finally:
        api.ask("DELETE", f"users/{user}")


def test_only_administrators(api: Api, vhost: str, user: str) -> None:
    for method in ("GET", "POST"):
        for path in ("definitions", f"definitions/{vhost}"):
            answer = api.ask(method, path, {}, login=f"{user}:{user}")
            assert (answer.status, answer.json["reason"]) == (401, "Not administrator user")


# -- limits ----------------------------------------------------------------------------------------


def test_limits_of_a_vhost(api: Api, connect: Connect, vhost: str) -> None:
    path = f"vhost-limits/{vhost}"
    connection = connect(vhost=vhost)
    channel = connection.channel()
    channel.queue_declare("one")
    assert api.ask("GET", path).json == []
    assert api.ask("PUT", f"{path}/max-queues", {"value": 1}).status == 204
    assert api.ask("PUT", f"{path}/max-connections", {"value": 1}).status == 204
    assert api.ask("GET", path).json == [{"vhost": vhost, "value": {"max-queues": 1, "max-connections": 1}}]
    assert {"vhost": vhost, "value": {"max-queues": 1, "max-connections": 1}} in api.ask(
        "GET", "vhost-limits"
    ).json
    channel.queue_declare("one")
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("two")
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406,
        f"PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '{vhost}' (1) is reached",
    )

    def refuses() -> str:
        try:
            connect(vhost=vhost, connection_attempts=1).close()
        except (ProbableAccessDeniedError, ConnectionClosedByBroker) as error:
            return str(error)
        return ""

    # RabbitMQ counts a connection a moment after it was opened.
    told = eventually(refuses)
    assert f"access to vhost '{vhost}' refused for user 'guest': connection limit (1) is reached" in told
    assert api.ask("DELETE", f"{path}/max-connections").status == 204
    connect(vhost=vhost).close()
    assert api.ask("PUT", f"{path}/max-queues", {"value": -1}).status == 204
    connection.channel().queue_declare("two")
    answer = api.ask("PUT", f"{path}/nosuch", {"value": 5})
    assert (answer.status, answer.json["reason"]) == (
        400,
        'Validation failed\n\nUnrecognised terms [{<<"nosuch">>,5}] in limits\n',
    )
    answer = api.ask("PUT", f"{path}/max-queues", {"value": "x"})
    assert (answer.status, answer.json["reason"]) == (
        400,
        'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n',
    )
    assert api.ask("PUT", "vhost-limits/nosuch/max-queues", {"value": 1}).status == 404


def test_limits_of_a_user(api: Api, connect: Connect, vhost: str, user: str) -> None:
    path = f"user-limits/{user}"
    assert api.ask("GET", path).json == []
    assert api.ask("PUT", f"{path}/max-connections", {"value": 1}).status == 204
    assert api.ask("PUT", f"{path}/max-channels", {"value": 2}).status == 204
    limits = {"max-connections": 1, "max-channels": 2}
    assert api.ask("GET", path).json == [{"user": user, "value": limits}]
    assert {"user": user, "value": limits} in api.ask("GET", "user-limits").json
    assert api.ask("GET", f"users/{user}").json["limits"] == limits
    connection = connect(user=user, vhost=vhost)

    def refuses() -> str:
        try:
            connect(user=user, vhost=vhost, connection_attempts=1).close()
        except (ProbableAccessDeniedError, ConnectionClosedByBroker) as error:
            return str(error)
        return ""

    told = eventually(refuses)
    assert f"connection refused for user '{user}': user connection limit (1) is reached" in told
    connection.channel()
    connection.channel()
    with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError)) as refused:
        for _ in range(20):
            connection.channel()
            connection.process_data_events(0.05)
    assert refused.value.args[0] == 530
    assert re.search(r"has reached the maximum allowed user limit of (\(2\)|2)$", refused.value.args[1])
    assert api.ask("DELETE", f"{path}/all").status == 204
    assert api.ask("GET", path).json == []
    answer = api.ask("PUT", f"{path}/nosuch", {"value": 5})
    assert (answer.status, answer.json["reason"]) == (
        400,
        'Unrecognised terms [{<<"nosuch">>,5}] in user-limits',
    )
    answer = api.ask("PUT", "user-limits/nosuch/max-channels", {"value": 5})
    assert (answer.status, answer.json["reason"]) == (400, ["no_such_user", "nosuch"])


# -- topics ----------------------------------------------------------------------------------------


def test_topic_permissions(api: Api, connect: Connect, vhost: str, user: str) -> None:
    path = f"topic-permissions/{vhost}/{user}"
    told = {"exchange": "amq.topic", "write": "^a\\.{username}$", "read": "^(a|b)\\."}
    assert api.ask("PUT", path, told).status == 201
    shown = {"user": user, "vhost": vhost} | told
    assert api.ask("GET", path).json == [shown]
    assert shown in api.ask("GET", "topic-permissions").json
    assert api.ask("GET", f"topic-permissions/%2F/{user}").status == 404
    for other in (f"users/{user}", f"vhosts/{vhost}"):
        assert api.ask("GET", f"{other}/topic-permissions").json == [shown]
    connection = connect(user=user, vhost=vhost)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "b.#")
    channel.queue_bind(queue, "amq.topic", "a.#")
    channel.queue_bind(queue, "amq.direct", "c")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", f"a.{user}", b"1")
    channel.basic_publish("amq.direct", "c", b"2")
    assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(2)] == [b"1", b"2"]
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish("amq.topic", "a.other", b"")
    topic = rf"'a\.other' in exchange 'amq.topic' in vhost '{vhost}' refused for user '{user}'"
    check_close(
        refused.value.reply_code,
        refused.value.reply_text,
        403,
        f"^ACCESS_REFUSED - (write )?access to topic {topic}$",
    )
    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_bind(queue, "amq.topic", "c.#")
    assert refused.value.reply_code == 403
    assert "access to topic 'c.#' in exchange 'amq.topic'" in refused.value.reply_text
    assert api.ask("PUT", path, told | {"write": ""}).status in (201, 204)
    assert api.ask("DELETE", path).status == 204
    assert api.ask("GET", path).status in (200, 404)
    assert api.ask("PUT", path, told | {"write": "("}).status == 400


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_apply_to_further_keys(
    api: Api, connect: Connect, vhost: str, user: str, header: str
) -> None:
    told = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    assert api.ask("PUT", f"topic-permissions/{vhost}/{user}", told).status == 201
    connection = connect(user=user, vhost=vhost)
    channel = connection.channel()
    queue = channel.queue_declare("q").method.queue
    channel.queue_bind(queue, "amq.topic", "#")
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers={header: ["a.1", "a.2"]})
    channel.basic_publish("amq.topic", "a", b"permitted", properties)
    # Other exchanges have no such permission.
    channel.queue_bind(queue, "amq.direct", "b")
    channel.basic_publish("amq.direct", "a", b"direct", pika.BasicProperties(headers={header: ["b"]}))
    assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(2)] == [b"permitted", b"direct"]
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish("amq.topic", "a", b"", pika.BasicProperties(headers={header: ["a.1", "b"]}))
    topic = f"'b' in exchange 'amq.topic' in vhost '{vhost}' refused for user '{user}'"
    check_close(
        refused.value.reply_code,
        refused.value.reply_text,
        403,
        f"^ACCESS_REFUSED - (write )?access to topic {topic}$",
    )
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0


def _by_exchange(channel: BlockingChannel) -> str:
    channel.exchange_bind("amq.topic", "amq.fanout")
    channel.basic_publish("amq.fanout", "b", b"tea")
    return "b"


def _by_alternate(channel: BlockingChannel) -> str:
    channel.exchange_declare("x", "direct", arguments={"alternate-exchange": "amq.topic"})
    channel.basic_publish("x", "b", b"tea")
    return "b"


def _by_dead_letter(channel: BlockingChannel) -> str:
    arguments = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "b", "x-message-ttl": 0}
    channel.queue_declare("dying", arguments=arguments)
    channel.basic_publish("", "dying", b"tea")
    return "b"


@pytest.mark.parametrize("way", [_by_exchange, _by_alternate, _by_dead_letter])
def test_topic_permissions_end_at_the_exchange_of_the_publish(
    api: Api, connect: Connect, vhost: str, user: str, way: Callable[[BlockingChannel], str]
) -> None:
    """The topology decides where a message goes from there; who made it needed permissions of his own."""
    told = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    assert api.ask("PUT", f"topic-permissions/{vhost}/{user}", told).status == 201
    channel = connect(user=user, vhost=vhost).channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "#")
    channel.confirm_delivery()
    key = way(channel)
    method, _, body = eventually(lambda: _got(channel))
    assert (method.exchange, method.routing_key, body) == (
        {"_by_exchange": "amq.fanout", "_by_alternate": "x"}.get(way.__name__, "amq.topic"),
        key,
        b"tea",
    )


def _got(channel: BlockingChannel) -> Any:
    found = channel.basic_get("q", auto_ack=True)
    return found if found[0] is not None else None


# -- parameters ------------------------------------------------------------------------------------


def test_parameters(api: Api, vhost: str) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 3}, "apply-to": "queues", "priority": 2}
    assert api.ask("PUT", f"policies/{vhost}/p", policy).status == 201
    shown = {"value": policy, "vhost": vhost, "component": "policy", "name": "p"}
    assert api.ask("GET", f"parameters/policy/{vhost}/p").json == shown
    for path in ("parameters/policy", f"parameters/policy/{vhost}"):
        assert shown in api.ask("GET", path).json
    assert shown not in api.ask("GET", "parameters").json
    answer = api.ask("PUT", f"parameters/policy/{vhost}/q", {"value": policy})
    assert (answer.status, answer.json["reason"]) == (400, "policies may not be set using this method")
    answer = api.ask("PUT", f"parameters/policy/{vhost}/x", {"a": 1})
    assert (answer.status, answer.json["reason"]) == (400, "[{key_missing,value}]")
    answer = api.ask("PUT", f"parameters/nosuch/{vhost}/x", {"value": 1})
    assert (answer.status, answer.json["reason"]) == (
        400,
        "Validation failed\n\ncomponent nosuch not found\n",
    )
    limits = f"parameters/vhost-limits/{vhost}/limits"
    assert api.ask("PUT", limits, {"value": {"max-connections": 5}}).status in (201, 204)
    assert api.ask("GET", f"vhost-limits/{vhost}").json == [{"vhost": vhost, "value": {"max-connections": 5}}]
    assert api.ask("DELETE", limits).status == 204
    assert api.ask("GET", limits).status == 404


def test_global_parameters(api: Api, name: Name) -> None:
    parameter = name("global")
    path = f"global-parameters/{parameter}"
    assert api.ask("GET", path).status == 404
    assert api.ask("PUT", path, {"value": {"a": 1}}).status == 201
    assert api.ask("PUT", path, {"value": {"a": [1, "x"]}}).status == 204
    assert api.ask("GET", path).json == {"name": parameter, "value": {"a": [1, "x"]}}
    assert api.ask("GET", path).json in api.ask("GET", "global-parameters").json
    assert api.ask("DELETE", path).status == 204
    assert api.ask("GET", path).status == 404


def test_the_id_of_the_cluster_is_a_global_parameter(api: Api) -> None:
    one = api.ask("GET", "global-parameters/internal_cluster_id").json
    assert one["name"] == "internal_cluster_id"
    assert one["value"].startswith("rabbitmq-cluster-id-")
    assert one in api.ask("GET", "global-parameters").json


def test_definitions_that_are_the_same_are_not_sent_again(api: Api, ch: BlockingChannel, name: Name) -> None:
    first = api.ask("GET", "definitions")
    etag = first.headers["etag"]
    again = api.ask("GET", "definitions", headers={"if-none-match": f'"other", {etag}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    assert api.ask("GET", "definitions", headers={"if-none-match": '"other"'}).json == first.json
    ch.exchange_declare(name("x"), durable=True)
    changed = api.ask("GET", "definitions", headers={"if-none-match": etag})
    assert (changed.status, changed.headers["etag"] != etag) == (200, True)
