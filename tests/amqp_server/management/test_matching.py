"""Messages that fulfil conditions are moved and purged; the others stay as they are."""

from typing import Any

import pytest

from amqp_server.management.messages import cancelling, moving, peeking
from quorum_queue.machine import versions

from .conftest import Connect, ManagedNode
from .test_moving import ASK, fill
from .test_peeking import seen

pytestmark = pytest.mark.trio


async def rows(client: Any, queue: str) -> list[tuple[str, bool]]:
    told = await seen(client, queue, count=100)
    return [(row["payload"], row["redelivered"]) for row in told["messages"]]


async def post(client: Any, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"queues/%2F/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("type_", ["classic", "quorum"])
@pytest.mark.parametrize("mode", [1, 2])
async def test_only_what_fulfils_the_conditions_is_moved(
    connect: Connect, node: ManagedNode, type_: str, mode: int
) -> None:
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={"arguments": {"x-queue-type": type_}})
    for payload in "abcdefgh":
        tenant = {"tenant": "acme" if payload in "begh" else "other"}
        await fill(client, "old", payload, headers=tenant, delivery_mode=mode)
    # Two come back, as some that were delivered once.
    await client.post("queues/%2F/old/get", json=ASK | {"count": 2})
    before = await rows(client, "old")
    assert [payload for payload, redelivered in before if redelivered] == ["a", "b"]
    told = await post(client, "old/move", destination="new", header="tenant=acme")
    assert (told["moved"], told["refused"], told["looked_at"]) == (4, 0, 8)
    assert await rows(client, "old") == [row for row in before if row[0] in "acdf"]
    assert await rows(client, "new") == [(payload, False) for payload in "begh"]
    moved = (await client.post("queues/%2F/new/get", json=ASK)).json()[0]
    assert moved["properties"] == {"headers": {"tenant": "acme"}, "delivery_mode": mode}
    assert moved["routing_key"] == "old"
    told = await post(client, "old/purge", contains="c", routing_key="^OLD$")
    assert (told["purged"], told["looked_at"]) == (1, 4)
    assert await rows(client, "old") == [row for row in before if row[0] in "adf"]


async def test_one_request_looks_at_a_part(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "COUNT_MAX", 3)
    monkeypatch.setattr(moving, "MOVED_AT_ONCE", 2)
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", *"axbxcxxxd")
    after, moved = "", 0
    for count in (1, 2, 2, 0):
        told = await post(client, "old/move", destination="new", contains="x", after=after)
        assert (told["moved"], told["refused"], told["looked_at"]) == (count, 0, 3) or told["next"] is None
        moved += told["moved"]
        after = told["next"] or after
    assert moved == 5 and told["next"] is None
    assert [payload for payload, _ in await rows(client, "old")] == list("abcd")
    told = await post(client, "new/purge", routing_key="old", count=2)
    assert told == {"purged": 2, "looked_at": 3, "next": "0.2"}
    told = await post(client, "new/purge", routing_key="old", after=told["next"])
    assert told["purged"] == 3 and node.ready("new") == 0


