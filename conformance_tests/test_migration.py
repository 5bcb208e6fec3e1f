"""Performs the steps of docs/migration.md: mqd replaces the broker under test while clients continue."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests import programs
from conformance_tests.api import Api
from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.conftest import Connect, Name
from conformance_tests.expect import eventually
from conformance_tests.patience import patient

PAGE = Path(__file__).parents[1] / "docs" / "migration.md"
CHAPTER = PAGE.read_text().partition("\n## The script\n")[2].partition("\n## ")[0]
SCRIPTS = re.findall(r"```sh\n(.*?)```", CHAPTER, re.DOTALL)
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
BEFORE, MEANWHILE, AFTER = range(120), range(120, 200), range(200, 240)


@pytest.fixture
def new() -> Iterator[OwnBroker]:
    broker = OwnBroker()
    yield broker
    broker.stop()


@pytest.fixture
def vhost(api: Api, name: Name) -> Iterator[str]:
    vhost = name("old/vhost")
    assert api.ask("PUT", f"vhosts/{quote(vhost, safe='')}", {}).status == 201
    assert api.ask("PUT", f"permissions/{quote(vhost, safe='')}/guest", ALL).status in (201, 204)
    yield vhost
    api.ask("DELETE", f"vhosts/{quote(vhost, safe='')}")


def message(number: int) -> tuple[pika.BasicProperties, bytes]:
    told = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=number % 4,
        message_id=str(number),
        headers={"number": number, "nested": {"a": [1, "b", None]}},
        user_id="guest",
    )
    return told, b"%d" % number * (number % 7)


def publish(channel: BlockingChannel, numbers: range) -> None:
    channel.confirm_delivery()
    for number in numbers:
        properties, body = message(number)
        channel.basic_publish(
            "orders", f"{('classic', 'quorum', 'priority')[number % 3]}.x", body, properties, mandatory=True
        )


def take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[pika.BasicProperties, bytes]]:
    found: list[tuple[pika.BasicProperties, bytes]] = []
    if count:
        for method, properties, body in channel.consume(queue):
            channel.basic_ack(method.delivery_tag)
            found.append((properties, body))
            if len(found) == count:
                break
        channel.cancel()
    return found


def number_of(properties: pika.BasicProperties) -> int:
    """Ignore headers that a queue adds."""
    number = int(properties.headers["number"])
    added = properties.headers.keys() - {"number", "nested"}
    for key in added:
        assert key in ("x-delivery-count", "x-acquired-count")
        del properties.headers[key]
    return number


def test_clients_go_over_and_nothing_is_lost(
    broker: Broker, api: Api, connect: Connect, vhost: str, new: OwnBroker, tmp_path: Path
) -> None:
    channel = connect(vhost=vhost).channel()
    channel.exchange_declare("orders", "topic", durable=True)
    kinds: dict[str, dict[str, object]] = {
        "classic": {},
        "quorum": {"x-queue-type": "quorum"},
        "priority": {"x-max-priority": 4},
    }
    for queue, arguments in kinds.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, "orders", f"{queue}.#")
    publish(channel, BEFORE)
    # A consumer at the old broker has one message and has not acked it; it is acked there, and does not come
    # over.
    held = connect(vhost=vhost).channel()
    method, properties, _ = held.basic_get("classic")
    acked = number_of(properties)
    here, there = urlsplit(broker.http_url), urlsplit(broker.url)
    old_http = f"http://{here.hostname}:{here.port}"
    environment = os.environ | {
        "PATH": f"{programs.directory()}:{os.environ['PATH']}",
        "MQCTL_URL": new.http_url.replace("guest:guest@", ""),
        "OLD_HTTP": old_http,
        "OLD_USER": "guest",
        "OLD_PASSWORD": "guest",
        "OLD_AMQP": f"amqp://guest:guest@{there.hostname}:{there.port}/{quote(vhost, safe='')}",
        "VHOST": vhost,
    }

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-e"],
            input=script,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first, last = SCRIPTS
    run(first)
    assert json.loads((tmp_path / "definitions.json").read_text())["users"]
    held.basic_ack(method.delivery_tag)
    # The publisher still uses the old broker, the consumers have moved.
    publish(channel, MEANWHILE)
    wanted = patient(pika.URLParameters(new.url))
    wanted.virtual_host = vhost
    connection = pika.BlockingConnection(wanted)
    after = connection.channel()
    publish(after, AFTER)
    expected = {
        queue: [number for number in range(AFTER.stop) if number % 3 == at and number != acked]
        for at, queue in enumerate(kinds)
    }

    def counts(of: BlockingChannel) -> list[int]:
        return [int(of.queue_declare(queue, passive=True).method.message_count) for queue in kinds]

    eventually(lambda: counts(channel) == [0, 0, 0])
    eventually(lambda: counts(after) == [len(expected[queue]) for queue in kinds])
    assert "running" in run(last)
    eventually(lambda: "shovel" not in run("mqctl list_shovels --formatter json"))
    for queue in kinds:
        found = take(after, queue, len(expected[queue]))
        numbers = [number_of(properties) for properties, _ in found]
        assert sorted(numbers) == expected[queue]
        for number, each in zip(numbers, found, strict=True):
            assert each == message(number)
    assert counts(after) == [0, 0, 0]
    # No message waits at the old broker.
    assert counts(channel) == [0, 0, 0]
    connection.close()
