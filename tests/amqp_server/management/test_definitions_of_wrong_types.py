"""Definitions whose fields have any JSON value: they are taken, or refused with 400 that names the field. No
value is an error of the broker.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Connect

pytestmark = pytest.mark.trio

#: Items that are taken as they are.
ITEMS: dict[str, dict[str, Any]] = {
    "users": {
        "name": "ann",
        "password_hash": "",
        "password": "tea",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["management"],
        "limits": {"max-channels": 3},
    },
    "vhosts": {
        "name": "v",
        "description": "d",
        "tags": ["a"],
        "default_queue_type": "quorum",
        "metadata": {"description": "d", "tags": ["a"], "default_queue_type": "quorum"},
        "limits": [],
        "tracing": False,
    },
    "permissions": {"user": "admin", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
    "topic_permissions": {"user": "admin", "vhost": "/", "exchange": "x", "write": ".*", "read": ".*"},
    "global_parameters": {"name": "cluster_name", "value": "c"},
    "policies": {
        "vhost": "/",
        "name": "p",
        "pattern": "^q",
        "apply-to": "queues",
        "definition": {"max-length": 1},
        "priority": 0,
    },
    "parameters": {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 99}},
    "queues": {
        "name": "q",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "type": "classic",
        "arguments": {"x-max-length": 1},
    },
    "exchanges": {
        "name": "x",
        "vhost": "/",
        "type": "direct",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "amq.direct"},
    },
    "bindings": {
        "source": "amq.direct",
        "vhost": "/",
        "destination": "amq.topic",
        "destination_type": "exchange",
        "routing_key": "k",
        "arguments": {},
    },
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "a\0b",
    "x" * 300,
    [],
    [None],
    [1],
    [[]],
    [["a"]],
    [[1, 2]],
    [[[], 2]],
    ["x"],
    ["x" * 300],
    {},
    {"a": None},
    {"max-length": None},
    {"max-length": "x"},
    {"max-queues": None},
    {"tags": None, "description": None, "default_queue_type": None},
    {"tags": 1, "description": [], "default_queue_type": {}},
    {"": 1},
    {"x-max-length": {"deep": [{"er": None}]}},
)
FIELDS = [(section, field) for section, item in ITEMS.items() for field in item]


@pytest.mark.parametrize(("section", "field"), FIELDS)
async def test_fields(connect: Connect, section: str, field: str, caplog: pytest.LogCaptureFixture) -> None:
    client = connect("admin")
    assert (await client.post("definitions", json={section: [ITEMS[section]]})).status_code in (200, 204)
    for value in VALUES:
        item = ITEMS[section] | {field: value}
        if field == "password":
            del item["password_hash"]
        told = await client.post("definitions", json={section: [item]})
        assert told.status_code in (200, 204, 400), (value, told.text)
        if told.status_code == 400:
            assert told.json()["error"] == "bad_request"
            reason = told.json()["reason"]
            assert reason.startswith(f"{section}: "), (value, reason)
        vhost = item.get("vhost")
        if isinstance(vhost, str) and section in (
            "exchanges",
            "queues",
            "bindings",
            "policies",
            "parameters",
        ):
            own = {name: value for name, value in item.items() if name != "vhost"}
            told = await client.post("definitions/%2F", json={section: [own]})
            assert told.status_code in (200, 204, 400), (value, told.text)
    # What was taken can be shown and exported.
    for path in ("definitions", "definitions/%2F", "vhosts", "users", "policies", "parameters", "queues"):
        assert (await client.get(path)).status_code == 200, path
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("section", ITEMS)
async def test_sections(connect: Connect, section: str) -> None:
    client = connect("admin")
    for value in VALUES:
        for body in ({section: value}, {section: [value]}, value):
            told = await client.post("definitions", content=json.dumps(body))
            assert told.status_code in (200, 204, 400), (body, told.text)


@pytest.mark.parametrize("field", ["rabbit_version", "rabbitmq_version", "product_name", "unknown"])
async def test_other_members(connect: Connect, field: str) -> None:
    client = connect("admin")
    for value in VALUES:
        told = await client.post("definitions", json={field: value, "vhosts": [{"name": "v"}]})
        assert told.status_code in (200, 204), (value, told.text)


async def test_null_is_as_good_as_absent(connect: Connect) -> None:
    """RabbitMQ and its tools write null for what a virtual host or a user does not have."""
    client = connect("admin")
    nothing = {"description": None, "tags": None, "default_queue_type": None, "metadata": None}
    for vhost in ({"name": "v", "metadata": nothing}, {"name": "w", **nothing}):
        assert (await client.post("definitions", json={"vhosts": [vhost]})).status_code == 204
        told = (await client.get(f"vhosts/{vhost['name']}")).json()
        assert (told["description"], told["tags"], told["default_queue_type"]) == ("", [], "undefined")
    user = {"name": "u", "password_hash": None, "tags": None, "limits": None}
    assert (await client.post("definitions", json={"users": [user]})).status_code == 204
    assert (await client.get("users/u")).json()["tags"] == []
    queue = {
        "name": "q",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "arguments": None,
        "type": None,
    }
    assert (await client.post("definitions", json={"queues": [queue]})).status_code == 204
    answer = await client.put("vhosts/x", json={"description": None, "tags": None})
    assert answer.status_code == 201
    assert (await client.get("vhosts/x")).json()["tags"] == []


@pytest.mark.parametrize(
    ("section", "more", "reason"),
    [
        ("vhosts", {"tags": 1}, "vhosts: 'v': tags must be a list of texts"),
        ("vhosts", {"tags": [1]}, "vhosts: 'v': tags must be a list of texts"),
        ("vhosts", {"description": 1}, "vhosts: 'v': description must be a text"),
        ("vhosts", {"metadata": 1}, "vhosts: 'v': metadata must be an object"),
        ("vhosts", {"default_queue_type": 1}, "vhosts: 'v': default_queue_type must be a text"),
        ("users", {"tags": [1]}, "users: 'ann': tags must be a list of texts"),
        ("users", {"tags": {}}, "users: 'ann': tags must be a list of texts"),
        ("users", {"password_hash": 1}, "users: 'ann': password_hash must be a text"),
        ("users", {"hashing_algorithm": 1}, "users: 'ann': hashing_algorithm must be a text"),
        ("users", {"limits": 1}, "users: 'ann': user-limits should be a list, actually was 1"),
        ("queues", {"type": 1}, "queues: 'q' in vhost '/': type must be a text"),
        ("queues", {"arguments": 1}, "queues: 'q' in vhost '/': arguments must be an object"),
        ("queues", {"durable": None}, "queues: 'q' in vhost '/': durable must be true or false"),
        ("queues", {"durable": []}, "queues: 'q' in vhost '/': durable must be true or false"),
        ("exchanges", {"internal": 1}, "exchanges: 'x' in vhost '/': internal must be true or false"),
        ("permissions", {"read": None}, "permissions: 'admin' in vhost '/': read is missing"),
        ("permissions", {"read": 1}, "permissions: 'admin' in vhost '/': read must be a text"),
    ],
)
async def test_what_it_says(connect: Connect, section: str, more: dict[str, Any], reason: str) -> None:
    client = connect("admin")
    told = await client.post("definitions", json={section: [ITEMS[section] | more]})
    assert (told.status_code, told.json()["reason"]) == (400, reason)
