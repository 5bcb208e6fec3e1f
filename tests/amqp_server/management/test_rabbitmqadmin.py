"""What rabbitmqadmin (version 2) expects of the management API."""

from __future__ import annotations

import base64
import hashlib

import pytest

from amqp_server.management.parts import ManagedParts

from .conftest import Connect

pytestmark = pytest.mark.trio
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


async def test_a_user_has_all_permissions_in_a_vhost_that_the_user_creates(connect: Connect) -> None:
    client = connect("admin")
    assert (await client.put("vhosts/fresh", json={})).status_code == 201
    assert (await client.get("vhosts/fresh/permissions")).json() == [
        {"user": "admin", "vhost": "fresh"} | ALL
    ]
    # A vhost that exists stays as it is.
    assert (await client.delete("permissions/fresh/admin")).status_code == 204
    assert (await client.put("vhosts/fresh", json={"description": "d"})).status_code == 204
    assert (await client.get("vhosts/fresh/permissions")).json() == []
    assert (await client.put("vhosts/bare?grant=false", json={})).status_code == 201
    assert (await client.get("vhosts/bare/permissions")).json() == []
    assert (await client.put("vhosts/bad?grant=perhaps", json={})).status_code == 400


@pytest.mark.parametrize("digest", ["md5", "sha256", "sha512"])
async def test_the_length_of_a_hash_says_how_it_was_made(
    connect: Connect, parts: ManagedParts, digest: str
) -> None:
    salted = b"salt" + hashlib.new(digest, b"saltsecret").digest()
    body = {"password_hash": base64.b64encode(salted).decode(), "tags": "management"}
    assert (await connect("admin").put("users/ann", json=body)).status_code == 201
    assert parts.broker.access.users.verify("ann", "secret")
    assert not parts.broker.access.users.verify("ann", "other")


async def test_a_hash_of_another_length_is_refused(connect: Connect) -> None:
    body = {"password_hash": base64.b64encode(b"salt" + bytes(20)).decode(), "tags": ""}
    answer = await connect("admin").put("users/ann", json=body)
    assert answer.status_code == 400
    assert "wrong length" in answer.json()["reason"]


async def test_nodes_show_the_version_that_is_announced(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    announced = parts.config.announce_version
    (row,) = (await client.get("nodes")).json()
    assert row["rabbitmq_version"] == announced
    assert (await client.get("version")).json() == announced


async def test_definitions_say_what_they_are_of(connect: Connect, parts: ManagedParts) -> None:
    client = connect("admin")
    whole = (await client.get("definitions")).json()
    cluster = (await client.get("cluster-name")).json()["name"]
    assert (whole["rabbitmq_definition_format"], whole["original_cluster_name"]) == ("cluster", cluster)
    await client.put("vhosts/v", json={"description": "d", "default_queue_type": "quorum"})
    one = (await client.get("definitions/v")).json()
    assert one["rabbitmq_version"] == parts.config.announce_version
    assert (one["rabbitmq_definition_format"], one["original_vhost_name"]) == ("single_virtual_host", "v")
    assert one["metadata"] == {"description": "d", "tags": [], "default_queue_type": "quorum"}
    assert (await client.post("definitions/other", json=one)).status_code == 204


async def test_an_administrator_may_write_a_shovel_back_as_it_is_shown(
    connect: Connect, parts: ManagedParts
) -> None:
    client, path = connect("admin"), "parameters/shovel/%2F/s"
    uris = {"src-uri": "amqps://u:canary@h", "dest-uri": ["amqp://", "amqp://v:other@i:1/x"]}
    value = {"src-queue": "a", "dest-queue": "b"} | uris
    assert (await client.put(path, json={"value": value})).status_code == 201
    shown = (await client.get(path)).json()["value"]
    assert "canary" not in str(shown)
    shown["src-uri"] += "?verify=verify_none"
    answer = await client.put(path, json={"value": shown})
    assert answer.status_code == 204, answer.json()
    stored = parts.broker.runtime.parameters.get("/", "shovel", "s")
    assert stored is not None
    assert stored.decoded["src-uri"] == "amqps://u:canary@h?verify=verify_none"
    assert stored.decoded["dest-uri"] == uris["dest-uri"]
    # The password is not sent elsewhere, and nobody else may use it for something else.
    shown["src-uri"] = "amqps://u:***@elsewhere"
    for user, body in (("admin", shown), ("policies", (await client.get(path)).json()["value"])):
        answer = await connect(user).put(path, json={"value": body})
        assert answer.status_code == 400
        assert "its password is masked" in answer.json()["reason"]
