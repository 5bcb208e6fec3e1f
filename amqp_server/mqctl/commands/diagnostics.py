"""Commands of rabbitmq-diagnostics and rabbitmqctl for one node, under their names: checks end with an exit
code for scripts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click

from amqp_server.cluster.membership.machines import machines
from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import Choice, Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.progress import progress
from amqp_server.mqctl.table import show

#: Interval of a command that waits, s.
LOOK_INTERVAL_S = 0.2


# -- checks --------------------------------------------------------------------------------------------------


def _checked(invocation: Invocation, *path: str) -> dict[str, Any]:
    """Return the answer of a check. Raises Failure with the reason if it failed."""
    told: dict[str, Any] = invocation.client.check("health", "checks", *path)
    if told.get("status") != "ok":
        raise Failure(_reason(told), UNAVAILABLE)
    return told


#: Maximum number of objects that the text of a check names.
NAMED_MAX = 10


def _reason(told: dict[str, Any]) -> str:
    named = [f"{alarm['resource']} of {alarm['node']}" for alarm in told.get("alarms", ())]
    named += [each["readable_name"] if isinstance(each, dict) else each for each in told.get("queues", ())]
    named += [f"{each['file']} ({each['cert_expires_on']})" for each in told.get("expired", ())]
    more = [f"and {len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return ": ".join(filter(None, (str(told["reason"]), ", ".join(named[:NAMED_MAX] + more))))


def _check(name: str, path: str, text: str, well: str) -> None:
    @mqctl.command(name, help=f"Checks that {text}. Exit code 0 if so; otherwise it prints what is wrong.")
    @pass_invocation
    def command(invocation: Invocation) -> None:
        _checked(invocation, path)
        invocation.say(well)


_check("check_alarms", "alarms", "no node of the cluster has an alarm", "There is no alarm")
_check("check_local_alarms", "local-alarms", "the node at --url has no alarm", "There is no alarm")
_check(
    "check_virtual_hosts",
    "virtual-hosts",
    "the node serves all virtual hosts",
    "All virtual hosts are served",
)
_check("check_running", "ready-to-serve-clients", "the node serves clients", "The node serves clients")
_check(
    "check_if_node_is_quorum_critical",
    "node-is-quorum-critical",
    "no queue loses its majority if the node at --url stops",
    "The node may be stopped",
)


@mqctl.command(
    "check_for_quorum_queues_without_an_elected_leader",
    help="Checks that all quorum queues whose names match PATTERN, a regular expression, have a leader. Exit code 0 if they do.",
)
@in_vhost
@click.option("--across-all-vhosts", is_flag=True, help="Check the queues of all virtual hosts.")
@click.argument("pattern", default=".*")
@pass_invocation
def check_leaders(invocation: Invocation, vhost: str, across_all_vhosts: bool, pattern: str) -> None:
    where = ("all-vhosts",) if across_all_vhosts else ("vhost", vhost)
    _checked(invocation, "quorum-queues-without-elected-leaders", *where, "pattern", pattern)
    invocation.say("All quorum queues whose names match have a leader")


@mqctl.command("check_port_listener", help="Checks that the node listens on PORT. Exit code 0 if it does.")
@click.argument("port")
@pass_invocation
def check_port_listener(invocation: Invocation, port: str) -> None:
    _checked(invocation, "port-listener", port)
    invocation.say(f"The node listens on port {port}")


@mqctl.command(
    "check_protocol_listener",
    help="Checks that the node has a listener for PROTOCOL (amqp, amqp/ssl, http, http/prometheus). Exit code 0 if it does.",
)
@click.argument("protocol")
@pass_invocation
def check_protocol_listener(invocation: Invocation, protocol: str) -> None:
    _checked(invocation, "protocol-listener", protocol)
    invocation.say(f"The node listens for {protocol}")


@mqctl.command(
    "check_certificate_expiration",
    help="Checks that no certificate of the node expires soon. Exit code 0 if none does; otherwise it prints those that do.",
)
@click.option(
    "--within",
    default=4,
    show_default=True,
    metavar="N",
    help="Number of units in which no certificate may expire.",
)
@click.option(
    "--unit",
    type=Choice(["days", "weeks", "months", "years"]),
    default="weeks",
    show_default=True,
    help="Unit of --within.",
)
@pass_invocation
def check_certificate_expiration(invocation: Invocation, within: int, unit: str) -> None:
    _checked(invocation, "certificate-expiration", str(within), unit)
    invocation.say(f"No certificate expires within {within} {unit}")


# -- waiting -------------------------------------------------------------------------------------------------

_TIMEOUT = click.option(
    "--timeout", default=300.0, show_default=True, metavar="S", help="How long to wait, in seconds."
)


def _await(done: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    with progress("Waiting"):
        while not done():
            if time.monotonic() >= deadline:
                raise Failure(f"{what} within {timeout:g} s", UNAVAILABLE)
            time.sleep(LOOK_INTERVAL_S)


@mqctl.command("await_startup", help="Waits until the node serves clients.")
@_TIMEOUT
@pass_invocation
def await_startup(invocation: Invocation, timeout: float) -> None:
    def serves() -> bool:
        try:
            _checked(invocation, "ready-to-serve-clients")
        except Failure as failure:
            # The node does not listen yet, or is not complete yet.
            if failure.exit_code != UNAVAILABLE:
                raise
            return False
        return True

    _await(serves, timeout, "the node did not serve clients")
    invocation.say("The node serves clients")


@mqctl.command("await_online_nodes", help="Waits until COUNT nodes of the cluster are up.")
@_TIMEOUT
@click.argument("count", type=click.IntRange(1))
@pass_invocation
def await_online_nodes(invocation: Invocation, timeout: float, count: int) -> None:
    def online() -> bool:
        rows = invocation.client.get("nodes")
        # A node is up when all of its workers are.
        nodes = machines(row["name"] for row in rows) - machines(
            row["name"] for row in rows if not row["running"]
        )
        return len(nodes) >= count

    _await(online, timeout, f"fewer than {count} nodes were up")
    invocation.say(f"{count} nodes are up")


# -- looking -------------------------------------------------------------------------------------------------


@mqctl.command("alarms", help="Lists the alarms of all nodes.")
@pass_invocation
def alarms(invocation: Invocation) -> None:
    told = invocation.client.check("health", "checks", "alarms")
    show(
        ("node", "resource"),
        [(each["node"], each["resource"]) for each in told.get("alarms", ())],
        invocation,
    )


@mqctl.command("listeners", help="Lists the listeners of all nodes: protocol, address, port.")
@pass_invocation
def listeners(invocation: Invocation) -> None:
    rows = [
        (each["node"], each["protocol"], each["ip_address"], each["port"])
        for each in invocation.client.get("overview").get("listeners", ())
    ]
    show(("node", "protocol", "address", "port"), rows, invocation)


@mqctl.command("server_version", help="Prints the version of the node.")
@pass_invocation
def server_version(invocation: Invocation) -> None:
    invocation.say(str(invocation.client.get("overview")["product_version"]))


@mqctl.command("memory_breakdown", help="Prints what uses the memory of the node at --url, in bytes.")
@pass_invocation
def memory_breakdown(invocation: Invocation) -> None:
    memory = invocation.client.get("nodes", _name(invocation), "memory")["memory"]
    if invocation.json:
        click.echo(json.dumps(memory, ensure_ascii=False))
        return
    rows: list[tuple[str, object]] = [
        (name, size) for name, size in memory.items() if isinstance(size, int) and size
    ]
    show(("part", "bytes"), [*rows, ("total", memory["total"]["rss"])], invocation)


@mqctl.command(
    "message_size_stats",
    help="Prints how many messages of which sizes the clients of all nodes have published since the nodes started.",
)
@pass_invocation
def message_size_stats(invocation: Invocation) -> None:
    rows = invocation.client.get("message-sizes")["sizes"]
    total = sum(row["count"] for row in rows)
    told, above = [], 0
    for row in rows:
        up_to, count = row["up_to"], row["count"]
        if up_to is None:
            text = f"above {_size(above)}"
        elif above:
            text = f"between {_size(above)} and {_size(up_to)}"
        else:
            text = f"below {_size(up_to)}"
        told.append((text, count, f"{100 * count / total if total else 0:.2f}"))
        above = up_to
    show(("Message Size", "Count", "Percentage"), told, invocation)


def _size(size: int) -> str:
    """Return a size as RabbitMQ's command writes it."""
    for unit, factor in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= factor:
            return f"{size // factor}{unit}"
    return f"{size}B"


