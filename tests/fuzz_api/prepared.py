"""The objects that exist before the random requests, and the users who send these."""

from __future__ import annotations

from typing import Any

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from amqp_server.testing.api import Api, ApiError

HOST = "127.0.0.1"
PASSWORD = "fuzzer"
#: By the name of the user; "" is a user without a tag.
TAGS = (ADMINISTRATOR, POLICYMAKER, MONITORING, MANAGEMENT, "")
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
#: Some permissions, so that there are objects that the users may not use.
SOME = {"configure": "^(new|q|x|g|.{0,3})$", "write": "^[^s]", "read": "^[^x]"}
VHOST = "/api/{}/%2F/"


def user_of(tag: str) -> str:
    return f"fuzzer-{tag or 'none'}"


def _users() -> list[tuple[str, str, Any]]:
    told: list[tuple[str, str, Any]] = [
        ("PUT", "/api/users/app", {"password": "app", "tags": ""}),
        ("PUT", "/api/permissions/%2F/app", ALL),
        ("PUT", "/api/users/passing", {"password": "app", "tags": ""}),
    ]
    for tag in TAGS:
        told.append(("PUT", f"/api/users/{user_of(tag)}", {"password": PASSWORD, "tags": tag}))
        told.append(
            (
                "PUT",
                f"/api/permissions/%2F/{user_of(tag)}",
                ALL if tag in (ADMINISTRATOR, MANAGEMENT) else SOME,
            )
        )
    told.append(("PUT", f"/api/permissions/other/{user_of(ADMINISTRATOR)}", ALL))
    return told


def _queue(name: str, **arguments: object) -> tuple[str, str, Any]:
    return "PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": arguments}


def _exchange(name: str, type: str, **arguments: object) -> tuple[str, str, Any]:
    return "PUT", f"/api/exchanges/%2F/{name}", {"type": type, "durable": True, "arguments": arguments}


def _publish(exchange: str, key: str) -> tuple[str, str, Any]:
    body = {"routing_key": key, "properties": {}, "payload": "body", "payload_encoding": "string"}
    return "POST", f"/api/exchanges/%2F/{exchange}/publish", body


THINGS: list[tuple[str, str, Any]] = [
    _queue("q"),
    _queue("s", **{"x-queue-type": "stream"}),
    _queue("g", **{"x-queue-type": "stream-group", "x-stream": "s"}),
    _queue("u", **{"x-queue-type": "quorum"}),
    _exchange("x", "topic"),
    _exchange("p", "x-super-stream", **{"x-partitions": 2}),
    ("POST", "/api/bindings/%2F/e/x/q/q", {"routing_key": "#"}),
    ("POST", "/api/bindings/%2F/e/x/q/s", {"routing_key": "#"}),
    _publish("x", "a.b"),
    _publish("amq.default", "u"),
    ("PUT", "/api/policies/%2F/l", {"pattern": "^q", "definition": {"max-length": 100}}),
]


def prepare(port: int) -> None:
    """Make the missing objects through one node. An object that a random request has made under the same name
    stays.
    """
    api = Api(HOST, port, "guest", "guest")
    try:
        for vhost in ("%2F", "other", "passing"):
            api.ask("PUT", f"/api/vhosts/{vhost}", {})
            api.ask("PUT", f"/api/permissions/{vhost}/guest", ALL)
        for limit in ("max-connections", "max-queues"):
            api.ask("DELETE", f"/api/vhost-limits/%2F/{limit}")
        for request in _users():
            api.ask(*request)
        for request in THINGS:
            try:
                api.ask(*request)
            except ApiError as error:
                if error.status >= 500:
                    raise
    finally:
        api.close()
