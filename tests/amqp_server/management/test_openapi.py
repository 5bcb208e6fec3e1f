"""The description of the API says what the routes are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from amqp_server.management.endpoints import ENDPOINTS
from amqp_server.management.openapi import body_of, document, text

FILE = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == text(), "python -m amqp_server.management.openapi > docs/openapi.json"


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


def test_references_lead_somewhere() -> None:
    told = document()
    for kind, name in re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(told)):
        assert name in told["components"][kind]
