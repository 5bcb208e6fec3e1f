"""Tools of the management API: pyrabbit2, rabbitmq-admin, AMQPStorm's, Flower's, and RabbitMQ's own
rabbitmqadmin where it is installed: that of its package, and version 2.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
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


def _second_version() -> str | None:
    """Return the program rabbitmqadmin of version 2, which is in Rust, if it is installed."""
    for place in (*os.get_exec_path(), str(Path.home() / ".cargo/bin")):
        program = Path(place) / "rabbitmqadmin"
        if not os.access(program, os.X_OK):
            continue
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
        if told.stdout.startswith("rabbitmqadmin 2."):
            return str(program)
    return None


RABBITMQADMIN_2 = _second_version()


def admin2(*arguments: str, vhost: str = VHOST) -> str:
    """Run rabbitmqadmin 2; its error is an error of the check."""
    login = ["--host", host, "--port", str(port), "--username", user, "--password", password]
    command = [str(RABBITMQADMIN_2), "--non-interactive", *login, "--vhost", vhost]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise CheckFailed(f"rabbitmqadmin {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def refused2(why: str, *arguments: str) -> None:
    try:
        admin2(*arguments)
    except CheckFailed as error:
        contains(str(error), why)
        return
    raise CheckFailed(f"rabbitmqadmin {' '.join(arguments)} was not refused")


def rabbitmqadmin_2_lists() -> None:
    for what in (
        "nodes", "users", "vhosts", "permissions", "connections", "channels", "queues", "exchanges", "bindings",
        "consumers", "policies", "operator_policies", "vhost_limits", "user_limits", "feature_flags",
        "deprecated_features", "deprecated_features_in_use",
    ):  # fmt: skip
        admin2("list", what)
    for command in ("overview", "churn", "endpoint"):
        admin2("show", command)
    contains(admin2("users", "list"), user)
    for check in ("local_alarms", "cluster_wide_alarms", "node_is_quorum_critical"):
        admin2("health_check", check)
    admin2("health_check", "protocol_listener", "--protocol", "amqp")
    refused2("No active listener", "health_check", "port_listener", "--port", "1")
    admin2("parameters", "list_all")
    admin2("global_parameters", "list")
    admin2("rebalance", "queues")
    admin2("plugins", "list_all")


def rabbitmqadmin_2_sends_in_a_vhost_that_it_has_made() -> None:
    vhost, odd = name("admin2 %2F?&+"), "odd ü/%2F&?#+"
    admin2("vhosts", "declare", "--name", vhost, "--default-queue-type", "quorum")
    try:
        in_it = partial(admin2, vhost=vhost)
        in_it("queues", "declare", "--name", odd, "--type", "classic", "--durable", "true")
        in_it("exchanges", "declare", "--name", odd, "--type", "topic", "--durable", "true")
        bound = (
            "--source",
            odd,
            "--destination-type",
            "queue",
            "--destination",
            odd,
            "--routing-key",
            "a.~.#",
        )
        in_it("bindings", "declare", *bound)
        published = in_it("publish", "message", "-e", odd, "-k", "a.~", "-m", "hello ü")
        contains(published, "Message published")
        contains(in_it("get", "messages", "-q", odd, "--ack-mode", "ack_requeue_false"), "hello ü")
        contains(in_it("definitions", "export_from_vhost", "--stdout"), odd)
        in_it("bindings", "delete", *bound)
        in_it("purge", "queue", "--name", odd)
        admin2("vhosts", "enable_deletion_protection", "--name", vhost)
        refused2("protected from deletion", "vhosts", "delete", "--name", vhost)
        admin2("vhosts", "disable_deletion_protection", "--name", vhost)
    finally:
        admin2("vhosts", "delete", "--name", vhost)
    refused2("404", "vhosts", "delete", "--name", vhost)
    admin2("vhosts", "delete", "--name", vhost, "--idempotently")


def rabbitmqadmin_2_changes_policies() -> None:
    queue = name("admin2-queue")
    pattern = ("--pattern", f"^{queue}$", "--apply-to", "queues", "--priority", "5")
    for group in ("policies", "operator_policies"):
        admin2(
            group,
            "declare",
            "--name",
            queue,
            *pattern,
            "--definition",
            '{"max-length":9,"message-ttl":60000}',
        )
        admin2(
            group, "update_definition", "--name", queue, "--definition-key", "max-length", "--new-value", "8"
        )
        admin2(group, "delete_definition_keys", "--name", queue, "--definition-keys", "message-ttl")
        matching = admin2(group, "list_matching_object", "--name", queue, "--type", "queues")
        contains(matching, "max-length: 8")
        that("message-ttl" not in matching, "the key was deleted")
        admin2(group, "delete", "--name", queue)


def rabbitmqadmin_2_makes_users() -> None:
    for algorithm in ("SHA256", "SHA512"):
        made = name(f"admin2-{algorithm}")
        secret = ("--password", "secret", "--hashing-algorithm", algorithm, "--tags", "management")
        admin2("users", "declare", "--name", made, *secret)
        admin2("permissions", "declare", "--user", made, "--configure", "^$", "--read", ".*", "--write", "^$")
        admin2("user_limits", "declare", "--user", made, "--name", "max-channels", "--value", "7")
        contains(admin2("user_limits", "list", "--user", made), "max-channels: 7")
        answer = requests.get(f"http://{host}:{port}/api/whoami", auth=(made, "secret"), timeout=60)
        # RabbitMQ takes a hash without its algorithm for one of its default algorithm.
        that(answer.status_code == 200 or algorithm == "SHA512", f"login with {algorithm}: {answer.text}")
        admin2("users", "delete", "--name", made)


def rabbitmqadmin_2_changes_shovels() -> None:
    shovel = name("admin2-shovel")
    uri = f"amqps://{user}:{password}@127.0.0.1:1"
    ends = ("--source-uri", uri, "--destination-uri", uri, "--source-queue", "a", "--destination-queue", "b")
    admin2("shovels", "declare_amqp091", "--name", shovel, *ends)
    for end in ("source", "destination"):
        admin2("shovels", f"disable_tls_peer_verification_for_all_{end}_uris")
    contains(admin2("parameters", "list", "--component", "shovel"), "verify=verify_none")
    admin2("shovels", "delete", "--name", shovel)


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
    if RABBITMQADMIN_2 is not None:
        for check in (
            rabbitmqadmin_2_lists,
            rabbitmqadmin_2_sends_in_a_vhost_that_it_has_made,
            rabbitmqadmin_2_changes_policies,
            rabbitmqadmin_2_makes_users,
            rabbitmqadmin_2_changes_shovels,
        ):
            results.run(check)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(main())
