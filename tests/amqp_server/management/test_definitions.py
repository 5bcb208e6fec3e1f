"""Definitions: export, import, and parts that mqd has no counterpart for."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp_server.broker.access.password import from_rabbitmq, hash_password, to_rabbitmq
from amqp_server.connection.login.password_checks import PasswordChecks
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.definitions.for_rabbitmq import ForRabbitMQ
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.statistics.metric_values import Measures
from amqp_server.startup.load_definitions import DefinitionsError, load_definitions

from .conftest import Connect, ManagedNode

pytestmark = pytest.mark.trio

SOME_EXCHANGES = {"hash": "x-consistent-hash", "sup": "x-super-stream", "topic": "topic"}
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def rabbitmq(password: str, digest: str) -> str:
    return base64.b64encode(b"salt" + hashlib.new(digest, b"salt" + password.encode()).digest()).decode()


def queue(name: str, vhost: str = "/", **arguments: Any) -> dict[str, Any]:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": named}


async def test_export_import_export(connect: Connect, node: ManagedNode, tmp_path: Path) -> None:
    client = connect("admin")
    # That user does not exist.
    node.broker.access.permissions.clear_user("other")
    for path, body in (
        (
            "vhosts/v",
            {
                "description": "d",
                "tags": "a,b",
                "default_queue_type": "quorum",
                "protected_from_deletion": True,
            },
        ),
        ("users/ann", {"password": "secret", "tags": "monitoring"}),
        (
            "users/bob",
            {
                "password_hash": rabbitmq("bob", "sha512"),
                "hashing_algorithm": "rabbit_password_hashing_sha512",
            },
        ),
        ("users/nobody", {"password_hash": ""}),
        ("permissions/v/ann", ALL),
        ("topic-permissions/v/ann", {"exchange": "amq.topic", "write": "^a", "read": ""}),
        ("user-limits/ann/max-channels", {"value": 9}),
        ("vhost-limits/v/max-queues", {"value": 99}),
        ("global-parameters/cluster_name", {"value": "mine"}),
        ("exchanges/v/x", {"type": "headers", "arguments": {"alternate-exchange": "amq.topic"}}),
        ("exchanges/v/y", {"type": "fanout", "durable": False, "auto_delete": True, "internal": True}),
        ("queues/v/by-default", {}),
        ("queues/v/classic", {"arguments": {"x-queue-type": "classic", "x-max-priority": 3}}),
        ("queues/%2F/plain", {"durable": False}),
        (
            "policies/v/p",
            {"pattern": "^b", "definition": {"max-length": 3}, "priority": 2, "apply-to": "queues"},
        ),
        ("operator-policies/v/o", {"pattern": "^b", "definition": {"expires": 9_000_000}}),
    ):
        answer = await client.put(path, json=body)
        assert answer.status_code in (201, 204), (path, answer.text)
    for path, body in (
        ("bindings/v/e/x/q/classic", {"arguments": {"x-match": "any", "n": 1}}),
        ("bindings/v/e/x/e/y", {"routing_key": "k"}),
    ):
        assert (await client.post(path, json=body)).status_code == 201
    before = (await client.get("definitions")).json()
    types = {row["name"]: row["arguments"].get("x-queue-type") for row in before["queues"]}
    # The export has the type that a vhost's default gave to a queue, for brokers with another default.
    assert types == {"by-default": "quorum", "classic": "classic", "plain": None}
    assert {row["name"] for row in before["users"]} >= {"ann", "bob", "nobody"}

    (tmp_path / "other").mkdir()
    other = ManagedNode(tmp_path / "other")
    other.broker.access.permissions.clear_user("other")
    managed = other.parts
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(before))
    await load_definitions(managed, str(file))
    # A second import changes nothing.
    await load_definitions(managed, str(file))
    for user, password in (("ann", "secret"), ("bob", "bob")):
        assert other.broker.access.users.verify(user, password)
    assert not other.broker.access.users.verify("nobody", "")
    assert other.broker.vhost("v").queues["by-default"].type.name == "quorum"
    assert other.broker.vhost("v").queues["by-default"].settings.max_length == 3

    import httpx

    from amqp_server.management.serving.http import Api

    transport = httpx.ASGITransport(Api(managed, 1 << 20).app(8), client=("127.0.0.1", 1))
    auth = httpx.BasicAuth("admin", "admin")
    async with httpx.AsyncClient(transport=transport, base_url="http://broker/api/", auth=auth) as again:
        after = (await again.get("definitions")).json()
    for told in (before, after):
        for section in ("queues", "exchanges", "bindings"):
            # The node declares several at a time, so their order may differ.
            told[section].sort(key=json.dumps)
    assert after == before


async def test_for_rabbitmq_what_it_cannot_read_is_left_out_and_named(
    connect: Connect, node: ManagedNode
) -> None:
    client = connect("admin")
    sha = {"password_hash": rabbitmq("b", "sha256"), "hashing_algorithm": "rabbit_password_hashing_sha256"}
    for path, body in (
        ("users/ann", {"password": "secret", "tags": ""}),
        ("users/bob", {**sha, "tags": ""}),
        ("permissions/%2F/ann", ALL),
        ("permissions/%2F/bob", ALL),
        ("topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^a", "read": ""}),
        ("queues/%2F/q", {"durable": True}),
        ("policies/%2F/both", {"pattern": "^q", "definition": {"max-length": 9, "deduplication": True}}),
        ("policies/%2F/own", {"pattern": "^r", "definition": {"deduplication": True}}),
    ):
        answer = await client.put(path, json=body)
        assert answer.status_code in (201, 204), (path, answer.text)
    whole = (await client.get("definitions")).json()
    found = (await client.get("definitions", params={"for-rabbitmq": "true"})).json()
    assert "left_out" not in whole
    left_out = {(each["type"], each["name"]): each["reason"] for each in found.pop("left_out")}
    own = {user["name"] for user in whole["users"] if user["hashing_algorithm"] == "argon2id"}
    assert "ann" in own
    assert left_out.keys() == {
        *(("user", name) for name in own),
        ("policy", "both"),
        ("policy", "own"),
    }
    assert left_out["user", "ann"] == "RabbitMQ cannot read its password hash (Argon2id)"
    left = {user["name"] for user in whole["users"]} - own
    assert {user["name"] for user in found["users"]} == left >= {"bob"}
    assert {each["user"] for each in found["permissions"]} <= left and not found["topic_permissions"]
    assert {each["name"]: each["definition"] for each in found["policies"]} == {"both": {"max-length": 9}}
    assert [each["name"] for each in found["queues"]] == ["q"]


async def test_for_rabbitmq_groups_and_super_streams_go_with_their_bindings() -> None:
    out = ForRabbitMQ()
    rows = [queue("q"), queue("s", queue_type="stream"), queue("g", queue_type="stream-group")]
    assert [row["name"] for row in rows if out.queue(row)] == ["q", "s"]
    exchanges = [{"name": name, "vhost": "/", "type": kind} for name, kind in SOME_EXCHANGES.items()]
    assert [row["name"] for row in exchanges if out.exchange(row)] == ["hash", "topic"]
    bindings = [
        {"vhost": vhost, "source": source, "destination_type": kind, "destination": destination}
        for vhost, source, kind, destination in (
            ("/", "sup", "queue", "s"),
            ("/", "topic", "exchange", "sup"),
            ("/", "topic", "queue", "g"),
            ("/", "topic", "queue", "sup"),
            ("/", "topic", "exchange", "g"),
            ("v", "sup", "queue", "g"),
        )
    ]
    assert [out.binding(row) is not None for row in bindings] == [False] * 3 + [True] * 3
    assert [each["name"] for each in out.left_out] == ["g", "sup"]


async def test_the_id_of_a_cluster_goes_with_definitions(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    path = "global-parameters/internal_cluster_id"
    own = (await client.get(path)).json()
    assert own == {"name": "internal_cluster_id", "value": f"rabbitmq-cluster-id-{node.environment.node_id}"}
    # The export leaves out what the node sets by itself.
    assert (await client.get("definitions")).json()["global_parameters"] == []
    brought = {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-other"}
    assert (await client.post("definitions", json={"global_parameters": [brought]})).status_code == 204
    assert (await client.get(path)).json() == brought
    assert brought in (await client.get("global-parameters")).json()
    assert Measures(node.parts).cluster_id() == brought["value"]
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).json() == own
    assert (await client.delete(path)).status_code == 404


async def test_a_password_gets_a_hash_of_our_own_at_the_next_login(
    connect: Connect, node: ManagedNode
) -> None:
    users = node.broker.access.users
    checks = PasswordChecks(users, node.broker.config, node.broker.replace_hash)
    for digest in ("sha256", "sha512", "md5"):
        told = {
            "name": digest,
            "password_hash": rabbitmq("secret", digest),
            "hashing_algorithm": f"rabbit_password_hashing_{digest}",
            "tags": "management",
        }
        assert (await connect("admin").post("definitions", json={"users": [told]})).status_code == 204
        assert users.require(digest).password_hash.startswith(f"{digest}$")
        assert (await checks.check("peer", digest, "wrong")).value == "refused"
        assert users.require(digest).password_hash.startswith(f"{digest}$")
        assert (await checks.check("peer", digest, "secret")).value == "accepted"
        assert users.require(digest).password_hash.startswith("$argon2id$")
        assert users.require(digest).tags == ("management",)
        # The password is remembered without another check.
        assert users.recall(digest, "secret")
        assert users.verify(digest, "secret")
        assert not users.verify(digest, "wrong")


async def test_a_hash_that_was_changed_meanwhile_stays(node: ManagedNode) -> None:
    before = node.broker.access.users.require("guest").password_hash
    node.broker.access.users.put("guest", "other", ["administrator"])
    node.broker.replace_hash("guest", before, "new")
    assert node.broker.access.users.require("guest").password_hash == "other"


async def test_hashes_go_there_and_back() -> None:
    for encoded in (hash_password("x"), f"sha256${rabbitmq('x', 'sha256')}", f"md5${rabbitmq('x', 'md5')}"):
        algorithm, told = to_rabbitmq(encoded)
        assert from_rabbitmq(algorithm, told) == encoded
    for told in ("$argon2id$", "$argon2id$v=19$m=99999999,t=3,p=1$c2FsdHNhbHQ$" + "a" * 43, "x"):
        with pytest.raises(ValueError):
            from_rabbitmq("argon2id", told)


@pytest.mark.parametrize(
    ("told", "digest"),
    [
        ({"rabbitmq_version": "3.5.7"}, "md5"),
        ({"rabbit_version": "3.5.7"}, "md5"),
        ({"rabbitmq_version": "3.10.8"}, "sha256"),
        ({"rabbitmq_version": "0.2.0", "product_name": "mqd"}, "sha256"),
        ({}, "sha256"),
    ],
)
async def test_old_definitions_do_not_name_the_algorithm(
    connect: Connect, node: ManagedNode, told: dict[str, Any], digest: str
) -> None:
    users = [{"name": "old", "password_hash": rabbitmq("secret", digest), "tags": ""}]
    assert (await connect("admin").post("definitions", json=told | {"users": users})).status_code == 204
    assert node.broker.access.users.verify("old", "secret")


async def test_what_has_no_counterpart_is_told(connect: Connect, node: ManagedNode) -> None:
    client = connect("admin")
    told = {
        "users": [{"name": "odd", "password_hash": "x", "hashing_algorithm": "own", "tags": ""}],
        "vhosts": [{"name": "v2", "metadata": {"default_queue_type": "odd"}}],
        "parameters": [
            {"component": "federation-upstream", "name": "f", "vhost": "/", "value": {}},
            {
                "component": "shovel",
                "name": "s",
                "vhost": "/",
                "value": {"src-uri": "amqp://", "src-queue": "q"},
            },
            {
                "component": "operator_policy",
                "name": "o",
                "vhost": "/",
                "value": {"pattern": "x", "definition": {"max-length": 1, "dead-letter-exchange": "d"}},
            },
        ],
        "policies": [
            {"vhost": "/", "name": "ha", "pattern": "x", "definition": {"ha-mode": "all"}},
            {"vhost": "/", "name": "both", "pattern": "x", "definition": {"ha-mode": "all", "max-length": 1}},
        ],
        "exchanges": [
            {"vhost": "/", "name": "late", "type": "x-recent-history", "durable": True, "auto_delete": False}
        ],
        "queues": [queue("odd", queue_type="odd"), queue("good")],
        "bindings": [
            {
                "vhost": "/",
                "source": "late",
                "destination": "good",
                "destination_type": "queue",
                "routing_key": "",
            }
        ],
        "odd": [{"a": 1}],
    }
    answer = await client.post("definitions", json=told)
    assert answer.status_code == 200
    skipped = {(row["section"], row["vhost"], row["name"]): row["reason"] for row in answer.json()["skipped"]}
    assert skipped == {
        ("odd", "", ""): "unknown here",
        ("users", "", "odd"): "hashing algorithm own is not supported",
        ("vhosts", "", "v2"): "default queue type odd is not supported",
        ("parameters", "/", "f"): "component federation-upstream does not exist in mqd",
        ("parameters", "/", "s"): 'Key "dest-uri" not found in s',
        ("parameters", "/", "o"): "dead-letter-exchange is not for operator policies",
        ("policies", "/", "ha"): "ha-mode does not exist in mqd",
        ("policies", "/", "both"): "ha-mode does not exist in mqd",
        ("exchanges", "/", "late"): "exchange type x-recent-history is not supported",
        ("queues", "/", "odd"): "queue type odd is not supported",
        ("bindings", "/", "late"): "there is no exchange 'late'",
    }
    assert set(node.broker.vhost("/").queues) == {"good"}
    assert [record.name for record in node.broker.runtime.parameters] == ["o", "both"]
    answer = await client.post("definitions/other", json={"queues": [queue("q")], "users": [{"name": "x"}]})
    assert answer.json() == {
        "skipped": [
            {
                "section": "users",
                "vhost": "",
                "name": "",
                "reason": "not a part of definitions of one virtual host",
            }
        ]
    }
    assert "q" in node.broker.vhost("other").queues


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([], "failed_to_parse_json"),
        ({"queues": {}}, None),
        ({"queues": [1]}, "queues must be a list of objects"),
        ({"queues": {"a": 1}}, "queues must be a list of objects"),
        (
            {"queues": [queue("q", "nowhere")]},
            "queues: 'q' in vhost 'nowhere': Virtual host 'nowhere' does not exist",
        ),
        ({"queues": [queue("q", max_length=-1)]}, "queues: 'q' in vhost '/': invalid arg 'x-max-length'"),
        ({"queues": [{"vhost": "/", "durable": True}]}, "name is missing"),
        ({"queues": [queue("q") | {"durable": "maybe"}]}, "durable must be true or false"),
        ({"permissions": [{"user": "no", "vhost": "/"} | ALL]}, 'User "no" does not exist'),
        ({"permissions": [{"user": "plain", "vhost": "/"} | ALL | {"read": "("}]}, "regular expression"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "("}]}, "policies: 'p' in vhost '/'"),
        (
            {"policies": [{"vhost": "/", "name": "p", "pattern": "x", "definition": {"max-length": -1}}]},
            "-1 is not a valid maximum length",
        ),
        ({"users": [{"name": "x", "password_hash": "?", "tags": ""}]}, "password_hash is not base64"),
        ({"users": [{"name": "x", "tags": "", "limits": {"no": 1}}]}, "Unrecognised terms"),
    ],
)
async def test_what_is_wrong_is_named(connect: Connect, told: Any, reason: str | None) -> None:
    answer = await connect("admin").post("definitions", json=told)
    if reason is None:
        assert answer.status_code == 204
    else:
        assert answer.status_code == 400
        assert reason in answer.json()["reason"]


async def test_the_last_administrator_stays(connect: Connect, node: ManagedNode) -> None:
    for user in ("guest",):
        node.broker.access.users.delete(user)
    answer = await connect("admin").post(
        "definitions", json={"users": [{"name": "admin", "password_hash": "", "tags": ""}]}
    )
    assert answer.status_code == 400
    assert "is the last administrator" in answer.json()["reason"]


async def test_others_go_on_meanwhile(connect_with: Any, node: ManagedNode) -> None:
    """Each slice ends after a few steps: another request is answered long before the import is over."""
    client = connect_with(slices=Slices(0))
    told = {"queues": [queue(f"q{number}") for number in range(500)]}
    asked: list[int] = []

    async def ask() -> None:
        while not asked or asked[-1] < 500:
            asked.append(len(node.broker.vhost("/").queues))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        assert (await client.post("definitions", json=told)).status_code == 204
    assert max(after - before for before, after in zip(asked, asked[1:], strict=False)) <= 40
    assert len(set(asked)) > 20


async def test_no_turn_has_time(connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is overdue as soon as it begins: it takes one step all the same."""
    seconds = itertools.count()
    monkeypatch.setattr(node.broker.turn, "now", lambda: float(next(seconds)))
    monkeypatch.setattr(node.broker.turn, "_lasts_s", 0.5)
    names = [f"q{number}" for number in range(50)]
    answer = await connect("admin").post("definitions", json={"queues": [queue(name) for name in names]})
    assert answer.status_code == 204
    assert sorted(node.broker.vhost("/").queues) == sorted(names)


