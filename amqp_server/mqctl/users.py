"""Users, vhosts and permissions."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import DATA_ERROR, NO_USER, SOFTWARE, UNAVAILABLE, Failure
from amqp_server.mqctl.command import Session, in_vhost, mqctl, pass_session, password_argument
from amqp_server.mqctl.table import show


def _exists(session: Session, *path: str) -> bool:
    try:
        session.client.get(*path)
    except Failure as failure:
        if failure.status == 404:
            return False
        raise
    return True


def _require_user(session: Session, user: str) -> None:
    if not _exists(session, "users", user):
        raise Failure(f'User "{user}" does not exist', NO_USER)


def _require_vhost(session: Session, vhost: str) -> None:
    if not _exists(session, "vhosts", vhost):
        raise Failure(f"Virtual host '{vhost}' does not exist", UNAVAILABLE)


_FORCE = click.option("--force", is_flag=True, help="Even if no administrator is left then.")
_PASSWORD = "asked for on a terminal, or read from stdin, if it is left out"


def _forced(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


@mqctl.command("add_user", help=f"Makes a user; the password is {_PASSWORD}.")
@click.argument("user")
@click.argument("password", required=False)
@pass_session
def add_user(session: Session, user: str, password: str | None) -> None:
    if _exists(session, "users", user):
        raise Failure(f'User "{user}" already exists', SOFTWARE)
    session.client.put("users", user, body={"password": password_argument(password, new=True), "tags": []})


@mqctl.command("delete_user", help="Deletes a user and closes its connections.")
@_FORCE
@click.argument("user")
@pass_session
def delete_user(session: Session, user: str, force: bool) -> None:
    _require_user(session, user)
    session.client.delete("users", user, **_forced(force))


@mqctl.command("change_password", help=f"Sets a user's password, which is {_PASSWORD}.")
@click.argument("user")
@click.argument("password", required=False)
@pass_session
def change_password(session: Session, user: str, password: str | None) -> None:
    _require_user(session, user)
    session.client.put("users", user, body={"password": password_argument(password, new=True)})


@mqctl.command(
    "set_user_tags", help="Sets a user's tags: administrator, monitoring, policymaker, management."
)
@_FORCE
@click.argument("user")
@click.argument("tags", nargs=-1)
@pass_session
def set_user_tags(session: Session, user: str, tags: tuple[str, ...], force: bool) -> None:
    _require_user(session, user)
    session.client.put("users", user, body={"tags": list(tags)}, **_forced(force))


@mqctl.command("list_users", help="Lists users and their tags.")
@pass_session
def list_users(session: Session) -> None:
    rows = [(user["name"], user["tags"]) for user in session.client.get("users")]
    show(("user", "tags"), rows, session)


@mqctl.command("authenticate_user", help="Says whether a password is the user's.")
@click.argument("user")
@click.argument("password", required=False)
@pass_session
def authenticate_user(session: Session, user: str, password: str | None) -> None:
    answer = session.client.post(
        "users", user, "authenticate", body={"password": password_argument(password)}
    )
    if not answer["authenticated"]:
        raise Failure(f'failed to authenticate user "{user}"', DATA_ERROR)
    session.say("Success")


@mqctl.command("add_vhost", help="Makes a virtual host.")
@click.argument("vhost")
@click.option("--description", default="", help="What it is for.")
@click.option(
    "--default-queue-type",
    type=click.Choice(["classic", "quorum", "stream"]),
    help="Type of durable queues that are declared without one.",
)
@pass_session
def add_vhost(session: Session, vhost: str, description: str, default_queue_type: str | None) -> None:
    body = {"description": description}
    if default_queue_type is not None:
        body["default_queue_type"] = default_queue_type
    session.client.put("vhosts", vhost, body=body)


@mqctl.command("delete_vhost", help="Deletes a virtual host with all that is in it.")
@click.argument("vhost")
@pass_session
def delete_vhost(session: Session, vhost: str) -> None:
    _require_vhost(session, vhost)
    session.client.delete("vhosts", vhost)


@mqctl.command("list_vhosts", help="Lists virtual hosts.")
@pass_session
def list_vhosts(session: Session) -> None:
    show(("name",), [(vhost["name"],) for vhost in session.client.get("vhosts")], session)


@mqctl.command("set_permissions", help="Sets what a user may do: three regular expressions for names.")
@in_vhost
@click.argument("user")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@pass_session
def set_permissions(session: Session, vhost: str, user: str, configure: str, write: str, read: str) -> None:
    _require_user(session, user)
    _require_vhost(session, vhost)
    session.client.put(
        "permissions", vhost, user, body={"configure": configure, "write": write, "read": read}
    )


@mqctl.command("clear_permissions", help="Takes a user's permissions in a vhost.")
@in_vhost
@click.argument("user")
@pass_session
def clear_permissions(session: Session, vhost: str, user: str) -> None:
    _require_user(session, user)
    _require_vhost(session, vhost)
    if _exists(session, "permissions", vhost, user):
        session.client.delete("permissions", vhost, user)


@mqctl.command("list_permissions", help="Lists the permissions in a vhost.")
@in_vhost
@pass_session
def list_permissions(session: Session, vhost: str) -> None:
    _require_vhost(session, vhost)
    columns = ("user", "configure", "write", "read")
    rows = session.client.get("vhosts", vhost, "permissions")
    show(columns, [[row[column] for column in columns] for row in rows], session)


@mqctl.command("list_user_permissions", help="Lists a user's permissions.")
@click.argument("user")
@pass_session
def list_user_permissions(session: Session, user: str) -> None:
    _require_user(session, user)
    columns = ("vhost", "configure", "write", "read")
    rows = session.client.get("users", user, "permissions")
    show(columns, [[row[column] for column in columns] for row in rows], session)
