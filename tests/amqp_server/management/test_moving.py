"""The API moves messages from one queue to another, and tells where a message would go."""

from typing import Any

import pytest

from .conftest import Connect, ManagedNode

pytestmark = pytest.mark.trio

PUBLISH = "exchanges/%2F/amq.default/publish"
ASK = {"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"}


async def fill(client: Any, queue: str, *payloads: str, **properties: Any) -> None:
    for payload in payloads:
        body = {
            "routing_key": queue,
            "payload": payload,
            "payload_encoding": "string",
            "properties": properties,
        }
        assert (await client.post(PUBLISH, json=body)).json() == {"routed": True}


async def payloads(client: Any, queue: str) -> list[str]:
    return [each["payload"] for each in (await client.post(f"queues/%2F/{queue}/get", json=ASK)).json()]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("ackmode", ["ack_requeue_true", "reject_requeue_true"])
async def test_who_looks_by_get_brings_no_message_nearer_to_its_delivery_limit(
    connect: Connect, kind: str, ackmode: str
) -> None:
    client = connect("admin")
    limit = {"x-delivery-limit": 2} if kind == "quorum" else {}
    await client.put("queues/%2F/q", json={"durable": True, "arguments": {"x-queue-type": kind, **limit}})
    await fill(client, "q", *"abc")
    for _ in range(5):
        looked = (await client.post("queues/%2F/q/get", json=ASK | {"count": 2, "ackmode": ackmode})).json()
        assert [each["payload"] for each in looked] == ["a", "b"]
    assert looked[0]["redelivered"] is True


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("retries", ["returned", "failed", "all"])
async def test_who_looks_by_get_makes_no_message_wait(connect: Connect, kind: str, retries: str) -> None:
    client = connect("admin")
    later = {"x-queue-type": kind, "x-delayed-retry-type": retries, "x-delayed-retry-min": 60_000}
    await client.put("queues/%2F/q", json={"durable": True, "arguments": later})
    await fill(client, "q", *"abc")
    for _ in range(3):
        assert await payloads(client, "q") == ["a", "b", "c"]


@pytest.mark.parametrize("delivery_mode", [1, 2])
async def test_messages_are_moved_in_order(connect: Connect, node: ManagedNode, delivery_mode: int) -> None:
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", *"abcde", delivery_mode=delivery_mode, priority=3)
    answer = await client.post("queues/%2F/old/move", json={"destination": "new", "count": 3})
    assert answer.json() == {"moved": 3, "refused": 0}
    assert (await payloads(client, "old"), await payloads(client, "new")) == (["d", "e"], ["a", "b", "c"])
    answer = await client.post("queues/%2F/old/move", json={"destination": "new"})
    assert answer.json() == {"moved": 2, "refused": 0}
    (first, *_) = (await client.post("queues/%2F/new/get", json=ASK)).json()
    assert first["properties"] == {"delivery_mode": delivery_mode, "priority": 3}
    # The exchange and routing key of their first publish.
    assert (first["exchange"], first["routing_key"]) == ("", "old")
    assert (node.ready("old"), node.ready("new")) == (0, 5)


