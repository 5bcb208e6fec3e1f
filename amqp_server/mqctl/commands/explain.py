"""`mqctl explain …`: why an object is as it is."""

from __future__ import annotations

import json
from typing import Any

import click

from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.table import moment, show


@mqctl.group("explain", help="Explains why a queue is as it is: its place, its settings, its decisions.")
def explain() -> None:
    pass


@explain.command(
    "queue",
    help="Prints the leader and members of a queue, how far the copy of the node at --url is behind, why the queue takes "
    "nothing now, its last leaders and failures as that node knows them since its start, the origin of each setting, and "
    "which node decides what.",
)
@in_vhost
@click.argument("name")
@pass_invocation
def queue(invocation: Invocation, vhost: str, name: str) -> None:
    told = invocation.client.get("queues", vhost, name, "explain")
    if invocation.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    click.echo(f"queue '{told['name']}' in virtual host '{told['vhost']}', type {told['type']}")
    if told["members"]:
        click.echo(f"leader {told['leader'] or 'none now'}, members {_members(told)}")
    else:
        click.echo(f"on node {told['node']}")
    if told["copy"] is not None:
        click.echo(_copy(told["asked_node"], told["copy"]))
    for obstacle in told["obstacles"]:
        click.echo(f"now: {obstacle}")
    events = [(moment(each["at"]), each["what"]) for each in told["events"]]
    if events:
        show(("since", f"as node {told['asked_node']} knows it"), events, invocation)
    settings = [(each["name"], _shown(each["value"]), _origin(each)) for each in told["settings"]]
    show(("setting", "value", "from"), settings, invocation)
    if not told["settings_in_force"]:
        click.echo("these settings are not in force yet: the queue's log does not contain them")
    decisions = [(each["what"], each["place"], each["why"]) for each in told["decisions"]]
    show(("decision", "taken at", "why it is right"), decisions, invocation)


def _members(told: dict[str, Any]) -> str:
    return ", ".join(name if name in told["online"] else f"{name} (down)" for name in told["members"])


def _copy(node: str, copy: dict[str, Any]) -> str:
    if not copy["member"]:
        return f"node {node} has no copy; it asks a member"
    if copy["committed"] is None:
        return f"node {node} has applied entry {copy['applied']}; no leader with a majority has answered"
    behind = max(copy["committed"] - copy["applied"], 0)
    return (
        f"node {node} has applied entry {copy['applied']} of {copy['committed']} ({behind} behind the leader)"
    )


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _origin(setting: dict[str, Any]) -> str:
    return f"{setting['origin']} '{setting['policy']}'" if setting["policy"] else str(setting["origin"])
