"""The API shows messages where they lie, and searches among them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from amqp_server.clock import SystemClock
from amqp_server.management.messages import peeking

from .conftest import Connect, ManagedNode, with_queue
from .test_moving import ASK, fill

pytestmark = pytest.mark.trio


async def seen(client: Any, queue: str, **query: object) -> dict[str, Any]:
    answer = await client.get(f"queues/%2F/{queue}/peek", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def payloads(told: dict[str, Any]) -> list[str]:
    return [row["payload"] for row in told["messages"]]


@pytest.mark.parametrize("type_", ["classic", "quorum"])
async def test_messages_are_seen_in_the_order_of_delivery(
    connect: Connect, node: ManagedNode, type_: str
) -> None:
    client = connect("admin")
    arguments: dict[str, Any] = {"x-queue-type": type_}
    if type_ == "classic":
        arguments["x-max-priority"] = 10
    await client.put("queues/%2F/q", json={"arguments": arguments})
    for priority, names in ((1, "ab"), (9, "cd"), (1, "e")):
        await fill(client, "q", *names, priority=priority)
    # One comes back, as one that was delivered once.
    await client.post("queues/%2F/q/get", json=ASK | {"count": 1})
    expected = list("cdabe")
    told = await seen(client, "q", count=100)
    assert payloads(told) == expected
    assert told["looked_at"] == 5 and told["next"] == told["messages"][-1]["place"]
    assert [row["redelivered"] for row in told["messages"]] == [True, False, False, False, False]
    assert told["messages"][0]["properties"] == {"priority": 9}
    assert (told["messages"][0]["exchange"], told["messages"][0]["routing_key"]) == ("", "q")
    # A few at a time, and nothing changes by that.
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await seen(client, "q", count=2, after=after)
        found += payloads(page)
        after = page["next"]
    assert found == expected
    got = (await client.post("queues/%2F/q/get", json=ASK)).json()
    assert [row["payload"] for row in got] == expected
    assert [row["redelivered"] for row in got] == [True, False, False, False, False]


async def test_who_was_at_a_message_that_is_gone_goes_on_behind_it(
    connect: Connect, node: ManagedNode
) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await fill(client, "q", *"abcdef")
    told = await seen(client, "q", count=3)
    await client.post("queues/%2F/q/get", json=ASK | {"count": 4, "ackmode": "ack_requeue_false"})
    assert payloads(await seen(client, "q", after=told["next"])) == ["e", "f"]


async def test_messages_are_searched(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await client.post("bindings/%2F/e/amq.topic/q/q", json={"routing_key": "#"})
    for key, payload, headers in (
        ("order.new", "10 apples", {"tenant": "a", "tries": 3}),
        ("order.paid", "10 apples", {"tenant": "b", "urgent": True}),
        ("invoice", "Grüße", {"tenant": "a"}),
        ("order.new", "2 pears", {}),
    ):
        body = {
            "routing_key": key, "payload": payload, "payload_encoding": "string",
            "properties": {"headers": headers},
        }  # fmt: skip
        assert (await client.post("exchanges/%2F/amq.topic/publish", json=body)).json() == {"routed": True}
    for query, expected in (
        ({"routing_key": "^ORDER"}, ["10 apples", "10 apples", "2 pears"]),
        ({"routing_key": "new$", "contains": "apples"}, ["10 apples"]),
        ({"header": "tenant=a"}, ["10 apples", "Grüße"]),
        ({"header": "tries=3"}, ["10 apples"]),
        ({"header": "urgent=true"}, ["10 apples"]),
        ({"header": "nobody="}, []),
        ({"contains": "üß"}, ["Grüße"]),
        ({"contains": "plums"}, []),
    ):
        told = await seen(client, "q", **query)
        assert payloads(told) == expected, query
        # What does not match was looked at all the same: a search goes on from there.
        assert told["looked_at"] == 4 and told["next"] is not None


async def test_payloads_are_cut_where_a_character_ends(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await fill(client, "q", "ab€cd")
    for truncate, expected in ((2, "ab"), (3, "ab"), (4, "ab"), (5, "ab€"), (100, "ab€cd")):
        (row,) = (await seen(client, "q", truncate=truncate))["messages"]
        assert (row["payload"], row["payload_encoding"]) == (expected, "string"), truncate
        assert row["payload_bytes"] == 7
    (row,) = (await seen(client, "q", truncate=3, encoding="base64"))["messages"]
    assert base64.b64decode(row["payload"]) == "ab€cd".encode()[:3]
    binary = {"routing_key": "q", "payload": "/w==", "payload_encoding": "base64"}
    await client.post("exchanges/%2F/amq.default/publish", json=binary)
    row = (await seen(client, "q"))["messages"][1]
    assert (row["payload"], row["payload_encoding"]) == ("/w==", "base64")


async def test_one_request_looks_at_a_limited_number_of_bytes(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "LOOK_BYTES", 5_000)
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await fill(client, "q", "a" * 2_000, "b" * 2_000, "c" * 9_000, "d" * 10)
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        told = await seen(client, "q", after=after)
        found.append([payload[0] for payload in payloads(told)])
        after = told["next"]
    assert found == [["a", "b"], ["c"], ["d"], []]


async def test_looking_needs_the_permission_to_read(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await fill(client, "q", "secret")
    node.broker.access.permissions.set("manager", "/", ".*", ".*", "^other$")
    for path in ("queues/%2F/q/peek", "queues/%2F/none/peek"):
        assert (await connect("manager").get(path)).status_code == 401
    node.broker.access.permissions.set("manager", "/", "^$", "^$", "^q$")
    assert payloads(await seen(connect("manager"), "q")) == ["secret"]


async def test_questions_that_are_wrong(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    for query in (
        {"count": 0}, {"count": 1_001}, {"count": "x"}, {"count": -1}, {"count": "٣"},
        {"after": "x"}, {"after": "1"}, {"after": "1.x"}, {"after": "-1.2"},
        {"truncate": 1 << 21}, {"encoding": "utf-7"},
        {"routing_key": "("}, {"routing_key": "x" * 300},
        {"header": "x"}, {"header": "=x"}, {"contains": ""},
    ):  # fmt: skip
        answer = await client.get("queues/%2F/q/peek", params=query)
        assert answer.status_code == 400, (query, answer.text)
    assert (await client.get("queues/%2F/none/peek")).status_code == 404
    # A place that no message has ever had.
    assert (await seen(client, "q", after=f"{1 << 70}.{1 << 70}"))["messages"] == []


@pytest.mark.parametrize("type_", ["classic", "quorum"])
async def test_messages_that_wait_are_seen_with_the_time_when_they_are_due(
    connect: Connect, node: ManagedNode, type_: str
) -> None:
    client = connect("admin")
    arguments: dict[str, Any] = {"x-queue-type": type_, "x-delayed": True}
    await client.put("queues/%2F/q", json={"arguments": arguments})
    for payload, delay in (("late", 9_000), ("ready", 0), ("soon", 2_000), ("soon too", 2_000)):
        await fill(client, "q", payload, headers={"x-delay": delay})
    assert payloads(await seen(client, "q")) == ["ready"]
    told = await seen(client, "q", waiting="true", count=3)
    assert payloads(told) == ["ready", "soon", "soon too"]
    assert [row.get("due", 0) for row in told["messages"]] == [0, *[node.clock.wall_ms() + 2_000] * 2]
    told = await seen(client, "q", waiting="true", after=told["messages"][1]["place"])
    assert payloads(told) == ["soon too", "late"]
    assert payloads(await seen(client, "q", waiting="true", after=told["next"])) == []
    assert payloads(await seen(client, "q", waiting="true", contains="o")) == ["soon", "soon too"]
    # One is gone: those that were due at the same time are seen.
    place = told["messages"][0]["place"]
    node.clock.now_ms += 2_500
    await client.post("queues/%2F/q/get", json=ASK | {"count": 3, "ackmode": "ack_requeue_false"})
    assert payloads(await seen(client, "q", waiting="true", after=place)) == ["late"]
    assert (await client.get(f"queues/%2F/q/peek?after={place}")).status_code == 400
    # They are not moved.
    answer = await client.post("queues/%2F/q/purge", json={"contains": "late"})
    assert answer.json()["purged"] == 0


@pytest.mark.parametrize("type_", ["classic", "stream"])
@pytest.mark.parametrize("hours", [2, -2])
async def test_what_came_lately_is_found_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str, hours: int
) -> None:
    async with with_queue(tmp_path, "q", type_) as admin:
        await fill(admin, "q", "a")
        wall_ms = SystemClock.wall_ms
        monkeypatch.setattr(SystemClock, "wall_ms", lambda clock: wall_ms(clock) + hours * 3_600_000)
        now_ms = SystemClock().wall_ms()
        for since, expected in (("1h", ["a"]), (str(now_ms - 3_600_000), ["a"]), (str(now_ms + 60_000), [])):
            assert payloads(await seen(admin, "q", since=since)) == expected, since


async def test_the_latest_times_are_times(tmp_path: Path) -> None:
    async with with_queue(tmp_path, "s", "stream") as admin:
        await fill(admin, "s", "a")
        for since in ("9" * 15, "9999-12-31T23:59:59Z"):
            assert payloads(await seen(admin, "s", since=since)) == []
        assert payloads(await seen(admin, "s", since="9" * 9 + "d")) == ["a"]
