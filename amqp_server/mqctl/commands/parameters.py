"""Runtime parameters, and limits of vhosts and users, with the arguments and columns of rabbitmqctl."""

from __future__ import annotations

import json
from typing import Any

import click

from amqp_server.mqctl.client import DATA_ERROR, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.table import show, show_columns


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as failure:
        raise Failure(f"the value is not JSON: {failure}", DATA_ERROR) from None


def _clear(invocation: Invocation, missing: str, *path: str) -> None:
    try:
        invocation.client.delete(*path)
    except Failure as failure:
        if failure.status == 404:
            raise Failure(missing, UNAVAILABLE) from None
        raise


@mqctl.command("set_parameter", help="Sets a runtime parameter of a component. VALUE is JSON.")
@in_vhost
@click.argument("component")
@click.argument("name")
@click.argument("value")
@pass_invocation
def set_parameter(invocation: Invocation, vhost: str, component: str, name: str, value: str) -> None:
    invocation.client.put("parameters", component, vhost, name, body={"value": parsed(value)})


@mqctl.command("clear_parameter", help="Removes a runtime parameter of a component.")
@in_vhost
@click.argument("component")
@click.argument("name")
@pass_invocation
def clear_parameter(invocation: Invocation, vhost: str, component: str, name: str) -> None:
    missing = f"there is no parameter '{name}' of {component} in vhost '{vhost}'"
    _clear(invocation, missing, "parameters", component, vhost, name)


@mqctl.command("list_parameters", help="Lists the runtime parameters of a virtual host.")
@in_vhost
@pass_invocation
def list_parameters(invocation: Invocation, vhost: str) -> None:
    rows = [row for row in invocation.client.get("parameters") if row["vhost"] == vhost]
    columns = ("component", "name", "value")
    show_columns(columns, rows, invocation)


@mqctl.command("set_global_parameter", help="Sets a global runtime parameter. VALUE is JSON.")
@click.argument("name")
@click.argument("value")
@pass_invocation
def set_global_parameter(invocation: Invocation, name: str, value: str) -> None:
    invocation.client.put("global-parameters", name, body={"value": parsed(value)})


@mqctl.command("clear_global_parameter", help="Removes a global runtime parameter.")
@click.argument("name")
@pass_invocation
def clear_global_parameter(invocation: Invocation, name: str) -> None:
    _clear(invocation, f"there is no global parameter '{name}'", "global-parameters", name)


@mqctl.command("list_global_parameters", help="Lists the global runtime parameters.")
@pass_invocation
def list_global_parameters(invocation: Invocation) -> None:
    rows = [(row["name"], row["value"]) for row in invocation.client.get("global-parameters")]
    show(("name", "value"), rows, invocation)


# -- limits -------------------------------------------------------------------------------------


def _set_all(invocation: Invocation, values: Any, *path: str) -> None:
    if not isinstance(values, dict):
        raise Failure("DEFINITION must be a JSON object", DATA_ERROR)
    for name, value in values.items():
        invocation.client.put(*path, name, body={"value": value})


@mqctl.command(
    "set_vhost_limits",
    help='Sets the limits of a virtual host. DEFINITION is a JSON object such as {"max-connections": 100, "max-queues": 50}; a number below 0 means no limit.',
)
@in_vhost
@click.argument("definition")
@pass_invocation
def set_vhost_limits(invocation: Invocation, vhost: str, definition: str) -> None:
    _set_all(invocation, parsed(definition), "vhost-limits", vhost)


@mqctl.command("clear_vhost_limits", help="Removes all limits of a virtual host.")
@in_vhost
@pass_invocation
def clear_vhost_limits(invocation: Invocation, vhost: str) -> None:
    for row in invocation.client.get("vhost-limits", vhost):
        for name in row["value"]:
            invocation.client.delete("vhost-limits", vhost, name)


@mqctl.command("list_vhost_limits", help="Lists the limits of a virtual host.")
@in_vhost
@click.option("--global", "everywhere", is_flag=True, help="List the limits of all virtual hosts.")
@pass_invocation
def list_vhost_limits(invocation: Invocation, vhost: str, everywhere: bool) -> None:
    path = ("vhost-limits",) if everywhere else ("vhost-limits", vhost)
    rows = [(row["vhost"], row["value"]) for row in invocation.client.get(*path)]
    show(("vhost", "limits"), rows, invocation)


@mqctl.command(
    "set_user_limits",
    help='Sets the limits of a user. DEFINITION is a JSON object such as {"max-connections": 10, "max-channels": 50}; a number below 0 means no limit.',
)
@click.argument("user")
@click.argument("definition")
@pass_invocation
def set_user_limits(invocation: Invocation, user: str, definition: str) -> None:
    _set_all(invocation, parsed(definition), "user-limits", user)


@mqctl.command("clear_user_limits", help="Removes one limit of a user. LIMIT is its name, or `all`.")
@click.argument("user")
@click.argument("limit")
@pass_invocation
def clear_user_limits(invocation: Invocation, user: str, limit: str) -> None:
    invocation.client.delete("user-limits", user, limit)


@mqctl.command("list_user_limits", help="Lists the limits of all users.")
@click.option("--user", help="List the limits of this user only.")
@pass_invocation
def list_user_limits(invocation: Invocation, user: str | None) -> None:
    path = ("user-limits",) if user is None else ("user-limits", user)
    rows = [(row["user"], row["value"]) for row in invocation.client.get(*path)]
    show(("user", "limits"), rows, invocation)