async def test_what_the_other_queue_refuses_comes_back_as_it_was(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/old", json={"arguments": {"x-queue-type": "quorum"}})
    full = {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    await client.put("queues/%2F/new", json=full)
    await fill(client, "old", *"axbxcx")
    told = await post(client, "old/move", destination="new", contains="x")
    assert (told["moved"], told["refused"]) == (1, 2)
    assert await rows(client, "old") == [(payload, False) for payload in "abxcx"]
    # No failed delivery was counted.
    (first, *_) = (await client.post("queues/%2F/old/get", json=ASK | {"count": 3})).json()
    assert first["properties"] == {}


async def test_messages_that_consumers_hold_stay_with_them(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", *"xxx")
    page = await seen(client, "old")
    await client.post("queues/%2F/old/get", json=ASK | {"count": 1, "ackmode": "ack_requeue_false"})

    async def stale(*_: Any) -> dict[str, Any]:
        """A consumer was faster than the request that looked before."""
        return page

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(peeking, "look", stale)
        told = await post(client, "old/move", destination="new", contains="x")
        assert told["moved"] == 2
        assert (await post(client, "old/purge", contains="x"))["purged"] == 0


async def test_conditions_that_make_no_sense(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await client.put("queues/%2F/log", json={"arguments": {"x-queue-type": "stream"}})
    await fill(client, "old", "a")
    for path, body, status, text in (
        ("old/purge", {}, 400, "no condition"),
        ("old/purge", {"header": "tenant"}, 400, "NAME=VALUE"),
        ("old/purge", {"contains": ""}, 400, "contains"),
        ("old/purge", {"contains": "a", "count": 0}, 400, "count"),
        ("old/purge", {"contains": "a", "after": "x"}, 400, "place"),
        ("old/purge", {"routing_key": "(" * 20}, 400, "missing"),
        ("old/purge", {"routing_key": "a" * 300}, 400, "routing_key"),
        ("nowhere/purge", {"contains": "a"}, 404, ""),
        ("log/purge", {"contains": "a"}, 400, "stream"),
        ("old/move", {"destination": "nowhere", "contains": "a"}, 404, "no queue 'nowhere'"),
        ("old/move", {"destination": "old", "contains": "a"}, 400, "itself"),
        ("old/move", {"destination": "new", "after": "0.1"}, 400, "conditions"),
        ("log/move", {"destination": "new", "contains": "a"}, 400, "stream"),
    ):
        answer = await client.post(f"queues/%2F/{path}", json=body)
        assert answer.status_code == status and text in answer.text, (path, body, answer.text)
    node.broker.alarms.set("memory", True)
    answer = await client.post("queues/%2F/old/move", json={"destination": "new", "contains": "a"})
    assert answer.status_code == 400 and "blocked" in answer.text
    assert (node.ready("old"), node.ready("new")) == (1, 0)


async def test_who_may_not_read_a_queue_purges_nothing(connect: Connect, node: ManagedNode) -> None:
    await connect("admin").put("queues/%2F/old", json={})
    node.broker.access.permissions.set("manager", "/", "", "", "")
    client = connect("manager")
    assert (await client.post("queues/%2F/old/purge", json={"contains": "a"})).status_code == 401
    body = {"contains": "a", "destination": "new"}
    assert (await client.post("queues/%2F/old/move", json=body)).status_code == 401


async def test_conditions_wait_for_the_last_node(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of an earlier version would hand out the first message instead."""
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", *"abx")
    monkeypatch.setattr(node.broker.replication, "version", versions.PICKS - 1, raising=False)
    for path, body in (("old/purge", {}), ("old/move", {"destination": "new"})):
        answer = await client.post(f"queues/%2F/{path}", json=body | {"contains": "x"})
        assert answer.status_code == 400 and "all run this version" in answer.text
    monkeypatch.setattr(node.broker.replication, "version", versions.CANCELS - 1, raising=False)
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("old/purge", {"contains": "x", "waiting": True}),
        ("old/purge", {"since": "1h"}),
        ("old/move", {"destination": "new", "waiting": True}),
        ("old/redrive", {"waiting": True}),
        ("old/cancel", {"message_id": "x"}),
        ("old/copy", {"destination": "new", "message_id": "x"}),
    )
    for path, given in asked:
        answer = await client.post(f"queues/%2F/{path}", json=given)
        assert answer.status_code == 400 and "all run this version" in answer.text
    # Copies take nothing out of the queue.
    assert (await post(client, "old/copy", destination="new", contains="x"))["copied"] == 1
    assert node.ready("old") == 3


async def test_requests_to_cancel_that_make_no_sense(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/old", json={})
    await client.put("queues/%2F/log", json={"arguments": {"x-queue-type": "stream"}})
    for path, body, status in (
        ("old/cancel", {}, 400),
        ("old/cancel", {"message_id": ""}, 400),
        ("old/cancel", {"message_id": "x" * 256}, 400),
        ("old/cancel", {"message_id": "xyz", "hex": True}, 400),
        ("old/cancel", {"message_id": "x", "after": "0.1"}, 400),
        ("old/cancel", {"message_id": "x", "after": "-1"}, 400),
        ("log/cancel", {"message_id": "x"}, 400),
        ("nowhere/cancel", {"message_id": "x"}, 404),
    ):
        answer = await client.post(f"queues/%2F/{path}", json=body)
        assert answer.status_code == status, (path, body, answer.text)
    node.broker.access.permissions.set("manager", "/", ".*", ".*", "^$")
    answer = await connect("manager").post("queues/%2F/old/cancel", json={"message_id": "x"})
    assert answer.status_code == 401


async def test_a_cancel_looks_at_all_that_waits_in_parts(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "COUNT_MAX", 3)
    client = connect("admin")
    await client.put("queues/%2F/old", json={"arguments": {"x-delayed": True}})
    for number in range(10):
        await fill(client, "old", str(number), message_id=str(number % 9), headers={"x-delay": 60_000})
    assert await post(client, "old/cancel", message_id="0") == {"cancelled": 2, "looked_at": 10, "next": None}
    monkeypatch.setattr(cancelling, "CANCEL_LOOKS", 3)
    told = await post(client, "old/cancel", message_id="8")
    assert (told["cancelled"], told["looked_at"]) == (0, 3)
    told = await post(client, "old/cancel", message_id="8", after=told["next"])
    told = await post(client, "old/cancel", message_id="8", after=told["next"])
    assert told["cancelled"] == 1
