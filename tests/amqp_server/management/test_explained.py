"""`GET /api/queues/{vhost}/{name}/explain`: settings with their origin, and where decisions are taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from amqp_server.broker.decisions import DECISIONS
from amqp_server.broker.declared.queue_types import GROUP, QUEUE_TYPES

from .conftest import Connect

pytestmark = pytest.mark.trio

ADR = Path(__file__).parents[3] / "docs/adr/0040-one-boundary-for-decisions.md"


async def explained(client: Any, name: str) -> dict[str, Any]:
    answer = await client.get(f"queues/%2F/{name}/explain")
    assert answer.status_code == 200
    told: dict[str, Any] = answer.json()
    return told


async def test_each_setting_has_its_origin(connect: Connect) -> None:
    client = connect("admin")
    arguments = {"x-max-length": 50, "x-message-ttl": 1000, "x-delivery-limit": 5}
    await client.put("queues/%2F/q", json={"arguments": {"x-queue-type": "quorum", **arguments}})
    told = await explained(client, "q")
    assert (told["type"], told["leader"], told["members"], told["asked_node"]) == (
        "quorum",
        "n1",
        ["n1"],
        "n1",
    )
    assert told["copy"] is None
    assert told["settings_in_force"] is True
    before = {each["name"]: each for each in told["settings"]}
    assert before["max-length"] == {"name": "max-length", "value": 50, "origin": "argument", "policy": None}
    assert (before["expires"]["value"], before["expires"]["origin"]) == (None, "default")
    assert (before["overflow"]["value"], before["overflow"]["origin"]) == ("drop-head", "default")
    assert "max-age" not in before
    definition = {"max-length": 20, "expires": 60_000, "message-ttl": 2000}
    await client.put("policies/%2F/small", json={"pattern": "q", "definition": definition})
    await client.put(
        "operator-policies/%2F/smaller", json={"pattern": "q", "definition": {"max-length-bytes": 999}}
    )
    after = {each["name"]: each for each in (await explained(client, "q"))["settings"]}
    assert [after["max-length"][field] for field in ("value", "origin", "policy")] == [20, "policy", "small"]
    # The smaller one applies, which is the argument.
    assert [after["message-ttl"][field] for field in ("value", "origin")] == [1000, "argument"]
    assert after["max-length-bytes"]["origin"] == "operator policy"
    assert (after["expires"]["value"], after["expires"]["policy"]) == (60_000, "small")
    assert after["delivery-limit"] == before["delivery-limit"]


async def test_each_type_has_its_decisions(connect: Connect) -> None:
    client = connect("admin")
    for name in ("classic", "quorum", "stream"):
        await client.put(f"queues/%2F/{name}", json={"arguments": {"x-queue-type": name}})
        told = await explained(client, name)
        wanted = [each for each in DECISIONS if name in each.types]
        assert [each["what"] for each in told["decisions"]] == [each.what for each in wanted]
        # A type decides each thing in one place.
        assert len({each.what for each in wanted}) == len(wanted)
    body = {"arguments": {"x-queue-type": GROUP.name, "x-stream": "stream", "x-delivery-limit": 3}}
    await client.put("queues/%2F/group", json=body)
    settings = {each["name"]: each["value"] for each in (await explained(client, "group"))["settings"]}
    assert settings == {"dead-letter-exchange": None, "dead-letter-routing-key": None, "delivery-limit": 3}


async def test_what_cannot_be_explained(connect: Connect) -> None:
    assert (await connect("admin").get("queues/%2F/nothing/explain")).status_code == 404
    assert (await connect("manager").get("queues/other/q/explain")).status_code == 401


async def test_the_table_of_the_decisions_is_that_of_the_code() -> None:
    short = {name: "group" if each.is_group else name for name, each in QUEUE_TYPES.items()}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", ADR.read_text(), re.MULTILINE)[2:]
    assert rows == [
        (
            each.what,
            "all" if len(each.types) == len(QUEUE_TYPES) else ", ".join(short[name] for name in each.types),
            each.place,
            each.why,
        )
        for each in DECISIONS
    ]
