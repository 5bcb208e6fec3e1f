"""Attacks through actions of an administrator, and through the firehose."""

from __future__ import annotations

import socket
import time
from typing import Any

from pamqp import commands, header

from tests.reliability.client import Client

from ..scene import Scene, Target
from . import frames
from .web import call

#: Seconds for which policies are set and cleared.
SECONDS = 8.0
#: Permissions for everything.
EVERY = {"configure": ".*", "write": ".*", "read": ".*"}
#: Heartbeats that the crowd asks for, s; it sends none itself, and stays for a shorter time.
HEARTBEAT_S = 60
#: How basic.consume-ok begins.
CONSUME_OK = b"\x00\x3c\x00\x15"


def _flood_of_queues(client: Client, count: int) -> None:
    frames.flood(client, [commands.Queue.Declare(queue=f"q{n}", durable=True) for n in range(count)])


def policy_flaps(target: Target) -> None:
    """A policy for 10,000 queues is set, changed and cleared at once, again and again."""
    with target.client() as client:
        _flood_of_queues(client, target.many(10_000))
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    definitions: list[dict[str, Any]] = [
        {"max-length": 10},
        {"max-length": 20, "dead-letter-exchange": "amq.fanout"},
        {"message-ttl": 60_000, "expires": 3_600_000},
    ]
    while time.monotonic() < until:
        for definition in definitions:
            policy = {"pattern": "^q", "definition": definition, "priority": 1}
            assert call(target, "PUT", "/api/policies/%2F/flapping", policy) < 300
        assert call(target, "DELETE", "/api/policies/%2F/flapping") < 300


def many_policies(target: Target) -> None:
    """Policies that match no queue, 10,000 queues, and then policies that each match a tenth of them, one
    after the other.
    """
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    for number in range(target.many(1_000)):
        _policy(target, f"other{number}", f"^other{number}", number)
        if time.monotonic() > until:
            break
    with target.client() as client:
        _flood_of_queues(client, target.many(10_000))
    until = time.monotonic() + SECONDS * max(target.size, 0.25)
    for number in range(target.many(2_000)):
        _policy(target, f"p{number}", f"^q.*{number % 10}$", number)
        if time.monotonic() > until:
            break


def _policy(target: Target, name: str, pattern: str, priority: int) -> None:
    policy = {"pattern": pattern, "definition": {"max-length": priority + 1}, "priority": priority}
    assert call(target, "PUT", f"/api/policies/%2F/{name}", policy) < 300


