"""The node: its state, its memory limit, its connections."""

from __future__ import annotations

import json
import time

import click

from amqp_server.config import VERSION
from amqp_server.mqctl.client import UNAVAILABLE, USAGE, Failure
from amqp_server.mqctl.command import Invocation, mqctl, pass_invocation
from amqp_server.mqctl.progress import each, progress

#: Interval of checks whether a node has stopped, s.
LOOK_INTERVAL_S = 0.1


@mqctl.command("ping", help="Checks that the node answers, without a login. Exit code 0 if it does.")
@pass_invocation
def ping(invocation: Invocation) -> None:
    invocation.client.ping()
    invocation.say("Ping succeeded")


@mqctl.command("version", help="Prints the version of mqctl. `mqctl server_version` prints that of the node.")
@pass_invocation
def version(invocation: Invocation) -> None:
    invocation.say(VERSION)


@mqctl.command("set_cluster_name", help="Sets the name of the cluster, which clients and the overview show.")
@click.argument("name")
@pass_invocation
def set_cluster_name(invocation: Invocation, name: str) -> None:
    invocation.client.put("cluster-name", body={"name": name})


@mqctl.command("stop", help="Stops the node at --url, as SIGTERM does, and waits until it has stopped.")
@click.option("--timeout", default=60.0, show_default=True, metavar="S", help="How long to wait, in seconds.")
@pass_invocation
def stop(invocation: Invocation, timeout: float) -> None:
    name = _name(invocation)
    invocation.client.post("nodes", name, "stop", body={})
    deadline = time.monotonic() + timeout
    with progress(f"Stopping {name}"):
        while invocation.client.answers():
            if time.monotonic() >= deadline:
                raise Failure(f"node {name} did not stop within {timeout:g} s", UNAVAILABLE)
            time.sleep(LOOK_INTERVAL_S)
    invocation.say(f"Node {name} has stopped")


@mqctl.command("shutdown", help="Does the same as `mqctl stop`; the name is that of rabbitmqctl.")
@click.option("--timeout", default=60.0, show_default=True, metavar="S", help="How long to wait, in seconds.")
@click.pass_context
def shutdown(ctx: click.Context, timeout: float) -> None:
    ctx.invoke(stop, timeout=timeout)


@mqctl.command("status", help="Prints the state of the nodes: memory, disk, alarms, listeners, totals.")
@pass_invocation
def status(invocation: Invocation) -> None:
    overview, nodes = invocation.client.get("overview"), invocation.client.get("nodes")
    listeners = overview.get("listeners", [])
    totals = overview["object_totals"] | overview["queue_totals"]
    if invocation.json:
        names = ("product_name", "product_version", "build")
        told = {name: overview[name] for name in names} | {"nodes": nodes, "listeners": listeners}
        click.echo(json.dumps(told | {"totals": totals}, ensure_ascii=False))
        return
    click.echo(f"{overview['product_name']} {overview['product_version']}, {overview['build']}")
    raised = invocation.client.get("alarms")
    for node in nodes:
        if not node["running"]:
            click.echo(f"node {node['name']} does not answer")
            continue
        click.echo(f"node {node['name']}, process {node['os_pid']}, up {lasted(node['uptime'] // 1000)}")
        click.echo(f"  memory {size(node['mem_used'])} of {size(node['mem_limit'])}")
        free, least = size(node["disk_free"]), size(node["disk_free_limit"])
        click.echo(f"  disk {free} free, publishers are blocked below {least}")
        click.echo(f"  descriptors {node['fd_used']} of {node['fd_total']}")
        if node["being_drained"]:
            click.echo("  drained: it accepts no clients until `mqctl revive`")
        here = [alarm for alarm in raised if alarm["node"] == node["name"]]
        alarms = {ALARMS.get(alarm["name"].split(" ")[0], alarm["name"]) for alarm in here}
        # A node of an earlier version tells only these.
        alarms |= {name for name in ("mem_alarm", "disk_free_alarm") if node[name]}
        click.echo(f"  alarms {', '.join(sorted(alarms)) or 'none'}")
        for alarm in here:
            blocks = " (publishers are blocked)" if alarm["blocks_publishers"] else ""
            click.echo(f"    {alarm['name']}{blocks}: {alarm['text'] or 'no more is known'}")
    click.echo("listeners")
    for listener in listeners:
        click.echo(
            f"  {listener['protocol']} {listener['ip_address']}:{listener['port']} on {listener['node']}"
        )
    click.echo("totals")
    for name, amount in totals.items():
        if isinstance(amount, int):
            click.echo(f"  {name.replace('_', ' ')} {amount:,}")


