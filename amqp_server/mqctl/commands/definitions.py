"""Definitions: everything that is declared and set, written to a file or read from one."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from amqp_server.mqctl.client import DATA_ERROR, Failure
from amqp_server.mqctl.command import Invocation, mqctl, pass_invocation
from amqp_server.mqctl.files import STDIO, private
from amqp_server.mqctl.progress import progress

_VHOST = click.option("-p", "--vhost", help="Export or import this virtual host only.")


def _path(vhost: str | None) -> tuple[str, ...]:
    return ("definitions",) if vhost is None else ("definitions", vhost)


@mqctl.command(
    "export_definitions",
    help="Writes all definitions, including password hashes, to FILE. Without FILE, or with -, they go to stdout.",
)
@_VHOST
@click.option(
    "--for-rabbitmq",
    is_flag=True,
    help="Leave out what RabbitMQ cannot import (such as users with Argon2id hashes), and list it on stderr.",
)
@click.argument("file", default=STDIO)
@pass_invocation
def export_definitions(
    invocation: Invocation, vhost: str | None, file: str, *, for_rabbitmq: bool = False
) -> None:
    query = {"for-rabbitmq": "true"} if for_rabbitmq else {}
    with progress("Exporting"):
        found = invocation.client.get(*_path(vhost), **query)
    for left_out in found.pop("left_out", ()):
        click.echo(f"left out: {left_out['type']} '{left_out['name']}': {left_out['reason']}", err=True)
    told = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    if file == STDIO:
        click.echo(told, nl=False)
        return
    try:
        with open(file, "w", encoding="utf-8", opener=private) as out:
            out.write(told)
    except OSError as failure:
        raise Failure(f"{file}: {failure.strerror}", DATA_ERROR) from None


@mqctl.command(
    "import_definitions",
    help="Imports definitions of RabbitMQ or mqd from FILE. Without FILE, or with -, they are read from stdin.",
)
@_VHOST
@click.argument("file", default=STDIO)
@pass_invocation
def import_definitions(invocation: Invocation, vhost: str | None, file: str) -> None:
    try:
        if file == STDIO:
            text = sys.stdin.read()
        else:
            with open(file, encoding="utf-8") as source:
                text = source.read()
        told: Any = json.loads(text)
    except OSError as failure:
        raise Failure(f"{file}: {failure.strerror}", DATA_ERROR) from None
    except ValueError as failure:
        raise Failure(f"{file}: not JSON: {failure}", DATA_ERROR) from None
    with progress("Importing"):
        answer = invocation.client.post(*_path(vhost), body=told)
    for skipped in answer["skipped"] if answer else ():
        place = f" in vhost '{skipped['vhost']}'" if skipped["vhost"] else ""
        invocation.say(f"left out: {skipped['section']} '{skipped['name']}'{place}: {skipped['reason']}")
