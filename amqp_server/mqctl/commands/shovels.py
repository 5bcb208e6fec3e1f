"""Shovels, with the arguments and columns of rabbitmqctl's plugin."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import click

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.commands.parameters import parsed
from amqp_server.mqctl.progress import each
from amqp_server.mqctl.table import show

COLUMNS = (
    "name",
    "vhost",
    "type",
    "state",
    "node",
    "source_uri",
    "source",
    "destination_uri",
    "destination",
    "forwarded",
    "last_changed",
    "termination_reason",
)


def _end(row: dict[str, Any], which: str) -> str:
    queue = row.get(f"{which}_queue")
    if queue is not None:
        return str(queue)
    return " ".join(str(row[key]) for key in (f"{which}_exchange", f"{which}_exchange_key") if row.get(key))


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "source_uri": row.get("src_uri", ""),
        "source": _end(row, "src"),
        "destination_uri": row.get("dest_uri", ""),
        "destination": _end(row, "dest"),
        "last_changed": row.get("timestamp", ""),
        "termination_reason": row.get("reason", ""),
    }


def _list(invocation: Invocation) -> None:
    rows = [_columns(row) for row in invocation.client.get("shovels")]
    show(COLUMNS, [[row.get(column, "") for column in COLUMNS] for row in rows], invocation)


for _name in ("shovel_status", "list_shovels"):
    mqctl.command(_name, help="Lists the shovels with their state, and why stopped ones have ended.")(
        pass_invocation(_list)
    )


@mqctl.command(
    "set_shovel",
    help="Adds or changes a shovel. DEFINITION is a JSON object such as "
    '{"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://other", "dest-queue": "b"}.',
)
@in_vhost
@click.argument("name")
@click.argument("definition")
@pass_invocation
def set_shovel(invocation: Invocation, vhost: str, name: str, definition: str) -> None:
    invocation.client.put("parameters", "shovel", vhost, name, body={"value": parsed(definition)})


def _change(invocation: Invocation, vhost: str, name: str, *more: str) -> None:
    try:
        invocation.client.delete("shovels", "vhost", vhost, name, *more)
    except Failure as failure:
        if failure.status == 404:
            raise Failure(f"there is no shovel '{name}' in vhost '{vhost}'", UNAVAILABLE) from None
        raise


@mqctl.command("delete_shovel", help="Deletes a shovel.")
@in_vhost
@click.argument("name")
@pass_invocation
def delete_shovel(invocation: Invocation, vhost: str, name: str) -> None:
    _change(invocation, vhost, name)


@mqctl.command("delete_shovels", help="Deletes all shovels of a virtual host.")
@in_vhost
@pass_invocation
def delete_shovels(invocation: Invocation, vhost: str) -> None:
    with each("Deleting shovels", invocation.client.get("shovels", vhost)) as shovels:
        for row in shovels:
            _change(invocation, vhost, row["name"])


@mqctl.command(
    "shovel_queues",
    help="Adds a shovel for each durable queue of a virtual host, which moves the messages of the queue with the same name"
    " at another broker into it. URI is that of the virtual host there; - reads it from stdin, so that others cannot see its"
    " password in ps.",
)
@in_vhost
@click.argument("uri")
@pass_invocation
def shovel_queues(invocation: Invocation, vhost: str, uri: str) -> None:
    if uri == "-":
        uri = sys.stdin.readline().strip()
    rows = invocation.client.get("queues", vhost, columns="name,durable,exclusive,type")
    durable = [row for row in rows if row["durable"] and not row["exclusive"]]
    filled = [row["name"] for row in durable if row["type"] in ("classic", "quorum")]
    with each("Setting shovels", filled) as names:
        for name in names:
            value = {
                "src-uri": uri,
                "src-queue": name,
                "src-predeclared": True,
                "dest-uri": f"amqp:///{quote(vhost, safe='')}",
                "dest-queue": name,
                "dest-predeclared": True,
            }
            invocation.client.put("parameters", "shovel", vhost, name, body={"value": value})
    for row in durable:
        if row["type"] not in ("classic", "quorum"):
            invocation.say(f"left out: queue '{row['name']}' of type {row['type']}")


@mqctl.command("restart_shovel", help="Restarts a shovel: it disconnects and connects again.")
@in_vhost
@click.argument("name")
@pass_invocation
def restart_shovel(invocation: Invocation, vhost: str, name: str) -> None:
    _change(invocation, vhost, name, "restart")