#: The fields of a node for RabbitMQ's alarms, by the first word of their names.
ALARMS = {"memory": "mem_alarm", "disk": "disk_free_alarm"}


def size(octets: int) -> str:
    """Return a number of bytes as people read it: `1.5 GiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if octets >= unit:
            return f"{octets / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{octets} bytes"


def lasted(seconds: int) -> str:
    """Return a duration as people read it: `3 d 4 h`."""
    for unit, name, smaller, smaller_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // smaller} {smaller_name}"
    return f"{seconds} s"


@mqctl.command(
    "set_vm_memory_high_watermark",
    help="Sets the memory limit above which publishers are blocked, until the node restarts. LIMIT is a share of the machine's memory such as 0.5, or `absolute BYTES`.",
)
@click.argument("limit", nargs=-1, required=True)
@pass_invocation
def set_vm_memory_high_watermark(invocation: Invocation, limit: tuple[str, ...]) -> None:
    invocation.client.put("nodes", _name(invocation), "memory-limit", body={"limit": _limit(limit)})


def _limit(given: tuple[str, ...]) -> str:
    if len(given) == 2 and given[0] == "absolute":
        return given[1]
    try:
        fraction = float(given[0]) if len(given) == 1 else -1.0
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise Failure("LIMIT must be a share above 0 and up to 1, or: absolute BYTES", USAGE)
    # Never with an exponent, and always with a point: the point marks it as a share.
    return f"{fraction:.12f}"


def _name(invocation: Invocation) -> str:
    return str(invocation.client.get("overview")["node"])


@mqctl.command(
    "close_connection",
    help="Closes one connection. `mqctl list_connections name` prints the names; the client gets REASON.",
)
@click.argument("name")
@click.argument("reason")
@pass_invocation
def close_connection(invocation: Invocation, name: str, reason: str) -> None:
    invocation.client.delete("connections", name, reason=reason)


@mqctl.command(
    "abort_transaction",
    help="Rolls back an open transaction, whose channel is closed, or has an undecided one rolled back. "
    "`mqctl list_transactions` prints the ids.",
)
@click.argument("id")
@click.argument("reason", required=False)
@pass_invocation
def abort_transaction(invocation: Invocation, id: str, reason: str | None) -> None:
    told = {} if reason is None else {"reason": reason}
    invocation.client.delete("transactions", id, **told)


@mqctl.command(
    "close_all_user_connections", help="Closes all connections of one user; the clients get REASON."
)
@click.argument("user")
@click.argument("reason")
@pass_invocation
def close_all_user_connections(invocation: Invocation, user: str, reason: str) -> None:
    invocation.client.delete("connections", "username", user, reason=reason)


@mqctl.command("close_all_connections", help="Closes all connections; the clients get REASON.")
@click.argument("reason")
@pass_invocation
def close_all_connections(invocation: Invocation, reason: str) -> None:
    with each("Closing connections", invocation.client.get("connections")) as connections:
        for connection in connections:
            try:
                invocation.client.delete("connections", connection["name"], reason=reason)
            except Failure as failure:
                # The connection has closed by itself.
                if failure.status != 404:
                    raise
