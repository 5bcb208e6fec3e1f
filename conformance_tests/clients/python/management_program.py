"""Tools of the management API: pyrabbit2, rabbitmq-admin, AMQPStorm's, Flower's, and RabbitMQ's own
rabbitmqadmin where it is installed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from amqpstorm.management.api import ManagementApi
from amqpstorm.management.exception import ApiError
from amqpstorm.uri_connection import UriConnection
from flower.utils.broker import Broker as FlowersBroker
from pyrabbit2.api import Client
from pyrabbit2.api import PermissionError as Denied
from pyrabbit2.http import HTTPError
from rabbitmq_admin import AdminAPI

from conformance_tests.clients.python import checks
from conformance_tests.clients.python.checks import CheckFailed, Checks, Names, contains, equal, that

#: Debian's package has it here, in all versions.
RABBITMQADMIN = next(
    iter(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin")),
    None,
)  # fmt: skip
VHOST = "/"

name = Names("tools")
parts = urlsplit(checks.HTTP_URL)
host, port = parts.hostname or "127.0.0.1", parts.port or 15672
user, password = parts.username or "guest", parts.password or "guest"


def pyrabbit(login: str = password) -> Client:
    return Client(f"{host}:{port}", user, login)


def refused(status: int, act: Callable[[], object]) -> None:
    try:
        act()
    except HTTPError as error:
        equal(error.status, status, "status")
        return
    raise CheckFailed(f"not refused with {status}")


def pyrabbit_looks_around() -> None:
    client = pyrabbit()
    that(client.is_alive(), "is_alive")
    equal(client.get_whoami()["name"], user, "whoami")
    that(client.get_overview()["object_totals"]["exchanges"], "exchanges of the overview")
    that(VHOST in client.get_vhost_names(), "vhosts")
    that(client.get_nodes()[0]["running"], "nodes")
    for ask in (client.get_users, client.get_permissions, client.get_queues, client.get_connections):
        that(isinstance(ask(), list), f"{ask.__name__} gives a list")
    that(client.get_definitions()["users"], "users of the definitions")
    try:
        pyrabbit("wrong").get_whoami()
    except Denied as error:
        contains(error, "Login failed")
    else:
        raise CheckFailed("a wrong password was taken")


def pyrabbit_routes_messages() -> None:
    client = pyrabbit()
    exchange, queue = name("exchange"), name("queue")
    client.create_exchange(VHOST, exchange, "topic")
    client.create_queue(VHOST, queue, durable=True, arguments={"x-max-length": 5})
    client.create_binding(VHOST, exchange, queue, "a.#")
    equal({each["source"] for each in client.get_queue_bindings(VHOST, queue)}, {"", exchange}, "bindings")
    that(client.publish(VHOST, exchange, "a.b", "hello"), "routed")
    that(not client.publish(VHOST, exchange, "b", "hello"), "not routed")
    checks.wait_until(
        lambda: client.get_queue(VHOST, queue).get("messages") == 1, lambda: time.sleep(0.1), "depth"
    )
    equal(client.get_queue_depth(VHOST, queue), 1, "depth")
    (message,) = client.get_messages(VHOST, queue, count=1, requeue=True)
    equal(message["payload"], "hello", "payload")
    client.purge_queue(VHOST, queue)
    client.delete_binding(VHOST, exchange, queue, "a.%23")
    client.delete_queue(VHOST, queue)
    refused(404, lambda: client.delete_queue(VHOST, queue))
    client.delete_exchange(VHOST, exchange)


def pyrabbit_administers() -> None:
    client = pyrabbit()
    vhost, who, policy = name("vhost"), name("user"), name("policy")
    client.create_vhost(vhost)
    client.create_user(who, "secret", "monitoring")
    client.set_vhost_permissions(vhost, who, "a", "b", "c")
    (permission,) = client.get_user_permissions(who)
    equal((permission["configure"], permission["read"], permission["write"]), ("a", "b", "c"), "permissions")
    client.create_policy(vhost, policy, pattern="^x", definition={"max-length": 3})
    equal(client.get_policy(vhost, policy)["definition"], {"max-length": 3}, "policy")
    client.delete_policy(vhost, policy)
    client.delete_user(who)
    client.delete_vhost(vhost)


def rabbitmq_admin_administers() -> None:
    api = AdminAPI(url=f"http://{host}:{port}", auth=(user, password))
    equal(api.whoami()["name"], user, "whoami")
    node = api.overview()["node"]
    equal([each["name"] for each in api.list_nodes()], [node], "nodes")
    that(api.get_node(node, memory=True)["running"], "running")
    that(api.get_cluster_name()["name"], "name of the cluster")
    equal(api.is_vhost_alive(VHOST), {"status": "ok"}, "aliveness")
    for ask in (
        api.list_extensions,
        api.list_connections,
        api.list_channels,
        api.list_consumers,
        api.list_bindings,
    ):
        that(isinstance(ask(), list), f"{ask.__name__} gives a list")
    vhost, who, policy, exchange = name("vhost"), name("admin"), name("policy"), name("exchange")
    api.create_vhost(vhost, tracing=True)
    equal(api.get_vhost(vhost)["tracing"], True, "tracing")
    api.create_user(who, password="", tags=["monitoring", "management"])
    equal(api.get_user(who)["tags"], ["monitoring", "management"], "tags")
    api.create_user_permission(who, vhost, read="^a")
    equal(api.list_user_permissions(who), [api.get_user_permission(vhost, who)], "permissions")
    equal(api.get_user_permission(vhost, who)["read"], "^a", "permission to read")
    api.create_exchange_for_vhost(exchange, vhost, {"type": "topic"})
    equal(api.get_exchange_for_vhost(exchange, vhost)["type"], "topic", "type")
    api.create_policy_for_vhost(vhost, policy, {"max-length": 3}, pattern="^x", apply_to="queues")
    equal(api.get_policy_for_vhost(vhost, policy)["definition"], {"max-length": 3}, "policy")
    told = api.get_definitions()
    that(any(each["name"] == exchange for each in told["exchanges"]), "exported")
    api.post_definitions({"exchanges": [each for each in told["exchanges"] if each["name"] == exchange]})
    api.delete_policy_for_vhost(vhost, policy)
    api.delete_exchange_for_vhost(exchange, vhost, if_unused=True)
    api.delete_user_permission(who, vhost)
    api.delete_user(who)
    api.delete_vhost(vhost)
    try:
        api.get_vhost(vhost)
    except requests.HTTPError as error:
        that(
            error.response is not None and error.response.status_code == 404, "status of a vhost that is gone"
        )
    else:
        raise CheckFailed("a vhost that is gone")


def amqpstorm_manages() -> None:
    api = ManagementApi(f"http://{host}:{port}", user, password)
    equal(api.aliveness_test(VHOST), {"status": "ok"}, "aliveness")
    node = api.overview()["node"]
    equal(api.healthchecks.get(node)["status"], "ok", "health of a node")
    equal([each["name"] for each in api.nodes()], [node], "nodes")
    exchange, queue = name("storm-exchange"), name("storm-queue")
    api.exchange.declare(exchange, "topic", durable=True)
    api.queue.declare(queue, durable=True)
    api.queue.bind(queue, exchange, "a.b")
    that(api.basic.publish("body", "a.b", exchange, properties={"app_id": "storm"})["routed"], "routed")
    got: Any = api.basic.get(queue, requeue=False)
    (message,) = got
    equal((message.body, message.app_id), ("body", "storm"), "message")
    listed = api.queue.list(VHOST, name=f"^{name.prefix}", use_regex=True, page_size=1)
    equal([each["name"] for each in listed], [queue], "queues that match")
    api.queue.unbind(queue, exchange, "a.b")
    api.queue.delete(queue)
    api.exchange.delete(exchange)
    try:
        api.queue.get(queue)
    except ApiError as error:
        equal(error.error_code, 404, "status of a queue that is gone")
    else:
        raise CheckFailed("a queue that is gone")


def amqpstorm_closes_a_connection() -> None:
    api = ManagementApi(f"http://{host}:{port}", user, password)
    connection = UriConnection(checks.AMQP_URL, client_properties={"connection_name": name("closed")})
    connection.channel()
    found: list[Any] = []

    def look() -> None:
        time.sleep(0.1)
        found[:] = [
            each for each in api.connection.list() if each.get("user_provided_name") == name("closed")
        ]

    checks.wait_until(lambda: found, look, "the connection is listed")
    api.connection.close(found[0]["name"], reason="enough")
    checks.wait_until(lambda: connection.is_closed, lambda: time.sleep(0.1), "closed")
    contains(connection.exceptions[-1], "enough")


def flower_shows_queues() -> None:
    api = ManagementApi(f"http://{host}:{port}", user, password)
    queue = name("celery")
    api.queue.declare(queue, durable=True)

    async def asked() -> list[dict[str, Any]]:
        # As Celery writes the default virtual host.
        url = checks.other_url(vhost="/")
        broker = FlowersBroker(url, http_api=f"http://{user}:{password}@{host}:{port}/api/")
        return list(await broker.queues([queue]))

    (row,) = asyncio.run(asked())
    equal(row["name"], queue, "name")
    api.queue.delete(queue)


def admin(*arguments: str) -> str:
    """Run rabbitmqadmin; its error is an error of the check."""
    command = [sys.executable, str(RABBITMQADMIN), "-H", host, "-P", str(port), "-u", user, "-p", password]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise CheckFailed(f"rabbitmqadmin {' '.join(arguments)}: {done.stderr}")
    return done.stdout


LISTS = (
    "users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels", "parameters",
    "consumers", "queues", "policies", "operator_policies", "vhost_limits", "nodes",
)  # fmt: skip


def rabbitmqadmin_lists() -> None:
    for what in LISTS:
        admin("list", what)
    contains(admin("list", "users"), user)
    contains(admin("list", "nodes", "name", "mem_used"), "mem_used")
    contains(admin("show", "overview"), "rabbitmq_version")


def rabbitmqadmin_declares() -> None:
    exchange, queue, policy = name("admin-exchange"), name("admin-queue"), name("admin-policy")
    admin("declare", "exchange", f"name={exchange}", "type=topic", "durable=true")
    admin("declare", "queue", f"name={queue}", "durable=true", 'arguments={"x-max-length":10}')
    admin("declare", "binding", f"source={exchange}", f"destination={queue}", "routing_key=a.#")
    contains(
        admin("publish", f"exchange={exchange}", "routing_key=a.b", "payload=hello"), "Message published"
    )
    contains(admin("get", f"queue={queue}", "ackmode=ack_requeue_false"), "hello")
    limit = 'definition={"max-length":9}'
    admin("declare", "policy", f"name={policy}", f"pattern=^{queue}$", limit, "apply-to=queues")
    admin("declare", "operator_policy", f"name={policy}", f"pattern=^{queue}$", limit, "apply-to=queues")
    file = Path(f"{name('definitions')}.json")
    try:
        admin("export", str(file))
        that(any(each["name"] == queue for each in json.loads(file.read_text())["queues"]), "exported")
        admin("import", str(file))
    finally:
        file.unlink(missing_ok=True)
    admin("delete", "policy", f"name={policy}")
    admin("delete", "operator_policy", f"name={policy}")
    admin("purge", "queue", f"name={queue}")
    admin(
        "delete",
        "binding",
        f"source={exchange}",
        "destination_type=queue",
        f"destination={queue}",
        "properties_key=a.%23",
    )
    admin("delete", "queue", f"name={queue}")
    admin("delete", "exchange", f"name={exchange}")
    try:
        admin("delete", "queue", f"name={queue}")
    except CheckFailed as error:
        contains(error, "*** Not found")


def main() -> int:
    results = Checks()
    for check in (
        pyrabbit_looks_around,
        pyrabbit_routes_messages,
        pyrabbit_administers,
        rabbitmq_admin_administers,
        amqpstorm_manages,
        amqpstorm_closes_a_connection,
        flower_shows_queues,
    ):
        results.run(check)
    if RABBITMQADMIN is not None:
        results.run(rabbitmqadmin_lists)
        results.run(rabbitmqadmin_declares)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(main())
