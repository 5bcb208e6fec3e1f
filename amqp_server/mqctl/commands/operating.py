"""Operating a node: the options in force, what may be changed while it runs, maintenance, reports."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import sys
import time
from typing import Any, TextIO

import click

from amqp_server.cluster.membership.machines import machine_of
from amqp_server.config import VERSION
from amqp_server.mqctl.client import UNAVAILABLE, USAGE, Failure
from amqp_server.mqctl.command import Choice, Invocation, in_vhost, mqctl, pass_invocation, password_argument
from amqp_server.mqctl.commands.cluster import rebalance as rebalance_cluster
from amqp_server.mqctl.progress import progress
from amqp_server.mqctl.table import show, text

#: Interval of checks of a command that waits, s.
LOOK_INTERVAL_S = 0.2


def own_name(invocation: Invocation) -> str:
    return str(invocation.client.get("overview")["node"])


# -- options -------------------------------------------------------------------------------------------------


@mqctl.command(
    "environment",
    help="Lists the options in force on the node at --url, and where each value comes from: default, file, environment variable, command line. Passwords are left out.",
)
@click.option("--changed", is_flag=True, help="Leave out options that have their default.")
@pass_invocation
def environment(invocation: Invocation, changed: bool) -> None:
    told = invocation.client.get("nodes", own_name(invocation), "environment")["options"]
    rows = [row for row in told if not changed or row["source"] != "default"]
    show(
        ("option", "value", "source"),
        [
            (
                row["name"],
                row["value"] if invocation.json else _with_next(row),
                row["source"],
            )
            for row in rows
        ],
        invocation,
    )


def _with_next(row: dict[str, Any]) -> str:
    shown = text(row["value"])
    return f"{shown} (at the next start: {text(row['at_next_start'])})" if "at_next_start" in row else shown


@mqctl.command(
    "set_log_level",
    help="Sets the least severe level of lines that the node at --url logs, until it restarts.",
)
@click.argument("level", type=Choice(["debug", "info", "warning", "error"]))
@pass_invocation
def set_log_level(invocation: Invocation, level: str) -> None:
    invocation.client.put("nodes", own_name(invocation), "log-level", body={"level": level})


@mqctl.command(
    "set_disk_free_limit",
    help="Sets the free disk space below which the node at --url blocks publishers, until it restarts. LIMIT is a number of bytes such as 2GiB, or `mem_relative SHARE`, a share of the memory limit's machine.",
)
@click.argument("limit", nargs=-1, required=True)
@pass_invocation
def set_disk_free_limit(invocation: Invocation, limit: tuple[str, ...]) -> None:
    name = own_name(invocation)
    if len(limit) == 2 and limit[0] == "mem_relative":
        given = str(int(_share(limit[1]) * _memory_bytes(invocation, name)))
    elif len(limit) == 1:
        given = limit[0]
    else:
        raise Failure("LIMIT must be a number of bytes such as 2GiB, or: mem_relative SHARE", USAGE)
    invocation.client.put("nodes", name, "disk-free-limit", body={"limit": given})


def _share(given: str) -> float:
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1000:
        raise Failure(f"SHARE must be a number such as 1.5, not {given!r}", USAGE)
    return share


def _memory_bytes(invocation: Invocation, node: str) -> int:
    return int(invocation.client.get("nodes", node)["mem_limit"])


@mqctl.command(
    "hash_password",
    help="Prints the hash of a password as definitions and `PUT /api/users/{user}` take it, with RabbitMQ's algorithm SHA-256. Asks no node.",
)
@click.argument("password", required=False)
@pass_invocation
def hash_password(invocation: Invocation, password: str | None) -> None:
    salt = os.urandom(4)
    hashed = salt + hashlib.sha256(salt + password_argument(password, new=True).encode()).digest()
    invocation.say(base64.b64encode(hashed).decode())


# -- maintenance ---------------------------------------------------------------------------------------------


@mqctl.command(
    "drain",
    help="Puts the node at --url into maintenance: its leaders go to other nodes, its connections are closed little by little, and it accepts no clients. Waits until that is done.",
)
@click.option(
    "--timeout", default=300.0, show_default=True, metavar="S", help="How long to wait, in seconds."
)
@pass_invocation
def drain(invocation: Invocation, timeout: float) -> None:
    name = own_name(invocation)
    invocation.client.put("nodes", name, "drain")
    deadline = time.monotonic() + timeout
    with progress(f"Draining {name}"):
        while True:
            left = _left(invocation, name)
            if not left:
                break
            if time.monotonic() >= deadline:
                raise Failure(f"{'; '.join(left)} after {timeout:g} s; it goes on", UNAVAILABLE)
            time.sleep(LOOK_INTERVAL_S)
    invocation.say(f"Node {name} is drained; `mqctl revive` puts it into service again")


def _left(invocation: Invocation, name: str) -> list[str]:
    """Return what each process of a node still has to give away."""
    rows = [row for row in invocation.client.get("nodes") if machine_of(row["name"]) == name]
    left = [
        f"node {row['name']} has {row.get('leaders_left')} leaders and {row.get('connections_left', 0)} connections left"
        for row in rows
        if row["running"] and (row.get("leaders_left"), row.get("connections_left")) != (0, 0)
    ]
    silent = {row["name"] for row in rows if not row["running"]}
    if silent:
        # One that is down has nothing left.
        up = {node["name"] for node in invocation.client.get("cluster")["nodes"] if node["running"]}
        left += [f"node {each} does not answer" for each in sorted(silent & up)]
    return left


@mqctl.command("revive", help="Puts the node at --url into service again after `mqctl drain`.")
@pass_invocation
def revive(invocation: Invocation) -> None:
    name = own_name(invocation)
    invocation.client.put("nodes", name, "revive")
    invocation.say(f"Node {name} is in service")


@mqctl.command(
    "rebalance",
    help="Does the same as `mqctl cluster rebalance`, under RabbitMQ's name. The optional TYPE is ignored: all types are rebalanced.",
)
@click.argument(
    "type_", metavar="[TYPE]", required=False, type=Choice(["all", "quorum", "classic", "stream"])
)
@click.pass_context
def rebalance(ctx: click.Context, type_: str | None) -> None:
    invocation = ctx.find_object(Invocation)
    assert invocation is not None
    try:
        ctx.invoke(rebalance_cluster)
    except Failure as failure:
        if failure.status != 404:
            raise
        invocation.say("0 leaders are moving: this node stands alone")


@mqctl.command(
    "quorum_status",
    help="Lists the members of a quorum queue or stream with their state and how far each log is.",
)
@in_vhost
@click.argument("queue")
@pass_invocation
def quorum_status(invocation: Invocation, vhost: str, queue: str) -> None:
    rows = invocation.client.get("cluster", "queues", vhost, queue, "status")
    if invocation.json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    columns = ["Node Name", "Raft State", "online"]
    columns += [name for name in STATUS if any(name in row for row in rows)]
    show(columns, [[row.get(name) for name in columns] for row in rows], invocation)


STATUS = (
    "Last Log Index", "Last Applied", "Commit Index", "Snapshot Index", "Term", "Machine Version",
)  # fmt: skip


# -- a report ------------------------------------------------------------------------------------------------

#: Parts of a report: title, path, and the fields of its rows that the report has; empty: all of them.
PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("nodes", ("nodes",), ()),
    ("alarms", ("alarms",), ()),
    ("cluster", ("cluster",), ()),
    ("replicated queues", ("cluster", "queues"), ()),
    ("failed queues", ("failed-queues",), ()),
    ("virtual hosts", ("vhosts",), ("name", "default_queue_type", "messages", "tracing")),
    ("queues", ("queues",), ("vhost", "name", "type", "durable", "policy", "messages", "messages_unacknowledged", "consumers", "leader", "members", "state")),
    ("exchanges", ("exchanges",), ("vhost", "name", "type", "durable", "policy")),
    ("policies", ("policies",), ()),
    ("operator policies", ("operator-policies",), ()),
    # Values of parameters may have the passwords of shovels.
    ("parameters", ("parameters",), ("vhost", "component", "name")),
    ("users", ("users",), ("name", "tags")),
    # What clients say of themselves may be anything.
    ("connections", ("connections",), ("name", "user", "vhost", "state", "channels", "ssl", "node", "recv_oct", "send_oct", "send_pend")),
    ("channels", ("channels",), ("name", "consumer_count", "messages_unacknowledged", "messages_unconfirmed", "prefetch_count", "state")),
)  # fmt: skip
#: Rows of a part, at most.
ROWS_MAX = 2_000


@mqctl.command(
    "report",
    help="Writes one file about the node and its cluster for a bug report: versions, options in force, alarms, objects with their counts. No passwords, no messages. Names of queues, users and hosts are in it. FILE is - by default: standard output.",
)
@click.argument("file", type=click.File("w"), default="-")
@pass_invocation
def report(invocation: Invocation, file: TextIO) -> None:
    client = invocation.client
    overview = client.get("overview")
    python = f"Python {platform.python_version()} on {platform.platform()}"
    with progress("Gathering"):
        parts: dict[str, object] = {
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "mqctl": f"{VERSION}, {python}",
            "overview": overview,
        }
        names = [row["name"] for row in _asked(invocation, "nodes")]
        parts["options that are no defaults"] = {
            name: [row for row in _environment(invocation, name) if row["source"] != "default"]
            for name in names
        }
        for title, path, columns in PARTS:
            parts[title] = _part(_asked(invocation, *path), columns)
    json.dump(parts, file, indent=1, ensure_ascii=False)
    file.write("\n")
    if file is not sys.stdout:
        file.flush()
        click.echo(f"The report is in {file.name}: read it before you publish it", err=True)


def _asked(invocation: Invocation, *path: str) -> Any:
    """Return an answer, or the reason why there is none: one part that fails does not end a report."""
    try:
        return invocation.client.get(*path)
    except Failure as failure:
        if failure.status in (0, 401):
            raise
        return [] if path == ("nodes",) else f"not available: {failure}"


def _environment(invocation: Invocation, node: str) -> list[dict[str, Any]]:
    told = _asked(invocation, "nodes", node, "environment")
    return told["options"] if isinstance(told, dict) else []


def _part(told: Any, columns: tuple[str, ...]) -> Any:
    if not isinstance(told, list):
        return told
    rows = [{name: row.get(name) for name in columns} if columns else row for row in told[:ROWS_MAX]]
    return [*rows, f"and {len(told) - ROWS_MAX} more"] if len(told) > ROWS_MAX else rows
