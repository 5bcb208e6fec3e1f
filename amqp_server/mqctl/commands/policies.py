"""Policies and operator policies, with the arguments and columns of rabbitmqctl."""

from __future__ import annotations

import json

import click

from amqp_server.mqctl.client import DATA_ERROR, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Choice, Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.table import show_columns

APPLIES = ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"]
COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def _commands(word: str, title: str, path: str, many: str) -> None:
    article = "an" if title[0] == "o" else "a"

    @mqctl.command(
        f"set_{word}",
        help=f"Sets {article} {title}: settings for the queues and exchanges whose names match PATTERN. DEFINITION is a JSON object.",
    )
    @in_vhost
    @click.option(
        "--priority",
        type=int,
        default=0,
        show_default=True,
        help="If several match, the one with the highest priority applies.",
    )
    @click.option(
        "--apply-to",
        type=Choice(APPLIES),
        default="all",
        show_default=True,
        help="Kind of objects to which it applies.",
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
            text = f'the definition is not JSON, such as {{"max-length": 5}}: {failure}'
            raise Failure(text, DATA_ERROR) from None
        body = {"pattern": pattern, "definition": told, "priority": priority, "apply-to": apply_to}
        invocation.client.put(path, vhost, name, body=body)

    @mqctl.command(f"clear_{word}", help=f"Removes {article} {title}.")
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

    @mqctl.command(f"list_{many}", help=f"Lists the {title.replace('policy', 'policies')} of a virtual host.")
    @in_vhost
    @pass_invocation
    def list_all(invocation: Invocation, vhost: str) -> None:
        rows = sorted(invocation.client.get(path, vhost), key=lambda row: (-row["priority"], row["name"]))
        show_columns(COLUMNS, rows, invocation)


_commands("policy", "policy", "policies", "policies")
_commands("operator_policy", "operator policy", "operator-policies", "operator_policies")
