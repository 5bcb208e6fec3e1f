"""What an operator sees and changes of running nodes: two of three, the third is down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import httpx
import pytest

from amqp_server.startup.options import Reread
from amqp_server.startup.reload import Reload

from .conftest import Connect, ManagedNode
from .test_everywhere import Two, ask, two

__all__ = ["ask", "two"]
pytestmark = pytest.mark.trio
Ask = Callable[..., httpx.AsyncClient]


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


async def test_alarms_of_all_nodes(two: Two, ask: Ask) -> None:
    two.nodes["n1"].broker.alarms.set_condition("clock", "it was set")
    two.nodes["n2"].broker.alarms.set("memory", True, "9 bytes used, limit 8")
    answer = await ask("n1").get("alarms")
    assert answer.json() == [
        {"node": "n1", "name": "clock", "text": "it was set", "blocks_publishers": False},
        {"node": "n2", "name": "memory", "text": "9 bytes used, limit 8", "blocks_publishers": True},
    ]
    assert answer.headers["x-missing-nodes"] == "n3"
    # RabbitMQ's check has its own alarms only.
    raised = (await ask("n1").get("health/checks/alarms")).json()["alarms"]
    assert raised == [{"node": "n2", "resource": "memory"}]
    assert (await ask("n1", "manager").get("alarms")).status_code == 200
    assert (await ask("n1", "plain").get("alarms")).status_code == 401


async def test_options_of_each_node(two: Two, ask: Ask) -> None:
    client = ask("n1")
    for name in ("n1", "n2"):
        told = (await client.get(f"nodes/{name}/environment")).json()
        options = {row["name"]: row for row in told["options"]}
        assert told["node"] == name and told["running"]
        assert options["node"]["value"] == name
        assert options["heartbeat_s"]["source"] == "default"
        assert options["default_password"]["value"] == "***"
    down = (await client.get("nodes/n3/environment")).json()
    assert down == {"node": "n3", "running": False, "options": []}
    assert (await client.get("nodes/n9/environment")).status_code == 404
    assert (await ask("n1", "watcher").get("nodes/n1/environment")).status_code == 401


async def test_options_are_changed_until_the_next_start(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    assert (await client.put("nodes/n1/log-level", json={"level": "error"})).status_code == 204
    assert logging.getLogger().level == logging.ERROR
    assert (await client.put("nodes/n1/disk-free-limit", json={"limit": "3GiB"})).status_code == 204
    assert node.resources.disk_free_min_bytes == 3 << 30
    assert (await client.put("nodes/n1/memory-limit", json={"limit": "4GiB"})).status_code == 204
    assert node.resources.memory_limit_bytes == 4 << 30
    rows = {row["name"]: row for row in (await client.get("nodes/n1/environment")).json()["options"]}
    for name, value in (("log_level", "error"), ("disk_free_min_bytes", 3 << 30), ("memory_limit", "4GiB")):
        row = rows[name]
        assert (row["value"], row["source"]) == (value, "changed in the running node by user 'admin'")
    for path, body, said in (
        ("log-level", {"level": "loud"}, "it must be debug, info, warning or error"),
        ("disk-free-limit", {"limit": "much"}, "'much' is not allowed"),
        ("disk-free-limit", {"limit": "99999999999999999999"}, "is not allowed"),
    ):
        answer = await client.put(f"nodes/n1/{path}", json=body)
        assert answer.status_code == 400
        assert said in answer.json()["reason"]
    assert node.resources.disk_free_min_bytes == 3 << 30
    assert (await client.put("nodes/n2/log-level", json={"level": "info"})).status_code == 404
    assert (await connect("watcher").put("nodes/n1/log-level", json={"level": "info"})).status_code == 401


async def test_no_password_in_an_address_is_shown(connect: Connect, node: ManagedNode) -> None:
    def read(sources: dict[str, str]) -> object:
        raise NotImplementedError

    reread = Reread(read)  # type: ignore[arg-type]
    reread.sources = {"auth_http_user_path": "file: /etc/mqd.toml"}
    config = node.config.__class__(auth_http_user_path="http://app:s3cret@10.0.0.1/user")
    node.reload = Reload(config, node.resources, node.broker.log_limit, reread)
    rows = (await connect("admin").get("nodes/n1/environment")).json()["options"]
    row = next(row for row in rows if row["name"] == "auth_http_user_path")
    assert (row["value"], row["source"]) == ("http://***@10.0.0.1/user", "file: /etc/mqd.toml")


async def test_a_drained_node_is_not_ready(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    assert (await client.get("health/checks/is-in-service")).status_code == 200
    assert (await client.put("nodes/n1/drain", json={})).status_code == 204
    row = (await client.get("nodes/n1")).json()
    assert (row["being_drained"], row["leaders_left"], row["connections_left"]) == (True, 0, 2)
    for check in ("is-in-service", "ready-to-serve-clients"):
        answer = await client.get(f"health/checks/{check}")
        assert (answer.status_code, "mqctl revive" in answer.json()["reason"]) == (503, True)
    assert (await client.put("nodes/n1/revive", json={})).status_code == 204
    assert (await client.get("health/checks/is-in-service")).status_code == 200
    assert (await client.get("nodes/n1")).json()["being_drained"] is False
    assert (await client.put("nodes/n2/drain", json={})).status_code == 404


async def test_members_of_a_node_without_a_cluster(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={"arguments": {"x-queue-type": "quorum"}})
    await client.put("queues/%2F/c", json={})
    answer = await client.get("cluster/queues/%2F/q/status")
    assert answer.json() == [{"Node Name": "n1", "online": True, "Raft State": "leader"}]
    assert (await client.get("cluster/queues/%2F/c/status")).status_code == 400
    assert (await client.get("cluster/queues/%2F/none/status")).status_code == 404
