"""What forms are made of: the arguments that there are, and the policies that would apply."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.broker.declared.argument_table import ARGUMENTS
from amqp_server.broker.declared.exchange_arguments import BINDING_ROWS
from amqp_server.broker.declared.exchange_arguments import ROWS as EXCHANGE_ROWS
from amqp_server.broker.declared.policy import KEYS
from exchanges.registry import EXCHANGE_TYPES

from .conftest import Connect

pytestmark = pytest.mark.trio

#: What a user would enter, by what a field asks for.
KINDS: dict[str, type] = {"boolean": bool, "number": int, "choice": str, "text": str}


async def test_every_argument_has_a_field_for_its_values(connect: Connect) -> None:
    told: dict[str, Any] = (await connect("admin").get("arguments")).json()
    queues = {row["name"]: row for row in told["queues"]}
    assert queues.keys() == ARGUMENTS.keys()
    for name, row in queues.items():
        assert set(row["types"]) == set(ARGUMENTS[name].types)
        example = ARGUMENTS[name].example
        if example is not None:
            assert type(example) is KINDS[row["kind"]], name
        if row["kind"] == "choice":
            assert row["choices"] and example in (None, *row["choices"])
        assert row["text"] and not {"`", "[", "]"} & {*row["text"], *row["values"]}
    assert {row["name"]: set(row["types"]) for row in told["exchanges"]} == {
        row.name: set(row.types) for row in EXCHANGE_ROWS
    }
    assert {row["name"]: set(row["types"]) for row in told["bindings"]} == {
        row.name: set(row.types) for row in BINDING_ROWS
    }
    for kind in ("exchanges", "bindings"):
        assert {each for row in told[kind] for each in row["types"]} <= {*EXCHANGE_TYPES}
    assert {row["name"]: row["operators"] for row in told["policies"]} == {
        name: bool(key.operators) for name, key in KEYS.items()
    }
    kinds = {each for row in told["policies"] for each in row["types"]}
    assert kinds == {*told["apply-to"]["all"]}


async def test_a_queue_takes_what_its_form_offers(connect: Connect) -> None:
    client = connect("admin")
    told: dict[str, Any] = (await client.get("arguments")).json()
    for row in told["queues"]:
        needs = ARGUMENTS[row["name"]].needs
        for kind in sorted({*row["types"]} & {"classic", "quorum"}):
            for value in row["choices"] or [ARGUMENTS[row["name"]].example]:
                arguments = {"x-queue-type": kind, row["name"]: value, **({needs: "a"} if needs else {})}
                if row["name"] == "x-queue-type" or row["name"] == "x-stream-remote":
                    continue
                answer = await client.put("queues/%2F/offered", json={"arguments": arguments})
                assert answer.status_code == 201, (arguments, answer.text)
                assert (await client.delete("queues/%2F/offered")).status_code == 204


async def test_a_binding_takes_what_its_form_offers(connect: Connect) -> None:
    client = connect("admin")
    told: dict[str, Any] = (await client.get("arguments")).json()
    assert (await client.put("queues/%2F/offered", json={})).status_code == 201
    for row in told["bindings"]:
        for kind in {*row["types"]} - {"x-super-stream"}:
            for value in row["choices"] or [0]:
                answer = await client.post(
                    f"bindings/%2F/e/amq.{kind}/q/offered", json={"arguments": {row["name"]: value}}
                )
                assert answer.status_code == 201, (row["name"], value, answer.text)
    wrong = {"arguments": {"x-match": "some"}}
    assert (await client.post("bindings/%2F/e/amq.headers/q/offered", json=wrong)).status_code == 400


async def test_policies_that_would_apply(connect: Connect) -> None:
    client = connect("admin")
    for kind, definition in (
        ("policies", {"max-length": 9, "expires": 5}),
        ("operator-policies", {"max-length": 5}),
    ):
        rule: Any = {"pattern": "^a/", "definition": definition, "apply-to": "quorum_queues"}
        assert (await client.put(f"{kind}/%2F/short {kind}", json=rule)).status_code == 201
    rule = {"pattern": "", "definition": {"alternate-exchange": "b"}, "apply-to": "exchanges", "priority": -1}
    assert (await client.put("policies/%2F/spare", json=rule)).status_code == 201

    async def told(**asked: str) -> Any:
        answer = await client.get("applied-policies/%2F", params=asked)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return found["policy"], found["operator_policy"], found["definition"]

    none: Any = (None, None, {})
    both = ("short policies", "short operator-policies", {"max-length": 5, "expires": 5})
    assert await told(name="a/é ?", type="quorum") == both
    assert await told(name="a/", type="classic") == none == await told(name="b", type="quorum")
    assert await told(name="a/", type="stream-group") == none == await told()
    assert await told(name="a/", type="exchange") == ("spare", None, {"alternate-exchange": "b"})
    # What it says is what a declare then does.
    await client.put("queues/%2F/a%2Fdeclared", json={"arguments": {"x-queue-type": "quorum"}})
    row = (await client.get("queues/%2F/a%2Fdeclared")).json()
    assert (row["policy"], row["operator_policy"], row["effective_policy_definition"]) == both

    answer = await client.get("applied-policies/%2F", params={"type": "odd"})
    assert answer.status_code == 400
    assert "type must be one of classic, quorum, stream, stream-group, exchange" in answer.text
    assert (await client.get("applied-policies/none")).status_code == 404
    assert (await client.put("users/ann", json={"password": "p", "tags": "management"})).status_code == 201
    assert (await connect("ann", "p").get("applied-policies/%2F")).status_code == 401
