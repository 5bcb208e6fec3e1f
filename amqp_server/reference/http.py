"""The page of the management API: docs/openapi.json in a form to read."""

from __future__ import annotations

from typing import Any

from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS, Endpoint
from amqp_server.management.serving.openapi import LISTING, REFUSALS, document, lists, query_of, switches
from amqp_server.reference.markdown import cell, code, head, prose, table

#: By the first part of the path.
TITLES = {
    "overview": "The node and the cluster",
    "health": "Health",
    "failed-queues": "Queues that have failed",
    "queues": "Queues and messages",
    "groups": "Consumer groups",
    "exchanges": "Exchanges",
    "bindings": "Bindings",
    "connections": "Connections, channels, consumers, transactions",
    "users": "Users and permissions",
    "vhosts": "Virtual hosts",
    "policies": "Policies",
    "parameters": "Parameters and limits",
    "definitions": "Definitions",
    "shovels": "Shovels",
}
#: What has no title of its own, and where it stands.
_WITH = {
    "overview": "cluster-name whoami version nodes auth extensions feature-flags deprecated-features reset rebalance cluster",
    "health": "alarms message-sizes stream-remotes aliveness-test healthchecks",
    "groups": "group-members",
    "queues": "messages",
    "connections": "channels consumers transactions",
    "users": "permissions topic-permissions",
    "policies": "operator-policies applied-policies arguments",
    "parameters": "global-parameters vhost-limits user-limits",
}
_PLACE = {name: title for title, names in _WITH.items() for name in names.split()} | {
    name: name for name in TITLES
}


def page() -> str:
    told = document()
    lines = head(
        "HTTP API",
        "Paths and answers are those of RabbitMQ's management API, as far as mqd has them; [openapi.json](../openapi.json) is the "
        "same for programs. Requests carry a login (`Authorization: Basic` or, for [tokens](../security.md#tokens), `Bearer`); "
        "bodies and answers are JSON. A `/` in a name is `%2F`, so the default virtual host is `%2F`. *For* is the tag that a user "
        "needs at least; within a virtual host the user's [permissions](../security.md#permissions) count as well.",
        "Without a login: `GET /health` (the process answers), `GET /health/ready` (clients can work through this node; 503 with "
        "the reason otherwise).",
    )
    lines += prose(
        "What stands behind a question mark is `true` or `false` in the query. Lists, marked *list*, take these there:"
    )
    lines += table(
        ["query", "", ""], ([code(name), kind, cell(text)] for name, (kind, text) in LISTING.items())
    )
    lines += ['Refusals have a body `{"error": …, "reason": …}`:', ""]
    lines += table(["status", ""], ([str(status), cell(text)] for status, text in REFUSALS.items()))
    groups: dict[str, list[Endpoint]] = {name: [] for name in TITLES}
    for endpoint in ENDPOINTS:
        groups[_PLACE[endpoint.path.split("/")[2]]].append(endpoint)
    for name, endpoints in groups.items():
        lines += [f"## {TITLES[name]}", ""]
        lines += table(
            ["", "path", "for", "query", "body"], ([each.method, *_cells(each, told)] for each in endpoints)
        )
    return "\n".join(lines)


def _cells(endpoint: Endpoint, told: dict[str, Any]) -> list[str]:
    who = endpoint.who if endpoint.who != ANYBODY else "anybody"
    asked = ["*list*"] if lists(endpoint) else []
    asked += [f"`?{name}`" for name in switches(endpoint)]
    if query_of(endpoint.handler) is not None:
        parameters = told["paths"][endpoint.path][endpoint.method.lower()]["parameters"]
        schemas = told["components"]["schemas"]
        asked += [
            f"{code(each['name'])} {_type(each['schema'], schemas)}"
            for each in parameters
            if each.get("in") == "query"
        ]
    body = _body(endpoint, told)
    return [code(endpoint.path), who, cell("; ".join(asked)), body]


def _body(endpoint: Endpoint, told: dict[str, Any]) -> str:
    asked = told["paths"][endpoint.path][endpoint.method.lower()].get("requestBody")
    if asked is None:
        return ""
    schemas = told["components"]["schemas"]
    schema = asked["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    fields = [
        f"{code(name)} {_type(each, schemas)}{' (required)' if name in required else ''}"
        for name, each in schema["properties"].items()
    ]
    return cell("; ".join(fields)) or "an object"


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _type(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {}, schemas)}"
    return str(kind)
