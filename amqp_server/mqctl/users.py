"""Users, vhosts and permissions."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import DATA_ERROR, NO_USER, SOFTWARE, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation, password_argument
from amqp_server.mqctl.table import pick, show, show_columns

VHOST = {name: name for name in ("name", "description", "tags", "default_queue_type", "tracing")}


def _exists(invocation: Invocation, *path: str) -> bool:
    try:
        invocation.client.get(*path)
    except Failure as failure:
        if failure.status == 404:
            return False
        raise
    return True


def _require_user(invocation: Invocation, user: str) -> None:
    if not _exists(invocation, "users", user):
        raise Failure(f'User "{user}" does not exist', NO_USER)


def _require_vhost(invocation: Invocation, vhost: str) -> None:
    if not _exists(invocation, "vhosts", vhost):
        raise Failure(f"Virtual host '{vhost}' does not exist", UNAVAILABLE)


_FORCE = click.option("--force", is_flag=True, help="Even if no administrator is left then.")
_PASSWORD = "asked for on a terminal, or read from stdin, if it is left out"


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


@mqctl.command("add_user", help=f"Makes a user; the password is {_PASSWORD}.")
@click.argument("user")
@click.argument("password", required=False)
@pass_invocation
def add_user(invocation: Invocation, user: str, password: str | None) -> None:
    if _exists(invocation, "users", user):
        raise Failure(f'User "{user}" already exists', SOFTWARE)
    invocation.client.put("users", user, body={"password": password_argument(password, new=True), "tags": []})


@mqctl.command("delete_user", help="Deletes a user and closes its connections.")
@_FORCE
@click.argument("user")
@pass_invocation
def delete_user(invocation: Invocation, user: str, force: bool) -> None:
    _require_user(invocation, user)
    invocation.client.delete("users", user, **_forced(force))


@mqctl.command("change_password", help=f"Sets a user's password, which is {_PASSWORD}.")
@click.argument("user")
@click.argument("password", required=False)
@pass_invocation
def change_password(invocation: Invocation, user: str, password: str | None) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"password": password_argument(password, new=True)})


@mqctl.command("clear_password", help="Nobody logs in as this user with a password until it is given one.")
@click.argument("user")
@pass_invocation
def clear_password(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"password_hash": ""})


@mqctl.command(
    "set_user_tags", help="Sets a user's tags: administrator, monitoring, policymaker, management."
)
@_FORCE
@click.argument("user")
@click.argument("tags", nargs=-1)
@pass_invocation
def set_user_tags(invocation: Invocation, user: str, tags: tuple[str, ...], force: bool) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"tags": list(tags)}, **_forced(force))


@mqctl.command("list_users", help="Lists users and their tags.")
@pass_invocation
def list_users(invocation: Invocation) -> None:
    rows = [(user["name"], user["tags"]) for user in invocation.client.get("users")]
    show(("user", "tags"), rows, invocation)


@mqctl.command("authenticate_user", help="Says whether a password is the user's.")
@click.argument("user")
@click.argument("password", required=False)
@pass_invocation
def authenticate_user(invocation: Invocation, user: str, password: str | None) -> None:
    answer = invocation.client.post(
        "users", user, "authenticate", body={"password": password_argument(password)}
    )
    if not answer["authenticated"]:
        raise Failure(f'failed to authenticate user "{user}"', DATA_ERROR)
    invocation.say("Success")


@mqctl.command("add_vhost", help="Makes a virtual host.")
@click.argument("vhost")
@click.option("--description", default="", help="What it is for.")
@click.option(
    "--default-queue-type",
    type=click.Choice(["classic", "quorum", "stream"]),
    help="Type of durable queues that are declared without one.",
)
@pass_invocation
def add_vhost(invocation: Invocation, vhost: str, description: str, default_queue_type: str | None) -> None:
    body = {"description": description}
    if default_queue_type is not None:
        body["default_queue_type"] = default_queue_type
    invocation.client.put("vhosts", vhost, body=body)


@mqctl.command("set_vhost_tags", help="Sets a virtual host's tags, which are for its operators to read.")
@click.argument("vhost")
@click.argument("tags", nargs=-1)
@pass_invocation
def set_vhost_tags(invocation: Invocation, vhost: str, tags: tuple[str, ...]) -> None:
    _require_vhost(invocation, vhost)
    kept = invocation.client.get("vhosts", vhost)
    body = {"description": kept["description"], "tags": list(tags)}
    if kept["default_queue_type"] != "undefined":
        body["default_queue_type"] = kept["default_queue_type"]
    invocation.client.put("vhosts", vhost, body=body)


@mqctl.command("delete_vhost", help="Deletes a virtual host with all that is in it.")
@click.argument("vhost")
@pass_invocation
def delete_vhost(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    invocation.client.delete("vhosts", vhost)


@mqctl.command(
    "list_vhosts", help="Lists virtual hosts; columns: name, description, tags, default_queue_type, tracing."
)
@click.argument("columns", nargs=-1)
@pass_invocation
def list_vhosts(invocation: Invocation, columns: tuple[str, ...]) -> None:
    wanted = columns or ("name",)
    show(wanted, pick(invocation.client.get("vhosts"), wanted, VHOST), invocation)


@mqctl.command("trace_on", help="Sends copies of all messages of a vhost to its exchange amq.rabbitmq.trace.")
@in_vhost
@pass_invocation
def trace_on(invocation: Invocation, vhost: str) -> None:
    _trace(invocation, vhost, on=True)


@mqctl.command("trace_off", help="Ends what trace_on began.")
@in_vhost
@pass_invocation
def trace_off(invocation: Invocation, vhost: str) -> None:
    _trace(invocation, vhost, on=False)


def _trace(invocation: Invocation, vhost: str, *, on: bool) -> None:
    _require_vhost(invocation, vhost)
    before = invocation.client.get("vhosts", vhost)
    kept = {name: before[name] for name in ("description", "tags", "default_queue_type")}
    invocation.client.put("vhosts", vhost, body=kept | {"tracing": on})


@mqctl.command("set_permissions", help="Sets what a user may do: three regular expressions for names.")
@in_vhost
@click.argument("user")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@pass_invocation
def set_permissions(
    invocation: Invocation, vhost: str, user: str, configure: str, write: str, read: str
) -> None:
    _require_user(invocation, user)
    _require_vhost(invocation, vhost)
    invocation.client.put(
        "permissions", vhost, user, body={"configure": configure, "write": write, "read": read}
    )


@mqctl.command("clear_permissions", help="Takes a user's permissions in a vhost.")
@in_vhost
@click.argument("user")
@pass_invocation
def clear_permissions(invocation: Invocation, vhost: str, user: str) -> None:
    _require_user(invocation, user)
    _require_vhost(invocation, vhost)
    if _exists(invocation, "permissions", vhost, user):
        invocation.client.delete("permissions", vhost, user)


@mqctl.command("list_permissions", help="Lists the permissions in a vhost.")
@in_vhost
@pass_invocation
def list_permissions(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    columns = ("user", "configure", "write", "read")
    rows = invocation.client.get("vhosts", vhost, "permissions")
    show_columns(columns, rows, invocation)


@mqctl.command("list_user_permissions", help="Lists a user's permissions.")
@click.argument("user")
@pass_invocation
def list_user_permissions(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    columns = ("vhost", "configure", "write", "read")
    rows = invocation.client.get("users", user, "permissions")
    show_columns(columns, rows, invocation)


@mqctl.command(
    "set_topic_permissions",
    help="Sets with which routing keys a user may publish to a topic exchange, and bind from it: two regular expressions.",
)
@in_vhost
@click.argument("user")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
@pass_invocation
def set_topic_permissions(
    invocation: Invocation, vhost: str, user: str, exchange: str, write: str, read: str
) -> None:
    _require_user(invocation, user)
    _require_vhost(invocation, vhost)
    body = {"exchange": exchange, "write": write, "read": read}
    invocation.client.put("topic-permissions", vhost, user, body=body)


@mqctl.command(
    "clear_topic_permissions", help="Takes a user's topic permissions in a vhost, or for one exchange."
)
@in_vhost
@click.argument("user")
@click.argument("exchange", required=False)
@pass_invocation
def clear_topic_permissions(invocation: Invocation, vhost: str, user: str, exchange: str | None) -> None:
    _require_user(invocation, user)
    _require_vhost(invocation, vhost)
    path = ("topic-permissions", vhost, user)
    invocation.client.delete(*path, *(() if exchange is None else (exchange,)))


@mqctl.command("list_topic_permissions", help="Lists the topic permissions in a vhost.")
@in_vhost
@pass_invocation
def list_topic_permissions(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    columns = ("user", "exchange", "write", "read")
    rows = invocation.client.get("vhosts", vhost, "topic-permissions")
    show_columns(columns, rows, invocation)


@mqctl.command("list_user_topic_permissions", help="Lists a user's topic permissions.")
@click.argument("user")
@pass_invocation
def list_user_topic_permissions(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    columns = ("vhost", "exchange", "write", "read")
    rows = invocation.client.get("users", user, "topic-permissions")
    show_columns(columns, rows, invocation)