async def test_more_vhosts_than_connections(
    connect: Connect, node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_server.management.changes.parallel_sessions.AT_ONCE", 2)
    vhosts = [f"v{number}" for number in range(5)]
    opened: list[Direct] = []
    open_, close = Direct.open, Direct.close
    most = 0

    def counted(self: Direct, hears: Callable[[Direct], None]) -> None:
        nonlocal most
        opened.append(self)
        most = max(most, len(opened))
        open_(self, hears)

    def closed(self: Direct) -> None:
        opened.remove(self)
        close(self)

    monkeypatch.setattr(Direct, "open", counted)
    monkeypatch.setattr(Direct, "close", closed)
    told = {
        "vhosts": [{"name": vhost} for vhost in vhosts],
        "queues": [queue(f"q{number}", vhost) for number in range(3) for vhost in vhosts],
    }
    assert (await connect("admin").post("definitions", json=told)).status_code == 204
    for vhost in vhosts:
        assert sorted(node.broker.vhost(vhost).queues) == ["q0", "q1", "q2"]
    assert most == 2 and not opened


async def test_nothing_is_declared_behind_what_is_refused(connect: Connect, node: ManagedNode) -> None:
    told = {"queues": [queue("a"), queue("b", max_length="many"), *(queue(f"c{n}") for n in range(50))]}
    answer = await connect("admin").post("definitions", json=told)
    assert answer.status_code == 400
    assert "'b' in vhost '/'" in answer.json()["reason"]
    assert "a" in node.broker.vhost("/").queues
    # Other requests of the same turn were sent before the refusal was known.
    assert "c49" not in node.broker.vhost("/").queues


async def test_files_that_are_none(node: ManagedNode, tmp_path: Path) -> None:
    managed = node.parts
    with pytest.raises(DefinitionsError, match="No such file"):
        await load_definitions(managed, str(tmp_path / "no"))
    for text, reason in (("{", "failed_to_parse_json"), ('{"queues": 1}', "must be a list")):
        file = tmp_path / "definitions.json"
        file.write_text(text)
        with pytest.raises(DefinitionsError, match=reason):
            await load_definitions(managed, str(file))


async def test_reserved_names_are_listed(connect: Connect, node: ManagedNode) -> None:
    exchange = {"vhost": "/", "name": "amq.mine", "type": "topic", "arguments": {}}
    told = {
        "exchanges": [exchange, exchange | {"name": "amq.topic"}, exchange | {"name": "amq.rabbitmq.log"}],
        "queues": [queue("amq.gen-1"), queue("kept")],
        "bindings": [],
    }
    answer = await connect("admin").post("definitions", json=told)
    assert answer.status_code == 200
    skipped = [(each["section"], each["name"], each["reason"]) for each in answer.json()["skipped"]]
    reason = "names that begin with amq. are reserved"
    assert skipped == [("exchanges", "amq.mine", reason), ("queues", "amq.gen-1", reason)]
    assert "kept" in node.broker.vhost("/").queues


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "the text ends too early"),
        ('{"queues": [],}', "line 1, column 15"),
        ('{\n "queues": [{"name": "a" "vhost": "/"}]}', "line 2, column 26"),
        ('{"queues": [\n\n  nonsense]}', "line 3, column 3"),
        ('{"queues": []} more', "line 1, column 16"),
        (b'{"a": "\xff"}', "no UTF-8 at byte 7"),
    ],
)
async def test_the_place_of_an_error_is_told(connect: Connect, text: str | bytes, place: str) -> None:
    answer = await connect("admin").post("definitions", content=text)
    assert (answer.status_code, answer.json()["reason"]) == (400, f"failed_to_parse_json: {place}")
