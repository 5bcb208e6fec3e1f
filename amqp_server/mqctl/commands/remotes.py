"""Object stores of streams."""

from __future__ import annotations

import click

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, mqctl, pass_invocation
from amqp_server.mqctl.table import show

COLUMNS = ("vhost", "name", "remote", "segments", "bytes", "table_files", "missing", "orphans", "unfinished")


@mqctl.group("remote", help="Looks after the object stores of streams.")
def remote() -> None:
    pass


@remote.command(
    "check",
    help="Compares the object stores with the streams of the node at --url: objects that a stream needs and that are missing, objects that no stream needs, and uploads that are not finished. Exit code 69 if objects are missing.",
)
@click.option(
    "--delete-orphans", is_flag=True, help="Delete the objects that no stream of this node will need."
)
@pass_invocation
def check(invocation: Invocation, delete_orphans: bool) -> None:
    if delete_orphans:
        deleted = invocation.client.delete("stream-remotes", "orphans")["deleted"]
        invocation.say(f"{deleted} orphans were deleted")
    found = invocation.client.get("stream-remotes")
    rows = [
        (*(each[name] for name in COLUMNS[:6]), *(len(each[name]) for name in COLUMNS[6:]))
        for each in found["streams"]
    ]
    show(COLUMNS, rows, invocation)
    for other in found["others"]:
        invocation.say(
            f"remote '{other['remote']}': {other['objects']} objects under {other['identity']}/ belong to no stream of this node"
        )
    missing = [key for each in found["streams"] for key in each["missing"]]
    if missing:
        raise Failure(f"missing, or not whole: {', '.join(missing[:10])}", UNAVAILABLE)
