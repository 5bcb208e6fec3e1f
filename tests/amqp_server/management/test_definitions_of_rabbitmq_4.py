"""A file that RabbitMQ 4.3.6 has exported, with everything that it has: users, limits, virtual hosts of each
kind, policies with all keys, arguments, exchanges and shovels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqp_server.testing import Broker, start

FILE = Path(__file__).with_name("rabbitmq-4.3.6.definitions.json")
TOLD: dict[str, Any] = json.loads(FILE.read_text())
SECTIONS = [section for section, rows in TOLD.items() if isinstance(rows, list)]
#: Section, name and first line of the reason.
SKIPPED = [
    ("policies", "fed", "federation-upstream-set does not exist in mqd"),
    ("policies", "shard", "routing-key does not exist in mqd"),
    ("policies", "shard", "shards-per-node does not exist in mqd"),
    ("parameters", "up", "component federation-upstream does not exist in mqd"),
    ("parameters", "sh3", "Must specify 'src-exchange' or 'src-queue'"),
    # RabbitMQ 4 leaves internal exchanges out, but not their bindings.
    ("bindings", "x1", "there is no exchange 'xint'"),
    ("bindings", "xint", "there is no exchange 'xint'"),
]
#: Fields that follow from others, or stand in the parameters as well.
DERIVED = {("queues", "type"), ("vhosts", "limits")}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start(password_hashing="rabbitmq") as started:
        yield started


@pytest.fixture(scope="module")
def skipped(broker: Broker) -> list[dict[str, str]]:
    answer = broker.api("POST", "/api/definitions", TOLD)
    rows: list[dict[str, str]] = answer["skipped"]
    return rows


def test_what_is_skipped(skipped: list[dict[str, str]]) -> None:
    found = [(row["section"], row["name"], row["reason"].partition("\n")[0]) for row in skipped]
    assert sorted(found) == sorted(SKIPPED)


def identity(section: str, row: dict[str, Any]) -> tuple[object, ...]:
    fields = (
        "vhost",
        "user",
        "name",
        "component",
        "source",
        "destination",
        "destination_type",
        "routing_key",
    )
    return (section, *(row.get(field) for field in fields))


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("query", ["", "?for-rabbitmq=true"])
def test_the_rest_is_exported_as_it_was(
    broker: Broker, skipped: list[dict[str, str]], section: str, query: str
) -> None:
    told = broker.api("GET", f"/api/definitions{query}")
    assert told.get("left_out", []) == []
    here = {identity(section, row): row for row in told[section]}
    without = {(row["section"], row["name"], row["vhost"]) for row in skipped}
    compared = 0
    for row in TOLD[section]:
        mine = here.get(identity(section, row))
        if mine is None:
            assert (section, row.get("name", row.get("source")), row["vhost"]) in without
            continue
        wanted = {key: each for key, each in row.items() if (section, key) not in DERIVED}
        assert {key: mine[key] for key in wanted} == wanted
        compared += 1
    assert compared


def test_users_log_in_with_their_passwords(broker: Broker, skipped: list[dict[str, str]]) -> None:
    login = pika.PlainCredentials("bert", "tea2")
    pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, "shop", login)).close()
