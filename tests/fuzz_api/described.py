"""The source of the requests: docs/openapi.json, with names of existing objects, bodies that get far, and the
refusals for users without a tag.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from amqp_server.broker.declared.argument_table import ROWS
from amqp_server.management.request.call import MAY
from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS

DESCRIPTION = Path(__file__).parents[2] / "docs" / "openapi.json"
#: These would end the run: the node stops, leaves the others, or blocks its publishers.
LEFT_OUT = (
    ("post", "/api/nodes/{node}/stop"),
    ("put", "/api/nodes/{node}/memory-limit"),
    ("delete", "/api/cluster/nodes/{node}"),
)
NAMES = {
    "vhost": ["/", "other"],
    "name": ["q", "s", "g", "u", "x", "p", "l", "new"],
    "user": ["app"],
    "node": ["n1", "n2"],
    "exchange": ["x"],
    "source": ["x"],
    "destination": ["q", "s"],
    "component": ["policy", "shovel", "vhost-limits"],
    "protocol": ["amqp"],
    "unit": ["days"],
    "properties": ["~"],
}
#: Requests that delete everything below an object are tried on objects that nothing else needs.
LOSING = (("delete", "/api/vhosts/{vhost}"), ("delete", "/api/users/{user}"))
PASSING = {"vhost": ["passing"], "user": ["passing"]}
UNHEALTHY = {"$ref": "#/components/responses/Unhealthy"}
#: The answers that a user without a path's tag may get.
FORBIDDEN = ("401", "413", "414", "415", "429", "503")
LIMITS = ["max-connections", "max-queues", "max-channels"]
#: Values that get further than most: fields of bodies, by the name of the schema.
TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-super-stream"]
QUEUE_ARGUMENTS = {row.name: row.example for row in ROWS if row.example is not None}
POLICY: dict[str, Any] = {
    "type": "object",
    "required": ["pattern", "definition"],
    "properties": {
        "pattern": {"anyOf": [{"enum": ["^q", "", "(", "(?!q)"]}, {}]},
        "definition": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "max-length": {"anyOf": [{"type": "integer"}, {}]},
                        "message-ttl": {"anyOf": [{"type": "integer", "minimum": 0}, {}]},
                        "overflow": {"anyOf": [{"enum": ["drop-head", "reject-publish"]}, {}]},
                        "dead-letter-exchange": {"anyOf": [{"type": "string"}, {}]},
                        "alternate-exchange": {"anyOf": [{"type": "string"}, {}]},
                        "max-age": {"anyOf": [{"enum": ["1h", "0D"]}, {}]},
                        "delivery-limit": {"anyOf": [{"type": "integer"}, {}]},
                    },
                    "additionalProperties": False,
                },
                {"type": "object"},
            ]
        },
        "priority": {"anyOf": [{"type": "integer"}, {}]},
        "apply-to": {"anyOf": [{"enum": ["queues", "exchanges", "all", "streams"]}, {}]},
    },
    "additionalProperties": False,
}
NAMED: dict[str, Any] = {
    "name": {"anyOf": [{"type": "string"}, {}]},
    "vhost": {"anyOf": [{"enum": ["/", "other"]}, {}]},
}


def _rows(**more: object) -> dict[str, object]:
    row = {"type": "object", "properties": NAMED | more, "additionalProperties": False}
    return {"anyOf": [{"type": "array", "items": row, "maxItems": 3}, {}]}


FLAGS: dict[str, Any] = {"durable": {"type": "boolean"}, "auto_delete": {"type": "boolean"}}
DEFINITIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "vhosts": _rows(default_queue_type={}, metadata={}),
        "users": _rows(password_hash={}, hashing_algorithm={}, tags={}, limits={}),
        "permissions": _rows(user={"enum": ["app"]}, configure={}, write={}, read={}),
        "topic_permissions": _rows(user={"enum": ["app"]}, exchange={}, write={}, read={}),
        "parameters": _rows(component={"enum": ["shovel", "vhost-limits", "x"]}, value={}),
        "global_parameters": _rows(value={}),
        "policies": _rows(**POLICY["properties"]),
        "queues": _rows(**FLAGS, arguments={}),
        "exchanges": _rows(**FLAGS, type={"enum": TYPES}, internal={}, arguments={}),
        "bindings": _rows(source={}, destination={}, destination_type={}, routing_key={}, arguments={}),
    },
    "additionalProperties": False,
}


def described(tag: str, seed: int, *, alone: bool) -> dict[str, Any]:
    """The description for a user with this tag, "" for none; in random order, because the time may be up
    early.

    A node that stands `alone` waits for no other one: only health may answer "unavailable" there.
    """
    told: dict[str, Any] = json.loads(DESCRIPTION.read_text())
    for method, path in LEFT_OUT:
        del told["paths"][path][method]
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            _name(operation, PASSING if (method, path) in LOSING else NAMES)
    _deepen(told)
    _forbid(told, tag)
    if alone:
        for operations in told["paths"].values():
            for operation in operations.values():
                if operation["responses"].get("503") != UNHEALTHY:
                    operation["responses"].pop("503", None)
    paths = [(path, operations) for path, operations in told["paths"].items() if operations]
    random.Random(seed).shuffle(paths)
    told["paths"] = dict(paths)
    return told


def _name(operation: dict[str, Any], names: dict[str, list[str]]) -> None:
    for parameter in operation.get("parameters", ()):
        known = names.get(parameter.get("name", ""))
        if known is not None and parameter["in"] == "path":
            parameter["schema"] = {"anyOf": [{"enum": known}, parameter["schema"]]}


def _forbid(told: dict[str, Any], tag: str) -> None:
    """Refuse a user without the tag. The answer reveals nothing: neither which objects exist, nor what is
    wrong with a body.
    """
    for endpoint in ENDPOINTS:
        operation = told["paths"][endpoint.path].get(endpoint.method.lower())
        if operation is None or endpoint.who == ANYBODY or tag in MAY[endpoint.who]:
            continue
        refusals = {status: told for status, told in operation["responses"].items() if status in FORBIDDEN}
        operation["responses"] = refusals


def _deepen(told: dict[str, Any]) -> None:
    """Describe bodies and names more closely than the API does: requests that are refused at once test
    little.
    """
    schemas, paths = told["components"]["schemas"], told["paths"]
    schemas["ExchangeRequest"]["properties"]["type"] = {"anyOf": [{"enum": TYPES}, {"type": "string"}]}
    arguments: dict[str, Any] = {
        name: {"anyOf": [{"enum": [value]}, {}]} for name, value in QUEUE_ARGUMENTS.items()
    }
    arguments["x-queue-type"] = {"enum": ["classic", "quorum", "stream", "stream-group"]}
    schemas["QueueRequest"]["properties"]["arguments"] = {"type": "object", "properties": arguments}
    for path in paths:
        if path.startswith(("/api/vhost-limits/", "/api/user-limits/")) and "put" in paths[path]:
            paths[path]["put"]["parameters"][-1]["schema"] = {"enum": LIMITS}
            _body(paths[path]["put"])["properties"]["value"] = {"anyOf": [{"type": "integer"}, {}]}
        if path.endswith("policies/{vhost}/{name}"):
            paths[path]["put"]["requestBody"]["content"]["application/json"]["schema"] = POLICY
        if path.startswith("/api/definitions"):
            paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"] = DEFINITIONS


def _body(operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema
