"""Users, vhosts and permissions."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import DATA_ERROR, NO_USER, SOFTWARE, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Choice, Invocation, in_vhost, mqctl, pass_invocation, password_argument
from amqp_server.mqctl.table import pick, show, show_columns

VHOST = {
    name: name
    for name in ("name", "description", "tags", "default_queue_type", "protected_from_deletion", "tracing")
}


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


_FORCE = click.option("--force", is_flag=True, help="Do it even if no administrator remains.")
_PASSWORD = "Without PASSWORD, the command asks for it on the terminal, or reads it from stdin."


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


@mqctl.command("add_user", help=f"Adds a user without permissions. {_PASSWORD}")
@click.argument("user")
@click.argument("password", required=False)
@pass_invocation
def add_user(invocation: Invocation, user: str, password: str | None) -> None:
    if _exists(invocation, "users", user):
        raise Failure(f'User "{user}" already exists', SOFTWARE)
    invocation.client.put("users", user, body={"password": password_argument(password, new=True), "tags": []})


@mqctl.command("delete_user", help="Deletes a user, and closes the connections of that user.")
@_FORCE
@click.argument("user")
@pass_invocation
def delete_user(invocation: Invocation, user: str, force: bool) -> None:
    _require_user(invocation, user)
    invocation.client.delete("users", user, **_forced(force))


@mqctl.command("change_password", help=f"Changes the password of a user. {_PASSWORD}")
@click.argument("user")
@click.argument("password", required=False)
@pass_invocation
def change_password(invocation: Invocation, user: str, password: str | None) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"password": password_argument(password, new=True)})


@mqctl.command(
    "clear_password",
    help="Removes the password of a user, who cannot log in with a password until change_password sets one.",
)
@click.argument("user")
@pass_invocation
def clear_password(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"password_hash": ""})


@mqctl.command(
    "set_user_tags",
    help="Replaces the tags of a user: administrator, monitoring, policymaker, management. Without TAGS, the user has none.",
)
@_FORCE
@click.argument("user")
@click.argument("tags", nargs=-1)
@pass_invocation
def set_user_tags(invocation: Invocation, user: str, tags: tuple[str, ...], force: bool) -> None:
    _require_user(invocation, user)
    invocation.client.put("users", user, body={"tags": list(tags)}, **_forced(force))


@mqctl.command("list_users", help="Lists all users and their tags.")
@pass_invocation
def list_users(invocation: Invocation) -> None:
    rows = [(user["name"], user["tags"]) for user in invocation.client.get("users")]
    show(("user", "tags"), rows, invocation)


@mqctl.command(
    "authenticate_user", help=f"Checks the password of a user. Exit code 0 if it is right. {_PASSWORD}"
)
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


@mqctl.command("add_vhost", help="Adds a virtual host, in which no user has permissions yet.")
@click.argument("vhost")
@click.option("--description", default="", help="Text for operators.")
@click.option(
    "--default-queue-type",
    type=Choice(["classic", "quorum", "stream"]),
    help="Type of durable queues that are declared without a type.",
)
@pass_invocation
def add_vhost(invocation: Invocation, vhost: str, description: str, default_queue_type: str | None) -> None:
    body = {"description": description}
    if default_queue_type is not None:
        body["default_queue_type"] = default_queue_type
    invocation.client.put("vhosts", vhost, body=body, grant="false")


@mqctl.command("set_vhost_tags", help="Replaces the tags of a virtual host, which are texts for operators.")
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


@mqctl.command(
    "enable_vhost_protection_from_deletion",
    help="Protects a virtual host from deletion, until `mqctl disable_vhost_protection_from_deletion`.",
)
@click.argument("vhost")
@pass_invocation
def enable_vhost_protection_from_deletion(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    invocation.client.post("vhosts", vhost, "deletion", "protection", body={})


@mqctl.command(
    "disable_vhost_protection_from_deletion",
    help="Lifts the protection of a virtual host, so that it can be deleted again.",
)
@click.argument("vhost")
@pass_invocation
def disable_vhost_protection_from_deletion(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    invocation.client.delete("vhosts", vhost, "deletion", "protection")


@mqctl.command(
    "delete_vhost",
    help="Deletes a virtual host with all its queues, messages, exchanges and permissions. Refused if it is protected from deletion.",
)
@click.argument("vhost")
@pass_invocation
def delete_vhost(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    invocation.client.delete("vhosts", vhost)


@mqctl.command(
    "list_vhosts",
    help="Lists the virtual hosts. COLUMNS (default: name) may be: name, description, tags, default_queue_type, protected_from_deletion, tracing.",
)
@click.argument("columns", nargs=-1)
@pass_invocation
def list_vhosts(invocation: Invocation, columns: tuple[str, ...]) -> None:
    wanted = columns or ("name",)
    show(wanted, pick(invocation.client.get("vhosts"), wanted, VHOST), invocation)


@mqctl.command(
    "trace_on",
    help="Starts tracing: copies of all messages of a virtual host go to its exchange amq.rabbitmq.trace.",
)
@in_vhost
@pass_invocation
def trace_on(invocation: Invocation, vhost: str) -> None:
    _trace(invocation, vhost, on=True)


@mqctl.command("trace_off", help="Stops tracing in a virtual host.")
@in_vhost
@pass_invocation
def trace_off(invocation: Invocation, vhost: str) -> None:
    _trace(invocation, vhost, on=False)


def _trace(invocation: Invocation, vhost: str, *, on: bool) -> None:
    _require_vhost(invocation, vhost)
    before = invocation.client.get("vhosts", vhost)
    kept = {name: before[name] for name in ("description", "tags", "default_queue_type")}
    invocation.client.put("vhosts", vhost, body=kept | {"tracing": on})


@mqctl.command(
    "set_permissions",
    help="Sets the permissions of a user in a virtual host. CONFIGURE, WRITE and READ are regular expressions for names of queues and exchanges.",
)
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


@mqctl.command("clear_permissions", help="Removes the permissions of a user in a virtual host.")
@in_vhost
@click.argument("user")
@pass_invocation
def clear_permissions(invocation: Invocation, vhost: str, user: str) -> None:
    _require_user(invocation, user)
    _require_vhost(invocation, vhost)
    if _exists(invocation, "permissions", vhost, user):
        invocation.client.delete("permissions", vhost, user)


@mqctl.command("list_permissions", help="Lists the permissions of all users in a virtual host.")
@in_vhost
@pass_invocation
def list_permissions(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    columns = ("user", "configure", "write", "read")
    rows = invocation.client.get("vhosts", vhost, "permissions")
    show_columns(columns, rows, invocation)


@mqctl.command("list_user_permissions", help="Lists the permissions of a user in all virtual hosts.")
@click.argument("user")
@pass_invocation
def list_user_permissions(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    columns = ("vhost", "configure", "write", "read")
    rows = invocation.client.get("users", user, "permissions")
    show_columns(columns, rows, invocation)


@mqctl.command(
    "set_topic_permissions",
    help="Sets the topic permissions of a user for one topic exchange. WRITE and READ are regular expressions for the routing keys of publishes and of bindings.",
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
    "clear_topic_permissions",
    help="Removes the topic permissions of a user in a virtual host, or those for one exchange.",
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


@mqctl.command("list_topic_permissions", help="Lists the topic permissions of all users in a virtual host.")
@in_vhost
@pass_invocation
def list_topic_permissions(invocation: Invocation, vhost: str) -> None:
    _require_vhost(invocation, vhost)
    columns = ("user", "exchange", "write", "read")
    rows = invocation.client.get("vhosts", vhost, "topic-permissions")
    show_columns(columns, rows, invocation)


@mqctl.command(
    "list_user_topic_permissions", help="Lists the topic permissions of a user in all virtual hosts."
)
@click.argument("user")
@pass_invocation
def list_user_topic_permissions(invocation: Invocation, user: str) -> None:
    _require_user(invocation, user)
    columns = ("vhost", "exchange", "write", "read")
    rows = invocation.client.get("users", user, "topic-permissions")
    show_columns(columns, rows, invocation)
