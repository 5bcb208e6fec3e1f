"""The API's description matches the routes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS
from amqp_server.management.serving.openapi import body_of, document, lists, text
from amqp_server.management.statistics.sampler import Sampler

from .conftest import Connect, ManagedNode, published

#: Types of JSON.
TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
WITHOUT_BODY = {
    "post /api/nodes/{node}/stop",
    "put /api/nodes/{node}/drain",
    "put /api/nodes/{node}/revive",
    "put /api/feature-flags/{name}/enable",
    "post /api/rebalance/queues",
    "post /api/vhosts/{vhost}/start/{node}",
    "post /api/vhosts/{vhost}/deletion/protection",
    "post /api/queues/{vhost}/{name}/deletion/protection",
    "post /api/failed-queues/{vhost}/{name}/retry",
    "post /api/cluster/nodes/{node}/grow",
    "post /api/cluster/nodes/{node}/shrink",
    "post /api/cluster/rebalance",
    "post /api/cluster/topology/accept-loss",
    "post /api/cluster/queues/{vhost}/{name}/accept-loss",
}
FILE = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == text(), "python -m amqp_server.management.serving.openapi > docs/openapi.json"


def test_every_route_is_described() -> None:
    told = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    assert told == {(route.method, route.path) for route in ENDPOINTS}


def test_operations_have_names_of_their_own() -> None:
    names = [each["operationId"] for methods in document()["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_bodies_are_those_that_handlers_read() -> None:
    paths = document()["paths"]
    body = paths["/api/queues/{vhost}/{name}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    assert set(document()["components"]["schemas"][name]["properties"]) >= {
        "durable",
        "auto_delete",
        "arguments",
    }
    assert sum(body_of(route.handler) is not None for route in ENDPOINTS) >= 8
    # Also bodies that a helper of the handler reads, and those with arbitrary fields.
    user = paths["/api/users/{user}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert user == {"$ref": "#/components/schemas/UserRequest"}
    policy = paths["/api/policies/{vhost}/{name}"]["put"]["requestBody"]
    assert policy["required"] is True
    assert policy["content"]["application/json"]["schema"]["required"] == ["pattern", "definition"]
    assert paths["/api/definitions"]["post"]["requestBody"]["required"] is False
    # Only these routes, which act without a body, have none.
    without = {
        f"{method} {path}"
        for path, methods in paths.items()
        for method, told in methods.items()
        if method in ("put", "post") and "requestBody" not in told
    }
    assert without == WITHOUT_BODY


def test_switches_of_the_query_are_told() -> None:
    paths = document()["paths"]
    told = [each.get("name") for each in paths["/api/queues/{vhost}/{name}"]["delete"]["parameters"]]
    assert told == ["vhost", "name", "if-unused", "if-empty"]
    assert {"name": "force", "in": "query", "schema": {"type": "boolean"}} in paths["/api/users/{user}"][
        "put"
    ]["parameters"]


def test_a_failed_check_has_a_body_of_its_own() -> None:
    unhealthy = {
        path
        for path, methods in document()["paths"].items()
        if methods.get("get", {}).get("responses", {}).get("503")
        == {"$ref": "#/components/responses/Unhealthy"}
    }
    assert "/api/health/checks/port-listener/{port}" in unhealthy
    assert "/api/health/checks/node-is-quorum-critical" in unhealthy and "/api/overview" not in unhealthy
    assert all("check" in path or "aliveness" in path for path in unhealthy)


def test_what_needs_no_login_says_so() -> None:
    free = [
        path
        for path, methods in document()["paths"].items()
        for told in methods.values()
        if told.get("security") == []
    ]
    assert free == [route.path for route in ENDPOINTS if route.who == ANYBODY] == ["/api/auth"]


def test_what_answers_with_rows_is_a_list() -> None:
    """Lists take a page, and their answers are arrays; what names one object is none."""
    for endpoint in ENDPOINTS:
        if endpoint.columns is not None:
            assert lists(endpoint) == (not endpoint.path.endswith("/{name}")), endpoint.path
    assert {"/api/policies", "/api/operator-policies", "/api/groups"} <= {
        endpoint.path for endpoint in ENDPOINTS if lists(endpoint)
    }


def test_references_lead_somewhere() -> None:
    told = document()
    for kind, name in re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(told)):
        assert name in told["components"][kind]


def mismatches(row: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the columns of a row that the schema lacks, or has with another type."""
    known = schema["properties"]
    return [
        name
        for name, value in row.items()
        if name not in known or type(value) not in [TYPES[each] for each in _types(known[name])]
    ]


def _types(schema: dict[str, Any]) -> list[str]:
    told: str | list[str] = schema["type"]
    return [told] if isinstance(told, str) else told


@pytest.mark.trio
async def test_rows_are_as_described(node: ManagedNode, connect: Connect, sampler: Sampler) -> None:
    peer = node.peer()
    peer.session.opened()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q", exclusive=True))
    peer.call(1, commands.Queue.Declare(queue="r", durable=True, arguments={"x-queue-type": "quorum"}))
    peer.call(1, commands.Basic.Consume(queue="q", exclusive=True))
    peer.send(published(1, "", "q", b"x"), published(1, "", "r", b"x"))
    peer.call(2, commands.Channel.Open(), commands.Tx.Select())
    peer.send(published(2, "", "r", b"x"))
    await sampler.sample()
    client, schemas = connect("admin"), document()["components"]["schemas"]
    lists = [each for each in ENDPOINTS if each.columns is not None and "{" not in each.path]
    assert len(lists) == 7
    for endpoint in lists:
        assert endpoint.columns is not None
        rows = (await client.get(endpoint.path.removeprefix("/api/"))).json()
        assert rows or endpoint.columns.name == "ConsumerGroup"
        for row in rows:
            assert mismatches(row, schemas[endpoint.columns.name]) == []
    assert mismatches({"durable": 1, "policy": None, "nothing": 1}, schemas["Queue"]) == [
        "durable",
        "nothing",
    ]
