"""There and back: RabbitMQ 3.10 → mqd → RabbitMQ 4 → mqd, by definitions and shovels, and nothing is lost.

RabbitMQ 3.10 is Debian's, RabbitMQ 4 that of `--rabbitmq-root`. Without this option the second half is a way
back to 3.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import pika
import pytest

from benchmarks.installation import HERE, Installation
from conformance_tests.api import Api
from conformance_tests.broker import OwnBroker
from conformance_tests.expect import eventually
from conformance_tests.rabbitmq import MANAGEMENT, JudgedRabbitMQ

pytestmark = pytest.mark.skipif(not HERE.exists, reason="there is no RabbitMQ here")

VHOST = "there/and back"
#: The queues, with their arguments.
QUEUES: dict[str, dict[str, object]] = {
    "classic": {"x-max-length": 1_000},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 7},
    "priority": {"x-max-priority": 4},
    "dead": {
        "x-message-ttl": 86_400_000,
        "x-dead-letter-exchange": "orders",
        "x-dead-letter-routing-key": "classic",
    },
    "stream": {"x-queue-type": "stream", "x-max-age": "7D"},
}
#: Those whose messages move. A stream begins empty.
MOVED = [name for name in QUEUES if name != "stream"]
MESSAGES = 40
PASSWORD = "s3cret there and back"
POLICY = {
    "pattern": "^classic$",
    "apply-to": "queues",
    "priority": 3,
    "definition": {"max-length-bytes": 10_000_000},
}


class Side(NamedTuple):
    """One broker on the way."""

    name: str
    amqp: str
    api: Api

    def connect(self, user: str = "guest", password: str = "guest") -> pika.BlockingConnection:
        host, _, port = self.amqp.rpartition(":")
        login = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(pika.ConnectionParameters(host, int(port), VHOST, login))

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@{self.amqp}/{quote(VHOST, safe='')}"

    def put(self, path: str, body: object) -> None:
        assert self.api.ask("PUT", path, body).status in (201, 204), (self.name, path)

    def definitions(self, query: str = "") -> dict[str, Any]:
        answer = self.api.ask("GET", f"definitions{query}")
        assert answer.status == 200
        told: dict[str, Any] = answer.json
        return told

    def take_over(self, told: dict[str, Any]) -> None:
        answer = self.api.ask("POST", "definitions", told)
        assert answer.status == 204, (self.name, answer)

    def counts(self) -> dict[str, int]:
        with closing(self.connect()) as connection:
            channel = connection.channel()
            return {name: channel.queue_declare(name, passive=True).method.message_count for name in MOVED}


@contextmanager
def rabbitmq(installation: Installation) -> Iterator[Side]:
    broker = JudgedRabbitMQ((MANAGEMENT,), installation)
    try:
        broker.start()
        api = Api(f"http://guest:guest@127.0.0.1:{broker.http_port}")
        eventually(lambda: _answers(api))
        yield Side(installation.version, f"127.0.0.1:{broker.port}", api)
    finally:
        broker.close()


@pytest.fixture
def old() -> Iterator[Side]:
    with rabbitmq(HERE) as side:
        yield side


@pytest.fixture
def third(pytestconfig: pytest.Config, old: Side) -> Iterator[Side]:
    """A RabbitMQ 4, or the old one."""
    installation = Installation(pytestconfig.getoption("--rabbitmq-root"))
    if installation == HERE:
        yield old
        return
    with rabbitmq(installation) as side:
        yield side


def _answers(api: Api) -> bool:
    try:
        return api.ask("GET", "overview").status == 200
    except OSError:
        return False


@pytest.fixture
def nodes() -> Iterator[list[Side]]:
    brokers = [OwnBroker(("--password-hashing", "rabbitmq")) for _ in range(2)]
    yield [
        Side(f"mqd {number}", broker.url.partition("@")[2].rstrip("/"), Api(broker.http_url))
        for number, broker in enumerate(brokers)
    ]
    for broker in brokers:
        broker.stop()


def declare(side: Side) -> None:
    vhost = quote(VHOST, safe="")
    side.put(f"vhosts/{vhost}", {"description": "of the test", "tags": "there,back"})
    side.put(f"permissions/{vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    side.put("users/traveller", {"password": PASSWORD, "tags": "management"})
    side.put(f"permissions/{vhost}/traveller", {"configure": "", "write": "^orders$", "read": "^quorum$"})
    side.put(f"topic-permissions/{vhost}/traveller", {"exchange": "orders", "write": "^a", "read": ".*"})
    side.put(f"policies/{vhost}/short", POLICY)
    side.put(f"vhost-limits/{vhost}/max-queues", {"value": 90})
    with closing(side.connect()) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "rest"})
        # Not internal: RabbitMQ 4 leaves internal exchanges out of what it exports.
        channel.exchange_declare("rest", "fanout", durable=True)
        channel.exchange_bind("rest", "orders", "rest.#")
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.queue_bind(name, "orders", f"{name}.#", {"note": 1})
        channel.confirm_delivery()
        for number in range(MESSAGES):
            for name in MOVED:
                properties = pika.BasicProperties(
                    delivery_mode=2, message_id=str(number), priority=number % 4, headers={"n": number}
                )
                channel.basic_publish("orders", f"{name}.x", b"body of %d" % number, properties)


def shovel(node: Side, source: str, destination: str) -> None:
    """Move the messages of all queues by shovels of this mqd, and wait until they have gone."""
    vhost = quote(VHOST, safe="")
    for name in MOVED:
        value = {"src-uri": source, "src-queue": name, "dest-uri": destination, "dest-queue": name}
        value |= {"ack-mode": "on-confirm"}
        node.put(f"parameters/shovel/{vhost}/move-{name}", {"value": value})


def unshovel(node: Side) -> None:
    for name in MOVED:
        assert node.api.ask("DELETE", f"parameters/shovel/{quote(VHOST, safe='')}/move-{name}").status == 204


def arrived(side: Side) -> bool:
    return side.counts() == dict.fromkeys(MOVED, MESSAGES)


def same(told: dict[str, Any]) -> dict[str, object]:
    """Return what must be the same at each stop."""

    def in_vhost(section: str) -> list[dict[str, Any]]:
        return [row for row in told[section] if row.get("vhost") == VHOST]

    users = {row["name"]: row for row in told["users"]}
    return {
        "hash": (users["traveller"]["password_hash"], users["traveller"]["hashing_algorithm"]),
        "tags": users["traveller"]["tags"],
        "permissions": sorted((row["user"], row["configure"], row["write"], row["read"]) for row in in_vhost("permissions")),
        "topics": [(row["user"], row["exchange"], row["write"]) for row in in_vhost("topic_permissions")],
        "policies": [(row["name"], row["pattern"], row["priority"], row["definition"]) for row in in_vhost("policies")],
        "limits": [row["value"] for row in in_vhost("parameters") if row["component"] == "vhost-limits"],
        "exchanges": sorted((row["name"], row["type"], row.get("internal", False), str(row["arguments"])) for row in in_vhost("exchanges")),
        "queues": {row["name"]: QUEUES[row["name"]].items() <= row["arguments"].items() for row in in_vhost("queues")},
        "bindings": sorted((row["source"], row["destination"], row["routing_key"], str(row["arguments"])) for row in in_vhost("bindings")),
    }  # fmt: skip


def check_messages(side: Side) -> None:
    with closing(side.connect()) as connection:
        channel = connection.channel()
        for name in MOVED:
            found = []
            for _ in range(MESSAGES):
                method, properties, body = channel.basic_get(name, auto_ack=True)
                assert method is not None
                assert body == b"body of %s" % properties.message_id.encode()
                assert (properties.delivery_mode, properties.headers["n"]) == (2, int(properties.message_id))
                found.append(int(properties.message_id))
            assert sorted(found) == list(range(MESSAGES)), name
            if name != "priority" and name != "quorum":
                assert found == sorted(found), name


def test_there_and_back_nothing_is_lost(old: Side, nodes: list[Side], third: Side) -> None:
    declare(old)
    first, last = nodes
    expected = same(old.definitions())
    # 3.10 → mqd
    first.take_over(old.definitions())
    shovel(first, old.uri, first.uri)
    eventually(lambda: arrived(first))
    unshovel(first)
    assert same(first.definitions()) == expected
    with closing(first.connect("traveller", PASSWORD)):
        pass
    # The login has not replaced the hash.
    assert same(first.definitions()) == expected
    # mqd → RabbitMQ 4: it takes the file whole, without a user or a queue that would be left out.
    if third is old:
        assert old.api.ask("DELETE", f"vhosts/{quote(VHOST, safe='')}").status == 204
        assert old.api.ask("DELETE", "users/traveller").status == 204
    file = first.definitions("?for-rabbitmq=true")
    assert file["left_out"] == []
    third.take_over(file)
    shovel(first, first.uri, third.uri)
    eventually(lambda: arrived(third))
    unshovel(first)
    assert same(third.definitions()) == expected
    with closing(third.connect("traveller", PASSWORD)):
        pass
    # RabbitMQ 4 → mqd
    last.take_over(third.definitions())
    shovel(last, third.uri, last.uri)
    eventually(lambda: arrived(last))
    unshovel(last)
    assert same(last.definitions()) == expected
    with closing(last.connect("traveller", PASSWORD)):
        pass
    check_messages(last)
    assert third.counts() == dict.fromkeys(MOVED, 0)
    assert expected["queues"] == dict.fromkeys(QUEUES, True)