@mqctl.command(
    "list_feature_flags", help="Lists feature flags, which some clients check before they use a feature."
)
@pass_invocation
def list_feature_flags(invocation: Invocation) -> None:
    rows = [(each["name"], each["state"]) for each in invocation.client.get("feature-flags")]
    show(("name", "state"), rows, invocation)


@mqctl.command(
    "enable_feature_flag",
    help="Checks that feature flag NAME exists; for scripts made for RabbitMQ. All flags are always on; NAME may be `all`.",
)
@click.argument("name")
@pass_invocation
def enable_feature_flag(invocation: Invocation, name: str) -> None:
    if name != "all":
        invocation.client.put("feature-flags", name, "enable", body={"name": name})


@mqctl.command(
    "list_node_auth_attempt_stats",
    help="Lists the numbers of successful and failed logins to the node at --url, by protocol.",
)
@pass_invocation
def list_node_auth_attempt_stats(invocation: Invocation) -> None:
    names = "protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded"
    rows = invocation.client.get("auth", "attempts", _name(invocation))
    show(names, [tuple(row[name] for name in names) for row in rows], invocation)


@mqctl.command(
    "reset_node_auth_attempt_metrics", help="Resets the numbers that list_node_auth_attempt_stats shows to 0."
)
@pass_invocation
def reset_node_auth_attempt_metrics(invocation: Invocation) -> None:
    invocation.client.delete("auth", "attempts", _name(invocation))


def _name(invocation: Invocation) -> str:
    return str(invocation.client.get("overview")["node"])
