"""Completion of commands and options by the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from amqp_server.mqctl.command import Choice, mqctl

SHELLS = ("bash", "zsh", "fish")


@mqctl.command(
    "completion",
    help='Prints a script with which SHELL (bash, zsh, fish) completes commands and options: eval "$(mqctl completion bash)"',
)
@click.argument("shell", type=Choice(SHELLS), metavar="SHELL")
def completion(shell: str) -> None:
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(mqctl, {}, "mqctl", "_MQCTL_COMPLETE").source())
