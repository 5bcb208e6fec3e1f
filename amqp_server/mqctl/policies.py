"""Policies and operator policies, with the arguments and columns of rabbitmqctl."""

from __future__ import annotations

import json

import click

from amqp_server.mqctl.client import DATA_ERROR, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.table import show_columns

APPLIES = ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"]
COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def _commands(word: str, title: str, path: str, many: str) -> None:
    @mqctl.command(f"set_{word}", help=f"Sets a {title}: settings for what has a name that matches.")
    @in_vhost
    @click.option("--priority", type=int, default=0, show_default=True, help="The highest one applies.")
    @click.option(
        "--apply-to", type=click.Choice(APPLIES), default="all", show_default=True, help="To what it applies."
    )
    @click.argument("name")
    @click.argument("pattern")
    @click.argument("definition")
    @pass_invocation
    def set_one(
        invocation: Invocation,
        vhost: str,
        priority: int,
        apply_to: str,
        name: str,
        pattern: str,
        definition: str,
    ) -> None:
        try:
            told = json.loads(definition)
        except ValueError as failure:
            raise Failure(f"the definition is not JSON: {failure}", DATA_ERROR) from None
        body = {"pattern": pattern, "definition": told, "priority": priority, "apply-to": apply_to}
        invocation.client.put(path, vhost, name, body=body)

    @mqctl.command(f"clear_{word}", help=f"Clears one {title}.")
    @in_vhost
    @click.argument("name")
    @pass_invocation
    def clear(invocation: Invocation, vhost: str, name: str) -> None:
        try:
            invocation.client.delete(path, vhost, name)
        except Failure as failure:
            if failure.status == 404:
                raise Failure(f"no {title} '{name}' in vhost '{vhost}'", UNAVAILABLE) from None
            raise

    @mqctl.command(f"list_{many}", help=f"Lists {title.replace('policy', 'policies')} of a vhost.")
    @in_vhost
    @pass_invocation
    def list_all(invocation: Invocation, vhost: str) -> None:
        rows = sorted(invocation.client.get(path, vhost), key=lambda row: (-row["priority"], row["name"]))
        show_columns(COLUMNS, rows, invocation)


_commands("policy", "policy", "policies", "policies")
_commands("operator_policy", "operator policy", "operator-policies", "operator_policies")
