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
    told = invocation.client.check("health", "checks", "alarms")
    limits = [(each["node"], each["resource"]) for each in told.get("alarms", ())]
    for node in nodes:
        if not node["running"]:
            click.echo(f"node {node['name']} does not answer")
            continue
        alarms = [name for name in ("mem_alarm", "disk_free_alarm") if node[name]]
        # Nodes have no field of their own for it, as in RabbitMQ.
        alarms += [each for name, each in limits if name == node["name"] and each == "file_descriptor_limit"]
        click.echo(f"node {node['name']}, process {node['os_pid']}, up {node['uptime'] // 1000} s")
        click.echo(f"memory {node['mem_used']} of {node['mem_limit']} bytes")
        click.echo(f"disk {node['disk_free']} bytes free, at least {node['disk_free_limit']}")
        click.echo(f"alarms {', '.join(alarms) or 'none'}")
    for listener in listeners:
        click.echo(f"listener {listener['protocol']} {listener['ip_address']}:{listener['port']}")
    for name, amount in totals.items():
        click.echo(f"{name} {amount}")


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
