"""Operators pause queues, resume them, and protect them from deletion."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.management.changes.internal_session import Direct
from quorum_queue.machine import versions

from .conftest import Connect, ManagedNode

pytestmark = pytest.mark.trio
PROTECTION = "queues/%2F/q/deletion/protection"


async def row(client: Any, queue: str = "q") -> dict[str, Any]:
    told: dict[str, Any] = (await client.get(f"queues/%2F/{queue}")).json()
    return told


async def test_events_and_the_metric(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in "qr":
        await client.put(f"queues/%2F/{queue}", json={})
        assert (await client.put(f"queues/%2F/{queue}/pause", json={})).status_code == 204
    counts = node.broker.counts
    assert counts.paused_queues == 2
    await client.put("queues/%2F/q/resume", json={"deliveries": True})
    assert counts.paused_queues == 2
    await client.put("queues/%2F/q/resume")
    assert counts.paused_queues == 1
    await client.delete("queues/%2F/r")
    assert counts.paused_queues == 0


async def test_lists_say_what_is_paused(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in "qr":
        await client.put(f"queues/%2F/{queue}", json={})
    await client.put("queues/%2F/r/pause", json={"publishes": True})
    rows = (await client.get("queues?columns=name,state,publishes_paused&sort=state")).json()
    assert rows == [
        {"name": "r", "state": "paused", "publishes_paused": True},
        {"name": "q", "state": "running", "publishes_paused": False},
    ]
    assert (await client.get("queues/%2F/r/explain")).json()["settings_in_force"]


async def test_a_cluster_with_an_older_node_refuses(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    monkeypatch.setattr(type(node.broker.replication), "version", versions.PAUSES - 1)
    asked = [
        ("PUT", "queues/%2F/q/pause", {}),
        ("PUT", "queues/%2F/q/resume", {}),
        ("POST", PROTECTION, {}),
        ("POST", "vhosts/%2F/deletion/protection", {}),
        ("PUT", "vhosts/new", {"protected_from_deletion": True}),
    ]
    for method, path, body in asked:
        answer = await client.request(method, path, json=body)
        assert answer.status_code == 503, path
        assert "needs a cluster whose nodes all run this version" in answer.json()["reason"]
    assert (await client.put("vhosts/new", json={})).status_code == 201


async def test_a_protected_queue_is_not_deleted(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    assert (await client.post(PROTECTION, json={})).status_code == 204
    assert (await row(client))["protected_from_deletion"] is True
    for query in ("", "?if-unused=true", "?if-empty=true"):
        refused = await client.delete(f"queues/%2F/q{query}")
        assert refused.status_code == 400
        assert "Cannot delete protected queue 'q' in vhost '/'." in refused.json()["reason"]
    assert (await client.delete("queues/%2F/q/contents")).status_code == 204
    assert (await client.delete(PROTECTION)).status_code == 204
    assert (await client.delete("queues/%2F/q")).status_code == 204


async def test_who_may_protect_a_queue(connect: Connect, node: ManagedNode) -> None:
    await connect("admin").put("queues/%2F/q", json={})
    for user in ("manager", "policies", "watcher"):
        assert (await connect(user).post(PROTECTION, json={})).status_code == 401
    assert (await connect("admin").post("queues/%2F/none/deletion/protection", json={})).status_code == 404


async def test_an_exclusive_queue_is_not_protected(connect: Connect, node: ManagedNode) -> None:
    with Direct(node.broker, "/", "admin") as direct:
        await direct.ask(commands.Queue.Declare(queue="q", exclusive=True))
        refused = await connect("admin").post(PROTECTION, json={})
        assert refused.status_code == 400 and "it ends with its connection" in refused.json()["reason"]


async def test_it_outlives_its_last_consumer(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in "qr":
        await client.put(f"queues/%2F/{queue}", json={"auto_delete": True})
    await client.post(PROTECTION, json={})
    with Direct(node.broker, "/", "admin") as direct:
        for queue in "qr":
            await direct.ask(commands.Basic.Consume(queue=queue, consumer_tag=queue))
    assert [queue.name for queue in node.broker.all_queues()] == ["q"]


async def test_it_outlives_its_lease(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in "qr":
        await client.put(f"queues/%2F/{queue}", json={"arguments": {"x-expires": 1_000}})
    await client.post(PROTECTION, json={})
    node.clock.now_ms += 2_000
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    assert [queue.name for queue in node.broker.all_queues()] == ["q"]
    await client.delete(PROTECTION)
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    assert node.broker.all_queues()
    node.clock.now_ms += 2_000
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    assert not list(node.broker.all_queues())


async def test_a_super_stream_keeps_its_protected_partition(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    body = {"type": "x-super-stream", "durable": True, "arguments": {"x-partitions": 2}}
    assert (await client.put("exchanges/%2F/s", json=body)).status_code == 201
    place = "queues/%2F/s-1/deletion/protection"
    assert (await client.post(place, json={})).status_code == 204
    refused = await client.delete("exchanges/%2F/s")
    assert "Cannot delete protected queue 's-1'" in refused.json()["reason"]
    await client.delete(place)
    assert (await client.delete("exchanges/%2F/s")).status_code == 204


async def test_definitions_carry_the_protection(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    for queue in "qr":
        await client.put(f"queues/%2F/{queue}", json={})
    await client.post(PROTECTION, json={})
    await client.put("queues/%2F/q/pause", json={})
    told = (await client.get("definitions")).json()
    protected = {each["name"]: each.get("protected_from_deletion") for each in told["queues"]}
    assert protected == {"q": True, "r": None}
    plain = (await client.get("definitions?for-rabbitmq=true")).json()
    assert not any("protected_from_deletion" in each for each in plain["queues"])
    await client.delete(PROTECTION)
    await client.delete("queues/%2F/q")
    assert (await client.post("definitions", json={"queues": told["queues"]})).status_code in (200, 204)
    again = await row(client)
    assert (again["protected_from_deletion"], again["state"]) == (True, "running")
