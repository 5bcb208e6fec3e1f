"""The OpenAPI description of the management API: `python -m amqp_server.management.serving.openapi >
docs/openapi.json`.

It is made from the endpoints: paths and methods, the tag that a user needs, and the bodies that handlers
decode.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from amqp_server.config import VERSION
from amqp_server.management.request import listing
from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS, Endpoint, Handler

_READ = re.compile(r"\bcall\.read\((\w+)\)")
#: Bodies with any fields, and the fields that they must have.
_TABLE = re.compile(r"\bcall\.(?:table\(\)|body\b)")
_REQUIRED = re.compile(r'\brequire\((?:call\.table\(\)|asked), "([\w-]+)"\)')
_ASKED = re.compile(r"\bcall\.asked\((\w+)\)")
_SWITCH = re.compile(r'\bcall\.(?:switch|flag)\("([\w-]+)"\)')
#: A failed health check has a body of its own.
_CHECK = re.compile(r"\b_failed\(|\bAnswer\(503\b")
#: Handlers that refuse because of an object's state.
_CONFLICT = re.compile(r"\b_conflict\(")
_HELPER = re.compile(r"\b(_\w+)\(call\b")
_LISTS = re.compile(r"\b(?:listing|\w*listed)\(")
_PART = re.compile(r"\{(\w+)\}")
_WORDS = re.compile(r"\w+")

#: Nouns that names of operations begin with, where the module of their handlers has another name.
NOUNS = {"failed_queues": "failed"} | dict.fromkeys(
    ("by_hand", "carrying", "moving", "peeking", "status"), "messages"
)

REFUSALS = {
    400: "The request is wrong.",
    401: "The login is missing or wrong, or the user has no permission for this.",
    404: "The object does not exist.",
    409: "The object is in a state in which this is not possible.",
    412: "Something that protects the object has to be lifted first.",
    413: "The body is too large.",
    414: "The path or the query is too long.",
    415: "Another web page made the browser send this request.",
    429: "Too many logins from this address are waiting.",
    500: "An internal error of the broker.",
    503: "Too many requests at the same time, or no majority in the cluster. From a health check: not healthy.",
}
ANSWERS = {
    "GET": {200: "The requested data."},
    "PUT": {
        201: "The object was created.",
        204: "The object existed; it is now as requested.",
        200: "The result.",
    },
    "POST": {
        200: "The result.",
        201: "The object was created.",
        202: "The work has begun.",
        204: "Done.",
    },
    "DELETE": {204: "The object was deleted.", 200: "The result."},
}
LISTING = {
    "page": ("integer", "Page to return, from 1 on."),
    "page_size": ("integer", f"Rows per page, 1 to {listing.PAGE_SIZE_MAX}."),
    "name": ("string", "Return only rows whose name contains this text."),
    "use_regex": ("boolean", "Treat `name` as a regular expression."),
    "sort": ("string", "Column to sort by."),
    "sort_reverse": ("boolean", "Sort in descending order."),
    "columns": ("string", "Columns to return, with commas between."),
}


def body_of(handler: Handler) -> type[msgspec.Struct] | None:
    """Return the type of the body that a handler reads."""
    found = _READ.search(_source(handler))
    if found is None:
        return None
    kind: type[msgspec.Struct] = getattr(importlib.import_module(handler.__module__), found[1])
    return kind


def table_of(handler: Handler) -> dict[str, Any] | None:
    """Return the schema of a body that a handler reads as a table."""
    source = _source(handler)
    if _TABLE.search(source) is None:
        return None
    required = list(dict.fromkeys(_REQUIRED.findall(source)))
    return {"type": "object", "properties": {name: {} for name in required}, "required": required}


def switches(endpoint: Endpoint) -> list[str]:
    """Return the names of the true-or-false parameters that a handler reads from the query."""
    return list(dict.fromkeys(_SWITCH.findall(_source(endpoint.handler))))


def query_of(handler: Handler) -> type[msgspec.Struct] | None:
    """Return the parameters that a handler takes from the query as a whole."""
    found = _ASKED.search(inspect.getsource(handler))
    if found is None:
        return None
    kind: type[msgspec.Struct] = getattr(importlib.import_module(handler.__module__), found[1])
    return kind


def _source(handler: Handler) -> str:
    """Return the source of the handler, and of the functions of its module that it passes the call to."""
    module = importlib.import_module(handler.__module__)
    source = inspect.getsource(handler)
    helpers = (getattr(module, name, None) for name in dict.fromkeys(_HELPER.findall(source)))
    return source + "".join(inspect.getsource(helper) for helper in helpers if inspect.isfunction(helper))


def lists(endpoint: Endpoint) -> bool:
    """True if the handler lists rows, which the query can filter, sort and page."""
    return endpoint.method == "GET" and _LISTS.search(inspect.getsource(endpoint.handler)) is not None


def document() -> dict[str, Any]:
    bodies = {kind for kind in (body_of(endpoint.handler) for endpoint in ENDPOINTS) if kind is not None}
    ordered = sorted(bodies, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    body_schemas = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, body_schemas)
    error = {
        "type": "object",
        "required": ["error", "reason"],
        "properties": {"error": {"type": "string"}, "reason": {}},
    }
    unhealthy = {
        "type": "object",
        "required": ["status", "reason"],
        "properties": {"status": {"enum": ["failed"]}, "reason": {"type": "string"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mqd management API",
            "version": VERSION,
            "description": "The paths and answers of RabbitMQ's management API, as far as mqd has them.",
        },
        "servers": [{"url": "http://127.0.0.1:15672"}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": components | _rows() | {"Error": error, UNHEALTHY: unhealthy},
            "parameters": {
                name: {"name": name, "in": "query", "description": text, "schema": {"type": type_}}
                for name, (type_, text) in LISTING.items()
            },
            "responses": {_REFUSED[status]: told for status, told in _refusals()} | {UNHEALTHY: _unhealthy()},
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": _name(endpoint),
        "description": _whom(endpoint),
        "tags": [_noun(endpoint)],
        "parameters": list(_parameters(endpoint)),
        "responses": dict(_responses(endpoint)),
    }
    if endpoint.who == ANYBODY:
        told["security"] = []
    kind, table = body_of(endpoint.handler), table_of(endpoint.handler)
    if kind is not None:
        required = bool(kind.__struct_fields__) and not _all_optional(kind)
        told["requestBody"] = _body(required, schemas[kind])
    elif table is not None:
        told["requestBody"] = _body(bool(table["required"]), table)
    return told


def _whom(endpoint: Endpoint) -> str:
    if endpoint.who == ANYBODY:
        return "For anybody, without a login."
    return f"For users with the tag {endpoint.who}, or one that includes it."


def _body(required: bool, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _name(endpoint: Endpoint) -> str:
    """The handler's name, with the path if the handler has several paths."""
    names = [_short_name(each) for each in ENDPOINTS if each.handler is endpoint.handler]
    name = _short_name(endpoint)
    return name if names.count(name) == 1 else "_".join([name, *_WORDS.findall(endpoint.path)[1:]])