async def test_more_than_are_moved_at_once(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_server.management.messages.moving.MOVED_AT_ONCE", 2)
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", *"abcde")
    answer = await client.post("queues/%2F/old/move", json={"destination": "new"})
    assert answer.json() == {"moved": 5, "refused": 0}
    assert await payloads(client, "new") == list("abcde")


async def test_what_the_other_queue_refuses_stays(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/old", json={})
    full = {"arguments": {"x-max-length": 2, "x-overflow": "reject-publish"}}
    await client.put("queues/%2F/new", json=full)
    await fill(client, "old", *"abcde")
    answer = await client.post("queues/%2F/old/move", json={"destination": "new"})
    assert answer.json() == {"moved": 2, "refused": 3}
    assert (await payloads(client, "old"), await payloads(client, "new")) == (["c", "d", "e"], ["a", "b"])


@pytest.mark.parametrize("how", ["move", "redrive"])
async def test_what_stays_is_no_nearer_to_its_delivery_limit(
    connect: Connect, node: ManagedNode, how: str
) -> None:
    client = connect("admin")
    dead = {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-delayed-retry-type": "all"}
    await client.put(
        "queues/%2F/dead", json={"durable": True, "arguments": dead | {"x-delayed-retry-min": 60_000}}
    )
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await client.put("queues/%2F/own", json={"durable": True, "arguments": letters | full})
    await fill(client, "own", "a", delivery_mode=2)
    await client.post("queues/%2F/own/get", json=ASK | {"ackmode": "reject_requeue_false"})
    await fill(client, "own", "in its way", delivery_mode=2)
    for _ in range(3):
        body = {"destination": "own"} if how == "move" else {}
        told = (await client.post(f"queues/%2F/dead/{how}", json=body)).json()
        assert told["moved"] == 0
        assert node.ready("dead") == 1
    await client.delete("queues/%2F/own/contents")
    assert (await client.post(f"queues/%2F/dead/{how}", json=body)).json()["moved"] == 1
    (back,) = (await client.post("queues/%2F/own/get", json=ASK)).json()
    counts = {"x-acquired-count", "x-delivery-count"} & back["properties"]["headers"].keys()
    assert (back["payload"], counts) == ("a", set())


async def test_carbon_copies_and_user_ids_are_not_looked_at_again(
    connect: Connect, node: ManagedNode
) -> None:
    """Over basic.publish, one message would go to more queues again, and the other one would be refused."""
    client = connect("admin")
    for queue in ("old", "new", "copy"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", "a", headers={"CC": ["copy"]}, user_id="admin")
    assert node.ready("copy") == 1
    answer = await client.post("queues/%2F/old/move", json={"destination": "new"})
    assert answer.json() == {"moved": 1, "refused": 0}
    assert (node.ready("old"), node.ready("new"), node.ready("copy")) == (0, 1, 1)
    (got,) = (await client.post("queues/%2F/new/get", json=ASK)).json()
    assert got["properties"] == {"headers": {"CC": ["copy"]}, "user_id": "admin"}


async def test_moves_that_make_no_sense(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("old", "new"):
        await client.put(f"queues/%2F/{queue}", json={})
    await fill(client, "old", "a")
    for body, status in (
        ({"destination": "old"}, 400),
        ({"destination": "nowhere"}, 404),
        ({"destination": "new", "count": 0}, 400),
        ({"destination": "new", "count": 1_000_000}, 400),
        ({}, 400),
    ):
        assert (await client.post("queues/%2F/old/move", json=body)).status_code == status, body
    assert (await client.post("queues/%2F/nowhere/move", json={"destination": "new"})).status_code == 404
    node.broker.alarms.set("memory", True)
    assert (await client.post("queues/%2F/old/move", json={"destination": "new"})).status_code == 400
    assert (node.ready("old"), node.ready("new")) == (1, 0)


async def test_where_a_message_would_go(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in ("q", "r"):
        await client.put(f"queues/%2F/{queue}", json={})
    await client.put("exchanges/%2F/x", json={"type": "headers"})
    arguments = {"x-match": "all", "kind": "a"}
    await client.post("bindings/%2F/e/x/q/q", json={"arguments": arguments})
    body: dict[str, Any] = {"routing_key": "k", "properties": {"headers": {"kind": "a"}}}
    told = (await client.post("exchanges/%2F/x/explain", json=body)).json()
    binding = {"destination": "q", "destination_type": "queue", "routing_key": "", "arguments": arguments}
    assert told == {
        "routed": True,
        "queues": ["q"],
        "certain": True,
        "complete": True,
        "steps": [{"exchange": "x", "type": "headers", "bindings": [binding], "alternate": None}],
    }
    told = (await client.post("exchanges/%2F/amq.default/explain", json={"routing_key": "r"})).json()
    assert told["queues"] == ["r"]
    assert (await client.post("exchanges/%2F/x/explain", json={})).json()["queues"] == []
    assert (node.ready("q"), node.ready("r")) == (0, 0)
    for wrong in ({"routing_key": "k" * 256}, {"properties": {"headers": 1}}, {"properties": {"colour": 1}}):
        assert (await client.post("exchanges/%2F/x/explain", json=wrong)).status_code == 400
    assert (await client.post("exchanges/%2F/nowhere/explain", json={})).status_code == 404
    assert (await connect("manager").post("exchanges/other/amq.direct/explain", json={})).status_code == 401


async def test_dead_letters_go_back_to_where_they_died(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/dead", json={})
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for queue in ("a", "b", "gone"):
        await client.put(f"queues/%2F/{queue}", json={"arguments": letters})
    reject = ASK | {"ackmode": "reject_requeue_false"}
    for queue, payload in (("a", "1"), ("gone", "2"), ("b", "3"), ("a", "4")):
        await fill(client, queue, payload, message_id=payload)
        await client.post(f"queues/%2F/{queue}/get", json=reject)
    await fill(client, "dead", "no dead letter")
    await client.delete("queues/%2F/gone")
    answer = await client.post("queues/%2F/dead/redrive", json={"count": 2})
    assert answer.json() == {"moved": 1, "kept": 1}
    answer = await client.post("queues/%2F/dead/redrive", json={})
    assert answer.json() == {"moved": 2, "kept": 2}
    assert (await payloads(client, "a"), await payloads(client, "b")) == (["1", "4"], ["3"])
    assert await payloads(client, "dead") == ["2", "no dead letter"]
    (back, _) = (await client.post("queues/%2F/a/get", json=ASK)).json()
    assert back["properties"]["message_id"] == "1"
    # Nothing is left to do, and nothing moves.
    assert (await client.post("queues/%2F/dead/redrive", json={})).json() == {"moved": 0, "kept": 2}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("name", [{"x-deduplication-id": "a"}, {"x-producer": "p", "x-sequence": 7}])
async def test_what_comes_back_is_no_duplicate(
    connect: Connect, node: ManagedNode, kind: str, name: dict[str, Any]
) -> None:
    """A queue that drops duplicates remembers a message that was moved away from it, or has died there."""
    client = connect("admin")
    arguments = {
        "x-queue-type": kind,
        "x-deduplication": True,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "held",
    }
    await client.put("queues/%2F/own", json={"durable": True, "arguments": arguments})
    await client.put("queues/%2F/held", json={"durable": True})
    await fill(client, "own", "a", headers=name, delivery_mode=2)
    for conditions in ({}, {"contains": "a"}):
        for source, destination in (("own", "held"), ("held", "own")):
            path = f"queues/%2F/{source}/move"
            told = (await client.post(path, json={"destination": destination} | conditions)).json()
            assert (told["moved"], told["refused"]) == (1, 0)
            assert (node.ready(source), node.ready(destination)) == (0, 1)
    await client.post("queues/%2F/own/get", json=ASK | {"ackmode": "reject_requeue_false"})
    assert (await client.post("queues/%2F/held/redrive", json={})).json() == {"moved": 1, "kept": 0}
    assert (node.ready("own"), node.ready("held")) == (1, 0)
    # A publish of it is one.
    await fill(client, "own", "a", headers=name, delivery_mode=2)
    assert node.ready("own") == 1


async def test_a_queue_that_refuses_its_dead_letters(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/dead", json={})
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await client.put("queues/%2F/full", json={"arguments": letters | full})
    for payload in ("1", "2"):
        await fill(client, "full", payload)
        await client.post("queues/%2F/full/get", json=ASK | {"ackmode": "reject_requeue_false"})
    answer = await client.post("queues/%2F/dead/redrive", json={})
    assert answer.json() == {"moved": 1, "kept": 1}
    assert (await payloads(client, "full"), await payloads(client, "dead")) == (["1"], ["2"])


async def test_redriving_needs_permissions(connect: Connect, node: ManagedNode) -> None:
    await connect("admin").put("queues/%2F/dead", json={})
    node.broker.access.permissions.set("manager", "/", ".*", "^$", ".*")
    assert (await connect("manager").post("queues/%2F/dead/redrive", json={})).status_code == 401
    node.broker.access.permissions.set("manager", "/", ".*", ".*", "^$")
    assert (await connect("manager").post("queues/%2F/dead/redrive", json={})).status_code == 401
    for count in (0, 10_001):
        assert (
            await connect("admin").post("queues/%2F/dead/redrive", json={"count": count})
        ).status_code == 400
    assert (await connect("admin").post("queues/%2F/none/redrive", json={})).status_code == 404
