"""The node: its state, its memory limit, its connections."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import UNAVAILABLE, USAGE, Failure
from amqp_server.mqctl.command import Session, mqctl, pass_session


@mqctl.command("status", help="Says how the node is.")
@pass_session
def status(session: Session) -> None:
    overview, nodes = session.client.get("overview"), session.client.get("nodes")
    click.echo(f"{overview['product_name']} {overview['product_version']}, {overview['build']}")
    for node in nodes:
        alarms = [name for name in ("mem_alarm", "disk_free_alarm") if node[name]]
        click.echo(f"node {node['name']}, process {node['os_pid']}, up {node['uptime'] // 1000} s")
        click.echo(f"memory {node['mem_used']} of {node['mem_limit']} bytes")
        click.echo(f"disk {node['disk_free']} bytes free, at least {node['disk_free_limit']}")
        click.echo(f"alarms {', '.join(alarms) or 'none'}")
    for listener in overview.get("listeners", []):
        click.echo(f"listener {listener['protocol']} {listener['ip_address']}:{listener['port']}")
    totals = overview["object_totals"] | overview["queue_totals"]
    for name, amount in totals.items():
        click.echo(f"{name} {amount}")


@mqctl.command(
    "set_vm_memory_high_watermark", help="FRACTION, or absolute BYTES: above it, publishers are blocked."
)
@click.argument("limit", nargs=-1, required=True)
@pass_session
def set_vm_memory_high_watermark(session: Session, limit: tuple[str, ...]) -> None:
    session.client.put("nodes", _name(session), "memory-limit", body={"limit": _limit(limit)})


def _limit(given: tuple[str, ...]) -> str:
    if len(given) == 2 and given[0] == "absolute":
        return given[1]
    try:
        fraction = float(given[0]) if len(given) == 1 else -1.0
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise Failure("must be a fraction above 0 and up to 1, or absolute BYTES", USAGE)
    # Never with an exponent, and always with a point, which is what makes it a share.
    return f"{fraction:.12f}"


def _name(session: Session) -> str:
    return str(session.client.get("cluster-name")["name"])


@mqctl.command("close_connection", help="Closes a connection, named as list_connections names it.")
@click.argument("name")
@click.argument("reason")
@pass_session
def close_connection(session: Session, name: str, reason: str) -> None:
    try:
        session.client.delete("connections", name, reason=reason)
    except Failure as failure:
        if failure.status == 404:
            raise Failure(f"there is no connection {name}", UNAVAILABLE) from None
        raise


@mqctl.command("close_all_connections", help="Closes all connections.")
@click.argument("reason")
@pass_session
def close_all_connections(session: Session, reason: str) -> None:
    for connection in session.client.get("connections"):
        try:
            session.client.delete("connections", connection["name"], reason=reason)
        except Failure as failure:
            # It went by itself.
            if failure.status != 404:
                raise