def _definitions(count: int) -> dict[str, Any]:
    """Definitions with this many objects: a third are queues, a third bindings, and the rest exchanges,
    policies and users.
    """
    each = count // 3
    rest = count // 9
    return {
        "vhosts": [{"name": "/"}],
        "exchanges": [
            {
                "name": f"x{n}",
                "vhost": "/",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "arguments": {},
            }
            for n in range(rest)
        ],
        "queues": [
            {"name": f"d{n}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
            for n in range(each)
        ],
        "bindings": [
            {
                "source": f"x{n % rest}",
                "vhost": "/",
                "destination": f"d{n}",
                "destination_type": "queue",
                "routing_key": f"a.{n}.*",
                "arguments": {"note": "x" * 50},
            }
            for n in range(each)
        ],
        "users": [
            {
                "name": f"u{n}",
                "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
            }
            for n in range(rest)
        ],
        "permissions": [
            {"user": f"u{n}", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
            for n in range(rest)
        ],
    }


def large_definitions(target: Target) -> None:
    """Definitions with 50,000 objects, posted and fetched."""
    told = _definitions(target.many(50_000))
    for _ in range(2):
        assert call(target, "POST", "/api/definitions", told) < 300
    assert call(target, "GET", "/api/definitions") == 200


def nested_definitions(target: Target) -> None:
    """Bodies of the largest size that consist only of brackets, numbers or short names, and are refused."""
    size = target.many(8 << 20)
    bodies = [
        b'{"queues":[' + b"[]," * (size // 3) + b"[]]}",
        b'{"queues":[' + b"1," * (size // 2) + b"1]}",
        b'{"queues":[' + b"{}," * (size // 3) + b"{}]}",
        b"[" * size,
    ]
    for body in bodies:
        for path in ("/api/definitions", "/api/exchanges/%2F/amq.default/publish"):
            code = call(target, "POST", path, body)
            assert 400 <= code < 500, f"status {code}"


def firehose(target: Target) -> None:
    """One read of 20,000 small messages while the firehose is on, and the output for their consumers."""
    with target.client() as client:
        client.declare("copies", durable=False)
        client.declare("traced", durable=False)
        client.call(
            commands.Queue.Bind(queue="copies", exchange="amq.rabbitmq.trace", routing_key="#"),
            commands.Queue.BindOk,
        )
        assert call(target, "PUT", "/api/vhosts/%2F", {"tracing": True}) < 300
        one = frames.message("", "traced", b"x")
        for _ in range(3):
            client.send(one * target.many(20_000))
            client.count("traced")
        client.consume("traced", 0)
        client.sync(target.many(60_000))
        client.call(commands.Queue.Purge(queue="copies"), commands.Queue.PurgeOk)


def _many_queues(target: Target) -> None:
    """Make the vhost `big` with 99,000 queues `qP-N`, P in 0…9."""
    assert call(target, "PUT", "/api/vhosts/big", {}) < 300
    assert call(target, "PUT", "/api/permissions/big/guest", EVERY) < 300
    for part in range(10):
        queues: list[dict[str, Any]] = [
            {"name": f"q{part}-{n}", "vhost": "big", "durable": False, "auto_delete": False, "arguments": {}}
            for n in range(target.many(9_900))
        ]
        code = call(target, "POST", "/api/definitions", {"queues": queues})
        assert code < 300, f"part {part} of the queues: status {code}"


def large_node(target: Target) -> None:
    """100,000 queues are looked at, get a policy and other permissions, and are deleted with their vhost."""
    _many_queues(target)
    policy = {"pattern": "^q", "definition": {"max-length": 10, "message-ttl": 1_000}, "apply-to": "queues"}
    assert call(target, "PUT", "/api/policies/big/all", policy) < 300
    assert call(target, "PUT", "/api/permissions/big/guest", {**EVERY, "read": "^q"}) < 300
    for path in ("/api/overview", "/metrics", "/api/nodes", "/api/queues?page=1&page_size=100"):
        call(target, "GET", path)
    time.sleep(SECONDS * max(target.size, 0.25))
    assert call(target, "DELETE", "/api/vhosts/big") < 300


def _crowd(target: Target, count: int) -> list[socket.socket]:
    """Open connections of several addresses, each with a consumer of a queue of its own."""
    login = [
        header.ProtocolHeader().marshal(),
        frames.method(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0),
        frames.method(commands.Connection.TuneOk(1, 131_072, HEARTBEAT_S), 0),
        frames.method(commands.Connection.Open("big"), 0),
        frames.method(commands.Channel.Open()),
    ]
    members = []
    for number in range(count):
        queue = f"q{number % 10}-{number // 10}"
        member = socket.create_connection(
            ("127.0.0.1", target.node.port), 20, (f"127.0.0.{2 + number % 8}", 0)
        )
        members.append(member)
        member.sendall(b"".join([*login, frames.method(commands.Basic.Consume(queue=queue, no_ack=True))]))
    for member in members:
        said = b""
        while CONSUME_OK not in said:
            part = member.recv(65_536)
            assert part, f"a connection of the crowd was closed: {said[-200:]!r}"
            said += part
    return members


def crowd(target: Target) -> None:
    """17,000 consumers of 100,000 queues are looked at, get a policy, other permissions and a message each,
    and go all at once, twice.
    """
    _many_queues(target)
    for _ in range(2):
        members = _crowd(target, target.many(17_000))
        for definition in ({"max-length": 10}, {"message-ttl": 1_000}):
            policy = {"pattern": "^q", "definition": definition, "apply-to": "queues"}
            assert call(target, "PUT", "/api/policies/big/all", policy) < 300
        assert call(target, "PUT", "/api/permissions/big/guest", {**EVERY, "write": "^q"}) < 300
        assert call(target, "PUT", "/api/permissions/big/guest", EVERY) < 300
        for path in ("/api/overview", "/api/nodes", "/api/connections", "/api/consumers", "/api/channels"):
            status = call(target, "GET", path)
            assert status == 200, f"{path}: status {status}"
        time.sleep(SECONDS * max(target.size, 0.25))
        for member in members:
            member.close()
        time.sleep(1.0)


SCENES = (
    Scene(
        "crowd",
        "17,000 consumers of 100,000 queues watched, changed and dropped at once",
        crowd,
        options=("--declared-bytes-max", "500MiB"),
    ),
    Scene(
        "large-node",
        "100,000 queues watched, changed and deleted at once",
        large_node,
        # Half of the memory limit, the default, is enough for 87,000 such queues.
        options=("--declared-bytes-max", "400MiB"),
    ),
    Scene("policy-flaps", "policy over 10,000 queues set, changed and cleared without a pause", policy_flaps),
    Scene("many-policies", "1,000 policies and 10,000 queues, and more policies over these", many_policies),
    Scene(
        "large-definitions", "definitions with 50,000 objects, posted twice and fetched", large_definitions
    ),
    Scene("nested-definitions", "bodies of 8 MiB that are nothing but brackets", nested_definitions),
    Scene("firehose", "60,000 messages through a queue while the firehose is on", firehose),
)
