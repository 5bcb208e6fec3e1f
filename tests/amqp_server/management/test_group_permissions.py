"""Messages of a consumer group over HTTP need the permission for the group's streams, too."""

from __future__ import annotations

from pathlib import Path

import httpx

from conformance_tests.patience import PATIENCE_S
from tests.amqp_server.connection.served import served


async def test_who_may_not_read_the_streams(tmp_path: Path) -> None:
    """`low` may read and write what begins with `low`, and write `secret`."""
    async with (
        served(tmp_path, http="127.0.0.1:0") as node,
        httpx.AsyncClient(base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S) as admin,
        httpx.AsyncClient(base_url=f"http://{node.http_address}/api/", timeout=PATIENCE_S) as low,
    ):
        admin.auth, low.auth = httpx.BasicAuth("guest", "guest"), httpx.BasicAuth("low", "low")
        node.broker.access.users.add("low", "low", ("management",))
        node.broker.access.permissions.set("low", "/", "^low", "^(low|secret|amq.default)", "^low")
        await _who_may_not_read_the_streams(admin, low)


async def _who_may_not_read_the_streams(admin: httpx.AsyncClient, low: httpx.AsyncClient) -> None:
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    mark = {"type": "direct", "durable": True, "arguments": {"x-super-stream": True}}
    group = {
        "durable": True,
        "arguments": {"x-queue-type": "stream-group", "x-stream": "lowx", "x-stream-offset": "first"},
    }
    order = {"routing_key": "1", "arguments": {"x-stream-partition-order": 1}}
    assert (await admin.put("queues/%2F/secret", json=stream)).status_code == 201
    assert (await low.put("queues/%2F/lows", json=stream)).status_code == 201
    assert (await low.put("exchanges/%2F/lowx", json=mark)).status_code == 201
    assert (await low.post("bindings/%2F/e/lowx/q/lows", json=order)).status_code == 201
    assert (await low.put("queues/%2F/lowg", json=group)).status_code == 201
    said = "access to queue 'secret' in vhost '/' refused for user 'low'"
    bound = await low.post("bindings/%2F/e/lowx/q/secret", json=order)
    assert bound.status_code == 401 and said in bound.json()["reason"]
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert (await low.post("queues/%2F/lowg/get", json=get)).status_code == 200
    assert (await admin.post("bindings/%2F/e/lowx/q/secret", json=order)).status_code == 201
    for path, body in (("get", get), ("move", {"destination": "lowother"})):
        refused = await low.post(f"queues/%2F/lowg/{path}", json=body)
        assert refused.status_code == 401 and said in refused.json()["reason"], (path, refused.text)
    again = await low.put("queues/%2F/lowh", json=group)
    assert again.status_code == 401 and said in again.json()["reason"]
