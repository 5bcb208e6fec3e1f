"""The control command: what it shows of the broker's state, and how it changes it."""

import json
from collections.abc import Callable

import pytest
from pamqp import commands

from conformance_tests.broker import CtlError
from conformance_tests.conftest import Ctl, Name, Raw
from conformance_tests.expect import eventually
from conformance_tests.wire import RawClient


@pytest.fixture
def client(raw: Raw) -> RawClient:
    return raw()


def rows(ctl: Ctl, *command: str) -> list[list[str]]:
    return [line.split("\t") for line in ctl(*command).splitlines()]


def declare(client: RawClient, queue: str, messages: int = 0, durable: bool = False) -> str:
    client.call(commands.Queue.Declare(queue=queue, durable=durable), commands.Queue.DeclareOk)
    for i in range(messages):
        client.publish(b"%d" % i, routing_key=queue)
    return queue


def counted(ctl: Ctl, queue: str, count: int) -> Callable[[], bool]:
    return lambda: [queue, str(count)] in rows(ctl, "list_queues", "name", "messages")


def test_list_queues(client: RawClient, ctl: Ctl, name: Name) -> None:
    plain, durable = declare(client, name("q"), 3), declare(client, name("q"), durable=True)
    eventually(counted(ctl, plain, 3))
    listed = rows(ctl, "list_queues", "-p", "/", "name", "durable", "auto_delete", "messages", "consumers")
    assert [plain, "false", "false", "3", "0"] in listed
    assert [durable, "true", "false", "0", "0"] in listed


def test_list_queues_counts_ready_and_unacked(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"), 5)
    client.call(commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
    client.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    client.read_content()
    client.read_content()
    columns = ("name", "messages_ready", "messages_unacknowledged", "consumers")
    eventually(lambda: [queue, "3", "2", "1"] in rows(ctl, "list_queues", *columns))


def test_list_exchanges(client: RawClient, ctl: Ctl, name: Name) -> None:
    exchange = name("x")
    client.call(
        commands.Exchange.Declare(exchange=exchange, exchange_type="topic"), commands.Exchange.DeclareOk
    )
    listed = rows(ctl, "list_exchanges", "name", "type", "durable", "auto_delete", "internal")
    assert [exchange, "topic", "false", "false", "false"] in listed
    assert ["amq.topic", "topic", "true", "false", "false"] in listed
    assert ["", "direct", "true", "false", "false"] in listed


def test_list_bindings(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"))
    client.call(
        commands.Queue.Bind(queue=queue, exchange="amq.topic", routing_key="a.*"), commands.Queue.BindOk
    )
    listed = rows(ctl, "list_bindings", "source_name", "destination_name", "destination_kind", "routing_key")
    assert ["amq.topic", queue, "queue", "a.*"] in listed
    # Every queue is bound to the default exchange by its name.
    assert ["", queue, "queue", queue] in listed


def test_list_consumers(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"))
    client.call(commands.Basic.Qos(prefetch_count=7), commands.Basic.QosOk)
    client.call(commands.Basic.Consume(queue=queue, consumer_tag="listed"), commands.Basic.ConsumeOk)
    columns = ("queue_name", "consumer_tag", "ack_required", "prefetch_count")
    eventually(lambda: [queue, "listed", "true", "7"] in rows(ctl, "list_consumers", *columns))


def test_purge_queue(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"), 3)
    eventually(counted(ctl, queue, 3))
    ctl("purge_queue", queue)
    assert client.call(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk).message_count == 0


def test_delete_queue(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"))
    ctl("delete_queue", queue)
    client.send_method(commands.Queue.Declare(queue=queue, passive=True))
    client.expect_channel_close(404, f"^NOT_FOUND - no queue '{queue}'")


def test_what_is_not_there_is_an_error(ctl: Ctl) -> None:
    for command in (["purge_queue", "no-such-queue"], ["delete_queue", "no-such-queue"], ["no_such_command"]):
        with pytest.raises(CtlError):
            ctl(*command)


def test_status(ctl: Ctl) -> None:
    assert ctl("status").strip()


def test_ping(ctl: Ctl) -> None:
    assert "Ping succeeded" in ctl("ping")


def test_json(client: RawClient, ctl: Ctl, name: Name) -> None:
    queue = declare(client, name("q"), durable=True)
    listed = json.loads(ctl("list_queues", "name", "durable", "messages", "arguments", "--formatter", "json"))
    assert {"name": queue, "durable": True, "messages": 0, "arguments": {}} in map(without_types, listed)
    assert {"name": "/"} in json.loads(ctl("list_vhosts", "--formatter", "json"))
    users = json.loads(ctl("list_users", "--formatter", "json"))
    assert {"user": "guest", "tags": ["administrator"]} in users


TYPED = [["x-queue-type", "longstr", "classic"]]


def without_types(row: dict[str, object]) -> dict[str, object]:
    """RabbitMQ shows a table as an array, and RabbitMQ 4 adds the type of a queue to its arguments."""
    return row | {"arguments": {} if row["arguments"] == TYPED else row["arguments"] or {}}