def _noun(endpoint: Endpoint) -> str:
    module = endpoint.handler.__module__.rpartition(".")[2]
    return NOUNS.get(module, module)


def _short_name(endpoint: Endpoint) -> str:
    return f"{_noun(endpoint)}_{endpoint.handler.__name__}" + (
        "_in_vhost" if "{vhost}" in endpoint.path else ""
    )


def _all_optional(kind: type[msgspec.Struct]) -> bool:
    return all(not field.required for field in msgspec.structs.fields(kind))


def _parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in _PART.findall(endpoint.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name == "kind":
            schema = {"enum": ["q", "e"]}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if lists(endpoint):
        yield from ({"$ref": f"#/components/parameters/{name}"} for name in LISTING)
    for name in switches(endpoint):
        yield {"name": name, "in": "query", "schema": {"type": "boolean"}}
    query = query_of(endpoint.handler)
    if query is not None:
        schemas = msgspec.json.schema_components([query])[1]
        fields = schemas[query.__name__]["properties"].items()
        yield from ({"name": name, "in": "query", "schema": schema} for name, schema in fields)


def _responses(endpoint: Endpoint) -> Iterator[tuple[str, dict[str, Any]]]:
    for status, text in sorted(ANSWERS[endpoint.method].items()):
        told: dict[str, Any] = {"description": text}
        if status == 200:
            told["content"] = {"application/json": _answer(endpoint)}
        yield str(status), told
    checks = _CHECK.search(_source(endpoint.handler)) is not None
    conflicts = _CONFLICT.search(_source(endpoint.handler)) is not None
    for status in REFUSALS:
        if status == 409 and not conflicts:
            continue
        name = UNHEALTHY if checks and status == 503 else _REFUSED[status]
        yield str(status), {"$ref": f"#/components/responses/{name}"}


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.columns is None:
        return {}
    row = {"$ref": f"#/components/schemas/{endpoint.columns.name}"}
    if not lists(endpoint):
        return {"schema": row}
    rows = {"type": "array", "items": row}
    page = {"type": "object", "properties": {"items": rows}, "required": ["items"]}
    return {"schema": {"anyOf": [rows, page]}}


def _rows() -> dict[str, Any]:
    """Return the schemas of rows. A row may lack columns, and a row of one object has more."""
    tables = {each.columns.name: each.columns for each in ENDPOINTS if each.columns is not None}
    return {name: table.schema() for name, table in tables.items()}


def _refusals() -> Iterator[tuple[int, dict[str, Any]]]:
    for status, text in REFUSALS.items():
        refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        yield status, {"description": text, "content": refusal}


def _unhealthy() -> dict[str, Any]:
    kinds = [{"$ref": f"#/components/schemas/{name}"} for name in (UNHEALTHY, "Error")]
    schema = {"application/json": {"schema": {"anyOf": kinds}}}
    return {"description": "Not healthy, and why; or the check could not be made.", "content": schema}


UNHEALTHY = "Unhealthy"
_REFUSED = {
    status: HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "") for status in REFUSALS
}


def text() -> str:
    return json.dumps(document(), indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
