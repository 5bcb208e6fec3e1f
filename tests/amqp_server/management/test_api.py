import base64
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
import trio
from pamqp import commands

from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.topology.replication import Done, LocalReplication
from amqp_server.build import BUILD
from amqp_server.config import Config
from amqp_server.management.messages.by_hand import publish_message
from amqp_server.management.parts import ManagedParts
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.resources import queues
from amqp_server.management.resources.bindings import bindings_of
from quorum_queue.ports import Refused

from ..connection.node import Delivery, Peer, exchange_parts
from ..wire.published import message
from .conftest import Connect, ManagedNode, sha256

pytestmark = pytest.mark.trio


async def test_users(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    assert (
        await client.put("users/ann", json={"password": "secret", "tags": "monitoring,custom"})
    ).status_code == 201
    assert (await client.get("users/ann")).json()["tags"] == ["monitoring", "custom"]
    assert (await connect("ann", "secret").get("whoami")).status_code == 200
    assert (await client.put("users/ann", json={"tags": []})).status_code == 204
    assert parts.broker.access.users.verify("ann", "secret")
    assert (await client.put("users/ann", json={"password": "other"})).status_code == 204
    assert not parts.broker.access.users.verify("ann", "secret")
    assert (await client.delete("users/ann")).status_code == 204
    assert (await client.delete("users/ann")).status_code == 404


async def test_last_administrator_stays_unless_forced(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    # guest is an administrator, too.
    assert (await client.delete("users/guest")).status_code == 204
    parts.broker.access.users.put("locked", "", ["administrator"])  # cannot log in, and so does not count
    encoded = parts.broker.access.users.require("admin").password_hash
    for asked in (
        client.delete("users/admin"),
        client.put("users/admin", json={"tags": "management"}),
        client.put("users/admin", json={"password_hash": ""}),
        client.post("users/bulk-delete", json={"users": ["watcher", "admin"]}),
    ):
        answer = await asked
        assert answer.status_code == 400
        assert "user 'admin' is the last administrator" in answer.json()["reason"]
        admin = parts.broker.access.users.require("admin")
        assert (admin.tags, admin.password_hash) == (("administrator",), encoded)
    # A new password, and a second administrator, are permitted.
    assert (
        await client.put("users/admin", json={"password": "new", "tags": "administrator"})
    ).status_code == 204
    client = connect("admin", "new")
    assert (await client.put("users/ann", json={"password": "x", "tags": "administrator"})).status_code == 201
    assert (await client.put("users/ann", json={"tags": ""})).status_code == 204
    assert (await client.delete("users/admin?force=true")).status_code == 204
    assert parts.broker.access.users.get("admin") is None


async def test_two_requests_do_not_delete_the_last_two(connect: Connect, parts: ManagedParts) -> None:
    answers: list[int] = []

    async def delete(user: str) -> None:
        answers.append((await connect(user).delete(f"users/{user}")).status_code)

    for user in ("admin", "guest"):
        assert (await connect(user).get("whoami")).status_code == 200
    async with trio.open_nursery() as nursery:
        for user in ("admin", "guest"):
            nursery.start_soon(delete, user)
    assert sorted(answers) == [204, 400]
    assert [user.name for user in parts.broker.access.users if "administrator" in user.tags] != []


@pytest.mark.parametrize(
    "body",
    [
        {"password": "x", "password_hash": ""},
        {"password": ""},
        {"password": "x" * 2000},
        {"password": "x", "tags": [1]},
        {"password_hash": "?"},
        {"password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_md5"},
    ],
)
async def test_bad_users(connect: Connect, parts: ManagedParts, body: object) -> None:
    answer = await connect("admin").put("users/ann", json=body)
    assert answer.status_code == 400, answer.text
    assert parts.broker.access.users.get("ann") is None


async def test_hash_is_taken_over_but_never_shown(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    encoded = sha256("secret").partition("$")[2]
    assert (
        await client.put("users/ann", json={"password_hash": encoded, "tags": "management"})
    ).status_code == 201
    assert parts.broker.access.users.verify("ann", "secret")
    assert (await client.put("users/none", json={"password_hash": ""})).status_code == 201
    assert not parts.broker.access.users.verify("none", "")
    for path in ("users", "users/ann"):
        assert encoded not in (await client.get(path)).text


async def test_authenticate(connect: Connect) -> None:
    client = connect("admin")
    told = [
        (await client.post(f"users/{user}/authenticate", json={"password": password})).json()["authenticated"]
        for user, password in (("plain", "plain"), ("plain", "wrong"), ("nobody", "x"))
    ]
    assert told == [True, False, False]


def closed(peer: Peer) -> str | None:
    """Return why the broker closed this connection; None if it did not."""
    peer.collect()
    found = [method for _, method in peer.answers() if isinstance(method, commands.Connection.Close)]
    return found[0].reply_text if found else None


async def test_deleted_users_are_thrown_out(connect: Connect, node: ManagedNode, parts: ManagedParts) -> None:
    plain, manager = node.peer(user="plain"), node.peer(user="manager")
    await connect("admin").delete("users/plain")
    assert "user 'plain' is deleted" in (closed(plain) or "")
    assert closed(manager) is None
    assert parts.broker.access.permissions.of_user("plain") == []
    delete = "users/bulk-delete"
    # All of them or none.
    assert (await connect("admin").post(delete, json={"users": ["manager", "x"]})).status_code == 400
    assert parts.broker.access.users.get("manager") is not None
    assert (await connect("admin").post(delete, json={"users": ["manager"]})).status_code == 204
    assert parts.broker.access.users.get("manager") is None


async def test_permissions(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    body = {"configure": "^c", "write": ".*", "read": ""}
    assert (await client.put("permissions/other/plain", json=body)).status_code == 201
    assert (await client.put("permissions/other/plain", json=body)).status_code == 204
    assert (await client.get("permissions/other/plain")).json() == body | {"user": "plain", "vhost": "other"}
    assert len((await client.get("users/plain/permissions")).json()) == 2
    assert [row["user"] for row in (await client.get("vhosts/other/permissions")).json()] == ["plain"]
    assert (await client.put("permissions/other/plain", json=body | {"read": "("})).status_code == 400
    assert (await client.put("permissions/other/plain", json={"read": ""})).status_code == 400
    assert (await client.put("permissions/nope/plain", json=body)).status_code == 400
    assert (await client.put("permissions/other/nobody", json=body)).status_code == 400
    assert (await client.delete("permissions/other/plain")).status_code == 204
    assert (await client.get("permissions/other/plain")).status_code == 404


async def test_vhosts(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    assert (await client.put("vhosts/v", json={"description": "d", "tags": "a,b"})).status_code == 201
    assert (await client.put("vhosts/v", json={})).status_code == 204
    assert (await client.get("vhosts/v")).json()["cluster_state"] == {"n1": "running"}
    assert {row["name"] for row in (await client.get("vhosts")).json()} == {"/", "other", "v"}
    assert {row["name"] for row in (await connect("manager").get("vhosts")).json()} == {"/"}
    assert {row["name"] for row in (await connect("watcher").get("vhosts")).json()} == {"/", "other", "v"}
    assert (await client.delete("vhosts/v")).status_code == 204
    assert (await client.delete("vhosts/v")).status_code == 404


async def test_default_queue_type_of_a_vhost(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    assert (await client.get("vhosts/%2F")).json()["default_queue_type"] == "undefined"
    assert (await client.put("vhosts/v", json={"default_queue_type": "quorum"})).status_code == 201
    assert (await client.put("vhosts/v", json={"description": "d"})).status_code == 204
    shown = (await client.get("vhosts/v")).json()
    assert (shown["default_queue_type"], shown["metadata"]["default_queue_type"]) == ("quorum", "quorum")
    refused = await client.put("vhosts/v", json={"default_queue_type": "abc"})
    assert (refused.status_code, refused.json()["reason"]) == (
        400,
        "default queue type 'abc' is not one of: classic, quorum, stream",
    )
    assert (await client.put("vhosts/v", json={"default_queue_type": "undefined"})).status_code == 204
    assert (await client.get("vhosts/v")).json()["default_queue_type"] == "undefined"


async def test_a_protected_vhost_is_not_deleted(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    guard = "vhosts/v/deletion/protection"
    assert (await client.post(guard)).status_code == 404
    await client.put("vhosts/v", json={})
    assert (await client.get("vhosts/v")).json()["protected_from_deletion"] is False
    for name in ("manager", "watcher"):
        assert (await connect(name).post(guard)).status_code == 401
        assert (await connect(name).delete(guard)).status_code == 401
    assert (await client.post(guard)).status_code == 204
    assert (await client.post(guard)).status_code == 204
    refused = await client.delete("vhosts/v")
    assert (refused.status_code, refused.json()["error"]) == (412, "precondition_failed")
    # Nothing but the protection itself lifts it.
    for body in ({"description": "d"}, {"default_queue_type": "quorum"}, {"tracing": True}):
        assert (await client.put("vhosts/v", json=body)).status_code == 204
        shown = (await client.get("vhosts/v")).json()
        assert (shown["protected_from_deletion"], shown["metadata"]["protected_from_deletion"]) == (
            True,
            True,
        )
    assert (await client.delete("vhosts/v")).status_code == 412
    assert (await client.delete(guard)).status_code == 204
    assert (await client.delete("vhosts/v")).status_code == 204
    assert (await client.put("vhosts/v", json={"protected_from_deletion": True})).status_code == 201
    assert (await client.delete("vhosts/v")).status_code == 412
    # A new one of the same name begins without.
    assert (await client.put("vhosts/v", json={"protected_from_deletion": False})).status_code == 204
    assert (await client.delete("vhosts/v")).status_code == 204
    await client.put("vhosts/v", json={})
    assert (await client.delete("vhosts/v")).status_code == 204


class NoMajority(LocalReplication):
    def propose(self, operation: Operation, done: Done | None = None) -> None:
        assert done is not None
        done(Refused("no majority of the cluster's nodes is reachable"))


async def test_without_a_majority_changes_are_unavailable(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    exchange_parts(node.broker, replication=NoMajority("n1"))
    for path, body in (
        ("vhosts/v", {}),
        ("users/ann", {"password_hash": ""}),
        ("permissions/%2F/plain", {"configure": "", "write": "", "read": ""}),
    ):
        answer = await client.put(path, json=body)
        assert answer.status_code == 503, path
        assert answer.json() == {
            "error": "unavailable",
            "reason": "no majority of the cluster's nodes is reachable",
        }
    assert (await client.get("vhosts")).status_code == 200


async def test_vhosts_of_others_stay_shut(connect: Connect, parts: ManagedParts) -> None:
    await connect("admin").put("queues/other/hidden", json={})
    manager = connect("manager")
    paths = ["vhosts/other", "queues/other", "queues/other/hidden", "exchanges/other", "bindings/other"]
    for path in [*paths, "consumers/other", "vhosts/other/connections", "queues/nope", "vhosts/nope"]:
        answer = await manager.get(path)
        assert answer.status_code == 401, path
    assert "hidden" not in (await manager.get("queues")).text
    assert (await manager.get("overview")).json()["object_totals"]["queues"] == 0
    for path in ("queues/other/hidden", "queues/other/hidden/contents", "exchanges/other/amq.topic"):
        assert (await manager.delete(path)).status_code == 401
        # A user that may look into all vhosts may change none of them.
        assert (await connect("watcher").delete(path)).status_code == 401
    assert "hidden" in parts.broker.vhost("other").queues


async def test_queues(connect: Connect, node: ManagedNode, parts: ManagedParts) -> None:
    client = connect("manager")
    body = {
        "durable": "true",
        "auto_delete": False,
        "arguments": {"x-max-length": 5},
        "vhost": "/",
        "node": "n1",
    }
    assert (await client.put("queues/%2F/q", json=body)).status_code == 201
    assert (await client.put("queues/%2F/q", json=body)).status_code == 204
    answer = await client.put("queues/%2F/q", json={"durable": False})
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith("inequivalent arg 'durable'")
    assert (await client.get("queues/%2F/q")).json()["arguments"] == {"x-max-length": 5}
    await publish_message(parts.broker, "/", "", "q", {}, b"x", "manager")
    assert node.ready("q") == 1
    assert (await client.delete("queues/%2F/q?if-empty=true")).status_code == 400
    assert (await client.delete("queues/%2F/q?if-empty=perhaps")).status_code == 400
    assert (await client.delete("queues/%2F/q/contents")).status_code == 204
    assert node.ready("q") == 0
    assert (await client.delete("queues/%2F/q?if-empty=true")).status_code == 204
    assert (await client.delete("queues/%2F/q")).status_code == 404


Needed = frozenset[tuple[str, str]]


def patterns(needed: Needed) -> list[str]:
    """Return patterns that permit this and nothing else."""
    return [
        "|".join(sorted(f"^{name}$" for kind, name in needed if kind == access)) or "^$"
        for access in ("configure", "write", "read")
    ]


def needs(*permissions: str) -> Needed:
    """`needs("write x")`"""
    return frozenset((access, name) for access, name in map(str.split, permissions))


MESSAGE = {"routing_key": "k", "payload": "", "payload_encoding": "string"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
DEAD_LETTER = {"arguments": {"x-dead-letter-exchange": "x"}}
ALTERNATE = {"type": "topic", "arguments": {"alternate-exchange": "y"}}
CHANGES: list[tuple[str, str, dict[str, Any], Needed]] = [
    ("PUT", "queues/%2F/q", {}, needs("configure q")),
    ("PUT", "queues/%2F/d", DEAD_LETTER, needs("configure d", "read d", "write x")),
    ("PUT", "exchanges/%2F/x", {"type": "topic"}, needs("configure x")),
    ("PUT", "exchanges/%2F/a", ALTERNATE, needs("configure a", "read a", "write y")),
    ("DELETE", "queues/%2F/q/contents", {}, needs("read q")),
    ("POST", "queues/%2F/q/get", GET, needs("read q")),
    ("POST", "queues/%2F/q/move", {"destination": "d"}, needs("read q", "write amq.default")),
    ("POST", "exchanges/%2F/x/publish", MESSAGE, needs("write x")),
    ("POST", "exchanges/%2F/amq.default/publish", MESSAGE, needs("write amq.default")),
    ("POST", "bindings/%2F/e/x/q/q", {}, needs("write q", "read x")),
    ("POST", "bindings/%2F/e/x/e/x", {}, needs("write x", "read x")),
    ("DELETE", "bindings/%2F/e/x/q/q/~", {}, needs("write q", "read x")),
    ("DELETE", "queues/%2F/q", {}, needs("configure q")),
    ("DELETE", "exchanges/%2F/x", {}, needs("configure x")),
]


async def test_permissions_hold_as_over_amqp(connect: Connect, parts: ManagedParts) -> None:
    """Try every change with every permission: the API requires the permission that AMQP requires."""
    await queues.declare(parts.broker, "/", "q", durable=True, auto_delete=False, arguments={})
    await connect("admin").put("exchanges/%2F/x", json={"type": "topic"})
    client = connect("manager")
    for method, path, body, needed in CHANGES:
        for missing in needed:
            parts.broker.access.permissions.set("manager", "/", *patterns(needed - {missing}))
            answer = await client.request(method, path, json=body)
            assert answer.status_code == 401, (method, path, missing, answer.text)
            assert f"'{missing[1]}' in vhost '/' refused for user 'manager'" in answer.json()["reason"]
        parts.broker.access.permissions.set("manager", "/", *patterns(needed))
        answer = await client.request(method, path, json=body)
        assert answer.is_success, (method, path, answer.text)


async def test_exchanges(connect: Connect) -> None:
    client = connect("admin")
    assert (await client.put("exchanges/%2F/x", json={"type": "topic"})).status_code == 201
    assert (await client.put("exchanges/%2F/x", json={"type": "topic"})).status_code == 204
    assert (await client.put("exchanges/%2F/x", json={})).status_code == 400
    assert (await client.get("exchanges/%2F/x")).json()["type"] == "topic"
    assert (await client.get("exchanges/%2F/amq.default")).json()["name"] == ""
    assert (await client.delete("exchanges/%2F/x?if-unused=true")).status_code == 204
    assert (await client.get("exchanges/%2F/x")).status_code == 404


async def test_super_streams(connect: Connect, parts: ManagedParts) -> None:
    client, manager = connect("admin"), connect("manager")
    asked: dict[str, Any] = {"type": "x-super-stream", "arguments": {"x-partitions": 2}}
    # The test's node has no streams: the checks of permissions come before that.
    answer = await client.put("exchanges/%2F/s", json=asked | {"arguments": {"x-partitions": 0}})
    assert answer.status_code == 400 and "invalid arg 'x-partitions'" in answer.json()["reason"]
    parts.broker.access.permissions.set("manager", "/", "^s$", "", "")
    answer = await manager.put("exchanges/%2F/s", json=asked)
    assert answer.status_code == 401 and "queue 's-0'" in answer.json()["reason"]
    assert (await client.get("exchanges/%2F/s")).status_code == 404
    # One super stream that is bound by hand, and one as RabbitMQ's tools make it.
    for name, type_, marks in (
        ("hand", "x-super-stream", {}),
        ("tool", "direct", {"x-super-stream": True}),
    ):
        declared = {"type": type_, "arguments": marks}
        assert (await client.put(f"exchanges/%2F/{name}", json=declared)).status_code == 201
        for number in (1, 0):
            await client.put(f"queues/%2F/{name}-{number}", json={})
            arguments = {"x-stream-partition-order": number}
            bound = {"routing_key": str(number), "arguments": arguments}
            answer = await client.post(f"bindings/%2F/e/{name}/q/{name}-{number}", json=bound)
            assert answer.status_code == 201
        row = (await client.get(f"exchanges/%2F/{name}")).json()
        assert row["partitions"] == [f"{name}-0", f"{name}-1"]
        answer = await client.post(f"exchanges/%2F/{name}/partitions", json={"add": 1})
        assert answer.status_code == 400 and "'x-partitions'" in answer.json()["reason"]
    assert "partitions" not in (await client.get("exchanges/%2F/amq.direct")).json()
    wrong: list[dict[str, Any]] = [{"add": 0}, {"add": "1"}, {}]
    for body in wrong:
        assert (await client.post("exchanges/%2F/hand/partitions", json=body)).status_code == 400
    assert (await client.post("exchanges/%2F/nope/partitions", json={"add": 1})).status_code == 404


async def test_bindings(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    await client.put("exchanges/%2F/x", json={"type": "fanout"})
    keys = []
    bodies = [
        *({"routing_key": key} for key in ("a/b~c", "a+b", "a b")),
        {},
        {"routing_key": "a", "arguments": {"x": [1]}},
    ]
    for body in bodies:
        answer = await client.post("bindings/%2F/e/amq.topic/q/q", json=body)
        assert answer.status_code == 201
        destination, _, key = answer.headers["location"].partition("/")
        assert (destination, answer.content) == ("q", b"")
        keys.append(unquote(key))
    # Unquoted once more, one key would equal another.
    assert keys[:4] == ["a%2Fb%7Ec", "a%2Bb", "a+b", "~"]
    assert keys[4].startswith("a~")
    assert (await client.post("bindings/%2F/e/amq.topic/e/x", json={"routing_key": "#"})).status_code == 201
    assert (await client.post("bindings/%2F/e/nope/q/q", json={})).status_code == 404
    assert (await client.post("bindings/%2F/e/amq.topic/z/q", json={})).status_code == 404
    # One more than declared: the binding of every queue to the default exchange.
    assert len((await client.get("bindings/%2F")).json()) == 7
    assert len((await client.get("queues/%2F/q/bindings")).json()) == 6
    assert len((await client.get("exchanges/%2F/amq.topic/bindings/source")).json()) == 6
    assert len((await client.get("exchanges/%2F/x/bindings/destination")).json()) == 1
    assert [
        row["properties_key"] for row in (await client.get("bindings/%2F/e/amq.topic/q/q")).json()
    ] == keys
    # Not every tool encodes the percent signs of a key.
    assert (await client.get("bindings/%2F/e/amq.topic/q/q/a%20b")).json()["properties_key"] == "a+b"
    paths = [f"bindings/%2F/e/amq.topic/q/q/{quote(key, safe='')}" for key in keys]
    for key, path in zip(keys, paths, strict=True):
        assert (await client.get(path)).json()["properties_key"] == key
    for path in paths:
        assert (await client.delete(path)).status_code == 204
        assert (await client.delete(path)).status_code == 404
    assert [row.destination_type for row in bindings_of(parts.broker, "/")] == ["queue", "exchange"]


async def test_messages(connect: Connect) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    properties = {
        "delivery_mode": 2,
        "headers": {"a": [1, None]},
        "message_id": "m",
        "timestamp": 1_700_000_000,
    }
    body = {"routing_key": "q", "payload": "héllo", "payload_encoding": "string", "properties": properties}
    publish, get = "exchanges/%2F/amq.default/publish", "queues/%2F/q/get"
    assert (await client.post(publish, json=body)).json() == {"routed": True}
    assert (await client.post(publish, json=body | {"routing_key": "nope"})).json() == {"routed": False}
    binary = base64.b64encode(b"\xff\x00").decode()
    await client.post(publish, json={"routing_key": "q", "payload": binary, "payload_encoding": "base64"})
    ask = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    first, second = (await client.post(get, json=ask)).json()
    assert first["payload"] == "héllo"
    assert first["payload_bytes"] == 6
    assert first["payload_encoding"] == "string"
    assert first["properties"] == properties
    assert (second["payload"], second["payload_encoding"]) == (binary, "base64")
    cut = (await client.post(get, json=ask | {"truncate": 1, "count": 1})).json()[0]
    assert (cut["payload"], cut["payload_bytes"]) == ("h", 6)
    assert len((await client.post(get, json=ask | {"ackmode": "ack_requeue_false"})).json()) == 2
    assert (await client.post(get, json=ask)).json() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_encoding": "hex"},
        {"payload_encoding": "base64", "payload": "?"},
        {"routing_key": "x" * 256},
        {"properties": {"colour": "red"}},
        {"properties": {"delivery_mode": "2"}},
        {"properties": {"delivery_mode": True}},
        {"properties": {"priority": 256}},
        {"properties": {"headers": []}},
        {"properties": {"message_id": "x" * 256}},
        {"properties": {"timestamp": -1}},
        {"properties": {"timestamp": 1 << 64}},
        {"properties": {"headers": {"n": 1 << 64}}},
        {"properties": {"headers": {"n": -(1 << 63) - 1}}},
        {"properties": {"user_id": "manager"}},
    ],
)
async def test_bad_messages(connect: Connect, node: ManagedNode, wrong: dict[str, object]) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    body: dict[str, object] = {"routing_key": "q", "payload": "", "payload_encoding": "string"}
    answer = await client.post("exchanges/%2F/amq.default/publish", json=body | wrong)
    assert answer.status_code == 400, answer.text
    assert node.ready("q") == 0


async def test_properties_at_their_limits(connect: Connect) -> None:
    """All properties that AMQP can carry come back unchanged."""
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    headers = {
        "k" * 255: "é",
        "large": (1 << 63) - 1,
        "small": -(1 << 63),
        "float": 1e300,
        "unsigned": (1 << 64) - 1,
    }
    properties = {"headers": headers, "timestamp": (1 << 64) - 1, "message_id": "x" * 255, "priority": 255}
    body = {"routing_key": "q", "payload": "", "payload_encoding": "string", "properties": properties}
    assert (await client.post("exchanges/%2F/amq.default/publish", json=body)).json() == {"routed": True}
    ask = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (got,) = (await client.post("queues/%2F/q/get", json=ask)).json()
    assert got["properties"] == properties


@pytest.mark.parametrize("depth", [200, 900, 100_000])
async def test_deep_arguments_are_the_clients_fault(
    connect: Connect, caplog: pytest.LogCaptureFixture, depth: int
) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    deep = b'{"a": ' * depth + b"1" + b"}" * depth
    message = (
        b'{"routing_key": "q", "payload": "", "payload_encoding": "string", "properties": {"headers": %s}}'
    )
    asked = [
        ("POST", "exchanges/%2F/amq.default/publish", message % deep),
        ("PUT", "queues/%2F/deep", b'{"arguments": %s}' % deep),
        ("PUT", "exchanges/%2F/deep", b'{"type": "topic", "arguments": %s}' % deep),
        ("POST", "bindings/%2F/e/amq.headers/q/q", b'{"arguments": %s}' % deep),
    ]
    for method, path, content in asked:
        # The largest of them do not fit into the largest body that these tests allow.
        answer = await client.request(method, path, content=content)
        assert answer.status_code in (400, 413), path
        if answer.status_code == 400:
            reason = answer.json()["reason"]
            # The largest depth of stored tables, 128, is checked before the largest depth for clients.
            assert "deep (table_depth_max)" in reason or "nested too deeply" in reason
            assert "FRAME_ERROR" not in reason
    assert (await client.put("queues/%2F/q", json={})).status_code == 204
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 1001}, {"truncate": -1}, {"ackmode": "maybe"}])
async def test_bad_gets(connect: Connect, wrong: dict[str, object]) -> None:
    client = connect("admin")
    await client.put("queues/%2F/q", json={})
    body: dict[str, object] = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert (await client.post("queues/%2F/q/get", json=body | wrong)).status_code == 400


async def test_connections(connect: Connect, node: ManagedNode, parts: ManagedParts) -> None:
    await queues.declare(parts.broker, "/", "q", durable=True, auto_delete=False, arguments={})
    one, other = node.peer(user="manager", name="a -> b"), node.peer(user="admin", name="c -> d")
    for peer in (one, other):
        peer.session.client.properties = {"product": "p", "blob": b"\xff"}
        peer.call(1, commands.Channel.Open())
    one.call(1, commands.Basic.Consume(queue="q", consumer_tag="t"))
    manager, watcher, admin = connect("manager"), connect("watcher"), connect("admin")
    assert [row["name"] for row in (await manager.get("connections")).json()] == ["a -> b"]
    assert len((await watcher.get("connections")).json()) == 2
    assert len((await watcher.get("vhosts/%2F/connections")).json()) == 2
    assert len((await watcher.get("connections/username/admin")).json()) == 1
    assert (await watcher.get("connections/a%20-%3E%20b")).json()["user"] == "manager"
    assert (await manager.get("connections/c%20-%3E%20d")).status_code == 404
    assert [row["name"] for row in (await manager.get("channels")).json()] == ["a -> b (1)"]
    assert len((await watcher.get("connections/a%20-%3E%20b/channels")).json()) == 1
    assert (await watcher.get("channels/c%20-%3E%20d%20(1)")).json()["user"] == "admin"
    assert (await manager.get("consumers")).json()[0]["consumer_tag"] == "t"
    assert (await manager.get("consumers/%2F")).json()[0]["queue"]["name"] == "q"
    assert (await watcher.delete("connections/a%20-%3E%20b")).status_code == 401
    assert (await manager.delete("connections/a%20-%3E%20b")).status_code == 204
    assert (await admin.delete("connections/c%20-%3E%20d?reason=enough%0A")).status_code == 204
    assert "Closed via management plugin" in (closed(one) or "")
    assert "enough" in (closed(other) or "")
    third = node.peer(user="manager", name="e -> f")
    assert (await watcher.delete("connections/username/manager")).status_code == 401
    assert closed(third) is None
    assert (await admin.delete("connections/username/manager")).status_code == 204
    assert closed(third) is not None


async def test_what_a_channel_waits_for(connect: Connect, node: ManagedNode, parts: ManagedParts) -> None:
    await queues.declare(parts.broker, "/", "q", durable=True, auto_delete=False, arguments={})
    confirming, transactional = node.peer(name="a -> b"), node.peer(name="c -> d")
    confirming.call(1, commands.Channel.Open(), commands.Confirm.Select())
    body = message(routing_key="q", body=b"x", delivery_mode=b"\x02")
    confirming.send(body.encode(1) * 2)
    watcher = connect("watcher")

    async def unconfirmed() -> int:
        return int((await watcher.get("channels/a%20-%3E%20b%20(1)")).json()["messages_unconfirmed"])

    assert await unconfirmed() == 2
    node.sync()
    assert await unconfirmed() == 0
    transactional.call(1, commands.Channel.Open(), commands.Tx.Select())
    got = transactional.call(1, commands.Basic.Get(queue="q"))[-1][1]
    assert isinstance(got, Delivery) and isinstance(got.method, commands.Basic.GetOk)
    transactional.send(body.encode(1) * 4)
    transactional.call(1, commands.Basic.Ack(got.method.delivery_tag or 0))
    row = (await watcher.get("channels/c%20-%3E%20d%20(1)")).json()
    assert (row["messages_uncommitted"], row["acks_uncommitted"]) == (4, 1)
    assert (await watcher.get("connections/a%20-%3E%20b")).json()["send_oct"] == len(confirming.output)


async def test_a_failed_queue_is_shown_as_crashed(
    connect: Connect, node: ManagedNode, parts: ManagedParts
) -> None:
    client = connect("admin")
    for name in ("q", "other"):
        await queues.declare(parts.broker, "/", name, durable=True, auto_delete=False, arguments={})
    host = node.broker.vhost("/").queues["q"].host
    node.turn.run(node.turn.failed, host, RuntimeError("planted"))
    assert {row["name"]: row["state"] for row in (await client.get("queues")).json()} == {
        "q": "crashed",
        "other": "running",
    }


async def test_node(connect: Connect, node: ManagedNode, parts: ManagedParts) -> None:
    client = connect("admin")
    overview = (await client.get("overview")).json()
    assert overview["object_totals"]["exchanges"] == sum(
        parts.broker.vhost(vhost).router.exchange_count for vhost in ("/", "other")
    )
    assert [(row["protocol"], row["port"]) for row in overview["listeners"]] == [
        ("amqp", 5672),
        ("amqp/ssl", 5671),
    ]
    assert overview["build"] == BUILD
    assert "listeners" not in (await connect("manager").get("overview")).json()
    assert (await client.get("nodes")).json()[0]["name"] == "n1"
    assert (await client.get("nodes/n1")).json()["running"] is True
    mechanisms = (await client.get("nodes/n1")).json()["auth_mechanisms"]
    assert {each["name"]: each["enabled"] for each in mechanisms} == {
        "PLAIN": True,
        "AMQPLAIN": True,
        "EXTERNAL": False,
    }
    assert (await client.get("nodes/n2")).status_code == 404
    assert (await client.get("cluster-name")).json() == {"name": "n1"}
    assert (await client.put("nodes/n1/memory-limit", json={"limit": "0.5"})).status_code == 204
    assert node.resources.memory_limit_bytes == Config(memory_limit="0.5").memory_limit_bytes
    assert (await client.put("nodes/n1/memory-limit", json={"limit": "much"})).status_code == 400
    assert (await client.get("health/checks/alarms")).json() == {"status": "ok"}
    node.broker.alarms.set("memory", True)
    answer = await client.get("health/checks/alarms")
    told = [{"node": "n1", "resource": "memory"}]
    assert (answer.status_code, answer.json()["alarms"]) == (503, told)


async def test_certificates_log_in_where_there_is_tls(connect: Connect, node: ManagedNode) -> None:
    node.broker.config = replace(
        node.broker.config,
        amqps="127.0.0.1:5671",
        tls_cert_file="cert.pem",
        tls_key_file="key.pem",
        tls_ca_file="ca.pem",
        tls_login_from="common_name",
    )
    (mechanism,) = (
        each
        for each in (await connect("admin").get("nodes/n1")).json()["auth_mechanisms"]
        if each["name"] == "EXTERNAL"
    )
    assert mechanism["enabled"]


async def test_stop_comes_after_the_answer(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    assert (await client.post("nodes/n2/stop")).status_code == 404
    assert (await connect("watcher").post("nodes/n1/stop")).status_code == 401
    assert node.stopped == 0
    assert (await client.post("nodes/n1/stop")).status_code == 202
    assert node.stopped == 1


async def test_listing(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    for number in range(25):
        await queues.declare(
            parts.broker, "/", f"q{number:02}", durable=True, auto_delete=False, arguments={}
        )
        for _ in range(number):
            await publish_message(parts.broker, "/", "", f"q{number:02}", {}, b"", "admin")
    rows = (
        await client.get(
            "queues?sort=messages&sort_reverse=true&columns=name,messages,owner_pid_details.name"
        )
    ).json()
    assert rows[0] == {"name": "q24", "messages": 24}
    assert (await client.get("queues?sort=messages")).json()[0]["name"] == "q00"
    page = (await client.get("queues?page=3&page_size=10")).json()
    assert (page["item_count"], page["page_count"], page["total_count"]) == (5, 3, 25)
    assert len((await client.get("queues?name=Q1")).json()) == 10
    assert len((await client.get("queues?name=^q.5$&use_regex=true")).json()) == 2
    for query in ("page=0", "page=x", "page=9", "page=1&page_size=501", "page=²", "name=(&use_regex=true"):
        assert (await client.get(f"queues?{query}")).status_code == 400, query


LONG = "a" * 250 + "!"
HOSTILE = ["(a|aa)+$", "(a+)+$", "(a*)*b", "(.*a){25}$", "((a{1,10}){1,10}){1,9}b", "(?:(?:a?){30}){20}b"]


@pytest.mark.parametrize("pattern", HOSTILE)
async def test_hostile_filter_ends_in_time(connect: Connect, parts: ManagedParts, pattern: str) -> None:
    """A backtracking engine would take years for one name, or its time limit for each name."""
    for number in range(100):
        await queues.declare(
            parts.broker, "/", f"{number}{LONG}", durable=False, auto_delete=False, arguments={}
        )
    started = time.process_time()
    query = {"name": pattern, "use_regex": "true"}
    answer = await connect("admin").get("queues", params=query)
    assert time.process_time() - started < 10
    if answer.status_code == 200:
        assert answer.json() == []
    else:
        assert "longer than" in answer.json()["reason"]


async def test_a_filter_has_a_budget(
    parts: ManagedParts, connect_with: Callable[..., httpx.AsyncClient]
) -> None:
    for number in range(100):
        await queues.declare(
            parts.broker, "/", f"{number}{LONG}", durable=False, auto_delete=False, arguments={}
        )
    client = connect_with(filter_ms=1)
    query = {"name": HOSTILE[-1], "use_regex": "true"}
    answer = await client.get("queues", params=query)
    assert (answer.status_code, answer.json()["reason"]) == (
        400,
        "name: matching took longer than 1 ms (http_filter_ms)",
    )
    patient = connect_with(filter_ms=60_000)
    assert len((await patient.get("queues", params={"name": "^99", "use_regex": "true"})).json()) == 1


@pytest.mark.parametrize("pattern", ["^(?!x)", r"(a)\1", "a{1,5000}", "(?i)(\\pL{1,50}){1,9}!!"])
async def test_filters_that_are_not_linear_or_too_large(connect: Connect, pattern: str) -> None:
    query = {"name": pattern, "use_regex": "true"}
    answer = await connect("admin").get("queues", params=query)
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith("name: ")


LISTS = [
    "queues",
    "queues/%2F",
    "queues?sort=name&sort_reverse=true",
    "queues?name=7&page=1",
    "queues?sort=messages&page=10&page_size=100",
    "queues?sort=message_stats.publish_details.rate&page=1",
    "queues?name=7&use_regex=true&columns=name",
    "bindings",
    "overview",
    "vhosts",
    "consumers",
]


@pytest.mark.parametrize("path", LISTS)
async def test_long_lists_let_others_go_on(
    parts: ManagedParts, connect_with: Callable[..., httpx.AsyncClient], path: str
) -> None:
    """Count how often a bystander gets its turn during a request: with short slices, and with one that is
    long enough.
    """
    await declare_many(parts, 1_000)
    turns: list[int] = []
    for slice_ms in (0.02, 100_000):
        client = connect_with(slices=Slices(slice_ms))
        await client.get("whoami")
        waits: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander, waits)
            await client.get(path)
            nursery.cancel_scope.cancel()
        turns.append(len(waits))
    assert turns[0] > turns[1] + 20, turns


async def test_many_long_lists_at_a_time_are_one_after_the_other(
    parts: ManagedParts, connect_with: Callable[..., httpx.AsyncClient]
) -> None:
    await declare_many(parts, 1_000)
    client = connect_with(slices=Slices(1))
    waits: list[float] = []
    # The collector would look at the objects of all earlier tests.
    gc.collect()
    gc.disable()
    began = time.thread_time()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander, waits)
            async with trio.open_nursery() as asking:
                for _ in range(30):
                    asking.start_soon(client.get, "queues?sort=messages")
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()
    whole = time.thread_time() - began
    assert len(waits) > 100
    assert max(waits) < whole / 4


async def declare_many(parts: ManagedParts, count: int) -> None:
    for number in range(count):
        await queues.declare(
            parts.broker, "/", f"many-{number}", durable=False, auto_delete=False, arguments={}
        )


async def bystander(waits: list[float]) -> None:
    while True:
        began = time.thread_time()
        await trio.lowlevel.checkpoint()
        waits.append(time.thread_time() - began)


async def test_a_list_is_whole_though_it_comes_in_parts(connect: Connect, parts: ManagedParts) -> None:
    await declare_many(parts, 1_000)
    client = connect("admin")
    names = [f"many-{number}" for number in range(1_000)]
    assert [row["name"] for row in (await client.get("queues")).json()] == names
    found = (await client.get("queues?sort=name&columns=name")).json()
    assert [row["name"] for row in found] == sorted(names)
    found = (await client.get("queues?sort=name&sort_reverse=true&page=2&page_size=300&columns=name")).json()
    assert [row["name"] for row in found["items"]] == sorted(names, reverse=True)[300:600]
    assert (found["total_count"], found["item_count"], found["page_count"]) == (1_000, 300, 4)
    assert (await client.get("queues?name=nosuch")).json() == []


async def test_queues_may_go_while_they_are_listed(connect: Connect, parts: ManagedParts) -> None:
    await declare_many(parts, 500)
    listed = queues.queues_of(parts.broker, ["/"])
    first = next(listed).name
    await connect("admin").delete("queues/%2F/many-1")
    await queues.declare(parts.broker, "/", "many-2", durable=False, auto_delete=False, arguments={})
    await queues.declare(parts.broker, "/", "new", durable=False, auto_delete=False, arguments={})
    names = [first, *(queue.name for queue in listed)]
    assert names == ["many-0", *(f"many-{number}" for number in range(2, 500))]


# -- long steps ----------------------------------------------------------------------------------------------


async def longest_step_s(client: httpx.AsyncClient, path: str) -> tuple[float, float]:
    """Return the longest step of a request, and all of its steps, in CPU time of the thread."""
    steps: list[float] = []

    async def bystander() -> None:
        while True:
            began = time.thread_time()
            await trio.lowlevel.checkpoint()
            steps.append(time.thread_time() - began)

    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander)
            answer = await client.get(path)
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()
    assert answer.status_code == 200
    return max(steps), sum(steps)


async def test_a_queue_with_many_consumers_is_listed_in_short_steps(
    node: ManagedNode, connect_with: Callable[..., httpx.AsyncClient]
) -> None:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="q"))
    peer.call(1, *(commands.Basic.Consume(queue="q", consumer_tag=f"{number}") for number in range(10_000)))
    client = connect_with(slices=Slices(0.5))
    await client.get("whoami")
    # Noise only adds time.
    found = [await longest_step_s(client, "consumers?columns=consumer_tag") for _ in range(3)]
    assert min(longest / whole for longest, whole in found) < 0.04, found


async def test_hashing_algorithms_are_told(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    for name, digest, size in (("md5", "md5", 16), ("sha256", "sha256", 32), ("sha512", "sha512", 64)):
        algorithm = f"rabbit_password_hashing_{digest}"
        told = {"password_hash": base64.b64encode(bytes(4 + size)).decode(), "hashing_algorithm": algorithm}
        assert (await client.put(f"users/{name}", json=told | {"tags": ""})).status_code == 201
        assert (await client.get(f"users/{name}")).json()["hashing_algorithm"] == algorithm
    await client.put("users/own", json={"password": "x", "tags": ""})
    assert (await client.get("users/own")).json()["hashing_algorithm"] == "argon2id"
    await client.put("users/none", json={"password_hash": "", "tags": ""})
    assert (await client.get("users/none")).json()["hashing_algorithm"] == ""


async def test_an_impersonator_publishes_for_others(connect: Connect, parts: ManagedParts) -> None:
    admin = connect("admin")
    await admin.put("queues/%2F/claimed", json={})
    told: dict[str, Any] = {"routing_key": "claimed", "payload": "x", "payload_encoding": "string"}
    told |= {"properties": {"user_id": "somebody"}}
    client = connect("manager")
    refused = await client.post("exchanges/%2F/amq.default/publish", json=told)
    assert refused.status_code == 400
    parts.broker.access.users.put(
        "manager", parts.broker.access.users.require("manager").password_hash, ["management", "impersonator"]
    )
    answer = await client.post("exchanges/%2F/amq.default/publish", json=told)
    assert answer.json() == {"routed": True}


async def test_a_vhost_without_tags(connect: Connect) -> None:
    client = connect("admin")
    assert (await client.put("vhosts/bare", json={"tags": None, "description": None})).status_code == 201
    row = (await client.get("vhosts/bare")).json()
    assert (row["tags"], row["description"]) == ([], "")
    assert row["metadata"]["tags"] == []
    told = {"vhosts": [{"name": "barer", "tags": None, "metadata": {"tags": None, "description": None}}]}
    assert (await client.post("definitions", json=told)).status_code == 204
    assert (await client.get("vhosts/barer")).json()["tags"] == []


async def test_the_version_is_the_announced_one(connect: Connect, node: ManagedNode) -> None:
    node.broker.config = replace(node.broker.config, announce_version="3.13.7")
    told = (await connect("admin").get("overview")).json()
    assert told["rabbitmq_version"] == "3.13.7"
