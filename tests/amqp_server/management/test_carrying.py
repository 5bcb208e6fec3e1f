"""Messages are copied, exported and imported with all that they had."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from amqp_server.management.messages import carrying

from .conftest import Connect, ManagedNode
from .test_matching import post
from .test_moving import fill, payloads
from .test_peeking import seen

pytestmark = pytest.mark.trio


def line(payload: bytes = b"a", **members: Any) -> str:
    row = {
        "exchange": "x",
        "routing_key": "k",
        "properties": {},
        "payload": base64.b64encode(payload).decode(),
    }
    return json.dumps(row | members)


async def exported(client: Any, queue: str, **query: object) -> list[dict[str, Any]]:
    told = await seen(client, queue, encoding="typed", count=1000, **query)
    return list(told["messages"])


async def bring(client: Any, queue: str, *lines: str) -> Any:
    return await client.post(f"queues/%2F/{queue}/import", json={"lines": "\n".join(lines)})


HEADERS = [
    ["n", "l", 1 << 40],
    ["n", "b", -1],
    ["f", "f", 0.5],
    ["raw", "x", {"base64": "/w=="}],
    ["when", "T", 1 << 63],
    ["d", "D", [2, -314]],
    ["t", "t", True],
    ["none", "V", None],
    ["deep", "F", [["a", "A", [["S", "é"], ["u", 65535]]]]],
]
PROPERTIES = {
    "content_type": "text/plain",
    "content_encoding": {"base64": "/w=="},
    "headers": HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "",
    "reply_to": "r",
    "expiration": "100000",
    "message_id": "m",
    "timestamp": 1 << 62,
    "type": "t",
    "app_id": "a",
    "cluster_id": "c",
}


@pytest.mark.parametrize("type_", ["classic", "quorum"])
async def test_a_round_trip_is_exact(connect: Connect, node: ManagedNode, type_: str) -> None:
    client = connect("admin")
    for queue in ("from", "to"):
        await client.put(f"queues/%2F/{queue}", json={"arguments": {"x-queue-type": type_}})
    bodies = [b"", b"\xff\x00", b"x" * 30_000]
    given = [line(body, properties=PROPERTIES) for body in bodies] + [line(b"plain", properties={"type": ""})]
    answer = await bring(client, "from", *given, "", " ")
    assert answer.json() == {"imported": 4, "refused": []}
    rows = await exported(client, "from")
    for row, text in zip(rows, given, strict=True):
        assert {name: row[name] for name in json.loads(text)} == json.loads(text)
        assert list(row["properties"]) == list(json.loads(text)["properties"])
    # What was exported makes the same messages, and so do copies.
    await bring(client, "to", *map(json.dumps, rows))
    told = await post(client, "from/copy", destination="to")
    assert (told["copied"], told["refused"], told["looked_at"]) == (4, 0, 4)
    # A quorum queue orders them by their priorities.
    again = sorted((row | {"place": ""} for row in await exported(client, "to")), key=str)
    assert again == sorted((row | {"place": ""} for row in rows + rows), key=str)
    assert await exported(client, "from") == rows


async def test_some_messages_are_copied(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("q", "to"):
        await client.put(f"queues/%2F/{queue}", json={})
    for payload in "axbxcx":
        await fill(client, "q", payload, headers={"p": payload}, delivery_mode=2)
    told = await post(client, "q/copy", destination="to", header="p=x", limit=2)
    assert told["copied"] == 2
    told = await post(client, "q/copy", destination="to", contains="x", after=told["next"])
    assert told["copied"] == 1
    told = await post(client, "q/copy", destination="to", count=1)
    assert (told["copied"], told["looked_at"]) == (1, 1)
    assert await payloads(client, "to") == list("xxxa")
    assert node.ready("q") == 6
    properties = (await exported(client, "to"))[-2]["properties"]
    assert properties == {"headers": [["p", "S", "x"]], "delivery_mode": 2}


async def test_what_a_queue_refuses_is_told_by_line(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    full = {"arguments": {"x-max-length": 2, "x-overflow": "reject-publish"}}
    await client.put("queues/%2F/full", json=full)
    answer = await bring(client, "full", line(), "", line(), line(), line())
    assert answer.json() == {"imported": 2, "refused": [4, 5]}
    await fill(client, "q", *"abc")
    await client.delete("queues/%2F/full/contents")
    told = await post(client, "q/copy", destination="full")
    assert (told["copied"], told["refused"]) == (2, 1)


DEEP: Any = ["S", "a"]
for _ in range(150):
    DEEP = ["A", [DEEP]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        (line(payload_=1).replace('"payload"', '"other"'), "payload"),
        (line() + line(), "trailing"),
        (json.dumps({"routing_key": "", "properties": {}, "payload": "%"}), "payload is not base64"),
        (line(routing_key="é" * 128), "routing_key may have at most 255 bytes"),
        (line(routing_key=None), "routing_key must be a text"),
        (line(exchange=5), "exchange must be a text"),
        (line(properties=[]), "properties must be an object"),
        (line(properties={"colour": 1}), "no property is named 'colour'"),
        (line(properties={"priority": 256}), "property priority"),
        (line(properties={"expiration": "soon"}), "expiration"),
        (line(properties={"user_id": "somebody"}), "impersonator"),
        (line(properties={"headers": {"a": 1}}), "headers must be a list"),
        (line(properties={"headers": [["a", "I", 1 << 31]]}), "field 'a'"),
        (line(properties={"headers": [["a", "q", 1]]}), "no type has the letter 'q'"),
        (line(properties={"headers": [["a", *DEEP]]}), "table_depth_max"),
        ("[" * 20_000, ""),
        (line(properties={"headers": [["a", "S", "x" * 140_000]]}), "do not fit into a frame"),
    ],
)
async def test_a_wrong_line_is_told_and_nothing_is_published(
    connect_with: Any, node: ManagedNode, text: str, reason: str
) -> None:
    client = connect_with()
    await client.put("queues/%2F/q", json={})
    small = len(text) < 50_000
    answer = await bring(client, "q", line(), text)
    if small:
        assert answer.status_code == 400, answer.text
        assert "line 2: " in answer.text and reason in answer.json()["reason"], answer.text
    else:
        assert answer.status_code in (400, 413), answer.text
    assert node.ready("q") == 0


async def test_copies_and_imports_that_make_no_sense(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("q", "to"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "q", "a")
    for path, body, status in (
        ("q/copy", {"destination": "q"}, 400),
        ("q/copy", {"destination": "nowhere"}, 404),
        ("nowhere/copy", {"destination": "q"}, 404),
        ("q/copy", {}, 400),
        ("q/copy", {"destination": "to", "count": 0}, 400),
        ("q/copy", {"destination": "to", "limit": 0}, 400),
        ("q/copy", {"destination": "to", "after": "x"}, 400),
        ("nowhere/import", {"lines": line()}, 404),
        ("q/import", {}, 400),
        ("q/import", {"lines": "\n".join([line()] * (carrying.LINES_MAX + 1))}, 413),
    ):
        answer = await client.post(f"queues/%2F/{path}", json=body)
        assert answer.status_code == status, (path, body, answer.text)
    node.broker.access.permissions.set("manager", "/", "", "^q$", ".*")
    manager = connect("manager")
    assert (await bring(manager, "q", line())).status_code == 401
    body = {"destination": "to"}
    assert (await manager.post("queues/%2F/q/copy", json=body)).status_code == 401
    node.broker.alarms.set("memory", True)
    assert "blocked" in (await bring(client, "q", line())).text
    assert "blocked" in (await client.post("queues/%2F/q/copy", json=body)).text
    assert (node.ready("q"), node.ready("to")) == (1, 0)


async def test_large_messages_are_exported_whole(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    body = bytes(range(256)) * 1024
    for _ in range(6):
        answer = await bring(client, "q", line(body[: 40 * 1024]))
        assert answer.json() == {"imported": 1, "refused": []}
    rows = await exported(client, "q", truncate=1)
    assert {len(base64.b64decode(row["payload"])) for row in rows} == {40 * 1024}
